"""What the sweep takes for equal, and its processes."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lostwax import export
from sweep import models
from sweep.compare import DiffersError, check, run
from sweep.setting import Setting
from tests.fresh import run_module
from tests.whole import sampled


class KeyBias(nn.Module):
    """Attention, whose scores a bias of the keys shifts all alike: its gradient is rounding. A
    linear layer is beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        weights = (x @ self.key(x).mT).softmax(-1)
        return weights @ self.value(x)  # type: ignore[no-any-return]


def _round_otherwise(model: KeyBias, x: Tensor) -> Tensor:
    """The same, with other roundings."""
    key = x @ model.key.weight.mT + model.key.bias
    weights = (key @ x.mT).mT.softmax(-1)
    out = weights @ (x @ model.value.weight.mT) + model.value.bias * weights.sum(-1, keepdim=True)
    return out.to((x @ x.mT).dtype)  # which is that of autocast


class Otherwise(nn.Module):
    """A program for a module: its parameters have the same names."""

    def __init__(self, model: KeyBias, factor: float) -> None:
        super().__init__()
        self.key, self.value = model.key, model.value
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        out = _round_otherwise(self, x)  # type: ignore[arg-type]
        if self.factor == 1:
            return out
        return out + (self.factor - 1) * (out - out.detach())  # the gradient alone is wrong


def _compare(precision: str, factor: float) -> None:
    torch.manual_seed(0)
    setting, model = Setting("cpu", precision), KeyBias()
    model = model.half() if precision == "half" else model
    call: Any = (torch.randn(3, 12, 8, dtype=model.key.weight.dtype),), {}
    eager = run(copy.deepcopy(model), *call, setting.make_context())
    ours = run(Otherwise(copy.deepcopy(model), factor), *call, setting.make_context())
    check(ours, eager, setting.run_otherwise(model, *call))


@pytest.mark.parametrize("precision", ["float32", "autocast", "half"])
def test_a_gradient_that_is_rounding_alone_may_be_another(precision: str) -> None:
    _compare(precision, 1)


@pytest.mark.parametrize("precision", ["float32", "autocast", "half"])
@pytest.mark.parametrize("factor", [0.5, 2, 0])
def test_a_gradient_that_is_wrong_is_not(precision: str, factor: float) -> None:
    with pytest.raises(DiffersError, match=r"gradient of key\.weight: off by"):
        _compare(precision, factor)


def test_one_run_with_other_bits_may_be_near_by_chance() -> None:
    """A gradient in bfloat16 that is one bit off, where the noise has flipped none."""
    runs = [run(nn.Linear(1, 1), (torch.ones(1),), {}) for _ in range(4)]
    program, module, noisy, exact = runs
    for each, value in ((program, 11.0625), (module, 11.0), (noisy, 11.0), (exact, 11.04)):
        each.outputs, each.gradients = [], {"bias": torch.tensor([value])}
    with pytest.raises(DiffersError, match=r"gradient of bias: off by 5\.7e-03"):
        check(program, module, [noisy])
    check(program, module, [noisy, exact])
    program.gradients["bias"].mul_(2)
    with pytest.raises(DiffersError):
        check(program, module, [noisy, exact])


@pytest.mark.skipif(find_spec("timm") is None, reason="timm is not installed: make consumers")
class Hidden(nn.Module):
    """Attention that a mask hides as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.full((1, 1, 3, 3), torch.finfo(x.dtype).min)
        return F.scaled_dot_product_attention(x, x, self.value(x), attn_mask=mask)


@pytest.mark.parametrize("factor", [1, 0.5])
def test_gradients_that_a_kernel_has_wrong_are_those_of_another(factor: float) -> None:
    model, kwargs = Hidden(), {"x": torch.randn(1, 1, 3, 4)}
    example = models.Example(model, kwargs)
    program = export(model, (), kwargs).module()
    program.value.weight.register_hook(lambda grad: grad * factor)
    given = SimpleNamespace(module=lambda: program)
    with pytest.raises(DiffersError) if factor != 1 else nullcontext():
        models.compare(example, given, kwargs, models.run_eager(example, kwargs))


def test_the_command() -> None:
    """In several processes, each of which loads the libraries, only where all is tried."""
    names = ["DistilBertModel", *sampled([], ["GPT2LMHeadModel"])]
    options = ["--precision", "float32", "--jobs", sampled("1", "2")]
    run = run_module("sweep", "--only", *names, *options)
    assert run.returncode == 0, run.stdout + run.stderr
    head, *rows, summary = run.stdout.splitlines()
    assert head.startswith("architecture")
    assert sorted(row.split()[0] for row in rows) == names
    assert summary == f"transformers, float32: {len(names)} of {len(names)} equal eager"
