"""Programs taken to core ATen and to other operator sets; eager execution judges them."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch.export import Dim

from examples.models import MODELS
from lostwax import default_decompositions, detect_fake_mode, export, torch_version
from lostwax.errors import DecompositionError, VerificationError
from lostwax.fake.symbolic.node import wrap
from lostwax.ir.decompose.core_aten import is_core
from lostwax.ir.graph.numbers import SeenNumbers
from lostwax.ir.program import ExportedProgram
from lostwax.ops.decompositions.whole import WHOLE
from lostwax.torch_version import TORCH
from tests.ir.build import Builder

aten = torch.ops.aten


def targets(program: ExportedProgram) -> list[Any]:
    return [n.target for n in program.graph.nodes if n.op == "call_function"]


def names(program: ExportedProgram) -> list[str]:
    return [n.name for n in program.graph.nodes]


def left(program: ExportedProgram) -> set[str]:
    """The operators that are not core."""
    return {str(t) for t in targets(program) if isinstance(t, OpOverload) and not is_core(t)}


def outputs(program: ExportedProgram, *inputs: Tensor) -> Any:
    return program.module()(*[x.clone() for x in inputs])


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.norm(self.up(x)))


@pytest.fixture(scope="module")
def block() -> tuple[nn.Module, ExportedProgram]:
    torch.manual_seed(0)
    model = Block().eval()
    return model, export(model, (torch.randn(3, 4),))


# ----------------------------------------------------------------------------------- the result


def test_a_program_in_core_aten(block: Any) -> None:
    model, program = block
    before = str(program)
    core = program.run_decompositions()
    core.validate()
    assert left(core) == set()
    assert [n for n in names(core) if n in names(program)] == [
        *("p_up_weight", "p_up_bias", "p_norm_weight", "p_norm_bias", "x"),
        *("addmm", "native_layer_norm", "getitem", "output"),
    ]
    assert str(program) == before
    x = torch.randn(3, 4)
    torch.testing.assert_close(outputs(core, x), model(x))


def test_the_signature_speaks_of_the_new_nodes(block: Any) -> None:
    _, program = block
    core = program.run_decompositions()
    assert program.graph_signature.user_outputs == ("silu",)
    assert core.graph_signature.user_outputs == ("mul",)
    assert core.graph_signature.input_specs == program.graph_signature.input_specs
    (root,) = (e.signature for e in core.module_call_graph if e.fqn == "")
    assert root is not None
    assert [a.name for a in root.outputs] == ["mul"]


def test_new_nodes_say_where_they_come_from(block: Any) -> None:
    _, program = block
    core = program.run_decompositions()
    silu = next(n for n in program.graph.nodes if n.name == "silu")
    made = [n for n in core.graph.nodes if n.name in ("sigmoid", "mul")]
    assert len(made) == 2
    for node in made:
        assert node.meta["decomposed_from"] == (("silu", aten.silu.default),)
        for key in ("stack_trace", "nn_module_stack", "source_fn_stack"):
            assert node.meta[key] == silu.meta[key]
        assert "F.silu(self.norm(self.up(x)))" in node.meta["stack_trace"]


def test_a_second_time_adds_to_where_they_come_from() -> None:
    program = export(lambda x: torch.hypot(x, x), (torch.ones(2),))
    first = program.run_decompositions({aten.hypot.default: lambda a, b: F.mish(a + b)})
    core = first.run_decompositions()
    tanh = next(n for n in core.graph.nodes if n.target is aten.tanh.default)
    assert tanh.meta["decomposed_from"] == (
        ("hypot", aten.hypot.default),
        ("mish", aten.mish.default),
    )


COMPOSITES: dict[str, tuple[OpOverload, Callable[..., Any], tuple[Tensor, ...]]] = {
    "linear": (aten.linear.default, F.linear, (torch.ones(2, 3), torch.ones(5, 3), torch.ones(5))),
    "conv2d": (
        aten.conv2d.default,
        lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1),
        (torch.ones(1, 3, 6, 6), torch.ones(4, 3, 3, 3), torch.ones(4)),
    ),
    "layer_norm": (
        aten.layer_norm.default,
        lambda x, w: F.layer_norm(x, (4,), w),
        (torch.arange(8.0).view(2, 4), torch.full((4,), 2.0)),
    ),
    "batch_norm": (
        aten.batch_norm.default,
        F.batch_norm,
        (torch.arange(12.0).view(2, 3, 2), torch.ones(3), torch.full((3,), 2.0)),
    ),
    "attention": (
        aten.scaled_dot_product_attention.default,
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        tuple(torch.linspace(-1, 1, 48).view(1, 2, 3, 8) * s for s in (1, 2, 3)),
    ),
}


@pytest.mark.parametrize("name", COMPOSITES)
def test_kept_composites_are_taken_apart(name: str) -> None:
    overload, function, inputs = COMPOSITES[name]
    program = export(function, inputs, keep=[overload])
    assert overload in targets(program)
    core = program.run_decompositions()
    core.validate()
    assert left(core) == set()
    torch.testing.assert_close(outputs(core, *inputs), function(*inputs))


def test_statistics_of_a_batch_norm_in_training() -> None:
    torch.manual_seed(0)
    model = nn.BatchNorm2d(3, momentum=0.3)
    x = 5 + 3 * torch.randn(4, 3, 5, 5)
    core = export(model, (x,)).run_decompositions()
    assert left(core) == {"aten.detach.default"}  # to autograd they depend on nothing
    module = core.module()
    torch.testing.assert_close(module(x), model(x))
    torch.testing.assert_close(dict(module.named_buffers()), dict(model.named_buffers()))


def test_statistics_of_a_batch_norm_have_no_gradient() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    module = export(model, (torch.randn(4, 3),)).run_decompositions().module()
    for _ in range(2):
        module(torch.randn(4, 3)).sum().backward()
    assert not any(buffer.requires_grad for buffer in module.buffers())


def test_gradients_are_as_before(block: Any) -> None:
    model, program = block
    module = program.run_decompositions().module()
    x = torch.randn(3, 4)
    model(x).sum().backward()
    module(x).sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(dict(module.named_parameters())[name].grad, parameter.grad)
    model.zero_grad()


def test_what_was_filled_in_keeps_its_gradient() -> None:
    def forward(x: Tensor, y: Tensor) -> Tensor:
        z = x * 2
        z[0] = y.sum()
        return z * z

    def gradients(module: Callable[..., Any]) -> Any:
        x, y = torch.ones(3, 4, requires_grad=True), torch.arange(3.0).requires_grad_()
        return torch.autograd.grad(module(x, y).sum(), (x, y))

    args = (torch.ones(3, 4, requires_grad=True), torch.ones(3, requires_grad=True))
    core = export(forward, args).run_decompositions()
    assert left(core) == set()
    torch.testing.assert_close(gradients(core.module()), gradients(forward))


def test_windows_are_those_of_any_strides() -> None:
    """torch's own decomposition would have the strides of the example in the graph."""
    program = export(lambda x: (x * 1).unfold(1, 2, 1) + x.unfold(1, 2, 1), (torch.ones(5, 4),))
    run = program.run_decompositions().module()
    for x in (torch.randn(4, 5).t(), torch.randn(1, 4).expand(5, 4), torch.randn(10, 9)[::2, 1:5]):
        assert torch.equal(run(x), x.unfold(1, 2, 1) * 2)


def test_random_numbers_are_those_of_eager() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.SiLU()).train()
    x = torch.randn(3, 4)
    core = export(model, (x,)).run_decompositions()
    assert left(core) <= {"aten.bernoulli.p", "aten.detach.default"}
    torch.manual_seed(1)
    wanted = model(x)
    torch.manual_seed(1)
    torch.testing.assert_close(core.module()(x), wanted)


def test_conjugates_inside_a_decomposition() -> None:
    """A conjugate has the type of what it is a view of, and is something else all the same."""
    x, y = torch.randn(2, 3, dtype=torch.complex64)

    def dot(x: Tensor, y: Tensor) -> Tensor:
        return (x.conj() * y).sum() + torch._neg_view(y).sum() * 0.5

    def forward(x: Tensor, y: Tensor) -> Tensor:
        return torch.vdot(x, y)

    program = export(forward, (x, y)).run_decompositions({torch.ops.aten.vdot.default: dot})
    torch.testing.assert_close(program.module()(x, y), dot(x, y))


def test_strides_of_results_stay() -> None:
    x = torch.randn(2, 8, 4, 4).to(memory_format=torch.channels_last)

    def forward(x: Tensor) -> Any:
        return F.hardswish(x), torch.masked_fill(x, x > 0, 1.0), F.pixel_shuffle(x, 2)

    core = export(forward, (x,)).run_decompositions()
    for out, wanted in zip(outputs(core, x), forward(x), strict=True):
        assert out.stride() == wanted.stride()


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", ["llama", "swin", "lstm", "efficientnet"])
def test_models(name: str, dynamic: bool) -> None:
    example = MODELS[name]
    torch.manual_seed(0)
    model, inputs = example.tiny().eval(), example.tiny_inputs()
    sizes = tuple({d: Dim(n, min=1, max=64) for d, n in dims.items()} for dims in example.dynamic)
    program = export(model, inputs, dynamic_shapes=sizes if dynamic else None)
    core = program.run_decompositions()
    core.validate()
    assert left(core) == set()
    assert core.range_constraints == program.range_constraints
    assert core.guards == program.guards
    module = core.module()
    if dynamic:
        for d in example.dynamic[0]:
            inputs = tuple(torch.cat([x] * 2, d).narrow(d, 0, 3) for x in inputs)
    with torch.no_grad():
        torch.testing.assert_close(module(*inputs), model(*inputs), rtol=1e-4, atol=1e-4)


OF_ANY_SIZE: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "dropout": (lambda x: F.dropout(x, 0.5), 3),
    "nearest 1-d": (lambda x: F.interpolate(x, scale_factor=2.0), 3),
    "nearest 1-d, a fraction": (lambda x: F.interpolate(x, scale_factor=1.7), 3),
    "linear": (lambda x: F.interpolate(x, scale_factor=2.0, mode="linear"), 3),
    "linear, corners": (
        lambda x: F.interpolate(x, scale_factor=1.7, mode="linear", align_corners=True),
        3,
    ),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2.0), 4),
    "bilinear": (lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"), 4),
    "to a size": (lambda x: F.interpolate(x, size=(x.shape[-1] + 3, 7), mode="bilinear"), 4),
}


@pytest.mark.parametrize("name", OF_ANY_SIZE)
def test_core_aten_of_any_size(name: str) -> None:
    function, rank = OF_ANY_SIZE[name]
    least = 0 if name == "dropout" else 1
    sizes = ({d: Dim(f"n{d}", min=least) for d in range(rank)},)
    program = export(function, (torch.randn(3, 4, 5, 6)[(0,) * (4 - rank)],), dynamic_shapes=sizes)
    core = program.run_decompositions()
    core.validate()
    assert left(core) <= {"aten.bernoulli.p", "aten.detach.default"}
    for size in ((3, 4, 5, 6), (2, 7, 3, 9)):
        x = torch.randn(size[-rank:])
        torch.manual_seed(0)
        wanted = function(x)
        torch.manual_seed(0)
        torch.testing.assert_close(core.module()(x), wanted)


def test_sizes_are_computed_by_nodes_that_are_there() -> None:
    """`x.roll` needs the size; the program has it already."""
    program = export(
        lambda x: (x.new_zeros(x.shape[0] * 2), x.roll(1, 0)),
        (torch.arange(5.0),),
        dynamic_shapes=({0: Dim("n", min=1)},),
    )
    core = program.run_decompositions()
    core.validate()
    assert targets(core).count(aten.sym_size.int) == 1
    for n in (1, 2, 7):
        x = torch.arange(float(n))
        zeros, rolled = outputs(core, x)
        assert zeros.shape == (2 * n,)
        assert rolled.tolist() == x.roll(1, 0).tolist()


def test_sub_graphs_are_taken_apart() -> None:
    b = Builder()
    x = b.input("x", torch.ones(2, 3))
    program = b.program([b.call(aten.neg.default, x)])
    inner = fx.Graph()
    a = inner.placeholder("a")
    a.meta["val"] = x.meta["val"]
    silu = inner.call_function(aten.silu.default, (a,))
    silu.meta.update(program.graph.output_node().args[0][0].meta)
    inner.output((silu,))
    program.graph_module.true_graph = fx.GraphModule(nn.Module(), inner)
    with program.graph.inserting_after(x):
        program.graph.get_attr("true_graph")
    child = program.run_decompositions().graph_module.true_graph
    assert [n.target for n in child.graph.nodes if n.op == "call_function"] == [
        aten.sigmoid.default,
        aten.mul.Tensor,
    ]
    assert silu in inner.nodes


def test_which_numbers_a_graph_can_compute() -> None:
    """In a sub-graph, where nothing gives the size that an expansion needs, the operator stays."""
    b = Builder()
    x = b.input("x", torch.ones(4, 2), sizes=(wrap(b.env.symbol("n", hint=4)), 2))
    known = SeenNumbers(b.graph.call_function)
    size = x.meta["val"].fake_type.size[0]
    assert not known.is_known(size + 1)
    known.note(x, x.meta["val"])
    assert known.is_known(size + 1)


def test_backward_graphs_are_taken_apart() -> None:
    class Gate(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return F.silu(x)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
            return 2 * gradient * F.silu(*ctx.saved_tensors)

    x = torch.randn(3, requires_grad=True)
    core = export(lambda x: Gate.apply(x) * 3, (x,)).run_decompositions()
    core.validate()
    for module in core.graph_module.modules():
        if isinstance(module, fx.GraphModule):
            assert aten.silu.default not in [n.target for n in module.graph.nodes]
    (wanted,) = torch.autograd.grad((Gate.apply(x) * 3).sum(), x)
    (got,) = torch.autograd.grad(core.module()(x).sum(), x)
    torch.testing.assert_close(got, wanted)


def test_graphs_that_write_in_place() -> None:
    """Nothing is shared across a write, and what writes stays."""
    b = Builder()
    counter = b.buffer("counter", torch.ones(2))
    first = b.call(aten.silu.default, counter)
    b.call(aten.add_.Tensor, counter, 1)
    second = b.call(aten.silu.default, counter)
    program = replace(b.program([first, second]), dialect="TRAINING")
    core = program.run_decompositions()
    core.validate()
    assert left(core) == {"aten.add_.Tensor"}
    wanted = F.silu(torch.ones(2)), F.silu(torch.full((2,), 2.0))
    torch.testing.assert_close(tuple(core.module()()), wanted)


@pytest.mark.parametrize("cls", [nn.LSTM, nn.GRU])
def test_kept_recurrent_layers(cls: Any) -> None:
    model, x = cls(3, 4, bidirectional=True).eval(), torch.randn(5, 2, 3)
    program = export(model, (x,), keep=[aten.lstm.input, aten.gru.input])
    core = program.run_decompositions()
    assert left(program)
    # Its kernel of C++ asks for plain sizes before torch 2.13: it stays whole there.
    assert left(core) == (set() if TORCH >= (2, 13) or cls is nn.GRU else {"aten.lstm.input"})
    torch.testing.assert_close(outputs(core, x), model(x))


def test_writes_inside_an_operator_have_gradients() -> None:
    model, x = nn.LSTMCell(3, 4), torch.randn(2, 3)
    core = export(model, (x,), keep=[aten.lstm_cell.default]).run_decompositions()
    ours = core.module()
    for each in (model, ours):
        sum(t.sum() for t in each(x)).backward()
    torch.testing.assert_close(ours.weight_ih.grad, model.weight_ih.grad)


def test_writes_into_another_layout_have_gradients() -> None:
    """torch's `index_fill` copies into what lies as its argument does; `copy` has none."""
    x = torch.randn(6, 4).t().requires_grad_()
    program = export(lambda x: x.index_fill(1, torch.tensor([0, 2]), 7.0) * 2, (x,))
    out = program.run_decompositions().module()(x)
    (found,) = torch.autograd.grad(out.sum(), x)
    assert found[0].tolist() == [0, 2, 0, 2, 2, 2]
    assert out.stride() == (1, 4)


def test_writes_into_any_strides_have_gradients() -> None:
    """The same, where no order of the dimensions is row-major: one of size 1 lies askew."""
    strides = (1, 8, 4, 8)
    x = torch.empty_strided((4, 1, 2, 4), strides).normal_().requires_grad_()
    program = export(lambda x: x.index_fill(3, torch.tensor([0, 2]), 7.0) * 2, (x,))
    out = program.run_decompositions().module()(x)
    (found,) = torch.autograd.grad(out.sum(), x)
    assert found[0, 0, 0].tolist() == [0, 2, 0, 2]
    assert out.stride()[::2] == strides[::2]  # torch 2.11 does not keep that of size 1
    assert out.stride(3) == strides[3]


def test_a_factory_inside_a_decomposition_is_not_detached() -> None:
    """`empty_like` of columns is a view of what is made: held by a step, C++ would detach it."""

    def doubled(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        out.copy_(x * 2)
        return out

    x = torch.randn(6, 4).t().requires_grad_()
    program = export(F.relu6, (x,), keep=[aten.relu6.default])
    table = default_decompositions()
    table[aten.relu6.default] = doubled
    core = program.run_decompositions(table)
    assert aten.detach.default not in {node.target for node in core.graph.nodes}
    (found,) = torch.autograd.grad(core.module()(x).sum(), x)
    assert torch.equal(found, torch.full((4, 6), 2.0))


def test_defaults_of_writes_inside_an_operator() -> None:
    program = export(nn.AlphaDropout(0.5), (torch.ones(3),), keep=[aten.alpha_dropout.default])
    assert left(program)
    core = program.run_decompositions()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        want = nn.AlphaDropout(0.5)(torch.ones(3))
        torch.manual_seed(0)
        torch.testing.assert_close(outputs(core, torch.ones(3)), want)


# ---------------------------------------------------------------------------- as little as possible


def test_an_expansion_is_recorded_once_for_each_distinct_call() -> None:
    seen: list[Any] = []

    def silu(x: Tensor) -> Any:
        seen.append(tuple(x.shape))
        return x * torch.sigmoid(x)

    def forward(x: Tensor, y: Tensor) -> Any:
        for _ in range(10):
            x, y = F.silu(x), F.silu(y)
        return x, y

    table = default_decompositions()
    table[aten.silu.default] = silu
    inputs = (torch.randn(2, 3), torch.randn(4))
    core = export(forward, inputs).run_decompositions(table)
    # The last of each is a result: it may not share memory with what it is made of.
    assert sorted(set(seen)) == [(2, 3), (4,)]
    assert len(seen) == 4
    assert targets(core).count(aten.sigmoid.default) == 20
    torch.testing.assert_close(outputs(core, *inputs), forward(*inputs))


def test_what_expansions_compute_twice_is_shared() -> None:
    core = export(lambda x: F.silu(x) + F.silu(x).exp() + x.sigmoid(), (torch.ones(2),))
    assert targets(core.run_decompositions()).count(aten.sigmoid.default) == 1


def test_sizes_that_only_data_know_stay_apart() -> None:
    def forward(x: Tensor) -> Any:
        return x.nonzero().sum() + 2 * x.clone().nonzero().sum() + x.nonzero().new_zeros(()).sum()

    x = torch.tensor([1.0, 0.0, 2.0])
    core = export(forward, (x,)).run_decompositions()
    core.validate()
    assert outputs(core, x) == forward(x)


def test_results_of_their_own_memory_stay_apart() -> None:
    program = export(lambda x: (F.silu(x), F.silu(x).view(2, 1)), (torch.ones(2),))
    a, b = outputs(program.run_decompositions(), torch.ones(2))
    a.zero_()
    assert b.min() > 0


def test_a_result_is_no_view_of_an_input_unless_it_was() -> None:
    table = {aten.clone.default: lambda x, **options: x}
    x = torch.ones(3)
    (out,) = export(lambda x: (x.clone(),), (x,)).run_decompositions(table).module()(x)
    out.zero_()
    assert x.sum() == 3


def test_outputs_that_nobody_reads_are_not_computed() -> None:
    core = export(lambda x: torch.var_mean(x, 0)[1], (torch.ones(2, 3),)).run_decompositions()
    assert targets(core) == [aten.mean.dim]


def test_several_outputs_of_one_operator_keep_their_nodes() -> None:
    program = export(lambda x: x.split(2), (torch.ones(5),))
    core = program.run_decompositions()
    assert targets(core)[0] is aten.split_with_sizes.default
    assert names(core)[2:] == names(program)[2:] == ["getitem", "getitem_1", "getitem_2", "output"]
    assert targets(core).count(operator.getitem) == 3


# ---------------------------------------------------------------------------------------- the table


def test_operators_are_kept(block: Any) -> None:
    _, program = block
    for table in (default_decompositions(), default_decompositions().keep(aten.silu)):
        if aten.silu.default in table:
            del table[aten.silu.default]
        core = program.run_decompositions(table)
        assert left(core) == {"aten.silu.default"}
    assert "silu" in names(core)
    with pytest.raises(KeyError):
        del table[aten.silu.default]


def test_an_empty_table_changes_nothing(block: Any) -> None:
    _, program = block
    for same in (program.run_decompositions({}), program.run_decompositions(decomp_table={})):
        assert same.graph is not program.graph
        assert str(same.graph) == str(program.graph)


def test_a_table_of_torch(block: Any) -> None:
    model, program = block
    table = torch._decomp.get_decompositions([aten.native_layer_norm, aten.addmm, aten.silu])
    other = program.run_decompositions(table)
    other.validate()
    assert aten.native_layer_norm.default not in targets(other)
    assert aten.addmm.default not in targets(other)
    x = torch.randn(3, 4)
    torch.testing.assert_close(outputs(other, x), model(x))
    core = program.run_decompositions(torch.export.default_decompositions())
    assert left(core) == set()


def test_a_copy_of_a_table_is_edited_apart() -> None:
    table = default_decompositions().keep(aten.mish)
    for other in (copy.copy(table), table.copy()):
        del other[aten.silu.default]
        assert aten.silu.default in table
        assert aten.mish.default not in other


def test_what_is_no_table_is_refused(block: Any) -> None:
    """A packet as a key would be passed over in silence."""
    _, program = block
    with pytest.raises(TypeError, match=r"keyed by overloads.*torch.ops.aten.silu.default"):
        program.run_decompositions({aten.silu: lambda x: x})
    with pytest.raises(TypeError, match=r"keyed by overloads.*torch.ops.aten.silu.default"):
        del default_decompositions()[aten.silu]
    with pytest.raises(TypeError, match="a mapping from operators to functions, not list"):
        program.run_decompositions([aten.silu.default])


def test_the_default_table_is_a_mapping() -> None:
    table = default_decompositions()
    assert aten.silu.default in table
    assert aten.linear.default in table
    assert aten.add.Tensor not in table
    assert aten.detach.default not in table
    assert len(table) > 500
    assert all(not is_core(op) for op in table)
    table[aten.add.Tensor] = lambda a, b, alpha=1: a - -b * alpha
    assert aten.add.Tensor in set(table)
    with pytest.raises(TypeError, match=r"keyed by overloads.*torch.ops.aten.silu.default"):
        table[aten.silu] = lambda x: x


def test_what_stays_whole_has_a_reason() -> None:
    for name, reason in WHOLE.items():
        packet, overload = name.removeprefix("aten.").split(".")
        if packet not in torch_version.PARTIAL:
            assert not is_core(getattr(getattr(aten, packet), overload))
        assert reason


# --------------------------------------------------------------------------------------- bad tables


WRONG: dict[str, tuple[Callable[..., Any], str]] = {
    "size": (lambda x: x.sum(0), "gives f32[4], the operator f32[3, 4]"),
    "dtype": (lambda x: x.double(), "gives f64[3, 4], the operator f32[3, 4]"),
    "outputs": (lambda x: (x, x), "gives 2 outputs, the operator 1"),
    "device": (lambda x: x.to("meta"), "gives f32[3, 4] on meta, the operator f32[3, 4] on cpu"),
    "nothing": (lambda x: None, "gives a NoneType, the operator f32[3, 4]"),
    "raises": (lambda x: x.no_such_thing(), "failed: "),
    "data": (lambda x: x * x.sum().item(), "failed: "),
    "writes": (lambda x: x.mul_(2), "failed: it writes to its argument"),
    "endless": (lambda x: F.silu(x), "failed: "),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_entry_is_refused_by_name(name: str) -> None:
    function, text = WRONG[name]
    program = export(lambda x: F.silu(x), (torch.ones(3, 4),))
    table = default_decompositions()
    table[aten.silu.default] = function
    if name == "endless":
        core = program.run_decompositions(table)  # it stands for itself
        assert left(core) == {"aten.silu.default"}
        return
    with pytest.raises(DecompositionError) as error:
        program.run_decompositions(table)
    message = error.value.args[0]
    assert message.startswith(f"the decomposition of aten.silu.default {text}")
    assert "F.silu(x)" in message
    assert "instead: " in message
    assert error.value.operator is aten.silu.default
    core = program.run_decompositions(table.keep(aten.silu.default))  # what the message says
    assert left(core) == {"aten.silu.default"}


def test_too_few_outputs_are_refused() -> None:
    program = export(lambda x: torch.aminmax(x, dim=0), (torch.ones(3, 4),))
    with pytest.raises(DecompositionError, match="gives 1 outputs, the operator 2"):
        program.run_decompositions({aten.aminmax.default: lambda x, dim: x.amax(dim)})


def test_outputs_that_nobody_reads_are_checked_too() -> None:
    program = export(lambda x: torch.aminmax(x, dim=0)[0], (torch.ones(3, 4),))
    table = {aten.aminmax.default: lambda x, dim: (x.amin(dim), x.amax(dim).double())}
    with pytest.raises(DecompositionError, match=r"gives f64\[4\], the operator f32\[4\]"):
        program.run_decompositions(table)


def test_without_a_line_of_the_user_the_module_is_named() -> None:
    program = export(nn.Sequential(nn.Linear(4, 4), nn.SiLU()), (torch.ones(3, 4),))
    with pytest.raises(DecompositionError, match=r"at the module '1', .*SiLU"):
        program.run_decompositions({aten.silu.default: lambda x: x.double()})


def test_an_entry_that_holds_for_some_sizes_only_is_refused() -> None:
    program = export(
        lambda x: F.silu(x), (torch.ones(3, 4),), dynamic_shapes=({0: Dim("n", min=1, max=9)},)
    )
    table = default_decompositions()
    table[aten.silu.default] = lambda x: x * x.sigmoid() if x.shape[0] == 3 else x
    with pytest.raises(DecompositionError, match="it holds only where"):
        program.run_decompositions(table)
    assert left(program.run_decompositions()) == set()  # nothing was learned from it
    assert str(program.run_decompositions().module()(torch.zeros(5, 4)).shape[0]) == "5"


def test_new_values_are_fakes_of_the_program(block: Any) -> None:
    _, program = block
    core = program.run_decompositions()
    values = [n.meta["val"] for n in core.graph.nodes if n.op in ("placeholder", "call_function")]
    assert detect_fake_mode(values) is detect_fake_mode(program.graph.output_node().meta["val"])


BYTES = torch.tensor([0, 1, 200, 255], dtype=torch.uint8)


@pytest.mark.parametrize(
    ("compute", "inputs"),
    [
        (lambda x: 2.5 - x, (BYTES,)),
        (lambda x: torch.rsub(x, 0.5, alpha=2), (BYTES,)),
        (lambda x, y: torch.addcmul(x, y, y, value=2), (torch.ones(4), BYTES)),
        (lambda x, y: torch.addcmul(x, y, y), (torch.ones(4, dtype=torch.int32), BYTES)),
        (lambda x, y: torch.addcmul(x, y, y), (torch.ones(4).half(), BYTES.float())),
        (lambda x, y: torch.addcdiv(x, y, y + 1), (torch.ones(4).double(), BYTES.float())),
        (lambda x, y: torch.addcmul(x, y, y), (torch.ones(4), torch.tensor(0.1).double())),
    ],
)
def test_operands_of_different_dtypes_are_computed_in_one(
    compute: Callable[..., Any], inputs: tuple[Tensor, ...]
) -> None:
    core = export(compute, inputs).run_decompositions()
    assert not left(core)
    torch.testing.assert_close(outputs(core, *inputs), compute(*inputs), rtol=1e-6, atol=0)


def test_an_infinite_leg_beside_nan_makes_hypot_infinite() -> None:
    x, y = torch.tensor([torch.inf, 3.0, -torch.inf]), torch.tensor([torch.nan, torch.nan, 1.0])
    core = export(torch.hypot, (x, y)).run_decompositions()
    torch.testing.assert_close(outputs(core, x, y), torch.hypot(x, y), equal_nan=True)


@pytest.mark.parametrize("table", [{}, None], ids=["of the user's", "none"])
def test_what_decompositions_make_is_verified(table: Any) -> None:
    """A program that was broken before, here: decompositions themselves are checked one by one."""
    program = export(lambda x: torch.tanh(x) + 1, (torch.randn(3),))
    tanh = next(n for n in program.graph.nodes if n.name == "tanh")
    tanh.meta["val"] = program.graph.output_node().args[0][0].meta["val"].double()
    with pytest.raises(VerificationError, match=r"'tanh' breaks the rule 'types'"):
        program.run_decompositions(table)
