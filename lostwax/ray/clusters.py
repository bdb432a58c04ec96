"""Which cluster of Ray is used, and that it answers: found before Ray asks it, which waits for
minutes for one that has ended. Must not import ray before it is asked for, nor torch."""

from __future__ import annotations

import os
import re
import socket
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from lostwax.errors import CommandError

LOCAL = "local"
"""Ray's word for a cluster of this machine alone, which is started."""
_PATIENCE = 5.0
"""For how many seconds a cluster is waited for."""
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""How a call by gRPC begins: the preface of HTTP/2 and empty settings."""
_SETTINGS = 4
"""The type of the frame with which a server answers."""


@contextmanager
def connect_to_ray(asker: str) -> Iterator[Any]:
    """Ray, connected to the cluster that is there, or to one of this machine that ends with this.
    `asker` is what needs it, for errors."""
    ray = import_ray(asker)
    if ray.is_initialized():
        yield ray
        return
    address = find_cluster(asker)
    ray.init(address=address, log_to_driver=False, logging_level="error")
    try:
        yield ray
    finally:
        ray.shutdown()


def import_ray(asker: str) -> Any:
    try:
        return import_module("ray")
    except ModuleNotFoundError as error:
        raise CommandError(
            f"{asker}: Ray is not installed\n  instead: pip install 'lostwax[ray]'"
        ) from error


def find_cluster(asker: str) -> str:
    """The address for `ray.init`, as Ray would find it: that of RAY_ADDRESS, or that which `ray
    start` has left on this machine, if a cluster answers there; else "local"."""
    named = os.environ.get("RAY_ADDRESS", "")
    if named and named != "auto":
        if named != LOCAL and not is_answering(named):
            raise CommandError(
                f"{asker}: no Ray cluster answers at {named}\n"
                "  why: the environment variable RAY_ADDRESS names it; it has ended, or cannot be "
                "reached from here\n"
                "  instead: the address of one that runs; or unset RAY_ADDRESS, and one is started "
                "on this machine"
            )
        return named
    left = _read_left()
    return left if left and is_answering(left) else LOCAL


def _read_left() -> str:
    """The address in the file that `ray start` writes; a cluster that was killed leaves it."""
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    for each in (folder, tempfile.gettempdir()):
        try:
            return Path(each, "ray", "ray_current_cluster").read_text().strip()
        except OSError:
            continue
    return ""


def is_answering(address: str) -> bool:
    """Does a server of gRPC answer at an address of Ray's? Of forms that are not known here only
    Ray can tell; they pass."""
    found = re.fullmatch(r"(?:ray://)?\[?([^/\[\]]+)\]?:(\d+)", address)
    if found is None or os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
        return True
    try:
        with closing(
            socket.create_connection((found[1], int(found[2])), timeout=_PATIENCE)
        ) as opened:
            opened.sendall(_GREETING)
            return opened.recv(4)[3:4] == bytes((_SETTINGS,))
    except (OSError, OverflowError):
        return False
