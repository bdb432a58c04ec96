"""The classes by which values are told apart are listed in one place."""

from __future__ import annotations

import ast
from pathlib import Path

import torch

import lostwax
from lostwax.classes import LISTS, PLAIN, SYMBOLIC, TENSORS
from tests.source import walk

PACKAGE = Path(lostwax.__file__).parent


def test_no_class_is_of_two_kinds():
    kinds = [*SYMBOLIC, *PLAIN, *LISTS, *TENSORS]
    assert len(set(kinds)) == len(kinds)
    assert type(torch.nn.Buffer(torch.ones(1))) in TENSORS


def listing_symbolic(path: Path) -> list[str]:
    """Where a file lists the classes of symbolic numbers once more."""
    text = path.read_text()
    return [
        f"{path.name}:{node.lineno}"
        for node in walk(ast.parse(text if "SymBool" in text else ""))
        if isinstance(node, (ast.Tuple, ast.Set, ast.List))
        and {"torch.SymInt", "torch.SymFloat", "torch.SymBool"} <= set(map(ast.unparse, node.elts))
    ]


def test_symbolic_numbers_are_listed_once():
    (home,) = (at for p in PACKAGE.rglob("*.py") for at in listing_symbolic(p))
    assert home.startswith("classes.py:")
