"""What Python asks of torch's modes is baked into a program: in a call under another mode, the
program says so."""

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, is_grad_enabled

import lostwax
from lostwax import export
from lostwax.errors import (
    InputValueError,
)


@contextmanager
def default_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def switched(owner: Any, name: str) -> Callable[[], Any]:
    @contextmanager
    def other() -> Iterator[None]:
        before = getattr(owner, name)
        setattr(owner, name, not before)
        try:
            yield
        finally:
            setattr(owner, name, before)

    return other


@contextmanager
def other_kernels() -> Iterator[None]:
    torch.backends.cuda.enable_flash_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_flash_sdp(True)


def autocast() -> Any:
    return torch.autocast("cpu", torch.bfloat16)


MODES: dict[str, tuple[Callable[[], bool], Callable[[], Any]]] = {
    "torch.is_grad_enabled()": (lambda: torch.is_grad_enabled(), torch.no_grad),
    "torch.is_grad_enabled() ": (lambda: is_grad_enabled(), torch.no_grad),
    "torch.is_inference_mode_enabled()": (
        lambda: torch.is_inference_mode_enabled(), torch.inference_mode,
    ),
    "torch.is_autocast_enabled('cpu')": (lambda: torch.is_autocast_enabled("cpu"), autocast),
    "torch.is_autocast_enabled('cpu') ": (lambda: torch.is_autocast_cpu_enabled(), autocast),
    "torch.get_default_dtype()": (lambda: torch.get_default_dtype() is torch.half, default_dtype),
    "torch.are_deterministic_algorithms_enabled()": (
        lambda: torch.are_deterministic_algorithms_enabled(), deterministic,
    ),
    "torch.backends.cudnn.benchmark": (
        lambda: torch.backends.cudnn.benchmark, switched(torch.backends.cudnn, "benchmark"),
    ),
    "torch.backends.cuda.matmul.allow_tf32": (
        lambda: torch.backends.cuda.matmul.allow_tf32,
        switched(torch.backends.cuda.matmul, "allow_tf32"),
    ),
    "torch.backends.cuda.flash_sdp_enabled()": (
        lambda: torch.backends.cuda.flash_sdp_enabled(), other_kernels,
    ),
    "torch.utils.deterministic.fill_uninitialized_memory": (
        lambda: torch.utils.deterministic.fill_uninitialized_memory,
        switched(torch.utils.deterministic, "fill_uninitialized_memory"),
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:torch.is_autocast_cpu_enabled:DeprecationWarning")
@pytest.mark.parametrize("is_on", [False, True])
@pytest.mark.parametrize("name", MODES)
def test_a_mode_that_is_asked_for_is_checked(
    name: str, is_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # torch's own testing module, which other tests import, forbids such assignments for good.
    flags = torch.backends.flags_frozen.__globals__
    monkeypatch.setitem(flags, "__allow_nonbracketed_mutation_flag", True)
    ask, switched = MODES[name]
    as_captured, otherwise = (switched, nullcontext) if is_on else (nullcontext, switched)
    x = torch.ones(2)

    def forward(x: Tensor) -> Tensor:
        return x * 2 if ask() else x * 3

    captured = lostwax.capture(forward)
    with as_captured():
        program = export(forward, (x,))
        again = export(program.module(), (x,))
        torch.testing.assert_close(program.module()(x), forward(x))
        torch.testing.assert_close(captured(x), forward(x))
    file = io.BytesIO()
    lostwax.save(program, file)
    file.seek(0)
    with otherwise():
        for each in (program, again, lostwax.load(file), program.run_decompositions()):
            with pytest.raises(InputValueError, match=re.escape(f"{name.strip()} is")):
                each.module()(x)
        torch.testing.assert_close(captured(x), forward(x))
    assert torch.is_grad_enabled is is_grad_enabled


def test_a_mode_that_a_module_switches_itself_is_not_checked() -> None:
    def forward(x: Tensor) -> Tensor:
        with torch.no_grad():
            return x * 2 if torch.is_grad_enabled() else x * 3

    ours = export(forward, (torch.ones(2),)).module()
    for mode in (torch.no_grad, torch.inference_mode, nullcontext):
        with mode():
            torch.testing.assert_close(ours(torch.ones(2)), torch.full((2,), 3.0))
