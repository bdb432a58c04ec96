"""`export_parts`: models in the parts that ExecuTorch's runners call.

Those that see are `vision_encoder`, `token_embedding` and `text_decoder`, for its
`MultimodalRunner`; those that hear `encoder` and `text_decoder`, for its runner of speech. Weights
that parts share are in the file once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from lostwax.backends.report import DelegationReport
from lostwax.backends.transform import to_edge_transform_and_lower
from lostwax.capture.export import export as capture
from lostwax.capture.shapes.dims import Dim
from lostwax.errors import CaptureError, LoadError
from lostwax.ir.program import ExportedProgram
from lostwax.late_imports import find_partitioner
from lostwax.llm.exporting import check_sizes, check_small
from lostwax.llm.loading import find_model
from lostwax.llm.metadata import make_metadata
from lostwax.llm.quantizing import (
    check_words,
    copy_without_weights,
    has_small_tables,
    is_quantized,
    list_kept_operators,
    quantize_,
    set_dtype,
)
from lostwax.llm.tokens import TokensCheck
from lostwax.pte.executable import ExecutableConfig, ExecutableProgram
from lostwax.pte.lowering.kernels import EMBEDDINGS
from lostwax.pte.runtime import load_runtime


@dataclass(frozen=True)
class ModelInParts:
    """A model as a file with a method for each part."""

    model: Any
    executable: ExecutableProgram
    delegation: DelegationReport
    context: int
    length: int
    given: tuple[int, ...]
    """The sizes of an image, `[1, channels, height, width]`, or of what is heard, `[1, bands,
    moments]`."""

    @property
    def buffer(self) -> bytes:
        """The bytes of the file."""
        return self.executable.buffer

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the `.pte` file."""
        self.executable.save(path)

    def start(self) -> Callable[..., Tensor]:
        """Load the file into the ExecuTorch runtime. Returns what calls a method."""
        runtime = load_runtime(self.buffer)

        def run(method: str, *given: Any) -> Tensor:
            (found,) = runtime.run(list(given), method=method)
            copied: Tensor = found.clone()
            return copied

        return run

    def require_room(self, count: int) -> None:
        """Refuse more than the file keeps."""
        if count > self.context:
            raise LoadError(
                f"images and tokens are more than the file keeps, {self.context}\n"
                "  instead: fewer tokens, or export the model with a larger context"
            )

    def check(self) -> TokensCheck:
        """Compare the file's tokens, for what is drawn, with the model's."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """What the file is, as data: its bytes by what they are, the memory that each part needs
        beside them, and how many delegates compute."""
        return {
            "bytes": self.executable.size,
            "bytes_by_part": self.executable.sizes,
            "context": self.context,
            "length": self.length,
            "given": list(self.given),
            "memory_bytes": self.executable.arena_sizes,
            "delegates": len(self.delegation.delegates),
        }

    def report(self) -> str:
        """Where the bytes are, what memory each part needs, and what backends compute."""
        found = self.describe()
        sizes = sorted(found["bytes_by_part"].items(), key=lambda each: -each[1])
        memory = ", ".join(f"{name} {size:,}" for name, size in found["memory_bytes"].items())
        lines = [
            f"{found['bytes']:,} bytes, for {self.context} tokens, {self.length} at once",
            "  " + ", ".join(f"{name} {size:,}" for name, size in sizes if size),
            f"memory: {memory}",
        ]
        return "\n".join([*lines, str(self.delegation).splitlines()[0]])


class SeeingModel(ModelInParts):
    """A model that sees."""

    def generate(self, inputs: Sequence[Tensor | Sequence[int]], count: int) -> list[int]:
        """The `count` most likely tokens after images and tokens, in the ExecuTorch runtime, called
        as the runner calls it. Images are tensors."""
        run, known, at, found = self.start(), list(inputs), 0, list[int]()
        while len(found) < count:
            for each in known:
                name = "vision_encoder" if isinstance(each, Tensor) else "token_embedding"
                given = each if isinstance(each, Tensor) else torch.tensor([list(each)])
                parts = run(name, given).split(self.length, 1)
                self.require_room(at + sum(part.shape[1] for part in parts))
                for part in parts:
                    places = torch.arange(at, at + part.shape[1])
                    logits = run("text_decoder", part, places)
                    at += part.shape[1]
            found.append(int(logits[0, -1].argmax()))
            known = [[found[-1]]]
        return found

    def check(
        self,
        image: Tensor | None = None,
        before: Sequence[int] = (1, 2),
        behind: Sequence[int] = (3,),
        count: int = 64,
    ) -> TokensCheck:
        """Compare the file's tokens, after an image between two texts, with `model.generate`. An
        image that is not given is drawn."""
        image = _draw(self.given) if image is None else image
        places = self.model.get_image_features(pixel_values=image).pooler_output[0].shape[0]
        middle = [self.model.config.image_token_id] * places
        tokens = torch.tensor([[*before, *middle, *behind]])
        count = min(count, self.context - tokens.shape[1])
        self.require_room(tokens.shape[1] + max(count, 1))
        done = self.model.generate(
            tokens, pixel_values=image, max_new_tokens=count, do_sample=False, eos_token_id=None
        )
        wanted = done[0, tokens.shape[1] :].tolist()
        found = self.generate([before, image, behind], count)
        return _compare("an image", tokens.shape[1], found, wanted)


class HearingModel(ModelInParts):
    """A model that hears."""

    def generate(self, features: Tensor, count: int, start: int | None = None) -> list[int]:
        """The `count` most likely tokens for a sound, in the ExecuTorch runtime, called as the
        runner calls it."""
        self.require_room(count)
        run = self.start()
        sound = run("encoder", features)
        found = [_find_start(self.model, start)]
        for at in range(count):
            token = torch.tensor([found[-1:]])
            logits = run("text_decoder", token, sound, torch.tensor([at]))
            found.append(int(logits[0, -1].argmax()))
        return found[1:]

    def check(
        self, features: Tensor | None = None, count: int = 64, start: int | None = None
    ) -> TokensCheck:
        """Compare the file's tokens with the model's most likely ones, one after the other. A sound
        that is not given is drawn."""
        features = _draw(self.given) if features is None else features
        count = min(count, self.context)
        found, tokens = self.generate(features, count, start), [_find_start(self.model, start)]
        with torch.no_grad():
            sound = self.model.get_encoder()(features)
            for _ in range(count):
                given = torch.tensor([tokens])
                made = self.model(encoder_outputs=sound, decoder_input_ids=given, use_cache=False)
                tokens.append(int(made.logits[0, -1].argmax()))
        return _compare("a sound", 1, found, tokens[1:])


def _compare(what: str, size: int, found: list[int], wanted: list[int]) -> TokensCheck:
    if found == wanted:
        return TokensCheck({size: len(found)})
    return TokensCheck({}, f"after {what} the file says {found}; the model says {wanted}")


def _draw(size: tuple[int, ...]) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(0))


def _find_start(model: Any, asked: int | None) -> int:
    return int(model.config.decoder_start_token_id if asked is None else asked)


class _Hears(nn.Module):
    """What an encoder makes of a sound."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.encoder = model.get_encoder()

    def forward(self, features: Tensor) -> Tensor:
        found: Tensor = self.encoder(features).last_hidden_state
        return found


class _Sees(nn.Module):
    """Images as embeddings, in the places of tokens."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> Tensor:
        found = self.model.get_image_features(pixel_values=image).pooler_output
        one: Tensor = found if isinstance(found, Tensor) else torch.stack(tuple(found))
        return one.reshape(1, -1, one.shape[-1])


def export_parts(
    model: Any,
    *,
    context: int,
    length: int | None = None,
    backend: str | None = "xnnpack",
    quantize: str | None = None,
    embedding: int | None = None,
    group: int = 32,
    dtype: torch.dtype | None = None,
    reads_late: bool = False,
) -> Any:
    """Export a model that sees, one image at a time, of the size that its configuration says, or
    one that hears, as Whisper does: a model of transformers, the configuration of one, or the path
    of one.

    `vision_encoder(image)` and `token_embedding(tokens)` make embeddings, and
    `text_decoder(embeddings, positions)` goes on with them, as `forward` of `lostwax.llm.export`
    does with tokens. `encoder(features)` hears, and `text_decoder(token, sound, position)` says
    what, one token a call. A file keeps `context` tokens, and takes at most `length` at once. Parts
    go to the `backend`; with None all of it runs by ExecuTorch's portable kernels.

    `quantize`, `embedding`, `group`, `dtype` and `reads_late` are those of `lostwax.llm.export`,
    for linear layers of all parts, and the table of tokens.
    """
    partitioner = find_partitioner(backend, CaptureError)
    model, dtype, is_own = find_model(model, dtype, reads_late, _choose_class)
    length = 1 if hears(model) else context if length is None else length
    check_sizes(context, length)
    check_words(quantize, embedding, group)
    model = _quantize(model, quantize, embedding, group, dtype)
    check_small(model, backend)
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            make = _capture_hearing if hears(model) else _capture_seeing
            programs, given = make(model, context, length)
    finally:
        model.train(training)
    edge = to_edge_transform_and_lower(
        programs, partitioner=partitioner, constant_methods=make_metadata(model, context, length)
    )
    report = edge.delegation_report()
    tables = EMBEDDINGS if has_small_tables(model) else ()
    executable = edge.to_executable(ExecutableConfig(reads_late=is_own), kernels=tables)
    kind = HearingModel if hears(model) else SeeingModel
    return kind(model, executable, report, context, length, given)


def hears(model: Any) -> bool:
    """Is a model one that hears, and says what?"""
    return bool(model.config.is_encoder_decoder and model.main_input_name == "input_features")


def has_parts(model: Any) -> bool:
    """Is a model one that hears or sees, and no decoder alone?"""
    return hears(model) or hasattr(model, "get_image_features")


def _choose_class(config: Any) -> str:
    kind = "SpeechSeq2Seq" if config.is_encoder_decoder else "ImageTextToText"
    return f"AutoModelFor{kind}"


def _quantize(
    model: Any, quantize: str | None, embedding: int | None, group: int, dtype: torch.dtype | None
) -> Any:
    """The model with layers, and a table of tokens, of fewer bits, where that is asked for; the
    given one stays as it is."""
    if quantize is not None or embedding is not None or is_quantized(model):
        model = copy_without_weights(model)
        quantize_(model, quantize, None, group, dtype)
        quantize_(model.get_input_embeddings(), None, embedding, group, dtype)
    set_dtype(model, dtype)
    return model


Captured = tuple[dict[str, ExportedProgram], tuple[int, ...]]


def _capture_seeing(model: Any, context: int, length: int) -> Captured:
    _check(model)
    decoders, entries = _import_decoders()
    vision = model.config.vision_config
    image = (1, getattr(vision, "num_channels", 3), vision.image_size, vision.image_size)
    embed = model.get_input_embeddings()
    _try_image(model, image)
    decoder = decoders.Decoder(model, context)
    tokens = torch.zeros(1, min(3, length), dtype=torch.int64)
    positions = torch.arange(tokens.shape[1])
    dim = Dim("length", min=1, max=length) if length > 1 else None
    with entries.use_entries(model, entries.attend):
        decoders.require_positions(decoder)
        text = _capture(decoder, (embed(tokens), positions), ({1: dim}, {0: dim}))
        ours = text.module()
        decoders.require_same(decoder, lambda t, at: ours(embed(t), at), context, length)
    programs = {
        "text_decoder": text,
        "token_embedding": _capture(embed, (tokens,), ({1: dim},)),
        "vision_encoder": _capture(_Sees(model), (torch.zeros(image),), None),
    }
    return programs, image


def _capture_hearing(model: Any, context: int, length: int) -> Captured:
    decoders, entries = _import_decoders()
    config = model.config
    if context > config.max_target_positions:
        raise CaptureError(
            f"{type(model).__name__} has positions for {config.max_target_positions} tokens, not "
            f"{context}\n  instead: context={config.max_target_positions}"
        )
    given = (1, config.num_mel_bins, 2 * config.max_source_positions)
    features = torch.randn(given, generator=torch.Generator().manual_seed(0))
    hears = _Hears(model)
    sound = hears(features)
    example = torch.zeros(1, 1, dtype=torch.int64), sound, torch.zeros(1, dtype=torch.int64)
    with entries.use_entries(model, entries.attend):
        text = _capture(decoders.SpeechDecoder(model, context, sound), example, None)
    _require_same(model, text.module(), sound)
    return {"text_decoder": text, "encoder": _capture(hears, (features,), None)}, given


def _require_same(model: Any, program: Any, sound: Tensor) -> None:
    """Refuse a decoder that does not go on from what it keeps as the model goes on from all."""
    tokens = list(range(3, 6))
    for at, token in enumerate(tokens):
        found = program(torch.tensor([[token]]), sound, torch.tensor([at]))[0, -1]
        given = {"decoder_input_ids": torch.tensor([tokens[: at + 1]]), "use_cache": False}
        wanted = model(encoder_outputs=(sound,), **given).logits[0, -1]
        # Where activations are rounded, a small difference may become a step of them.
        bar = 1e-1 if is_quantized(model) else 1e-3
        if not (found - wanted).abs().max() <= bar * wanted.abs().max():
            raise CaptureError(
                f"{type(model).__name__} computes other logits with a cache than without\n"
                "  instead: lostwax.interop.transformers exports it for generation"
            )


def _import_decoders() -> Any:
    return [import_module(f"lostwax.llm.{name}") for name in ("decoder", "entries")]


def _check(model: Any) -> None:
    """Refuse what sees nothing, and what sees in another way than its runner."""
    name = type(model).__name__
    if not hasattr(model, "get_image_features") or not hasattr(model.config, "vision_config"):
        raise CaptureError(
            f"{name} sees nothing: it has no get_image_features\n"
            "  instead: lostwax.llm.export, for a decoder alone"
        )
    if "token_type_ids" in signature(model.forward).parameters:
        raise CaptureError(
            f"{name} lets the tokens of an image see those behind them\n"
            "  why: the runner's decoder is given embeddings and positions, not what they are of\n"
            "  instead: a model whose decoder sees what was before alone, as that of LLaVA"
        )


def _try_image(model: Any, image: tuple[int, ...]) -> None:
    try:
        _Sees(model)(torch.zeros(image))
    except (ValueError, TypeError, RuntimeError, IndexError) as error:
        raise CaptureError(
            f"{type(model).__name__} does not take an image of {list(image)}: {error}\n"
            "  why: the runner hands over one image at a time\n"
            "  instead: a model that takes images so, as LLaVA does"
        ) from error


def _capture(module: nn.Module, args: tuple[Any, ...], shapes: Any) -> ExportedProgram:
    kept = list_kept_operators(module)
    return capture(module, args, dynamic_shapes=shapes, control_flow="sizes", keep=kept)
