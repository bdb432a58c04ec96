"""The numbers that a module reads beside its arguments, listed."""

from __future__ import annotations

import logging
import math
import types
from typing import Any

import torch
from torch import Tensor, nn

from lostwax import draft_export, export
from tests.capture import small
from tests.capture.small import Of

X = torch.ones(2, 4)
SCALE = 2.5
TABLE = {"eps": 1e-5, "deep": [{"n": 3}]}
NAMES = types.SimpleNamespace(width=7)
LOG = logging.getLogger("tests.baked_in")
small.LIMIT = 11  # type: ignore[attr-defined]


class Config:
    kind = "wide"

    def __init__(self) -> None:
        self.eps = 1e-6

    @property
    def asked(self) -> int:
        raise AssertionError("a property is not asked")


class Block(nn.Module):
    heads = 2

    def __init__(self, index: int) -> None:
        super().__init__()
        self.config, self.index = Config(), index
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        def inner(y: Tensor) -> Tensor:
            return y * self.heads

        return inner(self.linear(x)) + self.config.eps * self.index


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(i) for i in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x * SCALE + TABLE["eps"]  # type: ignore[operator]


def read(program: Any) -> list[tuple[str, Any]]:
    return [(each.path, each.value) for each in program._report.baked_in]


FOUND = [
    ("SCALE, a global of test_baked_in.py", 2.5),
    ("TABLE['eps'], a global of test_baked_in.py", 1e-5),
    ("self.blocks[0].config.eps", 1e-6),
    ("self.blocks[0].index", 0),
    ("self.blocks[1].index", 1),
    ("self.blocks[2].index", 2),
    ("self.blocks[0].heads", 2),
]


def test_attributes_and_globals() -> None:
    program = export(Model(), (X,), strict=True)
    assert read(program) == FOUND
    text = str(program._report).splitlines()
    assert text[0] == "baked in:"
    assert text[1].startswith(
        "  SCALE, a global of test_baked_in.py = 2.5 at tests/capture/python/"
    )
    assert text[1].endswith('in forward: return x * SCALE + TABLE["eps"]  # type: ignore[operator]')
    assert "self.blocks[0].config.eps = 1e-06 (and in 2 more modules) at" in text[3]


def test_a_draft_lists_them_too() -> None:
    program = draft_export(Model(), (X,))
    assert read(program) == FOUND
    assert str(program._report).splitlines()[0] == "baked in:"
    assert read(draft_export(Model(), (X,), strict=True)) == FOUND
    assert str(draft_export(nn.ReLU(), (X,))._report) == "export: nothing to report"


def test_other_places() -> None:
    limit = 5

    def forward(self: Any, x: Tensor) -> Tensor:
        x = x * TABLE["deep"][0]["n"] + NAMES.width + limit  # type: ignore[index]
        return x * small.LIMIT + math.pi + len(self.config.kind)  # type: ignore[attr-defined]

    found = dict(read(export(Of(forward, config=Config()), (X,), strict=True)))
    name = f"{test_other_places.__name__}.<locals>.forward"
    assert found == {
        "TABLE['deep'][0]['n'], a global of test_baked_in.py": 3,
        "NAMES.width, a global of test_baked_in.py": 7,
        f"limit, which {name} is closed over": 5,
        "small.LIMIT": 11,
        "self.config.kind": "wide",
    }


def test_nothing_is_asked() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return x if self is not None else x * self.config.asked

    assert read(export(Of(forward, config=Config()), (X,), strict=True)) == []


def test_lines_that_print_or_log() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        print("printed")
        LOG.info("logged")
        return x + 1

    report = export(Of(forward), (X,), strict=True)._report
    assert [each.text for each in report.tells] == ['print("printed")', 'LOG.info("logged")']
    assert "not in the program, as it prints or logs:\n  tests/" in str(report)
