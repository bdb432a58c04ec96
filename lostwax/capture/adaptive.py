"""`lostwax.capture`: a callable that captures programs as calls need them.

A program runs whenever its guards hold and the module is as it was at capture (`world.py`).
Otherwise the call is captured again, and the sizes that changed become dynamic. Programs run on the
module's own state. If a call changes something that no program keeps (a count in an attribute), the
module itself runs. Must not know how a capture works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from lostwax import logs
from lostwax.capture.attempt import Attempt
from lostwax.capture.example_call import ExampleCall
from lostwax.capture.export import capture_call
from lostwax.capture.heap.contents import Stream, restore_drawn_generators
from lostwax.capture.python.functions_run import FunctionKeys, FunctionNotes, union, watch_functions
from lostwax.capture.request import Request
from lostwax.capture.shapes.dims import Auto, Hint, Static
from lostwax.capture.shapes.marks import marks_of
from lostwax.capture.shapes.reader import LeafEntries
from lostwax.capture.shapes.spec import Spec
from lostwax.capture.state.root_module import find_root_module
from lostwax.capture.state.unkept_changes import KeptResults, collect_changes, collect_results
from lostwax.capture.surroundings.world import Surroundings
from lostwax.errors import DynamicShapesError, InputStructureError, InputValueError
from lostwax.ir.program import ExportedProgram
from lostwax.ir.run.conditions.settings import settings_now
from lostwax.ir.run.module import LiveProgram
from lostwax.location import Location, user_location, warn
from lostwax.undo.undo import Undo, run_and_undo

_Kinds = tuple[Any, ...]


@dataclass
class Variant:
    """One captured program of a callable."""

    program: ExportedProgram
    where: Location
    """The call that made it."""
    why: tuple[str, ...]
    """Why the programs before it could not run the call."""
    varying: tuple[str, ...]
    """The sizes and numbers that were made dynamic."""
    world: Surroundings
    ran: FunctionKeys | None
    """The functions that had run by then; `world` is what they read."""
    mode: Any
    gradients: tuple[bool, ...]
    """For each input tensor: does it require gradients?"""
    run: LiveProgram
    calls: int = 0

    def __str__(self) -> str:
        lines = [f"captured at {self.where}; {self.calls} call{'s' * (self.calls != 1)}"]
        lines += [f"  because {reason}" for reason in self.why or ("it was the first call",)]
        lines += [f"  dynamic: {', '.join(self.varying)}"] if self.varying else []
        lines += [f"  guard: {guard}" for guard in self.program.guards]
        return "\n".join(lines)


@dataclass
class _FirstCall:
    """The sizes and numbers of the first call of a structure, and which of them have varied."""

    first: list[Any]
    varying: set[tuple[int, int | None]] = field(default_factory=set)


class _Exported(NamedTuple):
    """What a call was captured as."""

    program: ExportedProgram
    world: Surroundings
    """In which it was captured."""
    lost: list[str]
    """The changes that the program would not keep."""
    results: KeptResults
    """What the call would leave in the caches of functions."""


class Captured:
    """Calls a module through captured programs; see `lostwax.capture`."""

    def __init__(self, mod: nn.Module | Callable[..., Any], dynamic: bool | None = None) -> None:
        if dynamic not in (None, True, False):
            raise DynamicShapesError(
                f"capture: dynamic is None (what changes becomes dynamic), False or True, not "
                f"{dynamic!r}\n  instead: which sizes vary can be said to lostwax.export"
            )
        self.wrapped = mod
        self.dynamic = dynamic
        self.variants: list[Variant] = []
        self._ran: FunctionKeys | None = None
        """The functions that have run so far. None at first: then we look at what all functions
        read that may run, until that includes something that we cannot compare."""
        self._worlds: dict[FunctionKeys | None, list[Surroundings]] = {}
        """The worlds in which programs were captured, each once; the current one is last."""
        self._seen: dict[Any, _FirstCall] = {}
        self.eager: list[str] = []
        """The calls that were captured in vain and ran the module itself: which, and why."""
        self._unsure: list[str] = []
        """What we could not compare, so that calls were not captured."""
        self._is_eager = False
        """Does the module itself run whenever no program holds? So it is after several captures in
        vain."""
        find_root_module(mod)  # raises if it is no module, function or method

    @property
    def programs(self) -> list[ExportedProgram]:
        """The programs captured so far, in order."""
        return [variant.program for variant in self.variants]

    def explain(self) -> str:
        """For each program: which call made it and why, what is dynamic in it, and its guards."""
        count = len(self.variants)
        head = f"{count} program{'s' * (count != 1)}"
        parts = (f"[{i}] {variant}" for i, variant in enumerate(self.variants))
        return "\n".join([head, *parts, *self._explain_eager()])

    def _explain_eager(self) -> list[str]:
        if not self.eager:
            return [f"the module itself runs: {why}" for why in self._unsure]
        further = ", and those after it that no program holds for" if self._is_eager else ""
        return ["the module itself runs", *(f"  in {each}" for each in self.eager[:-1]),
                f"  in {self.eager[-1]}{further}"]  # fmt: skip

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if self._is_eager and not self.variants:
            return self.wrapped(*args, **kwargs)
        mode = _current_mode()
        worlds: dict[FunctionKeys | None, Surroundings] = {}
        reasons: list[str] = []
        for i, variant in enumerate(self.variants):
            if variant.ran not in worlds:
                worlds[variant.ran] = self._world(variant.ran)
            world = worlds[variant.ran]
            reason, inputs = self._bind_variant(variant, world, mode, args, kwargs)
            if inputs is not None:
                try:
                    result = variant.run(inputs)
                except InputValueError as error:  # about layouts
                    reason = _indent_error(error)
                else:
                    variant.calls += 1
                    return result
            reasons.append(f"program {i} does not do: {reason}")
        if self._is_eager:
            return self.wrapped(*args, **kwargs)
        if self._ran is not None or self._world(None).unsure:
            return self._run_and_watch(mode, args, kwargs, tuple(reasons))
        made = self._capture_call(mode, args, kwargs, tuple(reasons))
        if made is None:
            return self.wrapped(*args, **kwargs)
        return made.run(made.run.bind(args, kwargs))

    def _run_and_watch(
        self, mode: Any, args: tuple[Any, ...], kwargs: Any, why: tuple[str, ...]
    ) -> Any:
        """Run the module itself and note which functions run: the module reads only a small part of
        what a library has. The capture is for later calls: if it fails, the result must not be
        lost, since the module has run and may have changed its state."""
        notes = FunctionNotes()
        result = notes.call(self.wrapped, *args, **kwargs)
        self._ran = union(self._ran or frozenset(), notes.ran())
        try:
            self._capture_call(mode, args, kwargs, why)
        except Exception as error:
            where, text = user_location(), str(error) or type(error).__name__
            self._note_in_vain(where, text.splitlines()[0])
            warn(f"lostwax.capture runs the module itself: a call cannot be captured.\n{text}")
        return result

    def _note_in_vain(self, where: Location, why: str) -> None:
        self.eager.append(f"the call at {where}: {why}")
        self._is_eager = len(self.eager) >= _MOST_IN_VAIN
        logs.dynamic.info("  the module itself runs: %s", why)

    def _warn_of_unsure(self, why: str) -> None:
        """Warn, once for each reason, that the module itself runs: we would not notice a change of
        what we cannot compare."""
        if why not in self._unsure:
            self._unsure.append(why)
            warn(f"lostwax.capture runs the module itself: {why}")

    def _world(self, ran: FunctionKeys | None) -> Surroundings:
        """What these functions read beside the arguments, as it is now."""
        worlds = self._worlds.setdefault(ran, [])
        if worlds and worlds[-1].is_unchanged():
            return worlds[-1]
        world = Surroundings(self.wrapped, ran)
        for i, known in enumerate(worlds):
            if not world.difference(known):
                world.key = known.key
                del worlds[i]
                break
        worlds.append(world)
        return world

    def _bind_variant(
        self, variant: Variant, world: Surroundings, mode: Any, args: tuple[Any, ...], kwargs: Any
    ) -> tuple[str, tuple[Any, ...] | None]:
        """The inputs of the variant's program for this call, or why it cannot run the call."""
        if world.unsure:
            return world.unsure[0], None
        if variant.world.key is not world.key:
            return world.difference(variant.world), None
        if mode != variant.mode:
            changed = "gradients, inference mode, autocast, the default dtype or device"
            return f"{changed} are others now", None
        try:
            inputs = variant.run.bind(args, kwargs)
        except (InputStructureError, InputValueError) as error:
            return _indent_error(error), None
        if torch.is_grad_enabled() and _gradient_marks(inputs) != variant.gradients:
            return "other inputs require gradients", None
        return "", inputs

    # ---------------------------------------------------------------------------------- capturing

    def _capture_call(
        self,
        mode: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        why: tuple[str, ...],
    ) -> Variant | None:
        """Capture a call; None if a program would not do what the module does."""
        call = ExampleCall(self.wrapped, args, kwargs)
        spec, varying = self._make_spec(call)
        where = user_location()
        logs.dynamic.info("capture %d at %s", len(self.variants), where)
        for reason in why:
            logs.dynamic.info("  %s", reason)
        if varying:
            logs.dynamic.info("  dynamic: %s", ", ".join(varying))
        captured = self._export_call(args, kwargs, spec)
        if captured is None:
            return None
        program, world, lost, results = captured
        if lost:
            # The next call may set the same value again, and change nothing.
            self._note_in_vain(where, lost[0])
            return None
        for place, new in results.items():  # as the call would leave them
            place.write([*(place.read() or ()), *new])
        world.note_caches()
        run = LiveProgram(program, find_root_module(self.wrapped))
        gradients = _gradient_marks(call.leaves)
        variant = Variant(program, where, why, varying, world, self._ran, mode, gradients, run, 1)
        self.variants.append(variant)
        return variant

    def _export_call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], spec: Spec | None
    ) -> _Exported | None:
        """What a call is captured as; None if we cannot compare the world."""
        world = self._world(self._ran)
        if world.unsure:
            self._warn_of_unsure(world.unsure[0])
            return None
        streams = list(map(Stream, world.random))

        def work(undo: Undo) -> tuple[_Exported, FunctionNotes | None]:
            lost, results = collect_changes(undo), collect_results(undo)
            # Noting each call costs time.
            notes = None if self._ran is None else watch_functions(undo)
            found = capture_call(Request(self.wrapped, args, kwargs), Attempt(spec))
            return _Exported(found, world, lost, results), notes

        exported, notes = run_and_undo(work)
        lost = exported.lost
        lost += filter(None, [restore_drawn_generators(streams)])
        if notes is not None and not lost:
            known, self._ran = self._ran, union(self._ran, notes.ran())
            if self._ran != known:  # functions have run whose world we have not looked at
                return self._export_call(args, kwargs, spec)
        return exported

    def _make_spec(self, call: ExampleCall) -> tuple[Spec | None, tuple[str, ...]]:
        """Which sizes and numbers of this call are dynamic."""
        places = self._find_varying(call)
        paths = call.paths()
        leaves = [_leaf_entries(i, leaf, places) for i, leaf in enumerate(call.leaves)]
        texts = tuple(
            paths[i] if d is None else f"{paths[i]}.shape[{d}]" for i, d in sorted(places, key=str)
        )
        is_static = all(e is None or e == Static() for leaf in leaves for e in _as_tuple(leaf))
        return (None if is_static else Spec(leaves, paths)), texts

    def _find_varying(self, call: ExampleCall) -> set[tuple[int, int | None]]:
        if self.dynamic is False:
            return set()
        numbers = [_numbers(leaf) for leaf in call.leaves]
        if self.dynamic:
            return {(i, d) for i, found in enumerate(numbers) for d in found}
        structure = (call.tree, tuple(map(_leaf_kind, call.leaves)))
        seen = self._seen.get(structure)
        if seen is None:
            seen = self._seen[structure] = _FirstCall(numbers)
        for i, (found, first) in enumerate(zip(numbers, seen.first, strict=True)):
            seen.varying |= {(i, d) for d in found if found[d] != first[d]}
        return seen.varying


_MOST_IN_VAIN = 3
"""How many calls are captured without getting a program, before we give up."""


def _current_mode() -> Any:
    """The settings of torch that a program depends on."""
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), settings_now()


def _gradient_marks(leaves: Iterable[Any]) -> tuple[bool, ...]:
    return tuple([leaf.requires_grad for leaf in leaves if isinstance(leaf, torch.Tensor)])


def _indent_error(error: Exception) -> str:
    """The error's text without its advice: we capture again instead."""
    lines = str(error).splitlines()
    return "\n    ".join(each for each in lines if not each.startswith("  fix:"))


def capture(mod: nn.Module | Callable[..., Any], dynamic: bool | None = None) -> Captured:
    """A callable that runs `mod` through captured programs.

    The first call is captured with its own sizes. A later call runs the first program whose guards
    hold. If there is none, it is captured again, and the sizes and ints that have changed are
    dynamic from then on. It is also captured again if `mod` itself has changed: attributes,
    submodules, hooks, the closures of its functions, the globals that they read. If `mod` changes
    something that a program does not keep (a count in an attribute), `mod` itself runs.
    `dynamic=False`: one program for each size; `True`: all sizes and ints are dynamic from the
    start. `.programs` are the programs, `.explain()` says why there are so many, and
    `LOSTWAX_LOGS=dynamic` logs each decision as it is made.
    """
    return Captured(mod, dynamic)


def _numbers(leaf: Any) -> dict[int | None, int]:
    """The numbers of a leaf that may vary: its sizes by dimension, or itself."""
    if isinstance(leaf, torch.Tensor):
        return dict(enumerate(leaf.shape))
    return {None: leaf} if type(leaf) is int else {}


def _leaf_kind(leaf: Any) -> _Kinds:
    """What is equal for the leaves of two calls of the same structure."""
    if isinstance(leaf, torch.Tensor):
        return (torch.Tensor, leaf.dtype, leaf.ndim, leaf.device)
    return (type(leaf), None if type(leaf) is int else repr(leaf))


def _as_tuple(leaf: LeafEntries) -> tuple[Any, ...]:
    return leaf if isinstance(leaf, tuple) else (leaf,)


def _leaf_entries(i: int, leaf: Any, places: set[tuple[int, int | None]]) -> LeafEntries:
    if isinstance(leaf, torch.Tensor):
        said: dict[int, Hint] = {
            d: Auto() for d in range(leaf.ndim) if (i, d) in places
        } | marks_of(leaf)
        return tuple(said.get(d, Static()) for d in range(leaf.ndim))
    return Auto() if (i, None) in places else None
