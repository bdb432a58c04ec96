"""Python processes in which nothing but torch is loaded yet, or what a test names.

To load torch takes three seconds of processor time. So one process loads it and waits, and the
others are forks of it. Where torch must not be loaded, a process is started as usual.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

_ROOT = Path(__file__).parent.parent
_LIMIT = 900
"""After so many seconds a process is killed."""


def run_python(
    code: str,
    *,
    check: bool = True,
    ignore_warnings: bool = False,
    loaded: str = "torch",
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Run `python -c code` in the project's folder, with these variables more in its
    environment."""
    (ran,) = _run_together([code], loaded, ignore_warnings, environment)
    assert not (check and ran.returncode), ran.stderr
    return ran


def run_module(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m name arguments` in the project's folder."""
    return run_python(_write_run([name, *arguments]), check=False, HF_HUB_OFFLINE="1")


def run_side_by_side(
    commands: Sequence[Sequence[str]], *, loaded: str, **environment: str
) -> list[subprocess.CompletedProcess[str]]:
    """Run `python -m name arguments` for each command, all at once, in forks of a process that has
    loaded these modules."""
    return _run_together([*map(_write_run, commands)], loaded, False, environment)


def _write_run(words: Sequence[str]) -> str:
    return (
        f"import runpy, sys; sys.argv[:] = {list(words)!r}; "
        f"runpy.run_module({words[0]!r}, None, '__main__')"
    )


def _run_together(
    codes: Sequence[str], loaded: str, ignore_warnings: bool, environment: dict[str, str]
) -> list[subprocess.CompletedProcess[str]]:
    waiting = _start(loaded)
    assert waiting.stdin is not None
    assert waiting.stdout is not None
    with TemporaryDirectory() as folder:
        files = [(Path(folder, f"out{i}"), Path(folder, f"err{i}")) for i in range(len(codes))]
        requests = [
            {
                "code": code,
                "environment": {**os.environ, **environment},
                "ignore": ignore_warnings,
                "files": [*map(str, each)],
            }
            for code, each in zip(codes, files, strict=True)
        ]
        waiting.stdin.write(json.dumps(requests) + "\n")
        waiting.stdin.flush()
        statuses = json.loads(waiting.stdout.readline())
        return [
            subprocess.CompletedProcess(["python"], status, out.read_text(), err.read_text())
            for status, (out, err) in zip(statuses, files, strict=True)
        ]


@cache
def _start(loaded: str) -> subprocess.Popen[str]:
    code = f"import {loaded}; from tests.fresh import wait; wait()"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def wait() -> None:
    """Fork for each of the requests that a line has, and answer with their exit statuses."""
    for line in sys.stdin:
        children = [_fork(request) for request in json.loads(line)]
        ended = [os.waitstatus_to_exitcode(os.waitpid(each, 0)[1]) for each in children]
        print(json.dumps(ended), flush=True)


def _fork(request: dict[str, Any]) -> int:
    child = os.fork()
    if not child:
        signal.alarm(_LIMIT)
        os._exit(_run(**request))
    return child


def _run(code: str, environment: dict[str, str], ignore: bool, files: list[str]) -> int:
    for number, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(environment)
    main = sys.modules["__main__"] = ModuleType("__main__")
    if ignore:
        warnings.simplefilter("ignore")
    status: object = 0
    try:
        exec(compile(code, "<string>", "exec"), vars(main))
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if not isinstance(status, int):
        print(status, file=sys.stderr)
    for each in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):  # code may exchange them
        if each is not None:
            each.flush()
    return status if isinstance(status, int) else 1
