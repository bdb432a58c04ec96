"""The table of decompositions to core ATen: our own, and torch's for the long tail.

An operator is core if torch tags it so (`torch.Tag.core`). Operators are looked up one by one; the
whole table is listed only if somebody asks for it. Must not run a decomposition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import torch
import torch._decomp as decomp
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

from lostwax.cache import cached, cached_by_identity
from lostwax.fake import fallback
from lostwax.ir.decompose.expander import Composite, Decomposition
from lostwax.location import user_location
from lostwax.ops.decompositions.whole import WHOLE
from lostwax.ops.registry import find_decomposition, operator

Table = Mapping[OpOverload, Decomposition]


class CustomDecompTable(MutableMapping[OpOverload, Decomposition]):
    """Which operators `run_decompositions` takes apart, and how.

    Made by `default_decompositions()`, and edited like a dictionary: `del table[op]` keeps an
    operator whole, `table[op] = function` takes it apart in another way. `function` is called with
    the operator's arguments and returns what the operator returns.
    """

    def __init__(self) -> None:
        self.changed: dict[OpOverload, Decomposition | None] = {}
        """What differs from the default: another function, or None for what stays whole."""
        self._offered: dict[OpOverload, Decomposition] = {}

    def _find(self, op: OpOverload) -> Decomposition | None:
        if op in self.changed:
            return self.changed[op]
        return self._offered.get(op) or default_decomposition(op)

    def __getitem__(self, op: OpOverload) -> Decomposition:
        found = self._find(op)
        if found is None:
            raise KeyError(op)
        return found

    def get(self, op: OpOverload, default: Any = None) -> Any:
        found = self._find(op)
        return default if found is None else found

    def __setitem__(self, op: OpOverload, function: Decomposition) -> None:
        _check_key(op)
        self.changed[op] = function

    def __delitem__(self, op: OpOverload) -> None:
        self.pop(op)

    def pop(self, op: OpOverload, *default: Any) -> Any:
        """Keep an operator whole; return how it was taken apart. One of another library may be
        named that the table does not have: it stays whole, too, and None is returned."""
        _check_key(op)
        found = self._find(op)
        is_known = op in self.changed or getattr(op, "namespace", "") == "aten"
        if found is None and is_known:
            if default:
                return default[0]
            raise KeyError(op)
        self.changed[op] = None
        return found if found is not None or not default else default[0]

    def clear(self) -> None:
        self.keep(*self)

    def update(self, other_dict: Mapping[OpOverload, Decomposition]) -> None:  # type: ignore[override]
        """Take all these operators apart in these ways."""
        for op, function in other_dict.items():
            self[op] = function

    def copy(self) -> CustomDecompTable:
        """Return a copy that can be edited without changing this table."""
        made = CustomDecompTable()
        made.changed.update(self.changed)
        made._offered.update(self._offered)
        return made

    __copy__ = copy

    def materialize(self) -> dict[OpOverload, Decomposition]:
        """The whole table as a dict. (torch.export's name; here all is there at any time.)"""
        return dict(self.items())

    def offer(self, functions: Mapping[OpOverload, Decomposition]) -> CustomDecompTable:
        """Take these operators apart where that is possible: a call that a function does not take
        stays whole. Return the table."""
        self._offered.update(functions)
        return self

    def may_stay(self, op: OpOverload) -> bool:
        """May the operator stay whole where it cannot be taken apart? Not if a user said how."""
        return op not in self.changed

    def keep(self, *ops: OpOverload | OpOverloadPacket) -> CustomDecompTable:
        """Leave these operators whole, whether the table has them or not; return the table."""
        for op in ops:
            names = op.overloads() if isinstance(op, OpOverloadPacket) else ()
            for each in [getattr(op, name) for name in names] or [op]:
                self.changed[each] = None
        return self

    def __iter__(self) -> Iterator[OpOverload]:
        every = dict.fromkeys((*_all_defaults(), *_list_foreign(), *self.changed, *self._offered))
        yield from (op for op in every if self._find(op) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, op: object) -> bool:
        return isinstance(op, OpOverload) and self.get(op) is not None

    def __repr__(self) -> str:
        return f"CustomDecompTable({len(self)} operators)"


def as_table(table: Table | None) -> Table:
    """Return the table that a user passes, after checking it; the default one for None."""
    if table is None:
        return CustomDecompTable()
    if isinstance(table, CustomDecompTable):
        return table
    if not isinstance(table, Mapping):
        raise TypeError(
            "a table of decompositions is a mapping from operators to functions, not "
            f"{type(table).__name__}\n  why: it says how each operator is computed by others\n"
            "  instead: table = lostwax.default_decompositions(), and table.pop(op) for each that "
            "is to stay"
        )
    entries = dict(table.items())  # torch's table is a dict that is empty until it is listed
    for op in entries:
        _check_key(op)
    return entries


def find_advice(table: Table, op: OpOverload) -> str:
    """What a table that a user passes says of an operator, in words; "": nothing of its own."""
    if isinstance(table, CustomDecompTable):
        if op not in table.changed:
            return ""
        return "says that it stays" if table.changed[op] is None else "has a function"
    if op in table:
        function = table[op]
        function = getattr(function, "func", function)
        is_own = not str(getattr(function, "__module__", "")).startswith("torch.")
        return "has a function" if is_own else ""
    # torch's own: what it had at first, and has no longer.
    is_edited = type(table).__name__ == "CustomDecompTable" and op in type(table)()
    return "says that it stays" if is_edited else ""


def _check_key(op: object) -> None:
    if not isinstance(op, (OpOverload, HigherOrderOperator)):
        example = "torch.ops.aten.silu.default"
        if isinstance(op, OpOverloadPacket):
            example = f"torch.ops.{op}.{op.overloads()[0]}"
        raise TypeError(
            f"a table of decompositions is keyed by overloads, not by {op!r}; for example {example}"
            f"\n  at {user_location()}"
            "\n  why: it is calls of overloads that a program has, and a name may stand for several"
            f"\n  instead: {{{example}: function}}, or lostwax.default_decompositions()"
        )


def default_decompositions() -> CustomDecompTable:
    """Return the table of decompositions to core ATen, for you to edit: `del table[op]`,
    `table[op] = function`, `table.keep(op)`."""
    return CustomDecompTable()


def is_core(op: OpOverload) -> bool:
    return torch.Tag.core in op.tags


@cached_by_identity(20_000)
def default_decomposition(op: OpOverload) -> Decomposition | None:
    """The decomposition of this operator to core ATen; None if it is core, or stays whole."""
    if not isinstance(op, OpOverload) or is_core(op):
        return None
    if (ours := find_decomposition(op)) is not None:
        return ours
    is_composite = fallback.is_composite(op) and not fallback.user_kernel(op)
    if operator(op).parts is not None or is_composite:
        return Composite(op)
    return None if str(op) in WHOLE else fallback.torch_decompositions().get(op)


@cached()
def _all_defaults() -> frozenset[OpOverload]:
    """Every operator of torch's own that the default table takes apart."""
    found = {op for op in decomp.decomposition_table if isinstance(op, OpOverload)}
    found.update(_list_overloads(is_own=True))
    return frozenset(op for op in found if default_decomposition(op) is not None)


def _list_foreign() -> Iterator[OpOverload]:
    """Those of other libraries, as far as they are loaded by now."""
    yield from filter(default_decomposition, _list_overloads(is_own=False))


def _list_overloads(is_own: bool) -> Iterator[OpOverload]:
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if (namespace == "aten") is is_own:
            found = getattr(getattr(torch.ops, namespace), packet, None)
            op = getattr(found, overload or "default", None)
            if isinstance(op, OpOverload):
                yield op
