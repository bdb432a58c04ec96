"""Edge operators: ATen operators with the dtypes they take, `lostwax.ops.edge.aten.add.Tensor`.

They are made when they are first named, once each. Beside ATen's there are the `dim_order_ops`,
whose copies say in which order dimensions lie in memory; they are defined here, under a name of our
own, since ExecuTorch defines its own under that one. Must not know of programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from lostwax.cache import cached_by_identity
from lostwax.dialects.dtype_rows import DTYPES, DtypeRows, read_rows
from lostwax.ops.dialect_operator import DialectOperator

_EVERY = frozenset(DTYPES.values())


class EdgeArgument:
    """An argument or a return of a schema, and the dtypes that it may have; None if it is no
    tensor. All else is that of torch's own argument."""

    def __init__(self, argument: Any, name: str, rows: DtypeRows | None) -> None:
        self._argument = argument
        self.name = name
        self.allowed_types: set[torch.dtype] | None = None
        if "Tensor" in str(argument.type):
            known = rows.allowed_types.get(name) if rows is not None else None
            self.allowed_types = set(_EVERY if known is None else known)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._argument, name)

    def __repr__(self) -> str:
        return repr(self._argument)


class EdgeSchema:
    """The schema of an operator with the dtypes of its arguments and returns."""

    def __init__(self, schema: Any, rows: DtypeRows | None) -> None:
        self._schema = schema
        self.rows = rows
        """Which dtypes go together; None if nothing is known, and every dtype is allowed."""
        self.name: str = schema.name
        self.overload_name: str = schema.overload_name
        self.arguments = [EdgeArgument(a, a.name, rows) for a in schema.arguments]
        self.returns = [
            EdgeArgument(r, r.name or f"__ret_{i}", rows) for i, r in enumerate(schema.returns)
        ]

    def __str__(self) -> str:
        return str(self._schema)

    __repr__ = __str__


class EdgeOperator(DialectOperator):
    """An ATen operator in the Edge dialect."""

    def __init__(self, overload: OpOverload, namespace: str) -> None:
        path = f"{overload._schema.name.partition('::')[2]}.{overload._overloadname}"
        super().__init__(overload, f"edge.{namespace}.{path}")
        self.namespace = namespace
        self._made: EdgeSchema | None = None

    @property
    def _schema(self) -> EdgeSchema:
        if self._made is None:
            schema = self.overload._schema
            name = f"{schema.name}.{schema.overload_name}".removesuffix(".")
            rows = read_rows().get(name) if self.namespace == "aten" else None
            self._made = EdgeSchema(schema, rows)
        return self._made

    @property
    def rows(self) -> DtypeRows | None:
        """Which dtypes go together; None if nothing is known."""
        return self._schema.rows

    def name(self) -> str:
        """As torch names operators: `aten::add.Tensor`."""
        path = self.__name__.split(".", 2)[2]
        return f"{self.namespace}::{path.removesuffix('.default')}"

    def to_out_variant(self) -> OpOverload | None:
        """The overload that writes its results into tensors that it is given, if there is one."""
        return find_out_variant(self.overload)


@cached_by_identity(20_000)
def find_out_variant(overload: OpOverload) -> OpOverload | None:
    """The overload of the same operator with the same arguments, and `out` beside them.
    Options of new tensors are those of the `out` tensor then, and not arguments any more."""
    return search_out_variant(overload)


def search_out_variant(overload: OpOverload) -> OpOverload | None:
    """The same, looked for anew: operators of a user's own may get one later."""
    wanted = [_kind(a) for a in overload._schema.arguments if a.name not in _OPTIONS]
    packet = getattr(getattr(torch.ops, overload.namespace), overload._schema.name.split("::")[1])
    for name in packet.overloads():
        other = getattr(packet, name)
        given = [a for a in other._schema.arguments if a.name not in _OPTIONS]
        outs = [a for a in given if a.is_out]
        if outs and [_kind(a) for a in given if not a.is_out] == wanted:
            return other  # type: ignore[no-any-return]
    return None


_OPTIONS = frozenset(("dtype", "layout", "device", "pin_memory"))


def _kind(argument: Any) -> tuple[str, str]:
    return argument.name, str(argument.type)


# ------------------------------------------------------------------------------- names


class EdgeNames:
    """A part of a dotted name of an Edge operator: `edge`, `edge.aten`, `edge.aten.add`."""

    def __init__(self, *path: str) -> None:
        self._path = path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        path = (*self._path, name)
        if len(path) < 3:
            found: Any = EdgeNames(*path)
        else:
            found = edge_operator(_find_overload(path))
        setattr(self, name, found)
        return found

    def __repr__(self) -> str:
        return f"lostwax.ops.{'.'.join(('edge', *self._path))}"


def _find_overload(path: Sequence[str]) -> OpOverload:
    namespace, packet, overload = path
    where = dim_order_library() if namespace == DIM_ORDER else getattr(torch.ops, namespace)
    try:
        return getattr(getattr(where, packet), overload)  # type: ignore[no-any-return]
    except AttributeError:
        raise AttributeError(f"there is no Edge operator {'.'.join(path)}") from None


edge = EdgeNames()
"""Edge operators by name: `edge.aten.add.Tensor`."""


_operators: dict[OpOverload, EdgeOperator] = {}


def edge_operator(overload: OpOverload) -> EdgeOperator:
    """The Edge operator that stands for this one, the same each time."""
    found = _operators.get(overload)
    if found is None:
        namespace = overload.namespace
        found = EdgeOperator(overload, DIM_ORDER if namespace == _LIBRARY else namespace)
        _operators[overload] = found
    return found


# ------------------------------------------------------------------------------- dim order

DIM_ORDER = "dim_order_ops"
_LIBRARY = "lostwax_dim_order"
_SCHEMAS = (
    "_to_dim_order_copy(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, "
    "Device? device=None, bool? pin_memory=None, bool non_blocking=False, "
    "int[]? dim_order=None) -> Tensor",
    "_clone_dim_order(Tensor self, *, bool non_blocking=False, int[]? dim_order=None) -> Tensor",
    "_empty_dim_order(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, "
    "Device? device=None, bool? pin_memory=None, int[]? dim_order=None) -> Tensor",
)


_libraries: list[torch.library.Library] = []


def _define_library() -> None:
    library = torch.library.Library(_LIBRARY, "DEF")
    _libraries.append(library)  # what a library defines lives as long as it
    functions: tuple[Any, ...] = (_to_dim_order_copy, _clone_dim_order, _empty_dim_order)
    for schema, function in zip(_SCHEMAS, functions, strict=True):
        library.define(schema)
        name = schema.partition("(")[0]
        library.impl(name, function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{_LIBRARY}::{name}", function, lib=library)


def dim_order_library() -> Any:
    """The namespace of torch that has the operators on dim orders."""
    if not _libraries:
        _define_library()
    return getattr(torch.ops, _LIBRARY)


def _lay_out(values: Tensor, dim_order: Sequence[int] | None) -> Tensor:
    """A copy whose dimensions lie in this order in memory, the outermost first."""
    order = list(dim_order or range(values.dim()))
    back = sorted(range(len(order)), key=order.__getitem__)
    return values.permute(order).clone(memory_format=torch.contiguous_format).permute(back)


def _to_dim_order_copy(
    self: Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    dim_order: Sequence[int] | None = None,
) -> Tensor:
    return _lay_out(torch.ops.aten._to_copy.default(self, dtype=dtype, device=device), dim_order)


def _clone_dim_order(
    self: Tensor, *, non_blocking: bool = False, dim_order: Sequence[int] | None = None
) -> Tensor:
    return _lay_out(self, dim_order)


def _empty_dim_order(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    dim_order: Sequence[int] | None = None,
) -> Tensor:
    return _lay_out(torch.empty(size, dtype=dtype, device=device), dim_order)
