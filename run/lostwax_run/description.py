"""What a `.pte` file says of its methods: what they take and give, which kernels and backends they
need. Reads a file that the runtime has verified. Must not load numpy, nor run anything."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from lostwax_run.tables import Bytes, Table, reading

DTYPES = {
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32",
    7: "float64", 9: "complex64", 10: "complex128", 11: "bool", 15: "bfloat16", 27: "uint16",
    28: "uint32", 29: "uint64",
}  # fmt: skip
"""The dtypes that arrays may have, by their numbers; those of bfloat16 come as uint16."""

# Slots of the tables of ExecuTorch's program.fbs
PLANS, NAME, VALUES, INPUTS, OUTPUTS, CHAINS, KERNELS, DELEGATES, ARENAS = 1, 0, 2, 3, 4, 5, 6, 7, 8
KINDS = ("none", "none", "int", "bool", "float", "tensor", "text")
TENSOR = 5


@dataclass(frozen=True)
class Spec:
    """One input or result of a method."""

    kind: str
    """"tensor", or "int", "float", "bool", "text", "none", "list"."""
    name: str = ""
    """What the file calls it; mostly nothing."""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    """The size of each dim: the largest one, if the shape varies."""
    varies: bool = False
    """May each dim be shorter than `shape` says? (The file does not say which of them vary.)"""
    order: tuple[int, ...] = ()
    """The dims in the order in which they lie in memory, the outermost first."""

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """The least and the largest size of each dim."""
        return tuple((0 if self.varies else size, size) for size in self.shape)

    @property
    def is_contiguous(self) -> bool:
        return self.order == tuple(range(len(self.shape)))

    def __str__(self) -> str:
        if self.kind != "tensor":
            return self.kind
        sizes = ", ".join(f"≤{size}" if self.varies else str(size) for size in self.shape)
        return f"{self.dtype}[{sizes}]"


@dataclass(frozen=True)
class Description:
    """One method of a file."""

    name: str
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    kernels: tuple[str, ...]
    backends: tuple[str, ...]
    arenas: tuple[int, ...]
    """The bytes of memory that it needs: its own, then those that it shares with other methods."""
    is_constant: bool
    """Does it take nothing and compute nothing?"""


@reading
def describe(data: Bytes) -> dict[str, Description]:
    """The methods of a program by their names."""
    (root,) = struct.unpack_from("<I", data)
    return {each.name: each for each in map(_describe_plan, Table(data, root).tables(PLANS))}


def _describe_plan(plan: Table) -> Description:
    inputs = tuple(_list_specs(plan, INPUTS))
    delegates = [each.text(0) for each in plan.tables(DELEGATES)]
    return Description(
        plan.text(NAME),
        inputs,
        tuple(_list_specs(plan, OUTPUTS)),
        tuple(_name_kernel(each) for each in plan.tables(KERNELS)),
        tuple(dict.fromkeys(delegates)),
        plan.numbers(ARENAS, "q")[1:],
        not inputs and not any(chain.count(2) for chain in plan.tables(CHAINS)),
    )


def _list_specs(plan: Table, slot: int) -> Iterator[Spec]:
    for index in plan.numbers(slot, "i"):
        value = plan.row(VALUES, index)
        tag = value.integer(0, "B")
        inner = value.table(1)
        if tag != TENSOR or inner is None:
            yield Spec(KINDS[tag] if tag < len(KINDS) else "list")
            continue
        number, extra = inner.integer(0, "b"), inner.table(9)
        yield Spec(
            "tensor",
            extra.text(1) if extra is not None else "",
            DTYPES.get(number, f"dtype {number}"),
            inner.numbers(2, "i"),
            inner.integer(8, "b") != 0,
            inner.numbers(3, "B"),
        )


def _name_kernel(operator: Table) -> str:
    name, overload = operator.text(0), operator.text(1)
    return f"{name}.{overload}" if overload else name
