"""What stops a capture where control flow depends on data, and how the next attempt differs.

Nothing is changed until a capture meets such a question. The next attempt has a plan for the
function that asked: hooks in it, or an `if` whose sides go on to its end, or a list to which a loop
appends (`rewriting/recompile.py`). Must not know how a capture works.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any

from lostwax.capture.attempt import Attempt, Retry
from lostwax.capture.flow.merging import Makers, MergeConflict
from lostwax.capture.flow.rewriting.exits import NotRewritable
from lostwax.capture.flow.rewriting.names import is_of_hooks
from lostwax.capture.flow.rewriting.picks import Pick, Place
from lostwax.capture.flow.rewriting.recompile import (
    FunctionKey,
    Plan,
    Plans,
    find_obstacle,
    is_lambda,
    key_of,
    picks_element,
    stores_element,
)
from lostwax.capture.python.one_of import Holders
from lostwax.errors import (
    CaptureError,
    ConstraintViolationError,
    ContradictionError,
    DataDependentError,
)
from lostwax.location import Location, can_have_hooks, find_tracebacks, is_user_code


class SizeBranch(Retry):
    """Python asks about a declared size, and both ways are wanted."""

    def __init__(self, code: CodeType, line: int) -> None:
        self.code, self.line = code, line
        super().__init__("a branch on a declared size")

    def amend(self, attempt: Attempt) -> Attempt:
        plans, key = attempt.plans, key_of(self.code)
        if key not in plans and find_obstacle(key, Plan()) is None:
            return attempt._replace(plans={**plans, key: Plan()})
        picking = _pick(plans, self)
        if picking is not None:
            return attempt._replace(plans=picking)
        assert attempt.settled is not None
        return attempt._replace(settled=attempt.settled.settle((self.code.co_filename, self.line)))


class PickNeedsMoreElements(Retry):
    """Data pick one of more elements than the code is written for."""

    def __init__(self, frame: FrameType, pick: Pick) -> None:
        self.code, self.pick = frame.f_code, pick
        super().__init__(pick)

    def amend(self, attempt: Attempt) -> Attempt:
        return attempt._replace(plans=_set_pick(attempt.plans, key_of(self.code), self.pick))


class BranchesDiffer(Retry):
    """The sides of an `if` do not agree where it ends: they have to go on to the end of its
    function."""

    def __init__(
        self,
        code: CodeType,
        at: tuple[int, int],
        where: Location,
        why: MergeConflict,
        variable: str | None = None,
    ) -> None:
        """`variable`: in which they do not agree, if it is one."""
        self.code, self.at, self.where, self.why = code, at, where, why
        self.variable = variable
        super().__init__(str(why))

    def amend(self, attempt: Attempt) -> Attempt | None:
        plans, key = attempt.plans, key_of(self.code)
        if key not in plans:  # an expression of one that has hooks
            self.refusal = self.why.refuse(self.where)
            return _fall_back(attempt, self.refusal)
        before = plans[key].extended
        extended = plans[key]._replace(extended=before | {self.at})
        obstacle = find_obstacle(key, extended)
        if self.at not in before and obstacle is None:
            return attempt._replace(plans={**plans, key: extended})
        lists = _make_lists(plans, self.why.makers)
        if lists != plans:
            shortened = lists[key]._replace(extended=before - {self.at})
            return attempt._replace(plans={**lists, key: shortened})
        if self.variable is not None:
            together = plans[key]._replace(extended=before - {self.at})
            found = set_apart(
                attempt._replace(plans={**plans, key: together}), [(self.code, {self.variable: 2})]
            )
            if found is not None:
                return found
        self.refusal = self.why.refuse(self.where)
        if obstacle is not None:
            self.refusal.add_note(f"  note: the sides do not go on apart to its end: {obstacle}")
        return _fall_back(attempt, self.refusal)


def set_apart(attempt: Attempt, holders: Holders, place: Place | None = None) -> Attempt | None:
    """Let variables of the innermost function that can be one thing or another, or what calls in it
    return, if it names none (or what the call at this place does); None if that is not new."""
    for code, names in holders if attempt.keeps_options else ():
        key = key_of(code)
        plan = attempt.plans.get(key, Plan())
        before = dict(plan.apart)
        counts = {
            name: max(n, before.get(name, 0)) for name, n in names.items() if not is_of_hooks(name)
        }
        receives = plan.receives or not names
        new = plan._replace(apart=tuple(sorted({**before, **counts}.items())), receives=receives)
        if place is not None:
            new = new._replace(named_calls=plan.named_calls | {place})
        if new != plan and can_have_hooks(code) and find_obstacle(key, new) is None:
            return attempt._replace(plans={**attempt.plans, key: new})
    return None


class LoopEnds(Retry):
    """A loop goes over what has an end that data decide: it has to ask for that."""

    def __init__(self, code: CodeType, place: Any, refusal: CaptureError) -> None:
        self.code, self.place, self.refusal = code, place, refusal
        super().__init__("an end that data decide")

    def amend(self, attempt: Attempt) -> Attempt | None:
        key, plans = key_of(self.code), attempt.plans
        ends = plans[key]._replace(ends=plans[key].ends | {self.place})
        if ends == plans[key] or find_obstacle(key, ends) is not None:
            return _fall_back(attempt, self.refusal)
        return attempt._replace(plans={**plans, key: ends})


class LoopGives(Retry):
    """Loops over generators that have to be written out."""

    def __init__(
        self, loops: Sequence[tuple[CodeType, Place, CodeType]], refusal: CaptureError
    ) -> None:
        """`loops`: the function of each, where in that it stands, and the generator."""
        self.loops, self.refusal = loops, refusal
        super().__init__("a generator that is written out")

    def amend(self, attempt: Attempt) -> Attempt | None:
        found = {**attempt.plans}

        def change(code: CodeType, **changed: Any) -> None:
            found[key_of(code)] = found.get(key_of(code), Plan())._replace(**changed)

        for code, place, generator in self.loops:
            if code.co_name not in ITEMS and key_of(code) not in found:
                change(code)  # it is not known yet what goes over it
                break
            if code.co_name not in ITEMS:
                change(code, through=found[key_of(code)].through | {place})
            if generator.co_name not in ITEMS:
                change(generator, gives=True)
        codes = [each for code, _, generator in self.loops for each in (code, generator)]
        obstacle = _find_new_obstacle(attempt.plans, found)
        if found == attempt.plans or obstacle or not all(map(can_have_hooks, codes)):
            if obstacle is not None:
                self.refusal.add_note(f"  note: the generator is not written out: {obstacle}")
            return _fall_back(attempt, self.refusal)
        return attempt._replace(plans=found)


def _find_new_obstacle(before: Plans, plans: Plans) -> NotRewritable | None:
    """Why a function cannot be changed so, of those that were not before."""
    new = {key: plan for key, plan in plans.items() if plan != before.get(key)}
    return next(filter(None, itertools.starmap(find_obstacle, new.items())), None)


class OptionsAsked(Retry):
    """What a variable is has to be known, and data decide it."""

    def __init__(
        self, holders: Holders, refuse: Callable[[], CaptureError], place: Any = None
    ) -> None:
        """`place`: where a call stands whose result is to get a variable."""
        self.holders, self._refuse, self._place = holders, refuse, place
        super().__init__("what is in a variable")

    def amend(self, attempt: Attempt) -> Attempt | None:
        found = set_apart(attempt, self.holders, self._place)
        if found is None:
            self.refusal = self._refuse()
        return found


_DEEPEST_RAISES = 8
Calls = Sequence[tuple[CodeType, tuple[Place, int]]]
"""Functions, and where each calls another one, with how many exceptions that may raise."""


class RaiseLeaves(Retry):
    """Data raise an exception that a function around catches: the functions give it back."""

    def __init__(self, raising: Sequence[CodeType], calls: Calls, refusal: CaptureError) -> None:
        self.raising, self.calls, self.refusal = raising, calls, refusal
        super().__init__("an exception that may be caught")

    def amend(self, attempt: Attempt) -> Attempt | None:
        found = {**attempt.plans}
        for code in self.raising:
            plan = found.get(key_of(code), Plan())
            found[key_of(code)] = plan._replace(raises=True)
        for code, call in self.calls:
            plan = found.get(key_of(code), Plan())
            if sum(place == call[0] for place, _ in plan.raising_calls) == _DEEPEST_RAISES:
                self.refusal = _refuse_depth(code, call[0])
                return None
            found[key_of(code)] = plan._replace(raising_calls=plan.raising_calls | {call})
        codes = [*self.raising, *(code for code, _ in self.calls)]
        if found == attempt.plans or not all(map(can_have_hooks, codes)):
            return None
        if _find_new_obstacle(attempt.plans, found) is not None:
            return None
        return attempt._replace(plans=found)


def _refuse_depth(code: CodeType, called: Place) -> CaptureError:
    name = code.co_name
    return CaptureError(
        f"data decide whether {name} raises an exception that is caught further out, and it calls "
        f"itself more than {_DEEPEST_RAISES} times.\n"
        f"  at {Location(code.co_filename, called[0], code.co_qualname)}\n"
        "  why: what the innermost call raises leaves each of the others, and is looked at there\n"
        "  instead: write it as a loop; or return a second value that says whether it failed"
    )


class DictChanges(Retry):
    """Data decide which keys a dict or a set has: it has to be made as one that knows of that."""

    def __init__(self, makers: Makers, refusal: BaseException) -> None:
        self.makers, self.refusal = makers, refusal
        super().__init__("data decide the keys of a dict")

    def amend(self, attempt: Attempt) -> Attempt | None:
        found = _make_lists(attempt.plans, self.makers)
        if found == attempt.plans:
            return _fall_back(attempt, self.refusal)
        return attempt._replace(plans=found)


class ListGrows(Retry):
    """A loop appends to lists that are variables of functions which run: they have to be made as
    such that know of rows."""

    def __init__(
        self, code: CodeType, at: tuple[int, int, str], makers: Makers, refusal: CaptureError
    ) -> None:
        self.code, self.refusal = code, refusal
        self.at = at
        """Where the loop is, and what is known of it (`rewriting/appends.py`)."""
        self.makers = makers
        """The functions that may have made them, with the variables."""
        super().__init__("a loop appends to a list")

    def amend(self, attempt: Attempt) -> Attempt | None:
        key, plans = key_of(self.code), attempt.plans
        growing = plans[key]._replace(growing=plans[key].growing | {self.at})
        found: Plans = {**plans, key: growing}
        found = _make_lists(found, self.makers)
        if found != plans and find_obstacle(key, growing) is None:
            return attempt._replace(plans=found)
        return _fall_back(attempt, self.refusal)


def amend_refused(attempt: Attempt, error: BaseException) -> Attempt | None:
    """The attempt after a refusal: perhaps it was for what only data can answer."""
    if isinstance(error, (DataDependentError, CaptureError)):
        plans = _find_plans(attempt.plans, error)
        if plans is not None:
            return attempt._replace(plans=plans)
    if isinstance(error, (DataDependentError, CaptureError, ContradictionError)):
        other = _fall_back(attempt, error)
        if other is not None:
            return other
    if isinstance(error, ConstraintViolationError):
        for each in dict.fromkeys(attempt.settled.reasons if attempt.settled else ()):
            error.add_note(f"  note: both ways were not kept, for {each}")
    _advise(error)
    error.__cause__ = None  # it says where the question was asked, as the error does
    return None


def _find_plans(plans: Plans, error: BaseException) -> Plans | None:
    """Plans with which a question is not asked any more."""
    key = _find_asking(error)
    if key is not None and key not in plans:
        obstacle = find_obstacle(key, Plan())
        if obstacle is None:
            return {**plans, key: Plan()}
        error.add_note(f"  note: {key[2].partition(' ')[0]} is run as it is: {obstacle}")
    return _pick(plans, error) or _extend_branches(plans, error)


def _extend_branches(plans: Plans, error: BaseException) -> Plans | None:
    """Let the sides of an `if` go on to the end of their function, if what is asked is a number in
    which they join, or which object it is, or if it is written to. None if that is not new."""
    about: Any = getattr(_find_question(error), "about", None)
    known = [] if about is None else [about.env.merged.get(each) for each in about.symbols()]
    for code, site in filter(None, [*known, getattr(error, "joined", None)]):
        key, at = key_of(code), (site.line, site.column)
        if key in plans and at not in plans[key].extended:
            extended = plans[key]._replace(extended=plans[key].extended | {at})
            if find_obstacle(key, extended) is None:
                return {**plans, key: extended}
    return None


def _advise(error: BaseException) -> None:
    """Let a refusal say what to write in the place of what asks."""
    question = _find_question(error)
    found = [each for each in find_tracebacks(question) if is_user_code(each.tb_frame.f_code)]
    if question is error and found and isinstance(error, DataDependentError):
        from lostwax.capture.flow.advice import advise

        advise(error, found[-1])


_FEW = 8
"""So many elements data may pick of, before it is known how many there are."""


def _pick(plans: Plans, error: BaseException) -> Plans | None:
    """Let a statement be run once for each element that data may pick in it, if that is what is
    asked for. None if that is not new."""
    question = error if isinstance(error, SizeBranch) else _find_question(error)
    asking = [each for each in find_tracebacks(question) if is_user_code(each.tb_frame.f_code)]
    if not asking:
        return None
    code = asking[-1].tb_frame.f_code
    line, last_line, column, last_column = [*code.co_positions()][asking[-1].tb_lasti // 2]
    if line is None or last_line is None or column is None or last_column is None:
        return None
    key, place = key_of(code), (line, column, last_line, last_column)
    if key not in plans and find_obstacle(key, Plan()) is not None:
        return None
    plan = plans.get(key, Plan())
    if place not in plan.stores and stores_element(key, place):
        return {**plans, key: plan._replace(stores=plan.stores | {place})}
    picks = plans[key].picks if key in plans else ()
    if any(each.place == place for each in picks) or not picks_element(key, place):
        return None
    return _set_pick(plans, key, Pick(place, _FEW))


def _set_pick(plans: Plans, key: FunctionKey, pick: Pick) -> Plans:
    plan = plans.get(key, Plan())
    picks = (*[p for p in plan.picks if p.place != pick.place], pick)
    return {**plans, key: plan._replace(picks=picks)}


def _fall_back(attempt: Attempt, refusal: BaseException) -> Attempt | None:
    """Do without something that was kept, for which this may be refused; None if there is no such
    thing."""
    is_final = getattr(refusal, "is_final", False)
    return None if is_final else attempt.decide_last_by_example(refusal)


def _make_lists(plans: Plans, makers: Makers) -> Plans:
    """Let functions make their lists as such that loops append to."""
    found = {**plans}
    for code, kind, names in makers:
        key = key_of(code)
        if can_have_hooks(code) and (key in found or find_obstacle(key, Plan()) is None):
            plan = found.get(key, Plan())
            found[key] = plan._replace(**{kind: getattr(plan, kind) | {*names}})
    return found


def _find_asking(error: BaseException | None) -> FunctionKey | None:
    """The user's function, or one that stands in for Python's, that asked what only data can
    answer."""
    error = _find_question(error)
    frames = [] if error is None else [*_frames(error)]
    codes = [each.f_code for each in frames if can_have_hooks(each.f_code)]
    if not codes:
        codes = [each for each in getattr(error, "asked_by", ()) if can_have_hooks(each)]
    while codes and codes[-1].co_name in ITEMS:  # who has written it, not who asks for an item
        code = codes.pop()
        owners = [i for i, each in enumerate(codes) if code in each.co_consts]
        codes = codes[: owners[-1] + 1] if owners else codes
    asking = [each for each in codes if each.co_name[:1] != "<" or is_lambda(each)]
    return key_of(asking[-1]) if asking else None


ITEMS = ("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>")


def _find_question(error: BaseException | None) -> BaseException | None:
    while error is not None and not getattr(error, "is_question", False):
        error = error.__cause__
    return error


def _frames(error: BaseException) -> Iterator[FrameType]:
    return (each.tb_frame for each in find_tracebacks(error))
