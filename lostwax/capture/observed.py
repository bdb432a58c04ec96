"""Custom operators in a call in eager: what they return, and whether they do what their schemas and
fake kernels say. For `draft_export`.

The module is called once, on copies. Must not know how a capture works.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from lostwax.ir.graph.lookup import all_nodes
from lostwax.ir.program import ExportedProgram
from lostwax.ir.run.conditions.first_run import find_difference
from lostwax.location import Location, user_location

Kernel = Callable[..., Any]


def copy_call(module: Any, args: Any, kwargs: Any) -> Callable[[], Any]:
    """A call of a module in eager that changes neither it nor its arguments."""

    def call() -> Any:
        with torch.random.fork_rng(devices=[]):
            made, given, named = copy.deepcopy((module, args, kwargs))
            return made(*given, **named)

    return call


@dataclass(frozen=True)
class OperatorFault:
    """A custom operator that does not do what it says, or does not say what it does."""

    operator: str
    what: str
    instead: str
    where: Location | None = field(compare=False)

    def __str__(self) -> str:
        place = f"\n  at {self.where}" if self.where is not None else ""
        return f"{self.operator} {self.what}{place}\n  instead: {self.instead}"


def calls_custom(program: ExportedProgram) -> bool:
    """Has the program operators that neither torch nor lostwax defines?"""
    nodes = all_nodes(program.graph_module)
    return any(_is_custom(each) for n in nodes for each in (n.target, *n.args[:1]))


def _is_custom(func: object) -> bool:
    return isinstance(func, OpOverload) and func.namespace not in ("aten", "prims")


class _TensorKind(NamedTuple):
    """What of a tensor that an operator returns does not depend on its size."""

    dtype: torch.dtype
    device: torch.device
    order: tuple[int, ...]
    """Its dimensions, the outermost in memory first."""

    def make(self) -> Tensor:
        """A tensor of this kind, whose sizes only the data know."""
        context = torch.library.get_ctx()
        size = [context.new_dynamic_size() for _ in self.order]
        made = torch.empty(size, dtype=self.dtype, device=self.device)
        return made.permute([self.order.index(i) for i in range(len(self.order))])


class OperatorWatch(TorchDispatchMode):
    """Watches the custom operators that run inside."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.has_run = False
        self.faults: dict[OperatorFault, None] = {}
        self._results: dict[OpOverload, Any] = {}
        """What each operator returned; None if its calls differ, or have no such description."""

    def watch(self, call: Callable[[], Any]) -> None:
        """Run a call, as far as it comes: a module that raises in eager is nothing new."""
        self.has_run = True
        with suppress(Exception), self:
            call()

    def stand_in(self, func: OpOverload) -> Kernel | None:
        """A fake kernel that returns what was returned, in sizes that vary; None if it is not
        known."""
        found = self._results.get(func)
        if found is None or any(r.alias_info is not None for r in func._schema.returns):
            return None
        return lambda *args, **kwargs: pytree.tree_map(_TensorKind.make, found, is_leaf=_is_result)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not _is_custom(func) or isinstance(func, HigherOrderOperator):
            return func(*args, **kwargs)
        before = [(name, t, t.clone()) for name, t in _list_read(func, args, kwargs)]
        try:
            difference, result = find_difference(func, args, kwargs)
        except Exception as error:
            what = f"raises in eager, {type(error).__name__}: {error}"
            self._note(func, what, "let it return in eager first")
            raise
        if difference is not None:
            fix = f'let the function of torch.library.register_fake("{_name(func)}") return that'
            found, declared = difference
            self._note(func, f"returns {found}, and its fake kernel says {declared}", fix)
        self._check_writes(func, before)
        self._check_aliases(func, before, result)
        described = _describe(result)
        if self._results.setdefault(func, described) != described:
            self._results[func] = None
        return result

    def _check_writes(self, func: OpOverload, before: list[tuple[str, Tensor, Tensor]]) -> None:
        for name, now, was in before:
            if not _is_same(now, was):
                fix = f'mutates_args=("{name}",), or Tensor(a!) {name} in its schema'
                self._note(func, f"writes to its argument {name}, and its schema does not", fix)

    def _check_aliases(
        self, func: OpOverload, before: list[tuple[str, Tensor, Tensor]], result: Any
    ) -> None:
        returned = (result,) if len(func._schema.returns) == 1 else result or ()
        for declared, value in zip(func._schema.returns, returned, strict=False):
            for leaf in pytree.tree_leaves(value) if declared.alias_info is None else ():
                shared = [n for n, t, _ in before if isinstance(leaf, Tensor) and _share(leaf, t)]
                if shared:
                    what = f"returns memory of its argument {shared[0]}, and by its schema does not"
                    fix = f"return a copy, {shared[0]}.clone()"
                    self._note(func, what, fix)

    def _note(self, func: OpOverload, what: str, instead: str) -> None:
        self.faults.setdefault(OperatorFault(_name(func), what, instead, user_location()))


def _name(func: OpOverload) -> str:
    return str(func._schema.name)


def _list_read(
    func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, Tensor]]:
    """The tensors that the operator only reads, by its schema, with the names of arguments."""
    declared = func._schema.arguments
    given = {a.name: value for a, value in zip(declared, args, strict=False)} | dict(kwargs)
    for argument in declared:
        if argument.alias_info is None or not argument.alias_info.is_write:
            for leaf in pytree.tree_leaves(given.get(argument.name)):
                if isinstance(leaf, Tensor):
                    yield argument.name, leaf


def _is_same(a: Tensor, b: Tensor) -> bool:
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _share(a: Tensor, b: Tensor) -> bool:
    address = a.untyped_storage().data_ptr()
    return address != 0 and address == b.untyped_storage().data_ptr()


def _is_result(value: Any) -> bool:
    return isinstance(value, _TensorKind)


def _describe(result: Any) -> Any:
    """What an operator returned, without sizes; None if there is more to say of it."""
    leaves, spec = pytree.tree_flatten(result)
    found = []
    for leaf in leaves:
        if not isinstance(leaf, Tensor) or leaf.layout is not torch.strided:
            return None
        strides = leaf.stride()
        order = tuple(sorted(range(leaf.ndim), key=lambda i: -strides[i]))
        if not leaf.permute(order).is_contiguous():
            return None
        found.append(_TensorKind(leaf.dtype, leaf.device, order))
    return pytree.tree_unflatten(found, spec)
