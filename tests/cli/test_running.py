"""`lostwax check`, `run` and `bench`."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager

import numpy
import pytest
import torch

import lostwax as face
from lostwax.cli import running
from lostwax.cli.benching import describe_times
from lostwax.pte.file.bundle import BundledCase, write_bundle
from tests.cli.rays import pretend_ray


@pytest.fixture
def file(lostwax, folder):
    assert lostwax("export", "nets.py:tiny", "-o", "a.pt2", "--dynamic", "batch").code == 0
    return "a.pt2"


def test_a_file_agrees_with_its_model(lostwax, file):
    """Drawn with another seed, the model has other weights: those of the file are taken."""
    ran = lostwax("check", file, "nets.py:tiny", "--draws", "3", "--seed", "1", "--json")
    assert ran.code == 0
    assert ran.json["result"]["ok"]
    assert len(ran.json["result"]["models"][0]["agreed"]) == 4
    own = lostwax("check", file, "nets.py:tiny", "--own-weights", "--seed", "1")
    assert own.code == 4
    assert "the program differs from the module" in own.out


def test_each_case_of_a_check_is_told_on_a_terminal(lostwax, file, monkeypatch):
    told = []

    @contextmanager
    def show_status(text):
        yield lambda part: told.append(f"{text}: {part}")

    monkeypatch.setattr(running, "show_status", show_status)
    assert lostwax("check", file, "nets.py:tiny", "--draws", "1").code == 0
    cases = ("building the model", "the example", "x.shape[0] = 0")
    assert told == [f"checking a.pt2: {case}" for case in cases]


def test_a_file_of_another_model(lostwax, file):
    ran = lostwax("check", file, "nets.py:tiny?wide=9")
    assert ran.code == 2
    assert "'first.weight' is not in both with one size" in ran.err


def test_a_model_alone_is_exported_and_checked(lostwax, folder):
    ran = lostwax("check", "nets.py:scaled", "--dynamic", "batch", "--draws", "1")
    assert ran.code == 0
    assert "agrees with the module: x.shape[0] = 0" in ran.out


@pytest.mark.parametrize("way", [(), ("-j", "2"), ("--ray",)])
def test_several_are_checked_and_go_on_after_one_fails(
    lostwax, file, folder, forks, way, monkeypatch
):
    pretend_ray(monkeypatch, folder)
    ran = lostwax("check", "nets.py:reads", file, "nets.py:tiny", *way, "--draws", "1", "--json")
    bad, good = ran.json["result"]["models"]
    assert not ran.json["result"]["ok"]
    assert (bad["file"], bad["error"]["exit"]) == (None, 1 if way == ("--ray",) else 3)
    assert (good["file"], good["ok"], good["error"], len(good["agreed"])) == (
        "a.pt2",
        True,
        None,
        2,
    )
    assert ran.code == bad["error"]["exit"], "that of the first that failed"


def test_several_are_told_in_lines(lostwax, file):
    ran = lostwax("check", file, "nets.py:tiny", "nets.py:scaled", "--draws", "0")
    first, second, last = ran.out.splitlines()
    assert first == "a.pt2, nets.py:tiny: agrees in 1 case"
    assert (second, last) == ("nets.py:scaled: agrees in 1 case", "2 of 2 agree")
    both = (file, "nets.py:tiny", "nets.py:scaled")
    ran = lostwax("check", *both, "--own-weights", "--seed", "1")
    assert ran.code == 4
    assert "  the program differs from the module" in ran.out
    assert lostwax("check", "nets.py:tiny", file).code == 2


def test_ray_is_asked_for_by_name(lostwax, file, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    ran = lostwax("check", file, "nets.py:tiny", "--ray")
    assert ran.code == 2
    assert "pip install 'lostwax[ray]'" in ran.err


def test_a_file_is_run(lostwax, file, folder):
    assert lostwax("run", file).out.startswith("f32[3, 2] min ")
    x = torch.randn(5, 4)
    numpy.save("x.npy", x.numpy())
    torch.save(x, "x.pt")
    want = face.load(file).module()(x)
    for given in ("x.npy", "x.pt"):
        ran = lostwax("run", file, "--input", given, "-o", "y.pt", "--json")
        assert ran.json["result"]["results"][0]["type"] == "f32[5, 2]"
        torch.testing.assert_close(torch.load("y.pt"), want)


def test_an_executable_is_run(lostwax, folder):
    pytest.importorskip("executorch")
    lostwax("export", "nets.py:tiny", "-o", "a.pt2")
    lostwax("lower", "a.pt2", "-o", "a.pte")
    x = torch.randn(3, 4)
    torch.save(x, "x.pt")
    assert lostwax("run", "a.pte", "-i", "x.pt", "-o", "y.pt").code == 0
    torch.testing.assert_close(torch.load("y.pt")[0], face.load("a.pt2").module()(x))
    assert "instead: --input" in lostwax("run", "a.pte").err


def test_a_program_is_timed_beside_eager(lostwax, file):
    before = torch.get_num_threads()
    words = ("bench", file, "nets.py:tiny", "--repeat", "3", "--threads", "1")
    told = lostwax(*words, "--json").json["result"]
    assert set(told["seconds"]) == {"the program", "eager"}
    assert (told["threads"], told["items"], torch.get_num_threads()) == (1, 3, before)
    assert lostwax(*words).out.startswith("3 calls each, 1 thread, 3 items a call\nthe program: ")


def test_times_are_told_by_their_shares():
    told = describe_times([each / 1000 for each in range(100, 0, -1)], 4)
    assert [round(told[key], 6) for key in ("least", "median", "p90", "p99", "most")] == [
        *(0.001, 0.0505, 0.09, 0.099, 0.1)
    ]
    assert told["items_per_second"] == pytest.approx(4 / 0.0505)
    assert describe_times([1.0], 2)["p99"] == 1.0


def test_a_check_stage_by_stage(lostwax, folder):
    done = lostwax("check", "nets.py:tiny", "--stages", "--json")
    assert done.code == 0
    result = json.loads(done.out)["result"]
    assert [stage["name"] for stage in result["stages"]][:3] == ["ATen", "core ATen", "Edge"]
    assert result["growth"] is None
    assert result["stages"][1]["nodes"][0]["line"].startswith("nets.py:")
    assert lostwax("export", "nets.py:tiny", "--pte", "-o", "m.pte").code == 0
    done = lostwax("check", "m.pte", "nets.py:tiny", "--stages")
    assert done.code == 0
    assert "the results, Edge\n" in done.out
    assert "the inputs are the model's example: --input gives real ones" in done.err
    refused = lostwax("check", "m.pte", "nets.py:tiny")
    assert "--input, --backend, --quantized, --bar and .pte files go with --stages" in refused.err
    two = lostwax("check", "nets.py:tiny", "nets.py:tiny", "--stages")
    assert "--stages is of one program, and there are 2" in two.err


def test_a_bundled_program_is_checked_by_what_is_in_it(lostwax, folder):
    x = torch.randn(3, 4)
    program = face.export(lambda x: torch.sigmoid(x) * 2, (x,))
    program.to_edge().to_executable().save("m.pte", bundled=[(x,), (-x,)])
    ran = lostwax("check", "m.bpte", "--json")
    assert ran.code == 0
    assert ran.json["result"]["bundles"][0]["agreed"] == ["call 0 of forward", "call 1 of forward"]
    good = face.pte.read_bundle("m.bpte")
    wrong = BundledCase((x,), (x,))
    (folder / "m.bpte").write_bytes(write_bundle(good.program, {"forward": [wrong]}))
    ran = lostwax("check", "m.bpte")
    assert ran.code == 4
    assert "result 0: " in ran.out
    ran = lostwax("check", "m.bpte", "nets.py:tiny")
    assert (ran.code, "instead: lostwax check m.bpte" in ran.err) == (2, True)
    (folder / "m.bpte").write_bytes(b"nothing at all")
    ran = lostwax("check", "m.bpte")
    assert (ran.code, "not a bundled program: its identifier" in ran.err) == (3, True)


def test_calls_are_bundled_on_the_command_line(lostwax, folder):
    numpy.save("x.npy", numpy.ones((3, 4), "float32"))
    words = ("--bundle", "example", "--bundle", "x.npy")
    ran = lostwax("export", "nets.py:tiny", "-o", "m.pte", *words)
    assert (ran.code, "2 calls in the .bpte file" in ran.out) == (0, True)
    assert lostwax("export", "nets.py:tiny", "-o", "a.pt2").code == 0
    assert lostwax("lower", "a.pt2", "-o", "low.pte", *words).code == 0
    assert lostwax("export", "nets.py:scaled", "-o", "s.pte", "--bundle", "example").code == 0
    ran = lostwax("check", "m.bpte", "low.bpte", "s.bpte", "--json")
    assert ran.code == 0
    assert [len(each["agreed"]) for each in ran.json["result"]["bundles"]] == [2, 2, 1]
    (first, second) = face.pte.read_bundle("m.bpte").cases["forward"]
    assert not torch.equal(first.inputs[0], second.inputs[0])
    assert torch.equal(second.inputs[0], torch.ones(3, 4))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("-o", "m.pt2", "--bundle", "example"), "--bundle is of .pte files\n  instead: -o x.pte"),
        (("-o", "m.pt2", "--etrecord"), "--etrecord is of .pte files"),
        (("-o", "m.pte", "--bundle", "none.npy"), "there is no file 'none.npy'"),
        (("-o", "m.pte", "--bundle", "w.npz"), "--bundle 'w.npz': the example has no input 'w'"),
    ],
)
def test_what_is_of_no_bundle(lostwax, folder, words, text):
    numpy.savez("w.npz", w=numpy.ones((3, 4), "float32"))
    ran = lostwax("export", "nets.py:tiny", *words)
    assert ran.code == 2
    assert text in ran.err


def test_a_call_that_the_program_does_not_take_is_named_and_nothing_written(lostwax, folder):
    (folder / "calls").mkdir()
    numpy.save("calls/good.npy", numpy.ones((3, 4), "float32"))
    numpy.save("calls/wide.npy", numpy.ones((3, 5), "float32"))
    ran = lostwax("export", "nets.py:tiny", "-o", "m.pte", "--bundle", "calls")
    assert (ran.code, "shape[1] is 5" in ran.err) == (3, True)
    assert "given by: --bundle 'calls/wide.npy'" in ran.err
    assert not (folder / "m.pte").exists()


def test_inputs_of_an_executable_have_no_names(lostwax, folder):
    numpy.save("x.npy", numpy.ones((3, 4), "float32"))
    assert lostwax("export", "nets.py:tiny", "-o", "m.pte").code == 0
    for command in ("run", "bench", "profile"):
        ran = lostwax(command, "m.pte", "--input", "y=x.npy")
        assert ran.code == 2
        assert "--input y=…: the inputs of m.pte have no names" in ran.err


def test_a_file_that_does_not_run_is_not_checked_by_stages(lostwax, folder):
    assert lostwax("export", "nets.py:tiny", "-o", "m.pte").code == 0
    (folder / "cut.pte").write_bytes((folder / "m.pte").read_bytes()[:300])
    ran = lostwax("check", "cut.pte", "nets.py:tiny", "--stages")
    assert ran.code == 3
    assert "the file has 300 bytes" in ran.err
    assert "while reading cut.pte" in ran.err
