"""Names of `executorch.exir` for who comes from there, and what they are here. Imports nothing of
ExecuTorch's."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from lostwax.backends.transform import to_edge_transform_and_lower
from lostwax.dialects.edge_operators import edge
from lostwax.dialects.manager import EdgeProgramManager, to_edge
from lostwax.errors import LoweringError
from lostwax.pte.executable import ExecutableConfig

__all__ = [
    "EdgeProgramManager",
    "ExecutorchBackendConfig",
    "exir_ops",
    "to_edge",
    "to_edge_transform_and_lower",
]

exir_ops = SimpleNamespace(edge=edge)
"""Operators by name: `exir_ops.edge.aten.add.Tensor` is `lostwax.ops.edge.aten.add.Tensor`."""

_ALWAYS = {
    "extract_delegate_segments": True,
    "extract_constant_segment": True,
    "remove_view_copy": True,
    "emit_stacktrace": False,
    "do_quant_fusion_and_const_prop": False,
    "run_reinplace_pass": True,
}
"""What is always so here."""
_INSTEAD = {
    "emit_stacktrace": "executable.save(path, etrecord=True): lines are beside the file",
    "memory_planning_pass": "nothing: memory is planned by lifetimes, and results take it over",
    "to_out_var_pass": "nothing: kernels are chosen by lostwax.pte",
    "sym_shape_eval_pass": "Dim(name, max=...): memory is planned for the greatest sizes",
    "segment_alignment": "nothing: segments lie as the runtime wants them",
}


def ExecutorchBackendConfig(
    *, external_constants: bool = False, passes: Sequence[Any] = (), **options: Any
) -> ExecutableConfig:
    """The configuration of an executable, by ExecuTorch's options. One that has no meaning here is
    refused, unless it says what is so anyway."""
    for name, value in options.items():
        if name in _ALWAYS and value == _ALWAYS[name]:
            continue
        if name in _ALWAYS and name not in _INSTEAD:
            raise LoweringError(f"{name}={value!r}: here it is always {_ALWAYS[name]}")
        instead = _INSTEAD.get(name, "lostwax.ExecutableConfig, whose fields say what there is")
        raise LoweringError(
            f"ExecutorchBackendConfig has no option {name!r} in lostwax\n  instead: {instead}"
        )
    return ExecutableConfig(weights_beside=bool(external_constants), passes=tuple(passes))
