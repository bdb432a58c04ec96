"""The first run of a module with custom operators: do they return what was recorded?

What a custom operator returns was declared by the user's fake kernel (`register_fake`); sizes and
dtypes of all that follows come from it. Nobody has compared it with the operator: the first run
does, by the recorded value and, where sizes are symbolic, by asking the fake kernel about these
very arguments. An operator in a branch is compared when it runs first. Must not compare data.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from lostwax.errors import WrongFakeError
from lostwax.fake import FakeTensor, FakeTensorMode
from lostwax.fake.autocast import enabled_as_on_entry
from lostwax.fake.fallback import user_kernel
from lostwax.fake.symbolic.node import unwrap
from lostwax.ir.graph.lookup import all_nodes
from lostwax.ir.text import source_text
from lostwax.sym import Range, ShapeEnv

Forward = Callable[..., Any]


class FirstRun:
    """A `forward` that compares until each custom operator has run once on real tensors."""

    def __init__(self, graph: GraphModule, forward: Forward) -> None:
        self._forward = forward
        self._nodes: dict[OpOverload, list[Node]] = {}
        for node in all_nodes(graph):
            custom = _find_custom(node)
            if custom is not None:
                self._nodes.setdefault(custom, []).append(node)

    def __call__(self, *values: Any) -> Any:
        if not self._nodes or not is_plain(values):
            return self._forward(*values)
        with _Comparing(self._nodes) as comparing:
            results = self._forward(*values)
        self._nodes = {f: nodes for f, nodes in self._nodes.items() if f not in comparing.done}
        return results


def has_custom_operators(graph: GraphModule) -> bool:
    return any(_find_custom(node) is not None for node in all_nodes(graph))


def _find_custom(node: Node) -> OpOverload | None:
    """The operator that a node calls, itself or on copies of what it writes to, if a fake kernel of
    the user's says what it returns."""
    target: Any = node.target
    if isinstance(target, HigherOrderOperator) and node.args:
        target = node.args[0]
    if not isinstance(target, OpOverload) or target.namespace in ("aten", "prims"):
        return None
    return target if user_kernel(target) is not None else None


def is_plain(values: Any) -> bool:
    """Are they real tensors, which nobody captures or compiles a program with?"""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return False
    return not any(isinstance(each, FakeTensor) for each in values)


class _Comparing(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self, nodes: dict[OpOverload, list[Node]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._nodes = nodes
        self.done: set[OpOverload] = set()
        """The operators that were compared."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        custom, given = func, args
        if isinstance(func, HigherOrderOperator) and args:  # it calls its operator past this mode
            custom, given = args[0], args[1:]
        nodes = self._nodes.get(custom) if isinstance(custom, OpOverload) else None
        if nodes is None:
            return func(*args, **kwargs)
        with enabled_as_on_entry() if func is custom else nullcontext():
            declared = _ask_kernel(custom, given, kwargs)  # before it writes to its arguments
            result = func(*args, **kwargs)
        found = _list_types(_leave_copies(func, custom, result))
        values = [_leave_copies(node.target, custom, node.meta.get("val")) for node in nodes]
        recorded = [_list_types(value) for value in values]
        if not any(_fits(found, each) for each in recorded):
            raise _make_error(custom, nodes[0], found, recorded[0])
        if declared is not None and not _fits(found, declared):
            raise _make_error(custom, nodes[0], found, declared)
        self.done.add(custom)
        return result


def find_difference(func: OpOverload, args: Any, kwargs: Any) -> tuple[tuple[str, str] | None, Any]:
    """What an operator returns and its fake kernel says, where these differ; and its result."""
    declared = _ask_kernel(func, args, kwargs)  # before it writes to its arguments
    result = func(*args, **kwargs)
    found = _list_types(result)
    differs = declared is not None and not _fits(found, declared)
    return (_text(found), _text(declared or [])) if differs else None, result


def _leave_copies(target: Any, custom: OpOverload, value: Any) -> Any:
    """What an operator returns, without the copies that it was called on, which come last."""
    return value if target is custom else value[: len(custom._schema.returns)]


class _Type(NamedTuple):
    """Of a tensor that an operator returns. Sizes may not be known before it runs."""

    dtype: torch.dtype
    size: tuple[Range, ...]

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}[{', '.join(map(_show, self.size))}]"


_ANY = Range(None, None)


def _show(size: Range) -> str:
    if size.lo is not None and size.lo == size.hi:
        return str(size.lo)
    return "?" if size.hi is None else f"{size.lo or 0} to {size.hi}"


def _list_types(value: Any, env: ShapeEnv | None = None) -> list[_Type]:
    """The types of the tensors in a value; what is known of symbolic sizes, `env` knows."""

    def find_range(size: Any) -> Range:
        if type(size) is int:
            return Range(size, size)
        return _ANY if env is None else env.bounds(unwrap(size))

    leaves = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    return [_Type(leaf.dtype, tuple(map(find_range, leaf.shape))) for leaf in leaves]


def _fits(found: list[_Type], declared: list[_Type]) -> bool:
    return len(found) == len(declared) and all(
        a.dtype is b.dtype and len(a.size) == len(b.size) and all(map(_is_within, a.size, b.size))
        for a, b in zip(found, declared, strict=True)
    )


def _is_within(size: Range, limits: Range) -> bool:
    assert size.lo is not None
    return (limits.lo is None or limits.lo <= size.lo) and (
        limits.hi is None or size.lo <= limits.hi
    )


def _ask_kernel(func: OpOverload, args: Any, kwargs: Any) -> list[_Type] | None:
    """What the fake kernel says of these arguments; None if it cannot be asked now."""
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)

    def fake(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return mode.from_tensor(value, static_shapes=True)
        return value

    try:
        with mode:
            args, kwargs = pytree.tree_map(fake, (args, kwargs))
            return _list_types(func(*args, **kwargs), env)
    except Exception:
        return None


def _make_error(
    func: OpOverload, node: Node, found: list[_Type], declared: list[_Type]
) -> WrongFakeError:
    name = func._schema.name
    where = source_text(node)
    at = f"\n  at {where}" if where else ""
    return WrongFakeError(
        f"the operator {name} returns {_text(found)}, and its fake kernel says "
        f"{_text(declared)}.{at}\n"
        "  why: sizes and dtypes of all that the program computes from it were taken from the fake "
        "kernel\n"
        f'  instead: let the function that torch.library.register_fake("{name}") registers return '
        "what the operator does, and export again"
    )


def _text(types: list[_Type]) -> str:
    return " and ".join(map(str, types)) or "no tensor"
