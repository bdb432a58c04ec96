"""Quantized calls written by hand: what torchao places seldom. Run by the real runtime, beside
eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed
import torch.nn.functional as F
from torch import Tensor

import lostwax
from tests.backends.quantized import list_nodes, lower
from tests.pte.runtime import portable  # noqa: F401 (without the runtime, these are skipped)

q = torch.ops.quantized_decomposed
INT8, UINT8 = (-128, 127, torch.int8), (0, 255, torch.uint8)
FEW = (-8, 7, torch.int8)
torch.manual_seed(0)
ROWS, IMAGE = torch.randn(1, 8), torch.randn(2, 4, 6, 6)
WEIGHT = torch.randint(-127, 128, (6, 8), dtype=torch.int8)
LOW = torch.full((6, 8), -128, dtype=torch.int8)
SCALES, ZEROS = torch.rand(6) / 100 + 0.001, torch.zeros(6, dtype=torch.int64)
BIAS = torch.randn(6)


def step(x: Tensor, scale: float = 0.03, zero: int = 5, *form: Any) -> Tensor:
    """Quantize, and take it back."""
    form = form or INT8
    integers = q.quantize_per_tensor.default(x, scale, zero, *form)
    return q.dequantize_per_tensor.default(integers, scale, zero, *form)  # type: ignore[no-any-return]


def step_as_it_runs(x: Tensor) -> Tensor:
    scale, zero = q.choose_qparams.tensor(x, -128, 127, 1e-6, torch.int8)
    integers = q.quantize_per_tensor.tensor(x, scale, zero, *INT8)
    return q.dequantize_per_tensor.tensor(integers, scale, zero, *INT8)  # type: ignore[no-any-return]


def layer(x: Tensor, weight: Tensor = WEIGHT, zeros: Tensor = ZEROS) -> Tensor:
    options = (0, -128, 127, torch.int8)
    return F.linear(x, q.dequantize_per_channel.default(weight, SCALES, zeros, *options), BIAS)


def give_integers(x: Tensor) -> Tensor:
    floats = q.dequantize_per_tensor.default(x, 0.03, 5, *INT8)
    return q.quantize_per_tensor.default(layer(floats), 0.05, 0, *INT8)  # type: ignore[no-any-return]


def limit_otherwise(x: Tensor) -> Tensor:
    """Limits whose result has another scale are no part of the layer."""
    return step(F.relu6(step(layer(step(x)), 0.05, 0)), 0.01, -128)


LAYER = ["Convert i8", "FullyConnected i8", "Convert f32"]

CASES: dict[str, tuple[Any, Tensor, list[str]]] = {
    "uint8": (lambda x: step(layer(step(x, 0.03, 128, *UINT8)), 0.05, 90, *UINT8), ROWS, LAYER),
    "a border beyond what few integers stand for": (
        lambda x: step(F.pad(step(x, 0.1, 0, *FEW), (1, 1), value=-100.0), 0.1, 0, *FEW),
        ROWS,
        ["Convert i8", "Clamp i8", "StaticConstantPad i8", "Convert f32"],
    ),
    "fewer integers": (
        lambda x: step(x, 0.01, 0, -100, 90, torch.int8),
        ROWS,
        ["Convert i8", "Clamp i8", "Convert f32"],
    ),
    "a layer of fewer": (
        lambda x: step(layer(step(x)), 0.05, 0, -20, 30, torch.int8),
        ROWS,
        LAYER,
    ),
    "limits": (lambda x: step(torch.relu(layer(step(x))), 0.05, -128), ROWS, LAYER),
    "other limits": (
        limit_otherwise,
        ROWS,
        [
            "Convert i8",
            "FullyConnected i8",
            "Convert f32",
            "Clamp f32",
            "Convert i8",
            "Convert f32",
        ],
    ),
    "limits alone": (
        lambda x: step(step(x).clamp(-0.5, 0.7)),
        ROWS,
        ["Convert i8", "Clamp i8", "Convert f32"],
    ),
    "given integers": (give_integers, step(ROWS).div(0.03).round().to(torch.int8), LAYER[1:2]),
    "no symmetric weights": (
        lambda x: step(layer(step(x), WEIGHT, ZEROS + 3), 0.05, 0),
        ROWS,
        ["Convert i8", "Convert f32", "FullyConnected f32", "Convert i8", "Convert f32"],
    ),
    "weights that are too low": (
        lambda x: step(layer(step(x), LOW), 0.05, 0),
        ROWS,
        ["Convert i8", "Convert f32", "FullyConnected f32", "Convert i8", "Convert f32"],
    ),
    "weights that are too low, as it runs": (
        lambda x: torch.relu(layer(step_as_it_runs(x), LOW)),
        ROWS,
        ["Convert rows of i8", "FullyConnected f32", "FullyConnected f32", "Add f32"],
    ),
    "a bias that is too large": (
        lambda x: step(layer(step(x, 1e-12, 0)), 0.05, 0),
        ROWS,
        ["Convert i8", "Convert f32", "FullyConnected f32", "Convert i8", "Convert f32"],
    ),
    "product": (
        lambda x: step(step(x) * step(x, 0.02, 0), 0.1, 0),
        ROWS,
        ["Convert i8", "Convert i8", "Multiply i8", "Convert f32"],
    ),
    "difference": (
        lambda x: step(step(x) - step(x, 0.02, 0), 0.01, 0),
        ROWS,
        ["Convert i8", "Convert i8", "Subtract i8", "Convert f32"],
    ),
    "what is moved": (
        lambda x: step(step(F.pad(step(x), (1, 0, 2, 1))).permute(0, 2, 3, 1)),
        IMAGE,
        ["Convert i8", "StaticConstantPad i8", "StaticTranspose i8", "Convert f32"],
    ),
    "joined": (
        lambda x: step(torch.cat([step(x), step(x.abs())], 1)),
        IMAGE,
        ["Abs f32", "Convert i8", "Convert i8", "Concatenate2 i8", "Convert f32"],
    ),
    "joined from others": (
        lambda x: step(torch.cat([step(x), step(x, 0.02, 0)], 1)),
        ROWS,
        [
            *("Convert i8", "Convert f32", "Convert i8", "Convert f32"),
            *("Concatenate2 f32", "Convert i8", "Convert f32"),
        ],
    ),
    "what XNNPACK has in floats alone": (
        lambda x: step(torch.sigmoid(step(x)), 0.01, 0),
        ROWS,
        ["Convert i8", "Convert f32", "Sigmoid f32", "Convert i8", "Convert f32"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_calls(name: str) -> None:
    function, x, nodes = CASES[name]
    lowered = lower(function, (x,))
    report = lowered.delegation_report()
    assert report.share == 1, str(report)
    assert list_nodes(lowered) == nodes
    (got,) = lostwax.pte.load_runtime(lowered.to_executable().buffer).run((x,))
    want = function(x)
    assert got.dtype is want.dtype
    atol = 1 if want.dtype is torch.int8 else 0.0501  # one step of the largest scale
    torch.testing.assert_close(got, want, rtol=1e-4, atol=atol)


REASONS: dict[str, tuple[Any, str]] = {
    "uint8 that is handed on": (
        lambda x: q.quantize_per_tensor.default(x * 2, 0.03, 128, *UINT8),
        "hands on integers of int8, not of uint8",
    ),
    "many bits": (
        lambda x: q.quantize_per_tensor.default(x * 2, 0.03, 0, -1000, 1000, torch.int16),
        "quantizes to 8 bits, not to int16",
    ),
    "another meaning": (
        lambda x: q.dequantize_per_tensor.default(
            q.quantize_per_tensor.default(x * 2, 0.03, 0, *INT8), 0.02, 0, *INT8
        ),
        "mean something else elsewhere",
    ),
    "no layer": (lambda x: step_as_it_runs(x * 2) + 1, "chooses scales for layers"),
    "read by others": (
        lambda x: (layer(step_as_it_runs(x * 2)), step_as_it_runs(x * 2) + 1),
        "chooses scales for layers",
    ),
}


@pytest.mark.parametrize("name", REASONS)
def test_what_stays_has_a_reason_and_runs(name: str) -> None:
    function, reason = REASONS[name]
    lowered = lower(function, (ROWS,))
    reasons = [r for each in lowered.delegation_report().undelegated for r in each.reasons]
    assert any(reason in each for each in reasons), reasons
    got = lostwax.pte.load_runtime(lowered.to_executable().buffer).run((ROWS,))
    want = function(ROWS)
    for a, b in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=0.01)
