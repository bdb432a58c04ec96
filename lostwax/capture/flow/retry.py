"""Captures again where Python's control flow depends on data, with hooks in the functions that ask.

Nothing is changed until a capture meets such a question: then it is begun anew, and the function
that asked has hooks (`rewriting/recompile.py`). Must not know how a capture works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any, TypeVar

from lostwax.capture import threads
from lostwax.capture.aliasing.attributes import watch_tensors
from lostwax.capture.flow.choice import ExtendError
from lostwax.capture.flow.elements import PickError
from lostwax.capture.flow.heap import Heap
from lostwax.capture.flow.hooks import HOOKS
from lostwax.capture.flow.lists.growth import GrowError
from lostwax.capture.flow.merging import Makers
from lostwax.capture.flow.open_regions import close_regions, count_open
from lostwax.capture.flow.rewriting.appends import GUARDED, RUNS
from lostwax.capture.flow.rewriting.exits import NotRewritable
from lostwax.capture.flow.rewriting.picks import Pick
from lostwax.capture.flow.rewriting.recompile import (
    FunctionKey,
    Plan,
    forget_functions,
    is_lambda,
    key_of,
    picks_element,
    rewrite,
)
from lostwax.capture.flow.sizes import SplitError, Splits
from lostwax.capture.flow.stand_ins import can_have_hooks
from lostwax.capture.python.functions_run import find_watcher, let_watch
from lostwax.errors import (
    CaptureError,
    ConstraintViolationError,
    ContradictionError,
    DataDependentError,
)
from lostwax.location import NOWHERE, is_user_code, locate_line
from lostwax.undo.undo import Undo, run_and_undo

T = TypeVar("T")


def capture_flow(capture: Callable[[], T], splits: Splits | None = None) -> T:
    """What the capture gives, if need be with hooks in functions."""
    try:
        return _capture_until_known(capture, splits)
    finally:
        forget_functions()


def _capture_until_known(capture: Callable[[], T], splits: Splits | None) -> T:
    plans: dict[FunctionKey, Plan] = {}

    def give_way(refusal: Exception) -> bool:
        """Do without something that was kept, for which this may be refused. Returns whether there
        is such a thing."""
        if _let_run(plans):
            return True
        may_settle = splits is not None and not getattr(refusal, "is_final", False)
        return may_settle and splits.settle_last(refusal)  # type: ignore[union-attr]

    while True:
        try:
            return _capture_with(plans, capture) if plans else capture()
        except SplitError as error:
            assert splits is not None
            asking = key_of(error.code)
            if asking not in plans and _find_obstacle(asking) is None:
                plans[asking] = Plan()
            elif not _pick(plans, error):
                splits.settle(error.code.co_filename, error.line)
        except PickError as error:
            plans[key_of(error.code)] = _set_pick(plans[key_of(error.code)], error.pick)
        except ExtendError as error:
            try:
                _extend(plans, error)
            except CaptureError as refusal:
                if not give_way(refusal):
                    raise
        except GrowError as error:
            if not (_grow(plans, error) or give_way(error.refusal)):
                raise error.refusal from None
        except NotRewritable as error:
            raise CaptureError.here(
                f"a function that asks data cannot be taken apart: {error}",
                why="both ways through it are recorded, and what follows, for each of them",
                instead="write the part that asks as a function of its own",
            ) from None
        except RecursionError as error:
            if not plans:
                raise
            raise _refuse_recursion(error) from None
        except (DataDependentError, CaptureError) as error:
            key = _find_asking(error)
            if key is not None and key not in plans:
                reason = _find_obstacle(key)
                if reason is None:
                    plans[key] = Plan()
                    continue
                error.add_note(f"  note: {key[2].partition(' ')[0]} is run as it is: {reason}")
            if not (_pick(plans, error) or _join_later(plans, error) or give_way(error)):
                _advise(error)
                raise error from None
        except ContradictionError as error:
            if not give_way(error):
                raise
        except ConstraintViolationError as error:
            if _let_run(plans):
                continue
            for each in splits.reasons if splits else ():
                error.add_note(f"  note: both ways were not kept, for {each}")
            raise


def _refuse_recursion(error: RecursionError) -> CaptureError:
    """What to say of a function that calls itself until data stop it."""
    found = [each for each in _tracebacks(error) if is_user_code(each.tb_frame.f_code)]
    where = locate_line(found[-1].tb_frame, found[-1].tb_lineno) if found else NOWHERE
    return CaptureError(
        f"a function calls itself, and data decide how often.\n  at {where}\n"
        "  why: both ways are recorded, and the one of them has no end\n"
        "  instead: write it as a loop, while …:"
    )


def _find_obstacle(key: FunctionKey, plan: Plan | None = None) -> NotRewritable | None:
    """Why a function can have no hooks."""
    try:
        rewrite({key: plan or Plan()}, HOOKS)
    except NotRewritable as reason:
        return reason
    return None


def _join_later(plans: dict[FunctionKey, Plan], error: Exception) -> bool:
    """Let the sides of an `if` go on to the end of their function, if what is asked is a number in
    which they join, or which object it is, or if it is written to. Returns whether that is new."""
    about: Any = getattr(_find_question(error), "about", None)
    known = [] if about is None else [about.env.merged.get(each) for each in about.symbols()]
    for code, site in filter(None, [*known, getattr(error, "joined", None)]):
        key, at = key_of(code), (site.line, site.column)
        if key in plans and at not in plans[key].extended:
            extended = plans[key]._replace(extended=plans[key].extended | {at})
            if _find_obstacle(key, extended) is None:
                plans[key] = extended
                return True
    return False


def _advise(error: Exception) -> None:
    """Let a refusal say what to write in the place of what asks."""
    question = _find_question(error)
    found = [each for each in _tracebacks(question) if is_user_code(each.tb_frame.f_code)]
    if question is error and found and isinstance(error, DataDependentError):
        from lostwax.capture.flow.advice import advise

        advise(error, found[-1])


_FEW = 8
"""So many elements data may pick of, before it is known how many there are."""


def _pick(plans: dict[FunctionKey, Plan], error: BaseException) -> bool:
    """Let a statement be run once for each element that data may pick in it, if that is what is
    asked for. Returns whether that is new."""
    question = error if isinstance(error, SplitError) else _find_question(error)
    asking = [each for each in _tracebacks(question) if is_user_code(each.tb_frame.f_code)]
    if not asking:
        return False
    code = asking[-1].tb_frame.f_code
    line, last_line, column, last_column = [*code.co_positions()][asking[-1].tb_lasti // 2]
    if line is None or last_line is None or column is None or last_column is None:
        return False
    key, place = key_of(code), (line, column, last_line, last_column)
    if key not in plans and _find_obstacle(key) is not None:
        return False
    plan = plans.get(key, Plan())
    if any(each.place == place for each in plan.picks) or not picks_element(key, place):
        return False
    plans[key] = _set_pick(plan, Pick(place, _FEW))
    return True


def _set_pick(plan: Plan, pick: Pick) -> Plan:
    return plan._replace(picks=(*[p for p in plan.picks if p.place != pick.place], pick))


def _capture_with(plans: dict[FunctionKey, Plan], capture: Callable[[], T]) -> T:
    changed = rewrite(plans, HOOKS)
    forget_functions()

    def work(undo: Undo) -> T:
        undo.add(partial(_set_codes, [(f, f.__code__) for f, _ in changed]))
        undo.add(partial(close_regions, count_open()))
        _set_codes(changed)
        let_watch(watch, undo)
        watch_tensors(undo)
        return capture()

    watch = _Watch()
    try:
        return run_and_undo(work)
    finally:
        watch.refuse_left()


class _Watch:
    """Tells what a capture has left otherwise than it was, beside what captures put back."""

    def __init__(self) -> None:
        self._heap: Heap | None = None
        self._around = find_watcher()

    def call(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Call what is captured."""
        self._heap = Heap(threads.running[-1], {})
        if self._around is not None:
            return self._around.call(function, *args, **kwargs)
        return function(*args, **kwargs)

    def refuse_left(self) -> None:
        """The first attempt has left it so, too, and nobody knows how it was before."""
        names = [] if self._heap is None else self._heap.list_left()
        if names:
            raise CaptureError(
                f"the module changes {', '.join(names)}, and its control flow asks data.\n"
                "  why: it was captured more than once to find out what both ways do, and each "
                "time it found what the last one had left\n"
                '  instead: keep what changes in a buffer, self.register_buffer("n", '
                "torch.zeros(()))"
            )


def _set_codes(codes: list[tuple[FunctionType, CodeType]]) -> None:
    for function, code in codes:
        function.__code__ = code


def _extend(plans: dict[FunctionKey, Plan], error: ExtendError) -> None:
    key, at = key_of(error.code), (error.site.line, error.site.column)
    plan = plans[key]
    extended = plan._replace(extended=plan.extended | {at})
    obstacle = _find_obstacle(key, extended)
    if at in plan.extended or obstacle is not None:
        if error.why.makers and _make_lists(plans, error.why.makers):
            plans[key] = plans[key]._replace(extended=plan.extended - {at})
            return
        refusal = CaptureError(
            f"the two sides of an `if` on data do not agree: {error.why}.\n  at {error.where}\n"
            "  why: the program goes on with what one of them leaves, and must know what it is\n"
            f"  instead: {error.why.instead}"
        )
        if obstacle is not None:
            refusal.add_note(f"  note: the sides do not go on apart to its end: {obstacle}")
        raise refusal from None
    plans[key] = extended


def _grow(plans: dict[FunctionKey, Plan], error: GrowError) -> bool:
    """Let functions make their lists as such that loops append to. Returns whether that is new."""
    before, key = {**plans}, key_of(error.code)
    plans[key] = plans[key]._replace(growing=plans[key].growing | {error.at})
    if error.at[2] == GUARDED and _find_obstacle(key, plans[key]) is not None:
        _let_run(plans)
    _make_lists(plans, error.makers)
    return plans != before


def _let_run(plans: dict[FunctionKey, Plan]) -> bool:
    """Demand of a loop that it runs, in the place of an `if` that asks for it: the one that was
    made last. Returns whether there is one."""
    for key, plan in reversed([*plans.items()]):
        for at in (at for at in plan.growing if at[2] == GUARDED):
            plans[key] = plan._replace(growing=plan.growing - {at} | {(*at[:2], RUNS)})
            return True
    return False


def _make_lists(plans: dict[FunctionKey, Plan], makers: Makers) -> bool:
    before = {**plans}
    for code, names in makers:
        key = key_of(code)
        if can_have_hooks(code) and (key in plans or _find_obstacle(key) is None):
            plan = plans.get(key, Plan())
            plans[key] = plan._replace(lists=plan.lists | {*names})
    return plans != before


def _find_asking(error: BaseException | None) -> FunctionKey | None:
    """The user's function, or one that stands in for Python's, that asked what only data can
    answer."""
    error = _find_question(error)
    frames = [] if error is None else [*_frames(error)]
    codes = [each.f_code for each in frames if can_have_hooks(each.f_code)]
    while codes and codes[-1].co_name in _ITEMS:  # who has written it, not who asks for an item
        code = codes.pop()
        owners = [i for i, each in enumerate(codes) if code in each.co_consts]
        codes = codes[: owners[-1] + 1] if owners else codes
    asking = [each for each in codes if each.co_name[:1] != "<" or is_lambda(each)]
    return key_of(asking[-1]) if asking else None


_ITEMS = ("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>")


def _find_question(error: BaseException | None) -> BaseException | None:
    while error is not None and not getattr(error, "is_question", False):
        error = error.__cause__
    return error


def _frames(error: BaseException) -> Iterator[FrameType]:
    return (each.tb_frame for each in _tracebacks(error))


def _tracebacks(error: BaseException | None) -> Iterator[TracebackType]:
    at = None if error is None else error.__traceback__
    while at is not None:
        yield at
        at = at.tb_next
