"""Which dtypes an operator of ONNX takes, as the standard itself says, and in which wider one it is
computed where it does not take a program's.

Must not write nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import onnx
import torch

from lostwax.cache import cached
from lostwax.onnx.values import DTYPES

_NAMES = {f"tensor({kind.name.lower()})": dtype for dtype, kind in DTYPES.items()}
_WIDER = {True: (torch.float32, torch.float64), False: (torch.int32, torch.int64, torch.float32)}
_SHORT = frozenset({torch.int16, torch.uint16})
_WITHOUT_KERNEL = {
    "Where": _SHORT | {torch.bool},
    "Pad": _SHORT,
    "Max": _SHORT,
    "Min": _SHORT,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), frozenset({torch.bfloat16})),
}
"""What the standard takes, and onnxruntime does not run."""
_NONE: frozenset[torch.dtype] = frozenset()


class Formals(NamedTuple):
    """What an operator declares: inputs and outputs of one letter have one dtype."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    taken: dict[str, frozenset[torch.dtype]]
    """For each letter the dtypes that are taken."""

    def letter(self, letters: tuple[str, ...], at: int) -> str:
        """That of a place; the last of those declared is that of all after it."""
        return letters[min(at, len(letters) - 1)]


@cached(1000)
def find_formals(op: str, opset: int) -> Formals | None:
    """What an operator of ONNX's own declares; None of one that the standard does not have."""
    try:
        schema = onnx.defs.get_schema(op, max_inclusive_version=opset, domain="")
    except onnx.defs.SchemaError:
        return None
    taken = {
        each.type_param_str: frozenset(
            _NAMES[name] for name in each.allowed_type_strs if name in _NAMES
        )
        - (_WITHOUT_KERNEL.get(op, _NONE) if each.type_param_str == "T" else _NONE)
        for each in schema.type_constraints
    }
    inputs, outputs = (
        tuple(each.type_str for each in side) for side in (schema.inputs, schema.outputs)
    )
    return Formals(inputs, outputs, taken)


def find_wider(op: str, opset: int, given: Sequence[Any]) -> dict[str, torch.dtype]:
    """For the letters of which a dtype is given that the operator does not take, one that it
    does."""
    return _find_wider(op, opset, tuple([None if x is None else x.dtype for x in given]))


@cached(4000)
def _find_wider(
    op: str, opset: int, dtypes: tuple[torch.dtype | None, ...]
) -> dict[str, torch.dtype]:
    formals = find_formals(op, opset)
    found: dict[str, torch.dtype] = {}
    for at, dtype in enumerate(dtypes) if formals is not None and formals.inputs else ():
        assert formals is not None
        letter = formals.letter(formals.inputs, at)
        taken = formals.taken.get(letter, frozenset())
        if dtype is not None and taken and dtype not in taken:
            wide = [each for each in _WIDER[dtype.is_floating_point] if each in taken]
            found.update([(letter, wide[0])] if wide else [])
    return found
