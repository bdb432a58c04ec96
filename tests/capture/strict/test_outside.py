"""Rules 3 and 4 of strict: the clock, random numbers, files and the environment are not read; a
second capture gives the same program."""

from __future__ import annotations

import _thread
import cProfile
import ctypes
import datetime
import functools
import hashlib
import importlib
import inspect
import io
import logging
import mmap
import os
import pathlib
import pickle
import pwd
import random
import resource
import secrets
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import types
import uuid
from collections.abc import Callable
from random import randint
from time import perf_counter
from typing import Any

import numpy as np
import pytest
import torch
from numpy.random import PCG64, rand
from torch import Tensor, nn

from lostwax import export
from lostwax.errors import CaptureError, StrictError
from tests.capture.small import Of

NAMED = (_thread, datetime, importlib, os, secrets, subprocess, tempfile, uuid, randint, np, rand,
         ctypes, hashlib, pickle, pwd, resource, PCG64)  # fmt: skip
"""In the expressions below."""
X = torch.randn(3, 4)
HOME = pathlib.Path(__file__)
PAIR, BASE, MAPPED = socket.socketpair(), sqlite3.connect(":memory:"), mmap.mmap(-1, 10)
ENTRY = next(iter(os.scandir("/")))
HELD = types.SimpleNamespace(
    env=os.environ, clock=time, system=os, now=datetime.datetime.now, file=HOME.open("rb")
)
SAVED = io.BytesIO()
torch.save(torch.ones(4), SAVED)


def make(expression: str) -> Any:
    """A forward that adds it to x."""
    return of_this_file(f"x + float({expression})")


def of_this_file(expression: str) -> Any:
    # Who asks for all globals is watched with all of these: sockets, maps, databases.
    known = {"os": os} if "globals()" in expression else globals()
    return eval(compile(f"lambda self, x: {expression}", __file__, "eval"), known)


def refuse(module: Any) -> str:
    with pytest.raises(StrictError) as caught:
        export(module, (X,), strict=True)
    assert sys.getprofile() is None
    return caught.value.args[0]


CLOCK = functools.partial(time.time)


def _read_file(self: Any, x: Tensor) -> Tensor:
    with open(__file__) as file:
        return x + len(file.readline())


def _import_inside(self: Any, x: Tensor) -> Tensor:
    import time as clock

    return x + clock.time()


def _start_thread(self: Any, x: Tensor) -> Tensor:
    thread = threading.Thread(target=list)
    thread.start()
    return x


def _by_default(self: Any, x: Tensor, clock: Callable[[], float] = time.monotonic) -> Tensor:
    return x + clock()


def _caught(self: Any, x: Tensor) -> Tensor:
    try:
        return x + time.time()
    except Exception:
        return x


def ask_clock() -> float:
    return perf_counter()


class Timer:
    def __enter__(self) -> Timer:
        self.start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.end = time.perf_counter()


def _timed(self: Any, x: Tensor) -> Tensor:
    with Timer():
        return x + 1


# uuid asks a library of the system's, where there is one.
HAS_LIBRARY = getattr(uuid, "_generate_time_safe", None) is not None
UUID_ASKS = "uuid.generate_time_safe()" if HAS_LIBRARY else "time.time_ns()"

CASES: list[tuple[Any, str]] = [
    ("time.time()", "time.time()"),
    ("perf_counter()", "time.perf_counter()"),
    ("CLOCK()", "two captures of the same call differ"),  # nobody sees it called
    ("ask_clock()", "time.perf_counter()"),
    ("self.clock()", "time.time()"),
    ("datetime.datetime.now().second", "datetime.datetime.now()"),
    ("datetime.date.today().day", "datetime.date.today()"),
    ("random.random()", "random.random()"),
    ("randint(0, 5)", "random.getrandbits()"),
    ("random.gauss(0, 1)", "random.random()"),
    ("random.choice([1, 2])", "random.getrandbits()"),
    ("random.Random().random()", "a random generator without a seed"),
    ("random.seed(0) or 1", "random.seed()"),
    ("secrets.randbelow(5)", "os.urandom()"),
    ("random.SystemRandom().random()", "os.urandom()"),
    ("os.urandom(1)[0]", "os.urandom()"),
    ("uuid.uuid4().int % 7", "os.urandom()"),
    ("uuid.uuid1().int % 7", UUID_ASKS),
    ("np.random.default_rng().random()", "os.urandom()"),
    # Beside other threads the first draw, which seeds, is told of.
    ("np.random.rand()", "a RandomState -> drawn from|os.urandom()"),
    ("rand()", "rand.__self__, a global of test_outside.py: a RandomState -> drawn from"),
    ("len(os.environ['PATH'])", "os.environ (__getitem__)"),
    ("len(os.environ)", "os.environ (__len__)"),
    ("len(os.getenv('PATH', ''))", "os.environ (__getitem__)"),
    ("'PATH' in os.environ", "os.environ (__getitem__)"),
    ("os.getpid()", "os.getpid()"),
    ("len(os.getcwd())", "os.getcwd()"),
    ("os.path.exists(__file__)", "os.stat()"),
    ("len(os.listdir('/'))", "os.listdir()"),
    ("len(open(__file__).read())", f"open({__file__!r})"),
    ("len(HOME.read_text())", f"open({__file__!r})"),
    ("HOME.exists()", "os.stat()"),
    ("HOME.is_dir()", "os.stat()"),
    ("len(HOME.resolve().name)", "os."),
    ("len([*HOME.parent.iterdir()])", "os."),
    ("os.path.isfile(HOME)", "os.stat()"),
    ("len(os.path.abspath('a'))", "os.getcwd()"),
    ("len(tempfile.mkdtemp())", "os."),
    ("len(np.memmap(__file__, dtype=np.uint8, mode='r'))", f"open({__file__!r})"),
    ("torch.load(SAVED).sum().item()", "torch.load()"),
    ("len(subprocess.run(['true']).args)", ""),
    ("self.file.tell()", "BufferedReader.tell()"),
    ("importlib.import_module('time').time()", "time.time()"),
    ("eval('time.time()')", "time.time()"),
    (_read_file, f"open({__file__!r})"),
    (_import_inside, "time.time()"),
    (_start_thread, "a new thread"),
    ("threading.Timer(0, list).start() or 1", "a new thread"),
    ("_thread.start_new_thread(list, ())", "a new thread"),
    (_by_default, "time.monotonic()"),
    (_timed, "time.perf_counter()"),
    # C calls C, and no code names what is called
    ("len([*map(open, [__file__])])", f"open({__file__!r})"),
    ("len(functools.partial(open, __file__)().read())", f"open({__file__!r})"),
    ("len(io.FileIO(__file__).read())", f"open({__file__!r})"),
    ("len(np.fromfile(__file__, dtype=np.uint8))", f"open({__file__!r})"),
    ("np.ones(3).tofile('/nowhere/a') or 1", "open('/nowhere/a')"),
    ("sqlite3.Connection(':memory:').total_changes", "sqlite3.connect(':memory:')"),
    ("ctypes.CDLL(None).getpid()", "ctypes.dlopen()"),
    # what is open, and tells without an event
    ("PAIR[0].send(b'a')", "socket.send()"),
    ("len(MAPPED.read(3))", "mmap.read()"),
    ("BASE.execute('select 1').fetchone()[0]", "Connection.execute()"),
    ("ENTRY.is_dir()", "DirEntry.is_dir()"),
    # what an object of the user's holds
    ("len(HELD.env['PATH'])", "os.environ (__getitem__)"),
    ("len(HELD.env.get('PATH'))", "os.environ (__getitem__)"),
    ("HELD.clock.monotonic()", "time.monotonic()"),
    ("HELD.system.getpid()", "os.getpid()"),
    ("HELD.now().second", "datetime.datetime.now()"),
    ("HELD.file.tell()", "BufferedReader.tell()"),
    # reached by no name
    ("globals()['os'].getpid()", "os.getpid()"),
    ("sys.modules['os'].getpid()", "os.getpid()"),
    ("sys._getframe().f_globals['os'].getpid()", "os.getpid()"),
    ("__import__('os').getpid()", "os.getpid()"),
    # modules and generators that no list had
    ("pwd.getpwuid(0).pw_uid", "pwd.getpwuid()"),
    ("resource.getrusage(0).ru_maxrss", "resource.getrusage()"),
    ("np.random.Generator(np.random.PCG64()).random()", "os.urandom()"),
    ("PCG64().random_raw() % 7", "os.urandom()"),
    ("torch.save(1, 'a') or 1", "torch.save()"),
    ("np.savetxt('/nowhere/a', np.ones(3)) or 1", "open('/nowhere/a')"),
]


@pytest.mark.parametrize(
    ("forward", "told"), CASES, ids=[getattr(f, "__name__", f) for f, _ in CASES]
)
def test_what_is_outside_is_refused(forward: Any, told: str) -> None:
    with open(__file__, "rb") as file:
        module = Of(make(forward) if isinstance(forward, str) else forward)
        module.clock, module.file = time.time, file  # type: ignore[assignment]
        if "self." not in str(forward):
            module = Of(type(module).forward)  # which holds neither
        text = refuse(module)
    assert any(each in text for each in told.split("|"))
    if callable(forward) and forward is not _timed:
        lines, first = inspect.getsourcelines(forward)
        at = int(text.partition("test_outside.py:")[2].partition(" ")[0])
        assert first < at < first + len(lines)
    assert " why: " in text


def test_who_catches_the_error_is_refused_all_the_same() -> None:
    with pytest.raises(CaptureError, match=r"time.time\(\)(.|\n)*caught this error"):
        export(Of(_caught), (X,), strict=True)


def test_code_without_a_file() -> None:
    forward = eval("lambda self, x: x + time.time()", globals())
    assert "time.time()" in refuse(Of(forward))
    assert "time.time()" in refuse(functools.partial(forward, None))


def test_the_text() -> None:
    text = refuse(Of(_read_file))
    number = inspect.getsourcelines(_read_file)[1] + 1
    assert text == (
        f"the module reads or changes what is outside of it: open({__file__!r}).\n"
        f"  at tests/capture/strict/test_outside.py:{number} in _read_file: "
        "with open(__file__) as file:\n"
        "  why: the program would have what was read at capture, in every run\n"
        "  instead: read it before, and pass it as an argument; for random numbers, torch.rand is "
        "drawn again in each run"
    )


PATHS = [
    *("HOME.name", "HOME.stem", "HOME.suffix", "HOME.parent", "HOME.parents[0]", "HOME / 'a'"),
    *("HOME.parts", "HOME.with_suffix('.a')", "HOME.relative_to('/')", "HOME.match('*.py')"),
    *("os.path.normpath('a/../b')", "os.path.splitext(__file__)", "os.path.split(HOME)"),
    *("os.path.basename(__file__)", "os.path.commonpath(['a/b', 'a'])", "HOME.is_absolute()"),
]
"""Texts of paths, taken apart: of what C computes there, each Python has its own functions."""
ACCEPTED = [
    "random.Random(0).random()",
    "np.random.default_rng(0).random()",
    "datetime.timedelta(days=1).days",
    "datetime.date(2020, 1, 1).day",
    "len(os.path.join('a', 'b'))",
    "len(io.StringIO('abc').read())",
    "uuid.UUID(int=3).int",
    *(f"len(str({path}))" for path in PATHS),
    "torch.rand(()).shape.numel()",
    "importlib.import_module('colorsys').rgb_to_hls(0, 0, 0)[0]",
    "len(pickle.dumps([1]))",
    "len(hashlib.sha256(b'a').digest())",
    "datetime.datetime(2020, 1, 1).timetuple().count(1)",
    "ctypes.sizeof(ctypes.c_double)",
    "len(os.fsencode('a'))",
    "(id(X) == 0) * 0",
]


@pytest.mark.parametrize("expression", ACCEPTED)
def test_what_tells_nothing_of_the_outside_is_accepted(expression: str) -> None:
    module = Of(make(expression))
    program = export(module, (X,), strict=True)
    torch.testing.assert_close(program.module()(X), module(X))
    assert sys.getprofile() is None


def test_torch_may_read_what_it_likes() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        random.Random(1)  # the watch is on
        return torch.nn.functional.dropout(torch.rand_like(x)) + torch.randn(4)

    assert len(export(Of(forward), (X,), strict=True).graph.nodes) > 3


def test_logging_may_read_the_clock() -> None:
    logger = logging.getLogger("tests.strict.outside")
    handler = logging.StreamHandler(io.StringIO())
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(handler)

    def forward(self: Any, x: Tensor) -> Tensor:
        random.Random(1)
        logger.warning("told")
        return x + 1

    export(Of(forward), (X,), strict=True)


# ------------------------------------------------------------------------------------- the threads


def test_other_threads_read_the_clock_meanwhile() -> None:
    go, done = threading.Event(), threading.Event()
    found: list[Any] = []

    def other() -> None:
        go.wait(10)
        with open(__file__) as file:
            found.append((time.time() > 0, len(file.readline()), sys.getprofile()))
        done.set()

    class Waiting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            random.Random(1)
            go.set()
            done.wait(10)
            return x + 1

    class Reading(Waiting):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + time.time()

    for model in (Waiting(), Reading()):
        go.clear(), done.clear()
        thread = threading.Thread(target=other)
        thread.start()
        if isinstance(model, Reading):
            assert "time.time()" in refuse(model)
        else:
            export(model, (X,), strict=True)
        thread.join()
    assert [each[0] and each[2] is None for each in found] == [True, True]


def test_events_are_heard_only_while_a_call_is_watched() -> None:
    assert "open(" in refuse(Of(_read_file))
    with open(__file__) as file:
        assert file.readline()
    plain = [*os.environ]
    assert len(plain) == len(os.environ)
    with pytest.raises(FileNotFoundError):
        open("/nowhere/a").close()


def test_random_numbers_beside_other_threads() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, args=(20,))
    thread.start()
    try:
        assert "random.random()" in refuse(Of(make("random.random()")))
        assert "random.getrandbits()" in refuse(Of(make("randint(0, 5)")))
        assert "test_outside.py:1 in <lambda>" in refuse(Of(make("np.random.rand()")))
        export(Of(make("1")), (X,), strict=True)
    finally:
        stop.set()
        thread.join()


def test_beside_a_profiler() -> None:
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        export(Of(make("1")), (X,), strict=True)  # which names nothing outside
        if sys.version_info < (3, 12):  # later, there is room for both
            with pytest.raises(StrictError, match="a profiler watches this thread"):
                export(Of(make("time.time()")), (X,), strict=True)
        assert sys.version_info >= (3, 12) or sys.getprofile() is profiler
    finally:
        profiler.disable()


# ------------------------------------------------------------------------------------- the second


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("x * _tick()", "aten.mul.Tensor(x, "),
        ("torch.tensor(_tick()) + x", "constant lifted_tensor_0: f32[] of "),
        ("x.relu() if _tick() % 2 else x.tanh()", "torch.ops.aten."),
        ("(x, _tick())", "node output: (x, "),
        ("x[: int(_tick()) % 2 + 1]", "aten.slice"),
    ],
)
def test_the_first_difference_is_named(expression: str, told: str) -> None:
    text = refuse(Of(of_this_file(expression)))
    assert text.startswith("two captures of the same call differ: "), text
    assert told in text, text
    assert "in the first run" in text
    assert "in the second" in text
    assert "  why: the module reads something that changes from call to call" in text


def _tick() -> float:
    return ticking()


class _Ticking:
    """Counts where nobody looks."""

    def __init__(self) -> None:
        self._number = ctypes.c_double(0)

    def __call__(self) -> float:
        self._number.value += 1
        return self._number.value


ticking = _Ticking()
