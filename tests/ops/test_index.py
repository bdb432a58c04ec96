"""Files of operators are loaded when one of their operators is met, by lists that are generated."""

from __future__ import annotations

import ast
from itertools import chain

import pytest

from lostwax.ops import registry
from lostwax.ops.families import Families, index_name
from lostwax.ops.registry import aten, operator
from lostwax.ops.traits import Trait
from tests.fresh import run_python
from tests.ops import index


def python(code: str) -> str:
    return run_python(code).stdout


@pytest.mark.core
def test_the_lists_are_up_to_date():
    listed = "".join(index.path_of(folder).read_text() for folder in index.FOLDERS)
    found = python("import sys; sys.argv += ['--print']; from tests.ops.index import main; main()")
    assert found == listed, "`make index` writes them"


@pytest.mark.parametrize("folder", index.FOLDERS)
def test_a_list_names_files_of_its_own_folder(folder):
    """What a layer loads by name is its own: no import upwards hides in a list."""
    tables = [n for n in ast.parse(index.path_of(folder).read_text()).body if hasattr(n, "value")]
    files = chain.from_iterable(t.value.keys for t in tables if isinstance(t.value, ast.Dict))
    assert all(file.value.startswith(f"{folder}.") for file in files)


def test_one_operator_loads_its_family_alone():
    code = """
import sys
from lostwax.ops.registry import aten, operator
record = operator(aten.softplus_backward.grad_input)
print(record.rule is not None, *(n for n in sys.modules if n.startswith("lostwax.ops.nn.")))
"""
    assert python(code).split() == ["True", "lostwax.ops.nn.activations"]


_INTERRUPTED = """
import sys
import torch
from lostwax.ops import registry

def interrupt(frame, event, _):
    code, caller = frame.f_code, frame.f_back
    if event == "return" and code.co_filename == registry.__file__ and code.co_name == NAME:
        while caller.f_code.co_name != "<module>":
            caller = caller.f_back
        if FILE in caller.f_code.co_filename:
            sys.setprofile(None)
            print("interrupted")
            raise KeyboardInterrupt

x = (torch.ones(2, 3),)
sys.setprofile(interrupt)
try:
    from lostwax import export
    export(torch.nn.ReLU(), x)
except KeyboardInterrupt:
    pass
from lostwax import export
print(export(torch.nn.ReLU(), x).module()(x[0]).shape)
"""


@pytest.mark.parametrize(
    ("name", "file"),
    [("mark", ""), ("_record_facts", ""), ("_record_facts", "activations"), ("register", "views")],
)
def test_a_load_that_is_interrupted_is_made_again(name, file):
    """Also of a file that another one imports, and in the middle of a table."""
    found = python(_INTERRUPTED.replace("NAME", repr(name)).replace("FILE", repr(file)))
    assert found.split("\n")[:2] == ["interrupted", "torch.Size([2, 3])"]


_IN_THREADS = """
import sys, threading
import torch
from lostwax.ops import index, registry
from lostwax.ops.registry import operator

sys.setswitchinterval(1e-6)
names = sorted({name for names in index.FAMILIES.values() for name in names.split()})
packets = [getattr(torch.ops.aten, name) for name in names if hasattr(torch.ops.aten, name)]
overloads = [getattr(p, name) for p in packets for name in p.overloads()]
failed = []

def describe(some):
    try:
        for overload in some:
            operator(overload)
    except BaseException as error:
        failed.append(error)

threads = [threading.Thread(target=describe, args=(overloads[i::COUNT],)) for i in range(COUNT)]
for each in threads:
    each.start()
for each in threads:
    each.join()
assert not failed, failed
for overload in overloads:
    record = operator(overload)
    print(overload, record.rule is not None, sorted(t.name for t in record.traits))
"""


def test_threads_that_meet_operators_at_once_know_as_much_as_one():
    alone, together = (python(_IN_THREADS.replace("COUNT", n)) for n in ("1", "12"))
    assert len(alone.splitlines()) > 1000
    assert together == alone


def test_a_file_that_fails_is_not_taken_for_loaded(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "failing_family.py").write_text("raise KeyboardInterrupt")
    families = Families()
    families.add({"failing_family": "one two"})
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            families.load("aten::two")
    families.load("aten::three")


def test_two_rules_for_one_operator_are_refused(monkeypatch):
    known = registry.name_overload(next(iter(registry.overloads_with_rules())))
    with monkeypatch.context() as patch:
        patch.setattr(registry, "_described", set())
        with pytest.raises(AssertionError, match=r"has two of .*rule"):
            registry.rule(known)(lambda x: x)


def test_what_is_in_use_is_known_to_the_end():
    operator(aten.mm.default)
    with pytest.raises(AssertionError, match="in use before all of it is known"):
        registry.mark(Trait.RANGE, "mm")


def test_names_in_an_index():
    names = ["aten::add", "aten::add_", "aten::__ilshift__", "mine::op"]
    assert list(map(index_name, names)) == ["add", "add_", "__ilshift__", "mine::op"]
