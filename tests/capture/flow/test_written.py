"""A function is written once for a plan: the next attempt, and the next export, take the same."""

from __future__ import annotations

import ast
import linecache
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch

import lostwax
from lostwax.capture.flow.rewriting import recompile
from lostwax.capture.python.trees import children, fill_places, walk

X = torch.tensor([1.0, 2.0])
LARGEST = """
def largest(x):
    return max(v for v in x) if x.sum() > 0 else x[0]
"""


def load(folder: Path, text: str, **names: Any) -> FunctionType:
    file = folder / "written.py"
    file.write_text(text)
    linecache.checkcache(str(file))
    exec(compile(text, str(file), "exec"), names)
    return names["largest"]  # type: ignore[no-any-return]


def run(function: FunctionType) -> torch.Tensor:
    return lostwax.export(function, (X,)).module()(X)  # type: ignore[no-any-return]


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    write = recompile._write
    monkeypatch.setattr(recompile, "_write", lambda *given: found.append(given) or write(*given))
    return found


def test_an_export_writes_a_function_once(tmp_path: Path, writes: list[Any]) -> None:
    largest = load(tmp_path, LARGEST)
    assert run(largest) == 2
    first = len({(file, frozenset(plans.items())) for file, plans, _ in writes})
    assert len(writes) == first > 0
    assert run(largest) == 2
    assert len(writes) == first


def test_another_text_is_written_again(tmp_path: Path, writes: list[Any]) -> None:
    assert run(load(tmp_path, LARGEST)) == 2
    first = len(writes)
    assert run(load(tmp_path, LARGEST.replace("max", "min"))) == 1
    assert len(writes) > first


def test_so_is_one_whose_names_mean_something_else(tmp_path: Path, writes: list[Any]) -> None:
    assert run(load(tmp_path, LARGEST)) == 2
    first = len(writes)
    assert run(load(tmp_path, LARGEST, max=lambda given: sum(given) * 10)) == 30
    assert len(writes) > first
    answers = [each.answers for each in recompile._WRITTEN.table.values()]
    assert answers
    held = [value for each in answers for value in each.values()]
    users = [each for each in held if getattr(each, "__module__", None) == __name__]
    assert not users  # they would live as long as the answers


def test_trees_are_gone_through_as_by_ast() -> None:
    for file in ("statements.py", "generators_used.py", "raised.py"):
        tree = ast.parse((Path(__file__).parent / file).read_text())
        assert [*walk(tree)] == [*ast.walk(tree)]
        assert all(children(each) == [*ast.iter_child_nodes(each)] for each in walk(tree))


def test_places_are_filled_as_by_ast() -> None:
    def strip(each: Any) -> Any:
        for n, node in enumerate(ast.walk(each)):
            if n % 3 == 0 and "lineno" in node._attributes:
                for name in ("lineno", "col_offset", "end_lineno", "end_col_offset"):
                    vars(node).pop(name, None)
        return each

    text = Path(__file__).read_text()
    ours, theirs = strip(ast.parse(text)), strip(ast.parse(text))
    fill_places(ours)
    ast.fix_missing_locations(theirs)
    assert ast.dump(ours, include_attributes=True) == ast.dump(theirs, include_attributes=True)
