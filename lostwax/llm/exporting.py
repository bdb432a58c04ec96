"""`export`: from a model of transformers to a file with one `forward`, for prompts and for single
tokens, that ExecuTorch's runners take.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

import torch

from lostwax.backends.report import DelegationReport
from lostwax.backends.transform import to_edge_transform_and_lower
from lostwax.capture.export import export as capture
from lostwax.capture.shapes.dims import Dim
from lostwax.errors import CaptureError
from lostwax.ir.program import ExportedProgram
from lostwax.late_imports import find_partitioner
from lostwax.llm.loading import find_model
from lostwax.llm.metadata import make_metadata
from lostwax.llm.pieces import InPieces, ShapesAlone
from lostwax.llm.quantizing import (
    check_words,
    copy_without_weights,
    has_small_tables,
    is_quantized,
    list_kept_operators,
    quantize_,
    round_scales,
    set_dtype,
)
from lostwax.llm.tokens import TokensCheck, compare_tokens, generate
from lostwax.location import warn
from lostwax.pte.executable import ExecutableConfig, ExecutableProgram
from lostwax.pte.lowering.kernels import EMBEDDINGS
from lostwax.pte.runtime import load_kernels

ATTENTION = ("llama::update_cache.out", "llama::custom_sdpa.out")
"""ExecuTorch's kernels for language models."""


@dataclass(frozen=True)
class LanguageModel:
    """A language model as a file. `save` writes it, `buffer` is its bytes."""

    model: Any
    """What was exported, its weights quantized if that was asked for."""
    program: ExportedProgram
    executable: ExecutableProgram
    delegation: DelegationReport
    context: int
    """How many tokens it keeps: prompt and answer together."""
    length: int
    """How many tokens it takes at once."""

    @property
    def buffer(self) -> bytes:
        """The `.pte` file."""
        return self.executable.buffer

    @property
    def metadata(self) -> dict[str, Any]:
        """What runners read beside `forward`."""
        return self.executable.constant_methods

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the `.pte` file."""
        self.executable.save(path)

    def generate(self, prompt: Sequence[int], count: int) -> list[int]:
        """The `count` most likely tokens after a prompt, in the ExecuTorch runtime."""
        return generate(self.buffer, prompt, count, self.context, self.length)

    def check(
        self, model: Any = None, prompts: Sequence[Sequence[int]] | None = None
    ) -> TokensCheck:
        """Compare the file's tokens, in the ExecuTorch runtime, with those of `model.generate`:
        64 after each prompt, and after the last of them as many as the context holds. If no model
        is given, it is the one that was exported, quantized as it was."""
        model = self.model if model is None else model
        return compare_tokens(self.buffer, model, self.context, self.length, prompts)

    def describe(self) -> dict[str, Any]:
        """What the file is, as data: its bytes by what they are, the memory that it needs beside
        them, and what backends compute."""
        kept = self.program.graph_signature.buffers_to_mutate.values()
        state = {**self.program.constants, **self.program.state_dict}
        delegates, others = self.delegation.delegates, self.delegation.undelegated
        taken = sum(sum(each.operators.values()) for each in delegates)
        return {
            "bytes": self.executable.size,
            "bytes_by_part": self.executable.sizes,
            "context": self.context,
            "length": self.length,
            "memory_bytes": self.executable.arena_sizes["forward"],
            "cache_bytes": sum(state[name].nbytes for name in kept),
            "delegates": len(delegates),
            "operators": taken + len(others),
            "delegated_operators": taken,
        }

    def report(self) -> str:
        """Where the bytes are, and what backends compute."""
        found = self.describe()
        parts = sorted(found["bytes_by_part"].items(), key=lambda each: -each[1])
        lines = [
            f"{found['bytes']:,} bytes, for {self.context} tokens, {self.length} at once",
            "  " + ", ".join(f"{name} {size:,}" for name, size in parts if size),
            f"memory: {found['memory_bytes']:,} bytes, {found['cache_bytes']:,} of them cache",
        ]
        return "\n".join([*lines, str(self.delegation).splitlines()[0]])


def export(
    model: Any,
    *,
    context: int,
    length: int | None = None,
    logits: Literal["last", "all"] = "last",
    backend: str | None = "xnnpack",
    quantize: str | None = None,
    embedding: int | None = None,
    group: int = 32,
    sdpa: str | None = None,
    dtype: torch.dtype | None = None,
    reads_late: bool = False,
) -> LanguageModel:
    """Export a decoder of transformers: a model, the configuration of one, or the path of one.

    The file has one method, `forward(tokens[1, length], positions[length])`. It takes any number of
    tokens up to `length` (all of the context, if that is not given), writes what it keeps of them
    in place, and returns the logits of the last token, or of all. A file keeps `context` tokens.
    Parts go to the `backend`; with None all of it runs by ExecuTorch's portable kernels.

    `quantize` gives linear layers weights of fewer bits, by torchao: "8da4w" (of four bits in
    groups of `group`, activations quantized as it runs), "8da8w", "8w", "4w"; `embedding` gives
    tables 8, 4 or 2 bits. The model itself stays as it is, and models that were quantized before
    are taken as they are. `sdpa="custom"` computes attention by the kernels of ExecuTorch for
    language models (`llama::custom_sdpa`), which its runners have.

    A model has the `dtype` that it has, and one that is loaded float32, in which kernels compute,
    unless another is asked for; a layer that is quantized gets it just before. With `reads_late`
    the weights of a given model are read when the file is written, not copied before, and nobody
    else may change them, or wonder about their dtype. Those that are loaded always are.
    """
    found, dtype, is_own = find_model(model, dtype, reads_late)
    length = context if length is None else length
    _check(found, context, length, logits, backend)
    check_words(quantize, embedding, group)
    if sdpa not in ("custom", None):
        raise CaptureError(f'sdpa is "custom" or None, not {sdpa!r}')
    if sdpa == "custom":
        load_kernels(ATTENTION)
    if quantize is not None or embedding is not None or is_quantized(found):
        found = copy_without_weights(found)
        quantize_(found, quantize, embedding, group, dtype)
    set_dtype(found, dtype)
    check_small(found, backend)
    decoder_file, entries = (
        import_module(f"lostwax.llm.{name}") for name in ("decoder", "entries")
    )
    training = found.training
    found.eval()
    try:
        with ShapesAlone():
            decoder = decoder_file.Decoder(found, context, logits == "all", sdpa)
        with entries.use_entries(found, decoder.sdpa or entries.attend):
            with InPieces():
                decoder_file.require_positions(decoder)
                decoder_file.require_memory(decoder, length)
            program = _capture(decoder, length)
            with InPieces():
                decoder_file.require_same(decoder, program.module(), context, length)
    finally:
        found.train(training)
    edge = to_edge_transform_and_lower(
        program,
        partitioner=find_partitioner(backend),
        constant_methods=make_metadata(found, context, length, decoder.sdpa is not None),
    )
    report = edge.delegation_report()
    tables = EMBEDDINGS if has_small_tables(found) else ()
    kernels = [*tables, *(ATTENTION if decoder.sdpa else ())]
    config = ExecutableConfig(
        reads_late=is_own,
        unread_state=decoder.list_unread(),
        # Those of kernels for attention alone, which refuse other positions themselves.
        tells_conditions=decoder.sdpa is None,
    )
    executable = edge.to_executable(config, kernels=kernels)
    return LanguageModel(found, program, executable, report, context, length)


def _capture(decoder: torch.nn.Module, length: int) -> ExportedProgram:
    example = min(length, 3)
    args = torch.zeros(1, example, dtype=torch.int64), torch.arange(example)
    dim = Dim("length", min=1, max=length)
    shapes = ({1: dim}, {0: dim}) if length > 1 else None
    with torch.no_grad():
        kept = list_kept_operators(decoder)
        return capture(decoder, args, dynamic_shapes=shapes, control_flow="sizes", keep=kept)


def _check(model: Any, context: int, length: int, logits: str, backend: str | None) -> None:
    if logits not in ("last", "all"):
        raise CaptureError(f'logits are those of the "last" token or of "all", not {logits!r}')
    find_partitioner(backend, CaptureError)
    check_sizes(context, length)
    if any(each.is_meta for each in model.parameters()):
        raise CaptureError(
            f"{type(model).__name__} is on meta: it has no weights\n"
            "  instead: the path of its checkpoint, or its configuration, for random ones"
        )
    if model.config.is_encoder_decoder:
        raise CaptureError(
            f"{type(model).__name__} has an encoder, and language models are decoders alone\n"
            "  instead: lostwax.llm.export_parts, if it hears; lostwax.interop.transformers has "
            "all of them in parts"
        )


def check_small(model: Any, backend: str | None) -> None:
    """What is quantized is computed in float32, and by XNNPACK with scales that it has."""
    others = [name for name, each in model.named_parameters() if each.dtype is not torch.float32]
    if others and is_quantized(model):
        raise CaptureError(
            f"{others[0]} gives {model.get_parameter(others[0]).dtype}, and what is quantized is "
            "computed in float32\n  instead: model.to(torch.float32), or dtype=torch.float32"
        )
    if backend == "xnnpack" and (count := round_scales(model)):
        warn(
            f"the scales of {count} layers were rounded to bfloat16: XNNPACK has no others for "
            "groups of weights\n  instead: weight_scale_dtype=torch.bfloat16, when it is quantized"
        )


def check_sizes(context: int, length: int) -> None:
    """Refuse a number of tokens at once that a file cannot keep."""
    if not 1 <= length <= context:
        raise CaptureError(
            f"a model that keeps {context} tokens cannot take {length} at once\n"
            "  instead: a length from 1 to the context"
        )
