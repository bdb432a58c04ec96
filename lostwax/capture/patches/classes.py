"""`type(x)`, `x.__class__`, `id(x)` and `operator.is_(x, y)` in the user's functions: while a
capture runs, they answer of a fake and of a symbolic number what they would answer of what it
stands for. So they do in what `exec` and `eval` run.

Which functions ask is found by reading them. For `type`, wherever they have it from
(`held.py`), stands something else, which answers as ever of all but fakes; fakes show another class
to them. Must not change what others see of a class.
"""

from __future__ import annotations

import builtins
import heapq
import operator
import sys
from contextlib import suppress
from functools import partial
from types import BuiltinFunctionType, CodeType, FrameType, ModuleType
from typing import Any

import torch
from torch import nn

from lostwax.bytecode import Instruction, is_inside, read_steps
from lostwax.capture import threads
from lostwax.capture.heap.functions import ReadFunction
from lostwax.capture.heap.reach import Reach, read_text
from lostwax.capture.patches import swap
from lostwax.capture.python.identities import check_class, is_of_c, is_same, make_asking
from lostwax.capture.threads import is_capturing
from lostwax.classes import SHOWN, StandsFor, show_class
from lostwax.fake.asked_tensor import IDENTITY
from lostwax.fake.symbolic.objects import Address, refuse_address
from lostwax.fake.tensor import FakeTensor
from lostwax.location import PASSING_ON, asks_for_user, is_own_file
from lostwax.undo.undo import Undo

PASSING_ON.add(__file__)


class _OfAsking(type):
    """Keeps `type(x)`, `type(name, bases, attributes)` and `isinstance(c, type)` working."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is not Asking:
            return super().__call__(*args, **kwargs)
        if len(args) != 1 or kwargs:
            return type(*args, **kwargs)
        value = args[0]
        own = type(value)
        check_class(value)
        if own is FakeTensor:
            return _class_of(value)
        if value is Asking:
            return Asking
        if issubclass(own, StandsFor) and _is_of_our_tree(sys._getframe(1)):
            return own
        return int if own is Address else show_class(value)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, type) if cls is Asking else super().__instancecheck__(instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, type) if cls is Asking else super().__subclasscheck__(subclass)

    def __eq__(cls, other: Any) -> bool:
        return other is cls or (cls is Asking and other is type)

    def __hash__(cls) -> int:
        return hash(type) if cls is Asking else super().__hash__()


def _is_of_our_tree(frame: FrameType) -> bool:
    """Is it our own code that goes through a tree, with torch's functions for that?"""
    asking: FrameType | None = frame
    while asking is not None and asking.f_code.co_filename == _TREES:
        asking = asking.f_back
    return asking is not None and asking is not frame and is_own_file(asking.f_code.co_filename)


_TREES = torch.utils._pytree.__file__


class Asking(type, metaclass=_OfAsking):
    """Stands for `type`."""

    stands_for = type


Asking.__name__, Asking.__qualname__, Asking.__module__ = "type", "type", "builtins"


def _make_checking(function: Any) -> Any:
    """`isinstance` and others that ask for the class of their first argument."""

    def __instancecheck__(value: Any, *args: Any) -> Any:  # frames of this name are seen through
        check_class(value)
        if function is isinstance and issubclass(type(value), StandsFor):
            with suppress(TypeError):  # a protocol is asked of objects alone
                return issubclass(value._lw_class(), *args)  # and of no class of ours
        found = function(value, *args)
        return make_asking(found) if is_of_c(found) else found  # of `getattr`

    return swap.stand_for(function, __instancecheck__)


def _make_looking(function: Any) -> Any:
    """`hasattr` or `getattr`: what is ours has the attributes of what it stands for."""

    def look(value: Any, name: str, *default: Any) -> Any:
        own = type(value)
        if (own in SHOWN or issubclass(own, StandsFor)) and name not in dir(show_class(value)):
            value = object()
        return ask(value, name, *default)

    ask = _make_checking(function)
    return swap.stand_for(function, look)


OF_FLOW: dict[Any, Any] = {
    isinstance: _make_checking(isinstance),
    **{each: _make_looking(each) for each in (hasattr, getattr)},
}
"""Where data decide which way is gone, they may decide of what class a variable is."""


def let_trees_ask(undo: Undo) -> None:
    """From here on functions of torch's that go through containers take a list of ours for one."""
    names = vars(torch.utils._pytree)
    undo.add(partial(names.pop, "type", None))
    names["type"] = Asking


def _identify(value: Any, /) -> int:
    """`id`: refused, if it is another object on another way that data decide."""
    own = type(value)
    if own is FakeTensor and is_capturing():
        value.fake_mode.observer.note_question(value, IDENTITY)
    elif own in SHOWN and is_capturing():
        refuse_address(SHOWN[own])
    return _make_address(id(value))


def _hash(value: Any, /) -> int:
    """`hash`: that of a tensor is where it lies, and so is that of what it is a part of."""
    if not is_capturing():
        return hash(value)
    tracer = threads.running[-1]
    before, tracer.addresses = tracer.addresses, set()
    found = hash(value)
    asked, tracer.addresses = tracer.addresses, before
    return _make_address(found) if asked else found


def _make_address(found: int) -> int:
    return threads.running[-1].observer.make_address(found) if is_capturing() else found


def _is_other(one: Any, other: Any, /) -> Any:
    found = is_same(one, other)
    return not found if isinstance(found, bool) else torch.sym_not(found)


def _make_looking_in(function: Any) -> Any:
    """`heapq.heappop` or `operator.concat`: C looks into a list of ours, which has to have its
    elements itself."""

    def look_in(*values: Any) -> Any:
        for each in values:
            if issubclass(type(each), StandsFor) and issubclass(type(each), list):
                each[:] = [*each]
        return function(*values)

    return swap.stand_for(function, look_in)


def _make_running(function: Any, mode: str) -> Any:
    """`exec` or `eval`: a text is compiled as these do it, for the function that calls them."""

    def run(source: Any, globals: Any = None, locals: Any = None, /, **options: Any) -> Any:
        frame = sys._getframe(1)
        known = options.pop("globals", globals)
        own = options.pop("locals", locals)
        if known is None:
            known = frame.f_globals
            own = _copy_variables(frame) if own is None else own
        if type(source) is not CodeType and is_capturing():
            flags = frame.f_code.co_flags & _FUTURE
            text = source.lstrip(" \t") if mode == "eval" and type(source) is str else source
            source = compile(text, "<string>", mode, flags, dont_inherit=True)
        code = read_text(source, known) if is_capturing() else source
        return function(code, known, own, **options)

    return swap.stand_for(function, run)


def _copy_variables(frame: FrameType) -> Any:
    """As `locals()` shows them: in some Pythons a frame itself would show the next changes, too."""
    found = frame.f_locals
    return found if type(found) is dict else dict(found)


_FUTURE = annotations.compiler_flag
"""Of what a file can ask of a later Python, this is the one that none of ours has yet."""
NAME_SWAPS = [
    swap.NameSwap(operator, "is_", swap.stand_for(operator.is_, lambda a, b, /: is_same(a, b))),
    swap.NameSwap(operator, "is_not", swap.stand_for(operator.is_not, _is_other)),
    swap.NameSwap(operator, "concat", _make_looking_in(operator.concat)),
    *[
        swap.NameSwap(heapq, name, _make_looking_in(function))
        for name, function in vars(heapq).items()
        if type(function) is BuiltinFunctionType
    ],
    swap.NameSwap(torch, "is_tensor", _make_checking(torch.is_tensor)),
]
_IN_BUILTINS = [
    swap.NameSwap(builtins, "type", Asking),
    swap.NameSwap(builtins, "id", swap.stand_for(id, _identify)),
    swap.NameSwap(builtins, "hash", swap.stand_for(hash, _hash)),
    swap.NameSwap(builtins, "eval", _make_running(eval, "eval")),
    swap.NameSwap(builtins, "exec", _make_running(exec, "exec")),
]
STAND_INS: dict[Any, Any] = {
    each.function.stands_for: each.function  # type: ignore[attr-defined]
    for each in (*_IN_BUILTINS, *NAME_SWAPS)
}


def _class_of(fake: FakeTensor) -> type:
    found = (cls for cls in (nn.Parameter, nn.Buffer) if isinstance(fake, cls))
    return next(found, torch.Tensor)


def _show_class(fake: FakeTensor) -> type:
    # C calls this: the frame before is the one that reads, also if it is one of lostwax's.
    frame = sys._getframe(1)
    if not (is_capturing() and asks_for_user(frame.f_code)) or _asks_of_others(frame):
        return FakeTensor
    check_class(fake)
    return _class_of(fake)


def _asks_of_others(frame: FrameType) -> bool:
    """Is it `isinstance(x, dict)` that reads the class, which is false for all tensors that a
    program is called with? Of parameters and buffers it asks another way."""
    steps = read_steps(frame.f_code)
    at = next((i for i, step in enumerate(steps) if step.offset >= frame.f_lasti), len(steps))
    if at == len(steps) or steps[at].opname != "CALL" or steps[at].arg != 2:
        return False
    first = next((step for step in steps if is_inside(step.positions, steps[at].positions)), None)
    if first is None or _look_up(frame, first) is not isinstance:
        return False
    return all(_is_no_tensor(each) for each in _read_classes(frame, list(steps[:at])))


def _is_no_tensor(cls: Any) -> bool:
    if not isinstance(cls, type) or type(cls).__instancecheck__ is not type.__instancecheck__:
        return False
    return not issubclass(cls, torch.Tensor) or cls.__module__.startswith("torch._subclasses.")


def _read_classes(frame: FrameType, steps: list[Instruction]) -> list[Any]:
    """What these steps of the frame have put on the stack last, `a.B` or a tuple of such, which is
    taken from them; each is None if it is something else."""
    if steps and steps[-1].opname == "BUILD_TUPLE":
        count = steps.pop().arg
        return [found for _ in range(count) for found in _read_classes(frame, steps)]
    return [_read_name(frame, steps)]


def _read_name(frame: FrameType, steps: list[Instruction]) -> Any:
    """`a`, `a.b` or `getattr(a, "b")` of a module."""
    if not steps:
        return None
    step = steps.pop()
    if step.opname == "LOAD_ATTR":
        found = _read_name(frame, steps)
        return vars(found).get(step.argval) if isinstance(found, ModuleType) else None
    if step.opname == "CALL" and step.arg == 2 and steps and steps[-1].opname == "LOAD_CONST":
        name, found = steps.pop().argval, _read_name(frame, steps)
        is_getattr = bool(steps) and _look_up(frame, steps.pop()) is getattr
        return vars(found).get(name) if is_getattr and isinstance(found, ModuleType) else None
    return _look_up(frame, step)


def _look_up(frame: FrameType, step: Instruction) -> Any:
    if step.opname == "LOAD_GLOBAL":
        return frame.f_globals.get(step.argval, frame.f_builtins.get(step.argval))
    return frame.f_locals.get(step.argval) if step.opname in _OF_VARIABLES else None


_OF_VARIABLES = ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_DEREF")


def show_classes(reach: Reach, undo: Undo) -> None:
    """From here on functions that read `x.__class__` get the tensor's class for a fake."""
    shown = list[ReadFunction]()

    def look(found: ReadFunction) -> None:
        if not shown and not _SHOWING.isdisjoint(found.code.names):
            shown.append(found)
            undo.add(partial(setattr, FakeTensor, "shown_class", FakeTensor))
            FakeTensor.shown_class = property(_show_class)
            swap.set_classes(_BUILTINS, undo)

    reach.add_look(look)


_BUILTINS = swap.make_classes(_IN_BUILTINS)
_SHOWING = frozenset(("__class__", "builtins", "__builtins__"))
"""By these names code reads `x.__class__` or `builtins.id`: fakes and `builtins` show it."""
