"""Notes which values go in and out of the submodules that `preserve_module_call_signature` names,
and in what structure. A program forgets the borders of all other modules.

Must not record steps of its own, and must not know how modules are watched.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.utils._pytree import TreeSpec

from lostwax.capture.example_call import argument_names, check_leaves
from lostwax.capture.steps.provenance import Entered
from lostwax.capture.trace.tracer import Tracer
from lostwax.errors import CaptureError, UnknownModuleError
from lostwax.fake.symbolic.node import unwrap
from lostwax.ir.data import ModuleCallEntry, ModuleCallSignature
from lostwax.ir.pytree import call_paths, leaf_paths
from lostwax.ir.signature import ArgumentSpec


@dataclass(eq=False, repr=False)
class PreservedCall:
    """A call of a preserved module. Tensors are values of the log, sizes are expressions."""

    name: str
    argument_names: list[str]
    inputs: list[Any]
    in_spec: TreeSpec
    outputs: list[Any] = field(default_factory=list)
    out_spec: TreeSpec | None = None

    def signature(self, argument: Callable[[Any], ArgumentSpec]) -> ModuleCallSignature:
        assert self.out_spec is not None, f"{self.name} did not return"
        return ModuleCallSignature(
            [argument(v) for v in self.inputs],
            [argument(v) for v in self.outputs],
            self.in_spec,
            self.out_spec,
            self.argument_names,
        )


class PreservedCalls:
    """The calls of all preserved modules in one capture."""

    def __init__(self, places: Sequence[tuple[str, nn.Module]], preserved: Sequence[str]) -> None:
        self._places = places
        """Every module with each of its paths."""
        self.paths: Container[str] = _first_paths(places, preserved) if preserved else ()
        self.calls: list[PreservedCall] = []
        self._open: dict[Entered, PreservedCall] = {}
        self.tracer: Tracer | None = None

    def note_entry(self, entered: Entered, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        assert self.tracer is not None
        if self.tracer.scope is not None:
            raise CaptureError.here(
                f"the module {entered.name}, whose call is to be described, is called inside of "
                f"{self.tracer.scope.what}",
                why="what goes in and out of it there is no value of the program",
                instead="leave it out of preserve_module_call_signature",
            )
        names = [*argument_names(entered.module.forward, len(args), kwargs), *kwargs]
        leaves, spec = pytree.tree_flatten((args, kwargs))
        check_leaves(leaves, f"in a call of {entered.name}, ", lambda: call_paths(spec, names))
        self._open[entered] = PreservedCall(entered.name, names, self._current_values(leaves), spec)

    def note_exit(self, entered: Entered, result: Any) -> None:
        call = self._open.pop(entered)
        leaves, spec = pytree.tree_flatten(result)
        check_leaves(leaves, f"the result of {entered.name}", lambda: leaf_paths(spec))
        call.out_spec = spec
        call.outputs = self._current_values(leaves)
        self.calls.append(call)

    def _current_values(self, leaves: list[Any]) -> list[Any]:
        """The values of the leaves now: later writes give a tensor another value."""
        assert self.tracer is not None
        tracer = self.tracer
        return [
            tracer.value_of(tracer.adopt(x)) if isinstance(x, torch.Tensor) else unwrap(x)
            for x in leaves
        ]

    def values(self) -> list[Any]:
        """The values for which the program must have nodes."""
        return [v for call in self.calls for v in (*call.inputs, *call.outputs)]

    def make_entries(
        self, root: ModuleCallSignature, argument: Callable[[Any], ArgumentSpec]
    ) -> list[ModuleCallEntry]:
        """The entries of the root, of every submodule by each of its paths, then of second and
        later calls."""
        signatures = {
            call.name: call.signature(argument) for call in sorted(self.calls, key=_path_and_number)
        }
        entries = [ModuleCallEntry("", root)]
        for path, _ in self._places:
            if path:
                entries.append(ModuleCallEntry(path, signatures.pop(path, None)))
        return entries + [ModuleCallEntry(name, s) for name, s in signatures.items() if name]


def _path_and_number(call: PreservedCall) -> tuple[str, int]:
    path, _, number = call.name.partition("@")
    return path, int(number or 0)


def _first_paths(
    places: Sequence[tuple[str, nn.Module]], preserved: Sequence[str]
) -> frozenset[str]:
    """The paths of the preserved modules in the program: a shared module has its first path."""
    modules = dict(places)
    for path in preserved:
        if path not in modules:
            raise _unknown_error(path, [p for p in modules if p])
    first = {id(module): path for path, module in reversed(modules.items())}
    return frozenset(first[id(modules[path])] for path in preserved)


def _unknown_error(path: str, known: list[str]) -> UnknownModuleError:
    close = difflib.get_close_matches(path, known, n=3)
    hint = (
        f"did you mean {' or '.join(map(repr, close))}?"
        if close
        else f"it has {', '.join(map(repr, known[:10]))}{', ...' if len(known) > 10 else ''}"
        if known
        else "it has none"
    )
    return UnknownModuleError(
        f"preserve_module_call_signature: the module has no submodule {path!r}; {hint}\n"
        "  why: modules are found by their paths, as named_modules() lists them\n"
        f"  instead: preserve_module_call_signature=({(close or known or [''])[0]!r},)",
        path,
    )
