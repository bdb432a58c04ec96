"""A loop whose condition depends on data: its body is recorded until it is known what an iteration
hands to the next one, and becomes a `while_loop`.

A first run of the body tells what it changes; the next one is given numbers and tensors of which
only the type is known, in these places. What changes beyond tensors and numbers is refused. Must
not know how the function is written that runs it (`rewriting/regions.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import Any, NoReturn

import torch
import torch.utils._pytree as pytree

from lostwax.capture.control.cond import find_facts, read_predicate
from lostwax.capture.control.loops import Carried, Loop, Slot
from lostwax.capture.control.rows import append_scan
from lostwax.capture.control.scope import RecordedFunction, Scope
from lostwax.capture.control.selections import Turns, take_selections
from lostwax.capture.control.while_loop import append_while
from lostwax.capture.flow import open_regions
from lostwax.capture.flow.choice import goes_on, let_go, read_variables
from lostwax.capture.flow.items import OPEN
from lostwax.capture.flow.keys.keyed import ask_for_open
from lostwax.capture.flow.lists.growing import ListOfUnknownLength
from lostwax.capture.flow.lists.growth import (
    Growth,
    Store,
    find_makers,
    is_longer,
    refuse_held,
    tell_changed,
)
from lostwax.capture.flow.lists.replaced import ReplacedList, is_replaced
from lostwax.capture.flow.lists.spans import Appended, PendingElements, UnknownElements
from lostwax.capture.flow.merging import (
    NOTHING,
    Logged,
    Outcome,
    Path,
    advise_plain,
    count_truth,
    is_same_number,
    join_attributes,
    look_at,
    refuse_numbers,
    show_value,
)
from lostwax.capture.flow.numbers import DTYPES, FLOATS, INTEGERS, find_kind, number_to_tensor
from lostwax.capture.flow.open_regions import close_regions, count_open, open_region
from lostwax.capture.flow.options.filling import fill_like
from lostwax.capture.flow.options.in_loops import OptionsInLoop
from lostwax.capture.flow.options.kinds import ATOMS, are_alike, count_options
from lostwax.capture.flow.options.turns import Parts
from lostwax.capture.flow.retry import ListGrows, OptionsAsked
from lostwax.capture.flow.rewriting.appends import APPENDS, GUARDED, READS, REPLACES
from lostwax.capture.flow.rewriting.sites import LoopSite
from lostwax.capture.flow.truths import KEPT, UNSET, find_known, find_undecided, is_of_data
from lostwax.capture.heap.holders import MISSING, items
from lostwax.capture.heap.moment import ChangedPlace, Changes, NotRestorableError
from lostwax.capture.python.one_of import OneOf
from lostwax.capture.trace.gradient_steps import pass_gradient_through
from lostwax.capture.trace.tracer import Tracer
from lostwax.errors import CaptureError
from lostwax.fake.asked_tensor import is_of_the_class
from lostwax.fake.symbolic.node import unwrap, wrap
from lostwax.fake.tensor import FakeTensor
from lostwax.ir.trace.views import Root
from lostwax.location import locate_line
from lostwax.sym import BoolExpr, known

_Found = dict[Path, tuple[str, Any, Any]]
"""What the body has changed, by path: its name, as it was, as it is."""
MOST_TRIALS = 1000
"""So often is a body recorded at most, until it hands on nothing new."""


class WhileRecorder:
    """One loop, while it runs."""

    def __init__(
        self,
        tracer: Tracer | None,
        frame: FrameType,
        site: LoopSite,
        names: Sequence[str],
        inside: Sequence[str],
        after: Sequence[str],
    ) -> None:
        """`names` are the variables that the loop may set; `inside` and `after` those of them that
        the next iteration reads, or what follows the loop."""
        self.is_symbolic = False
        self._tracer: Any = tracer
        self._frame, self._site = frame, site
        self._names, self._inside, self._after = names, inside, after
        self._where = locate_line(frame, site.line)
        self._given: dict[str, Any] = {}
        self._around = count_open()
        self._is_probe = True
        self._trials = 0
        self._carried: dict[Path, Carried] = {}
        self._places: dict[Any, ChangedPlace] = {}
        self._tensors: dict[Path, tuple[list[Any], set[str]]] = {}
        """Which tensors those that are handed on may be, and the names of what is on these."""
        self._growths: dict[Any, Growth] = {}
        self._is_left = False
        """Do data decide whether it is left before its end?"""
        self._apart = OptionsInLoop(OptionsAsked)
        """The variables that are one thing or another."""
        self._turns: Slot | None = None
        """Of a `scan`: the numbers of the turns."""
        self._made: list[Any] = []
        self._parts = Parts()
        """The containers that stand in the body for those of the turn before."""

    # ------------------------------------------------------------------------- called by the code

    def give(self, name: str) -> Any:
        return self._given.get(name, KEPT)

    def begin(self) -> None:
        """An iteration begins."""
        if self.is_symbolic:
            self._entry = read_variables(self._frame)
            self._heap = look_at(self._tracer, self._entry)
            self._open("the condition")
        elif self._tracer is not None:
            self._asked_at = len(self._tracer.region.steps)

    def is_plain(self, test: Any) -> bool:
        """Is it known whether the loop goes on?"""
        self._test = test
        if self._tracer is None:
            return True
        return not (self.is_symbolic or self._is_scan() or find_undecided(test) is not None)

    def _is_scan(self) -> bool:
        return self._site.grows and not self._is_left and isinstance(self._find_items(), OPEN)

    def _find_items(self) -> Any:
        """What a `for` goes over."""
        return self._frame.f_locals[self._site.items] if self._site.items else None

    def go_on(self) -> bool:
        """The condition was asked, and the body is to run."""
        test = self._read_test()
        if self.is_symbolic:
            self._condition = self._close_condition(test)
        else:
            self.is_symbolic = True
            open_regions.forget_effects(self._tracer, self._asked_at)  # it is asked again, inside
            self._first_test = find_undecided(self._test)
            if self._first_test is None and find_known(self._test) is True:
                self._first_test = True
            self._entry = self._before = read_variables(self._frame)
            self._heap = look_at(self._tracer, self._entry)
            self._loop = Loop(self._tracer, f"`{self._where.text}`", is_pythons=True)
            self._oldest = len(self._tracer.shape_env.symbols)
        self._open("the body", [*find_facts(test)[0], *self._find_limits()])
        return True

    def end(self) -> bool:
        """The body has run. Returns whether all is done."""
        outcome = self._close_body()
        is_changed, known = self._open_sizes(), len(self._growths)
        apart = len(self._apart.names)
        for path in self._carried:
            is_changed |= self._note_tensors(path, outcome, self._find_leaf(path, outcome))
        new = self._find_changed(outcome)
        roots = self._loop.find_new(self._body)
        is_changed |= any(each.is_changed for each in self._growths.values())
        is_changed |= len(self._apart.names) > apart
        if not (new or roots or is_changed or self._is_probe or len(self._growths) > known):
            self._put_in(*self._append(), is_over=True)
            let_go(self)
            return True
        self._is_probe = False
        self._trials += 1
        if self._trials > MOST_TRIALS:
            names = ", ".join(name for name, _, _ in new.values()) or "a tensor that it writes to"
            raise self._refuse(f"each turn hands on something else: {names}")
        self._loop.rest += roots
        for path, (name, before, after) in new.items():
            self._carried[path] = self._hand_on(name, before, after)
            self._note_tensors(path, outcome, before, after)
            if self._carried[path].replaces and (path[0] != "variable" or path[1] in self._after):
                self._demand_tensor(name, before)
        if self._is_scan() and self._turns is None:
            self._numbers = self._list_turns()
            self._turns = self._loop.take_rows(self._numbers)
        self._put_in([each.slot.object for each in self._carried.values()])
        return False

    def _note_tensors(self, path: Path, outcome: Outcome, *tensors: Any) -> bool:
        """Note which tensors are handed on at a path. Returns whether there is more on them than
        was on those before."""
        others, names = self._tensors.setdefault(path, ([], set()))
        known = len(names)
        for each in tensors:
            if isinstance(each, torch.Tensor):
                others.append(each)
                names |= outcome.list_names(each)
        for name in names:
            if is_of_the_class(name):  # which would be found in its place
                raise self._refuse(f"{name} is put on a tensor")
        return len(names) > known

    def _open_sizes(self) -> bool:
        """Are there tensors that the body hands on in other sizes? Then these are open."""
        is_changed = self._loop.open_sizes()
        for (path, each), slot in zip([*self._carried.items()], self._loop.carried, strict=True):
            self._carried[path] = each._replace(slot=slot)
        return is_changed

    def fail(self, error: BaseException) -> None:
        """The condition or the body has raised."""
        close_regions(self._around)
        if goes_on(self._frame, error):
            raise error
        raise CaptureError(
            f"a loop on data raises {type(error).__name__}: {error}\n  at {self._where}\n"
            "  why: whether it comes to that is known only when the program runs\n"
            "  instead: leave the loop (break), and raise after it; or torch._check(condition)"
        ) from error

    # ---------------------------------------------------------------------------------- recording

    def _open(self, name: str, facts: Sequence[BoolExpr] = ()) -> None:
        self._scope = Scope(self._tracer, f"{name} of `{self._where.text}`")
        self._around = count_open()
        self._recording = open_region(self._scope, facts)
        if not self._is_probe:
            self._loop.enter(self._scope)

    def _read_test(self) -> Any:
        predicate = find_undecided(self._test)
        if predicate is not None:
            return read_predicate(self._tracer, predicate)
        return unwrap(self._test) if isinstance(self._test, torch.SymBool) else bool(self._test)

    def _close_condition(self, test: Any) -> RecordedFunction:
        scope, variables = self._scope, read_variables(self._frame)
        with self._recording:
            scope.collect_writes()
            changed = [
                name
                for name in self._inside
                if variables.get(name, MISSING) is not self._entry.get(name, MISSING)
            ]
            handed = [slot.inside for slot in self._loop.rest]
            written = [v for v in scope.writes.values() if not any(v is each for each in handed)]
            if self._take_changes("the condition") or changed or written:
                raise CaptureError(
                    f"the condition of a loop on data changes something.\n  at {self._where}\n"
                    "  why: it is asked once more than the body runs\n"
                    "  instead: compute it in the body, and ask for what was computed"
                )
        return RecordedFunction(scope, [test], _LEAF, [], [])

    def _close_body(self) -> Outcome:
        scope, variables = self._scope, read_variables(self._frame)
        with self._recording:
            scope.collect_writes()
            if not self._is_probe:
                self._loop.check_unwritten(f"the body of `{self._where.text}`")
            for name in self._apart.names:
                refuse = partial(self._refuse_change, name, self._entry[name], variables[name])
                found = self._apart.sort(name, variables[name], self._entry[name], refuse)
                variables[name] = found
            outcome = Outcome("the body", scope, variables, self._take_changes("the body"))
            outcome.log([variables.get(name) for name in (*self._inside, *self._after)])
            for place in outcome.changes.values():
                outcome.log([value for _, value in place.after])
            rows = [row for key in self._growths for row in self._read_rows(key, outcome)]
            leaves, roots = [], []
            for path, each in self._carried.items():
                value, root = self._log(each, outcome, self._find_leaf(path, outcome))
                leaves.append(value)
                roots.append(root)
            self._loop.check_carried(leaves, [each.name for each in self._carried.values()])
            leaves += [row.value for row in rows]
            roots += [row.root for row in rows]
            self._body = RecordedFunction(scope, leaves, _LEAF, [], roots)
        return outcome

    def _log(self, each: Carried, outcome: Outcome, leaf: Any) -> tuple[Any, Any]:
        """What the body leaves in the place of something that is handed on."""
        t = each.slot.type
        if each.held and find_kind(leaf) is not each.held:
            was = "a float" if each.held is FLOATS else f"a {each.held[0].__name__}"
            raise self._refuse(f"{each.name} is {was} at first, and {show_value(leaf)} later")
        if t is not None and type(leaf) in (bool, int, *FLOATS, *each.held):
            leaf = number_to_tensor(leaf, t.dtype, t.device)
            outcome.log([leaf])
        if isinstance(leaf, torch.Tensor):
            found = outcome.find(leaf)
            return found.value, found.root
        number = unwrap(leaf)
        if each.is_truth and isinstance(number, (bool, BoolExpr)):
            number = count_truth(self._tracer, number)
        return number, None

    def _take_changes(self, name: str) -> Changes:
        try:
            return self._heap.take_changes(
                self._scope.as_region(), self._entry, read_variables(self._frame)
            )
        except NotRestorableError as error:
            raise self._refuse(f"{name} changes {error.what}, which cannot be undone") from None

    # ------------------------------------------------------------------------- what is handed on

    def _find_changed(self, outcome: Outcome) -> _Found:
        """What the body has changed, and is not handed on yet: its name, as it was, as it is."""
        found: _Found = {}
        for name in self._names:
            before, after = self._entry.get(name, MISSING), outcome.variables.get(name, MISSING)
            if after is MISSING or not (name in self._inside or name in self._after):
                continue
            if self._is_scan() and name == self._site.at:
                continue
            path = ("variable", name)
            if before is MISSING:
                if name in self._after:
                    self._demand_once(
                        f"{name} is read after the loop, which sets it, and the loop does not run "
                        "once",
                        f"set {name} before the loop",
                    )
                self._parts.begin(path, name, after, found)
            elif name in self._apart.names:
                found.update(self._apart.list_numbers(name, before, after))
            elif not self._keep_apart(name, before, after, outcome):
                self._compare(path, name, before, after, found)
        for key, place in outcome.changes.items():
            if any(place.holder is each for each in self._made):
                raise self._refuse_holder(place)
            self._places.setdefault(key, place)
            known = self._growths.get(key)
            if isinstance(known, ReplacedList) or (is_replaced(place) and not is_longer(place)):
                self._replace_list(key, place)
                continue
            if is_longer(place):
                self._grow(key, place, outcome)
                continue
            pairs = self._pair(place.name, place.before, place.after, place.holder)
            for k, before, after in pairs:
                if before is not after and not is_same_number(before, after):
                    refuse_numbers(place, k, (before, after), self._where)
                self._compare(("place", key, k), f"{place.name}[{k!r}]", before, after, found)
        for key, growth in self._growths.items():
            is_read = growth.is_scan and growth.reads_last
            if is_read and ("last", key) not in self._carried:
                first, (_, last) = growth.find_first(), outcome.changes[key].after[-1]
                found["last", key] = (f"{growth.name}[-1]", first, last)
        if self._is_scan() and ("variable", self._site.stop) in found:
            self._leave_early()
        for key, growth in self._growths.items():
            if growth.is_changed:
                self._drop_stores(key)
            for store, first in growth.list_starts().items():
                found["store", key, store] = (growth.name, first, first)
        return {path: each for path, each in found.items() if path not in self._carried}

    # ----------------------------------------------------------------- one thing or another

    def _keep_apart(self, name: str, before: Any, after: Any, outcome: Outcome) -> bool:
        """Is a variable one thing at first, and may be another later? Then iterations hand on which
        it is, and what it would be."""
        refuse = partial(self._refuse_change, name, before, after)
        if name not in self._site.apart:
            if count := count_options(before, after):
                raise OptionsAsked([(self._frame.f_code, {name: count})], refuse)
            return False
        if not self._apart.add(name, self._before[name], before, after):
            return False
        which = self._loop.pass_to_next_iteration(*self._apart.find_start(name))
        self._carried["variable", name, "index"] = Carried(name, which)
        for path, first, like in self._apart.list_starts(name, self._heap.knows, refuse):
            self._carried[path] = self._hand_on(name, first, like)
            self._note_tensors(path, outcome, first, like)
        return True

    # ------------------------------------------------------------------------- lists get longer

    def _grow(self, key: Any, place: ChangedPlace, outcome: Outcome) -> None:
        """The body appends to a list."""
        if key in self._growths:
            return
        if not (self._site.grows and isinstance(place.holder, ListOfUnknownLength)):
            self._ask_for_list(place, APPENDS)
        is_scan = self._is_scan() and not self._site.keeps
        self._growths[key] = Growth(self._tracer, place, self._where, is_scan)

    def _replace_list(self, key: Any, place: ChangedPlace) -> None:
        """The body changes a list otherwise."""
        if isinstance(self._growths.get(key), ReplacedList):
            return
        if not isinstance(place.holder, ListOfUnknownLength):
            self._ask_for_list(place, REPLACES)
        if key in self._growths:
            self._drop_stores(key)
        first = self._places[key]._replace(after=place.after)
        self._growths[key] = ReplacedList(self._tracer, first, self._where, True)

    def _ask_for_list(self, place: ChangedPlace, kind: str) -> NoReturn:
        at = (self._site.line, self._site.column, kind)
        makers = find_makers(place.holder, self._frame)
        raise ListGrows(self._frame.f_code, at, makers, refuse_held(place, self._where))

    def _ask_whole(self, refusal: CaptureError) -> NoReturn:
        """The body reads what earlier turns have appended."""
        at = (self._site.line, self._site.column, READS)
        raise ListGrows(self._frame.f_code, at, [], refusal)

    def _leave_early(self) -> None:
        """It is no `scan`: how many turns it has is known only when it has run."""
        self._is_left, self._turns = True, None
        self._loop.slices.clear()
        for growth in self._growths.values():
            growth.is_scan, growth.is_changed = False, True

    def _drop_stores(self, key: Any) -> None:
        """What a list has is to be kept otherwise."""
        for i, path in reversed([*enumerate(self._carried)]):
            if path[0] in ("store", "last") and path[1] == key:
                del self._carried[path], self._loop.carried[i]

    def _list_turns(self) -> torch.Tensor:
        """The numbers by which the turns of a `scan` are known."""
        items = self._find_items()
        stop, holds = items.stop, items.more(items.start)
        if self._site.is_guarded:
            self._check_runs(holds, _RUNS)
        elif is_of_data(holds):  # it is left before its end, or started over
            limit: Any = torch.sym_max if items.step > 0 else torch.sym_min
            stop = limit(items.start, stop)
        return torch.arange(items.start, stop, items.step)

    def _find_limits(self) -> list[BoolExpr]:
        """What is known of the number of a turn."""
        at = self._given.get(self._site.at) if self._turns is not None else None
        if at is None:
            return []
        items = self._find_items()
        first = items.start <= at if items.step > 0 else items.start >= at
        return find_facts(unwrap(first))[0]

    def _read_rows(self, key: Any, outcome: Outcome) -> list[Logged]:
        growth, place = self._growths[key], outcome.changes.get(key)
        stores = self._find_stores(key, [each.slot.object for each in self._carried.values()])
        new = self._tracer.shape_env.symbols[self._oldest :]
        growth.read(place, outcome, stores, new)
        return growth.rows

    def _find_stores(self, key: Any, objects: Sequence[Any]) -> dict[Store, Any]:
        """What is in the stores of a list."""
        pairs = zip(self._carried, objects, strict=True)
        own = {path[2]: found for path, found in pairs if path[:2] == ("store", key)}
        return {store: own[store] for store in self._growths[key].find_stores() if store in own}

    def _put_lists(self, objects: Sequence[Any], rows: Sequence[Any], is_over: bool) -> None:
        """Let lists have what stands for what is appended."""
        left = list(rows)
        for key, growth in self._growths.items():
            stores = self._find_stores(key, objects)
            if is_over:
                growth.put_rows(stores, left[: growth.count])
                del left[: growth.count]
            else:
                paths = dict(zip(self._carried, objects, strict=True))
                handed = paths.get(("last", key))
                count = partial(self._count_appended, growth)
                last = partial(self._read_last, growth, handed)
                growth.put_pending(stores, partial(PendingElements, count, last, self._ask_whole))

    def _count_appended(self, growth: Growth) -> Any:
        items = self._find_items()
        return growth.count_appended((self._at - items.start) // items.step)

    def _read_last(self, growth: Growth, handed: Any) -> Any:
        """What the turn before has appended last; in the first turn what was there before."""
        found = growth.read_first(partial(self._count_appended, growth))
        return found if handed is None else handed

    def _compare(self, path: Path, name: str, before: Any, after: Any, found: _Found) -> None:
        if before is after or path in self._carried or path[1] in self._apart.names:
            return
        if all(isinstance(x, torch.Tensor) or find_kind(x) for x in (before, after)):
            if not is_same_number(before, after):
                found[path] = (name, before, after)
            return
        if before is NOTHING:
            self._parts.begin(path, name, after, found)
            return
        if type(before) is not type(after) or isinstance(before, ATOMS) or callable(before):
            if not callable(before) and are_alike(before, after):
                return
            self._take_first_turn_apart(partial(self._refuse_change, name, before, after))
            raise self._refuse_change(name, before, after)
        if isinstance(before, UnknownElements):
            raise self._refuse(*tell_changed(name))
        if type(before) not in (list, tuple, dict) and not hasattr(before, "_fields"):
            raise self._refuse(f"{name} is another object of class {type(before).__name__} later")
        for k, a, b in self._pair(name, items(before), items(after)):
            self._compare((*path, k), f"{name}[{k!r}]", a, b, found)

    def _pair(self, name: str, before: Any, after: Any, of: Any = None) -> list[tuple[Any, ...]]:
        if [k for k, _ in before] == [k for k, _ in after]:
            return [(k, a, b) for (k, a), (_, b) in zip(before, after, strict=True)]
        keys = [k for k in dict(before).keys() ^ dict(after).keys() if isinstance(k, str)]
        what = f"{name} has {len(before)} elements at first, and {len(after)} later"
        refusal = self._refuse(f"{keys[0]} of {name} is set or deleted" if keys else what)
        ask_for_open(of, self._frame, refusal)
        raise refusal

    def _demand_once(self, why: str, instead: str) -> None:
        """What is read after the loop is set in it alone: the body has to run."""
        self._take_first_turn_apart(partial(self._refuse, why, instead))
        if self._is_scan() or self._first_test is True:
            return
        if self._first_test is None:
            raise self._refuse(why, instead)
        self._check_runs(self._first_test, why)

    def _take_first_turn_apart(self, refuse: Callable[[], CaptureError]) -> None:
        """What is there before the loop, or after it if it does not run, is of another kind: where
        data decide whether it runs, let it stand in an `if` that asks, and have a first turn."""
        holds = self._first_test
        if not self._is_scan() and (isinstance(holds, torch.Tensor) or is_of_data(holds)):
            self._guard(refuse())

    def _guard(self, refusal: CaptureError) -> NoReturn:
        at = (self._site.line, self._site.column, GUARDED)
        raise ListGrows(self._frame.f_code, at, [], refusal)

    def _check_runs(self, holds: Any, why: str) -> None:
        """Let the program check that the body runs."""
        condition = unwrap(holds)
        is_against = condition is False
        if isinstance(condition, BoolExpr):
            is_against = condition.hint is False and self._tracer.shape_env.facts.fits_example
        if is_against:
            raise self._refuse(f"{why}; so it is in the example")
        torch._check(holds, lambda: why)

    def _demand_tensor(self, name: str, before: Any) -> None:
        """A number becomes a tensor in the loop, and is read after it: eager still has the number
        there, if a size is such that the body does not run."""
        why = (
            f"{name} is {before!r} before the loop and a tensor after it, and the loop does not "
            f"run once: begin with a tensor, {name} = torch.zeros(...)"
        )
        env, holds = self._tracer.shape_env, self._first_test
        condition: Any = unwrap(holds) if isinstance(holds, torch.SymBool) else True
        if known(condition) is None and condition.hint is not None:
            if condition.hint is False and env.facts.fits_example:
                raise self._refuse(f"{why}; so it is in the example")
            env.assume(condition, "branch")
            env.explain(why)

    def _hand_on(self, name: str, before: Any, after: Any) -> Carried:
        """Let iterations hand on what was one thing at first, and is another after the body."""
        is_tensor = isinstance(after, torch.Tensor)
        if before is NOTHING:
            before = fill_like(self._tracer, after, lambda _: False)
        kind = find_kind(before) if self._is_scan() and not is_tensor else ()
        if kind:
            if kind is not find_kind(after):
                raise self._refuse_change(name, before, after)
            held = number_to_tensor(before, DTYPES[kind])
            return Carried(name, self._loop.pass_to_next_iteration(held), held=kind)
        if is_tensor and type(before) in (bool, int, float):
            self._take_first_turn_apart(partial(self._refuse_change, name, before, after))
            before = number_to_tensor(before, after.dtype, after.device)
            return Carried(name, self._loop.pass_to_next_iteration(before), replaces=True)
        if isinstance(before, (bool, torch.SymBool)):
            number = count_truth(self._tracer, unwrap(before))
            if not isinstance(after, (bool, torch.SymBool)):
                raise self._refuse_change(name, before, after)
            return Carried(
                name, self._loop.pass_to_next_iteration(wrap(number), (0, 1)), is_truth=True
            )
        if find_kind(before) is find_kind(after) is FLOATS:
            before = number_to_tensor(before)
            return Carried(name, self._loop.pass_to_next_iteration(before), held=FLOATS)
        if isinstance(before, torch.Tensor) or type(before) in INTEGERS:
            return Carried(name, self._loop.pass_to_next_iteration(before))
        raise self._refuse_change(name, before, after)

    def _find_leaf(self, path: Path, outcome: Outcome) -> Any:
        kind, key, *rest = path
        if kind == "store":
            return self._growths[key].find_after(rest[0])
        if kind == "last":
            last = outcome.changes[key].after[-1][1]
            return last.take(-1) if isinstance(last, Appended) else last
        if kind == "variable":
            value = outcome.variables[key]
        else:
            place = outcome.changes.get(key)
            if place is None:
                return self._carried[path].show(self._carried[path].slot.object)
            value = dict(place.after)[rest.pop(0)]
        for each in rest:
            if type(value) is OneOf:
                value = value._lw_index if each == "index" else value._lw_options[each]
            else:
                value = value[each]
        return value

    def _put_in(
        self, objects: Sequence[Any], rows: Sequence[Any] = (), is_over: bool = False
    ) -> None:
        """Let variables and places have these in the places of what is handed on, and of what is
        appended."""
        shown = {}
        for (path, each), found in zip(self._carried.items(), objects, strict=True):
            shown[path] = each.show(found)
            if each.replaces and not is_over:
                self._tracer.regions.numbers_at_first[each.slot.inside] = each.name
            if isinstance(found, FakeTensor):
                join_attributes(self._tracer, found, *self._tensors[path])
        self._given = {}
        for name in self._names:
            if name in self._apart.names:
                refuse = partial(self._refuse, f"{name} is one thing or another")
                self._given[name] = self._apart.make(name, shown, refuse)
                continue
            value = self._parts.put(
                ("variable", name), self._before.get(name, MISSING), shown, self._made
            )
            self._given[name] = UNSET if value is MISSING else value
        if self._turns is not None and not is_over:
            self._at = self._given[self._site.at] = self._turns.object.item()
        for key, place in self._places.items():
            if key not in self._growths:
                written = [
                    (k, self._parts.put(("place", key, k), v, shown, self._made))
                    for k, v in place.before
                ]
                place.write(written)
        self._put_lists(objects, rows, is_over)

    def _refuse_holder(self, place: ChangedPlace) -> CaptureError:
        return self._refuse(
            f"{place.name} is changed, and is another {type(place.holder).__name__} in the next "
            "turn",
            "make the other one before the loop, or before it is changed",
        )

    def _append(self) -> tuple[list[Any], list[Any]]:
        loop, body = self._loop, self._body
        inside = [slot.inside for slot in loop.inputs]
        values = [*[s.given for s in loop.inputs], *body.leaves, *loop.find_values_after(body)]
        with pass_gradient_through(self._tracer, values, inside):
            return self._append_loop()

    def _append_loop(self) -> tuple[list[Any], list[Any]]:
        if self._turns is None:
            results = append_while(self._loop, self._condition, self._body)
            self._loop.note_sharing(self._body, results, self._list_appended(results))
            return results, []
        items, length = self._find_items(), unwrap(self._numbers.shape[0])
        if find_undecided(holds := items.more(items.start)) is not None:
            self._guard(self._refuse(_RUNS))
        self._check_runs(holds, _RUNS)
        turns = Turns(self._turns, unwrap(self._at), unwrap(items.start), items.step, length)
        take_selections(self._loop, self._body, turns)
        results = append_scan(self._loop, self._body, length)
        self._loop.note_sharing(self._body, results, self._list_appended(results))
        count = len(self._carried)
        return results[:count], results[count:]

    def _list_appended(self, results: Sequence[Any]) -> list[tuple[Root, Any]]:
        """Whose memory the elements of lists show, in eager, with what they are in here."""
        pairs = zip(self._carried, results, strict=False)
        stores = [(path[1], result) for path, result in pairs if path[0] == "store"]
        return [(root, found) for key, found in stores for root in self._growths[key].roots]

    def _refuse(self, what: str, instead: str = "") -> CaptureError:
        instead = (
            instead or "let each iteration hand on tensors of one size and dtype, and integers"
        )
        return CaptureError(
            f"in a loop on data {what}.\n  at {self._where}\n"
            f"  why: the body is one graph, for every iteration\n  instead: {instead}"
        )

    def _refuse_change(self, name: str, before: Any, after: Any) -> CaptureError:
        what = f"{name} is {show_value(before)} at first, and {show_value(after)} later"
        return self._refuse(what, advise_plain(before, after))


_RUNS = "a loop that appends to a list does not run once"
_LEAF = pytree.tree_structure(0)
