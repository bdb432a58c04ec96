"""Arguments that have defaults: calls may leave them out or say what they are, as in eager."""

from __future__ import annotations

import io
from functools import wraps
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lostwax
from lostwax import export
from lostwax.errors import InputStructureError, InputValueError

X = torch.arange(3.0)


class Net(nn.Module):
    def forward(
        self, x: Tensor, y: Tensor | None = None, flag: bool = True, *, scale: float = 2.0
    ) -> Tensor:
        x = x * scale if flag else x
        return x if y is None else x + y


class Wrapped(Net):
    @wraps(Net.forward)
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return super().forward(*args, **kwargs)


CAPTURED: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "left out": ((X,), {}),
    "by position": ((X, None, True), {}),
    "by name": ((X,), {"flag": True}),
}
SAME: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((X,), {}),
    ((X, None, True), {}),
    ((X,), {"flag": True, "scale": 2.0}),
    ((X, None), {"scale": 2.0}),
    ((), {"x": X, "y": None}),
]


@pytest.mark.parametrize("net", [Net(), Wrapped()])
@pytest.mark.parametrize("captured", CAPTURED)
def test_what_a_default_says_may_be_said_or_left_out(captured: str, net: nn.Module) -> None:
    module = export(net, *CAPTURED[captured]).module()
    for args, kwargs in SAME:
        torch.testing.assert_close(module(*args, **kwargs), X * 2)
    for call in (lambda: module(X, None, False), lambda: module(X, flag=False)):
        with pytest.raises(InputValueError, match=r"flag is the bool False, but .* True.* baked"):
            call()
    for call in (lambda: module(X, X), lambda: module(X, y=X)):
        with pytest.raises(InputValueError, match=r"y is a tensor f32.3., but .* None, .*baked"):
            call()
    with pytest.raises(InputValueError, match="scale is the int 2, but it was left out at capture"):
        module(X, scale=2)
    for args, kwargs in [((X,), {"bad": 1}), ((X, None), {"y": None}), ((X, None, True, 2.0), {})]:
        with pytest.raises(InputStructureError, match="called with:"):
            module(*args, **kwargs)


def test_a_tensor_that_was_given_is_not_left_out() -> None:
    module = export(Net(), (X,), {"y": X}).module()
    torch.testing.assert_close(module(X, X, True), X * 3)
    with pytest.raises(InputValueError, match="y is None, but the program was captured with a ten"):
        module(X)


def test_files_remember_defaults() -> None:
    file = io.BytesIO()
    lostwax.save(export(Net(), (X,)), file)
    file.seek(0)
    module = lostwax.load(file).module()
    torch.testing.assert_close(module(X, flag=True), X * 2)
    with pytest.raises(InputValueError, match="flag is the bool False, but it was left out"):
        module(X, flag=False)


def test_defaults_of_any_kind() -> None:
    def forward(x: Tensor, how: Any = nn.functional.relu, *more: Tensor) -> Tensor:
        return how(x)

    module = export(forward, (X,)).module()
    torch.testing.assert_close(module(X, how=nn.functional.relu), X)
    with pytest.raises(InputValueError, match=r"how is .*, but it was left out at capture"):
        module(X, how=nn.functional.silu)
