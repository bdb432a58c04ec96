"""Writes the lists of operators and the files that know something of them: `lostwax/ops/index.py`
and `lostwax/fake/composite/index.py`.

    make index

Every file of these folders is loaded, and for each operator that is registered the file is noted
that is being loaded. Operators that this torch lacks are noted, too: the lists serve every torch.
"""

from __future__ import annotations

import pkgutil
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from lostwax.ops import registry
from lostwax.ops.families import index_name

ROOT = Path(__file__).parents[2]
TABLES = {
    "FAMILIES": "Files, and the operators that they know something of.",
    "DECOMPOSITIONS": "Files, and the operators that they take apart.",
}
Index = dict[str, dict[str, set[str]]]
"""Name of a table → file → operators."""


def find_registered(folder: str) -> Index:
    """Load all files of a folder; in this process none of them is loaded yet."""
    found: Index = {table: defaultdict(set) for table in TABLES}
    plain, plain_forms = registry.list_overloads, registry._mark_forms
    known = {index_name(schema.name) for schema in torch._C._jit_get_all_schemas()}

    def note(names: Iterable[str]) -> list[str]:
        overloads = plain(names)
        frame = sys._getframe(1)
        table = "DECOMPOSITIONS" if _is_decomposition(frame) else "FAMILIES"
        found[table][_loading(frame)] |= {name.partition(".")[0] for name in overloads}
        return overloads

    def note_forms(trait: Any, names: str, form: str) -> None:
        written = [f"{name}_" for name in names.split() if form == "writing"]
        found["FAMILIES"][_loading(sys._getframe(1))] |= {*names.split(), *written} & known
        plain_forms(trait, names, form)

    registry.list_overloads, registry._mark_forms = note, note_forms
    try:
        for each in pkgutil.walk_packages(import_module(folder).__path__, f"{folder}."):
            import_module(each.name)
    finally:
        registry.list_overloads, registry._mark_forms = plain, plain_forms
    return {
        table: {file: names for file, names in sorted(files.items()) if file.startswith(folder)}
        for table, files in found.items()
    }


def _is_decomposition(frame: FrameType) -> bool:
    return frame.f_code.co_qualname.startswith("decomposition.")


def _loading(frame: FrameType) -> str:
    """The file that is being loaded."""
    at: FrameType | None = frame
    while at is not None and at.f_code.co_name != "<module>":
        at = at.f_back
    assert at is not None
    return str(at.f_globals["__name__"])


def write_text(folder: str, found: Index) -> str:
    lines = ['"""Which file knows something of which operator. Made by `make index`."""', ""]
    lines += ["from __future__ import annotations"]
    for table, files in found.items():
        if not files and folder != "lostwax.ops":
            continue
        lines += ["", f"{table} = {{"]
        for file, names in files.items():
            lines += [f'    "{file}": """']
            listed = textwrap.wrap(" ".join(sorted(names)), 92, break_on_hyphens=False)
            lines += [*textwrap.indent("\n".join(listed), " " * 8).splitlines(), '    """,']
        lines += ["}", f'"""{TABLES[table]}"""']
    return "\n".join(lines) + "\n"


FOLDERS = ("lostwax.ops", "lostwax.fake.composite")


def path_of(folder: str) -> Path:
    return ROOT.joinpath(*folder.split("."), "index.py")


def main() -> None:
    texts = {folder: write_text(folder, find_registered(folder)) for folder in FOLDERS}
    for folder, text in texts.items():
        if "--print" in sys.argv:
            print(text, end="")
        else:
            path_of(folder).write_text(text)


if __name__ == "__main__":
    main()
