"""`lostwax show` and `diff`."""

from __future__ import annotations

import re

import pytest
import torch
from torch.export import Dim

import lostwax as face
from tests.fresh import run_python


@pytest.fixture
def file(lostwax, folder):
    assert lostwax("export", "nets.py:tiny", "-o", "a.pt2", "--dynamic", "batch:0..64").code == 0
    return "a.pt2"


def test_a_program_is_shown(lostwax, file):
    text = lostwax("show", file).out
    assert 'addmm: "f32[batch, 8]" = torch.ops.aten.addmm.default(' in text
    assert "  first.weight" in text
    assert "  batch in 0..64" in text
    told = lostwax("show", file, "--json").json["result"]["programs"]["model"]
    assert told["inputs"] == {"x": "f32[batch, 4]"}
    assert told["ranges"] == {"batch": "0..64"}
    assert told["operators"]["torch.ops.aten.addmm.default"] == 2
    assert [i["kind"] for i in told["signature"]["inputs"]] == ["parameter"] * 4 + ["user_input"]


def test_names_that_say_too_little_are_not_used(lostwax, folder):
    """What torch wrote has none; and one that another size has, too, is no name."""
    x = (torch.ones(3, 4), torch.ones(5))
    batch, odd = Dim("batch"), Dim("s1")
    add = face.export(lambda x, y: (x + 1, y + 1), x, dynamic_shapes=({0: odd}, {0: Dim.AUTO}))
    face.save(add, "odd.pt2")
    shown = lostwax("show", "odd.pt2", "--json").json["result"]["programs"]["model"]
    assert shown["inputs"] == {"x": "f32[s0, 4]", "y": "f32[s1]"}
    theirs = torch.export.export(torch.nn.Linear(4, 2), x[:1], dynamic_shapes=({0: batch},))
    torch.export.save(theirs, "theirs.pt2")
    (told,) = lostwax("show", "theirs.pt2", "--json").json["result"]["programs"].values()
    (name,) = told["ranges"]
    assert re.fullmatch(r"s\d+", name)
    assert told["inputs"] == {"input": f"f32[{name}, 4]"}


def test_operators_are_counted(lostwax, file):
    lines = lostwax("show", file, "--ops").out.splitlines()
    assert lines[0].split()[:2] == ["2", "torch.ops.aten.addmm.default"]
    assert lines[-1].split() == ["5", "in", "all"]


def test_memory_is_planned(lostwax, file):
    told = lostwax("show", file, "--memory", "--json").json["result"]["programs"]["model"]["memory"]
    assert told["weight_bytes"] == 58 * 4
    assert told["arena_bytes"] >= 64 * 4 * 4
    assert lostwax("export", "nets.py:tiny", "-o", "b.pt2", "--dynamic", "batch").code == 0
    assert "no upper bound" in lostwax("show", "b.pt2", "--memory").out


def test_an_executable_is_shown(lostwax, file):
    lostwax("lower", file, "-o", "a.pte")
    assert "aten::linear.out" in lostwax("show", "a.pte").out
    assert "2  aten::linear.out" in lostwax("show", "a.pte", "--ops").out
    told = lostwax("show", "a.pte", "--memory", "--json").json["result"]
    assert told["methods"]["forward"]["arena_bytes"][-1] > 0


def test_what_a_file_needs_is_imported_if_asked_for(lostwax, folder):
    (folder / "doubling.py").write_text(
        """
import torch

@torch.library.custom_op("doubling::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2

@double.register_fake
def _(x):
    return torch.empty_like(x)

def make():
    return double, torch.ones(3)
"""
    )
    assert lostwax("export", "doubling.py:make", "-o", "d.pt2").code == 0
    code = "from lostwax.cli import main; main()"
    for words, wanted in ((["show", "d.pt2"], 3), (["show", "d.pt2", "--import", "doubling"], 0)):
        before = f"import os, sys; os.chdir({str(folder)!r}); sys.argv[1:] = {words!r}\n"
        ran = run_python(before + code, check=False)
        assert ran.returncode == wanted, ran.stderr
    assert "torch.ops.doubling.double.default" in ran.stdout


def test_programs_are_compared(lostwax, file):
    lostwax("export", "nets.py:tiny?wide=9", "-o", "b.pt2", "--dynamic", "batch:0..64")
    same, other = lostwax("diff", file, file), lostwax("diff", file, "b.pt2", "--json")
    assert (same.code, same.out) == (0, "no differences\n")
    assert other.code == 4
    assert {"node", "weight"} <= {c["kind"] for c in other.json["result"]["changes"]}


def test_a_program_is_cut_into_stages(lostwax, file):
    told = lostwax("split", file, "--at", "last", "-o", "parts/of a", "--json").json["result"]
    files = [each["file"] for each in told["stages"]]
    assert files == ["parts/of a/stage_0.pt2", "parts/of a/stage_1.pt2"]
    assert [each["from"] for each in told["stages"]] == ["", "last"]
    values = (x := torch.randn(5, 4),)
    for path in files:
        values = face.load(path).module()(*values)
    torch.testing.assert_close(values, face.load(file).module()(x))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--at", "lats"], "no module 'lats' (did you mean 'last'?)"),
        (["--at", "first"], "the stage before it would compute nothing"),
        (["--at", "last", "-o", "nets.py"], "is a file, and stages are written into a folder"),
        ([], "--at"),
    ],
)
def test_stages_that_are_none(lostwax, file, folder, words, said):
    ran = lostwax("split", file, *words)
    assert ran.code in (2, 3)
    assert said in ran.out + ran.err
    assert not (folder / "stage_0.pt2").exists()
