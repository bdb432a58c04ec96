"""What rewritten code calls (`rewriting/regions.py`). In other threads, and when no capture runs,
every condition is what it is.
"""

from __future__ import annotations

import copy
import operator
import sys
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

from lostwax.capture import threads
from lostwax.capture.flow.callees import copy_for_torch, find_callee, find_source
from lostwax.capture.flow.choice import Choice
from lostwax.capture.flow.elements import IndexedByData
from lostwax.capture.flow.items import Items, list_items, list_values
from lostwax.capture.flow.keys.keyed import as_list
from lostwax.capture.flow.keys.sets import make_new, make_open, makes_new
from lostwax.capture.flow.lists.growing import ListOfUnknownLength
from lostwax.capture.flow.lists.made import cut_elements, repeat_elements
from lostwax.capture.flow.lists.queues import QueueOfUnknownLength
from lostwax.capture.flow.merging import NOTHING
from lostwax.capture.flow.options.raising import REFUSE, give_raised, leave_managers
from lostwax.capture.flow.repetition import WhileRecorder
from lostwax.capture.flow.rewriting.names import is_of_hooks
from lostwax.capture.flow.rewriting.picks import Pick
from lostwax.capture.flow.rewriting.recompile import Hooks
from lostwax.capture.flow.rewriting.sites import LoopSite, Site
from lostwax.capture.flow.stand_ins import are_compared
from lostwax.capture.flow.truths import (
    KEPT,
    UNSET,
    Joint,
    are_read_quietly,
    combine,
    compare,
    compare_unequal,
    find_in,
    find_known,
    find_undecided,
    is_open_number,
    negate,
    read_truth,
    take_number,
)
from lostwax.capture.flow.written_out.elements import add_item, get_item, put_item
from lostwax.capture.flow.written_out.endings import (
    check_asked,
    find_place,
    is_over,
    list_pairs,
    passes,
    show_item,
)
from lostwax.capture.flow.written_out.generators import (
    go_through,
    write_out_left,
    write_out_yielding,
)
from lostwax.capture.flow.written_out.integers import operate
from lostwax.capture.flow.written_out.iteration import give_each
from lostwax.capture.python.identities import is_same
from lostwax.capture.python.one_of import OneOf, ask, check_received
from lostwax.capture.python.raising import MayRaise, keep_raised, make_raised, seal_texts
from lostwax.capture.python.returning import CallsInProgress
from lostwax.errors import CaptureError
from lostwax.fake.symbolic.classes import TEXTS
from lostwax.location import PASSING_ON

PASSING_ON.add(__file__)


def _either(captured: Callable[..., Any], plain: Callable[..., Any]) -> Any:
    """A hook that does the one while a capture runs in this thread, and else the other."""

    def call(*args: Any) -> Any:
        return captured(*args) if threads.is_capturing() else plain(*args)

    return staticmethod(call)


def _find_calls() -> CallsInProgress:
    tracer = threads.running[-1]
    if tracer.calls is None:
        tracer.calls = CallsInProgress()
    return tracer.calls  # type: ignore[no-any-return]


def _keep(value: Any) -> Any:
    return value


class _Counting:
    def count(self, value: Any) -> int:
        return sys.getrefcount(value)


def _count_unheld() -> int:
    """What Python counts, in a method that is given a new object. To be asked each time: where
    something watches each frame (what is left of a `torch.compile` that failed, a debugger), who
    calls a function holds what it gives to it."""
    return _Counting().count(Exception())


def _count_handled() -> int:
    """The same, of one that a handler has caught."""
    try:
        raise ValueError
    except ValueError:
        return _Counting().count(sys.exception())


class CaptureHooks(Hooks):
    kept, unset, nothing = KEPT, UNSET, NOTHING

    def choose(
        self, test: Any, at: tuple[Any, ...], names: Sequence[str], live: Sequence[str]
    ) -> Choice | Joint | None:
        """A choice, if the condition depends on data."""
        if not threads.is_capturing():
            return None
        site = Site(*at)
        predicate = find_undecided(test)
        if predicate is None:
            return None
        frame = sys._getframe(1)
        if site.joins is not None:
            name, is_and, reads = site.joins
            if are_read_quietly(frame, reads):
                return Joint(frame, name, predicate, is_and)
        return Choice(threads.running[-1], predicate, frame, site, names, live)

    truth = _either(read_truth, bool)
    """Whether a value is true, where only that is asked."""
    negate = _either(negate, operator.not_)
    find_known = _either(find_known, _keep)
    """A value; True or False, if that is certain here of a symbolic truth."""
    value = _either(take_number, _keep)
    """A truth that the program goes on with."""
    equal = _either(compare, operator.eq)
    differ = _either(compare_unequal, operator.ne)
    is_same = staticmethod(is_same)
    is_in = _either(find_in, lambda one, values: one in values)
    is_not_in = _either(lambda *of: negate(find_in(*of)), lambda one, values: one not in values)

    def is_other(self, one: Any, other: Any) -> Any:
        return self.negate(is_same(one, other))

    def take_known(self, function: Any, one: Any, other: Any) -> Any:
        """`max` or `min` of two; the first of them, if data decide (`is_better`)."""
        is_open = threads.is_capturing() and are_compared((one, other))
        return one if is_open else function(one, other)

    def is_better(self, is_larger: bool, one: Any, other: Any) -> Any:
        """Is one of two that data decide about the larger, or the smaller one?"""
        if not (threads.is_capturing() and are_compared((one, other))):
            return False
        return one > other if is_larger else one < other

    def callee(self, function: Any, is_asked: bool = False) -> Any:
        """What to call in the place of a function. `is_asked`: only the truth of what it returns
        counts."""
        return find_callee(function, is_asked) if threads.is_capturing() else function

    def copier(self, function: Any) -> Any:
        """The same for what torch is to join, `torch.stack(tuple(values))`."""
        return copy_for_torch(function) if threads.is_capturing() else function

    def source(self, function: Any, takes_items: bool = False) -> Any:
        """The same where a loop goes over what is returned. `takes_items`: it may be given what is
        made so, too."""
        found = find_source(function) if threads.is_capturing() else None
        if found is not None:
            return found
        if function is iter:  # of which nobody else has the iterator
            return partial(self._iterate, function)
        return partial(self._call_on_values, function) if takes_items else self.callee(function)

    def _iterate(self, function: Any, /, *args: Any) -> Any:
        return self.callee(function)(*args) if len(args) > 1 else function(*args)

    def _call_on_values(self, function: Any, /, *args: Any, **options: Any) -> Any:
        return self.callee(function)(*map(list_values, args), **options)

    def maker(self, function: Any, is_dict: bool) -> Any:
        """The same where a loop will append to what is returned, or data will change its keys, if
        it is a new list, or a new dict or set."""
        if not threads.is_capturing():
            return function
        if is_dict:
            made = self.callee(function)
            return partial(make_new, made) if makes_new(function) else made
        is_list = function in (list, deque)
        return partial(self._make_list, function) if is_list else self.callee(function)

    def _make_list(self, kind: Any, *args: Any, **options: Any) -> Any:
        if kind is list:
            return self.make_list(self.callee(list)(*args))
        made = deque(*args, **options)
        return made if made.maxlen is not None else QueueOfUnknownLength(made)

    def is_outside(self, index: Any, *of: Any) -> Any:
        """Would Python find no such element (`elements.Pickable`)?"""
        return IndexedByData(*of).exclude(index) if threads.is_capturing() else False

    def miss(self, *of: Any) -> Exception:
        """What is raised then."""
        return IndexedByData(*of).miss()

    def find_place(self, index: Any, *of: Any) -> Any:
        """Which element data pick, as a number from 0 on; None, if data do not decide it."""
        *of_what, pick = of
        if not threads.is_capturing():
            return None
        return IndexedByData(*of_what).find_place(index, Pick(*pick), sys._getframe(1))

    def find_key(self, values: Any, key: Any, pick: Any) -> Any:
        """Which of its elements `values.get(key)` gives, by its place; None, if data do not decide
        it."""
        if not threads.is_capturing():
            return None
        return IndexedByData(values, None, False).find_key(key, Pick(*pick), sys._getframe(1))

    def get_at(self, values: Any, place: Any, *args: Any) -> Any:
        """`values.get(*args)`, of which the place is known."""
        if place is None:
            return values.get(*args)
        found = [*values.values(), *args[1:], None]
        return found[int(place)]

    def begin(self, function: Any) -> Any:
        """What is called next, of which the function that runs looks at what it returns."""
        if threads.is_capturing():
            _find_calls().begin(sys._getframe(1), function)
        return function

    def receive(self, value: Any, name: str | None, place: Any) -> Any:
        """What a call has returned, which a variable gets."""
        if threads.is_capturing():
            _find_calls().receive(sys._getframe(1), value)
            check_received(value, sys._getframe(1), name, place)
        return value

    def receive_option(self, value: Any) -> Any:
        """The same, where a variable gets it that may be one of several values."""
        if threads.is_capturing():
            _find_calls().receive(sys._getframe(1), value)
        return value

    def hand_back(self, value: Any) -> Any:
        """What a function returns that has such variables."""
        if threads.is_capturing():
            _find_calls().hand_back(sys._getframe(1), value)
        return value

    any_error = Exception

    @property
    def texts(self) -> int:
        """How many texts have shown what is not known."""
        return next(copy.copy(TEXTS))

    def seal(self, texts: int, error: Any) -> Any:
        """An exception that is raised; `texts`: how many there were before it was made."""
        return seal_texts(error, texts != self.texts) if threads.is_capturing() else error

    def keep_raised(self, error: Any, caught_as: str | None) -> Any:
        """What there is in it; and itself, if somebody holds it. `caught_as`: the variable of the
        handler, which will be gone, if it is what that has caught; else an empty text."""
        if isinstance(error, type):
            return keep_raised(error())
        is_caught = caught_as != "" and error is sys.exception()
        count = sys.getrefcount(error) - (_count_handled() if is_caught else _count_unheld())
        names = sys._getframe(1).f_locals
        known = [name for name in names if names[name] is error]
        return keep_raised(
            error, count == sum(is_of_hooks(n) or (is_caught and n == caught_as) for n in known)
        )

    def with_cause(self, error: Any, cause: Any) -> Any:
        """What `raise … from …` raises."""
        error = error() if isinstance(error, type) else error
        error.__cause__ = cause() if isinstance(cause, type) else cause
        return error

    def take_handled(self) -> BaseException:
        """What a `raise` alone raises."""
        error = sys.exception()
        if error is None:
            raise RuntimeError("No active exception to reraise")
        return error

    def take_kept(self, value: Any, number: int) -> Any:
        """What there is in one that a call has raised."""
        return value.raised[number - 1]

    make_raised = staticmethod(make_raised)
    leave_managers = staticmethod(leave_managers)

    def give_raised(self, result: Any, number: Any, *raised: Any) -> Any:
        """What a function returns that gives back what it raises."""
        return give_raised(
            _find_calls(), sys._getframe(1), MayRaise(number, raised, result, REFUSE)
        )

    def begin_raising(self, function: Any, most: int) -> Any:
        """What is called next, of which this many exceptions are expected."""
        if threads.is_capturing():
            _find_calls().begin(sys._getframe(1), function, most)
        return function

    def hear(self, value: Any) -> Any:
        """What it has returned."""
        if threads.is_capturing():
            _find_calls().receive(sys._getframe(1), value)
        return value

    def is_raised(self, value: Any, number: int) -> Any:
        """Does it raise this one?"""
        if type(value) is not MayRaise or number > len(value.raised):
            return False
        return value.number == number

    def take_raised(self, value: Any, number: int) -> BaseException:
        return make_raised(value.raised[number - 1])

    def take_result(self, value: Any) -> Any:
        return value.result if type(value) is MayRaise else value

    def find_option(self, value: Any, most: int) -> Any:
        """Which of its options a variable is, as a number from 0 on; None, if it is what it is."""
        if type(value) is not OneOf:
            return None
        if len(value._lw_options) > most:
            ask(value)
        return value._lw_index

    def take_option(self, value: Any, place: Any) -> Any:
        """What a variable is, where that is known."""
        return value if place is None else value._lw_options[int(place)]

    def augment(self, name: str, value: Any, more: Any) -> Any:
        """`value += more`, and its like."""
        return _IN_PLACE[name](value, more)

    def is_before(self, place: Any, middle: int) -> Any:
        """Is an element one of the first? It may be any, if data do not pick it."""
        return True if place is None else place < middle

    def spell(self, index: Any, place: Any, *of: Any) -> Any:
        """The index, or what is written into a key; the number itself, where it is known."""
        return IndexedByData(*of).spell(index, place)

    operate = staticmethod(operate)

    add_item = staticmethod(add_item)
    put_item = staticmethod(put_item)
    get_item = staticmethod(get_item)

    def failing(self, own: Choice | Joint | WhileRecorder | None) -> Any:
        """The exceptions that are passed to a choice or a loop."""
        return () if own is None or not own.is_symbolic else BaseException

    def any(self, *flags: Any) -> Any:
        """Is one of these true?"""
        if True in [flag for flag in flags if flag is True]:
            return True
        open_ones = [flag for flag in flags if flag is not False]
        if not open_ones:
            return False
        return reduce(partial(combine, is_and=False), open_ones)

    def make_list(self, values: list[Any]) -> list[Any]:
        """A list to which a loop will append."""
        if not threads.is_capturing() or isinstance(values, ListOfUnknownLength):
            return values
        return ListOfUnknownLength(values)

    def make_dict(self, values: Any) -> Any:
        """A dict or a set to which data will give keys."""
        return make_open(values) if threads.is_capturing() else values

    def spread(self, values: list[Any], more: Any) -> list[Any]:
        """`[*values, *more]`, of a list that nobody else has."""
        more = as_list(more)
        if isinstance(more, ListOfUnknownLength) and not isinstance(values, ListOfUnknownLength):
            values = ListOfUnknownLength(values)
        values += more
        return values

    def repeat_list(self, values: Any, count: Any) -> Any:
        """`[…] * n`, or `n * […]`."""
        is_list = type(values) is list
        return repeat_elements(values, count) if is_list else repeat_elements(count, values, True)

    def join(self, values: list[Any], more: Any) -> Any:
        """`values + more`, of a list that nobody else has."""
        return (
            ListOfUnknownLength(values) if isinstance(more, ListOfUnknownLength) else values
        ) + more

    def know(self, test: Any) -> Any:
        """A condition by which a generator goes on to yield."""
        if threads.is_capturing() and find_undecided(test) is not None:
            refusal = CaptureError.here(
                "data decide whether a generator yields",
                why="who asks it for the next value goes on at once, and cannot go both ways",
                instead="compute the value first, y = a if c else b, and yield it in any case; or "
                "collect the values in a list and return that",
            )
            raise write_out_yielding(sys._getframe(1), refusal)
        return test

    def start(self, values: Any) -> Any:
        """What a generator goes over."""
        return iter(values)

    zip_both = staticmethod(zip)
    """What `compress` goes over."""

    def iterate(self, values: Any) -> Any:
        if not threads.is_capturing():
            return Items(values)
        check_asked(values, sys._getframe(1))
        items = list_items(values)
        if type(items) is Items and not items.is_plain:
            items.place = find_place(sys._getframe(1))
        return items

    go_through = _either(go_through, lambda given, give, _: give_each(given.pop(), give))

    list_pairs = _either(list_pairs, Items)
    """What a loop goes over that asks each time whether it has come to an end."""
    is_over = staticmethod(is_over)
    passes = staticmethod(passes)
    show_item = staticmethod(show_item)

    def cut(self, values: Any, start: Any, stop: Any, step: Any) -> Any:
        """`values[start:stop:step]`."""
        found = None
        if threads.is_capturing() and step is None and any(map(is_open_number, (start, stop))):
            found = cut_elements(values, start, stop)
        return values[start:stop:step] if found is None else found

    def may_run(self, items: Any) -> Any:
        """Does a loop over these items run, as far as that is known?"""
        holds = items.more(items.start) if items.is_open else True
        return True if find_undecided(holds) is None else holds

    def stops(self, items: Any, stop: Any) -> Any:
        """Is a loop not asked for more items? Those that are known are all taken."""
        return stop if items.is_open else stop is True

    def skips(self, items: Any, stop: Any) -> Any:
        """Is the body not run for this item?"""
        if items.is_open or stop is False:
            return False
        if not items.is_own:
            refusal = CaptureError.here(
                "a loop over an iterator is left where data say so",
                why="eager would leave the rest of the iterator untouched",
                instead="loop over a list, for x in list(iterator)",
            )
            raise write_out_left(items, refusal)
        return stop

    def repeat(
        self, at: tuple[Any, ...], names: Sequence[str], inside: Sequence[str], after: Sequence[str]
    ) -> WhileRecorder:
        tracer = threads.running[-1] if threads.is_capturing() else None
        return WhileRecorder(tracer, sys._getframe(1), LoopSite(*at), names, inside, after)


_IN_PLACE: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.iadd, "Sub": operator.isub, "Mult": operator.imul, "MatMult": operator.imatmul,
    "Div": operator.itruediv, "FloorDiv": operator.ifloordiv, "Mod": operator.imod,
    "Pow": operator.ipow, "LShift": operator.ilshift, "RShift": operator.irshift,
    "BitOr": operator.ior, "BitXor": operator.ixor, "BitAnd": operator.iand,
}  # fmt: skip
HOOKS = CaptureHooks()
