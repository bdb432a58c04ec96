"""Archives as files: several programs, extra files, mapped and shared weights, saving that is
atomic and gives the same bytes.
"""

from __future__ import annotations

import io
import os
import re
import stat
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lostwax
from lostwax.errors import InputValueError, LoadError, SaveError
from lostwax.pt2.container import writer
from tests.pt2.compare import assert_runs_alike, assert_same, peer_load, saved


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(30, 20)
        self.register_buffer("count", torch.zeros(()))
        self.passing = torch.arange(20.0)

    def forward(self, x):
        self.count += 1
        return self.l(x) * self.count + self.passing

    def other(self, x):
        return torch.relu(self.l(x))


ARGS = (torch.randn(2, 30),)


@pytest.fixture(scope="module")
def net() -> Net:
    return Net()


@pytest.fixture(scope="module")
def program(net: Net) -> Any:
    return lostwax.export(net, ARGS)


def mappings(path: Path) -> int:
    return sum(str(path) in line for line in Path("/proc/self/maps").read_text().splitlines())


# -------------------------------------------------------------------------------------------- files


def test_weights_are_views_of_the_file_and_writes_stay_here(program: Any, tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    lostwax.save(program, path)
    before = path.read_bytes()
    loaded = lostwax.load(path)
    assert mappings(path) > 0
    weight = loaded.state_dict["l.weight"]
    assert weight.data_ptr() % 64 == 0
    with torch.no_grad():
        weight.zero_()
    assert loaded.module()(*ARGS).shape == (2, 20)
    assert path.read_bytes() == before
    assert_same(lostwax.load(path).state_dict["l.weight"], program.state_dict["l.weight"])


def test_structure_alone(program: Any, tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    lostwax.save(program, path)
    loaded = lostwax.load(path, weights=False)
    loaded.validate()
    assert all(isinstance(t, lostwax.FakeTensor) for t in loaded.state_dict.values())
    assert isinstance(loaded.state_dict["l.weight"], nn.Parameter)
    assert str(loaded) == str(program)
    with pytest.warns(UserWarning, match="3 weights are fake: the file holds the program's struct"):
        again = saved(loaded)
    assert isinstance(lostwax.load(io.BytesIO(again)).state_dict["l.bias"], lostwax.FakeTensor)
    assert peer_load(again).state_dict["l.weight"].shape == (20, 30)


def test_a_failed_save_leaves_the_old_file(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "net.pt2"
    path.write_bytes(b"old")
    path.chmod(0o640)

    def fail(self: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(writer.Writer, "close", fail)
        with pytest.raises(KeyboardInterrupt):
            lostwax.save(program, path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["net.pt2"]
    lostwax.save(program, path)
    assert os.listdir(tmp_path) == ["net.pt2"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_the_same_bytes(net: Net, tmp_path: Path) -> None:
    one, other = (saved(lostwax.export(net, ARGS)) for _ in range(2))
    assert one == other
    lostwax.save(lostwax.export(net, ARGS), tmp_path / "another name.pt2", metadata="full")
    assert (tmp_path / "another name.pt2").read_bytes() == one


def test_any_zip_tool_reads_it(program: Any) -> None:
    data = saved(program)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        names = [i.filename for i in archive.infolist()]
        for info in archive.infolist():
            name, extra = struct.unpack_from("<HH", data, info.header_offset + 26)
            assert (info.header_offset + 30 + name + extra) % 64 == 0
        assert archive.read("archive/archive_format") == b"pt2"
        assert re.fullmatch(rb"\d{40}", archive.read("archive/.data/serialization_id"))
    assert "archive/models/model.json" in names


def test_checksums_of_large_records_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_LARGE", 10)
    monkeypatch.setattr(writer, "PART", 64)
    buffer = io.BytesIO(b"before")
    buffer.seek(6)
    made = writer.Writer(buffer)
    parts = {f"part{n}": os.urandom(n) for n in (0, 1, 9, 10, 64, 65, 128, 1000)}
    for name, data in parts.items():
        made.add(name, data)
    made.close()
    with zipfile.ZipFile(io.BytesIO(buffer.getvalue()[6:])) as archive:
        assert archive.testzip() is None
        assert {n.removeprefix("archive/"): archive.read(n) for n in archive.namelist()} == parts


def test_to_a_stream_that_cannot_seek(program: Any) -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    pipe = Pipe()
    lostwax.save(program, pipe, metadata="full")
    assert pipe.getvalue() == saved(program)


def test_a_small_view_of_a_large_storage_is_small() -> None:
    class View(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("v", torch.randn(100_000)[70_000:70_010])
            self.register_buffer("w", self.v[2:5])

        def forward(self, x):
            return x + self.v.sum() + self.w

    program = lostwax.export(View(), (torch.randn(3),))
    data = saved(program)
    assert len(data) < 30_000
    loaded = lostwax.load(io.BytesIO(data))
    v, w = loaded.state_dict["v"], loaded.state_dict["w"]
    assert w.data_ptr() == v.data_ptr() + 8
    x = (torch.randn(3),)
    assert_runs_alike(loaded.module(), program.module(), x, {})
    assert_runs_alike(peer_load(data).module(), program.module(), x, {})


# ------------------------------------------------------------------------------------------ several


def test_several_programs_share_their_weights(net: Net, program: Any, tmp_path: Path) -> None:
    path = tmp_path / "both.pt2"
    programs = {"train": program, "serve": lostwax.export(net.other, ARGS)}
    lostwax.save(programs, path)
    with zipfile.ZipFile(path) as archive:
        weights = [n for n in archive.namelist() if re.search(r"/weight_\d+$", n)]
    assert len(weights) == 3
    loaded = lostwax.load(path)
    assert set(loaded) == {"train", "serve"}
    for name, one in loaded.items():
        assert_runs_alike(one.module(), programs[name].module(), ARGS, {})
    with torch.no_grad():
        loaded["train"].state_dict["l.bias"].fill_(7)
    assert loaded["serve"].state_dict["l.bias"][0] == 7
    from torch.export.pt2_archive._package import load_pt2

    theirs = load_pt2(str(path)).exported_programs
    for name in programs:
        assert_runs_alike(theirs[name].module(), programs[name].module(), ARGS, {})


def test_extra_files(program: Any) -> None:
    extra = {"notes.txt": "größer", "sub/raw.bin": b"\xff\x00"}
    data = saved(program, extra_files=extra)
    found: dict[str, Any] = {}
    lostwax.load(io.BytesIO(data), extra_files=found)
    assert found == extra
    text = {"notes.txt": ""}
    torch.export.load(io.BytesIO(saved(program, extra_files={"notes.txt": "x"})), extra_files=text)
    assert text == {"notes.txt": "x"}


@pytest.mark.parametrize("name", ["../x", "/x", "a//b", ""])
def test_names_of_records(program: Any, name: str) -> None:
    with pytest.raises(SaveError, match="is not a plain path"):
        saved(program, extra_files={name: "x"})
    with pytest.raises(SaveError, match="is not a plain path"):
        saved({name: program})


def test_what_cannot_be_saved() -> None:
    with pytest.raises(SaveError, match="no program"):
        saved({})


def test_a_dtype_that_was_passed_is_saved() -> None:
    class Choose(nn.Module):
        def forward(self, x, dtype):
            return x.to(dtype)

    x = torch.randn(2)
    program = lostwax.export(Choose(), (x, torch.float64))
    with pytest.warns(UserWarning, match="torch's format has no words for some arguments"):
        file = saved(program)
    again = lostwax.load(io.BytesIO(file) if isinstance(file, bytes) else file).module()
    assert torch.equal(again(x, torch.float64), x.double())
    with pytest.raises(InputValueError, match="dtype"):
        again(x, torch.float16)


def test_what_is_no_program_or_no_place_for_it(net: Net, program: Any, tmp_path: Path) -> None:
    theirs = torch.export.export(net, program.example_inputs[0])
    with pytest.raises(SaveError, match=r"instead: lostwax.interop.from_torch\(program\)"):
        lostwax.save(theirs, tmp_path / "net.pt2")
    with pytest.raises(SaveError, match=r"'a' is a .*Net\n  why: .*\n  instead: export it"):
        lostwax.save({"a": net}, tmp_path / "net.pt2")
    with pytest.raises(SaveError, match="the extra file 'n' is a int"):
        lostwax.save(program, tmp_path / "net.pt2", extra_files={"n": 3})
    for target in (io.StringIO(), None, 3):
        with pytest.raises(TypeError, match="save writes to a path or to a file that is open"):
            lostwax.save(program, target)
    with pytest.raises(IsADirectoryError):
        lostwax.save(program, tmp_path)
    with pytest.raises(FileNotFoundError, match=r"nowhere'\n"):
        lostwax.save(program, tmp_path / "nowhere" / "net.pt2")
    assert not list(tmp_path.iterdir())


def test_a_buffer_that_is_not_rewound(program: Any) -> None:
    buffer = io.BytesIO(b"before")
    buffer.seek(0, io.SEEK_END)
    lostwax.save(program, buffer)
    with pytest.raises(LoadError, match=r"fix: file.seek\(0\) first"):
        lostwax.load(buffer)
    buffer.seek(len(b"before"))
    assert not lostwax.diff(program, lostwax.load(buffer))
    with pytest.raises(TypeError, match="not for text"):
        lostwax.load(io.StringIO("text"))


def test_example_inputs_are_optional(program: Any) -> None:
    small, large = saved(program, example_inputs=False), saved(program)
    assert len(small) < len(large)
    assert lostwax.load(io.BytesIO(small)).example_inputs is None
    assert_same(lostwax.load(io.BytesIO(large)).example_inputs, program.example_inputs)
    assert peer_load(small).example_inputs is None


def test_deep_structures_are_refused_when_saved() -> None:
    """What is saved loads: at the limit it does."""

    def nested(count: int) -> Any:
        value: Any = torch.ones(2)
        for i in range(count):
            value = [value] if i % 2 else {"key": value}
        return value

    def innermost(value: Any) -> Any:
        while not isinstance(value, torch.Tensor):
            value = value[0] if isinstance(value, list) else value["key"]
        return value + 1

    for count, fits in ((62, True), (63, False), (400, False)):
        program = lostwax.export(innermost, (nested(count),))
        assert torch.equal(program.module()(nested(count)), torch.full((2,), 2.0))
        buffer = io.BytesIO()
        if fits:
            lostwax.save(program, buffer)
            lostwax.load(io.BytesIO(buffer.getvalue())).validate()
        else:
            with pytest.raises(SaveError, match="nested deeper than 64 levels"):
                lostwax.save(program, buffer)
