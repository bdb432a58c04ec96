"""`lostwax export --report` and `lostwax explore`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import lostwax as face
from lostwax.cli.reporting import open_server


def test_all_problems_of_a_model(lostwax, folder):
    ran = lostwax("export", "nets.py:reads", "--report")
    assert ran.code == 4
    assert ran.out.startswith("nets.py:18:20: LW0301 error: numpy() needs the data of ")
    assert not list(folder.glob("*.pt2"))
    data = lostwax("export", "nets.py:reads", "nets.py:tiny", "--report", "--json").json["result"]
    assert [r["ok"] for r in data["reports"]] == [False, True]


@pytest.mark.parametrize("way", [(), ("-j", "2")])
def test_reports_of_several_models_go_on_after_one_fails(lostwax, folder, forks, way):
    words = ["export", "nets.py:gone", "nets.py:tiny", "nets.py:reads", "--report", *way]
    ran = lostwax(*words, "--json")
    gone, good, bad = ran.json["result"]["reports"]
    assert (ran.code, gone["error"]["exit"], good["ok"], bad["ok"]) == (2, 2, True, False)
    told = lostwax(*words)
    assert "nets.py:gone:\nerror: " in told.out
    assert "\n\nnets.py:tiny:\n0 errors" in told.out


def test_a_report_goes_to_a_file(lostwax, folder):
    words = ["export", "nets.py:tiny", "--report", "--dynamic", "batch", "--backend", "xnnpack"]
    ran = lostwax(*words, "-o", "r.json")
    assert ran.code == 4, "a size without an upper bound"
    found = json.loads((folder / "r.json").read_text())
    assert "LW1105" in {f["code"] for f in found["findings"]}
    assert lostwax(*words, "-o", "r.html").out.startswith("r.html: 0 errors, 1 warning")
    assert (folder / "r.html").read_text().startswith("<!doctype html>")
    words[1:1] = ["nets.py:tiny"]
    assert lostwax(*words, "-o", "r.html").code == 2


def test_a_file_is_explored(lostwax, folder):
    lostwax("export", "nets.py:tiny", "-o", "a.pt2")
    told = lostwax("explore", "a.pt2", "--lower", "--json").json["result"]
    assert told["bytes"] == (folder / "a.html").stat().st_size
    assert len(told["stages"]) == 3
    assert lostwax("explore", "gone.pt2").code == 2


def test_two_files_are_explored(lostwax, folder):
    lostwax("export", "nets.py:tiny", "-o", "a.pt2")
    lostwax("export", "nets.py:tiny", "--dynamic", "batch", "-o", "b.pt2")
    told = lostwax("explore", "a.pt2", "b.pt2", "--measure", "-o", "d.html", "--json").json[
        "result"
    ]
    assert told["stages"] == ["a.pt2", "b.pt2"]
    assert '"seconds":{"' in (folder / "d.html").read_text()
    (folder / "p.json").write_text('{"seconds": {"gone": 1}}')
    for words, text in (
        (["a.pt2", "gone.pt2"], "gone.pt2"),
        (["a.pt2", "--profile", "p.json"], "the profile names no node of the program: it has gone"),
        (["a.pt2", "--profile", "gone.json"], "gone.json"),
        (["a.pt2", "b.pt2", "--lower"], "--lower shows the stages of one file, not of two"),
    ):
        ran = lostwax("explore", *words)
        assert ran.code == 2
        assert text in ran.err


def test_a_page_is_served_until_it_is_interrupted(lostwax, folder):
    lostwax("export", "nets.py:tiny", "-o", "a.pt2")
    ours = str(Path(face.__file__).parent.parent)
    process = subprocess.Popen(
        [sys.executable, "-m", "lostwax", "explore", "a.pt2", "--serve"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": ours},
        # a job in the background ignores it, and its processes do
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        line = process.stdout.readline()
        address = line.split()[3]
        with urllib.request.urlopen(address, timeout=300) as answer:
            assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
            assert answer.read().decode() == face.explore("a.pt2").html
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{address}etc/passwd", timeout=300)
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(
                urllib.request.Request(address, headers={"Host": "evil.example:80"}), timeout=300
            )
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (0, "", "")
    assert line == f"serving a.pt2 at {address} until Ctrl-C\n"
    assert not (folder / "a.html").exists()


def test_a_browser_that_goes_away_is_no_error(capsys):
    server = open_server(b"page", 0)
    with server:
        for error in (BrokenPipeError(), ValueError("ours")):
            try:
                raise error
            except Exception:
                server.handle_error(None, "a browser")
            told = capsys.readouterr().err
            assert ("ValueError: ours" in told) == isinstance(error, ValueError)
            assert bool(told) == isinstance(error, ValueError)


def test_a_port_that_is_taken(lostwax, folder):
    lostwax("export", "nets.py:tiny", "-o", "a.pt2")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ran = lostwax("explore", "a.pt2", "--serve", "--port", port)
    assert ran.code == 2
    assert f"port {port} cannot be had: Address already in use" in ran.err
