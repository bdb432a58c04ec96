"""Hooks of modules with an `if` on data: None keeps what there is, on either side."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lostwax
from lostwax.errors import CaptureError
from tests.capture.flow.hooked import doubles, make_modules, make_refused

MODULES, REFUSED = make_modules(), make_refused()
INPUTS = [
    *(torch.ones(2, 3), -torch.ones(2, 3), torch.full((2, 3), 0.1), torch.full((2, 3), -9.0)),
    torch.tensor([[3.0, -4.0, 2.0], [9.0, -7.0, 1.0]]),
]


@pytest.mark.parametrize("name", MODULES)
def test_none_keeps_what_there_is(name: str) -> None:
    module = MODULES[name]
    run = lostwax.export(module, (INPUTS[0],)).module()
    for each in INPUTS:
        torch.testing.assert_close(run(each), module(each))


def test_hooks_of_all_modules() -> None:
    module = MODULES["before"]
    handle = nn.modules.module.register_module_forward_hook(doubles)
    try:
        run = lostwax.export(module, (INPUTS[0],)).module()
        wanted = [module(each) for each in INPUTS]
    finally:
        handle.remove()
    for each, want in zip(INPUTS, wanted, strict=True):
        torch.testing.assert_close(run(each), want)


@pytest.mark.parametrize("name", REFUSED)
def test_none_of_others_is_refused_with_its_line(name: str) -> None:
    with pytest.raises(CaptureError, match="and None on the False side") as error:
        lostwax.export(REFUSED[name], (INPUTS[0],))
    assert "flow/hooked.py:" in str(error.value)
