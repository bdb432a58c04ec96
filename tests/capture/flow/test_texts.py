"""Texts of numbers and tensors: where one decides something, the number itself is asked for."""

from __future__ import annotations

import hashlib
import io
import logging
import sys
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import record_function

from lostwax import Dim, export
from lostwax.errors import ConstraintViolationError, LostwaxError

X = torch.ones(3)
SCALES = {"e0": 1.0, "e1": 2.0}
log = logging.getLogger(__name__)


def look_up(x: Tensor, i: Tensor) -> Any:
    return x * SCALES.get(f"e{i.item()}", 9.0)


def look_up_later(x: Tensor, i: Tensor) -> Any:
    key = "e" + str(i.item())
    return x * 2 if key in SCALES else x


def compare(x: Tensor, i: Tensor) -> Any:
    return x * 2 if repr(i.item()) == "1" else x


def compare_formatted(x: Tensor, i: Tensor) -> Any:
    return x * 2 if "{}".format(i.item()) != "1" else x  # noqa: UP032


def compare_truth(x: Tensor, i: Tensor) -> Any:
    return x * 2 if str((i > 0).item()) == "True" else x


def compare_tensor(x: Tensor, i: Tensor) -> Any:
    return x * 2 if str(i) == "tensor(1)" else x


def count(x: Tensor, i: Tensor) -> Any:
    return x * len(f"{i.item()}")


def return_it(x: Tensor, i: Tensor) -> Any:
    return x, f"{i.item()}"


def _name(i: Tensor) -> str:
    return f"e{i.item()}"


def name_elsewhere(x: Tensor, i: Tensor) -> Any:
    return x * SCALES.get(_name(i), 9.0)


class Attribute(nn.Module):
    e0, e1 = 1.0, 2.0

    def forward(self, x: Tensor, i: Tensor) -> Any:
        return x * getattr(self, f"e{i}", 9.0)


def _scale(key: str, *, other: str = "") -> float:
    return 2.0 if key == "1" or other == "1" else 1.0


def hand_on(x: Tensor, i: Tensor) -> Any:
    return x * _scale(str(i.item()))


def hand_on_by_name(x: Tensor, i: Tensor) -> Any:
    return x * _scale("", other=f"{i.item()}")


class Kept:
    key = ""


def keep_in_attribute(x: Tensor, i: Tensor) -> Any:
    kept = Kept()
    kept.key = f"{i.item()}"
    return x * _scale(kept.key)


def keep_in_list(x: Tensor, i: Tensor) -> Any:
    keys: list[str] = []
    keys.append(str(i.item()))
    return x * ("1" in keys)


def hash_it(x: Tensor, i: Tensor) -> Any:
    return x * hashlib.md5(str(i.item()).encode()).digest()[0]


def show_in_list(x: Tensor, i: Tensor) -> Any:
    return x * sum(map(ord, str([i.item()])))


def join_texts(x: Tensor, i: Tensor) -> Any:
    return x * sum(ord(each) for each in ",".join(map(str, [i.item()])))


def keep_in_dict(x: Tensor, i: Tensor) -> Any:
    known = {"key": f"{i.item()}"}
    return x * ("1" in known.values())


def keep_in_comprehension(x: Tensor, i: Tensor) -> Any:
    keys = [str(each) for each in (i.item(), 2)]
    return x * ("1" in keys)


def go_over_characters(x: Tensor, i: Tensor) -> Any:
    for each in f"{i.item()}":
        x = x + ord(each)
    return x


def print_elsewhere(x: Tensor, i: Tensor) -> Any:
    kept = io.StringIO()
    print(i.item(), file=kept)
    return x * len(kept.getvalue())


def print_text_elsewhere(x: Tensor, i: Tensor) -> Any:
    kept = io.StringIO()
    print(f"{i.item()}", file=kept)
    return x * len(kept.getvalue())


class _Lines:
    """A log that can be read."""

    def __init__(self) -> None:
        self.lines = list[str]()

    def info(self, line: str) -> None:
        self.lines.append(line)

    debug = warning = error = info


def read_log(x: Tensor, i: Tensor) -> Any:
    lines = _Lines()
    lines.info(f"{i.item()}")
    return x * len(lines.lines[0])


def _show(text: str) -> None:
    print(text)


DECIDING: list[Any] = [
    hand_on, hand_on_by_name, keep_in_attribute, keep_in_list,
    look_up, look_up_later, compare, compare_formatted, compare_truth, compare_tensor, count,
    return_it, name_elsewhere, Attribute(), hash_it, show_in_list, join_texts, keep_in_dict,
    keep_in_comprehension, go_over_characters, print_elsewhere, print_text_elsewhere, read_log,
]  # fmt: skip


@pytest.mark.parametrize("call", DECIDING)
def test_a_text_that_decides_is_refused(call: Any) -> None:
    with pytest.raises(LostwaxError, match="test_texts"):
        export(call, (X, torch.tensor(1)))


def test_a_text_that_is_shown(capsys: Any) -> None:
    def show(x: Tensor, i: Tensor) -> Tensor:
        n = i.item()
        print(n, f"{n} of {x}")
        print(n, file=sys.stderr)
        sys.stdout.write(f"{n}")
        log.info(f"{n}")
        logging.getLogger("other").info(f"{n}")
        _show(f"{n} elsewhere")
        message = f"{n} is too large"
        if n > 5:
            raise ValueError(message)
        torch._check(n >= 0, lambda: f"{n} is less than 0")
        torch._assert(n < 9, f"{n} is more than 8")
        shown = [f"{each}" for each in (n, x)]
        log.info(shown)
        warnings.warn(f"{ {'n': n} }", stacklevel=1)
        return x * n

    with pytest.warns(UserWarning, match="'n': u0"):
        program = export(show, (X, torch.tensor(1))).module()
    torch.testing.assert_close(program(X, torch.tensor(3)), X * 3)
    with pytest.raises(RuntimeError, match="n > 5"):
        program(X, torch.tensor(6))
    assert "u0" in capsys.readouterr().out


def test_the_text_of_a_size() -> None:
    def scale(x: Tensor) -> Any:
        print(f"{x.shape[0]}")
        return x * {"3": 2.0}.get(f"{x.shape[0]}", 1.0)

    with pytest.raises(ConstraintViolationError, match="test_texts"):
        export(scale, (X,), dynamic_shapes=({0: Dim("n")},))
    torch.testing.assert_close(export(scale, (X,)).module()(X), X * 2)


def test_the_name_of_a_part_is_for_who_profiles() -> None:
    def measure(x: Tensor, i: Tensor) -> Any:
        with record_function(f"block {x.shape[0]}, {i.item()}"):
            y = x * i.item()
        name = "end of " + str(x.shape[0])
        part = torch.autograd.profiler.record_function(name)
        with part:
            return y + 1

    program = export(measure, (X, torch.tensor(1)), dynamic_shapes=({0: Dim("n")}, None)).module()
    torch.testing.assert_close(program(torch.ones(5), torch.tensor(3)), torch.full((5,), 4.0))
