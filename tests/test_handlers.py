"""Which exceptions a function catches, read off its bytecode."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import pytest
import torch

from lostwax.handlers import is_caught


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


@pytest.mark.parametrize("function", [in_finally, by_other_classes, by_no_class_in_two])
def test_passed_on(function: Any) -> None:
    assert not function()


@pytest.mark.parametrize(
    "function",
    [
        by_its_class, by_any, by_leaving, around_others, around_a_manager, by_a_manager,
        of_an_unknown_class, by_a_computed_class, to_another_class,
    ],
)  # fmt: skip
def test_caught(function: Any) -> None:
    assert function()
