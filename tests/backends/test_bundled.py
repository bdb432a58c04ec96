"""The bundled models with XNNPACK in the real runtime, tiny, beside eager: with fixed sizes, and
bounded ones."""

from __future__ import annotations

import pytest
import torch

from examples.models import MODELS
from tests.backends.xnnpack import compare, lower
from tests.pte.test_bundled import cut, make_dims

WHOLE = ("resnet50", "unet", "efficientnet", "vit")
"""The models of which nothing stays outside."""


@pytest.mark.parametrize("varies", [False, True], ids=["fixed", "bounded"])
@pytest.mark.parametrize("name", MODELS)
def test_a_bundled_model_runs_as_in_eager(name: str, varies: bool) -> None:
    torch.manual_seed(0)
    module, inputs = MODELS[name].tiny().eval(), MODELS[name].tiny_inputs()
    lowered = lower(module, inputs, make_dims(name) if varies else None)
    report = lowered.delegation_report()
    assert report.delegates
    if name in WHOLE and not varies:
        assert report.share == 1
        assert len(report.delegates) == 1
    cases = [inputs, cut(inputs, name, 3), cut(inputs, name, 1)] if varies else [inputs]
    compare(module, lowered, cases)
