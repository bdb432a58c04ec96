"""`lostwax.report`: one run finds all the problems of a module made for it."""

from __future__ import annotations

import builtins
import copy
import importlib.util
import inspect
import json
import linecache
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from types import ModuleType

import pytest
import torch
from torch import nn

import lostwax
from lostwax.backends import XnnpackPartitioner
from lostwax.capture.python.replaced_text import replaced
from lostwax.errors import CaptureError
from lostwax.problems.continuing import ContinueAfterRefusal
from lostwax.problems.finding import SCHEMA, Finding, Report

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs" / "command-line.md").read_text()


@pytest.fixture(scope="module")
def nets() -> ModuleType:
    """Not imported by pytest, whose assertions would be other code."""
    spec = importlib.util.spec_from_file_location("nets", HERE / "nets_with_problems.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["nets"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["nets"]


@pytest.fixture(scope="module")
def found(nets) -> Report:
    model, args = nets.make()
    before = {n: (t, t.clone()) for n, t in model.state_dict().items()}
    codes = [f.__code__ for f in (nets.Many.forward, nets.Many.__init__)]
    source = inspect.getsource(nets.Many)
    made = lostwax.report(
        model,
        args,
        dynamic_shapes={
            "x": {0: lostwax.Dim("rows")},
            "y": {0: lostwax.Dim("n")},
            "z": {0: lostwax.Dim.AUTO},
        },
        partitioner=XnnpackPartitioner(),
    )
    assert [f.__code__ for f in (nets.Many.forward, nets.Many.__init__)] == codes
    assert inspect.getsource(nets.Many) == source
    assert all(torch.equal(*each) for each in before.values())
    return made


EXPECTED = {
    "numpy needs data": "LW0301",
    "no fake kernel": "LW0304",
    "a program seeds nothing": "LW0101",
    "Python asks data for a text": "LW0102",
    "and again": "LW0301",
    "only for even sizes": "LW1001",
    "more than the example's": "LW1001",
    "baked in": "LW1003",
    "not core, and no kernel": "LW1101 LW1103 LW1104",
    "not in Edge": "LW1101 LW1102 LW1103",
    "a guard": "LW1002",
}


def test_one_run_finds_them_all_with_lines(found):
    """At least eight independent ones, and each where it stands."""
    lines = (HERE / "nets_with_problems.py").read_text().splitlines()
    at = {line.partition("  # ")[2]: number for number, line in enumerate(lines, 1)}
    codes: dict[int, set[str]] = {}
    for finding in found:
        codes.setdefault(finding.line, set()).add(finding.code)
    missed = {
        text: wanted
        for text, wanted in EXPECTED.items()
        if not set(wanted.split()) <= codes.get(at[text], set())
    }
    assert missed == {}
    assert len(EXPECTED) >= 8
    assert found.stages == ("export", "core", "edge", "runtime", "delegates")
    assert not found


def test_nothing_is_found_where_nothing_is(found):
    """What stands in for a refused expression is not itself a finding."""
    lines = (HERE / "nets_with_problems.py").read_text().splitlines()
    plain = {"x = self.linear(x)", "self.linear = nn.Linear(6, 6)"}
    for finding in found:
        if finding.line:
            text = lines[finding.line - 1].strip()
            assert text not in plain or finding.code == "LW1104", finding
    errors = [f for f in found if f.level == "error"]
    assert len(errors) == 5


def test_each_has_a_fix_and_a_marked_part(found):
    for finding in found:
        assert finding.fix, finding
        assert re.match(r"(\S+\.py:\d+:\d+|-): LW\d{4} (error|warning|note): ", str(finding))
    (kernel,) = [f for f in found if f.code == "LW0304"]
    source = linecache.getline(kernel.file, kernel.line)
    assert source[kernel.column - 1 : kernel.end_column - 1] == "torch.ops.problems.halve(x)"
    first, shown, marks, *_ = str(kernel).splitlines()
    assert first.startswith("tests/problems/nets_with_problems.py:")
    assert shown[marks.index("^") : len(marks)] == "torch.ops.problems.halve(x)"


def test_the_fixes_mend(nets):
    """The module as the findings say it should be has none that are worse than notes."""
    model, args = nets.make_mended()
    shapes = {
        "x": {0: lostwax.Dim("rows", min=4, max=64)},
        "y": {0: 2 * lostwax.Dim("half", max=64)},
        "z": None,
    }
    mended = lostwax.report(model, args, dynamic_shapes=shapes)
    assert [str(f) for f in mended if f.level != "note"] == []
    assert mended


def test_json_has_a_schema_that_is_told(found):
    data = json.loads(found.to_json())
    assert data["schema"] == SCHEMA
    assert len(data["findings"]) == len(found)
    for key in {*data, *data["findings"][0]}:
        assert f"`{key}`" in PAGE, key
    assert f"`{SCHEMA}`" in PAGE


def test_html_is_one_page(found, tmp_path):
    found.save(tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert text.count("<section") == len(found)
    assert "<mark>torch.ops.problems.halve(x)</mark>" in text
    assert "src=" not in text.partition("<body>")[0]
    found.save(tmp_path / "r.txt")
    assert (tmp_path / "r.txt").read_text() == f"{found}\n"


def test_text_in_html_is_escaped():
    text = Report((Finding("LW0101", "error", "<b>", "a & b", "", 0),), ()).to_html()
    assert "<b>&" not in text
    assert "&lt;b&gt;" in text
    assert "a &amp; b" in text


class Fine(nn.Module):
    def forward(self, x):
        return x.relu() * 2


def test_a_module_without_problems():
    found = lostwax.report(Fine(), (torch.ones(3),))
    assert found.ok
    assert not found.findings
    assert str(found).startswith("0 errors, 0 warnings, 0 notes; tried: export, core, edge")


def test_a_refusal_of_the_call_as_a_whole():
    found = lostwax.report(Fine(), (object(),))
    assert [f.code for f in found] == ["LW0105"]
    assert not found
    assert found.stopped == "the refusal is of the call as a whole"


class Fails(nn.Module):
    def forward(self, x):
        x = x + float(x.numpy().sum())
        raise KeyError("no key")


def test_eager_that_fails_ends_it():
    found = lostwax.report(Fails(), (torch.ones(3),))
    assert [f.code for f in found] == ["LW0301"]
    assert "in eager it raises KeyError" in found.stopped


class Misfit(nn.Module):
    def forward(self, x):
        return torch.mm(x, torch.ones(3, 3))


def test_what_the_model_raises_has_its_line():
    found = lostwax.report(Misfit(), (torch.ones(2, 4),))
    assert not found
    line = inspect.getsourcelines(Misfit)[1] + 2
    assert re.search(rf"test_report\.py:{line}: RuntimeError: mat1 and mat2", found.stopped)


class Loops(nn.Module):
    def forward(self, x):
        for i in range(3):
            x = x + float(x.numpy()[i])
        return x  # fmt: skip


def test_what_stands_in_is_what_eager_gives_at_each_turn():
    """Of several lines, several times: the values are those of the turn."""
    x = torch.tensor([1.0, 2.0, 3.0])
    found = lostwax.report(copy.deepcopy(Loops()), (x,))
    assert [f.code for f in found] == ["LW0301"]
    assert found.stages[0] == "export"


def run_in_thread(function):
    """What a function gives in another thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def test_another_thread_computes_what_stands_there_meanwhile(nets, monkeypatch):
    net, x = nets.Shared(), torch.tensor([0.5, 2.0, 3.0])
    wanted, put, got = net(x.clone()), ContinueAfterRefusal._put, []

    def put_and_call(self, *args):
        put(self, *args)
        got.append(run_in_thread(lambda: net(x.clone())))

    monkeypatch.setattr(ContinueAfterRefusal, "_put", put_and_call)
    found = lostwax.report(net, (x.clone(),))
    assert found.findings
    assert len(got) >= 4
    assert all(torch.equal(each, wanted) for each in got)


def test_another_thread_is_told_that_a_variable_cannot_be_assigned(nets, monkeypatch):
    net, put, told = nets.Counting(), ContinueAfterRefusal._put, []

    def put_and_call(self, *args):
        put(self, *args)
        try:
            run_in_thread(lambda: net(torch.ones(2)))
        except CaptureError as error:
            told.append(str(error))

    monkeypatch.setattr(ContinueAfterRefusal, "_put", put_and_call)
    lostwax.report(net, (torch.ones(2),))
    assert told
    assert "a function that assigns a variable is called while another thread reports" in told[0]
    assert "call it when lostwax.report(...) has returned" in told[0]


def test_two_threads_report_at_once(nets):
    def report(net):
        return [str(each) for each in lostwax.report(net, (torch.ones(3),)).findings]

    alone = [report(net) for net in (nets.Shared(), nets.Counting())]
    start = Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        waiting = [
            pool.submit(lambda net: (start.wait(), report(net))[1], net)
            for net in (nets.Shared(), nets.Counting())
        ]
        assert [each.result() for each in waiting] == alone


def test_what_is_called_meanwhile_is_in_no_namespace(nets, monkeypatch):
    """Neither this thread nor another one finds it: the code alone has it."""
    before, put, seen = {*vars(builtins)}, ContinueAfterRefusal._put, []
    own = {*vars(nets)}

    def look():
        return {*vars(builtins)} - before, {*vars(nets)} - own

    def put_and_look(self, *args):
        put(self, *args)
        seen.extend([look(), run_in_thread(look)])

    monkeypatch.setattr(ContinueAfterRefusal, "_put", put_and_look)
    assert lostwax.report(nets.Shared(), (torch.ones(3),)).findings
    assert seen
    assert all(each == (set(), set()) for each in seen)


def test_names_of_the_users_stay_what_they_are(nets):
    """What is called in the place of a refused expression has a name that is not theirs; also where
    the function is compiled again because data decide in it."""
    found = lostwax.report(nets.OwnNames(), (torch.tensor([1.0, 2.0]),))
    assert [(f.code, f.source.strip()) for f in found] == [
        ("LW0301", "y = x * float(x.numpy()[0]) + _lw(3)")
    ]
    assert not found.stopped


def test_what_is_replaced_is_put_back_after_an_interrupt(nets, monkeypatch):
    code, put = nets.Shared.forward.__code__, ContinueAfterRefusal._put

    def put_and_stop(self, *args):
        put(self, *args)
        raise KeyboardInterrupt

    monkeypatch.setattr(ContinueAfterRefusal, "_put", put_and_stop)
    with pytest.raises(KeyboardInterrupt):
        lostwax.report(nets.Shared(), (torch.ones(3),))
    assert nets.Shared.forward.__code__ is code
    assert not replaced
