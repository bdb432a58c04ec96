"""What is asked of a tensor's class, or of a mode, in a function that runs, wherever the function
was found: each program computes what eager code computes. And every function of the user's that a
capture runs was read."""

from __future__ import annotations

import functools
import operator
import sys
import types
from collections import OrderedDict, UserDict, deque
from collections.abc import Callable
from types import FrameType
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from torch import is_grad_enabled, nn

from examples.models import MODELS
from lostwax import export
from lostwax.bytecode import nested_codes
from lostwax.capture.heap.reach import Reach
from lostwax.capture.python.functions_run import function_key
from lostwax.capture.threads import is_capturing
from lostwax.errors import InputValueError
from lostwax.location import is_user_code

F = Any
X = torch.randn(3)
WAYS: dict[str, Callable[[F, F], F]] = {}


def make_asking() -> F:
    """A function that is captured wrongly where it is not read: a fake would show its own class. It
    has globals of its own, since `type` is exchanged for all functions of a file."""

    def ask(x: F) -> F:
        return x * 2 if type(x) is torch.Tensor else x * 3

    return types.FunctionType(ask.__code__, {"torch": torch, "__builtins__": __builtins__})


ask_of_class = make_asking()
ask_go, ask_inner, ask_property, ask_meta, ask_autograd = [make_asking() for _ in range(5)]
ask_conv, ask_hook, ask_missing, ask_generator, ask_later = [make_asking() for _ in range(5)]
asking_global = make_asking()


def way(call: F) -> F:
    """A way to run a function that asks: it gets the module and the tensor."""
    WAYS[call.__name__] = call
    return call


class Named:
    """A class whose name stands in code, and nothing else of it."""

    static = staticmethod(make_asking())
    of_class = classmethod(lambda cls, x: ask_of_class(x))
    kind = type
    table: ClassVar = {"a": make_asking()}

    class Inner:
        def go(self, x: F) -> F:
            return ask_inner(x)

        @property
        def asks(self) -> F:
            return ask_property

    def __init__(self) -> None:
        self.inner = self.Inner()

    def go(self, x: F) -> F:
        return ask_go(x)

    def __call__(self, x: F) -> F:
        return self.inner.go(x)


class Meta(type):
    def go(cls, x: F) -> F:
        return ask_meta(x)


class WithMeta(metaclass=Meta):
    pass


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx: F, x: F) -> F:
        return ask_autograd(x)

    @staticmethod
    def backward(ctx: F, grad: F) -> F:
        return grad * 2


class Conv(nn.Conv1d):
    """Overrides what only torch names."""

    def _conv_forward(self, x: F, weight: F, bias: F) -> F:
        return super()._conv_forward(ask_conv(x), weight, bias)


iterated: list[F] = []


class Row(NamedTuple):
    f: F


class Funcs(list[F]):
    def __iter__(self) -> F:
        iterated.append(self)
        return super().__iter__()


class Lazy(dict[str, F]):
    def __missing__(self, key: str) -> F:
        return ask_missing


def close_over(f: F) -> F:
    return lambda x: f(x)


closed_over = close_over(make_asking())


def generate(x: F) -> F:
    yield ask_generator(x)


@functools.singledispatch
def dispatched(x: F) -> F:
    return x


TABLE: dict[str, F] = {"a": make_asking(), "nested": [(make_asking(),)]}
ORDERED, QUEUE, ROW = OrderedDict(a=make_asking()), deque([make_asking()]), Row(make_asking())
FUNCS, LAZY, USER = Funcs([make_asking()]), Lazy(), UserDict({"a": make_asking()})
KEYS, SET = {make_asking(): 1}, frozenset([make_asking()])
SPACE = types.SimpleNamespace(f=make_asking(), kinds=((type,),))
HOME = types.ModuleType("home")
HOME.__file__ = __file__
HOME.kind_a = make_asking()  # type: ignore[attr-defined]
ITEMS = functools.partial(map, make_asking())
KINDS, KIND, LISTED = {"t": type}, (type, int), [type]


@way
def static_method(mod: F, x: F) -> F:
    return Named.static(x)


@way
def class_method(mod: F, x: F) -> F:
    return Named.of_class(x)


@way
def instance(mod: F, x: F) -> F:
    return Named().go(x)


@way
def call_of_an_instance(mod: F, x: F) -> F:
    return Named()(x)


@way
def nested_class(mod: F, x: F) -> F:
    return Named.Inner().go(x) + Named().inner.asks(x)


@way
def metaclass(mod: F, x: F) -> F:
    return WithMeta.go(x)


@way
def autograd_function(mod: F, x: F) -> F:
    return Doubling.apply(x)  # type: ignore[no-untyped-call]


@way
def computed_name(mod: F, x: F) -> F:
    return getattr(Named(), "g" + "o")(x)


@way
def computed_name_in_a_module(mod: F, x: F) -> F:
    return getattr(HOME, "_".join(("kind", "a")))(x)


@way
def caller(mod: F, x: F) -> F:
    return operator.methodcaller("g" + "o", x)(Named())


@way
def global_by_name(mod: F, x: F) -> F:
    return globals()["asking_" + "global"](x)


@way
def in_a_dict(mod: F, x: F) -> F:
    return TABLE["a"](x) + TABLE["nested"][0][0](x)


@way
def in_a_class_dict(mod: F, x: F) -> F:
    return Named.table["a"](x)


@way
def in_containers(mod: F, x: F) -> F:
    return ORDERED["a"](x) + QUEUE[0](x) + ROW.f(x) + FUNCS[0](x) + LAZY["a"](x) + USER["a"](x)


@way
def in_keys_and_sets(mod: F, x: F) -> F:
    return next(iter(KEYS))(x) + next(iter(SET))(x)


@way
def in_a_namespace(mod: F, x: F) -> F:
    return SPACE.f(x)


@way
def in_a_partial(mod: F, x: F) -> F:
    return next(ITEMS([x]))


@way
def generator(mod: F, x: F) -> F:
    return next(generate(x))


@way
def closure(mod: F, x: F, f: F = closed_over) -> F:
    return f(x)


@way
def attribute_of_an_attribute(mod: F, x: F) -> F:
    return mod.held["a"][0].inner.go(x)


@way
def module_attribute(mod: F, x: F) -> F:
    return mod.home.kind_a(x)


@way
def method_that_torch_calls(mod: F, x: F) -> F:
    return mod.conv(x.expand(1, 3))


@way
def hook(mod: F, x: F) -> F:
    return mod.hooked(x)


@way
def registered_later(mod: F, x: F) -> F:
    return dispatched(x)


@way
def registered_for_parameters(mod: F, x: F) -> F:
    return dispatched(mod.weight) * x


class Dispatching:
    @functools.singledispatchmethod
    def go(self, x: F) -> F:
        return x

    @go.register(nn.Parameter)
    def _(self, x: F) -> F:
        return x * 7


@way
def method_registered_for_parameters(mod: F, x: F) -> F:
    return Dispatching().go(mod.weight) * x


@way
def class_in_a_dict(mod: F, x: F) -> F:
    return x * 2 if KINDS["t"](x) is torch.Tensor else x * 3


@way
def class_in_a_tuple(mod: F, x: F) -> F:
    return x * 2 if KIND[0](x) is torch.Tensor else x * 3


@way
def class_in_a_list(mod: F, x: F) -> F:
    return x * 2 if LISTED[0](x) is torch.Tensor else x * 3


@way
def class_in_an_attribute(mod: F, x: F) -> F:
    return x * 2 if mod.kind(x) is torch.Tensor else x * 3


@way
def class_in_a_class(mod: F, x: F) -> F:
    return x * 2 if Named.kind(x) is torch.Tensor else x * 3


@way
def class_in_tuples_of_an_object(mod: F, x: F) -> F:
    return x * 2 if SPACE.kinds[0][0](x) is torch.Tensor else x * 3


class Net(nn.Module):
    def __init__(self, call: F) -> None:
        super().__init__()
        self.call = call
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: F) -> F:
        return self.call(self, x)


def make_net(name: str) -> F:
    net: F = Net(WAYS[name])
    if name == "attribute_of_an_attribute":
        net.held = {"a": [Named()]}
    elif name == "module_attribute":
        net.home = HOME
    elif name == "class_in_an_attribute":
        net.kind = type
    elif name == "registered_for_parameters":
        dispatched.register(nn.Parameter, lambda x: x * 5)
    elif name == "method_that_torch_calls":
        net.conv = Conv(1, 1, 1)
    elif name == "hook":
        net.hooked = nn.Identity()
        net.hooked.register_forward_hook(lambda mod, args, out: ask_hook(out))
    elif name == "registered_later":
        dispatched.register(torch.Tensor, lambda x: ask_later(x))
    return net


@pytest.mark.parametrize("name", WAYS)
def test_what_a_function_asks_is_answered_wherever_it_is_found(name: str) -> None:
    net = make_net(name)
    iterated.clear()
    program = export(net, (X,))
    torch.testing.assert_close(program.module()(X), net(X))
    assert not iterated  # no method of the user's is called to look for functions


def modes_in_a_closure() -> F:
    ask = is_grad_enabled
    return lambda mod, x: x * 2 if ask() else x


def modes_in_an_object() -> F:
    space = types.SimpleNamespace(ask=is_grad_enabled)
    return lambda mod, x: x * 2 if space.ask() else x


def modes_in_a_default() -> F:
    return lambda mod, x, ask=is_grad_enabled: x * 2 if ask() else x


def modes_in_a_dict() -> F:
    table = {"a": [is_grad_enabled]}
    return lambda mod, x: x * 2 if table["a"][0]() else x


@pytest.mark.parametrize(
    "make", [modes_in_a_closure, modes_in_an_object, modes_in_a_default, modes_in_a_dict]
)
def test_a_mode_that_is_asked_for_is_noted(make: F) -> None:
    program = export(Net(make()), (X,))
    with torch.no_grad(), pytest.raises(InputValueError, match="is_grad_enabled"):
        program.module()(X)


def test_what_holds_a_class_is_as_before() -> None:
    for name in ("class_in_a_dict", "class_in_a_tuple", "class_in_a_list", "class_in_a_class"):
        export(make_net(name), (X,))
    net = make_net("class_in_an_attribute")
    export(net, (X,))
    held = (KINDS["t"], KIND[0], LISTED[0], Named.kind, SPACE.kinds[0][0], net.kind)
    assert held == (type,) * 6


def find_missed(net: F, args: tuple[F, ...]) -> list[str]:
    """The user's functions that an export runs, and that are not read as they begin."""
    read, ran, plain = set[F](), set[F](), Reach.read

    def note_read(reach: Reach, function: F) -> None:
        read.update(map(function_key, nested_codes(function.__code__)))
        sys.setprofile(None)
        plain(reach, function)
        sys.setprofile(note_run)

    def note_run(frame: FrameType, event: str, _: F) -> None:
        code = frame.f_code
        if event == "call" and is_capturing() and is_user_code(code) and code is not own:
            ran.add(function_key(code))

    own = note_read.__code__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reach, "read", note_read)
        sys.setprofile(note_run)
        try:
            export(net, args)
        finally:
            sys.setprofile(None)
    assert ran
    return [name for _, _, name in sorted(ran - read)]


@pytest.mark.parametrize("name", WAYS)
def test_every_function_that_runs_was_read(name: str) -> None:
    assert find_missed(make_net(name), (X,)) == []


@pytest.mark.parametrize("name", ["llama", "swin"])
def test_every_function_of_a_model_that_runs_was_read(name: str) -> None:
    assert find_missed(MODELS[name].tiny(), MODELS[name].tiny_inputs()) == []
