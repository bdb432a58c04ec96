"""Which cluster is used: found without Ray, on sockets of this test's own."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lostwax.errors import CommandError
from lostwax.ray import clusters
from lostwax.ray.clusters import connect_to_ray, find_cluster, is_answering

SETTINGS = b"\0\0\0\4\0\0\0\0\0"


@pytest.fixture
def serve() -> Iterator[Callable[[bytes], str]]:
    """Servers that answer each call with these bytes; an address for each."""
    opened: list[socket.socket] = []

    def start(answer: bytes) -> str:
        server = socket.create_server(("127.0.0.1", 0))
        opened.append(server)

        def answer_once() -> None:
            with suppress(OSError), server.accept()[0] as call:  # the other side may end it
                call.recv(100)
                call.sendall(answer)
                call.recv(1)  # until the other side ends it

        threading.Thread(target=answer_once, daemon=True).start()
        return f"127.0.0.1:{server.getsockname()[1]}"

    yield start
    for each in opened:
        each.close()


@pytest.fixture
def dead() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_ADDRESS", "TMPDIR", "RAY_USE_TLS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(clusters, "_PATIENCE", 0.3)


def leave(folder: Path, address: str) -> None:
    (folder / "ray").mkdir()
    (folder / "ray" / "ray_current_cluster").write_text(address + "\n")


def test_a_server_of_grpc_answers(serve):
    assert is_answering(serve(SETTINGS))
    assert is_answering("ray://" + serve(SETTINGS))


def test_others_do_not(serve, dead):
    assert not is_answering(dead)
    assert not is_answering(serve(b"HTTP/1.1 400 Bad Request\r\n"))
    assert not is_answering(serve(b"")), "one that is stopped takes calls, and is silent"
    assert not is_answering("nowhere.invalid:6379")
    assert not is_answering("127.0.0.1:99999")


def test_what_only_ray_understands_is_left_to_it(monkeypatch, dead):
    assert is_answering("other://cluster")
    monkeypatch.setenv("RAY_USE_TLS", "1")
    assert is_answering(dead)


def test_the_address_that_is_named_is_used_or_refused(serve, dead, monkeypatch, tmp_path):
    alive = serve(SETTINGS)
    monkeypatch.setenv("RAY_ADDRESS", alive)
    assert find_cluster("--ray") == alive
    monkeypatch.setenv("RAY_ADDRESS", "local")
    assert find_cluster("--ray") == "local"
    monkeypatch.setenv("RAY_ADDRESS", dead)
    with pytest.raises(CommandError) as error:
        find_cluster("--ray")
    said = str(error.value)
    assert f"--ray: no Ray cluster answers at {dead}" in said
    assert "RAY_ADDRESS names it" in said
    assert "instead: the address of one that runs; or unset RAY_ADDRESS" in said


def test_what_a_cluster_that_was_killed_has_left_is_passed_over(serve, dead, tmp_path):
    assert find_cluster("--ray") == "local"
    leave(tmp_path, dead)
    assert find_cluster("--ray") == "local"


@pytest.mark.parametrize("named", ["", "auto"])
def test_a_cluster_of_this_machine_is_found(serve, tmp_path, monkeypatch, named):
    monkeypatch.setenv("RAY_ADDRESS", named)
    alive = serve(SETTINGS)
    leave(tmp_path, alive)
    assert find_cluster("--ray") == alive


def test_ray_is_asked_for_by_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        pytest.raises(CommandError, match=r"--ray: Ray is not installed\n.*lostwax\[ray\]"),
        connect_to_ray("--ray"),
    ):
        pass
