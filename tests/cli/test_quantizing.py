"""`lostwax quantize`: files in integers, by other people's quantizers."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
import torch

import lostwax as package

pytest.importorskip("torchao.quantization.pt2e", reason="needs torchao: pip install .[test]")
pytest.importorskip("executorch.backends.xnnpack", reason="needs executorch: make test")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

NETS = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(9, 4)
        self.layer = torch.nn.Linear(4, 4)
        self.drop = torch.nn.Dropout()

    def forward(self, x, mask):
        at = torch.arange(x.shape[1]) + 1  # a number beside integers
        return self.drop(self.layer(x + self.table.weight[at])).relu() * mask


class Waves(torch.nn.Module):
    def forward(self, x):
        return x.sin()


def net():
    return Net(), torch.randn(3, 5, 4), {"mask": torch.ones(3, 1, 1)}


def waves():
    return Waves(), torch.ones(3)


def batches(sizes=(2, 3)):
    for size in sizes:
        yield torch.randn(size, 5, 4), torch.ones(size, 1, 1)


def number():
    return 7


def pairs():
    return [(torch.ones(3, 5, 4),) * 3]
"""


@pytest.fixture
def models(folder: Path) -> Path:
    (folder / "models.py").write_text(NETS)
    return folder


QUANTIZE = ("quantize", "models.py:net", "--dynamic", "batch:1..8")


def test_a_file_has_weights_in_integers_and_runs(lostwax, models):
    ran = lostwax(*QUANTIZE, "-o", "a.pt2", "--calibrate", "models.py:batches", "--json")
    assert ran.code == 0, ran.out
    result = ran.json["result"]
    assert (result["calls"], result["quantizer"], ran.json["warnings"]) == (2, "xnnpack", [])
    assert 3 <= result["annotated"] < result["operators"]
    assert 0 < result["difference"] < 0.1
    program = package.load("a.pt2")
    dtypes = {name: tensor.dtype for name, tensor in program.state_dict.items()}
    assert torch.int8 in dtypes.values()
    assert not any(name.endswith("layer.weight") for name in dtypes), "floats that nothing reads"
    assert program.module()(torch.ones(7, 5, 4), mask=torch.ones(7, 1, 1)).shape == (7, 5, 4)
    assert lostwax("run", "a.pt2").code == 0


def test_an_executable_is_handed_to_its_backend(lostwax, models):
    ran = lostwax(*QUANTIZE, "-o", "a.pte", "--calibrate", "models.py:batches?sizes=(4,)")
    assert ran.code == 0, ran.err
    assert "% delegated" in ran.out
    assert "calibrated with 1 call; " in ran.out
    assert "% from the results in floats" in ran.out


def test_calls_come_from_files(lostwax, models):
    x, mask = torch.randn(3, 5, 4), torch.ones(3, 1, 1)
    (models / "calls").mkdir()
    torch.save([(x, mask), {"x": x, "mask": mask}], "calls/1.pt")
    numpy.savez("calls/2.npz", x=x.numpy(), mask=mask.numpy())
    ran = lostwax(*QUANTIZE, "-o", "a.pt2", "--quantizer", "x86", "--calibrate", "calls", "--json")
    assert ran.code == 0, ran.out
    assert ran.json["result"]["calls"] == 3


def test_without_calls_a_warning_says_what_they_are_for(lostwax, models):
    ran = lostwax("quantize", "models.py:net", "-o", "a.pt2")
    assert ran.code == 0
    assert "warning: calibrated with the example alone" in ran.err
    ran = lostwax("quantize", "models.py:net", "-o", "a.pt2", "--quantizer", "xnnpack?is_dynamic=1")
    assert ran.err == ""


def test_the_line_that_quantizing_spoils_is_named(lostwax, models):
    by_channel = (*QUANTIZE, "--quantizer", "xnnpack?is_per_channel=true")
    assert lostwax(*by_channel, "-o", "a.pt2", "--calibrate", "models.py:batches").code == 0
    check = ("check", "models.py:net", "--stages", "--backend", "xnnpack", "--quantized")
    ran = lostwax(*check, "a.pt2", "--json")
    assert ran.code == 0, ran.err
    result = ran.json["result"]
    names = [stage["name"] for stage in result["stages"]]
    assert names == ["ATen", "quantized", "core ATen", "Edge", "delegated", "runtime"]
    (layer,) = [n for n in result["stages"][1]["nodes"] if n["module"] == "layer"]
    assert 0 < layer["own"] < 0.1
    program = package.load("a.pt2")
    (scale,) = [n for n in program.state_dict if "scale" in n]
    program.state_dict[scale].mul_(3)
    package.save(program, "bad.pt2")
    ran = lostwax(*check, "bad.pt2")
    assert ran.code == 4
    assert "the error grows first in quantized: " in ran.out
    assert " in layer\n    at models.py:14, code: return self.drop(self.layer(x + " in ran.out
    assert lostwax(*check, "bad.pt2", "--bar", "100").code == 0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--quantized", "a.pte", "--stages"), "--quantized a.pte: the file has no lines by which"),
        (("--quantized", "a.pt2", "--stages"), "there is no file 'a.pt2'"),
        (("--quantized", "models.py:net"), "--quantized, --bar and .pte files go with --stages"),
        (("--bar", "0"), "--quantized, --bar and .pte files go with --stages"),
    ],
)
def test_what_is_no_quantized_program(lostwax, models, words, text):
    ran = lostwax("check", "models.py:net", *words)
    assert (ran.code, text in ran.err) == (2, True), ran.err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("models.py:waves",), "finds nothing to quantize in models.py:waves\n  why: "),
        (("models.py:net", "--quantizer", "xnpack"), "did you mean 'xnnpack'?"),
        (("models.py:net", "--quantizer", "xnnpack?is_dynamc=1"), "where it takes (is_per_channel"),
        (("models.py:net", "--quantizer", "x86?is_qat=1"), "prepare_qat_pt2e in Python"),
        (("models.py:net", "--calibrate", "none.npy"), "there is no file 'none.npy'"),
        (("models.py:net", "--calibrate", "models.py:number"), "a value of type int"),
        (
            ("models.py:net", "--calibrate", "models.py:pairs"),
            "models.py:pairs', call 0: a call with 3",
        ),
        (("models.py:net", "--calibrate", "x.npy"), "x.npy': a call without 'mask'"),
        (("models.py:net", "--calibrate", "y.npz"), "no input 'msk' (did you mean 'mask'?)"),
        (("models.py:net", "--calibrate", "empty"), "there is no call in it"),
        (("models.py:net", "--calibrate", "models.py:batches"), "x.shape[0] is 2, but the program"),
        (
            ("models.py:net", "--calibrate", "models.py:batches"),
            "given by: --calibrate 'models.py:b",
        ),
    ],
)
def test_what_is_wrong_is_told_and_nothing_written(lostwax, models, words, text):
    numpy.save("x.npy", numpy.ones((3, 5, 4), "float32"))
    numpy.savez("y.npz", msk=numpy.ones((3, 1, 1), "float32"))
    (models / "empty").mkdir()
    ran = lostwax("quantize", *words, "-o", "a.pt2")
    assert ran.code in (2, 3)
    assert text in ran.err
    assert not Path("a.pt2").exists()
