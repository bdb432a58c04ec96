"""`lostwax export` and `lower`: one model, several, and the forms."""

from __future__ import annotations

import sys

import pytest
import torch

import lostwax as face
from lostwax.cli import exporting
from tests.cli.rays import pretend_ray


def test_a_model_with_a_size_that_varies(lostwax, folder):
    ran = lostwax(
        "export", "nets.py:tiny?wide=16", "-o", "a.pt2", "--dynamic", "batch:1..64", "--json"
    )
    (made,) = ran.json["result"]["models"]
    program = face.load("a.pt2")
    assert program.module()(torch.randn(7, 4)).shape == (7, 2)
    assert made["parameters"] == 16 * 5 + 2 * 17
    assert list(made["ranges"].values()) == ["1..64"]
    assert made["bytes"] == (folder / "a.pt2").stat().st_size
    assert made["nodes"] == 5
    assert lostwax("export", "nets.py:tiny").out.startswith("tiny.pt2: 5 operators, 58 parameters")


def test_named_inputs_vary(lostwax, folder):
    ran = lostwax("export", "nets.py:scaled", "-o", "a.pt2", "-d", "x.0=rows:2..8")
    assert ran.code == 3
    assert "[LW0201]" in ran.err, "the other input has the same size"
    assert lostwax("export", "nets.py:scaled", "-o", "a.pt2", "-d", "rows").code == 0
    run = face.load("a.pt2").module()
    assert run(torch.randn(5, 4), scale=torch.ones(5, 1)).shape == (5, 2)


@pytest.mark.parametrize(
    ("flags", "file"),
    [(["--core"], "m.pt2"), (["--edge"], "m.txt"), (["--pte"], "m.pte"), ([], "m.pte"),
     (["--pte", "--backend", "xnnpack"], "m.pte")],
)  # fmt: skip
def test_other_forms(lostwax, folder, flags, file):
    ran = lostwax("export", "nets.py:tiny", "-o", file, *flags, "--json")
    (made,) = ran.json["result"]["models"]
    if file.endswith(".pte"):
        assert made["arena_bytes"]["forward"] > 0
        assert (made["delegated"] == 1.0) == ("xnnpack" in flags)
        assert (b"XnnpackBackend" in (folder / file).read_bytes()) == ("xnnpack" in flags)
    elif "--core" in flags:
        nodes = face.load(file).graph.nodes
        assert not any(n.target is torch.ops.aten.t.default for n in nodes)
    else:
        assert "edge.aten.permute_copy.default" in (folder / file).read_text()


@pytest.mark.parametrize("words", [["-o", "m.pt2"], ["-o", "m.pt2", "--core"], ["-o", "m.pte"],
                                   ["-o", "m.pte", "--backend", "xnnpack"]])  # fmt: skip
def test_operators_are_as_many_in_every_command(lostwax, folder, words):
    (folder / "picks.py").write_text(
        "import torch\ndef picks(): return lambda x: x.sort()[0] + x.relu(), torch.ones(3)\n"
    )
    (made,) = lostwax("export", "picks.py:picks", *words, "--json").json["result"]["models"]
    shown = lostwax("show", words[1], "--ops").out.splitlines()[-1]
    assert int(shown.split()[0]) == made["nodes"]
    if words[1] == "m.pt2":
        kinds = face.explore("m.pt2").data["programs"][0]["columns"]["kind"]
        assert made["nodes"] == kinds.count(4) == 3, "as in the explorer, where 4 is an operator"


def test_a_file_is_lowered(lostwax, folder):
    lostwax("export", "nets.py:tiny", "-o", "a.pt2")
    assert "memory" in lostwax("lower", "a.pt2", "--backend", "xnnpack").out
    assert b"XnnpackBackend" in (folder / "a.pte").read_bytes()
    assert lostwax("lower", "a.pt2", "--to", "core", "-o", "core.pt2").code == 0
    assert "permute" in lostwax("show", "core.pt2").out


def test_several_models_go_on_after_one_fails(lostwax, folder):
    names = ["tiny", "reads", "tiny?wide=4", "broken"]
    ran = lostwax("export", *(f"nets.py:{n}" for n in names), "-o", "out", "--json")
    assert ran.code == 3, "that of the first that failed"
    models = ran.json["result"]["models"]
    assert [m["error"] and m["error"]["exit"] for m in models] == [None, 3, None, 1]
    assert sorted(p.name for p in (folder / "out").iterdir()) == ["tiny-2.pt2", "tiny.pt2"]
    assert face.load("out/tiny-2.pt2").module()(torch.ones(3, 4)).shape == (3, 2)


def test_a_process_that_dies_takes_no_other_along(lostwax, folder):
    """With `-j`. Each model has a process of its own, which loads torch: so there are few."""
    ran = lostwax("export", "nets.py:dies", "nets.py:tiny", "-o", "out", "-j", "2", "--json")
    dead, good = ran.json["result"]["models"]
    assert (ran.code, dead["error"]["exit"], good["error"]) == (1, 1, None)
    assert "ended with 9" in dead["error"]["message"]
    assert [p.name for p in (folder / "out").iterdir()] == ["tiny.pt2"]


def test_ray_is_asked_for_by_name(lostwax, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    ran = lostwax("export", "nets.py:tiny", "--ray")
    assert ran.code == 2
    assert "pip install 'lostwax[ray]'" in ran.err


def test_files_come_back_from_ray(lostwax, folder, monkeypatch):
    """Workers may be other machines."""
    pretend_ray(monkeypatch, folder)
    ran = lostwax("export", "nets.py:tiny", "nets.py:reads", "-o", "out", "--ray", "--json")
    good, bad = ran.json["result"]["models"]
    assert (ran.code, good["file"], bad["error"]["message"]) == (
        1,
        "out/tiny.pt2",
        "the worker died",
    )
    assert face.load("out/tiny.pt2").module()(torch.ones(3, 4)).shape == (3, 2)


def test_progress_is_for_terminals_alone(lostwax, folder, monkeypatch):
    seen = []
    monkeypatch.setattr(exporting, "show_status", lambda text: seen.append(text) or _nothing())
    quiet = lostwax("export", "nets.py:tiny")
    assert seen == ["exporting nets.py:tiny"]
    assert quiet.err == "made\n"


def _nothing():
    import contextlib

    return contextlib.nullcontext()
