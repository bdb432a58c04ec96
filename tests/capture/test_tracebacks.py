"""An error of the model shows the user's frames and torch's, and the user's line."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lostwax
from lostwax.errors import LostwaxError


class Inner(nn.Module):
    def __init__(self, fails: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.fails = fails

    def forward(self, x: Tensor) -> Any:
        return self.fails(self, x)  # here


class Outer(nn.Module):
    def __init__(self, fails: Any) -> None:
        super().__init__()
        self.inner = Inner(fails)

    def forward(self, x: Tensor) -> Any:
        return self.inner(x)


FAILING = {
    "dtype": (lambda self, x: self.layer(x.double()), "must have the same dtype"),
    "size": (lambda self, x: self.layer(x.T), "cannot be multiplied"),
    "device": (lambda self, x: x + torch.zeros(4, device="cuda"), "on the same device"),
    "name": (lambda self, x: x.nothing(), "has no attribute 'nothing'"),
    "key": (lambda self, x: {"a": x}["b"], "'b'"),
    "cause": (lambda self, x: _fail_for(x), "no number"),
}


def _fail_for(x: Tensor) -> None:
    try:
        torch.cat([x, x[:, :1]])
    except RuntimeError as error:
        raise ValueError("no number") from error


@pytest.mark.parametrize("name", FAILING)
def test_an_error_of_the_model(name: str, monkeypatch: Any) -> None:
    monkeypatch.delenv("LOSTWAX_TRACEBACK", raising=False)
    fails, text = FAILING[name]
    with pytest.raises(Exception, match=text) as caught:
        lostwax.export(Outer(fails), (torch.randn(2, 4),))
    assert not isinstance(caught.value, LostwaxError)
    shown = "".join(traceback.format_exception(caught.value)).splitlines()
    own = [line for line in shown if "/lostwax/capture/" in line]
    assert len(own) == 2, "the call of export, and no more"
    assert len(shown) < 60
    assert "test_tracebacks.py:" in shown[-3]
    assert " in <lambda>: " in shown[-3] or " in _fail_for: " in shown[-3]
    assert [line[:7] for line in shown[-2:]] == ["  why: ", "  inste"]
    assert any("return self.fails(self, x)  # here" in line for line in shown)


def test_a_refusal(monkeypatch: Any) -> None:
    monkeypatch.delenv("LOSTWAX_TRACEBACK", raising=False)
    dynamic = ({0: lostwax.Dim("n")},)
    with pytest.raises(LostwaxError) as caught:
        lostwax.export(lambda x: x.reshape(2, 4), (torch.randn(2, 4),), dynamic_shapes=dynamic)
    assert not caught.value.__notes__, "its text has the line"
    assert len(traceback.format_exception(caught.value)) < 8


def test_all_of_it(monkeypatch: Any) -> None:
    monkeypatch.setenv("LOSTWAX_TRACEBACK", "full")
    with pytest.raises(RuntimeError) as caught:
        lostwax.export(Outer(FAILING["dtype"][0]), (torch.randn(2, 4),))
    files = {each.filename for each in traceback.extract_tb(caught.value.__traceback__)}
    assert any(file.endswith("lostwax/ops/math/matmul.py") for file in files)


@pytest.mark.parametrize("way", [lambda program: program.module(), lostwax.unflatten])
@pytest.mark.parametrize(
    "args", [(torch.ones(3, 4),), (torch.ones(2, 4), 3), ([torch.ones(2, 4)],)]
)
def test_a_call_of_another_kind_than_captured(way: Any, args: Any, monkeypatch: Any) -> None:
    monkeypatch.delenv("LOSTWAX_TRACEBACK", raising=False)
    module = way(lostwax.export(lambda x: x * 2, (torch.randn(2, 4),)))
    with pytest.raises((lostwax.errors.InputValueError, TypeError)) as caught:
        module(*args)
    files = [each.filename for each in traceback.extract_tb(caught.value.__traceback__)]
    assert files[0] == __file__
    inside = [file for file in files if "/lostwax/ir/run/" in file and "calling.py" not in file]
    assert len(inside) == ("unflatten" not in files[-1]), "forward, and no more"
    assert files[-1].endswith(("ir/run/module.py", "unflatten/unflatten.py"))
