"""Small algorithms in plain Python, whose ways depend on data: exported once, and equal to eager
whichever way they go."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from copy import deepcopy
from importlib import import_module
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

import lostwax
from lostwax.errors import LostwaxError
from tests.capture.flow.algorithms import refused
from tests.capture.flow.algorithms.idioms.refused import REFUSED_IDIOMS
from tests.capture.flow.algorithms.program import PROGRAMS
from tests.whole import sampled

REFUSED = refused.REFUSED | REFUSED_IDIOMS
IDIOMS = ("counted advancing asked appended caught leaving sized named ended padded parted").split()
THEMES = [
    import_module(f"tests.capture.flow.algorithms.{name}")
    for name in (
        "roots",
        "optimization",
        "linear_algebra",
        "integers",
        "sorting",
        "graphs",
        "strings",
        "decoding",
        "networks",
        "vision",
        "physics",
        "filters",
        "training",
        "batches",
        *(f"idioms.{name}" for name in IDIOMS),
    )
]


def _call(run: Any, args: Any) -> Any:
    """What a call gives and leaves behind; None if it raises."""
    args = deepcopy(args)
    try:
        got = run(*args)
    except (ValueError, RuntimeError, AssertionError):
        return None
    left = [each for each in pytree.tree_leaves(args) if isinstance(each, Tensor)]
    state = dict(run.named_buffers()) if isinstance(run, nn.Module) else {}
    tensors = (got, left, [state[name] for name in sorted(state)])
    return pytree.tree_map_only(Tensor, lambda each: each.detach().clone(), tensors)


def _compare(got: Any, want: Any) -> None:
    leaves, spec = pytree.tree_flatten(got)
    others, other_spec = pytree.tree_flatten(want)
    assert spec == other_spec
    for one, other in zip(leaves, others, strict=True):
        if isinstance(other, str):
            assert one == other
        else:
            torch.testing.assert_close(one, other, equal_nan=True)


@pytest.mark.parametrize("name", sampled([*PROGRAMS][::2], [*PROGRAMS]))
def test_program(name: str) -> None:
    each = PROGRAMS[name]
    module = each.make()
    if name in REFUSED:
        with pytest.raises(LostwaxError) as error:
            lostwax.export(module, deepcopy(each.calls[0]), **each.options)
        assert error.value.args[0].startswith(REFUSED[name])
        assert f"{each.place.replace('.', '/')}.py:" in str(error.value)
        return
    exported = lostwax.export(deepcopy(module), deepcopy(each.calls[0]), **each.options)
    run = exported.module()
    for args in each.calls:
        got, want = _call(run, args), _call(module, args)
        assert (got is None) == (want is None)
        if want is not None:
            _compare(got, want)


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.__name__.split(".")[-1])
def test_the_calls_take_every_line(theme: Any) -> None:
    file, run = theme.__file__, set()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != file:
            return None
        if event == "line":
            run.add(frame.f_lineno)
        return trace

    for each in PROGRAMS.values():
        if each.place == theme.__name__:
            module = each.make()
            before = sys.gettrace()
            sys.settrace(trace)
            try:
                for args in each.calls:
                    _call(module, args)
            finally:
                sys.settrace(before)
    with open(file) as text:
        lines = {line for code in _walk(compile(text.read(), file, "exec")) for line in code}
    assert sorted(lines - run) == []


def _walk(code: CodeType) -> Iterator[set[int]]:
    """The lines of each function, but for the one that it begins with."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _walk(each)
            if each.co_flags & 2 and each.co_name not in (
                "__init__",
                "_spd",
                "_window",
            ):  # a function, not a class
                yield {n for _, _, n in each.co_lines() if n and n != each.co_firstlineno}


def test_there_are_enough() -> None:
    assert len(PROGRAMS) >= 300
    assert REFUSED.keys() <= PROGRAMS.keys()
    assert all(len(each.calls) >= 3 for each in PROGRAMS.values())
