"""Whole models in the runtime, beside eager execution: with fixed and with bounded sizes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

import lostwax
from tests.pte.models import CASES, make_module
from tests.pte.runtime import Runtime, assert_close


@pytest.mark.parametrize("size", ["fixed", "bounded"])
@pytest.mark.parametrize("name", CASES)
def test_a_model_runs_as_in_eager(name: str, size: str) -> None:
    case = CASES[name]
    if size == "bounded" and case.dynamic is None:
        pytest.skip("nothing of it varies")
    module = make_module(case)
    shapes = case.dynamic if size == "bounded" else None
    program = lostwax.export(module, case.inputs(2), dynamic_shapes=shapes)
    runtime = Runtime(program.to_edge().to_executable().buffer)
    eager = copy.deepcopy(module)
    for n in (2, 6, 1, 3) if shapes else (2, 2):
        inputs = case.inputs(n)
        with torch.no_grad():
            wanted = tree_leaves(eager(*inputs))
        assert_close(runtime(*inputs), wanted)


def test_convolutions_become_matrix_products() -> None:
    case = CASES["convolutions"]
    program = lostwax.export(make_module(case), case.inputs(1))
    listing = lostwax.pte.dump(program.to_edge().to_executable().buffer)
    assert listing.count("aten::mm.out") + listing.count("aten::bmm.out") == 9
    assert "convolution" not in listing
    assert "batch_norm" not in listing
    assert "addmm" not in listing


def test_convolutions_of_rows_images_and_volumes() -> None:
    def convolve(row: torch.Tensor, image: torch.Tensor, volume: torch.Tensor) -> tuple[Any, ...]:
        weights = [torch.ones(4, 2, *[2] * n) for n in (1, 2, 3)]
        return (
            F.conv1d(row, weights[0], stride=2, padding=1),
            F.conv2d(image, weights[1], torch.ones(4), padding=(1, 0), dilation=2),
            F.conv3d(volume, weights[2], stride=(1, 2, 1), padding=(0, 1, 1)),
            F.conv3d(volume[:1], torch.ones(2, 1, 1, 1, 1), groups=2),
        )

    inputs = torch.randn(3, 2, 7), torch.randn(1, 2, 6, 5), torch.randn(2, 2, 4, 5, 3)
    runtime = Runtime(lostwax.export(convolve, inputs).to_edge().to_executable().buffer)
    assert_close(runtime(*inputs), convolve(*inputs))


def test_one_number_for_all_dimensions_of_a_convolution() -> None:
    def convolve(x: torch.Tensor) -> Any:
        return torch.convolution(x, torch.ones(4, 2, 2, 2), None, [2], [1], [1], False, [0], 1)

    inputs = (torch.randn(1, 2, 6, 5),)
    runtime = Runtime(lostwax.export(convolve, inputs).to_edge().to_executable().buffer)
    assert_close(runtime(*inputs), [convolve(*inputs)])


def test_convolutions_in_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lostwax.pte.lowering.convolution.BAND", 2000)
    case = CASES["convolutions"]
    module, inputs = make_module(case), case.inputs(2)
    executable = lostwax.export(module, inputs).to_edge().to_executable()
    assert lostwax.pte.dump(executable.buffer).count("aten::cat.out") > 4
    with torch.no_grad():
        assert_close(Runtime(executable.buffer)(*inputs), tree_leaves(module(*inputs)))
