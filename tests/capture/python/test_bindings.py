"""What was read of the user's functions is read again when anything is bound again, in every way
that Python has."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from lostwax import export

F = Any
cases: list[Any] = []


def plain(x: F) -> F:
    return x + 1


def asking(x: F) -> F:
    """Is captured wrongly where it is not read: a fake would show its own class."""
    return x * 2 if type(x) is torch.Tensor else x * 3


def make_cached() -> F:
    """Keeps a fake where it is not read, which the next call finds."""
    return functools.cache(lambda factor: torch.ones(3) * factor)


def case(rebind: Callable[[], Iterator[type[nn.Module]]]) -> F:
    """A function that yields a class, binds something again, and yields it again."""
    cases.append(pytest.param(rebind, id=rebind.__name__))
    return rebind


class Base(nn.Module):
    f: Any

    def forward(self, x: F) -> F:
        return self.f(x)


@case
def a_property() -> Iterator[F]:
    class Net(Base):
        f = property(lambda self: plain)

    yield Net
    Net.f = property(lambda self: asking)
    yield Net


@case
def a_setter() -> Iterator[F]:
    def set_it(self: F, x: F) -> None:
        vars(self)["kept"] = [asking(x)]

    class Net(nn.Module):
        f = property(None, lambda self, x: vars(self).update(kept=[x]))

        def forward(self, x: F) -> F:
            self.f = x
            return vars(self).pop("kept")[0]

    yield Net
    Net.f = property(None, set_it)
    yield Net


@case
def a_static_method() -> Iterator[F]:
    class Net(Base):
        f = staticmethod(plain)

    yield Net
    Net.f = staticmethod(asking)
    yield Net


@case
def a_class_method() -> Iterator[F]:
    class Net(Base):
        f = classmethod(lambda cls, x: plain(x))

    yield Net
    Net.f = classmethod(lambda cls, x: asking(x))
    yield Net


@case
def a_partial() -> Iterator[F]:
    class Net(Base):
        f = functools.partial(plain)

    yield Net
    Net.f = functools.partial(asking)
    yield Net


@case
def a_partial_method() -> Iterator[F]:
    class Net(Base):
        f = functools.partialmethod(lambda self, x: plain(x))

    yield Net
    Net.f = functools.partialmethod(lambda self, x: asking(x))
    yield Net


@case
def a_cached_method() -> Iterator[F]:
    class Net(Base):
        f = functools.cache(lambda self, factor: torch.ones(3) * factor)

        def forward(self, x: F) -> F:
            return x + self.f(2)

    yield Net
    Net.f = functools.cache(lambda self, factor: torch.zeros(3) * factor)
    yield Net


@case
def a_cached_function() -> Iterator[F]:
    f = make_cached()

    class Net(nn.Module):
        def forward(self, x: F) -> F:
            return x + f(2)

    yield Net
    f = make_cached()
    yield Net


@case
def a_cached_keyword_default() -> Iterator[F]:
    class Net(nn.Module):
        def forward(self, x: F, *, f: F = make_cached()) -> F:  # noqa: B008
            return x + f(2)

    yield Net
    Net.forward.__kwdefaults__["f"] = make_cached()
    yield Net


@case
def a_keyword_default() -> Iterator[F]:
    class Net(nn.Module):
        def forward(self, x: F, *, f: F = plain) -> F:
            return f(x)

    yield Net
    Net.forward.__kwdefaults__["f"] = asking
    yield Net


@case
def a_function_in_a_module() -> Iterator[F]:
    home = ModuleType("home")
    home.f = make_cached()  # type: ignore[attr-defined]

    class Net(nn.Module):
        def forward(self, x: F) -> F:
            return x + home.f(2)

    yield Net
    home.f = make_cached()  # type: ignore[attr-defined]
    yield Net


@case
def a_function_in_a_module_of_a_package() -> Iterator[F]:
    home, inner = ModuleType("home"), ModuleType("inner")
    home.inner, inner.f = inner, plain  # type: ignore[attr-defined]
    inner.home = home  # type: ignore[attr-defined]

    class Net(nn.Module):
        def forward(self, x: F) -> F:
            return home.inner.f(x)  # type: ignore[attr-defined]

    yield Net
    inner.f = asking  # type: ignore[attr-defined]
    yield Net


@case
def as_many_names_as_before() -> Iterator[F]:
    known: dict[str, Any] = {"nn": nn, "old": 1}
    text = (
        "class Net(nn.Module):\n  def forward(self, x):\n    return f(x) if 'f' in globals() else x"
    )
    exec(compile(text, __file__, "exec"), known)
    yield known["Net"]
    del known["old"]
    known["f"] = asking
    yield known["Net"]


@case
def the_bases() -> Iterator[F]:
    class Plain:
        def f(self, x: F) -> F:
            return plain(x)

    class Asking:
        def f(self, x: F) -> F:
            return asking(x)

    class Mixin(Plain):
        pass

    class Net(Mixin, nn.Module):
        def forward(self, x: F) -> F:
            return self.f(x)

    yield Net
    Mixin.__bases__ = (Asking,)
    yield Net


@case
def an_attribute_of_a_function() -> Iterator[F]:
    def through(x: F) -> F:
        return through.__wrapped__(x)  # type: ignore[attr-defined]

    through.__wrapped__ = plain  # type: ignore[attr-defined]

    class Net(nn.Module):
        def forward(self, x: F) -> F:
            return through(x)

    yield Net
    through.__wrapped__ = asking  # type: ignore[attr-defined]
    yield Net


class PlainInner(nn.Module):
    def forward(self, x: F) -> F:
        return plain(x)


class AskingInner(nn.Module):
    def forward(self, x: F) -> F:
        return asking(x)


@case
def a_module_in_a_closure() -> Iterator[F]:
    inner = nn.Sequential(PlainInner())

    class Net(nn.Module):
        def forward(self, x: F) -> F:
            return inner(x)

    yield Net
    inner = nn.Sequential(AskingInner())
    yield Net
    inner[0] = PlainInner()
    yield Net
    inner[0] = AskingInner()
    yield Net


@case
def a_module_in_a_default() -> Iterator[F]:
    inner = nn.Sequential(PlainInner())

    class Net(nn.Module):
        def forward(self, x: F, inner: F = inner) -> F:
            return inner(x)

    yield Net
    inner[0] = AskingInner()
    yield Net


@case
def a_bound_method() -> Iterator[F]:
    class Helper:
        def go(self, x: F) -> F:
            return asking(x)

    f: Any = plain

    class Net(nn.Module):
        def forward(self, x: F) -> F:
            return f(x)

    yield Net
    f = Helper().go
    yield Net


class Helper:
    """An object whose methods nobody names."""

    def __call__(self, x: F) -> F:
        return asking(x)


class Wrapper:
    def __init__(self, f: F) -> None:
        self.f = f

    def __call__(self, x: F) -> F:
        return self.f(x)


class PlainHelper:
    def __call__(self, x: F) -> F:
        return plain(x)


@case
def an_object() -> Iterator[F]:
    f: Any = PlainHelper()

    class Net(nn.Module):
        def forward(self, x: F) -> F:
            return f(x)

    yield Net
    f = Helper()
    yield Net
    f = Wrapper(plain)
    yield Net
    f.f = asking
    yield Net


@case
def an_object_in_an_attribute() -> Iterator[F]:
    helper: Any = PlainHelper()

    class Net(Base):
        def __init__(self) -> None:
            super().__init__()
            self.f = helper

    yield Net
    helper = Helper()
    yield Net


@case
def a_descriptor() -> Iterator[F]:
    class Descriptor:
        def __get__(self, owner: F, cls: F = None) -> F:
            return lambda x: asking(x)

    class Net(Base):
        f = plain

    Net.f = staticmethod(plain)
    yield Net
    Net.f = Descriptor()
    yield Net


@pytest.mark.parametrize("rebind", cases)
def test_what_is_bound_anew_is_read_again(rebind: Any) -> None:
    x = torch.randn(3)
    for cls in rebind():
        mod = cls()
        program = export(mod, (x,))
        torch.testing.assert_close(program.module()(x), mod(x))


def test_a_module_that_is_loaded_later_is_read(tmp_path: Any, monkeypatch: Any) -> None:
    (tmp_path / "loaded_later.py").write_text(
        "import torch\nKEPT = {}\n\n\ndef f(x):\n    KEPT['x'] = x\n    return x + 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    class Net(nn.Module):
        def forward(self, x: F) -> F:
            if "loaded_later" not in sys.modules:
                return x
            from loaded_later import f  # type: ignore[import-not-found]

            return f(x)

    x = torch.ones(2)
    export(Net(), (x,))
    import loaded_later

    with pytest.warns(UserWarning, match="keeps a tensor in KEPT"):
        export(Net(), (x,))
    assert not loaded_later.KEPT


def test_a_global_called_type_stays() -> None:
    known: dict[str, Any] = {"nn": nn, "torch": torch, "type": type}
    text = (
        "class Net(nn.Module):\n  def forward(self, x):\n    return x * (type(x) is torch.Tensor)"
    )
    exec(compile(text, __file__, "exec"), known)
    for _ in range(2):
        program = export(known["Net"](), (torch.ones(2),))
        assert program.module()(torch.ones(2)).tolist() == [1, 1]
        assert known["type"] is type
