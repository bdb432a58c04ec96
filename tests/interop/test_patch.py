"""`patch_torch_export`: scripts that know torch.export alone compute with it what they computed."""

from __future__ import annotations

import copy
import os
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.exc import UserError, UserErrorType

import lostwax
from lostwax import errors
from tests.interop.scripts import CHEAP, assert_same

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("script", CHEAP, ids=lambda script: script.__name__)
def test_a_script_runs_as_it_is(script: Callable[[Path], Any], tmp_path: Path) -> None:
    for name in ("torch", "ours"):
        (tmp_path / name).mkdir()
    expected = script(tmp_path / "torch")
    with lostwax.patch_torch_export():
        found = script(tmp_path / "ours")
    assert_same(found, expected)


# ------------------------------------------------------------------------------------- the patch


def test_two_functions_are_replaced_and_give_the_class_of_torch() -> None:
    before = dict(vars(torch.export))
    with lostwax.patch_torch_export():
        changed = {name for name, held in vars(torch.export).items() if held is not before[name]}
        program = torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),))
        draft = torch.export.draft_export(nn.Linear(2, 2), (torch.ones(1, 2),))
    assert changed == {"export", "draft_export"}
    assert dict(vars(torch.export)) == before
    assert type(program) is type(draft) is torch.export.ExportedProgram
    assert "linear" in str(program.graph)
    assert "linear" in str(draft.graph)


def test_the_block_puts_back_what_it_changed_if_it_raises() -> None:
    before = torch.export.export
    with pytest.raises(ZeroDivisionError), lostwax.patch_torch_export():
        1 / 0  # noqa: B018
    assert torch.export.export is before


def test_blocks_of_two_threads_may_end_in_any_order() -> None:
    before = torch.export.export
    first, second = lostwax.patch_torch_export(), lostwax.patch_torch_export()
    first.__enter__()
    ours = torch.export.export
    second.__enter__()
    first.__exit__(None, None, None)
    assert torch.export.export is ours is not before
    second.__exit__(None, None, None)
    assert torch.export.export is before


def test_ints_are_told_by_their_wrappers() -> None:
    from torch.export.dynamic_shapes import _IntWrapper

    class Repeat(nn.Module):
        def forward(self, x, n):
            return x.new_ones(n)

    n, collection = _IntWrapper(5), torch.export.ShapesCollection()
    collection[n] = torch.export.Dim.DYNAMIC
    with lostwax.patch_torch_export():
        program = torch.export.export(Repeat(), (torch.ones(2), n), dynamic_shapes=collection)
    assert program.module()(torch.ones(2), 7).shape == (7,)


class Few(nn.Module):
    def forward(self, x):
        torch._check(x.shape[0] < 8)
        return x + 1


def test_added_inputs_that_the_program_refuses_are_an_error() -> None:
    more = torch.export.AdditionalInputs()
    more.add((torch.ones(9),))
    with (
        lostwax.patch_torch_export(),
        pytest.raises(RuntimeError, match="to be <= 7, but got 9"),
    ):
        torch.export.export(Few(), (torch.ones(3),), dynamic_shapes=more)


class Slotted:
    __slots__ = ("keys",)

    def __init__(self, keys: torch.Tensor) -> None:
        self.keys = keys


class Caching(nn.Module):
    """Its buffer is held by a plain object, too, as transformers' caches are."""

    def __init__(self, hold: Callable[..., Any]) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(4, 3), persistent=False)
        self.cache = hold(keys=self.keys)

    def forward(self, i, x):
        self.cache.keys.index_copy_(0, i, x)
        return self.cache.keys * 2, self.keys.sum()


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("hold", [Slotted, SimpleNamespace, namedtuple("Held", "keys")])
def test_a_plain_object_may_hold_a_buffer(hold: Callable[..., Any], strict: bool) -> None:
    calls = [(torch.tensor([i]), torch.full((1, 3), i + 1.0)) for i in range(3)]
    with lostwax.patch_torch_export():
        program = torch.export.export(Caching(hold), calls[0], strict=strict)
    modules = [program.module(), lostwax.export(Caching(hold), calls[0], strict=strict).module()]
    eager = Caching(hold)
    for call in calls:
        wanted = eager(*call)
        for module in modules:
            torch.testing.assert_close(module(*call), wanted)


class ReadsTheEnvironment(nn.Module):
    def forward(self, x):
        return x * int(os.environ.get("LOSTWAX_TEST_NOTHING", "2"))


def test_strict_refuses_no_more_than_torchs() -> None:
    x = torch.ones(3)
    with lostwax.patch_torch_export():
        program = torch.export.export(ReadsTheEnvironment(), (x,), strict=True)
    assert torch.equal(program.module()(x), x * 2)
    with pytest.raises(lostwax.errors.StrictError, match=r"os\.environ"):
        lostwax.export(ReadsTheEnvironment(), (x,), strict=True)


# ----------------------------------------------------------------------------------------- errors


class Fixed(nn.Module):
    def forward(self, x):
        return x.view(3)


class Keeps(nn.Module):
    kept: torch.Tensor | None = None

    def forward(self, x):
        self.kept = x if self.kept is None else x + self.kept
        return self.kept * 2


class Asks(nn.Module):
    def forward(self, x):
        return torch.einsum("a" * int(x.sum()), x)


KINDS = {
    "violation": (Fixed, errors.ConstraintViolationError, UserErrorType.CONSTRAINT_VIOLATION),
    "state": (Keeps, errors.CaptureError, UserErrorType.ANTI_PATTERN),
    "data": (Asks, errors.DataDependentError, UserErrorType.DYNAMIC_CONTROL_FLOW),
    "spec": (Few, errors.DynamicShapesError, UserErrorType.INVALID_INPUT),
}


@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_ours_and_of_torch(kind: str) -> None:
    module, ours, error_type = KINDS[kind]
    shapes = {"z" if kind == "spec" else "x": {0: torch.export.Dim("n")}}
    with lostwax.patch_torch_export(), pytest.raises(UserError) as caught:
        torch.export.export(module(), (torch.ones(3),), dynamic_shapes=shapes)
    error = caught.value
    assert isinstance(error, ours)
    assert error.error_type is error_type
    assert error.msg == str(error)
    assert str(error).startswith(f"[{ours.code}] ")
    assert f"lostwax.errors.{ours.__name__}: " in caught.exconly()
    with pytest.raises(ours) as plain:
        lostwax.export(module(), (torch.ones(3),), dynamic_shapes=shapes)
    assert not isinstance(plain.value, UserError)


# ------------------------------------------------------------------------- training of batch norms


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.bn = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.bn(self.linear(x)).relu()


class Twice(Norm):
    def forward(self, x):
        return self.bn(self.linear(self.bn(x)))


class ReadsBefore(Norm):
    def forward(self, x):
        factor = self.bn.weight / (self.bn.running_var + self.bn.eps).sqrt()
        return self.bn(self.linear(x) * factor)


class ReadsAfter(Norm):
    def forward(self, x):
        y = self.bn(x)
        z = self.bn(y + self.bn.running_mean)
        return z * self.bn.running_var[:1]


class ReadsOld(Norm):
    def forward(self, x):
        old = self.bn.running_mean.clone()
        return self.bn(x) * old


class Views(Norm):
    def forward(self, x):
        view = self.bn.running_mean.detach()
        plus = view + 1
        return self.bn(x) * view * plus


class Unread(Norm):
    def forward(self, x):
        self.bn(x)
        return self.linear(x)


class Given(nn.Module):
    """The statistics are buffers that batch_norm is given, and one of them is an output."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("var", torch.ones(4))

    def forward(self, x):
        y = nn.functional.batch_norm(x, self.mean, self.var, self.weight, training=True)
        return y, self.mean + 0


WHOLE = {Norm: 1, Twice: 2, ReadsBefore: 1, ReadsAfter: 2, ReadsOld: 1, Views: 0, Unread: 0}
"""How many calls stay `batch_norm`."""


def train(module: nn.Module) -> Any:
    torch.manual_seed(0)
    results = []
    for _ in range(3):
        out = module(torch.randn(5, 4))
        first = out[0] if isinstance(out, tuple) else out
        first.square().sum().backward()
        results.append(out)
    gradients = {name: each.grad for name, each in module.named_parameters()}
    return results, dict(module.state_dict()), gradients


@pytest.mark.parametrize("cls", [*WHOLE, Given], ids=lambda cls: cls.__name__)
def test_batch_norms_are_trained_as_in_eager(cls: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = cls()
    with lostwax.patch_torch_export():
        program = torch.export.export(copy.deepcopy(model), (torch.randn(5, 4),))
    program.validate()
    targets = [node.target for node in program.graph.nodes]
    assert targets.count(torch.ops.aten.batch_norm.default) == WHOLE.get(cls, 1)
    assert torch.ops.aten.copy_.default not in targets
    assert torch.ops.aten.add_.Tensor in targets or cls is Given
    core = copy.deepcopy(program).run_decompositions()
    expected = train(model)
    torch.testing.assert_close(train(program.module()), expected)
    kinds = [spec.kind.name for spec in core.graph_signature.output_specs]
    assert kinds.count("BUFFER_MUTATION") == (2 if cls is Given else 3)
