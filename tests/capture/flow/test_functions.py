"""Functions of all kinds that ask data do what they do in eager, or are refused in words."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import lostwax
from lostwax.errors import CaptureError
from tests.capture.flow.functions import PROGRAMS, REFUSED

INPUTS = [
    torch.tensor(each, dtype=torch.float32)
    for each in ([1, 1, 1], [-1, -1, -1], [1, -2, 3], [0, 0, 0], [5, 1, -7], [3, 3, 2], [9, 9, 9])
]


@pytest.mark.parametrize("function", PROGRAMS)
def test_it_does_what_eager_does(function: Any) -> None:
    run = lostwax.export(function, (INPUTS[0],)).module()
    for each in INPUTS:
        torch.testing.assert_close(run(each), function(each))


@pytest.mark.parametrize("function", REFUSED)
def test_what_cannot_be_one_program_is_refused_with_its_line(function: Any) -> None:
    with pytest.raises(CaptureError, match=REFUSED[function]) as error:
        lostwax.export(function, (INPUTS[0],))
    assert "flow/functions.py:" in str(error.value)
    assert "instead:" in str(error.value)


HELPERS = """
def {name}(*values):
    return values[0] + 10
"""
SHADOWING = """
from {helpers} import *

def limit(x, min, len):
    return x

class Sum:
    any = 3

    def sum(self, x):
        return x + 1 if any(t > 0 for t in x) else x

def program(x):
    def scale(y, abs=lambda t: t * 2):
        return abs(y)

    n = int(x.sum())
    y = Sum().sum(x) * max(n, 2) + min(x[0], x[1]) + len(x[x > 0])
    return scale(y), sum(1 for t in x if t > 1), y if bool(n) else x
"""


@pytest.mark.parametrize("name", ["helper", "max", "min"])
def test_names_are_pythons_own_where_nothing_else_has_them(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`from helpers import *` may bring another `max`, and mostly does not."""
    helpers, file = f"helpers_of_{name}", f"program_of_{name}"
    (tmp_path / f"{helpers}.py").write_text(HELPERS.format(name=name))
    (tmp_path / f"{file}.py").write_text(SHADOWING.format(helpers=helpers))
    monkeypatch.syspath_prepend(tmp_path)
    program = import_module(file).program
    try:
        run = lostwax.export(program, (INPUTS[0],)).module()
        for each in INPUTS:
            torch.testing.assert_close(run(each), program(each))
    finally:
        del sys.modules[helpers], sys.modules[file]


AROUND = """
try:
    import torch as library
except ImportError:
    pass

def choose_other():
    global max
    max = min

one = 1; pick = lambda x: x * 2 if x.sum() > 0 else x - one

class Holder:
    @staticmethod
    @(lambda function: function)
    def program(x):
        if library.sum(x) > 3:
            return library.abs(pick(x)) + max(x[0], x[1])
        return pick(x)

if one:
    def program(x):
        return Holder.program(x) if x.sum() < 8 else library.neg(x)
"""


@pytest.mark.parametrize("is_other", [False, True])
def test_what_stands_around_a_function_is_as_it_was(is_other: bool, tmp_path: Path) -> None:
    """Python compiles a call of a module otherwise than that of a method."""
    (file := tmp_path / "around.py").write_text(AROUND)
    exec(compile(AROUND, str(file), "exec"), names := dict[str, Any]())
    if is_other:
        names["choose_other"]()
    run = lostwax.export(names["program"], (INPUTS[0],)).module()
    for each in INPUTS:
        torch.testing.assert_close(run(each), names["program"](each))


def test_captures_in_threads_give_what_one_alone_gives_while_others_run_eagerly() -> None:
    functions = list(PROGRAMS)[:4]
    inputs = INPUTS[:3]
    wanted = {f: [f(each) for each in inputs] for f in functions}
    alone = {f: str(lostwax.export(f, (INPUTS[0],)).graph) for f in functions}
    is_done = threading.Event()

    def run_eagerly() -> int:
        turns = 0
        while not is_done.is_set():
            for f in functions:
                torch.testing.assert_close([f(each) for each in inputs], wanted[f])
            turns += 1
        return turns

    def capture(f: Any) -> str:
        return str(lostwax.export(f, (INPUTS[0],)).graph)

    with ThreadPoolExecutor(1 + len(functions)) as pool:
        eager = pool.submit(run_eagerly)
        found = [pool.submit(capture, f) for f in functions]
        try:
            assert [each.result() for each in found] == [alone[f] for f in functions]
        finally:
            is_done.set()
        assert eager.result() > 0
