"""Which exceptions a function catches, read off its bytecode."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import types
import warnings  # noqa: F401 (in a text below)
from typing import Any

import pytest
import torch

from lostwax.handlers import find_catching, is_caught


def ask(kind: Any = IndexError) -> bool:
    frame = sys._getframe(1)
    return is_caught(frame, frame.f_lasti, kind)


def in_finally(n: int = 1) -> bool:
    try:
        found = ask()
    finally:
        if n:
            n = 5 if n > 2 else 6
    return found


def by_other_classes() -> bool:
    try:
        found = ask()
    except TypeError:
        return True
    except (KeyError, ValueError):
        found = True
    return found


def by_no_class_in_two() -> bool:
    try:
        with torch.no_grad():
            try:
                found = ask()
            except KeyError:
                found = True
            finally:
                print(end="")
    finally:
        print(end="")
    return found


def by_its_class() -> bool:
    try:
        found = ask()
    except (KeyError, LookupError):
        return True
    return found


def by_any() -> bool:
    try:
        found = ask()
    except:  # noqa: E722
        return True
    return found


def by_leaving() -> bool:
    found = False
    for _ in range(2):
        try:
            found = ask()
        finally:
            break  # noqa: B012
    return found


def around_others() -> bool:
    try:
        try:
            found = ask()
        except TypeError:
            found = True
    except LookupError:
        return True
    return found


def around_a_manager() -> bool:
    try:
        with torch.no_grad():
            found = ask()
    except LookupError:
        return True
    return found


def by_a_manager() -> bool:
    found = False
    with contextlib.suppress(IndexError):
        found = ask()
    return found


def of_an_unknown_class() -> bool:
    try:
        found = ask(BaseException)
    except TypeError:
        return True
    return found


def by_a_computed_class() -> bool:
    try:
        found = ask()
    except sys.modules["json"].JSONDecodeError:  # type: ignore[attr-defined]
        return True
    return found


def to_another_class() -> bool:
    """Where the program fails, it does not fail with the text of the first."""
    try:
        found = ask()
    except Exception as error:
        raise RuntimeError from error
    return found


def in_a_loop_at_the_end() -> bool:
    try:
        found = ask()
    finally:
        for each in "ab":
            print(each, end="")
    return found


@pytest.mark.parametrize(
    "function", [in_finally, by_other_classes, by_no_class_in_two, in_a_loop_at_the_end]
)
def test_passed_on(function: Any) -> None:
    assert not function()


def by_raising_another_at_the_end() -> bool:
    try:
        try:
            found = ask()
        finally:
            if len("ab") < 2:
                raise KeyError
    except KeyError:
        return True
    return found


@pytest.mark.parametrize(
    "function",
    [
        by_raising_another_at_the_end,
        by_its_class, by_any, by_leaving, around_others, around_a_manager, by_a_manager,
        of_an_unknown_class, by_a_computed_class, to_another_class,
    ],
)  # fmt: skip
def test_caught(function: Any) -> None:
    assert function()


# --------------------------------------------------------------------------------------- managers


class Plain:
    def __enter__(self) -> Any:
        return Swallowing()

    def __exit__(self, kind: Any, *error: object) -> None:
        if kind is not None:
            return
        print(end="")


class Derived(Plain):
    pass


class Swallowing:
    is_quiet = True

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> bool | None:
        return self.is_quiet or None


@contextlib.contextmanager
def bare(n: int = 0) -> Any:
    print(end="")
    yield n


@contextlib.contextmanager
def cleaning() -> Any:
    with torch.no_grad():
        try:
            yield
        except KeyError:
            print(end="")
        finally:
            for each in "ab":
                print(each, end="")


@contextlib.contextmanager
def catching() -> Any:
    with contextlib.suppress(KeyError):
        try:
            yield
        except LookupError as error:
            print(error, end="")


LOCK = threading.Lock()
_MANAGED = """
def managed(ask, held, holder, kinds, make=Plain):
    found = False
    with {}:
        found = ask()
    return found
"""


def manage(expression: str) -> bool:
    """Is an IndexError seen as caught, inside of a `with`?"""
    names = {**globals(), "torch": torch, "partial": functools.partial}
    exec(_MANAGED.format(expression), names)
    held = bare() if expression == "held" else Plain()
    holder = types.SimpleNamespace(lock=LOCK, plain=Derived(), swallowing=Swallowing())
    return names["managed"](ask, held, holder, (IndexError,))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "expression",
    [
        "torch.no_grad()", "torch.autocast(device_type='cpu', dtype=torch.bfloat16)", "Plain()",
        "Derived() as found", "make()", "held", "held as found", "holder.lock", "holder.plain",
        "LOCK",
        "contextlib.nullcontext()", "warnings.catch_warnings()", "bare()", "bare(n=3) as found",
        "cleaning()", "Plain(), bare(3), LOCK", "contextlib.suppress(KeyError, TypeError)",
    ],
)  # fmt: skip
def test_managers_that_pass_it_on(expression: str) -> None:
    assert not manage(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "Swallowing()", "holder.swallowing", "Plain(), Swallowing()", "Swallowing(), Plain()",
        "catching()", "contextlib.suppress(KeyError, *kinds)",
        "contextlib.suppress(KeyError, kinds[0])",
        "contextlib.suppress(KeyError, IndexError)", "contextlib.ExitStack()",
        "(Swallowing() if held else Plain())", "(holder and Plain())", "partial(Plain)()",
        "held as held", "(lambda: Swallowing())()",
    ],
)  # fmt: skip
def test_managers_that_may_swallow_it(expression: str) -> None:
    assert manage(expression)


# ------------------------------------------------------------------------- who is sure to catch it


def find(kind: Any = IndexError) -> int | None:
    frame = sys._getframe(1)
    line = find_catching(frame, frame.f_lasti, kind)
    return None if line is None else line - frame.f_code.co_firstlineno


def goes_on() -> int | None:
    try:
        return find()
    except LookupError:
        return None


def goes_on_further_out() -> int | None:
    try:
        try:
            return find()
        except KeyError:
            return None
        finally:
            print(end="")
    except (TypeError, IndexError) as error:
        print(error)
    return None


def sometimes_goes_on() -> int | None:
    try:
        return find()
    except Exception as error:
        if "memory" in str(error):
            return None
        raise


def suppresses() -> int | None:
    with contextlib.suppress(KeyError, LookupError):
        return find()
    return None


def returns_at_the_end() -> int | None:
    found = None
    try:
        found = find()
    finally:
        return found  # noqa: B012


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (goes_on, 3),
        (goes_on_further_out, 8),
        (sometimes_goes_on, 3),
        (suppresses, 1),
    ],
)
def test_it_is_sure_to_be_caught(function: Any, line: int) -> None:
    assert function() == line


def test_a_finally_that_returns_catches_all() -> None:
    assert returns_at_the_end() is not None


def raises_another() -> int | None:
    try:
        return find()
    except LookupError as error:
        raise ValueError from error


def raises_it_again() -> int | None:
    try:
        return find()
    except LookupError:
        for each in "ab":
            print(each)
        raise


def suppresses_others() -> int | None:
    with contextlib.suppress(KeyError), torch.no_grad():
        return find()
    return None


class Passing:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> bool:
        return bool(error[0])


def may_suppress() -> int | None:
    with Passing():
        return find()


def catches_others() -> int | None:
    try:
        return find()
    except (KeyError, TypeError):
        return 1


def cleans_up() -> int | None:
    try:
        return find()
    finally:
        print(end="")


def in_the_handler() -> int | None:
    try:
        int("one")
    except ValueError:
        return find(ValueError)
    return 1


@pytest.mark.parametrize(
    "function",
    [
        raises_another,
        raises_it_again,
        suppresses_others,
        may_suppress,
        catches_others,
        cleans_up,
        in_the_handler,
    ],
)
def test_it_may_go_on(function: Any) -> None:
    assert function() is None
