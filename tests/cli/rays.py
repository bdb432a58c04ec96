"""A stand-in with the names of Ray that are used: most tests need no cluster."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


def pretend_ray(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """What is asked for is done by a worker that has files of its own, in the order of the asking;
    the one that gets `reads` dies."""

    def get(task: Any) -> Any:
        function, args = pickle.loads(task.sent)
        if "reads" in args[1].model:
            raise RuntimeError("the worker died\nlong")
        hidden = {p: p.rename(p.with_suffix(".hidden")) for p in folder.glob("*.pt2")}
        try:
            return function(*args)
        finally:
            for path, other in hidden.items():
                os.rename(other, path)

    ray: Any = ModuleType("ray")
    ray.is_initialized, ray.init = lambda: False, lambda **options: None
    ray.cluster_resources, ray.shutdown = lambda: {"CPU": 2.0}, lambda: None
    ray.remote = lambda **options: (
        lambda f: SimpleNamespace(remote=lambda *args: _Task(pickle.dumps((f, args))))
    )
    ray.wait = lambda tasks: (tasks[:1], tasks[1:])
    ray.get = get
    monkeypatch.setitem(sys.modules, "ray", ray)


class _Task:
    def __init__(self, sent: bytes) -> None:
        self.sent = sent
