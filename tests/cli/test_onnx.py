"""`.onnx` files on the command line: written, lowered to, compared with models, run."""

from __future__ import annotations

import numpy
import pytest

from tests.onnx.running import onnx, onnxruntime  # where it is not installed, these are skipped


@pytest.fixture
def file(lostwax, folder):
    ran = lostwax("export", "nets.py:scaled", "-o", "a.onnx", "--dynamic", "batch:1..64")
    assert ran.code == 0
    assert "a.onnx: 4 operators, " in ran.out
    assert "batch in 1..64" in ran.out
    return "a.onnx"


def test_a_file_agrees_with_its_model_at_many_sizes(lostwax, file):
    """Drawn with another seed, the model has other weights: those of the file are taken."""
    ran = lostwax("check", file, "nets.py:scaled", "--seed", "1", "--draws", "3", "--json")
    assert ran.code == 0
    assert ran.json["result"]["models"][0]["agreed"] == [
        "the example",
        *(f"x.shape[0] = {n}" for n in (1, 2, 3)),
    ]


def test_a_file_of_other_weights_differs(lostwax, file):
    ran = lostwax("check", file, "nets.py:scaled", "--own-weights", "--seed", "1")
    assert ran.code == 4
    assert "the model differs from the module\n  case: the example\n  call 1: result 0" in ran.out


def test_a_file_of_another_model_differs(lostwax, file):
    ran = lostwax("check", file, "nets.py:tiny", "--draws", "0")
    assert ran.code == 4
    assert "the model takes x, scale" in ran.out


def test_a_file_is_lowered_and_run(lostwax, folder):
    assert lostwax("export", "nets.py:tiny", "-o", "a.pt2").code == 0
    assert lostwax("lower", "a.pt2", "-o", "a.onnx").code == 0
    numpy.save("x.npy", numpy.ones((3, 4), "float32"))
    ran = lostwax("run", "a.onnx", "--input", "x.npy", "-o", "y.npy")
    assert ran.code == 0
    session = onnxruntime.InferenceSession("a.onnx")
    (wanted,) = session.run(None, {"x": numpy.load("x.npy")})
    assert numpy.array_equal(numpy.load("y.npy"), wanted)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "an .onnx file has no example inputs\n  instead: --input x.npy"),
        (("-i", "b.npy"), "the model takes 1 input, x; 2 are given"),
        (("-i", "y=b.npy"), "there is no input 'y'; there is x"),
        (("-i", "b.npy"), "the input 'x' is torch.int64"),
    ],
)
def test_inputs_that_do_not_fit_are_told(lostwax, folder, words, text):
    assert lostwax("export", "nets.py:tiny", "-o", "a.onnx").code == 0
    numpy.save("b.npy", numpy.ones((3, 4), "int64"))
    twice = words * 2 if "2 are given" in text else words
    ran = lostwax("run", "a.onnx", *twice)
    assert ran.code != 0
    assert text in ran.err
    assert "Traceback" not in ran.err


def test_an_opset_and_functions_are_asked_for(lostwax, folder):
    assert lostwax("export", "nets.py:tiny", "-o", "a.onnx", "--opset", "18").code == 0
    assert lostwax("export", "nets.py:tiny", "-o", "a.pt2").code == 0
    assert lostwax("lower", "a.pt2", "-o", "b.onnx", "--opset", "24").code == 0
    assert lostwax("export", "nets.py:tiny", "-o", "c.onnx", "--functions").code == 0
    found = [onnx.load(name) for name in ("a.onnx", "b.onnx", "c.onnx")]
    assert [each.opset_import[0].version for each in found] == [18, 24, 23]
    assert [bool(each.functions) for each in found] == [False, False, True]
    for words, text in (
        (("export", "nets.py:tiny", "-o", "c.onnx", "--opset", "5"), "opset=5 cannot be written"),
        (("lower", "a.pt2", "-o", "b.pte", "--opset", "18"), "--opset is of ONNX files"),
        (("export", "nets.py:tiny", "-o", "c.pt2", "--functions"), "--functions is of ONNX files"),
    ):
        ran = lostwax(*words)
        assert ran.code != 0
        assert text in ran.err
