"""Whatever is in the folder, nothing worse happens than an export."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lostwax import ExportedProgram, cache, export
from lostwax.errors import LoadError
from lostwax.export_cache.cache import _check_sum
from tests.export_cache.exports import X, add, captures, entries
from tests.fresh import run_python

ROOT = Path(__file__).parent.parent.parent


def test_damaged_files_are_misses(kept):
    assert captures(kept, add, (X, X))
    (file,) = entries(kept)
    whole = file.read_bytes()
    generator = random.Random(0)
    for i in range(60):
        damaged = bytearray(whole)
        if i % 3 == 0:
            del damaged[generator.randrange(len(whole)) :]
        else:
            damaged[generator.randrange(len(whole))] = generator.randrange(256)
        if damaged == whole:
            continue
        file.write_bytes(damaged)
        assert captures(kept, add, (X, X))
    file.write_bytes(b"")
    assert captures(kept, add, (X, X))
    assert not captures(kept, add, (X, X))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"folder": 5}, "a cache of exports is a folder, not 5"),
        ({"folder": __file__}, "a cache of exports is a folder, not the file .*test_folder.py"),
        ({"folder": "exports", "most_bytes": -1}, "most_bytes is a number of bytes, not -1"),
    ],
)
def test_what_is_no_folder_is_refused(words: Any, told: str) -> None:
    with pytest.raises(LoadError, match=rf"{told}.\n  at .*test_folder.py:\d+ .*(.|\n)*instead: "):
        cache(**words)


def test_a_forged_entry_is_no_program(kept):
    """Its digest is right, and its program is not."""
    assert captures(kept, add, (X, X))
    (file,) = entries(kept)
    whole = file.read_bytes()
    _, depends, program, facts = whole.splitlines()
    for forged in (b"{}", b"[]", b"", program.replace(b"aten.add", b"aten.nothing"),
                   program.replace(b'"as_tensor"', b'"as_graph"'), b"[" * 100_000):  # fmt: skip
        lines = b"%b\n%b\n%b\n" % (depends, forged, facts)
        file.write_bytes(_check_sum(lines) + b"\n" + lines)
        assert captures(kept, add, (X, X)), forged[:80]
        assert "damaged" in kept.why()


def test_a_forged_entry_raises_nothing(kept):
    """Numbers that lead to no row of a table, names of no value, and worse: with a digest that is
    right, an export gives a program."""
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    assert captures(kept, net, (X,))
    (file,) = entries(kept)
    _, depends, program, facts = file.read_bytes().splitlines()
    generator = random.Random(0)
    for _ in range(150):
        forged = bytearray(program)
        for _ in range(generator.choice((1, 1, 3))):
            forged[generator.randrange(len(forged))] = generator.choice(b'0123456789[]{}",:-a')
        lines = b"%b\n%b\n%b\n" % (depends, forged, facts)
        file.write_bytes(_check_sum(lines) + b"\n" + lines)
        with kept:
            assert isinstance(export(net, (X,)), ExportedProgram), forged


def test_a_folder_that_cannot_be_written_to(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    kept = cache(file / "folder")
    assert captures(kept, add, (X, X))
    assert "cannot be written" in kept.why()


def test_a_full_folder_drops_what_was_used_longest_ago(tmp_path):
    def make(n: int) -> Any:
        return lambda x: x + n

    kept = cache(tmp_path, most_bytes=20_000)
    for n in range(12):
        assert captures(kept, make(n), (X,))
        assert not captures(kept, make(0), (X,))  # it is used
        assert sum(each.stat().st_size for each in entries(kept)) <= 20_000
    assert captures(kept, make(1), (X,))
    assert not captures(kept, make(1), (X,))


def test_a_program_that_is_larger_than_the_folder(tmp_path):
    kept = cache(tmp_path, most_bytes=100)
    assert captures(kept, add, (X, X))
    assert "100 bytes" in kept.why()
    assert not entries(kept)


PROCESS = """
import torch, lostwax
from tests.export_cache.exports import entries, Net, Small, X
torch.manual_seed(0)
with lostwax.cache({folder!r}) as kept:
    for each in (Net(), Small()):
        lostwax.export(each, (torch.zeros(2, 4),))
        print(kept.why() or "found")
"""


def test_another_process_finds_it(tmp_path):
    code = PROCESS.format(folder=str(tmp_path))
    first, second = (run_python(code).stdout.split("\n") for _ in range(2))
    assert first[:2] == ["the first export of its kind"] * 2
    assert second[:2] == ["found", "found"]


HASHED = """
import copy, sys, torch, lostwax
class Config:
    def __init__(self, name):
        self.name, self.seen = name, hash("some text")
    def __getattr__(self, name):
        if not name.startswith("my_"):
            raise AttributeError(name)
        return getattr(self, name[3:])
class Net(torch.nn.Module):
    def __init__(self, name):
        super().__init__()
        self.config = Config(name)
    def forward(self, x):
        return x * len(self.config.name)
class Reading(Net):
    def __init__(self, way):
        super().__init__("a")
        self.way = way
    def forward(self, x):
        return x * (self.way(self.config) % 7)
def items(way):
    return lambda config: next(x for x in way(config).values() if type(x) is int)
NETS = {
    "unread": Net(sys.argv[2]),
    "by name": Reading(lambda config: config.seen),
    "by text": Reading(lambda config: getattr(config, "se" + "en", 1)),
    "by built text": Reading(lambda config: getattr(config, "".join(["my_", "s", "een"]))),
    "from above": Reading(lambda config: object.__getattribute__(config, "seen")),
    "dict": Reading(items(vars)),
    "copy": Reading(items(lambda config: copy.copy(config).__reduce__()[2])),
    "state": Reading(items(lambda config: config.__getstate__())),
}
if __name__ == "__main__":
    with lostwax.cache(sys.argv[1]) as kept:
        for name, net in NETS.items():
            lostwax.export(net, (torch.zeros(2, 4),))
            print(f"{name}: {kept.why() or 'found'}")
    assert "__getattribute__" not in vars(Config)
"""


def test_a_hash_that_nothing_reads_may_be_another(tmp_path):
    (tmp_path / "hashed.py").write_text(HASHED)

    def run(seed: str, name: str) -> dict[str, str]:
        command = [sys.executable, str(tmp_path / "hashed.py"), str(tmp_path / "kept"), name]
        variables = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        told = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
        return dict(line.split(": ", 1) for line in told.stdout.splitlines())

    first, second, third = run("1", "a"), run("2", "a"), run("2", "ab")
    assert "found" not in first.values()
    assert second.pop("unread") == "found"
    assert all("self.config.seen has changed" in told for told in second.values())
    assert third.pop("unread") == "self.config.name has changed"
    assert set(third.values()) == {"found"}


def test_code_without_a_file_that_reads_globals_is_not_kept(kept):
    names: dict[str, Any] = {}
    exec("def helper(x): return x + 1\ndef net(x): return helper(x)", names)
    for _ in range(2):
        assert captures(kept, names["net"], (X,))
        assert kept.why().endswith("code that has no file reads helper")


def test_processes_side_by_side(tmp_path):
    code = PROCESS.format(folder=str(tmp_path))
    running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [each.wait() for each in running] == [0, 0]
    assert len(entries(cache(tmp_path))) == 2
    assert not [*tmp_path.rglob(".draft*")]


def test_other_versions(kept, monkeypatch):
    from lostwax.export_cache import request_key

    assert captures(kept, add, (X, X))
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    request_key.read_versions.cache_clear()
    assert captures(kept, add, (X, X))
    monkeypatch.undo()
    request_key.read_versions.cache_clear()
    assert not captures(kept, add, (X, X))
