"""A model of timm and one of transformers, small, with XNNPACK in the real runtime beside eager.
`python -m sweep.pte --xnnpack` has all of them."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

import lostwax
from lostwax.backends import XnnpackPartitioner
from sweep.__main__ import chosen
from sweep.architectures import build, cast, example
from sweep.libraries import load_timm, load_transformers
from sweep.pte import SIZES, bound_sizes
from tests.pte.runtime import portable  # noqa: F401 (without the runtime, these are skipped)


@pytest.mark.parametrize(
    ("name", "varies", "most"),
    [("mobilenetv3_small_050", "bounded", 1), ("DistilBertModel", "length", 5)],
)
def test_a_model_of_a_library_runs_as_in_eager(name: str, varies: str, most: int) -> None:
    (architecture,) = (a for a in chosen([name], None) if a.name == name)
    if find_spec(architecture.library) is None:
        pytest.skip(f"{architecture.library} is not installed")
    torch.manual_seed(0)
    timm = load_timm() if architecture.library == "timm" else None
    transformers = load_transformers() if architecture.library == "transformers" else None
    model = build(architecture, timm, transformers).float().eval()
    args, kwargs = cast(example(architecture), torch.float32)
    shapes = bound_sizes(args, kwargs, varies)
    program = lostwax.export(model, args, kwargs, dynamic_shapes=shapes)
    edge = lostwax.to_edge_transform_and_lower(program, partitioner=XnnpackPartitioner())
    assert len(edge.delegation_report().delegates) <= most
    calls = [cast(example(architecture, *sizes), torch.float32) for sizes in SIZES[varies]]
    lostwax.check(edge.to_executable(), model, inputs=calls).raise_on_difference()
