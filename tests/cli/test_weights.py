"""Trained weights, and example inputs from the command line."""

from __future__ import annotations

import socket
from importlib.util import find_spec

import numpy
import pytest
import torch

import lostwax as face
from lostwax.cli.models import libraries
from lostwax.cli.models.factories import build_model
from lostwax.cli.models.inputs import make_inputs
from lostwax.cli.models.names import Building
from lostwax.errors import CommandError

NET = """
import torch
from nets import Net

def bare():
    return Net(8)

def on_meta():
    with torch.device("meta"):
        return Net(8), torch.ones(3, 4, device="cpu")

def needs(wide):
    return Net(wide)
"""


@pytest.fixture
def weights(folder):
    """What a training left, in the forms in which it is kept."""
    (folder / "bare.py").write_text(NET)
    torch.manual_seed(9)
    state = build_model("nets.py:tiny").module.state_dict()
    torch.save(state, "w.pth")
    torch.save({"state_dict": state, "epoch": 3}, "checkpoint.pt")
    torch.save({f"module.{name}": value for name, value in state.items()}, "parallel.pth")
    torch.save({"first.weight": state["first.weight"]}, "half.pth")
    torch.save({**state, "first.weight": torch.ones(8, 5)}, "sizes.pth")
    torch.save([1, 2], "list.pth")
    torch.save({"a": build_model}, "code.pth")
    (folder / "broken.pth").write_bytes((folder / "w.pth").read_bytes()[:300])
    (folder / "broken.safetensors").write_bytes(b"12345678")
    (folder / "page.pth").write_text("<html>")
    (folder / "pointer.pth").write_text("version https://git-lfs.github.com/spec/v1\n")
    return state


@pytest.mark.parametrize("file", ["w.pth", "checkpoint.pt", "parallel.pth", "w.safetensors"])
def test_trained_weights_are_those_of_the_program(lostwax, weights, file):
    if file.endswith(".safetensors"):
        pytest.importorskip("safetensors.torch").save_file(weights, file)
    name = "bare.py:on_meta" if file == "w.pth" else "nets.py:tiny"
    assert lostwax("export", name, "--weights", file, "--seed", "3", "-o", "a.pt2").code == 0
    for name, value in face.load("a.pt2").state_dict.items():
        assert torch.equal(value, weights[name])


@pytest.mark.parametrize(
    ("file", "told"),
    [
        (
            "half.pth",
            r"another model\n  3 of the model's are not in it: first.bias, last.bias, las",
        ),
        ("sizes.pth", "first.weight is 8x5 there, 8x4 in the model"),
        ("list.pth", r"is no state_dict, but a list\n  instead: torch.save\(model.state_dict"),
        ("code.pth", r"would run its code\n  instead: torch.save\(model.state_dict"),
        ("broken.pth", r"is damaged: .*\n  instead: fetch or save the file again"),
        ("page.pth", "is damaged: torch.save did not write it"),
        ("broken.safetensors", r"is damaged: .*\n  instead: fetch or save the file again"),
        ("pointer.pth", r"is a pointer of git-lfs, not the weights\n  instead: git lfs pull"),
    ],
)
def test_weights_of_another_model_or_none(weights, file, told):
    if "safetensors" in file:
        pytest.importorskip("safetensors")
    with pytest.raises(CommandError, match=f"(?s){told}"):
        build_model("nets.py:tiny", Building(weights=file))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["export", "nets.py:tiny", "--weights", "gone.pth"], "'gone.pth': there is no such file"),
        (["export", "nets.py:a", "nets.py:b", "--weights", "w.pth"], "is of one model"),
        (["check", "gone.pt2", "nets.py:tiny"], "there is no file 'gone.pt2'"),
        (["check", "a.pt2", "gone.py:tiny"], "there is no file 'gone.py'"),
        (["bench", "gone.pt2"], "there is no file 'gone.pt2'"),
        (["bench", "a.pt2", "-i", "gone.npy"], "there is no file 'gone.npy'"),
        (["run", "a.pt2", "-i", "x=gone.npy"], "there is no file 'gone.npy'"),
        (["run", "a.pt2", "-o", "y.txt"], "a .pt or .pth or .npy or .npz file"),
        (["diff", "a.pt2", "gone.pt2"], "there is no file 'gone.pt2'"),
        (["export", "nets.py:tiny", "--open"], "--open is of a page"),
    ],
)
def test_what_is_missing_is_told_before_the_work(lostwax, folder, monkeypatch, words, told):
    def work(*_, **__):
        raise AssertionError("it began to work")

    (folder / "a.pt2").write_text("no archive")
    for name in ("models.factories.build_model", "programs.load_program", "programs.load_programs"):
        monkeypatch.setattr(f"lostwax.cli.{name}", work)
    ran = lostwax(*words)
    assert (ran.code, told in ran.err) == (2, True), ran.err


# ------------------------------------------------------------------------------------- pretrained


@pytest.mark.skipif(find_spec("timm") is None, reason="needs timm")
def test_trained_weights_that_cannot_be_fetched(folder, monkeypatch):
    timm = libraries.import_library("timm")

    def create(name, **options):
        assert options["pretrained"] is True
        raise OSError("the hub is far away\nand more")

    monkeypatch.setattr(timm, "create_model", create)
    monkeypatch.setattr(libraries, "_is_hub_there", lambda: False)
    with pytest.raises(CommandError) as error:
        build_model("timm:test_resnet?pretrained=true")
    assert "weights cannot be had: the hub is far away\n  instead: without" in str(error.value)
    monkeypatch.undo()
    with pytest.raises(CommandError, match=r"no option 'pretraind' \(did you mean 'pretrained'"):
        build_model("timm:test_resnet?pretraind=true")
    assert build_model("timm:test_resnet?pretrained=false").args[0].shape[0] == 2


def test_whether_the_hub_is_there(monkeypatch):
    def fail(*_):
        raise OSError

    monkeypatch.setattr(libraries, "getproxies", dict)
    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert not libraries._is_hub_there()
    monkeypatch.setattr(libraries, "getproxies", lambda: {"https": "proxy"})
    assert libraries._is_hub_there()


@pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")
def test_transformers_has_many_trained_weights():
    with pytest.raises(CommandError, match="instead: hf download ORGANIZATION/MODEL"):
        build_model("transformers:bert?tiny&pretrained=true")
    assert build_model("transformers:bert?tiny&pretrained=false").kwargs


# ----------------------------------------------------------------------------------------- inputs


def test_a_bare_module_gets_its_inputs_from_the_command_line(lostwax, weights):
    words = ["bare.py:bare", "--input-shape", "x=5x4", "--dtype", "bf16", "-d", "batch"]
    assert lostwax("export", *words, "-o", "a.pt2").code == 0
    program = face.load("a.pt2")
    args, kwargs = program.example_inputs
    assert (args[0].shape, args[0].dtype, kwargs) == ((5, 4), torch.bfloat16, {})
    assert program.module()(torch.ones(2, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert lostwax("check", "a.pt2", *words[:5], "--draws", "1").code == 0


def test_shapes_replace_the_inputs_that_are_there(weights):
    how = Building(shapes=("scale=7x1:float64", "x=7x4"))
    model = build_model("nets.py:scaled", how)
    assert model.args[0].shape == (7, 4)
    assert model.kwargs["scale"].dtype == torch.float64
    ids, mask = make_inputs(lambda ids, mask: 0, (), {}, ["2x3:int64", "mask=2x3:bool"])[0]
    assert (ids.dtype, mask.dtype, int(ids.max()) < 2) == (torch.int64, torch.bool, True)


@pytest.mark.parametrize(
    ("name", "how", "told"),
    [
        ("bare", {}, r"without example inputs\n  instead: --input-shape x=1x3x224x224; or a fac"),
        ("bare", {"shapes": ("y=2x4",)}, "the model has no input 'y'; it has x, scale"),
        ("bare", {"shapes": ("x=2y4",)}, r"not understood\n  instead: 1x3x224x224, x=1x3x224x224"),
        ("bare", {"shapes": ("2x4:int46",)}, r"no dtype of torch \(did you mean 'int6'"),
        ("bare", {"shapes": ("2x4",), "dtype": "int8"}, "instead: for one input of integers"),
        ("bare", {"shapes": ("2x4",), "device": "gpu"}, r"cannot be had: .*\n.*lostwax doctor"),
        ("bare", {"shapes": ("2x4",), "device": "meta"}, "has no data"),
        ("on_meta", {}, r"are on meta, where there are no data\n  instead: --weights FILE"),
        (
            "needs",
            {},
            r"cannot be called: missing a required argument: 'wide'\n.*needs\?NAME=VALUE",
        ),
        ("needs?wide=8&deep=3", {}, "unexpected keyword argument 'deep'"),
    ],
)
def test_inputs_that_do_not_fit(weights, name, how, told):
    with pytest.raises(CommandError, match=told):
        build_model(f"bare.py:{name}", Building(**how))


# ---------------------------------------------------------------------------------------- results


def test_results_are_written_as_numpy(lostwax, folder):
    (folder / "pair.py").write_text(
        "import torch\n"
        "def one(): return lambda x: x.bfloat16() * 2, torch.ones(3)\n"
        "def two(): return lambda a, b: (a + b, a - b), {n: torch.ones(3) for n in 'ab'}\n"
    )
    for name in ("one", "two"):
        assert lostwax("export", f"pair.py:{name}", "-o", f"{name}.pt2").code == 0
    assert lostwax("run", "one.pt2", "-o", "y.npy").code == 0
    assert numpy.load("y.npy").tolist() == [2, 2, 2]
    refused = lostwax("run", "two.pt2", "-o", "y.npy")
    assert (refused.code, "instead: -o y.npz" in refused.err) == (2, True)
    numpy.save("a.npy", numpy.full(3, 5, "float32"))
    numpy.save("b.npy", numpy.full(3, 3, "float32"))
    for given in (["a.npy", "b.npy"], ["b=b.npy", "a=a.npy"]):
        words = [word for each in given for word in ("-i", each)]
        assert lostwax("run", "two.pt2", *words, "-o", "y.npz").code == 0
        found = numpy.load("y.npz")
        assert [found[f"result_{at}"].tolist() for at in (0, 1)] == [[8] * 3, [2] * 3]
