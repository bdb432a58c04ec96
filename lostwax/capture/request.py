"""What is to be exported, as the user asks for it; and the store in which its program is looked for
before it is captured (`lostwax.cache`). Must not know how it is captured, nor how a store keeps
programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import nn

from lostwax.capture.attempt import Attempt, SizeBranches
from lostwax.capture.example_call import ExampleCall, leaves_of
from lostwax.capture.python.told_exporting import TellExporting, check_option
from lostwax.capture.shapes.marks import find_attached_spec, marks_of
from lostwax.capture.state.root_module import forward_of
from lostwax.capture.threads import is_capturing
from lostwax.capture.trace.single_step_composites import Kept
from lostwax.ir.program import ExportedProgram

if TYPE_CHECKING:
    from lostwax.capture.shapes.constants import DeclaredConstant
    from lostwax.capture.shapes.spec import Spec


class Request(NamedTuple):
    """What is to be exported. It stays the same from attempt to attempt."""

    mod: nn.Module | Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    keep: Kept = frozenset()
    """The composite operators that stay single nodes."""
    preserved: Sequence[str] = ()
    """The submodules whose calls the program describes."""
    control_flow: str = "capture"
    strict: bool = False
    defers: bool = False
    """Are undeclared relations between Dims checked at each call?"""
    constants: Collection[str] = ()
    """The names of inputs that are constants."""
    tell_exporting: TellExporting = "auto"

    def first_attempt(self, dynamic_shapes: Any, constraints: Sequence[str] = ()) -> Attempt:
        """The call as it is given, with what is declared to vary."""
        if self.control_flow not in ("capture", "refuse", "sizes"):
            what = f'control_flow= takes "capture", "sizes" or "refuse", not {self.control_flow!r}'
            raise ValueError(f"{what}\n  why: it is about branches on data\n  instead: drop it")
        check_option(self.tell_exporting)
        _check_truth("strict", self.strict)
        _check_truth("prefer_deferred_runtime_asserts_over_guards", self.defers)
        declared = find_attached_spec(forward_of(self.mod), dynamic_shapes)
        spec = self.read_shapes(declared, constraints)
        splits = self.control_flow == "sizes" and spec is not None
        settled = SizeBranches() if splits else None
        return Attempt(spec, settled=settled, declared=self.read_constants(spec))

    def read_constants(self, spec: Spec | None) -> Mapping[int, DeclaredConstant]:
        """The values of the inputs that are constants, by the index of the leaf."""
        if not self.constants:
            return {}
        from lostwax.capture.shapes.constants import read_constants

        return read_constants(self.constants, ExampleCall(self.mod, self.args, self.kwargs), spec)

    def read_shapes(self, dynamic_shapes: Any, constraints: Sequence[str]) -> Spec | None:
        """The sizes and numbers that vary; None if nothing does."""
        leaves = leaves_of(self.args, self.kwargs)
        has_marks = any(isinstance(x, torch.Tensor) and marks_of(x) for x in leaves)
        if dynamic_shapes is None and not constraints and not has_marks:
            return None
        from lostwax.capture.shapes.spec import resolve_spec

        spec = resolve_spec(dynamic_shapes, self.mod, self.args, self.kwargs, constraints)
        spec.defers = self.defers
        if "torch.distributed.tensor" in sys.modules:
            from lostwax.capture.sharded.dims import divide_dims

            divide_dims(spec, leaves)
        return spec

    def name_tensors(self) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """The tensors of the example and of the module, for errors to speak of."""
        call = ExampleCall(self.mod, self.args, self.kwargs)
        inputs = zip(call.paths(), call.leaves, strict=True)
        given = {path: leaf for path, leaf in inputs if isinstance(leaf, torch.Tensor)}
        return given, {**self.mod.state_dict()} if isinstance(self.mod, nn.Module) else {}


def _check_truth(name: str, given: Any) -> None:
    if not isinstance(given, bool):  # "no" and "False" would be taken as yes
        what = f"{name}= takes True or False, not {given!r}"
        raise ValueError(f"{what}\n  why: it turns a rule on or off\n  instead: {name}=True")


# ------------------------------------------------------------------------------------------ stores


class ProgramStore(Protocol):
    """Keeps programs."""

    def find_or_make(
        self, request: Request, attempt: Attempt, make: Callable[[], ExportedProgram]
    ) -> ExportedProgram:
        """The program that `make` would capture for this request, beginning with this attempt."""


_of_context: ContextVar[ProgramStore | None] = ContextVar("store", default=None)
_of_all: list[ProgramStore] = []
"""The store of all threads, the last that was enabled."""


def find_store() -> ProgramStore | None:
    """The store that exports ask. In the middle of a capture, where the state is not the user's,
    none is asked."""
    store = _of_context.get() or (_of_all[-1] if _of_all else None)
    return None if is_capturing() else store


def enter_store(store: ProgramStore) -> Callable[[], None]:
    """From here on, exports in this context ask the store. Returns what ends that."""
    token = _of_context.set(store)
    return lambda: _of_context.reset(token)


def enable_store(store: ProgramStore) -> None:
    """From here on, the exports of all threads ask the store."""
    disable_store(store)
    _of_all.append(store)


def disable_store(store: ProgramStore) -> None:
    _of_all[:] = [each for each in _of_all if each is not store]
