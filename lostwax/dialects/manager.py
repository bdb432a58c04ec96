"""EdgeProgramManager: the methods of a module in the Edge dialect; `to_edge` makes one.

A manager is never changed: each step gives a new one. Must not know what an executable is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch._ops import OpOverload

from lostwax.dialects.edge import lower_to_edge
from lostwax.dialects.edge_operators import EdgeOperator
from lostwax.dialects.edge_rules import is_core, validate_edge
from lostwax.dialects.methods import Methods, require_config, require_method_name
from lostwax.errors import LoweringError
from lostwax.ir.decompose.core_aten import default_decompositions
from lostwax.ir.decompose.decompose import decompose_program
from lostwax.ir.graph.handles import number_calls
from lostwax.ir.graph.lookup import graph_modules
from lostwax.ir.passes.pipeline import Pass, Pipeline
from lostwax.ir.passes.transforms.gradients import PlainGradients, has_custom_gradients
from lostwax.ir.program import ExportedProgram
from lostwax.ir.text import source_place
from lostwax.late_imports import late_import
from lostwax.ops.decompositions.runtime import INSTEAD, RUNTIME

if TYPE_CHECKING:
    from lostwax.late_imports import DelegationReport, ExecutableConfig, ExecutableProgram

AnyPass = Pass | Pipeline | Callable[..., Any]
Programs = ExportedProgram | Mapping[str, ExportedProgram]


@dataclass(frozen=True)
class EdgeConfig:
    """How programs become Edge programs. Operators of `preserve_ops` are not taken apart, and are
    legal in the dialect although they are not core. `decompositions` says how others are computed,
    such as custom ones: for each a function that is called with its arguments."""

    preserve_ops: tuple[OpOverload, ...] = ()
    decompositions: Mapping[OpOverload, Callable[..., Any]] = field(default_factory=dict)


def to_edge(
    program: Programs,
    *,
    constant_methods: Mapping[str, Any] | None = None,
    config: EdgeConfig | None = None,
) -> EdgeProgramManager:
    """Take a program, or several by the names of their methods, to the Edge dialect. A single one
    is the method "forward". `constant_methods` are methods that return a constant. `config` says
    what is allowed to stay."""
    config = require_config(config, EdgeConfig)
    programs = dict(program) if isinstance(program, Mapping) else {"forward": program}
    table = default_decompositions().offer(RUNTIME).keep(*config.preserve_ops)
    table.update(config.decompositions)
    lowered = {}
    for name, each in programs.items():
        if not isinstance(each, ExportedProgram):
            raise LoweringError(
                f"to_edge takes programs; {name!r} is a {type(each).__module__}."
                f"{type(each).__qualname__}\n  instead: lostwax.export(module, args), or "
                "lostwax.interop.from_torch(program)"
            )
        if each.dialect == "EDGE":
            raise LoweringError(
                f"{name!r} is in the Edge dialect already\n"
                f"  instead: lostwax.EdgeProgramManager({{{name!r}: program}})"
            )
        require_method_name(name)
        if has_custom_gradients(each):
            each = Pipeline((PlainGradients(),))(each)
        lowered[name] = lower_to_edge(decompose_program(each, table, are_strides_seen=False))
        _require_core(lowered[name], config)
    return EdgeProgramManager(lowered, constant_methods, config)


def _require_core(program: ExportedProgram, config: EdgeConfig) -> None:
    """Refuse an operator that is not of core ATen, and that nothing takes apart."""
    for module in graph_modules(program.graph_module):
        for node in module.graph.nodes:
            target = node.target
            if not isinstance(target, EdgeOperator) or is_core(target):
                continue
            if target.overload not in config.preserve_ops:
                raise LoweringError.at(
                    f"torch.ops.{target.overload} is not of core ATen",
                    source_place(node),
                    why="nothing takes it apart into core operators",
                    instead=INSTEAD.get(target.name())
                    or "write it by other operators, here or in EdgeConfig(decompositions={...}), "
                    "or keep it, if the runtime has a kernel for it: "
                    f"EdgeConfig(preserve_ops=(torch.ops.{target.overload},))",
                )


class EdgeProgramManager(Methods):
    """Programs in the Edge dialect, each a method, and methods that return constants."""

    def __init__(
        self,
        programs: Mapping[str, ExportedProgram],
        constant_methods: Mapping[str, Any] | None = None,
        config: EdgeConfig | None = None,
        whole: Mapping[str, ExportedProgram] | None = None,
    ) -> None:
        super().__init__(programs, constant_methods or {})
        self.whole = dict(self._programs if whole is None else whole)
        """The methods as they were before parts of them were handed to backends."""
        self.config = require_config(config, EdgeConfig)
        both = sorted(self._programs.keys() & self._constants.keys())
        if both:
            raise LoweringError(f"{both[0]!r} is the name of a program and of a constant method")
        for program in self._programs.values():
            validate_edge(program, self.config.preserve_ops)
            number_calls(program.graph_module)

    def transform(
        self, passes: Sequence[AnyPass] | Mapping[str, Sequence[AnyPass]] | Pipeline | Pass
    ) -> EdgeProgramManager:
        """Run passes on every method, or on those that a dict names. What they make is verified."""
        if not isinstance(passes, Mapping):
            passes = dict.fromkeys(self._programs, passes)  # type: ignore[arg-type]
        for name in passes:
            self.exported_program(name)
        programs = dict(self._programs)
        for name, listed in passes.items():
            several = listed if isinstance(listed, (list, tuple)) else (listed,)
            programs[name] = Pipeline(tuple(several))(programs[name])
        lowered = {n: p for n, p in self.whole.items() if p is not self._programs[n]}
        return EdgeProgramManager(programs, self._constants, self.config, {**programs, **lowered})

    def to_backend(self, partitioner: Any) -> EdgeProgramManager:
        """Hand parts of the methods to backends: those that the partitioner chooses, or several
        partitioners one after the other; or other ones for each method, by a dict. Each part
        becomes one call of a delegate. What no backend takes stays for the runtime's kernels;
        `delegation_report()` says why."""
        made: EdgeProgramManager = late_import("lower_methods")(self, partitioner)
        return made

    def delegation_report(self) -> DelegationReport:
        """What was handed to backends, and for each other operator why not, with the user's
        line."""
        report: DelegationReport = late_import("make_report")(self)
        return report

    def to_executable(
        self, config: ExecutableConfig | None = None, *, kernels: Collection[str] = ()
    ) -> ExecutableProgram:
        """Lower the methods to an executable for the ExecuTorch runtime. `kernels` are those that
        yours has beside its own, by name: "llama::custom_sdpa.out"."""
        made: ExecutableProgram = late_import("ExecutableProgram")(
            self._programs, self._constants, config, kernels, self.whole
        )
        return made

    def to_executorch(
        self, config: ExecutableConfig | None = None, *, kernels: Collection[str] = ()
    ) -> ExecutableProgram:
        """`to_executable`, by the name that it has in ExecuTorch."""
        return self.to_executable(config, kernels=kernels)

    def __repr__(self) -> str:
        return f"EdgeProgramManager({', '.join(sorted(self.methods | self.config_methods))})"
