"""Which dtypes an operator takes together, and what it returns for them: rows, and their file.

`edge.yaml` has the form that is shown in the specification of the Edge dialect; it is made by
`python -m tests.dialects.make_rows`, which tries every combination on real kernels. Only that form
is read, by hand: the package needs no YAML library. Must not know of graphs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from lostwax.cache import cached
from lostwax.errors import ParseError

FILE = Path(__file__).parent / "edge.yaml"

DTYPES: dict[str, torch.dtype] = {
    "Bool": torch.bool,
    "Byte": torch.uint8,
    "Char": torch.int8,
    "Short": torch.int16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Float": torch.float32,
    "Double": torch.float64,
    "UInt16": torch.uint16,
    "ComplexFloat": torch.complex64,
    "ComplexDouble": torch.complex128,
}
"""The dtypes that rows speak of, by the names they have there."""


@dataclass(frozen=True)
class DtypeRows:
    """The rows of one operator.

    `aliases` names sets of dtypes, a row says for each argument and return which set it is of. In
    one row all that have the same alias have the same dtype. Rows with half precision that torch's
    kernels take, and the runtime's do not, stand apart, in `reduced`.
    """

    operator: str
    """Its name with its overload, without "default": `aten::add.Tensor`, `aten::sigmoid`."""
    aliases: Mapping[str, frozenset[torch.dtype]]
    rows: tuple[Mapping[str, str], ...]
    reduced: tuple[Mapping[str, str], ...] = ()

    @cached_property
    def allowed_types(self) -> dict[str, set[torch.dtype]]:
        """For each argument and return all the dtypes that some row allows; not of those apart."""
        found: dict[str, set[torch.dtype]] = {}
        for row in self.rows:
            for name, alias in row.items():
                found.setdefault(name, set()).update(self.aliases[alias])
        return found

    def allows(self, dtypes: Mapping[str, torch.dtype]) -> bool:
        """Is there a row for these dtypes of arguments and returns? What is not given, as an
        optional tensor, fits every row."""
        return any(self._fits(row, dtypes) for row in (*self.rows, *self.reduced))

    def is_apart(self, dtypes: Mapping[str, torch.dtype]) -> bool:
        """Is there a row for these dtypes, but only apart?"""
        rows = (row for row in self.rows if self._fits(row, dtypes))
        return any(self._fits(row, dtypes) for row in self.reduced) and not any(rows)

    def _fits(self, row: Mapping[str, str], dtypes: Mapping[str, torch.dtype]) -> bool:
        bound: dict[str, torch.dtype] = {}
        for name, dtype in dtypes.items():
            alias = row.get(name)
            if alias is None or dtype not in self.aliases[alias]:
                return False
            if bound.setdefault(alias, dtype) is not dtype:
                return False
        return True


@cached()
def read_rows() -> dict[str, DtypeRows]:
    """All rows of the file, by operator."""
    return {rows.operator: rows for rows in parse_rows(FILE.read_text())} if FILE.exists() else {}


def parse_rows(text: str) -> Iterator[DtypeRows]:
    """Read rows in the file's own form; anything else is a `ParseError`."""
    position, entry = 0, None
    for line in text.splitlines(keepends=True):
        try:
            if line.startswith("- func: "):
                if entry is not None:
                    yield entry.finish()
                entry = _YamlEntry()
            elif line.strip() and not line.startswith("#"):
                if entry is None:
                    raise ValueError("a list of operators is expected")
                entry.read(line.rstrip("\n"))
        except (ValueError, KeyError) as error:
            raise ParseError(f"no row of dtypes: {error}", text, position) from None
        position += len(line)
    if entry is not None:
        yield entry.finish()


_ROWS = ("type_constraint", "reduced_constraint")


class _YamlEntry:
    """One operator of the file while it is read, line by line."""

    def __init__(self) -> None:
        self.inherits = ""
        self.aliases: dict[str, frozenset[torch.dtype]] = {}
        self.rows: dict[str, list[dict[str, str]]] = {name: [] for name in _ROWS}
        self.section = ""

    def read(self, line: str) -> None:
        if line in ("  type_alias:", *(f"  {name}:" for name in _ROWS)):
            self.section = line.strip(" :")
        elif line.startswith("  inherits: "):
            self.inherits = line.removeprefix("  inherits: ")
        elif line == "  namespace: edge":
            pass
        elif self.section == "type_alias" and line.startswith("    "):
            name, _, names = line.strip().partition(": ")
            self.aliases[name] = frozenset(DTYPES[n] for n in names.strip("[]").split(", "))
        elif self.section in _ROWS and line.startswith(("  - ", "    ")):
            rows = self.rows[self.section]
            if line.startswith("  - "):
                rows.append({})
            name, _, alias = line[4:].partition(": ")
            if alias not in self.aliases:
                raise ValueError(f"the alias {alias!r} is not defined")
            rows[-1][name] = alias
        else:
            raise ValueError(f"{line.strip()!r} does not stand in an operator's entry")

    def finish(self) -> DtypeRows:
        return DtypeRows(self.inherits, self.aliases, *map(tuple, self.rows.values()))


def write_rows(entries: Iterable[DtypeRows]) -> str:
    """The text of these rows, in the file's form."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    lines = []
    for entry in entries:
        lines += [
            f"- func: {entry.operator.partition('::')[2]}",
            "  namespace: edge",
            f"  inherits: {entry.operator}",
            "  type_alias:",
        ]
        for alias, dtypes in entry.aliases.items():
            lines.append(f"    {alias}: [{', '.join(sorted(names[d] for d in dtypes))}]")
        for section, rows in zip(_ROWS, (entry.rows, entry.reduced), strict=True):
            if rows:
                lines.append(f"  {section}:")
            for row in rows:
                items = [f"{name}: {alias}" for name, alias in row.items()]
                lines += [f"  - {items[0]}", *(f"    {item}" for item in items[1:])]
        lines.append("")
    return "\n".join(lines)
