"""`lostwax profile`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.profiling.test_profile import write_dump

STEPS = [("OPERATOR_CALL", at, "", 1000) for at in range(2)]


@pytest.fixture
def exported(lostwax: Any, folder: Path) -> Path:
    assert lostwax("export", "nets.py:tiny", "--pte", "--etrecord", "-o", "m.pte").code == 0
    (folder / "m.etdp").write_bytes(write_dump([STEPS]))
    return folder


def test_an_executable_with_the_dump_of_a_device(lostwax: Any, exported: Path) -> None:
    done = lostwax("profile", "m.pte", "--etdump", "m.etdp", "--by", "line")
    assert done.code == 0, done
    assert done.out.startswith("m.pte: 2.000 µs a call, the median of 1\n")
    assert "nets.py:" in done.out
    assert "by operator" not in done.out


def test_two_files_or_answers(lostwax: Any, exported: Path) -> None:
    words = ("profile", "m.pte", "--etdump", "m.etdp", "--json")
    (exported / "old.json").write_text(lostwax(*words).out)
    done = lostwax("profile", "old.json", "m.pte", "--etdump", "m.etdp", "--json")
    result = json.loads(done.out)["result"]
    assert result["profile"]["pieces"] == result["other"]["pieces"]
    assert {row["old"] - row["new"] for row in result["changes"]["line"]} == {0}
    assert "1.00x" in lostwax("profile", "old.json", "old.json").out


def test_a_program_in_eager(lostwax: Any, folder: Path) -> None:
    assert lostwax("export", "nets.py:tiny", "-o", "a.pt2").code == 0
    done = lostwax("profile", "a.pt2", "--repeat", "1", "--most", "1")
    assert done.code == 0
    assert "by module" in done.out
    assert "more)" in done.out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["profile", "gone.pte"], "there is no file 'gone.pte'"),
        (["profile", "a.json", "--by", "colour"], "it is one of operator, module, line"),
        (["profile", "a.json"], "this is no profile"),
        (["profile", "nets.py"], "nets.py"),
    ],
)
def test_what_is_wrong_is_told(lostwax: Any, folder: Path, words: list[str], text: str) -> None:
    (folder / "a.json").write_text("{}")
    done = lostwax(*words)
    assert done.code in (2, 3)
    assert text in done.err
