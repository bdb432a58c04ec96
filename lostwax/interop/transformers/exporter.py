"""The exporters and their configurations: what `transformers.exporters` asks of a backend.

transformers takes a model apart for generation, prepares its inputs, and keeps a manifest beside
the programs. None of its patches is entered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, Literal

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from transformers.exporters.base import ExportedModel, HfExporter
from transformers.exporters.configs import ExportConfigMixin
from transformers.exporters.metadata import ExportMetadata, build_export_metadata
from transformers.exporters.utils import decompose_multimodal, is_multimodal, prepare_for_export

from lostwax.backends.transform import to_edge_transform_and_lower
from lostwax.capture.export import export
from lostwax.capture.shapes.dims import Dim
from lostwax.errors import CaptureError, LostwaxError, LoweringError
from lostwax.interop.transformers.conditions import note_conditions
from lostwax.interop.transformers.containers import hold_all, register_caches
from lostwax.ir.program import ExportedProgram
from lostwax.late_imports import find_partitioner
from lostwax.location import warn
from lostwax.pt2.loading import load
from lostwax.pt2.saving import save
from lostwax.pte.executable import ExecutableProgram
from lostwax.undo.replace_files import replace_files


@dataclass
class LostwaxConfig(ExportConfigMixin):
    """How a model is exported to a `.pt2` file. The arguments are those of `lostwax.export`."""

    export_format: str = "lostwax"
    dynamic: bool = False
    """May every size of every input vary that the model lets vary?"""
    dynamic_shapes: dict[str, Any] | None = None
    """Which sizes vary, by name of the input; goes before `dynamic`."""
    strict: bool = False
    prefer_deferred_runtime_asserts_over_guards: bool = False
    control_flow: Literal["capture", "refuse", "sizes"] = "capture"
    quantizer: Any = None
    """transformers asks for it; programs are quantized after the export, as any other."""

    def __post_init__(self) -> None:
        if self.quantizer is not None:
            raise CaptureError(
                f"a {type(self).__name__} takes no quantizer\n"
                "  instead: quantize the program, exported.program: docs/recipes/quantization.md"
            )


@dataclass
class LostwaxPteConfig(LostwaxConfig):
    """How a model is exported to a `.pte` file."""

    export_format: str = "lostwax_pte"
    largest: int | None = None
    """With `dynamic`: the largest that a size may become, for memory is planned ahead."""
    backend: str | None = "xnnpack"
    """What computes the parts that it can; None: the runtime's own kernels compute all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dynamic and self.dynamic_shapes is None and self.largest is None:
            raise LoweringError(
                "a .pte file plans its memory ahead, so sizes that vary need a largest one\n"
                f"  instead: {type(self).__name__}(dynamic=True, largest=128), or dynamic_shapes="
                '{"input_ids": {1: Dim("length", max=128)}}'
            )
        find_partitioner(self.backend)


class LostwaxExporter(HfExporter):
    """Exports models of transformers by `lostwax.export`; programs are `lostwax.ExportedProgram`,
    files `.pt2`."""

    export_format = "lostwax"
    config_class = LostwaxConfig
    program_suffix = ".pt2"
    required_packages = ["torch"]  # noqa: RUF012 - as its base class declares it
    min_versions = {"torch": "2.11.0"}  # noqa: RUF012

    def export_program(
        self, model: nn.Module, sample_inputs: MutableMapping[str, Any], config: Any
    ) -> tuple[Any, ExportMetadata]:
        """One program, and what transformers keeps of it. `sample_inputs` gets what transformers
        computes before a call, so that the same mapping can be given to the program."""
        model, sample_inputs, flags = prepare_for_export(model, sample_inputs)
        for name, value in sample_inputs.items():
            sample_inputs[name] = hold_all(value)
        register_caches(type(model).__module__)
        with torch.no_grad(), set_flags(model, flags):
            program = _export(model, dict(sample_inputs), config)
        packages = [*self.required_packages, "lostwax"]
        return program, build_export_metadata(model, sample_inputs, program, packages)

    def export_for_generation(
        self, model: nn.Module, sample_inputs: MutableMapping[str, Any], config: Any, **options: Any
    ) -> ExportedModel:
        """One program for each stage of `generate`; also for the encoders that it runs before the
        first stage. If `config` is a dict, for those that it names."""
        exported = super().export_for_generation(model, sample_inputs, config, **options)
        for name, (encoder, inputs) in find_encoders(model, sample_inputs).items():
            chosen = config.get(name) if isinstance(config, dict) else config
            if name not in exported.components and chosen is not None:
                exported.components[name] = self._export_component(encoder, inputs, chosen)
        return exported

    @classmethod
    def save_program(cls, program: Any, path: str | Path) -> None:
        save(program, path)

    @classmethod
    def load_program(cls, path: str | Path) -> Any:
        return load(path)


class LostwaxPteExporter(LostwaxExporter):
    """Exports models of transformers to `.pte` files, which the ExecuTorch runtime runs; programs
    are `lostwax.ExecutableProgram`, those of files their bytes."""

    export_format = "lostwax_pte"
    config_class = LostwaxPteConfig
    program_suffix = ".pte"

    def export_program(
        self, model: nn.Module, sample_inputs: MutableMapping[str, Any], config: LostwaxPteConfig
    ) -> tuple[ExecutableProgram, ExportMetadata]:
        with multiply_experts_in_batches(model):
            program, metadata = super().export_program(model, sample_inputs, config)
        note_conditions(program, metadata)
        partitioner = find_partitioner(config.backend)
        edge = to_edge_transform_and_lower(program, partitioner=partitioner)
        return edge.to_executable(), metadata

    @classmethod
    def save_program(cls, program: ExecutableProgram | bytes, path: str | Path) -> None:
        data = program if isinstance(program, bytes) else program.buffer
        replace_files({path: lambda file: file.write(data)})

    @classmethod
    def load_program(cls, path: str | Path) -> Any:
        return Path(path).read_bytes()


def _export(model: nn.Module, inputs: dict[str, Any], config: LostwaxConfig) -> ExportedProgram:
    deferred = config.prefer_deferred_runtime_asserts_over_guards
    capture = partial(
        export,
        model,
        (),
        inputs,
        strict=config.strict,
        prefer_deferred_runtime_asserts_over_guards=deferred,
        control_flow=config.control_flow,
    )
    if config.dynamic_shapes is not None or not config.dynamic:
        return capture(dynamic_shapes=config.dynamic_shapes)
    shapes = let_vary(inputs, Dim.AUTO(max=getattr(config, "largest", None)))
    try:
        return capture(dynamic_shapes=shapes)
    except LostwaxError as error:
        # Some models hand on whether there is more than one token, where only a plain bool will do.
        fewer = fix_ones(shapes, inputs)
        if fewer == shapes:
            raise
        program = capture(dynamic_shapes=fewer)
        fixed = [
            f"{name}.shape[{d}]"
            for name in shapes
            for d in shapes[name] or ()
            if isinstance(inputs[name], Tensor) and d not in fewer[name]
        ]
        reason = str(error).splitlines()[0]
        warn(
            f"dynamic=True, and these sizes are 1 in the program: {', '.join(fixed)}. With them "
            f"varying, the model is refused: {reason} Give examples with more than one, or "
            "dynamic_shapes."
        )
        return program


def find_encoders(model: nn.Module, inputs: Mapping[str, Any]) -> dict[str, tuple[nn.Module, Any]]:
    """The encoders of a model, with what they are called with for these inputs of `generate`."""
    if is_multimodal(model):
        return decompose_multimodal(model, _choose(inputs, model.forward))  # type: ignore[no-any-return]
    if not getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return {}
    encoder = model.get_encoder()  # type: ignore[operator]
    return {"encoder": (encoder, {**_choose(inputs, encoder.forward), "return_dict": True})}


def _choose(inputs: Mapping[str, Any], function: Any) -> dict[str, Any]:
    names = signature(function).parameters
    return {name: value for name, value in inputs.items() if name in names}


@contextmanager
def multiply_experts_in_batches(model: Any) -> Iterator[None]:
    """Let a mixture of experts use the one way of its several for which the runtime has kernels."""
    if not getattr(model, "_can_set_experts_implementation", bool)():
        yield
        return
    before = model.get_experts_implementation()
    try:
        model.set_experts_implementation("batched_mm")
        yield
    finally:
        model.set_experts_implementation(before)


@contextmanager
def set_flags(model: nn.Module, flags: Mapping[str, Any]) -> Iterator[None]:
    """Set what models also read in their configuration (`use_cache`, `return_dict`), which would
    otherwise be inputs of the program."""
    config = getattr(model, "config", None)
    known = {n: v for n, v in flags.items() if v is not None and hasattr(config, n)}
    before = {name: getattr(config, name) for name in known}
    try:
        for name, value in known.items():
            setattr(config, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(config, name, value)


def let_vary(value: Any, dim: Any) -> Any:
    """A spec that lets all sizes of all tensors of a value vary."""
    if isinstance(value, Tensor):
        return dict.fromkeys(range(value.ndim), dim)
    if type(value) in (list, tuple):
        return type(value)(let_vary(each, dim) for each in value)
    if type(value) is dict:
        return {name: let_vary(each, dim) for name, each in value.items()}
    if type(value) in pytree.SUPPORTED_NODES:
        children, _ = pytree.SUPPORTED_NODES[type(value)].flatten_fn(value)
        return [let_vary(each, dim) for each in children]
    return None


def fix_ones(shapes: dict[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The spec with sizes of 1 fixed in the inputs themselves, not in what caches hold."""
    return {
        name: {d: dim for d, dim in shapes[name].items() if value.shape[d] != 1}
        if isinstance(value, Tensor)
        else shapes[name]
        for name, value in inputs.items()
    }
