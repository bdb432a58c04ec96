"""An `if` whose condition depends on data: its sides are recorded one after the other, and become a
`cond`.

Between the two, all that the first has changed is put back. A side that raises becomes an
assertion. Must not know how the function is written that runs it (`rewriting/regions.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CellType, FrameType
from typing import Any

import torch

from lostwax.bytecode import instruction_at
from lostwax.capture.attempt import Retry
from lostwax.capture.control.cond import append_cond, find_facts, read_predicate
from lostwax.capture.control.scope import Scope, are_equal, find_order
from lostwax.capture.flow.lists.choices import find_tails, merge_tails
from lostwax.capture.flow.lists.growing import ListOfUnknownLength
from lostwax.capture.flow.lists.growth import find_makers
from lostwax.capture.flow.lists.own_containers import OwnContainers
from lostwax.capture.flow.merging import (
    NOTHING,
    Build,
    MergeConflict,
    Merging,
    Outcome,
    is_same_number,
    look_at,
    refuse_numbers,
)
from lostwax.capture.flow.open_regions import close_regions, count_open, open_region
from lostwax.capture.flow.options.raising import find_ways, may_be_caught
from lostwax.capture.flow.retry import BranchesDiffer, OptionsAsked, RaiseLeaves
from lostwax.capture.flow.rewriting.names import LEFT, RESULT, is_of_hooks, is_ours, show_name
from lostwax.capture.flow.rewriting.sites import Site
from lostwax.capture.flow.truths import KEPT, UNSET, drop_copies, find_known, make_tensor
from lostwax.capture.heap.cached import CALL_BEFORE, ResultCache
from lostwax.capture.heap.holders import MISSING, Content, TensorAttributes
from lostwax.capture.heap.moment import ChangedPlace, Changes, NotRestorableError
from lostwax.capture.python.module_hooks import find_kept
from lostwax.capture.python.one_of import settle
from lostwax.capture.trace.gradient_steps import pass_gradient_through
from lostwax.capture.trace.refusals import refuse_symbol
from lostwax.capture.trace.tracer import Tracer
from lostwax.errors import CaptureError, LostwaxError, asks_data
from lostwax.fake.symbolic.node import unwrap
from lostwax.fake.tensor import FakeTensor
from lostwax.location import find_tracebacks, locate_line
from lostwax.sym import BoolExpr, Expr


def read_variables(frame: FrameType) -> dict[str, Any]:
    """The variables of a function that runs, without those that only hooks use."""
    names = frame.f_locals
    return {name: names[name] for name in names if not is_of_hooks(name)}


def let_go(hook: Any) -> None:
    """A choice or a loop is over: what the function drops ends with it. (The frame holds the hook,
    and would be held by it.)"""
    given = hook._given
    drop_copies(hook._frame)
    vars(hook).clear()
    hook.is_symbolic, hook._given = True, given


def is_interrupt(error: BaseException) -> bool:
    """Does it come from outside, as Ctrl-C does, and not from a `raise`?"""
    last = [*find_tracebacks(error)][-1:]
    steps = [instruction_at(each.tb_frame.f_code, each.tb_lasti) for each in last]
    is_raised = any(each in ("RAISE_VARARGS", "RERAISE") for each in steps)
    return isinstance(error, KeyboardInterrupt) and not is_raised


def goes_on(frame: FrameType, error: BaseException) -> bool:
    """Is it an error of ours, an interrupt, or one that the user's code lets out?"""
    if isinstance(error, Exception):
        return isinstance(error, LostwaxError) or asks_data(error)
    return is_interrupt(error) or not may_be_caught(frame, error)


class Choice:
    """One `if`, while it is recorded."""

    def __init__(
        self,
        tracer: Tracer,
        predicate: Any,
        frame: FrameType,
        site: Site,
        names: Sequence[str],
        live: Sequence[str],
    ) -> None:
        self.is_symbolic = True
        self.side = True
        """The side that is to run."""
        self._tracer = tracer
        self._predicate = predicate
        self._condition = read_predicate(tracer, predicate)
        self._facts = find_facts(self._condition)
        self._is_size = isinstance(self._condition, BoolExpr) and self._condition.hint is not None
        self._frame, self._site, self._names, self._live = frame, site, names, live
        self._where = locate_line(frame, site.line)
        self._own = OwnContainers(frame, self._find_around(), is_of_hooks)
        self._unread: list[set[int]] = []
        """The containers that nobody reads any more, for each side that has ended."""
        self._alone: list[set[int]] = []
        """What nobody has but the caller, once the function returns it."""
        self._before = read_variables(frame)
        self._heap = look_at(tracer, self._before)
        self._outcomes: dict[bool, Outcome] = {}
        self._raised: dict[bool, Exception] = {}
        self._tried: Exception | None = None
        """What the side has raised for the example's sizes; it is run again, for any."""
        self._is_inline = False
        self._given: dict[str, Any] = {}
        """What the variables are to be now."""
        self._begin()
        self._own.begin()

    def _find_around(self) -> OwnContainers | None:
        """The containers of the function's own in the side in which this stands."""
        held = [value for value in self._frame.f_locals.values() if type(value) is Choice]
        around = [each for each in held if each is not self and each.is_recording]
        return max(around, key=lambda each: each._around)._own if around else None

    @property
    def is_recording(self) -> bool:
        return "_own" in vars(self) and not self._is_inline

    def _begin(self) -> None:
        what = f"the {self.side} side of `{self._where.text}`"
        self._scope = Scope(self._tracer, what)
        self._around = count_open()
        self._recording = open_region(self._scope, self._facts[0 if self.side else 1])
        if self._tried is not None:
            self._tracer.shape_env.facts.fits_example = False

    # ------------------------------------------------------------------------- called by the code

    def give(self, name: str) -> Any:
        """What a variable is to be now; it is asked once, and nothing else holds it then."""
        return self._given.pop(name, KEPT)

    def fail(self, error: BaseException) -> None:
        """The side has raised."""
        if self._is_inline:
            raise error
        is_ours = isinstance(error, (LostwaxError, Retry, RecursionError))
        is_ours = is_ours or asks_data(error)
        if is_ours and self._tried is not None:  # as with the example's sizes, then
            error, is_ours = self._tried, False
        if is_ours or not isinstance(error, Exception):
            close_regions(self._around)
            if is_ours or is_interrupt(error):
                raise error
            self._refuse_caught(error, self.side)
            raise CaptureError(
                f"the {self.side} side of an `if` on data raises {type(error).__name__}.\n"
                f"  at {self._where}\n"
                "  why: that ends Python, or what waits for it; a program can only stop with an "
                "error\n"
                "  instead: raise an exception, RuntimeError for instance"
            ) from error
        try:
            refuse_symbol(error, self._tracer.shape_env)
        except CaptureError:
            close_regions(self._around)
            raise
        close_regions(self._around + 1)  # those inside of the side
        self._raised[self.side] = error

    def end(self) -> bool:
        """A side has ended. Returns whether all is done."""
        is_over = self._end()
        if is_over:
            let_go(self)
        else:
            self._own.begin(self._given.values())
        return is_over

    def _end(self) -> bool:
        if self._is_inline:
            self._given = {}
            return True
        self._end_side()
        if self._may_hold_otherwise():
            self._tried = self._raised.pop(self.side)
            self._given = {name: self._before.get(name, UNSET) for name in self._names}
            self._begin()
            return False
        self._tried = None
        if self.side:
            self.side = False
            self._given = {name: self._before.get(name, UNSET) for name in self._names}
            if True in self._raised:
                return self._go_on_alone()
            self._begin()
            return False
        if False in self._raised:
            self.side = True
            self._given = {name: self._before.get(name, UNSET) for name in self._names}
            return self._go_on_alone()
        self._merge()
        return True

    def _end_side(self) -> None:
        side, scope = self.side, self._scope
        self._unread.append(self._own.list_unread({*self._site.live}))
        self._alone.append(self._own.list_alone(RESULT))
        variables = read_variables(self._frame)
        with self._recording:
            scope.collect_writes()
            if side in self._raised:
                self._take_changes()
                return
            if self._is_size:
                variables = {name: find_known(value) for name, value in variables.items()}
            variables = {name: settle(value) for name, value in variables.items()}
            outcome = Outcome(f"the {side} side", scope, variables, {})
            changed = [variables.get(name) for name in self._live]
            changed += [kept.value] if (kept := find_kept(self._frame)) else []
            outcome.changes = self._take_changes()
            for place in outcome.changes.values():
                changed += [value for _, value in place.after]
            for place in self._outcomes[True].changes.values() if not side else ():
                changed += [value for _, value in place.before]
            outcome.log(changed)
        self._outcomes[side] = outcome

    def _take_changes(self) -> Changes:
        try:
            return self._heap.take_changes(
                self._scope.as_region(), self._before, read_variables(self._frame)
            )
        except NotRestorableError as error:
            raise CaptureError(
                f"the {self.side} side of an `if` on data changes {error.what}, and that cannot be "
                f"undone.\n  at {self._where}\n"
                "  why: both sides are recorded, and each has to begin with what was there before\n"
                "  instead: change it before the `if`; or choose values, torch.where(c, a, b)"
            ) from None

    # ------------------------------------------------------------------------------ a side raises

    def _may_hold_otherwise(self) -> bool:
        """Has a side raised by the example's sizes? Then it is run again, and what it needs of them
        is checked when the program comes there."""
        if self.side not in self._raised or self._tried is not None:
            return False
        return any(each.kind == "branch" for each in self._scope.guards)

    def _go_on_alone(self) -> bool:
        """The other side has raised: the program asserts that it does not come to that, and goes on
        with this side, outside of any region."""
        error = self._raised[not self.side]
        if self.side in self._raised:
            raise self._raised[self.side]
        self._refuse_caught(error, not self.side)
        holds = self._predicate
        if self._is_size and self._tracer.scope is not None:
            # Inside of a branch the example may be one that does not come there: it is computed.
            holds = torch.logical_and(make_tensor(holds), torch.ones((), dtype=torch.bool))
        if isinstance(holds, torch.Tensor):
            holds = holds.item()
        if not self.side:
            holds = torch.sym_not(holds)
        torch._check_with(type(error), holds, lambda: f"{type(error).__name__}: {error}")
        self._is_inline = True
        return False

    def _refuse_caught(self, error: BaseException, side: bool) -> None:
        if may_be_caught(self._frame, error):
            ways = find_ways(self._frame, error)
            refusal = CaptureError(
                f"the {side} side of an `if` on data raises {type(error).__name__}, and "
                f"that may be caught: {error}.\n  at {self._where}\n"
                "  why: whether it is raised is known only when the program runs, which cannot "
                "catch anything\n"
                "  instead: do in that side what is done where it is caught"
            )
            raise refusal if ways is None else RaiseLeaves(*ways, refusal) from error

    # ----------------------------------------------------------------------------------- both end

    def _merge(self) -> None:
        true, false = self._outcomes[True], self._outcomes[False]
        is_guard = self._site.is_guard
        merging = Merging(
            self._tracer, self._heap, true, false, not self._is_size, is_guard, OptionsAsked
        )
        merging.alone = set.intersection(*self._alone)
        variable = None
        try:
            variables = dict[str, Build]()
            for variable in self._names:
                variables[variable] = self._plan_variable(merging, variable)
            variable = None
            places = self._plan_places(merging)
        except MergeConflict as error:
            error.is_of_guard = is_guard
            at = (self._site.line, self._site.column)
            raise BranchesDiffer(self._frame.f_code, at, self._where, error, variable) from None
        results = self._append(merging)
        self._given = {name: build(results) for name, build in variables.items()}
        for place, content in places:
            place.write(content(results))
        vars(merging).clear()  # its ways to build a value hold it

    def _plan_variable(self, merging: Merging, name: str) -> Build:
        t, f = (side.variables.get(name, MISSING) for side in (merging.true, merging.false))
        if name not in self._live or (t is MISSING and f is MISSING):
            return lambda _: UNSET
        if name == RESULT and type(t) is not type(f):
            t, f = self._find_returned(t, f)
        left = merging.true if t is MISSING else merging.false
        if (t is MISSING or f is MISSING) and self._never_reads(left, name):
            t, f = (NOTHING if each is MISSING else each for each in (t, f))
            return merging.merge(show_name(name), t, f, is_ours=True)
        if t is MISSING or f is MISSING:
            side = "the True side" if f is MISSING else "the False side"
            raise MergeConflict(f"{show_name(name)} is set on {side} only")
        if name in self._site.apart:
            return merging.merge_or_keep_apart(show_name(name), t, f, is_ours(name), self._where)
        return merging.merge(show_name(name), t, f, is_ours(name))

    def _find_returned(self, t: Any, f: Any) -> tuple[Any, Any]:
        """What the caller goes on with: a module's hook that returns None keeps what there is."""
        kept = find_kept(self._frame)
        if kept is None or any(each is NOTHING or each is MISSING for each in (t, f)):
            return t, f
        return kept.take(t), kept.take(f)

    def _never_reads(self, outcome: Outcome, name: str) -> bool:
        """Does a side leave the function, and nothing reads the variable on the way out?"""
        is_left = outcome.variables.get(LEFT) is True
        return is_left and name not in self._site.read_last

    def _plan_places(self, merging: Merging) -> list[Any]:
        true, false = merging.true.changes, merging.false.changes
        found = []
        unread = set.intersection(*self._unread) | merging.replaced
        for key in {**true, **false}:
            place = false.get(key) or true[key]
            if id(place.holder) in unread and not place.is_lasting:
                continue
            t, f = (c[key].after if key in c else place.before for c in (true, false))
            if isinstance(place.holder, TensorAttributes):
                found.append((place, self._plan_attributes(merging, place, dict(t), dict(f))))
                continue
            tails = find_tails(place, t, f)
            if tails is not None and isinstance(place.holder, ListOfUnknownLength):
                found.append((place, merge_tails(merging, place, tails, self._where)))
                continue
            try:
                is_own = type(place.holder) is CellType and is_ours(place.name)
                content = merging.merge_content(place.name, t, f, is_own)
            except MergeConflict as error:
                if tails is not None or isinstance(place.holder, (dict, set)):
                    error.makers = find_makers(place.holder, self._frame)
                if isinstance(place.holder, ResultCache):
                    error.instead = CALL_BEFORE
                raise
            for (k, a), (_, b) in zip(t, f, strict=True):
                if a is not b and not is_same_number(a, b):
                    refuse_numbers(place, k, (a, b), self._where)
            found.append((place, content))
        return found

    def _plan_attributes(
        self, merging: Merging, place: ChangedPlace, t: dict[str, Any], f: dict[str, Any]
    ) -> Callable[[Sequence[Any]], Content]:
        """What is put on a tensor: what cannot be one is refused where it is asked for; and
        here, if the next call would find it."""
        for key in {**t, **f} if place.is_lasting else ():
            if not is_same_number(t.get(key, MISSING), f.get(key, MISSING)):
                raise CaptureError(
                    f"data decide what is put on a tensor that is there before the call, {key}.\n"
                    f"  at {self._where}\n"
                    "  why: the next call of the original finds it, and a program keeps tensors "
                    "alone\n"
                    '  instead: keep it in a buffer, self.register_buffer("n", torch.zeros(())); '
                    "or in a variable beside the tensor"
                )
        builds, differing = merging.merge_attributes(place.name, t, f)

        def build(results: Sequence[Any]) -> Content:
            joined = (self._frame.f_code, self._site)
            self._tracer.sharing.attributes.note(place.holder.held, (), differing, joined)
            return [(key, each(results)) for key, each in builds.items()]

        return build

    def _append(self, merging: Merging) -> list[Any]:
        """Append the operator; its results are in the places of the pairs."""
        true, false = merging.true, merging.false
        roots = list(dict.fromkeys([*true.scope.writes, *false.scope.writes]))
        written = [
            (true.scope.writes.get(r, r.value), false.scope.writes.get(r, r.value)) for r in roots
        ]
        types = [*merging.types, *[merging.types_of.merge_written(a, b) for a, b in written]]
        pairs = [*merging.pairs, *written]
        if not (pairs or _has_effects(true.scope) or _has_effects(false.scope)):
            return []
        values = [a for a, _ in pairs], [b for _, b in pairs]
        with pass_gradient_through(self._tracer, (*values[0], *values[1])):
            leaves = append_cond(
                self._tracer, self._condition, [], (true.scope, false.scope), values, types
            )
        count, known = len(merging.pairs), {*self._tracer.sharing.maybe_shared}
        for root, new in zip(roots, leaves[count:], strict=True):
            self._tracer.replace_value(root, self._tracer.value_of(new))
        for i, outcome in enumerate((true, false)):
            logged = [pair[i] for pair in merging.logged]
            kept = [(r, build(leaves)) for r, side, build in merging.kept if side is outcome]
            recorded = outcome.record(logged)
            recorded.note_ways(leaves[:count])
            recorded.roots.extend(root for root, _ in kept)
            recorded.note_sharing([*leaves[:count], *[result for _, result in kept]])
        self._note_layouts(merging.pairs, leaves)
        joined = (self._frame.f_code, self._site)
        made = [each.tracked.root for each in leaves[:count] if type(each) is FakeTensor]
        for root in (*(self._tracer.sharing.maybe_shared.keys() - known), *made):
            self._tracer.sharing.merge_site_of[root] = joined
        for each in leaves[:count]:
            value = unwrap(each) if isinstance(each, torch.SymInt) else None
            if isinstance(value, Expr):
                value.env.merged.update(dict.fromkeys(value.symbols(), joined))
        return leaves[:count]

    def _note_layouts(self, pairs: Sequence[tuple[Any, Any]], leaves: Sequence[Any]) -> None:
        """Results whose layout, in eager, is that of one side or the other."""
        for pair, leaf in zip(pairs, leaves, strict=False):
            types = [each.type for each in pair] if isinstance(leaf, FakeTensor) else []
            has_strides = bool(types) and find_order(*types) is None
            has_strides = has_strides and not are_equal(types[0].stride, types[1].stride)
            if has_strides or any(t.offset != 0 for t in types):
                value, what = self._tracer.value_of(leaf), f"`{self._where.text}`"
                layouts = self._tracer.layout_assumptions
                layouts.note_decided_by_data(value, what, has_strides)


def _has_effects(scope: Scope) -> bool:
    """Does a region check something, or do something beside computing?"""
    return bool(scope.guards or scope.region.steps)
