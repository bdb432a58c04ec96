"""`unflatten`: the modules of a program back, with their names, their state and their calls."""

from __future__ import annotations

import re
import sys
from collections import OrderedDict, namedtuple
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from examples.models import MODELS
from lostwax import Dim, FlatArgsAdapter, InterpreterModule, UnflattenedModule, export, unflatten
from lostwax.errors import InputStructureError, InputValueError, SwapError, VerificationError
from tests.capture.compare import aliasing, differences, run
from tests.capture.small import Of

X = torch.randn(2, 3)


def both(module: nn.Module, *args: Any, times: int = 2, **options: Any) -> UnflattenedModule:
    """Export and unflatten; the result must do what the module does, twice in a row."""
    made = unflatten(export(deepcopy(module), deepcopy(args), **options))
    eager = deepcopy(module)
    assert list(made.state_dict()) == list(eager.state_dict())
    kept, made = made, deepcopy(made)  # a copy runs as well, and leaves the first alone
    for again in range(times):
        want, got = run(eager, deepcopy(args), again), run(made, deepcopy(args), again)
        assert not (wrong := differences(got, want) + aliasing(got, want)), "\n".join(wrong)
    return kept


# ------------------------------------------------------------------------------------- real models


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = MODELS[name].tiny(), MODELS[name].tiny_inputs()
    program = export(model, inputs)
    made = unflatten(program)
    assert [n for n, _ in made.named_modules()] == [n for n, _ in model.named_modules()]
    torch.manual_seed(0)
    got = made(*inputs)
    torch.manual_seed(0)
    want = model(*inputs)
    torch.testing.assert_close(got, want)
    state, eager = made.state_dict(), model.state_dict()
    assert list(state) == list(eager)
    for key, value in eager.items():  # batch norm has counted
        torch.testing.assert_close(state[key], value)
    loss, eager_loss = (sum(t.float().sum() for t in _tensors(r)) for r in (got, want))
    loss.backward()
    eager_loss.backward()
    for (key, ours), theirs in zip(made.named_parameters(), model.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None), key
        if theirs.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5, msg=key)


def _tensors(result: Any) -> list[Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, Tensor)]


# ------------------------------------------------------------------------------------ the hierarchy


def test_containers_names_and_text() -> None:
    net = Of(
        lambda self, x: self.seq(self.list[1](self.dict["a"](x))),
        seq=nn.Sequential(nn.Linear(3, 4), nn.ReLU()),
        list=nn.ModuleList([nn.Tanh(), nn.Linear(3, 3)]),
        dict=nn.ModuleDict({"a": nn.Linear(3, 3)}),
    )
    made = both(net, X)
    assert isinstance(made.seq[0], InterpreterModule)
    assert made.get_submodule("list.1") is made.list[1]
    assert made.list[-1] is made.list[1]
    assert made.dict["a"] is made.dict.a
    assert [len(made.seq), len(made.list), bool(made.list[0])] == [2, 2, True]
    assert list(made.seq) == [made.seq[0], made.seq[1]]
    with pytest.raises(IndexError):
        made.seq[2]
    text = made.print_readable(print_output=False)
    assert 'list_1: "f32[2, 3]" = self.list[1](dict_a)' in text
    assert re.search(r'class seq\(.*\n.*def forward\(self, addmm_1: "f32\[2, 3\]"\)', text)
    assert made.seq.print_readable(print_output=False).startswith("class InterpreterModule")
    torch.testing.assert_close(made.seq(X), made.seq[1](made.seq[0](X)))


def test_tied_weights_and_shared_modules() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 3)
            self.block = nn.Sequential(nn.Linear(3, 3))
            self.again = self.block
            self.head = nn.Linear(3, 5, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, i: Tensor) -> Tensor:
            return self.head(self.again(self.block(self.embed(i)).relu()))

    made = both(Tied(), torch.tensor([1, 4]))
    assert made.head.weight is made.embed.weight
    assert made.again is made.block
    assert len(made.block.bodies) == 2
    assert len({id(b) for b in made.block.bodies.values()}) == 1  # both calls do the same
    made(torch.tensor([1, 4])).sum().backward()
    assert made.embed.weight.grad is not None


def test_calls_that_differ_have_graphs_of_their_own() -> None:
    class Either(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(3, 3)

        def forward(self, x: Tensor, flip: bool) -> Any:
            return (self.lin(x), x.sin()) if flip else self.lin(x) * 2

    def forward(self: Any, x: Tensor) -> Tensor:
        a, b = self.either(x, True)
        return self.either(a + b, False) + self.either.lin(x)

    for preserved in ((), ("either",), ("either", "either.lin")):
        made = both(Of(forward, either=Either()), X, preserve_module_call_signature=preserved)
        forms = made.either, getattr(made, "either@1", made.either)
        assert (forms[0] is forms[1]) == bool(preserved)
        assert len({id(b) for form in forms for b in form.bodies.values()}) == 2
        assert len({id(b) for b in made.either.lin.bodies.values()}) == 1
        assert len(list(made.parameters())) == 2


def test_modules_called_from_elsewhere() -> None:
    class User(nn.Module):
        def forward(self, x: Tensor, tool: nn.Module) -> Tensor:
            return tool(x) + 1

    class Inner(nn.Module):
        def forward(self, x: Tensor, weight: Tensor) -> Tensor:
            return x * weight

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.user, self.tool, self.inner = User(), nn.Linear(3, 3), Inner()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(self.user(x, self.tool), self.tool.bias)

    made = both(Net(), X)
    with pytest.raises(SwapError, match=r"calls 'tool', which is not a part of it"):
        made.user(X)
    made.tool = nn.Linear(3, 3)
    again = made(X)
    made.tool = nn.Linear(3, 3)
    assert not torch.equal(again, made(X))


# ------------------------------------------------------------------------------------------- writes


class Counter(nn.Module):
    """Updates a buffer and reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))
        self.register_buffer("passing", torch.ones(3), persistent=False)
        self.table = torch.arange(3.0)

    def forward(self, x: Tensor) -> Tensor:
        self.count += x.mean(0).detach() + self.table
        self.passing.mul_(2)
        return x * self.count + self.passing


def test_buffers_are_written_where_they_lie() -> None:
    made = both(Of(lambda self, x: self.b(self.a(x)), a=Counter(), b=Counter()), X)
    assert "copy_" in made.a.print_readable(print_output=False)
    assert "copy_" not in str(made.graph)
    made = both(Of(lambda self, x: self.a(self.a(x)), a=Counter()), X)
    assert float(made.a.count.sum()) == 0  # a program's module starts from the program's state
    x = X.clone().requires_grad_()
    made(x).sum().backward()


def test_what_is_read_after_a_write_is_right() -> None:
    def after(self: Any, x: Tensor) -> Any:
        old = self.a.count
        self.a.count = self.a.count + 1
        y = self.a(x)
        return y, old, self.a.count, self.a.count[1:]

    both(Of(after, a=Counter()), X)

    class Returns(Counter):
        def forward(self, x: Tensor) -> Any:
            before = self.count.clone()
            super().forward(x)
            return before, self.count, self.passing.view(1, 3)

    both(Of(lambda self, x: self.a(x), a=Returns()), X)
    both(Of(lambda self, x: self.a(x), a=Returns()), X, preserve_module_call_signature=("a",))


def test_inputs_are_written() -> None:
    class Writes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x[:, 1:].mul_(3)
            return x[0]

    def forward(self: Any, x: Tensor, y: Tensor) -> Any:
        z = x + 1
        a = self.w(z.t())
        return self.w(y), a, z

    for preserved in ((), ("w",)):
        both(
            Of(forward, w=Writes()), X, torch.randn(2, 3), preserve_module_call_signature=preserved
        )
        relu = Of(lambda self, x: self.r(x[1:]) + x[0], r=nn.ReLU(inplace=True))
        both(relu, torch.randn(3, 3), preserve_module_call_signature=preserved and ("r",))


def test_outputs_that_are_inputs_state_or_constants() -> None:
    class Through(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor, n: int) -> Any:
            return {"x": x, "w": self.w, "n": n, "none": None, "y": x + self.w}

    def forward(self: Any, x: Tensor) -> Any:
        out = self.t(x, 3)
        return out, out["x"] + out["y"], self.t(out["y"], 4)["y"]

    for preserved in ((), ("t",)):
        both(Of(forward, t=Through()), X, preserve_module_call_signature=preserved)


def test_random_numbers_and_modules_without_results() -> None:
    class Draws(nn.Module):
        def forward(self, x: Tensor) -> None:
            torch.rand(2)

    net = Of(lambda self, x: (self.d(x), self.drop(x))[1], d=Draws(), drop=nn.Dropout(0.5))
    both(net, X)


# ------------------------------------------------------------------------------- dynamic dimensions


def test_sizes_between_modules() -> None:
    class Half(nn.Module):
        def forward(self, x: Tensor, n: int) -> tuple[Tensor, int]:
            return x.expand(n, 4)[: n // 2], n // 2

    class Rows(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.reshape(-1).repeat(x.shape[0] + 1)

    class Fill(nn.Module):
        def forward(self, n: int) -> Tensor:
            return torch.arange(n * 2)

    def forward(self: Any, x: Tensor, y: Tensor) -> Any:
        half, n = self.halves(y, x.shape[0])
        return self.rows(half), self.fill(n), n

    net = Of(forward, halves=Half(), rows=Rows(), fill=Fill())
    args = (torch.randn(6, 1), torch.randn(1, 4))
    for preserved in ((), ("halves", "rows", "fill")):
        program = export(
            net,
            args,
            dynamic_shapes=({0: Dim("n", min=2, max=64)}, None),
            preserve_module_call_signature=preserved,
        )
        made = unflatten(program)
        for n in (6, 2, 9):
            new = torch.randn(n, 1)
            torch.testing.assert_close(made(new, args[1]), net(new, args[1]))


# --------------------------------------------------------------------------------- swapping modules


Pair = namedtuple("Pair", ["first", "second"])


class Original(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, pair: Pair, scale: float, *, extra: Any) -> Any:
        return OrderedDict(out=self.norm(self.lin(pair.first)) * scale + extra[0], same=pair.second)


class Replacement(nn.Module):
    def forward(self, pair: Pair, scale: float, *, extra: Any) -> Any:
        assert isinstance(pair, Pair)
        assert (scale, type(extra)) == (0.5, list)
        return OrderedDict(out=pair.first + extra[0], same=pair.second)


def _uses(self: Any, x: Tensor) -> Tensor:
    got = self.block(Pair(x, x + 1), 0.5, extra=[x])
    return self.block(Pair(got["out"], x), 0.5, extra=[x])["out"]


def test_a_preserved_module_is_exchanged() -> None:
    net = Of(_uses, block=Original())
    made = both(net, X, preserve_module_call_signature=("block",))
    out = made.block(Pair(X, X), extra=[X], scale=0.5)
    assert list(out) == ["out", "same"]
    made.block = Replacement()
    net.block = Replacement()
    torch.testing.assert_close(made(X), net(X))


def test_inner_modules_are_exchanged_and_wrapped() -> None:
    class Double(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return 2 * self.inner(x)

    net = Of(_uses, block=Original())
    made = unflatten(export(deepcopy(net), (X,)))  # one value in, one out: no need to preserve
    made.block.lin = Double(made.block.lin)
    net.block.lin = Double(net.block.lin)
    torch.testing.assert_close(made(X), net(X))
    net = Of(
        lambda self, x: self.layers[1](self.layers[0](x)), layers=nn.ModuleList([nn.Tanh()] * 2)
    )
    made = unflatten(export(net, (X,)))
    made.layers[0] = nn.Sigmoid()
    torch.testing.assert_close(made(X), X.sigmoid().sigmoid())


def test_a_wrong_result_is_refused() -> None:
    made = unflatten(
        export(Of(_uses, block=Original()), (X,), preserve_module_call_signature=("block",))
    )
    made.block = Of(lambda self, pair, scale, extra: pair.first)
    with pytest.raises(InputStructureError, match="'block' returned another structure") as error:
        made(X)
    assert "OrderedDict({'out': *, 'same': *})" in str(error.value)


class Leaks(nn.Module):
    """Writes to its argument: the caller reads that later."""

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(2)
        return x + 1


def test_what_another_module_cannot_give_is_named() -> None:
    net = Of(lambda self, x: self.leaks(z := x + 0) + z, leaks=Leaks())
    made = both(net, X, preserve_module_call_signature=("leaks",))
    made.leaks = nn.Identity()
    with pytest.raises(
        SwapError, match=r"add_\d reads mul, which the original module 'leaks' comp"
    ):
        made(X)


def test_a_module_that_computed_nothing_is_not_exchanged_in_silence() -> None:
    net = Of(lambda self, x: self.drop(self.lin(x)) + 1, drop=nn.Dropout(), lin=nn.Linear(3, 3))
    made = both(net.eval(), X, preserve_module_call_signature=("drop", "lin"))
    made.drop = nn.Identity()
    with pytest.raises(SwapError, match="'drop' was exchanged, but nothing calls it"):
        made(X)


def test_a_module_that_needs_more_does_not_run_alone() -> None:
    outer = nn.Linear(3, 3)

    class Closure(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x @ outer.weight

    net = Of(lambda self, x: self.closure(self.outer(x)), closure=Closure(), outer=outer)
    made = unflatten(export(net, (X,), preserve_module_call_signature=("closure",)))
    torch.testing.assert_close(made(X), net(X))
    with pytest.raises(SwapError, match="it also reads p_outer_weight"):
        made.closure(X)
    made.closure = nn.Identity()
    torch.testing.assert_close(made(X), net.outer(X))


def test_hooks_run() -> None:
    made = both(Of(_uses, block=Original()), X, preserve_module_call_signature=("block",))
    seen = []
    made.block.register_forward_pre_hook(
        lambda m, args, kwargs: seen.append(sorted(kwargs)), with_kwargs=True
    )
    made.block.lin.register_forward_hook(lambda m, args, out: out * 0)
    made(X)
    assert seen == [["extra"], ["extra"]]
    assert not made.block.lin(X).any()


# ----------------------------------------------------------------------------------------- the call


class FromDict(FlatArgsAdapter):
    def adapt(self, target_spec, input_spec, input_args, metadata=None, obj=None):
        assert isinstance(obj, UnflattenedModule)
        (args, _) = torch.utils._pytree.tree_unflatten(input_args, input_spec)
        return [args[0][k] for k in ("x", "y") if k in args[0]]


def test_an_adapter_takes_another_structure() -> None:
    net = Of(lambda self, x, y: x - y)
    y = torch.randn(2, 3)
    made = unflatten(export(net, (X, y)), FromDict())
    torch.testing.assert_close(made({"y": y, "x": X}), X - y)
    torch.testing.assert_close(made(X, y), X - y)
    with pytest.raises(
        InputStructureError, match=r"FromDict\.adapt returned 1 values, the program"
    ):
        made({"x": X})
    with pytest.raises(InputStructureError):
        unflatten(export(net, (X, y)))({"y": y, "x": X})


def test_it_is_exported_again() -> None:
    net = Of(lambda self, x: self.b(self.a(x)), a=Counter(), b=nn.Linear(3, 3))
    again = both(unflatten(export(net, (X,))), X)
    assert [n for n, _ in again.named_modules()] == ["", "a", "b"]


def test_moves_and_casts() -> None:
    net = Of(lambda self, x: self.c(self.lin(x)) + torch.ones(3, device=x.device), c=Counter())
    net.lin = nn.Linear(3, 3)
    made = unflatten(export(net, (X,)))
    assert made.double()(X.double()).dtype is torch.float64
    moved = made.to("meta")
    assert moved(X.double().to("meta")).device.type == "meta"
    assert moved.c.table.device.type == "meta"


def test_an_error_names_the_line() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.lin(x)

    made = unflatten(export(Of(forward, lin=nn.Linear(3, 3)), (X,)))
    made.lin.weight = nn.Parameter(torch.ones(2, 2))
    with pytest.raises(RuntimeError) as error:
        made(X)
    assert re.fullmatch(
        r"while running addmm \(tests/\S+test_unflatten.py:\d+ in .*", error.value.__notes__[0]
    )


def test_a_written_input_that_newly_requires_gradients_is_refused() -> None:
    def write(m: nn.Module, x: Tensor) -> Tensor:
        x.detach().add_(1)
        return x.data

    made = unflatten(export(Of(write), (X.clone(),)))
    with pytest.raises(
        InputValueError, match="x requires gradient here, and required none at capture"
    ):
        made(X.clone().requires_grad_())


def test_a_signature_that_a_pass_broke_is_refused() -> None:
    program = export(Of(_uses, block=Original()), (X,), preserve_module_call_signature=("block",))
    for entry in program.module_call_graph:
        if entry.fqn == "block":
            entry.signature.outputs[0].name = "gone"
    with pytest.raises(VerificationError, match="'block' speaks of 'gone'"):
        unflatten(program)


def test_nodes_out_of_place_run_where_they_stand() -> None:
    """A pass may move a node out of the run of its module."""
    net = Of(lambda self, x: self.b(self.a(x)), a=nn.Linear(3, 3), b=nn.Linear(3, 3))
    program = export(net, (X,))
    nodes = {n.name: n for n in program.graph.nodes}
    nodes["t"].append(nodes["t_1"])  # b's transpose stands in a
    made = unflatten(program)
    torch.testing.assert_close(made(X), net(X))
    assert [n.name for n in made.a.graph.nodes if n.op == "call_function"] == ["t", "t_1", "addmm"]


def test_after_decomposing_signatures_hold() -> None:
    """Also where a module returns what nobody reads, and its operators are taken apart."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return torch.nn.functional.silu(self.lin(x)), torch.nn.functional.silu(x)

    net = Of(lambda self, x: self.two(x)[0] + 1, two=Two())
    program = export(net, (X,), preserve_module_call_signature=("two",)).run_decompositions()
    program.validate()
    made = unflatten(program)
    torch.testing.assert_close(made(X), net(X))
    torch.testing.assert_close(made.two(X), net.two(X))


class Nested(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.inner = Nested(depth - 1) if depth else nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + 1


def test_deeply_nested_modules() -> None:
    """As deep as Python lets the original be."""
    limit = sys.getrecursionlimit()
    model, x = Nested(150), torch.randn(3, 2)
    program = export(model, (x,))
    program.validate()
    module = unflatten(program)
    assert torch.equal(module(x), model(x))
    assert torch.equal(deepcopy(module)(x), model(x))
    assert module.print_readable(print_output=False).count("class ") == 152
    assert torch.equal(module.double()(x.double()), model.double()(x.double()))
    assert sys.getrecursionlimit() == limit


def test_state_stands_in_the_order_of_the_original() -> None:
    """Also what is not in the `state_dict`: users take buffers and parameters by their number."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, persistent in (("first", True), ("passing", False), ("last", True)):
                self.register_buffer(name, torch.zeros(3), persistent=persistent)
            self.passes = nn.Module()
            self.passes.register_buffer("n", torch.zeros(3), persistent=False)
            self.norm = nn.BatchNorm1d(3)
            self.norm.register_buffer("passing", torch.zeros(3), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(x) + self.first

    eager = Mixed()
    program = export(eager, (torch.randn(2, 3),))
    for made in (program.module(), unflatten(program)):
        assert [n for n, _ in made.named_buffers()] == [n for n, _ in eager.named_buffers()]
