"""What a backend is, and what it is told: `Backend`, `CompileSpec`, `DelegationSpec`.

Must not know how programs are partitioned.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lostwax.errors import LoweringError
from lostwax.ir.graph.delegate import CompileSpec
from lostwax.ir.program import ExportedProgram

__all__ = ["Backend", "CompileSpec", "DelegationSpec", "Payload"]


@dataclass(frozen=True)
class Payload:
    """What a backend makes of a part of a program. `named_data` is data beside the bytes, which
    delegates and methods share if they give it the same name: bytes, or tensors. `events` says of
    what the backend's run time notes while it runs, by a number or a name, which nodes of the part
    it stands for: their names."""

    data: bytes
    named_data: Mapping[str, Any] = field(default_factory=dict)
    events: Mapping[int | str, Sequence[str]] = field(default_factory=dict)


class Backend(ABC):
    """Makes of a part of a program what its run time runs."""

    backend_id: str = ""
    """The name by which the runtime finds the backend; that of the class if it is not given."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not cls.backend_id:
            cls.backend_id = cls.__name__

    @abstractmethod
    def preprocess(
        self, program: ExportedProgram, compile_specs: Sequence[CompileSpec]
    ) -> bytes | Payload:
        """What is to be run for this part, a program in the Edge dialect: its weights are state,
        the values that it is given are its inputs, in order of the call."""


@dataclass(frozen=True)
class DelegationSpec:
    """Which backend a part is for, and what that is told."""

    backend: Backend
    compile_specs: tuple[CompileSpec, ...] = ()

    def __post_init__(self) -> None:
        given: Any = self.compile_specs
        if not isinstance(given, (list, tuple)) or not all(
            isinstance(each, CompileSpec) for each in given
        ):
            raise LoweringError(
                f"the compile_specs of a DelegationSpec are {given!r}"
                '\n  instead: (CompileSpec("speed", b"high"),)'
            )
