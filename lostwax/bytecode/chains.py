"""What code reads of what it names: `self.config.eps`, `SCALES["x"]`.

Must not know what the names stand for.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType
from typing import Any, NamedTuple

from lostwax.bytecode.outline import nested_codes
from lostwax.bytecode.steps import read_steps
from lostwax.cache import cached_by_identity


class Chain(NamedTuple):
    """A name, and what is read of it."""

    operation: str
    name: str
    steps: tuple[tuple[str, Any], ...]
    line: int


@cached_by_identity(5000)
def read_chains(code: CodeType) -> tuple[Chain, ...]:
    """The names that the code reads, with the functions defined in it."""
    return tuple([chain for each in nested_codes(code) for chain in _read(each)])


def _read(code: CodeType) -> Iterator[Chain]:
    chain: Chain | None = None
    constants: list[Any] = []
    line = code.co_firstlineno
    for step in read_steps(code):
        line = step.line or line
        if chain is not None and step.opname == "LOAD_ATTR":
            chain = chain._replace(steps=(*chain.steps, ("attribute", step.argval)))
        elif chain is not None and step.opname == "LOAD_CONST":
            constants = [step.argval]
        elif chain is not None and step.opname == "BINARY_SUBSCR" and constants:
            chain = chain._replace(steps=(*chain.steps, ("item", constants.pop())))
        else:
            if chain is not None:
                yield chain
            begins = step.opname in _BEGINNING
            chain = Chain(step.opname, step.argval, (), line) if begins else None
            constants = []
    if chain is not None:
        yield chain


_BEGINNING = ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_GLOBAL", "LOAD_DEREF")
