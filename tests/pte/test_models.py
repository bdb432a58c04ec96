"""Whole models in the runtime, beside eager execution: with fixed and with bounded sizes."""

from __future__ import annotations

import copy

import pytest
import torch
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
    assert listing.count("aten::mm.out") + listing.count("aten::bmm.out") == 8
    assert listing.count("aten::convolution.out") == 1  # the transposed one
    assert "batch_norm" not in listing
    assert "addmm" not in listing
