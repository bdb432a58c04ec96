"""An export that is interrupted, anywhere, leaves torch, the module and generators as they were.

An interrupt (Ctrl-C, an alarm) is an exception that Python raises where a function begins, after a
call of C, or where a loop turns. These tests raise one at each such place of the code that enters
and leaves a capture, at each of its lines, and at random places of all.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lostwax
from lostwax import Dim, export
from tests.capture.surroundings import Doubled, keys, look

PACKAGE = Path(lostwax.__file__).parent
WATCHED = {
    str(PACKAGE / name)
    for name in ("fake/undo.py", "fake/thread_state.py", "capture/patches/swap.py",
                 "capture/patches/table.py", "capture/patches/random_numbers.py",
                 "ir/collector.py")
}  # fmt: skip
ENTERING = {
    "__enter__", "__exit__", "catch_calls", "_let_go", "replace", "restore", "_update", "_put",
    "leave_as_it_was", "_put_all_back", "_put_back", "stances", "has_averages", "run", "_run",
}  # fmt: skip
"""Not `export_call`: no interrupt comes between the lines of `with lock:`, which is C's."""


class Interrupt(BaseException):
    """Not one that anybody expects."""


class Small(nn.Module):
    """With state that is written, an attribute that is set, and layers that are looked after."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3, momentum=None)
        self.register_buffer("count", torch.zeros(()))
        self.seen: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.seen.append(1)
        with torch.no_grad():
            y = self.norm(x)
        return y * torch.tensor(x.shape[0]) + x.conj()


def _is_watched(frame: FrameType) -> bool:
    code = frame.f_code
    if code.co_filename in WATCHED:
        return True
    return code.co_name in ENTERING and code.co_filename.startswith(str(PACKAGE))


class At:
    """Raises at the place number `place` that is watched."""

    def __init__(self, place: int, lines: bool) -> None:
        self.left, self.lines = place, lines

    def __enter__(self) -> At:
        (sys.settrace if self.lines else sys.setprofile)(self)
        return self

    def __exit__(self, *error: Any) -> None:
        sys.settrace(None)
        sys.setprofile(None)

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        wanted = ("line",) if self.lines else ("call", "c_return")
        if not _is_watched(frame):
            return None
        if event in wanted:
            self.left -= 1
            if self.left == 0:
                raise Interrupt
        return self


X = torch.randn(4, 3)


def small(module: nn.Module) -> Any:
    return export(module, (X,), dynamic_shapes=({0: Dim("n", min=2)},))


@pytest.mark.filterwarnings("ignore:the module sets its attribute")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("lines", [False, True])
def test_an_interrupt_while_entering_and_leaving(lines: bool) -> None:
    module = Small()
    text, before = str(small(module)), look(module)
    place = interrupted = 0
    while True:
        place += 1
        held: list[BaseException] = []  # a traceback keeps frames alive, and what they hold
        try:
            with At(place, lines) as at:
                small(module)
        except Interrupt as error:
            interrupted += 1
            held.append(error)
        assert look(module) == before, place
        held.clear()
        assert keys() == before["keys"], place
        if at.left > 0:
            break
    # Where Python itself closes a generator, or lets something die, it does not go on from there.
    assert place - 10 < interrupted < place
    assert interrupted > 100
    assert module.seen == []
    assert str(small(module)) == text


def _layers() -> tuple[nn.Module, Callable[[], Any]]:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    x = torch.randn(2, 5, 8)
    sizes = ({0: Dim("b"), 1: Dim("s")},)
    return model, lambda: export(model, (x,), dynamic_shapes=sizes)


def _gradients() -> tuple[nn.Module, Callable[[], Any]]:
    model, x = nn.Linear(3, 3), torch.randn(2, 3)

    def energy(x: Tensor) -> Tensor:
        y = Doubled.apply(model(x)).sin().sum()
        return (
            torch.autograd.grad(y, model.weight, create_graph=True)[0]
            + torch.func.vmap(lambda r: r.sum())(x).sum()
        )

    return model, lambda: export(energy, (x,))


def _decomposed() -> tuple[nn.Module, Callable[[], Any]]:
    model = nn.Sequential(nn.Conv1d(3, 3, 1), nn.GELU(), nn.GRU(4, 2))
    x = torch.randn(2, 3, 4)
    return model, lambda: export(model, (x,)).run_decompositions()


@pytest.fixture
def alarm() -> Iterator[Callable[[float], Any]]:
    def ring(*_: Any) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGALRM, ring)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="signals come to the main one"
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("make", [_layers, _gradients, _decomposed])
def test_an_alarm_at_a_random_time(make: Any, alarm: Callable[[float], Any]) -> None:
    model, work = make()
    text = str(work())
    source, before, took, rung = random.Random(0), look(model), 1.0, 0
    for _ in range(400):
        began = time.perf_counter()
        try:
            try:
                alarm(1e-6 + source.random() * took)
                work()
                took = min(took, time.perf_counter() - began)
            finally:
                alarm(0)
        except Interrupt:
            rung += 1
        assert look(model) == before
        if rung == 50:
            break
    assert rung
    assert str(work()) == text
