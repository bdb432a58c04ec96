"""What we save: real torch loads it, its verifier passes, results are equal bit for bit; and to
load it here gives the same program again, byte for byte.
"""

from __future__ import annotations

import inspect
import io
from collections.abc import Iterable, Iterator
from copy import deepcopy
from itertools import islice
from typing import Any

import pytest
import torch
from torch import nn
from torch._export.db.examples import all_examples

import lostwax
from examples.models import MODELS
from lostwax.errors import LoadError, LostwaxError
from lostwax.pt2 import original
from tests.capture.programs import generate
from tests.capture.shapes import sized_programs
from tests.capture.small import Rounded
from tests.pt2.compare import (
    assert_identical,
    assert_runs_alike,
    assert_same,
    called,
    peer_load,
    saved,
)
from tests.whole import sampled


def check(program: Any, args: Any, kwargs: Any = None, *, peer: bool = True) -> Any:
    """Ours to ours is the identity; ours to torch runs alike. Returns torch's program."""
    data = saved(program, example_inputs=False)
    again = lostwax.load(io.BytesIO(data))
    again.validate()
    assert_identical(program, again)
    assert saved(again, example_inputs=False) == data
    want = called(program.module(), args, kwargs)
    assert_same(called(again.module(), args, kwargs), want)
    if not peer:
        return None
    theirs = peer_load(data)
    assert_same(called(theirs.module(), args, kwargs), want)
    return theirs


@pytest.mark.parametrize("name", ["resnet50", "bert", "llama", "swin", "efficientnet"])
def test_models(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = MODELS[name].tiny().eval(), MODELS[name].tiny_inputs()
    program = lostwax.export(model, inputs)
    check(program, inputs)
    check(program.run_decompositions(), inputs, peer=False)


@pytest.mark.parametrize("name", ["gpt2", "unet", "vit"])
def test_models_of_any_size(name: str) -> None:
    torch.manual_seed(0)
    example = MODELS[name]
    model, inputs = example.tiny().eval(), example.tiny_inputs()
    dims = {n: lostwax.Dim(n, min=1, max=32) for sizes in example.dynamic for n in sizes.values()}
    dynamic = tuple({d: dims[n] for d, n in sizes.items()} for sizes in example.dynamic)
    program = lostwax.export(model, inputs, dynamic_shapes=dynamic)
    theirs = check(program, inputs)
    twice = tuple(torch.cat([x, x]) for x in inputs)
    assert_runs_alike(program.module(), theirs.module(), twice, {})
    check(program.run_decompositions(), inputs, peer=False)


@pytest.mark.filterwarnings("ignore")
def test_exportdb() -> None:
    for case in all_examples().values():
        args, kwargs = deepcopy((case.example_args, case.example_kwargs))
        program = lostwax.export(case.model, args, kwargs, dynamic_shapes=case.dynamic_shapes)
        check(program, case.example_args, case.example_kwargs)


def test_generated_programs() -> None:
    """Which of them are refused is not asked here."""
    wanted = sampled(20, 60)
    found = [*islice(accepted(map(generate, range(200))), wanted)]
    for generated, program in found:
        writes = program.graph_signature.parameters_to_mutate  # torch's module cannot do that
        check(program, generated.fresh()[1], peer=not writes and generated.seed % 3 == 0)
    assert len(found) == wanted


def accepted(programs: Iterable[Any], size: Any = None) -> Iterator[tuple[Any, Any]]:
    """Those that are exported, with their programs."""
    for generated in programs:
        module, args = generated.fresh()
        dims = tuple(
            dict.fromkeys(range(a.dim()), size) if isinstance(a, torch.Tensor) else None
            for a in args
        )
        try:
            yield generated, lostwax.export(module, args, dynamic_shapes=dims if size else None)
        except LostwaxError:
            continue


# ------------------------------------------------------------------------------------ dynamic sizes


def test_generated_programs_of_any_size() -> None:
    # the last ones have numbers that assertions and guards fix after they were recorded
    seeds = (*range(10), 41, 44, 56, 107, 28, 33, 51, 75, 98, 111, 152, 313, 579)
    found = [*accepted(map(sized_programs.generate, seeds), lostwax.Dim.AUTO)]
    for generated, program in found:
        writes = program.graph_signature.parameters_to_mutate
        check(program, generated.fresh()[1], peer=not writes and generated.seed % 4 == 0)
    assert len(found) > len(seeds) // 4


class Sizes(nn.Module):
    def forward(self, x, y):
        n, m = x.shape[0], y.shape[0]
        parts = x[: n // 2], torch.zeros(n + 2 * m, n % 3 + 1), y.repeat(2)[m:]
        return {"parts": parts, "n": n * m, "half": x * (n / 2)}


def test_symbols_guards_and_ranges() -> None:
    class Guarded(nn.Module):
        def forward(self, x, y):
            if x.shape[0] * 2 > y.shape[0]:
                return x.sum() + y
            return y

    args = (torch.randn(6), torch.randn(5))
    auto = ({0: lostwax.Dim.AUTO}, {0: lostwax.Dim.AUTO})
    check(lostwax.export(Sizes(), args, dynamic_shapes=auto), args)
    program = lostwax.export(Guarded(), args, dynamic_shapes=auto)
    assert len(program.guards) == 1
    check(program, args)
    again = lostwax.load(io.BytesIO(saved(program)))
    with pytest.raises(lostwax.errors.InputValueError, match="captured under the condition"):
        again.module()(torch.randn(2), torch.randn(5))
    assert again.guards[0].where == program.guards[0].where
    with pytest.raises(AssertionError, match="Guard failed"):  # with example inputs, as torch does
        peer_load(saved(program)).module()(torch.randn(2), torch.randn(5))


@pytest.mark.parametrize("size", [0, 1])
def test_an_example_that_torch_would_not_take(size: int) -> None:
    """It takes sizes for positive; ours may be 0 in the example, and any other in a call."""

    class Steps(nn.Module):
        def forward(self, x):
            return x[1:] - x[:-1], torch.cat([x, x]), torch.ones(x.shape[0] + 1) * (x.shape[0] / 2)

    program = lostwax.export(
        Steps(), (torch.randn(size, 3),), dynamic_shapes=({0: lostwax.Dim.AUTO},)
    )
    theirs = check(program, (torch.randn(size, 3),))
    for n in range(5):
        assert_runs_alike(program.module(), theirs.module(), (torch.randn(n, 3),), {})


def test_strides_of_inputs_with_gaps() -> None:
    """They are symbols, too, and nothing that a user declares."""

    class Twice(nn.Module):
        def forward(self, x):
            return x * 2

    x = torch.randn(8, 10)[:, :6]
    program = lostwax.export(Twice(), (x,), dynamic_shapes=({0: lostwax.Dim.AUTO},))
    assert [str(s) for s in program.range_constraints] == ["s0"]
    theirs = check(program, (x,))
    for y in (torch.randn(4, 9)[:, :6], torch.randn(3, 6)):
        assert_runs_alike(program.module(), theirs.module(), (y,), {})


def test_a_dim_that_torch_would_take_for_unbacked() -> None:
    """`u...` is reserved in torch's reader: the file has another name for it, ours comes back."""
    users = lostwax.Dim("users", min=1, max=9)
    program = lostwax.export(Sizes(), (torch.randn(4), torch.randn(4)), dynamic_shapes=(
        {0: users}, {0: users}))  # fmt: skip
    check(program, (torch.randn(5), torch.randn(5)))


class Unbacked(nn.Module):
    def forward(self, x, k):
        n = k.item()
        torch._check(n >= 0)
        torch._check(n <= x.shape[0])
        f = x.sum().item()
        return torch.ones(n) * f, torch.nonzero(x), n + 1


def test_numbers_of_data() -> None:
    args = (torch.randn(6), torch.tensor(4))
    check(lostwax.export(Unbacked(), args), args)
    program = lostwax.export(Unbacked(), args, dynamic_shapes=({0: lostwax.Dim.AUTO}, None))
    theirs = check(program, args)
    assert_runs_alike(program.module(), theirs.module(), (torch.randn(9), torch.tensor(8)), {})


class Loss(nn.Linear):
    def forward(self, x):
        return super().forward(x).pow(2).mean()


def test_a_program_with_its_gradients() -> None:
    x = torch.randn(4, 3)
    program = lostwax.export_joint(Loss(3, 2), (x,), dynamic_shapes=({0: lostwax.Dim.AUTO},))
    for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten.mean.default):
        node.meta["custom"] = {"stage": [1, {"last": True}]}
    data = saved(program)
    again = lostwax.load(io.BytesIO(data))
    assert_identical(program, again)
    assert saved(again) == data
    signature = peer_load(data).graph_signature.backward_signature
    assert set(signature.gradients_to_parameters.values()) == {"weight", "bias"}


class First(nn.Module):
    def forward(self, parts):
        return parts["plain"] + 1


def test_example_inputs_of_every_kind() -> None:
    r = torch.randn
    parts = {
        "plain": r(3), "leaf": r(3).requires_grad_(), "parameter": nn.Parameter(r(2)),
        "steps": r(4, 6)[::2, 1:4], "spread": r(1).expand(4), "brain": r(3).bfloat16(),
        "conjugated": r(3, dtype=torch.complex64).conj(), "small": r(4).to(torch.float8_e4m3fn),
        "unsigned": torch.tensor([1, 7], dtype=torch.uint16), "empty": torch.empty(0, 3),
        "others": [1, 2.5, True, "text", None, (torch.tensor(3),)],
    }  # fmt: skip
    program = lostwax.export(First(), (parts,))
    again = lostwax.load(io.BytesIO(saved(program)))
    assert_same(again.example_inputs, program.example_inputs)
    for name, want in parts.items():
        found = again.example_inputs[0][0][name]
        assert type(found) is type(want)
        if isinstance(want, torch.Tensor):
            assert found.stride() == want.stride(), name
            assert found.requires_grad == want.requires_grad, name


class _Rounding(nn.Linear):
    def forward(self, x):
        return Rounded.apply(super().forward(x))


def test_a_backward_of_its_own_is_ours_alone(tmp_path) -> None:
    """Files keep it for us; torch, which has no form for it, gets the program without it."""
    program = lostwax.export(_Rounding(3, 3), (torch.ones(2, 3),))
    with pytest.warns(UserWarning, match="a backward of its own"):
        lostwax.save(program, tmp_path / "rounded.pt2", metadata="full")
    again = lostwax.load(tmp_path / "rounded.pt2")
    assert_identical(program, again)
    x = torch.randn(2, 3, requires_grad=True)
    (want,) = torch.autograd.grad(program.module()(x).sum(), x)
    (found,) = torch.autograd.grad(again.module()(x).sum(), x)
    assert torch.equal(found, want)
    assert want.any()
    theirs = torch.export.load(tmp_path / "rounded.pt2").module()
    torch.testing.assert_close(theirs(x), program.module()(x), rtol=0, atol=0)
    there = lostwax.interop.to_torch(program)
    assert not any("with_gradient" in str(n.target) for n in there.graph.nodes)


class _Optional(nn.Linear):
    def forward(self, x, /, n: int = 2, *rest, scale: float = 0.5, mode=None, **more):
        return super().forward(x) * n * scale


def test_the_originals_arguments_and_mode_are_kept(tmp_path) -> None:
    program = lostwax.export(_Optional(3, 3).eval(), (torch.ones(2, 3),))
    lostwax.save(program, tmp_path / "p.pt2")
    module = lostwax.load(tmp_path / "p.pt2").module()
    assert inspect.signature(module.forward) == inspect.signature(program.module().forward)
    assert not module.training
    x = torch.ones(2, 3)
    torch.testing.assert_close(module(x, 2, scale=0.5), program.module()(x))


@pytest.mark.parametrize(
    "arguments",
    [
        [{"name": "not a name", "kind": "KEYWORD_ONLY"}],
        [{"name": "x", "kind": "ODD"}],
        [{"name": "x", "kind": "KEYWORD_ONLY", "default": [1]}],
        [{"kind": "KEYWORD_ONLY"}],
        [{"name": "x", "kind": "KEYWORD_ONLY"}] * 2,
        ["x"],
        3,
    ],
)
def test_arguments_that_no_function_has_are_refused(arguments) -> None:
    program = lostwax.export(lambda x: x, (torch.ones(2),))
    with pytest.raises(LoadError, match="not those of a function"):
        original.read({"training": None, "arguments": arguments}, program)
    with pytest.raises(LoadError, match="neither true nor false"):
        original.read({"training": 3, "arguments": None}, program)


def test_state_of_a_file_is_no_view_of_its_bytes() -> None:
    class Asks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kept", torch.ones(2))
            self.register_buffer("passing", torch.ones(2), persistent=False)

        def forward(self, x):
            are_views = [b._base is not None for b in (self.kept, self.passing)]
            return x * self.kept * self.passing * (2 if any(are_views) else 1)

    x = torch.ones(2)
    loaded = lostwax.load(io.BytesIO(saved(lostwax.export(Asks(), (x,))))).module()
    assert all(b._base is None for b in loaded.buffers())
    torch.testing.assert_close(loaded(x), Asks()(x))


LISTS = torch.library.Library("lostwax_lists", "DEF")
for schema, compute in {
    "after(Tensor x) -> (Tensor, Tensor[])": lambda x: (x + 1, [x * 2, x * 3]),
    "before(Tensor x) -> (Tensor[], Tensor)": lambda x: ([x * 2, x * 3], x + 1),
    "two(Tensor x) -> (Tensor[], Tensor[])": lambda x: ([x * 2], [x * 3, x * 4]),
    "none(Tensor x) -> (Tensor, Tensor[])": lambda x: (x + 1, []),
}.items():
    LISTS.define(schema)
    LISTS.impl(schema.split("(")[0], compute, "CompositeExplicitAutograd")


@pytest.mark.parametrize(
    ("read", "peer"),
    [
        (lambda x: torch.ops.lostwax_lists.after(x)[0], True),
        (lambda x: torch.ops.lostwax_lists.after(x)[1][1], True),
        (lambda x: torch.ops.lostwax_lists.after(x), True),
        (lambda x: torch.ops.lostwax_lists.before(x)[0][1], True),
        # torch's reader calls the list itself `getitem`, which is the name of what is read
        (lambda x: torch.ops.lostwax_lists.before(x)[1], False),
        (lambda x: torch.ops.lostwax_lists.two(x)[0][0], True),
        (lambda x: torch.ops.lostwax_lists.two(x)[1][0], False),
        (lambda x: torch.ops.lostwax_lists.none(x)[0], True),
    ],
)
def test_lists_among_results_read_or_not(read: Any, peer: bool) -> None:
    x = torch.randn(3)
    check(lostwax.export(read, (x,)), (x,), peer=peer)
