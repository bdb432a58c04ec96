"""Locations can be opened: by their path from the working directory, or by their whole path."""

from __future__ import annotations

import os

import pytest
import torch

import lostwax
from lostwax.location import (
    NOWHERE,
    Location,
    shorten_path,
    shorten_places,
    show_path,
    strip_places,
)


@pytest.mark.parametrize(
    ("file", "shown", "short"),
    [
        ("{here}/models/net.py", "models/net.py", "models/net.py"),
        ("{here}-old/net.py", "{here}-old/net.py", "net.py"),
        ("/opt/lib/site-packages/timm/vit.py", "/opt/lib/site-packages/timm/vit.py", "timm/vit.py"),
        ("{here}/v/site-packages/timm/vit.py", "v/site-packages/timm/vit.py", "timm/vit.py"),
        ("/usr/lib/dist-packages/a/b.py", "/usr/lib/dist-packages/a/b.py", "a/b.py"),
        ("/elsewhere/net.py", "/elsewhere/net.py", "net.py"),
        ("models/net.py", "models/net.py", "models/net.py"),
        ("<stdin>", "<stdin>", "<stdin>"),
    ],
)
def test_paths(tmp_path, monkeypatch, file, shown, short):
    monkeypatch.chdir(tmp_path)
    here = os.getcwd()
    assert show_path(file.format(here=here)) == shown.format(here=here)
    assert shorten_path(file.format(here=here)) == short
    assert str(Location(file.format(here=here), 3, "f")) == f"{shown.format(here=here)}:3 in f"


def test_a_path_from_the_root_is_no_shorter(monkeypatch):
    monkeypatch.chdir("/")
    assert show_path("/home/me/net.py") == "home/me/net.py"
    assert shorten_path("/home/me/net.py") == "net.py"


@pytest.mark.parametrize(
    ("text", "short", "stripped"),
    [
        ("/a/net.py:3 in f: x.item()", "net.py:3 in f: x.item()", "{}"),
        ("item() at /a/net.py:3 in <lambda>", "item() at net.py:3 in <lambda>", "item() at {}"),
        ("item() at <stdin>:3 in f", "item() at <stdin>:3 in f", "item() at {}"),
        (
            "s0 // 2 > 1 at /my nets at home/a:1/net.py:3 in f: y = a[1:3 in b]\n  because /a:3",
            "s0 // 2 > 1 at net.py:3 in f: y = a[1:3 in b]\n  because /a:3",
            "s0 // 2 > 1 at {}\n  because /a:3",
        ),
        ("looked at x: it is required at net.py:3 in f",) * 2
        + ("looked at x: it is required at {}",),
        ("no place at all: /home/me", "no place at all: /home/me", "no place at all: /home/me"),
    ],
)
def test_locations_within_texts(text, short, stripped):
    assert shorten_places(text) == short
    assert strip_places(text) == stripped.format(NOWHERE)


def test_a_printed_program_and_an_error_name_a_file_that_can_be_opened(tmp_path, monkeypatch):
    (tmp_path / "nets").mkdir()
    file = tmp_path / "nets" / "net.py"
    file.write_text("def double(x):\n    return x * 2 if x.shape[0] > 3 else x\n")
    names: dict = {}
    exec(compile(file.read_text(), str(file), "exec"), names)
    program = lostwax.export(names["double"], (torch.ones(4),))
    for folder, said in ((tmp_path, "nets/net.py"), (tmp_path / "nets", "net.py"), ("/", file)):
        monkeypatch.chdir(folder)
        said = str(said).removeprefix("/") if folder == "/" else said
        assert f"# File: {said}:2 in double, code: return x * 2" in str(program)
        assert os.path.exists(said)
        sizes = {"x": {0: lostwax.Dim("n")}}
        with pytest.raises(
            lostwax.errors.ConstraintViolationError, match=rf"at {said}:2 in double"
        ):
            lostwax.export(names["double"], (torch.ones(4),), dynamic_shapes=sizes)
