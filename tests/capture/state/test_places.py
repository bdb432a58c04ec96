"""What hides where a class of the user's has methods, attributes or contents of its own: put back
after an export, and found by `capture` when somebody has changed it."""

from array import array
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lostwax import capture, export
from lostwax.errors import StrictError


class _Lying:
    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Any:
        return iter(())

    def copy(self) -> Any:
        raise ValueError("a method of the user's is called")

    clear = extend = update = __bool__ = copy


class _List(_Lying, list[int]):
    def __setitem__(self, *_: Any) -> None:
        raise ValueError("a method of the user's is called")


class _Deque(_Lying, deque[int]):
    pass


class _Set(_Lying, set[int]):
    pass


class _Tuple(_Lying, tuple[Any, ...]):
    pass


class _Array(np.ndarray[Any, Any]):
    tag = 1


class _Bytes(bytearray):
    tag = 1


class _Object:
    n = 1


def _set_tag(value: Any) -> None:
    value.tag = value.tag + 1


Case = tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any], Any]]
CASES: dict[str, Case] = {
    "list": (
        lambda: _List([1]),
        lambda v: list.append(v, 5),
        lambda v: sum(list.__iter__(v)),
    ),
    "deque": (
        lambda: _Deque([1]),
        lambda v: deque.append(v, 5),
        lambda v: sum(deque.__iter__(v)),
    ),
    "set": (lambda: _Set([1]), lambda v: set.add(v, 5), lambda v: sum(set.__iter__(v))),
    "tuple": (
        lambda: _Tuple(([1],)),
        lambda v: tuple.__getitem__(v, 0).append(5),
        lambda v: sum(tuple.__getitem__(v, 0)),
    ),
    "ndarray": (lambda: np.ones(2), lambda v: v.__setitem__(0, v[0] + 4), lambda v: float(v[0])),
    "objects": (
        lambda: np.array([1, [2]], dtype=object),
        lambda v: v.__setitem__(0, v[0] + 4),
        lambda v: v[0],
    ),
    "bytearray": (lambda: bytearray(b"a"), lambda v: v.extend(b"bc"), lambda v: len(v)),
    "array": (lambda: array("i", [1]), lambda v: v.append(5), lambda v: sum(v)),
    "masked": (
        lambda: np.ma.array([1.0, 2.0]),
        lambda v: v.__setitem__(0, v[0] + 4),
        lambda v: float(v[0]),
    ),
    "attribute of an array": (lambda: _Array(2), _set_tag, lambda v: v.tag),
    "attribute of bytes": (lambda: _Bytes(b"a"), _set_tag, lambda v: v.tag),
}
OUTSIDE: dict[str, Case] = {
    "exception": (
        lambda: ValueError(1),
        lambda v: setattr(v, "args", (v.args[0] + 1,)),
        lambda v: v.args[0],
    ),
    "attribute of an exception": (
        lambda: ValueError(1),
        lambda v: v.__dict__.update(n=5),
        lambda v: getattr(v, "n", 1),
    ),
}


class _Net(nn.Module):
    def __init__(self, case: Case, changes: bool) -> None:
        super().__init__()
        make, self._change, self._read = case
        self.held = make()
        self.changes = changes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self._read(self.held)
        if self.changes:
            self._change(self.held)
        return x * found


X = torch.ones(2)


@pytest.mark.parametrize("name", CASES)
def test_what_a_call_changes_is_told_and_put_back(name: str) -> None:
    net = _Net(CASES[name], True)
    before = net._read(net.held)
    with pytest.warns(UserWarning, match="its attribute held"):
        program = export(net, (X,))
    assert net._read(net.held) == before
    assert torch.equal(program.module()(X), X * before)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_captured_calls_count_once(name: str) -> None:
    net, eager = (_Net(CASES[name], True) for _ in range(2))
    captured = capture(net)
    for _ in range(3):
        assert torch.equal(captured(X), eager(X))


@pytest.mark.parametrize("name", [*CASES, *OUTSIDE])
def test_what_others_change_is_captured_again(name: str) -> None:
    net = _Net({**CASES, **OUTSIDE}[name], False)
    captured = capture(net)
    for _ in range(3):
        assert torch.equal(captured(X), net(X))
        net._change(net.held)


def test_another_size_is_captured_again() -> None:
    net = _Net((lambda: torch.Size((1, 2)), lambda v: None, lambda v: v.numel()), False)
    captured = capture(net)
    for size in ((1, 2), (2, 3)):
        net.held = torch.Size(size)
        assert torch.equal(captured(X), net(X))


class _Updating(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.held = _Object()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        vars(self.held).update(n=5)
        return x


class _Renaming(_Updating):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.held.__class__ = type("Other", (), {})
        return x


def test_the_line_that_changes_attributes_is_told() -> None:
    with pytest.raises(StrictError, match=r"self\.held\.n: nothing -> 5\n.*vars\(self\.held\)"):
        export(_Updating(), (X,), strict=True)


def test_another_class_is_told_by_its_path() -> None:
    with pytest.raises(StrictError, match=r"the class of (self\.)?held: what it was -> another\n"):
        export(_Renaming(), (X,), strict=True)
