"""Files that are no `.pt2`: the error says what they are, and what to do."""

from __future__ import annotations

import gzip
import io
import zipfile
from typing import Any

import pytest
import torch
from torch import nn

import lostwax
from lostwax.errors import LoadError

pytestmark = pytest.mark.core


def written(write: Any, *args: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    write(*args, buffer, **options)
    return buffer.getvalue()


PROGRAM = written(lostwax.save, lostwax.export(nn.Linear(3, 4), (torch.ones(1, 3),)))


def some_zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("notes.txt", "x")
    return buffer.getvalue()


FILES = {
    "it is empty": b"",
    "what torch.save writes: weights": written(torch.save, nn.Linear(2, 2).state_dict()),
    "a pickle, as torch.save wrote it": written(
        torch.save, {}, _use_new_zipfile_serialization=False
    ),
    "a TorchScript module (torch.jit.save)": written(
        torch.jit.save, torch.jit.script(nn.Linear(2, 2))
    ),
    "compressed with gzip\n  fix: expand it first": gzip.compress(PROGRAM),
    "a pointer of Git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 1\n",
    "a web page": b"<!DOCTYPE html><html><body>404</body></html>",
    "a text, which begins 'hello": b"hello, this is a text\n",
    "a file of safetensors": (54).to_bytes(8, "little") + b'{"a":{"dtype":"F32","shape":[1]}}',
    "an ONNX model": b"\x08\x07\x12\x07pytorch\x1a\x05" + bytes(100),
    "an ONNX model\n  fix: onnxruntime runs it": b"\x08\x0b\x12\x07lostwax\x3a" + bytes(100),
    "a .pte, an ExecuTorch program": b"\x30\x00\x00\x00ET12" + bytes(100),
    "a zip file of something else": some_zip(),
    "no zip file\n  fix: it may be damaged": b"\xff\xfe\xfd" * 40,
}


@pytest.mark.parametrize("text", FILES)
def test_what_a_file_is(text):
    with pytest.raises(LoadError) as caught:
        lostwax.load(io.BytesIO(FILES[text]))
    assert f"this is not a .pt2 archive: it is {text.removeprefix('it is ')}" in str(caught.value)
    assert "\n  fix: " in str(caught.value)


def test_how_long_a_file_should_be(tmp_path):
    half = len(PROGRAM) // 2
    (tmp_path / "half.pt2").write_bytes(PROGRAM[:half])
    with pytest.raises(LoadError) as caught:
        lostwax.load(tmp_path / "half.pt2")
    text = str(caught.value)
    assert f"it is cut off: a zip file that ends after {half} bytes, in the record" in text
    assert f"; it has {len(PROGRAM)} when whole\n" in text
    assert "copy or download it again" in text


def test_how_long_a_file_should_be_that_does_not_say_it():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("a/model.json", bytes(1000))
    whole = buffer.getvalue()
    half = len(whole) // 2
    with pytest.raises(LoadError, match=f"after {half} bytes, in the record 'a/model.json'") as e:
        lostwax.load(io.BytesIO(whole[:half]))
    least = int(str(e.value).partition("has more than ")[2].split()[0])
    assert half < least < len(whole)


def test_the_length_in_a_file_is_not_trusted():
    at = PROGRAM.index(b"LW\x08\x00") + 4
    for length in (0, 3, 2**64 - 1):
        wrong = PROGRAM[:at] + length.to_bytes(8, "little") + PROGRAM[at + 8 :]
        assert lostwax.load(io.BytesIO(wrong)).module()(torch.ones(1, 3)).shape == (1, 4)


@pytest.mark.parametrize("length", range(1, len(PROGRAM), 97))
def test_no_length_is_bare(length):
    with pytest.raises(LoadError, match=r"a \.pt2 archive: it is|cut off|damaged"):
        lostwax.load(io.BytesIO(PROGRAM[:length]))
