"""Code that nobody here wrote, the same whatever ran before in the process."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import socket
import subprocess
import tarfile
import tempfile
import typing
from collections.abc import Iterator
from types import CodeType

MODULES = argparse, dataclasses, inspect, socket, subprocess, tarfile, tempfile, typing


def codes() -> Iterator[CodeType]:
    for module in MODULES:
        yield from _list_codes(compile(inspect.getsource(module), module.__name__, "exec"))


def _list_codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _list_codes(each)
