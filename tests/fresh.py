"""Python processes in which nothing but torch is loaded yet.

To load torch takes three seconds of processor time. So one process loads it and waits, and the
others are forks of it. Where torch must not be loaded, a process is started as usual.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
import traceback
import warnings
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

_ROOT = Path(__file__).parent.parent


def run_python(
    code: str, *, check: bool = True, ignore_warnings: bool = False, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `python -c code` in the project's folder, with these variables more in its
    environment."""
    waiting = _start()
    assert waiting.stdin is not None
    assert waiting.stdout is not None
    with TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        request = {
            "code": code,
            "environment": {**os.environ, **environment},
            "ignore": ignore_warnings,
            "files": [str(out), str(err)],
        }
        waiting.stdin.write(json.dumps(request) + "\n")
        waiting.stdin.flush()
        status = int(waiting.stdout.readline())
        ran = subprocess.CompletedProcess(["python"], status, out.read_text(), err.read_text())
    assert not (check and status), ran.stderr
    return ran


def run_module(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m name arguments` in the project's folder."""
    words = [name, *arguments]
    code = (
        f"import runpy, sys; sys.argv[:] = {words!r}; runpy.run_module({name!r}, None, '__main__')"
    )
    return run_python(code, check=False, HF_HUB_OFFLINE="1")


@cache
def _start() -> subprocess.Popen[str]:
    code = "import torch; from tests.fresh import wait; wait()"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def wait() -> None:
    """Fork for each request, and answer with the exit status."""
    for line in sys.stdin:
        child = os.fork()
        if not child:
            os._exit(_run(**json.loads(line)))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


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
