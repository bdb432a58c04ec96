"""The first run of a module with custom operators: do they return what was recorded?

What a custom operator returns was told by the user's fake kernel (`register_fake`), and sizes and
dtypes of all that follows come from it. Nobody has compared it with the operator: the first run
does, by the recorded value and, where sizes are symbolic, by asking the fake kernel about these
very arguments. Must not compare data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from lostwax.errors import LostwaxError, WrongFakeError
from lostwax.fake import FakeTensor, FakeTensorMode
from lostwax.fake.fallback import user_kernel
from lostwax.ir.graph.lookup import all_nodes
from lostwax.ir.text import source_text
from lostwax.sym import ShapeEnv

Forward = Callable[..., Any]


class FirstRun:
    """A `forward` that compares until it has run once on real tensors."""

    def __init__(self, graph: GraphModule, forward: Forward) -> None:
        self._forward = forward
        self._nodes: dict[OpOverload, list[Node]] = {}
        for node in all_nodes(graph):
            if _is_custom(node.target):
                self._nodes.setdefault(node.target, []).append(node)  # type: ignore[arg-type]

    def __call__(self, *values: Any) -> Any:
        if not self._nodes or not _is_plain(values):
            return self._forward(*values)
        with _Comparing(self._nodes):
            results = self._forward(*values)
        self._nodes = {}
        return results


def has_custom_operators(graph: GraphModule) -> bool:
    return any(_is_custom(node.target) for node in all_nodes(graph))


def _is_custom(target: Any) -> bool:
    """Is it an operator of which a fake kernel of the user's says what it returns?"""
    if not isinstance(target, OpOverload) or target.namespace in ("aten", "prims"):
        return False
    return user_kernel(target) is not None


def _is_plain(values: Any) -> bool:
    """Are they real tensors, which nobody captures or compiles a program with?"""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return False
    return not any(isinstance(each, FakeTensor) for each in values)


class _Comparing(TorchDispatchMode):
    supports_higher_order_operators = True
    """Those of torch's own, such as `auto_functionalized`, run as they would without us."""

    def __init__(self, nodes: dict[OpOverload, list[Node]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._nodes = nodes

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        nodes = self._nodes.get(func)
        if nodes is None:
            return func(*args, **kwargs)
        told = _ask_kernel(func, args, kwargs)  # before the operator writes to its arguments
        result = func(*args, **kwargs)
        found = _list_types(result)
        recorded = [_list_types(node.meta.get("val")) for node in nodes]
        if not any(_fits(found, each) for each in recorded):
            raise _make_error(func, nodes[0], found, recorded[0])
        if told is not None and not _fits(found, told):
            raise _make_error(func, nodes[0], found, told)
        return result


class _Type(NamedTuple):
    """Of a tensor that an operator returns. A size that is not known before it runs is None."""

    dtype: torch.dtype
    size: tuple[int | None, ...]

    def __str__(self) -> str:
        sizes = ", ".join("?" if s is None else str(s) for s in self.size)
        return f"{str(self.dtype).removeprefix('torch.')}[{sizes}]"


def _list_types(value: Any) -> list[_Type]:
    leaves = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    return [
        _Type(leaf.dtype, tuple(s if type(s) is int else None for s in leaf.shape))
        for leaf in leaves
    ]


def _fits(found: list[_Type], told: list[_Type]) -> bool:
    return len(found) == len(told) and all(
        a.dtype is b.dtype
        and len(a.size) == len(b.size)
        and all(t in (None, s) for s, t in zip(a.size, b.size, strict=True))
        for a, b in zip(found, told, strict=True)
    )


def _ask_kernel(func: OpOverload, args: Any, kwargs: Any) -> list[_Type] | None:
    """What the fake kernel says of these arguments; None if it cannot be asked now."""
    mode = FakeTensorMode(shape_env=ShapeEnv())

    def fake(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return mode.from_tensor(value, static_shapes=True)
        return value

    try:
        with mode:
            args, kwargs = pytree.tree_map(fake, (args, kwargs))
            return _list_types(func(*args, **kwargs))
    except (LostwaxError, RuntimeError, NotImplementedError):
        return None


def _make_error(
    func: OpOverload, node: Node, found: list[_Type], told: list[_Type]
) -> WrongFakeError:
    name = func._schema.name
    where = source_text(node)
    at = f"\n  at {where}" if where else ""
    return WrongFakeError(
        f"the operator {name} returns {_text(found)}, and its fake kernel says "
        f"{_text(told)}.{at}\n"
        "  why: sizes and dtypes of all that the program computes from it were taken from the fake "
        "kernel\n"
        f'  instead: let the function that torch.library.register_fake("{name}") registers return '
        "what the operator does, and export again"
    )


def _text(types: list[_Type]) -> str:
    return " and ".join(map(str, types)) or "no tensor"
