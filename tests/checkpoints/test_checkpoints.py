"""`lostwax.checkpoint`: modules built without weights, bound to those of `.safetensors` files, and
written without having them in memory; programs whose files refer to them; and what is refused."""

from __future__ import annotations

import copy
import json
import shutil
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lostwax
from lostwax.checkpoints import mapped
from lostwax.checkpoints.headers import DTYPES
from lostwax.errors import LoadError, SaveError

NAMES = {dtype: name for name, dtype in DTYPES.items()}


def write_shard(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    header, data = {}, b""
    for name, tensor in tensors.items():
        each = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        place = [len(data), len(data) + len(each)]
        kind = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape)}
        header[name] = {**kind, "data_offsets": place}
        data += each
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_checkpoint(folder: Path, state: dict[str, torch.Tensor], shards: int = 2) -> Path:
    names = list(state)
    places = {}
    for i in range(shards):
        file = f"model-{i}.safetensors"
        here = {name: state[name] for name in names[i::shards]}
        write_shard(folder / file, here)
        places |= dict.fromkeys(here, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


class Net(nn.Module):
    """Tied weights, a table that is computed, a buffer that is kept, layers that are copied."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.table = nn.Embedding(11, width)
        layer = nn.Linear(width, width)
        self.layers = nn.ModuleList([copy.deepcopy(layer) for _ in range(2)])
        self.scale = nn.Parameter(torch.ones(width))
        self.head = nn.Linear(width, 11, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("angles", torch.arange(width) / width, persistent=False)
        self.register_buffer("seen", torch.zeros(width))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids) + self.angles + self.seen
        for layer in self.layers:
            x = layer(x).relu() * self.scale
        return self.head(x)


IDS = torch.tensor([[1, 2, 3]])


@pytest.fixture
def trained() -> Net:
    net = Net()
    with torch.no_grad():
        for each in [*net.parameters(), net.seen]:
            each.copy_(torch.randn_like(each))
    return net


def untied(net: nn.Module) -> dict[str, torch.Tensor]:
    """What `save_pretrained` writes: a tensor with two names once."""
    return {name: value for name, value in net.state_dict().items() if name != "head.weight"}


@pytest.fixture
def folder(tmp_path: Path, trained: Net) -> Path:
    return write_checkpoint(tmp_path, untied(trained))


def test_a_module_built_on_meta_has_the_weights_of_the_files(folder: Path, trained: Net) -> None:
    checkpoint = lostwax.checkpoint(folder)
    with checkpoint.on_meta():
        net = Net()
        assert net.table.weight.is_meta
        assert not net.angles.is_meta
    assert net.head.weight is net.table.weight
    assert isinstance(net.scale, nn.Parameter)
    assert net.scale.requires_grad
    assert torch.equal(net(IDS), trained(IDS))
    assert mapped.find_place(net.table.weight.data_ptr()) is not None
    program = lostwax.export(net, (IDS,))
    assert torch.equal(program.module()(IDS), trained(IDS))
    assert Net().table.weight.device.type == "cpu"  # nothing stays behind


def test_headers_say_what_is_there(folder: Path) -> None:
    checkpoint = lostwax.checkpoint(folder)
    table = checkpoint.tensors["table.weight"]
    assert (table.shape, table.dtype) == ((11, 8), torch.float32)
    assert checkpoint.dtype == torch.float32
    assert "7 tensors" in repr(checkpoint)
    assert checkpoint.read("scale").shape == (8,)


def test_a_module_that_is_there_is_bound(folder: Path, trained: Net) -> None:
    net = Net()
    lostwax.checkpoint(folder).bind(net)
    assert torch.equal(net(IDS), trained(IDS))


def test_writing_to_a_weight_does_not_change_the_file(folder: Path) -> None:
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    net = Net()
    lostwax.checkpoint(folder).bind(net)
    with torch.no_grad():
        net.scale.zero_()
        net.seen.add_(1)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_other_threads_build_modules_as_ever(folder: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool, lostwax.checkpoint(folder).on_meta():
        net = Net()
        assert net.table.weight.is_meta
        assert not pool.submit(Net).result().table.weight.is_meta


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_every_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    value = torch.arange(6).reshape(2, 3).to(dtype)
    write_shard(tmp_path / "model.safetensors", {"odd": torch.ones(3).to(torch.int8), "w": value})
    found = lostwax.checkpoint(tmp_path).read("w")
    assert (found.dtype, found.shape) == (dtype, (2, 3))
    assert torch.equal(found.view(torch.uint8), value.view(torch.uint8))


# ------------------------------------------------------------------------------------- refused


def refused(text: str, path: Path, build: Any = Net, **options: Any) -> None:
    with pytest.raises(LoadError) as caught, lostwax.checkpoint(path).on_meta(**options):
        kept = build()  # noqa: F841
    assert text in str(caught.value), str(caught.value)


def test_what_lacks_is_named(tmp_path: Path, trained: Net) -> None:
    state = untied(trained)
    del state["scale"], state["layers.1.bias"]
    write_checkpoint(tmp_path, state)
    refused("2 not in the checkpoint: scale, layers.1.bias", tmp_path)


def test_shapes_and_dtypes_are_compared(folder: Path) -> None:
    refused("table.weight is [11, 8] there, [11, 6] in the model", folder, lambda: Net(6))
    text = "scale is torch.float32 there, torch.bfloat16 in the model"
    refused(text, folder, dtype=torch.bfloat16)
    with pytest.raises(LoadError, match=r"on_meta\(dtype=torch.float32\)"):
        lostwax.checkpoint(folder).bind(Net().half())


def test_what_is_too_much_is_told(tmp_path: Path, trained: Net) -> None:
    write_checkpoint(tmp_path, {**untied(trained), "vision.weight": torch.ones(2)})
    with pytest.warns(UserWarning, match="1 tensors? of the checkpoint ha.*vision.weight"):
        lostwax.checkpoint(tmp_path).bind(Net())


def test_a_buffer_that_lacks_stays_as_the_model_makes_it(tmp_path: Path, trained: Net) -> None:
    state = untied(trained)
    del state["seen"]
    write_checkpoint(tmp_path, state)
    with pytest.warns(UserWarning, match="stay as the model makes them: seen"):
        lostwax.checkpoint(tmp_path).bind(net := Net())
    assert torch.equal(net.seen, torch.zeros(8))


def test_tied_weights_that_differ_are_refused(tmp_path: Path, trained: Net) -> None:
    state = {**untied(trained), "head.weight": torch.randn(11, 8)}
    write_checkpoint(tmp_path, state)
    refused("are one parameter of the model, and differ in the checkpoint", tmp_path)


def corrupt(path: Path, header: Any) -> Path:
    text = json.dumps(header).encode()
    file = path / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(16))
    return file


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"shape": [3]}, "needs 12 bytes, and has 8"),
        ({"shape": [-2]}, "is damaged"),
        ({"shape": [True, 2]}, "is damaged"),
        ({"shape": [1 << 61, 1 << 61, 0]}, "needs 0 bytes, and has 8"),
        ({"data_offsets": [8, 0]}, "needs 8 bytes, and has -8"),
        ({"data_offsets": [64, 72]}, "it is cut off"),
        ({"data_offsets": [0]}, "is damaged"),
        ({"dtype": "F2"}, "a dtype that torch has no form for"),
        ({"dtype": ["F32"]}, "a dtype that torch has no form for"),
    ],
)
def test_damaged_headers_are_refused(tmp_path: Path, change: Any, text: str) -> None:
    file = corrupt(tmp_path, {"w": {**ENTRY, **change}})
    with pytest.raises(LoadError) as caught:
        lostwax.checkpoint(file)
    assert text in str(caught.value)
    assert f"while reading {file}" in str(caught.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    for data, text in (
        (b"", "no .safetensors file"),
        (b"\xff" * 8, "no .safetensors file"),
        (b"version https://git-lfs", "git lfs pull"),
        (struct.pack("<Q", 2) + b"[]", "no table of tensors"),
        (struct.pack("<Q", 2) + b"{x", "no JSON"),
    ):
        (tmp_path / "model.safetensors").write_bytes(data)
        with pytest.raises(LoadError, match=text):
            lostwax.checkpoint(tmp_path)
    with pytest.raises(LoadError, match="there is no checkpoint"):
        lostwax.checkpoint(tmp_path / "nothing")


def test_an_index_leads_to_files_beside_it_alone(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    for given, text in (
        ({"w": "../w.safetensors"}, "no name of a file beside it"),
        ({"w": "w.safetensors"}, "is missing"),
        ({"w": 3}, "no table of names"),
        ([], "no table of names"),
    ):
        index.write_text(json.dumps({"weight_map": given}))
        with pytest.raises(LoadError, match=text):
            lostwax.checkpoint(tmp_path)


# --------------------------------------------------------------------------------- written


def resident(program: Any) -> int:
    """The bytes in memory of the files that a program's weights lie in."""
    files = {mapped.find_place(t.data_ptr()).file for t in program.state_dict.values()}
    found, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        start = line.partition("-")[0]
        if line[:1] in "0123456789abcdef" and "-" in line.split(" ")[0]:
            ours = any(file.covers(int(start, 16)) for file in files)
        elif ours and line.startswith("Rss:"):
            found += int(line.split()[1]) * 1024
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="how much is in memory, Linux says")
def test_what_is_written_is_not_kept_in_memory(tmp_path: Path) -> None:
    net = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(12))).eval()
    write_checkpoint(tmp_path, net.state_dict(), 3)  # 48 MB
    with lostwax.checkpoint(tmp_path).on_meta():
        built = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(12))).eval()
    x = torch.randn(1, 1024)
    program = lostwax.export(built, (x,))
    lostwax.save(program, tmp_path / "m.pt2")
    assert resident(program) < 8e6
    lostwax.onnx.save(program, tmp_path / "m.onnx", external_data=True)
    assert resident(program) < 8e6
    config = lostwax.ExecutableConfig(reads_late=True)
    program.to_edge().to_executable(config).save(tmp_path / "m.pte")
    assert resident(program) < 8e6
    assert torch.equal(lostwax.load(tmp_path / "m.pt2").module()(x), net(x))


def test_a_program_refers_to_its_checkpoint(folder: Path, trained: Net, tmp_path: Path) -> None:
    with lostwax.checkpoint(folder).on_meta():
        net = Net()
    path = folder / "net.pt2"
    lostwax.save(lostwax.export(net, (IDS,)), path, weights="checkpoint")
    loaded = lostwax.load(path)
    assert torch.equal(loaded.module()(IDS), trained(IDS))
    assert {*loaded.state_dict} == {*trained.state_dict()}
    assert mapped.find_place(loaded.state_dict["scale"].data_ptr()) is not None
    tensors = loaded.state_dict
    assert tensors["head.weight"] is tensors["table.weight"]
    whole = tmp_path / "whole.pt2"
    lostwax.save(loaded, whole)
    for file in folder.glob("*.safetensors"):
        file.unlink()
    assert torch.equal(lostwax.load(whole).module()(IDS), trained(IDS))
    with pytest.raises(LoadError, match=r"which is not in .*\n  instead: lostwax.load\(path"):
        lostwax.load(path)
    assert lostwax.load(path, weights=False).state_dict["scale"].shape == (8,)


def test_another_checkpoint_is_not_taken(folder: Path, tmp_path: Path) -> None:
    with lostwax.checkpoint(folder).on_meta():
        net = Net()
    path = tmp_path / "net.pt2"
    lostwax.save(lostwax.export(net, (IDS,)), path, weights="checkpoint")
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    assert lostwax.load(path, checkpoint=other) is not None
    file = other / "model-1.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(LoadError, match="is of another checkpoint"):
        lostwax.load(path, checkpoint=other)
    file.write_bytes(data[:-4])
    with pytest.raises(LoadError, match=r"has [\d,]+ bytes, and the program's weights"):
        lostwax.load(path, checkpoint=other)


def test_weights_that_were_changed_are_not_referred_to(folder: Path, trained: Net) -> None:
    with lostwax.checkpoint(folder).on_meta():
        net = Net()
    program = lostwax.export(net, (IDS,))
    with torch.no_grad():
        net.scale.mul_(2)
    with pytest.raises(SaveError, match="were changed after they were read"):
        lostwax.save(program, folder / "net.pt2", weights="checkpoint")
    assert not (folder / "net.pt2").exists()
    lostwax.save(program, folder / "net.pt2")
    assert torch.equal(lostwax.load(folder / "net.pt2").module()(IDS), net(IDS))


def test_where_weights_go_is_one_of_two_words(folder: Path) -> None:
    with pytest.raises(SaveError, match="'inside' the archive"):
        lostwax.save(lostwax.export(Net(), (IDS,)), folder / "net.pt2", weights="beside")
