"""The command that measures which torch reads which file finds what is right, and what is not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from tests.pt2 import versions


@pytest.mark.filterwarnings("ignore")
def test_each_side_reads_what_the_other_writes(tmp_path: Path, capsys) -> None:
    names = ["batch norm", "derived"]
    assert versions.write(tmp_path, names) == {}
    results = versions.read(tmp_path)
    assert len(results) == 2 * 2 * len(names)
    assert set(results.values()) == {"same"}
    versions.show(results)
    assert "| 2 of 2 | 2 of 2 |" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")
def test_another_program_and_no_program_are_found(tmp_path: Path) -> None:
    versions.write(tmp_path, ["annotated"])
    (good, _) = sorted(tmp_path.glob("*.pt2"))
    shutil.copy(good, tmp_path / f"{versions.HERE}+torch+float item.pt2")
    (tmp_path / f"{versions.HERE}+torch+linear.pt2").write_bytes(b"nothing")
    results = {key.split("+", 2)[2]: found for key, found in versions.read(tmp_path).items()}
    assert results[f"annotated+{versions.HERE}+lostwax"] == "same"
    for side in ("torch", "lostwax"):
        assert results[f"float item+{versions.HERE}+{side}"].startswith("WRONG: another structure")
        refused = results[f"linear+{versions.HERE}+{side}"]
        assert refused.partition(":")[0] not in ("same", "WRONG")


def test_values_and_types_are_compared() -> None:
    case = versions.Case(torch.nn.Identity(), (torch.ones(2),))
    assert versions.compare(torch.nn.Identity(), case) == "same"
    assert versions.compare(torch.nn.Dropout(1.0), case).startswith("WRONG: AssertionError")
    number = versions.Case(torch.nn.Identity(), (1,))
    assert versions.compare(lambda x: float(x), number) == "WRONG: 1.0, not 1"
