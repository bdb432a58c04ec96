"""Tools that others wrote for FX, on the graphs of programs: copies, partitioners, propagation of
torch's own fakes, text."""

from __future__ import annotations

import copy
import io
from operator import getitem

import pytest
import torch
from torch import nn
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupport
from torch.fx.passes.tools_common import legalize_graph
from torch.fx.passes.utils.fuser_utils import fuse_by_partitions

import lostwax
from lostwax.errors import MixedModeError, PassError
from lostwax.fake import FakeTensor
from lostwax.ir.graph.lookup import subgraphs
from lostwax.ir.rules.verify import verify
from lostwax.passes import FxPass, Pipeline

aten = torch.ops.aten


class Model(nn.Module):
    """Has state that it writes, a size in a number, and parts for a backend."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count += 1
        one, other = self.linear(x).relu().split(2, dim=1)
        joined = one.sin() + other.cos()
        return joined.reshape(x.shape[0] * 2), joined.sin().cos(), self.count * 2


class Chosen(nn.Module):
    """Has a size that depends on data."""

    def forward(self, x):
        return x.nonzero().sin(), x.sum().to(torch.int64).item() + 1


X = torch.randn(3, 4)


def make_program():
    return lostwax.export(Model(), (X,), dynamic_shapes={"x": {0: lostwax.Dim("batch")}})


@pytest.fixture(scope="module")
def program():
    return make_program()


def assert_agrees(after, before, x=X):
    assert not verify(after)
    one, other = after.module(), before.module()
    for given in (x, torch.randn(5, 4)):
        torch.testing.assert_close(one(given), other(given))


def swap_sin(module):
    for node in module.graph.find_nodes(op="call_function", target=aten.sin.default):
        node.target = aten.tan.default


def test_a_copy_has_the_values(program):
    made = copy.deepcopy(program.graph_module)
    for one, other in zip(made.graph.nodes, program.graph.nodes, strict=True):
        assert str(one.meta.get("val")) == str(other.meta.get("val"))
    made.graph.output_node().meta.clear()
    assert "val" in program.graph.output_node().meta


# --------------------------------------------------------------------------------- partitioners


def take(*targets):
    class Support(OperatorSupport):
        def is_node_supported(self, submodules, node):
            return node.op == "call_function" and node.target in targets

    return Support()


def partition(module, *targets, **options):
    options = {"allows_single_node_partition": True, **options}
    return CapabilityBasedPartitioner(module, take(*targets), **options).partition_and_fuse()


POINTWISE = aten.sin.default, aten.cos.default, aten.add.Tensor, aten.relu.default


def find_parts(program):
    return [
        sorted({str(n.target) for n in each.graph.nodes if n.op == "call_function"})
        for _, each in subgraphs(program.graph_module)
    ]


def test_what_a_partitioner_fuses_becomes_sub_graphs(program):
    after = FxPass(lambda m: partition(m, *POINTWISE))(program)
    assert_agrees(after, program)
    assert ["aten.relu.default"] in find_parts(after)
    assert ["aten.add.Tensor", "aten.cos.default", "aten.sin.default"] in find_parts(after)
    assert not after.graph.find_nodes(op="call_function", target=aten.sin.default)
    assert list(after.graph_signature.buffers_to_mutate.values()) == ["count"]


def test_the_parts_stay_in_files_and_later_passes(program):
    after = Pipeline((lambda m: partition(m, *POINTWISE), legalize_graph))(program)
    file = io.BytesIO()
    lostwax.save(after, file)
    file.seek(0)
    loaded = lostwax.load(file)
    assert find_parts(loaded) == find_parts(after)
    assert_agrees(loaded, program)
    theirs = lostwax.interop.to_torch(copy.deepcopy(after)).module()  # it would write our buffer
    torch.testing.assert_close(theirs(X), program.module()(X))


def test_a_module_called_twice_is_one_sub_graph(program):
    def fuse_twice(module):
        partition(module, aten.sin.default)
        first, second = module.graph.find_nodes(op="call_module")
        second.target = first.target

    after = FxPass(fuse_twice)(program)
    assert len(find_parts(after)) == 1
    assert_agrees(after, program)


def fuse(module, *targets):
    nodes = [n for n in module.graph.nodes if n.target in targets]
    fuse_by_partitions(module, [dict.fromkeys(nodes)])


def test_a_part_of_lists(program):
    """Sub-graphs take and return tensors and numbers: what reads of a list is of the same part."""
    after = FxPass(lambda m: fuse(m, aten.split.Tensor, getitem))(program)
    assert_agrees(after, program)
    assert_agrees(FxPass(lambda m: partition(m, aten.split.Tensor))(program), program)
    with pytest.raises(PassError, match=r"(?s)returns the list 'split'.*getitem"):
        FxPass(lambda m: fuse(m, aten.split.Tensor))(program)
    with pytest.raises(PassError, match=r"(?s)takes the list 'split'.*getitem"):
        FxPass(lambda m: fuse(m, getitem))(program)


def test_a_module_that_is_no_graph_is_refused(program):
    def call(module):
        module.add_module("other", nn.ReLU())
        relu = module.graph.find_nodes(op="call_function", target=aten.relu.default)[0]
        with module.graph.inserting_before(relu):
            made = module.graph.call_module("other", relu.args)
        relu.replace_all_uses_with(made)

    with pytest.raises(PassError, match="'other' is a ReLU"):
        FxPass(call)(program)


def test_another_graph_has_the_same_inputs(program):
    assert_agrees(FxPass(lambda m: legalize_graph(m) and None)(program), program)


# ----------------------------------------------------------------------------------- torch's fakes


def propagate(module, *inputs):
    mine = [n.meta["val"] for n in module.graph.find_nodes(op="placeholder")][: -len(inputs)]
    state = [torch.zeros([*v.shape]) for v in mine]
    FakeTensorProp(module).propagate(*state, *inputs)


def values(program):
    return [str(n.meta.get("val")) for n in program.graph.nodes]


def test_fakes_of_torch_do_not_stay(program):
    after = FxPass(lambda m: propagate(m, X))(program)
    assert values(after) == values(program)
    assert_agrees(after, program)
    again = Pipeline((lambda m: propagate(m, X), swap_sin, swap_sin))(program)
    assert not verify(again)
    assert values(again) == values(program)


def test_sizes_that_depend_on_data_keep_their_symbols():
    program = lostwax.export(Chosen(), (X,))
    fakes = dict(zip((n.name for n in program.graph.nodes), values(program), strict=True))

    def write(module):
        """As FakeTensorProp does, which has no symbols for these."""
        for node in module.graph.nodes:
            if node.op == "call_function" and "val" in node.meta:
                is_tensor = isinstance(node.meta["val"], FakeTensor)
                node.meta["val"] = torch.empty(2, 2, device="meta") if is_tensor else 7

    after = FxPass(write)(program)
    assert {n.name: str(n.meta.get("val")) for n in after.graph.nodes} == fakes


def test_fakes_of_torch_in_the_program_itself():
    program = make_program()
    propagate(program.graph_module, X)
    with pytest.raises(PassError, match=r"(?s)'p_linear_weight'.*FakeTensorProp.*deepcopy"):
        FxPass(swap_sin)(program)


def fakes_of(module):
    return [n.meta["val"] for n in module.graph.find_nodes(op="placeholder")]


def test_symbolic_sizes_of_ours_in_torchs_fakes():
    """torch's mode refuses them and says whose propagation takes them; that gives the same."""
    program = make_program()
    before, fakes = values(program), fakes_of(program.graph_module)
    with torch.no_grad():
        lostwax.FakeTensorProp(program.graph_module).propagate(*fakes)
    assert values(program) == before
    with pytest.raises(MixedModeError, match=r"lostwax.FakeTensorProp.*program.module\(\)"):
        FakeTensorProp(program.graph_module).propagate(*fakes)


def test_torchs_propagation_takes_the_module_of_a_program(program):
    module = program.module()
    fakes = fakes_of(module)
    mode = fakes[0].fake_mode
    mode.allow_non_fake_inputs = True
    first, *_ = FakeTensorProp(module, mode).propagate_dont_convert_inputs(*fakes)
    assert str(first.shape[0]) == "2*s_batch"


# -------------------------------------------------------------------------------------------- text


def reread(program):
    file = io.BytesIO()
    lostwax.save(program, file)
    file.seek(0)
    return lostwax.load(file)


WAYS = {
    "exported": lambda p: p,
    "after a pass": FxPass(swap_sin),
    "decomposed": lambda p: p.run_decompositions(),
    "loaded": reread,
    "edge": lambda p: lostwax.to_edge(p).exported_program(),
}


@pytest.mark.parametrize("way", WAYS)
def test_types_are_written_as_torch_writes_them(program, way, capsys):
    module = WAYS[way](program).graph_module
    text = module.print_readable()
    assert capsys.readouterr().out.strip() == text.strip()
    assert ': "f32[4, 4]"' in text
    assert "FakeTensor" not in text
    assert ': "f32[4, 4][4, 1]cpu"' in module.print_readable(False, True, include_device=True)


def test_the_text_is_that_of_torch():
    model = nn.Sequential(nn.ReLU(), nn.Softmax(-1))
    ours = lostwax.export(model, (X,)).run_decompositions()
    theirs = torch.export.export(model, (X,)).run_decompositions()
    texts = [p.graph_module.print_readable(print_output=False) for p in (ours, theirs)]
    lines = [[x.strip() for x in t.splitlines() if " = torch.ops" in x] for t in texts]
    assert lines[0] == lines[1] != []
