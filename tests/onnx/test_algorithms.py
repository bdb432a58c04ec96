"""Small algorithms in plain Python, NMS, beam search, CTC decoding and early exits among them, as
ONNX models: captured, written, and equal to eager in onnxruntime whichever way they go."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree

import lostwax
from lostwax.checking.onnx import list_inputs, list_results
from lostwax.errors import OnnxError
from lostwax.onnx.runtime import LoadedModel
from tests.capture.flow.algorithms import test_algorithms
from tests.capture.flow.algorithms.program import PROGRAMS
from tests.capture.flow.algorithms.refused import REFUSED
from tests.onnx.running import onnx, onnx_ir
from tests.whole import sampled

NAMES = [n for n, each in PROGRAMS.items() if n not in REFUSED and ".idioms." not in each.place]
MISSING = {
    "qr_iteration": "linalg_qr",
    "cholesky_with_jitter": "_linalg_eigh",
    "pooled_by_lengths": "the number u1 is needed, and no tensor has it as a size",
}
"""Factorizations: ONNX has none. Parts of lengths that data decide."""
TIES = ("beam_search", "beam_search_by_topk")
"""Their last call has equal scores alone: which of them are chosen is nobody's promise."""
STOPS = ("power_iteration",)
"""It stops when little changes, a turn earlier or later: its count of turns may be another."""
FIRST = ["beam_search_by_topk", "ctc_greedy", "GreedyGrowing", "qr_iteration"]


@pytest.mark.parametrize("name", sampled([*FIRST, *NAMES[::9]], NAMES))
def test_algorithm(name: str) -> None:
    each = PROGRAMS[name]
    module = each.make()
    program = lostwax.export(deepcopy(module), deepcopy(each.calls[0]))
    if name in MISSING:
        with pytest.raises(OnnxError, match=MISSING[name]):
            program.to_onnx()
        return
    made = program.to_onnx()
    onnx.checker.check_model(onnx_ir.to_proto(made), full_check=True)
    model = LoadedModel(made, 1)
    for args in each.calls[: -1 if name in TIES else None]:
        given = list_inputs(program, deepcopy((args, {})))
        wanted = test_algorithms._call(module, args)
        if wanted is not None:  # where eager raises, a model need not
            _compare(model, given, wanted, name in STOPS)


def _compare(model: LoadedModel, given: list[Any], wanted: Any, stops: bool) -> None:
    """Results, and what is written to arguments."""
    result, left, _ = wanted
    bar, last = (2e-3, -1) if stops else (1e-4, None)
    torch.testing.assert_close(
        model(*given)[:last],
        list_results(result)[:last],
        rtol=bar,
        atol=bar,
        equal_nan=True,
        check_dtype=False,
    )
    tensors = [x for x in pytree.tree_leaves(given) if isinstance(x, torch.Tensor)]
    if len(tensors) == len(model.inputs) == len(left):
        for at, name in enumerate(model.inputs):
            got = model.state.get(name, tensors[at])
            torch.testing.assert_close(got, left[at], rtol=bar, atol=bar, equal_nan=True)
