"""The bundled models in the runtime, tiny, beside eager: with fixed sizes, and bounded ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

import lostwax
from examples.models import MODELS
from lostwax import Dim
from tests.pte.runtime import Runtime, assert_close

MOST = 5


def make_dims(name: str) -> Any:
    """The dimensions of each input that every export keeps, with a bound."""
    inputs = MODELS[name].tiny_inputs()
    bounds = {
        each: max(t.shape[dim], MOST)
        for t, dims in zip(inputs, MODELS[name].dynamic, strict=True)
        for dim, each in dims.items()
    }
    dims = {each: Dim(each, min=1, max=bound) for each, bound in bounds.items()}
    return tuple({dim: dims[each] for dim, each in d.items()} for d in MODELS[name].dynamic)


def cut(inputs: tuple[torch.Tensor, ...], name: str, size: int) -> tuple[torch.Tensor, ...]:
    """The inputs with another batch."""
    return tuple(
        torch.cat([t] * size)[:size].contiguous() if "batch" in d.values() else t
        for t, d in zip(inputs, MODELS[name].dynamic, strict=True)
    )


@pytest.mark.parametrize("varies", [False, True], ids=["fixed", "bounded"])
@pytest.mark.parametrize("name", MODELS)
def test_a_bundled_model_runs_as_in_eager(name: str, varies: bool) -> None:
    torch.manual_seed(0)
    module, inputs = MODELS[name].tiny().eval(), MODELS[name].tiny_inputs()
    shapes = make_dims(name) if varies else None
    program = lostwax.export(module, inputs, dynamic_shapes=shapes)
    runtime = Runtime(program.to_edge().to_executable().buffer)
    for given in [inputs, cut(inputs, name, 3), cut(inputs, name, 1)] if varies else [inputs]:
        with torch.no_grad():
            assert_close(runtime(*given), tree_leaves(module(*given)))
