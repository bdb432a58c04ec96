"""The sweep with sizes that vary: one program for every batch, and for every length of text.

The program is captured at the example's sizes with a Dim for the batch and one for each length;
where a model fixes a length, with the batch alone. Then it must do at other sizes what the module
does. Must not know of libraries.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from lostwax import Dim, export
from lostwax.errors import ConstraintViolationError, InputValueError
from sweep.architectures import Architecture
from sweep.compare import check, run
from sweep.setting import Setting

SIZES = ((1, 12), (3, 12), (1, 5), (5, 17), (2, 2))
"""Batch and length; both are 2 and 12 in the example."""
TEXTS = ("input_ids", "attention_mask", "decoder_input_ids")


def dynamic_shapes(kwargs: dict[str, Any], lengths: bool, least: int = 0) -> dict[str, Any]:
    """For each input by name, or `*` for the one that goes by position."""
    batch = Dim("batch", min=least)
    spec: dict[str, Any] = {"*": {0: batch}}
    for name, value in kwargs.items():
        spec[name] = {0: batch} if isinstance(value, Tensor) else None
        if lengths and name in TEXTS:
            length = "decoder_length" if name.startswith("decoder") else "length"
            spec[name][1] = Dim(length, min=2)  # a single token is decoding: libraries branch on it
    return spec


def sweep_dynamic(architecture: Architecture, model: nn.Module, setting: Setting) -> str:
    """ "ok", or "batch" where only that may vary; raises what is wrong."""
    args, kwargs = setting.make_example(architecture)
    has_text = any(name in TEXTS for name in kwargs)
    for lengths in (True, False) if has_text else (False,):
        spec = dynamic_shapes(kwargs, lengths, architecture.least)
        try:
            with setting.make_context():
                program = export(model, args, kwargs, dynamic_shapes=spec)
        except ConstraintViolationError:
            if lengths:
                continue
            raise
        compare(architecture, model, program, lengths, setting)
        return "ok" if lengths or not has_text else "batch"
    raise AssertionError("export has neither returned nor raised")


def compare(
    architecture: Architecture, model: nn.Module, program: Any, lengths: bool, setting: Setting
) -> None:
    for batch, length in SIZES:
        if batch < architecture.least or (not lengths and length != 12):
            continue
        call = setting.make_example(architecture, batch, length)
        try:
            want = run(copy.deepcopy(model), *call, setting.make_context())
        except (RuntimeError, ValueError, IndexError):
            continue  # too short, or one batch alone, for the model itself
        try:
            got = run(program.module(), *call, setting.make_context())
        except InputValueError as error:
            raise ValueError(f"at batch {batch}, length {length}: {error}") from error
        got.outputs = [aligned(a, b) for a, b in zip(got.outputs, want.outputs, strict=True)]
        check(got, want, setting.run_otherwise(model, *call))


def aligned(ours: Any, eager: Any) -> Any:
    """Our output with eager's strides where they address nothing: those of sizes of 1."""
    if not isinstance(ours, Tensor) or ours.shape != eager.shape:
        return ours
    pairs = zip(ours.shape, ours.stride(), eager.stride(), strict=True)
    if all(size == 1 or a == b for size, a, b in pairs):
        return ours.as_strided(ours.shape, eager.stride(), ours.storage_offset())
    return ours
