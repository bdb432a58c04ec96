"""What the sizes of a call must fulfil, beside a `.pte` file: the runtime compares only with the
largest. The manifest of transformers holds the conditions, with the inputs that they speak of.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._pytree import TreeSpec
from transformers.exporters.metadata import ExportMetadata

from lostwax.errors import InputValueError, LoadError, ParseError
from lostwax.ir.program import ExportedProgram
from lostwax.ir.pytree import leaf_paths, mapping_keys
from lostwax.pt2.guards import guards_code
from lostwax.sym.text.parse import parse

_KEY = "conditions"
_INPUT = re.compile(r"L\['([^']*)'\]")
_PATH = re.compile(r"L\['[^']*'\](\.<\d+>|\.\w+(\(\))?|\[[^\[\]]*\])*")


def note_conditions(program: ExportedProgram, metadata: ExportMetadata) -> None:
    for text in guards_code(program, whole=True):
        metadata.kwargs[_INPUT.findall(text)[0]].setdefault(_KEY, []).append(text)


def list_conditions(metadata: ExportMetadata) -> list[str]:
    return [text for described in metadata.kwargs.values() for text in described.get(_KEY, ())]


def check_conditions(conditions: Iterable[str], in_spec: TreeSpec, leaves: list[Any]) -> None:
    """Refuse a call whose sizes do not fulfil what the program was exported under."""
    by_name = in_spec.child(1)
    named = zip(mapping_keys(by_name), by_name.children(), strict=True)
    paths = [path for name, spec in named for path in leaf_paths(spec, f"L[{name!r}]")]
    sizes: dict[str, Any] = {}
    for path, leaf in zip(paths, leaves, strict=True):
        if isinstance(leaf, torch.Tensor):
            sizes |= {f"{path}.size()[{d}]": size for d, size in enumerate(leaf.shape)}
        elif isinstance(leaf, int):
            sizes[path] = leaf
    names = {path: f"n{i}" for i, path in enumerate(sizes)}
    values = {names[path]: size for path, size in sizes.items()}
    for text in conditions:
        try:  # (a path is no expression: what a class of others holds is `.<0>` of it)
            holds = parse(_PATH.sub(lambda m: names.get(m[0], m[0]), text), values)
        except ParseError as error:
            raise LoadError(f"the condition {text[:300]!r} is not understood: {error}") from None
        if holds is not True:
            here = ", ".join(f"{_show(p)} is {n}" for p, n in sizes.items() if p in text)
            raise InputValueError(
                f"the program was exported for {_show(text)}, and here {here}\n"
                "  instead: pass such sizes, or export again with dynamic_shapes or with "
                "examples of these",
                _INPUT.findall(text)[0],
            )


def _show(text: str) -> str:
    return _INPUT.sub(r"\1", text).replace(".size()", ".shape")
