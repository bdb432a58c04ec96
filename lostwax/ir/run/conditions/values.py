"""Inputs whose values were declared to be constants: a program keeps each value as a text, which is
compared in each call.

Must not read data of tensors that have none: where a program is captured, its own assertions are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lostwax.errors import InputValueError
from lostwax.ir.run.conditions.first_run import is_plain

_WRITTEN_OUT = 256
"""So many elements are written out; of more, the first, and a digest of all."""


def value_text(tensor: Tensor) -> str:
    """The elements of a tensor: the same text, the same elements (0.0 and -0.0 differ)."""
    tensor = tensor.detach().cpu()
    if tensor.numel() <= _WRITTEN_OUT:
        return str(tensor.tolist())
    plain = tensor.resolve_conj().resolve_neg().contiguous()
    digest = hashlib.sha256(plain.view(torch.uint8).numpy().tobytes()).hexdigest()
    first = ", ".join(map(str, plain.flatten()[:8].tolist()))
    return f"{tuple(tensor.shape)} of [{first}, ...], sha256 {digest}"


def find_same(tensor: Tensor, value: Tensor) -> Tensor:
    """Whether all elements are these, as a tensor. Bits are compared: NaN is NaN."""
    return torch.eq(_as_integers(tensor), _as_integers(value)).all()


def _as_integers(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.view(_INTEGERS[tensor.itemsize]) if tensor.is_floating_point() else tensor


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def must_have_value(path: str, index: int, wanted: str) -> Any:
    """A check of the inputs of a call."""

    def check(state: Sequence[Any], inputs: Sequence[Any]) -> None:
        tensor = inputs[index]
        if tensor.is_meta or not is_plain((tensor,)):
            return
        found = value_text(tensor)
        if found != wanted:
            raise InputValueError(
                f"{path} is {shorten(found)}, and was declared to be the constant "
                f"{shorten(wanted)}\n"
                "  why: sizes and branches of the program were computed from that value at export\n"
                f"  fix: pass that value; or export again with this one in the example; or without "
                f"constants={{{path!r}}}, for any value, if the module can be captured so",
                path,
            )

    return check


def shorten(text: str) -> str:
    """The text for an error."""
    return text if len(text) <= _LONG else f"{text[: _LONG - 60]} ... {text[-55:]}"


_LONG = 400
