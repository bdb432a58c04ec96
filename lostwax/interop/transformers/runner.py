"""The runners: a program is made ready once, then called as the model was."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn
from transformers.exporters.metadata import ExportMetadata, load_treespec
from transformers.exporters.runners.base import ModelRunner

from lostwax.errors import InputStructureError, InputValueError, LoadError
from lostwax.interop.transformers.conditions import check_conditions, list_conditions
from lostwax.interop.transformers.containers import hold_all
from lostwax.ir.passes.transforms.device import move_to_device_pass
from lostwax.ir.program import ExportedProgram
from lostwax.pte.executable import ExecutableProgram
from lostwax.pte.runtime import LoadedProgram, load_runtime


class LostwaxRunner(ModelRunner):
    """Runs a program as a module. Inputs and outputs are never copied."""

    def __init__(self, module: nn.Module, metadata: ExportMetadata, device: torch.device) -> None:
        super().__init__(metadata)
        self.module = module
        self._device = device

    @property
    def device(self) -> torch.device:
        return self._device

    @classmethod
    def from_program(
        cls, program: ExportedProgram, metadata: ExportMetadata, device: Any = None
    ) -> LostwaxRunner:
        there = torch.device(metadata.export_device or "cpu")
        to = there if device is None else torch.device(device)
        moved = program if to == there else move_to_device_pass(program, to)
        return cls(moved.module(), metadata, to)

    def __call__(
        self, share_inputs: bool = True, share_outputs: bool = False, **kwargs: Any
    ) -> Any:
        with torch.no_grad():
            return self.module(**complete(self.metadata, kwargs))


class LostwaxPteRunner(ModelRunner):
    """Runs a `.pte` file in the ExecuTorch runtime, which must be installed."""

    def __init__(self, loaded: LoadedProgram, metadata: ExportMetadata) -> None:
        super().__init__(metadata)
        self.loaded = loaded
        self.in_spec = load_treespec(metadata.in_spec)
        self.names = self.in_spec.child(1).context
        self.conditions = list_conditions(metadata)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @classmethod
    def from_program(
        cls, program: ExecutableProgram | bytes, metadata: ExportMetadata, device: Any = None
    ) -> LostwaxPteRunner:
        if device is not None and torch.device(device).type != "cpu":
            raise LoadError(
                f"the ExecuTorch runtime of Python runs on the CPU, not on {device}\n"
                "  instead: no device"
            )
        return cls(
            load_runtime(program if isinstance(program, bytes) else program.buffer), metadata
        )

    def __call__(
        self, share_inputs: bool = True, share_outputs: bool = False, **kwargs: Any
    ) -> Any:
        given = complete(self.metadata, kwargs)
        for name, value in self.metadata.in_constants.items():
            if type(given[name]) is not type(value) or given[name] != value:
                raise InputValueError(
                    f"{name} is not {value!r}, with which the program was exported, and which is "
                    "baked into it\n  instead: leave it out, or export again with the other one",
                    name,
                )
        ordered = {name: given[name] for name in self.names if name in given}
        leaves, spec = pytree.tree_flatten(((), ordered))
        if spec != self.in_spec:
            raise InputStructureError(
                "the inputs are not built like those of the export\n"
                f"  here: {spec}\n  there: {self.in_spec}\n"
                "  instead: pass what the export was given, or export again with these inputs"
            )
        check_conditions(self.conditions, self.in_spec, leaves)
        return pytree.tree_unflatten(self.loaded.run(leaves), self.out_spec)


def complete(metadata: ExportMetadata, given: dict[str, Any]) -> dict[str, Any]:
    """The inputs of a call with those that were plain values at the export, and with caches as
    programs have them."""
    return {name: hold_all(v) for name, v in {**metadata.in_constants, **given}.items()}
