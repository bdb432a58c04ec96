"""The command as a whole: how soon it is there, exit codes, JSON, errors without tracebacks."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lostwax.cli import progress
from lostwax.cli.app import app
from lostwax.cli.outcome import SCHEMA, Exit

COMMANDS = ["export", "show", "check", "diff", "run", "lower", "split", "quantize", "generate"]
COMMANDS += ["bench", "profile", "explore", "explain", "models", "doctor"]
PAGE = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()


def processor_time(*command: str) -> float:
    """The least of three, in seconds: other work on the machine only adds to it."""
    found = []
    for _ in range(3):
        before = os.times()
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
        after = os.times()
        found.append(sum(after[2:4]) - sum(before[2:4]))
    return min(found)


def test_help_costs_little_and_loads_no_torch():
    spent = processor_time("-m", "lostwax", "--help") - processor_time("-c", "")
    assert spent < 0.3
    code = (
        "import sys; from lostwax.cli.app import app\n"
        "for words in (['--help'], ['explain', 'LW0102'], ['export', '--help']):\n"
        "    try: app(words)\n"
        "    except SystemExit as end: assert not end.code\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_every_command_has_json_and_traceback_and_is_on_the_page(lostwax):
    assert [c.callback.__name__ for c in app.registered_commands] == COMMANDS
    for command in COMMANDS:
        told = lostwax(command, "--help").out
        assert "--json" in told
        assert "--traceback" in told
        assert f"lostwax {command}" in PAGE


def test_exit_codes_are_on_the_page():
    assert {int(n) for n in re.findall(r"^\| (\d+) \|", PAGE, re.M)} == {*map(int, Exit)}
    assert f"`{SCHEMA}`" in PAGE


@pytest.mark.parametrize(
    ("words", "command", "told"),
    [
        (["exprot"], "", "No such command 'exprot'"),
        (["export"], "export", "Missing argument"),
        (["export", "nets.py:tiny", "--dynmic", "n"], "export", "--dynamic"),
        (["explore", "a.pt2", "--port", "99999"], "explore", "'--port'"),
        (["bench", "a.pt2", "--repeat", "often"], "bench", "'--repeat'"),
        (["export", "nets.py:tiny", "--control-flow", "no"], "export", "'--control-flow'"),
    ],
)
def test_a_line_that_is_wrong_is_told_as_all_errors_are(lostwax, words, command, told):
    ran = lostwax(*words)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: [LW0801] ")
    assert told in ran.err
    assert ran.err.endswith(f"instead: {f'lostwax {command}'.strip()} --help lists what there is\n")
    data = lostwax(*words, "--json")
    assert (data.code, data.err) == (2, "")
    assert data.json["command"] == command
    assert data.json["error"]["message"] in ran.err
    assert data.json["error"]["file"] is None


def test_the_list_of_commands_is_cut_nowhere(lostwax):
    assert "..." not in lostwax("--help").out.partition("Commands:")[2]


def test_help_is_for_people(lostwax):
    for command in COMMANDS:
        told = lostwax(command, "--help").out
        assert not re.search(r"<\w*\[?str|[{}]|\[\[", told), told
    bare = lostwax()
    assert bare.code == 2
    assert "Usage: lostwax" in bare.out + bare.err


def test_quiet_leaves_the_answer_and_errors(lostwax, folder, caplog):
    (folder / "loud.py").write_text(
        "import logging, warnings\nfrom nets import *\n"
        "def loud():\n    print('loud')\n    warnings.warn('beware')\n"
        "    logging.getLogger('loud').warning('heard')\n    return tiny()\n"
    )
    loud = lostwax("export", "loud.py:loud", "-o", "a.pt2")
    assert "heard" in caplog.text
    caplog.clear()
    quiet = lostwax("export", "loud.py:loud", "-o", "a.pt2", "-q")
    assert "heard" not in caplog.text
    assert "beware" in loud.err
    assert "loud\n" in loud.err
    assert quiet.err == ""
    assert quiet.code == 0
    assert quiet.out.startswith("a.pt2: 5 operators")
    assert "there is no file" in lostwax("show", "gone.pt2", "-q").err


def run_on_terminal(folder: Path, *words: str) -> str:
    """What a terminal gets on stderr, of a command for which torch cannot be imported."""
    (folder / "torch.py").write_text("import os, sys; os.write(2, b'TORCH'); sys.exit(9)")
    (folder / "a.pt2").write_text("no archive")
    ours = str(Path(__file__).parents[2])
    reads, writes = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "lostwax", *words],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=writes,
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ours}", "TERM": "xterm"},
    )
    os.close(writes)
    found = b""
    with contextlib.suppress(OSError):  # how a terminal ends
        while part := os.read(reads, 1000):
            found += part
    os.close(reads)
    process.wait()
    return found.decode()


def test_a_terminal_sees_something_before_torch_is_there(tmp_path):
    told = run_on_terminal(tmp_path, "show", "a.pt2")
    assert told.startswith("show: starting\rshow: loading torch\r")
    assert "TORCH" in told
    assert run_on_terminal(tmp_path, "show", "a.pt2", "-q") == "TORCH"


def test_the_first_line_is_covered_by_what_follows(tmp_path):
    told = run_on_terminal(tmp_path, "show", "--bad")
    assert told.startswith("show: starting\r" + " " * len("show: starting") + "\rerror: ")
    assert run_on_terminal(tmp_path, "show", "--bad", "--json") == ""
    assert run_on_terminal(tmp_path, "show", "--help") == ""


def test_little_is_imported_before_the_first_line():
    """What stands before it is what it waits for: not typer, not rich, nothing of ours but the
    face."""
    code = (
        "import sys; import lostwax.cli.progress as p\n"
        "p.show_first = lambda words: (print(*sys.modules), sys.exit())\n"
        "import lostwax.cli; lostwax.cli.main()"
    )
    line = [sys.executable, "-S", "-c", code]
    ran = subprocess.run(line, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    heavy = {
        "typer",
        "rich",
        "click",
        "torch",
        "logging",
        "inspect",
        "json",
        "subprocess",
        "pathlib",
    }
    loaded = set(ran.stdout.split())
    assert "lostwax.cli.progress" in loaded
    assert loaded & heavy == set()
    assert len([each for each in loaded if each.startswith("lostwax")]) <= 14


def test_progress_is_one_line_that_tells_what_is_done(monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", shown)
    with progress.show_progress("export: loading [torch]"):
        with progress.count_steps("exporting", 2) as advance:
            advance("a")
            assert progress._screen.text == "exporting: 1 of 2, a"
        assert progress._screen.text == ""
    assert "loading [torch]" in shown.getvalue()
    assert progress._screen.line is None


def test_pipes_that_are_closed_end_quietly(folder):
    """Nobody reads stdout, or stderr; or they were never open."""
    ours = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    line = f"{sys.executable} -m lostwax explain"
    for more in ("| true", ">&-", "LW9999 2>&1 | true", "LW9999 2>&-"):
        shell = ["bash", "-c", f"{line} {more}"]
        ran = subprocess.run(shell, capture_output=True, text=True, env=ours)
        assert (ran.stdout, ran.stderr) == ("", ""), more
    shell = ["bash", "-c", f"{line} > /dev/full"]  # that nothing was written is told
    ran = subprocess.run(shell, capture_output=True, text=True, env=ours)
    told = "error: the answer cannot be written: No space left on device\n"
    assert (ran.returncode, ran.stderr) == (2, told)


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (
            ["export", "nets.py:reads"],
            3,
            r"error: \[LW0301\] numpy\(\)[\s\S]*\^{9}\n[\s\S]*explain",
        ),
        (["export", "nets.py:broken"], 1, r"error: KeyError: 'no weights'\n  at nets.py:\d+\n"),
        (["export", "nets.py:odd"], 2, r"LW0801\] 'nets.py:odd' returns a value of type int"),
        (["export", "hf:gone"], 2, r"there is no folder 'gone'\n  instead: hf download ORGANI"),
        (["export", "nets.py:none"], 2, r"LW0801\] 'nets.py:none' returns nothing"),
        (
            ["export", "nets.py:tiny", "--input-shape", "3x5"],
            1,
            r"cannot be multiplied.*\n  at nets.py:\d+\n  why: .*\n  instead: ",
        ),
        (["export", "nets.py:tiny", "-d", "n:5.."], 3, r"\n  why: --dynamic gives a name and a r"),
        (["export", "nets.py:left"], 3, r"LW0105\][\s\S]*\n  why: a program takes"),
        (["export", "nets.py:tinny"], 2, r"has no 'tinny' \(did you mean 'tiny'\?\)"),
        (["export", "nots.py:tiny"], 2, "there is no file 'nots.py'"),
        (["export", "nots:tiny"], 2, r"there is no module 'nots'.*\n  instead: install it"),
        (["export", "tim:resnet18"], 2, r"\(did you mean 'timm'\?\)\n  instead: "),
        (["export", "tiny"], 2, "names no factory"),
        (
            ["export", "nets.py:tiny", "--dynamic", "y.0=n"],
            2,
            r"\n  instead: --dynamic x\.0=n",
        ),
        (["export", "nets.py:tiny", "--dynamic", "n:9..2"], 2, "instead: --dynamic n:2..9"),
        (
            ["export", "nets.py:tiny", "--dynamic", "n", "--constraint", "m % 2 == 0"],
            3,
            r"--constraint: .*unknown name 'm'[\s\S]*instead: --constraint 'length % 8 == 0'",
        ),
        (
            ["export", "nets.py:tiny", "--dynamic", "5=n"],
            2,
            r"5\n  instead: a number below 2",
        ),
        (["export", "nets.py:tiny", "-o", "x.bin"], 2, "-o x.pt2"),
        (
            ["export", "nets.py:tiny", "--core", "--pte"],
            2,
            r"each other\n  instead: one of",
        ),
        (["show", "gone.pt2"], 2, "there is no file"),
        (["show", "nets.py"], 3, r"\[LW0702\] this is not a .pt2"),
        (["explain", "LW9999"], 2, "there is no error 'LW9999'"),
    ],
)
def test_errors_are_told_without_tracebacks(lostwax, folder, words, code, text):
    ran = lostwax(*words)
    assert ran.code == code
    assert not ran.out
    assert re.search(text, ran.err), ran.err
    assert "Traceback" not in ran.err


def test_tracebacks_are_shown_if_asked_for(lostwax, folder):
    ran = lostwax("export", "nets.py:broken", "--traceback")
    assert ran.code == 1
    assert "Traceback (most recent call last)" in ran.err


def test_json_has_one_form_for_success_and_failure(lostwax, folder):
    good = lostwax("export", "nets.py:tiny", "-o", "a.pt2", "--json")
    bad = lostwax("export", "nets.py:reads", "--json")
    assert (good.code, bad.code) == (0, 3)
    assert good.json.keys() == bad.json.keys()
    assert good.json["schema"] == SCHEMA
    assert good.json["error"] is None
    assert "made" in good.err, "what the factory prints is not in the way"
    error = bad.json["error"]
    assert bad.json["result"] is None
    assert (error["code"], error["class"], error["exit"]) == ("LW0301", "UnsupportedFakeError", 3)
    line = (folder / "nets.py").read_text().splitlines()[error["line"] - 1]
    assert (error["file"], line[error["column"] - 1 :][:9]) == ("nets.py", "x.numpy()")
    for key in [*bad.json, *error]:
        assert f"`{key}`" in PAGE


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["export", "nets.py:tiny", "-o", "gone/a.pt2"], "there is no folder 'gone'"),
        (["lower", "a.pt2", "-o", "gone/a.pte"], "there is no folder 'gone'"),
        (["explore", "a.pt2", "-o", "gone/a.html"], "there is no folder 'gone'"),
        (["run", "a.pt2", "-o", "gone/a.pt"], "there is no folder 'gone'"),
        (["export", "nets.py:tiny", "--report", "-o", "gone/r.html"], "there is no folder 'gone'"),
        (["export", "nets.py:tiny", "--report", "-o", "r.xyz"], "a .html or .json or .txt file"),
        (["export", "nets.py:tiny", "-o", "b.pt2"], "'b.pt2' is a folder, not a file"),
        (["show", "b.pt2"], "'b.pt2' is a folder, not a file"),
        (["run", "a.pt2", "-i", "nets.py"], "inputs are .npy files, or .pt files of torch.save"),
        (["run", "a.pt2", "-i", "a.pt"], "'a.pt' cannot be read"),
        (["export", "nets.py:nothing"], "nets.py has no 'nothing'; it has Net, Reads, tiny"),
        (["explain", "nonsense"], "lostwax explain, which lists all codes"),
    ],
)
def test_mistakes_are_told_before_the_work(lostwax, folder, words, message):
    (folder / "b.pt2").mkdir()
    for name in ("a.pt2", "a.pt"):
        (folder / name).write_text("no archive")
    ran = lostwax(*words)
    assert ran.code == 2
    assert message in ran.err


def test_a_file_that_is_no_executable_is_named(lostwax, folder):
    (folder / "a.pte").write_text("no executable")
    ran = lostwax("show", "a.pte")
    assert ran.code == 3
    assert "while reading a.pte" in ran.err
    assert "fix: copy it again, or write it again: lostwax lower" in ran.err
    assert "fix: lostwax export MODEL -o FILE writes programs" in lostwax("show", "nets.py").err


def test_a_disk_that_is_full(lostwax, folder, monkeypatch):
    """Nothing is left of the file; the one before it stays."""
    (folder / "a.txt").write_text("old")

    with open("/dev/full", "wb", buffering=0) as full:
        monkeypatch.setattr("lostwax.undo.replace_files._new", lambda *_: full)
        ran = lostwax("export", "nets.py:tiny", "--edge", "-o", "a.txt")
    assert (ran.code, ran.err.splitlines()[-2]) == (
        2,
        "error: OSError: No space left on device",
    )
    assert (folder / "a.txt").read_text() == "old"
