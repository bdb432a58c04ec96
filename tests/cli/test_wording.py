"""Errors propose options of the command line, and these are right."""

from __future__ import annotations

import re
import shlex

import numpy
import pytest

import lostwax as face
from lostwax.cli.models.factories import build_model
from lostwax.cli.models.sizes import read_dynamic
from lostwax.cli.wording import write_in_options
from lostwax.errors import CommandError

SIZES = """
import torch

def two(): return lambda x, mask: x * mask, (torch.ones(3, 7), torch.ones(3, 7))
def least(): return lambda x: x + 1 if x.shape[0] > 2 else x - 1, torch.ones(5, 3)
def even(): return lambda x: x.view(2, -1), torch.ones(8)
def fixed(): return lambda x: x + torch.ones(8), torch.ones(3, 8)
def tied(): return lambda x, y: x + y, (torch.ones(4), torch.ones(4))
def inside():
    def forward(x):
        if x.sum() > 0:
            if x.shape[0] > 4:
                return x + 1
        return x
    return forward, torch.ones(6)
"""


@pytest.mark.parametrize(
    ("name", "given", "proposed"),
    [
        ("least", ["batch"], ["--dynamic batch:3.."]),
        ("least", ["x.0=rows:1..9"], ["--dynamic x.0=rows:3..9"]),
        ("even", ["n:2..64"], ["--dynamic '0=2*_n:1..32'"]),
        ("even", ["x.0=n"], ["--dynamic 'x.0=2*_n'"]),
        ("two", ["x.1=len"], ["add --dynamic mask.1=len", "leave out --dynamic x.1=len: the size"]),
        (
            "two",
            ["x.0=rows", "x.1=2*len+1"],
            ["add --dynamic mask.0=rows --dynamic 'mask.1=2*len+1'"],
        ),
        ("fixed", ["1=c"], ["leave out --dynamic 1=c: the size is 8 always"]),
        ("tied", ["x.0=a", "y.0=b"], ["--dynamic y.0=a"]),
        ("fixed", ["batch:5.."], ["--dynamic: x.shape[0] is 3", "instead: --dynamic batch:3.."]),
        ("inside", ["n"], ["instead: --control-flow sizes, which keeps both ways"]),
    ],
)
def test_what_is_proposed_is_an_option_and_works(lostwax, folder, name, given, proposed):
    (folder / "sizes.py").write_text(SIZES)
    options = [word for each in given for word in ("--dynamic", each)]
    ran = lostwax("export", f"sizes.py:{name}", *options, "-o", "a.pt2")
    assert ran.code == 3
    for each in proposed:
        assert each in ran.err, ran.err
    assert not re.search(r"Dim\(|dynamic_shapes|control_flow=", ran.err), ran.err
    fix = re.search(r"(--(?:dynamic|control-flow) [^\n,:]+(?::[\d.']+)?)", proposed[-1])
    if "leave out" in proposed[0]:
        options = []
    elif "add" in proposed[0]:
        options += shlex.split(proposed[0].removeprefix("add "))
    elif "control-flow" in proposed[0]:
        options += ["--control-flow", "sizes"]
    elif len(given) == 2:
        options = [*options[:2], *shlex.split(fix[1])]
    else:
        options = shlex.split(fix[1])
    again = lostwax("export", f"sizes.py:{name}", *options, "-o", "a.pt2")
    assert again.code == 0, again.err


def test_a_bound_and_a_constraint():
    text = "instead: a bound for n: Dim(name, max=...) in dynamic_shapes"
    assert write_in_options(text, ["x.0=n:2.."]) == "instead: --dynamic x.0=n:2..MAX"
    assert write_in_options(text, []).endswith("--dynamic n:..MAX, where the model is exported")
    fix = 'why\nSuggested fixes:\n    constraints=["n % 8 == 0"]'
    assert write_in_options(fix, ["n"]).endswith("    --constraint 'n % 8 == 0'")


def test_a_call_that_does_not_fit(lostwax, folder):
    lostwax("export", "nets.py:tiny", "-o", "a.pt2")
    numpy.save("x.npy", numpy.ones((5, 4), "float32"))
    numpy.save("d.npy", numpy.ones((3, 4)))
    sizes, dtype = (lostwax("run", "a.pt2", "-i", file) for file in ("x.npy", "d.npy"))
    assert (sizes.code, dtype.code) == (3, 3)
    assert "capture it again, for all sizes, with --dynamic x.0=n, or for this" in sizes.err
    assert "fix: give an --input of float32, or capture it again" in dtype.err


def test_a_constraint_is_held(lostwax, folder):
    words = ("export", "nets.py:tiny", "-d", "batch", "--constraint", "batch % 3 == 0")
    assert lostwax(*words, "-o", "a.pt2").code == 0
    assert "%" in str(face.load("a.pt2").guards)


def test_what_runs_the_command_is_no_line_of_the_model(lostwax, folder):
    """All of `nn.Sequential` is torch's: no line of the user's is left."""
    ran = lostwax("export", "nets.py:layers", "-d", "1=n")
    assert ran.code == 3
    assert "leave out --dynamic 1=n: the size is 4 always" in ran.err
    assert not re.search(r"typer|click|pytest|outcome\.py", ran.err)


def test_memory_that_cannot_be_planned_proposes_options(lostwax, folder):
    assert lostwax("export", "nets.py:tiny", "-o", "a.pt2", "-d", "batch").code == 0
    told = lostwax("show", "a.pt2", "--memory").out
    assert "--dynamic batch:..MAX, where the model is exported" in told
    assert "Dim(" not in told


def test_reports_propose_options_too(lostwax, folder):
    (folder / "sizes.py").write_text(SIZES)
    told = lostwax("export", "sizes.py:least", "--report", "-d", "rows").out
    assert "fix: --dynamic rows:3..\n" in told
    assert "Dim(" not in told


def test_auto_lets_all_vary_that_can(lostwax, folder):
    (folder / "sizes.py").write_text(SIZES)
    ran = lostwax("export", "sizes.py:two", "-d", "auto", "-o", "a.pt2", "--json")
    assert len(ran.json["result"]["models"][0]["ranges"]) == 2
    spec = read_dynamic(["auto", "x.0=n:2..9", "mask.1=auto"], build_model("sizes.py:two"))
    assert (spec["x"][0].__name__, spec["x"][1]) == ("n", face.Dim.AUTO)
    assert spec["mask"] == {0: face.Dim.AUTO, 1: face.Dim.AUTO}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["auto:1..3"], "auto finds the range itself"),
        (["n:9..2"], "no size is at least 9 and at most 2"),
        (["n:1..4", "1=n:1..5"], "'n:1..4' and '1=n:1..5': one name has one range"),
        (["0==n"], "is not understood\n  instead: batch, batch:1..64"),
    ],
)
def test_sizes_that_say_nothing(folder, given, told):
    with pytest.raises(CommandError, match=re.escape(told)):
        read_dynamic(given, build_model("nets.py:tiny"))


def test_a_name_has_its_range_wherever_it_is_said(folder):
    spec = read_dynamic(["x.0=n", "scale.0=n:2..9"], build_model("nets.py:scaled"))
    assert (spec["x"][0].max, spec["scale"][0].max) == (9, 9)
