"""A folder with a file of factories, and the command in this process."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from lostwax.cli import several
from lostwax.cli.app import app
from tests.fresh import run_python

NETS = """
import torch


class Net(torch.nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.first = torch.nn.Linear(4, wide)
        self.last = torch.nn.Linear(wide, 2)

    def forward(self, x, scale=None):
        y = self.last(self.first(x).relu())
        return y if scale is None else y * scale


class Reads(torch.nn.Module):
    def forward(self, x):
        return x + x.numpy().sum()


def tiny(wide=8):
    print("made")
    return Net(wide), torch.randn(3, 4)


def scaled():
    return Net(8), (torch.randn(3, 4),), {"scale": torch.randn(3, 1)}


def reads():
    return Reads(), torch.ones(3)


def broken():
    raise KeyError("no weights")


def odd():
    return 7


def none():
    Net(8), torch.randn(3, 4)


def left():
    return Net(8), object()


def layers():
    return torch.nn.Sequential(torch.nn.Linear(4, 2)), torch.randn(3, 4)


def dies():
    import os

    os._exit(9)
"""


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.delitem(sys.modules, "nets", raising=False)  # a page of a recipe has one, too
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # the command adds the folder
    return tmp_path


@pytest.fixture
def lostwax() -> Callable[..., Ran]:
    def run(*words: str) -> Ran:
        ran = CliRunner().invoke(app, list(words))
        assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
        return Ran(ran.exit_code, ran.stdout, ran.stderr)

    return run


@pytest.fixture
def forks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of `-j` are forks of one that has loaded torch. (`test_exporting.py` has real
    ones.)"""
    monkeypatch.setattr(several, "subprocess", SimpleNamespace(Popen=_Forked, PIPE=None))


class _Forked:
    returncode = 0

    def __init__(self, command: list[str], **options: Any) -> None:
        self._code = command[-1]

    def communicate(self, sent: bytes) -> tuple[bytes, bytes]:
        with _one_at_a_time:
            Path("job").write_bytes(sent)
            before = f"import os, sys; os.chdir({os.getcwd()!r}); sys.stdin = open('job')\n"
            ran = run_python(before + self._code, check=False)
        self.returncode = ran.returncode
        return ran.stdout.encode(), ran.stderr.encode()


_one_at_a_time = threading.Lock()
