"""An export that is interrupted, anywhere, leaves torch, the module and generators as they were.

An interrupt (Ctrl-C, an alarm) is an exception that Python raises where a function begins, after a
call of C, or where a loop turns. These tests raise one at each such place of the code that enters
and leaves a capture, at each of its lines, and at random places of all.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lostwax
from lostwax import Dim, export
from tests.capture.patches.surroundings import Doubled, keys, look
from tests.whole import sampled

PACKAGE = Path(lostwax.__file__).parent
TORCH = str(Path(torch.__file__).parent)


def files(*names: str) -> set[str]:
    assert all((PACKAGE / name).exists() for name in names)
    return {str(PACKAGE / name) for name in names}


WATCHED = files(
    "undo/undo.py", "undo/thread_state.py", "capture/patches/swap.py", "capture/patches/table.py",
    "capture/patches/random_numbers.py", "capture/threads.py", "capture/heap/reach.py",
    "collector.py",
)  # fmt: skip
ENTERING = {
    "__enter__", "__exit__", "catch_calls", "_let_go", "replace", "restore", "_update", "fill",
    "restore_later", "_put_back_all", "_put_back", "stances", "has_averages", "run", "_run",
}  # fmt: skip
"""Not `capture_call`: no interrupt comes between the lines of `with lock:`, which is C's."""


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

    def watches(self, frame: FrameType) -> bool:
        code = frame.f_code
        if code.co_filename in WATCHED:
            return True
        return code.co_name in ENTERING and code.co_filename.startswith(str(PACKAGE))

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        wanted = ("line",) if self.lines else ("call", "c_return")
        if not self.watches(frame):
            return None
        if event in wanted:
            self.left -= 1
            if self.left == 0:
                raise Interrupt
        return self


X = torch.randn(4, 3)
STEP = sampled(29, 1)
"""At each place of four thousand the module is exported: without `make fuzz` at some of them."""


def small(module: nn.Module) -> Any:
    return export(module, (X,), dynamic_shapes=({0: Dim("n", min=2)},))


@pytest.mark.filterwarnings("ignore:the module sets its attribute")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("lines", [False, True])
def test_an_interrupt_while_entering_and_leaving(lines: bool) -> None:
    module = Small()
    text, before = str(small(module)), look(module)
    place = tried = interrupted = 0
    while True:
        place += STEP
        tried += 1
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
    assert tried - 10 < interrupted < tried
    assert interrupted > 100 // STEP
    assert module.seen == []
    assert str(small(module)) == text


class AtCapture(At):
    """The same in `lostwax.capture`, around the captures."""

    def watches(self, frame: FrameType) -> bool:
        return frame.f_code.co_filename in AROUND or frame.f_code.co_name == "run_and_undo"


AROUND = files(
    "capture/adaptive.py", "capture/state/unkept_changes.py", "capture/python/functions_run.py"
)


@pytest.mark.parametrize("lines", [False, True])
def test_an_interrupt_around_a_capture(lines: bool) -> None:
    with ThreadPoolExecutor(1) as thread:
        thread.submit(_capture_interrupted, lines).result()


def _capture_interrupted(lines: bool) -> None:
    module, x = nn.Linear(3, 3), torch.randn(2, 3)
    lostwax.capture(module)(x)
    before = look(module)
    place = interrupted = 0
    while True:
        place += 1
        try:
            with AtCapture(place, lines) as at:
                lostwax.capture(module)(x)
        except Interrupt:
            interrupted += 1
        assert look(module) == before, place
        if at.left > 0:
            break
    assert interrupted > 40


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


def _called() -> tuple[nn.Module, Callable[[], Any]]:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, momentum=None)).eval()
    x = torch.randn(4, 3)

    def work() -> Any:
        captured = lostwax.capture(model)
        return [captured(x[:n]).tolist() for n in (2, 3, 4)]

    return model, work


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(3, 3), 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scale  # type: ignore[no-any-return]


def _kept() -> tuple[nn.Module, Callable[[], Any]]:
    """One that has captured, was interrupted, and is called again: some programs are found, others
    are not."""
    model, x = Scaled(), torch.randn(4, 3)
    captured, scales = lostwax.capture(model), itertools.count()

    def work() -> Any:
        for scale in (1.0, float(next(scales))):
            model.scale = scale
            for n in (2, 3, 4):
                torch.testing.assert_close(captured(x[:n]), model(x[:n]))
        return captured(x).shape

    return model, work


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
@pytest.mark.parametrize("make", [_layers, _gradients, _decomposed, _called, _kept])
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
        except BaseException as error:
            if not _is_interrupt(error):
                raise
            rung += 1
        assert look(model) == before
        if rung == 50:
            break
    assert rung
    assert str(work()) == text


def _is_interrupt(error: BaseException) -> bool:
    """Also if torch's own code was interrupted, and then fails to end what it has not begun (vmap
    leaves a level that it was about to enter)."""
    if isinstance(error, Interrupt):
        return True
    last = traceback.extract_tb(error.__traceback__)[-1].filename
    return last.startswith(TORCH) and isinstance(error.__context__, Interrupt)


# -------------------------------------------------------------------------------------------- files

FILES = files(
    "pt2/saving.py", "pt2/container/writer.py", "undo/replace_files.py", "pt2/container/archive.py"
)


class AtFile(At):
    """The same where files are written and read."""

    def watches(self, frame: FrameType) -> bool:
        return frame.f_code.co_filename in FILES


def _large() -> nn.Module:
    """So large that another thread computes the checksum."""
    return nn.Linear(600, 600)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(("old", "lines"), [(b"", False), (b"old", True)])
def test_an_interrupted_save_leaves_nothing_behind(old: bytes, lines: bool, tmp_path: Path) -> None:
    # An exception that a trace function raises at the end of an `except` leaves the thread with the
    # one that was caught there, for good: this is Python's doing, and no other test is to meet it.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(_save_interrupted, old, lines, tmp_path).result()
    assert sys.exc_info()[0] is None


def _save_interrupted(old: bytes, lines: bool, tmp_path: Path) -> None:
    program, path = export(_large(), (torch.randn(2, 600),)), tmp_path / "large.pt2"
    lostwax.save(program, path)
    whole, mask, before = path.read_bytes(), _mask(), look()
    place = interrupted = 0
    while True:
        place += sampled(3, 1)
        path.unlink(missing_ok=True)
        if old:
            path.write_bytes(old)
            path.chmod(0o640)
        try:
            with AtFile(place, lines) as at:
                lostwax.save(program, path)
        except Interrupt:
            interrupted += 1
        assert [each.name for each in tmp_path.iterdir()] in (["large.pt2"], [])
        found = path.read_bytes() if path.exists() else b""
        assert found in (old, whole), place
        assert _mask() == mask
        assert look() == before
        if at.left > 0:
            break
    assert found == whole
    assert path.stat().st_mode & 0o777 == (0o640 if old else 0o666 & ~mask)
    assert interrupted > sampled(16, 50)
    assert str(lostwax.load(path)) == str(program)


def _mask() -> int:
    mask = os.umask(0o22)
    os.umask(mask)
    return mask


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_alarm_while_a_file_is_read(alarm: Callable[[float], Any], tmp_path: Path) -> None:
    path = tmp_path / "layers.pt2"
    lostwax.save(_layers()[1](), path)
    text = str(lostwax.load(path))
    source, before, took, rung = random.Random(0), look(), 1.0, 0
    for _ in range(200):
        began = time.perf_counter()
        try:
            try:
                alarm(1e-6 + source.random() * took)
                lostwax.load(path)
                took = min(took, time.perf_counter() - began)
            finally:
                alarm(0)
        except Interrupt:
            rung += 1
        assert look() == before
        if rung == 30:
            break
    assert rung
    assert str(lostwax.load(path)) == text


@pytest.mark.parametrize("name", ["autocast_increment_nesting", "autocast_decrement_nesting"])
def test_an_interrupt_in_an_autocast(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch counts the autocasts that are entered: one that is never left would stay around."""

    def forward(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return x @ x

    original = getattr(torch, name)

    def interrupt() -> int:
        if "torch/amp" not in sys._getframe(1).f_code.co_filename:
            return int(original())
        if "increment" in name:
            original()
        raise Interrupt

    before = look()
    with monkeypatch.context() as patched:
        patched.setattr(torch, name, interrupt)
        with pytest.raises(Interrupt):
            export(forward, (torch.ones(2, 2),))
    assert look() == before
