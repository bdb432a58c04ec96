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
from lostwax.backends.xnnpack.partitioner import XnnpackPartitioner
from lostwax.capture.export import export as capture
from lostwax.capture.shapes.dims import Dim
from lostwax.errors import CaptureError, LoadError
from lostwax.ir.program import ExportedProgram
from lostwax.llm.metadata import make_metadata
from lostwax.llm.tokens import TokensCheck, compare_tokens, generate
from lostwax.pte.executable import ExecutableProgram


@dataclass(frozen=True)
class LanguageModel:
    """A language model as a file. `save` writes it, `buffer` is its bytes."""

    program: ExportedProgram
    executable: ExecutableProgram
    delegation: DelegationReport
    context: int
    """How many tokens it keeps: prompt and answer together."""
    length: int
    """How many tokens it takes at once."""

    @property
    def buffer(self) -> bytes:
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

    def check(self, model: Any, prompts: Sequence[Sequence[int]] | None = None) -> TokensCheck:
        """Compare the file's tokens, in the ExecuTorch runtime, with those of `model.generate`:
        64 after each prompt, and after the last of them as many as the context holds."""
        return compare_tokens(self.buffer, model, self.context, self.length, prompts)

    def report(self) -> str:
        """Where the bytes are, and what backends compute."""
        signature = self.program.graph_signature
        written = signature.buffers_to_mutate.values()
        kept = sum(self.program.state_dict[name].nbytes for name in written)
        lines = [
            f"{len(self.buffer):,} bytes, for {self.context} tokens, {self.length} at once",
            f"memory: {self.executable.arena_sizes['forward']:,} bytes, {kept:,} of them cache",
        ]
        return "\n".join([*lines, str(self.delegation).splitlines()[0]])


def export(
    model: Any,
    *,
    context: int,
    length: int | None = None,
    logits: Literal["last", "all"] = "last",
    backend: Literal["xnnpack"] | None = "xnnpack",
) -> LanguageModel:
    """Export a decoder of transformers: a model, the configuration of one, or the path of one.

    The file has one method, `forward(tokens[1, length], positions[length])`. It takes any number of
    tokens up to `length` (all of the context, if that is not given), writes what it keeps of them
    in place, and returns the logits of the last token, or of all. A file keeps `context` tokens.
    """
    found = _find_model(model)
    length = context if length is None else length
    _check(found, context, length, logits, backend)
    decoder_file, entries = (
        import_module(f"lostwax.llm.{name}") for name in ("decoder", "entries")
    )
    training = found.training
    found.eval()
    try:
        with entries.use_entries(found):
            decoder = decoder_file.Decoder(found, context, logits == "all")
            decoder_file.require_memory(decoder, length)
            program = _capture(decoder, length)
            decoder_file.require_same(decoder, program.module(), context, length)
    finally:
        found.train(training)
    edge = to_edge_transform_and_lower(
        program,
        partitioner=XnnpackPartitioner() if backend == "xnnpack" else None,
        constant_methods=make_metadata(found, context, length),
    )
    report = edge.delegation_report()
    return LanguageModel(program, edge.to_executable(), report, context, length)


def _capture(decoder: torch.nn.Module, length: int) -> ExportedProgram:
    example = min(length, 3)
    args = torch.zeros(1, example, dtype=torch.int64), torch.arange(example)
    dim = Dim("length", min=1, max=length)
    shapes = ({1: dim}, {0: dim}) if length > 1 else None
    with torch.no_grad():
        return capture(decoder, args, dynamic_shapes=shapes, control_flow="sizes")


def _find_model(given: Any) -> Any:
    try:
        transformers = import_module("transformers")
    except ImportError as error:
        raise LoadError(
            f"models are those of transformers, which does not load: {error}\n"
            "  instead: pip install 'transformers>=5.23'"
        ) from error
    if isinstance(given, transformers.PreTrainedModel):
        return given
    if isinstance(given, transformers.PreTrainedConfig):
        return transformers.AutoModelForCausalLM.from_config(given)
    if isinstance(given, (str, os.PathLike)):
        return transformers.AutoModelForCausalLM.from_pretrained(given)
    raise CaptureError(
        f"a language model is a model of transformers, not a {type(given).__name__}\n"
        "  instead: a model, its configuration, or the path of its checkpoint"
    )


def _check(model: Any, context: int, length: int, logits: str, backend: str | None) -> None:
    if logits not in ("last", "all"):
        raise CaptureError(f'logits are those of the "last" token or of "all", not {logits!r}')
    if backend not in ("xnnpack", None):
        raise CaptureError(f'the backend is "xnnpack" or None, not {backend!r}')
    if not 1 <= length <= context:
        raise CaptureError(
            f"a model that keeps {context} tokens cannot take {length} at once\n"
            "  instead: a length from 1 to the context"
        )
    if model.config.is_encoder_decoder:
        raise CaptureError(
            f"{type(model).__name__} has an encoder, and language models are decoders alone\n"
            "  instead: lostwax.interop.transformers exports it in parts"
        )
