"""What users of torch.export rely on beside its names, compared with torch.export itself."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
import torch.export
import torch.fx.traceback
from torch import Tensor, nn

import lostwax
from lostwax.interop import from_torch, to_torch

X = torch.ones(2, 3)
aten = torch.ops.aten


def save_and_load(program: Any) -> Any:
    file = io.BytesIO()
    lostwax.save(program, file)
    file.seek(0)
    return lostwax.load(file)


# ---------------------------------------------------------------------------------- meta["custom"]

NOTES = {"stage": 3, "tags": ["a", {"b": None}]}
WAYS = {
    "module": lambda p: lostwax.export(p.module(), (X,)),
    "twice": lambda p: lostwax.export(lostwax.export(p.module(), (X,)).module(), (X,)),
    "strict": lambda p: lostwax.export(p.module(), (X,), strict=True),
    "file": save_and_load,
    "file and module": lambda p: lostwax.export(save_and_load(p).module(), (X,)),
    "copy": copy.deepcopy,
    "torch": to_torch,
    "torch and back": lambda p: from_torch(to_torch(p)),
    "decompositions": lambda p: p.run_decompositions(),
    "pass": lambda p: lostwax.passes.DeadCode()(p),
}


@pytest.mark.parametrize("way", WAYS)
def test_notes_of_a_graph_and_of_its_nodes_are_kept(way: str) -> None:
    program = lostwax.export(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), (X,))
    program.graph_module.meta["custom"] = NOTES
    relu = next(n for n in program.graph.nodes if n.target is aten.relu.default)
    relu.meta["custom"] = {"kept": True}
    made = WAYS[way](program)
    assert made.graph_module.meta["custom"] == NOTES
    notes = {str(n.target): n.meta["custom"] for n in made.graph.nodes if n.meta.get("custom")}
    assert notes == {"aten.relu.default": {"kept": True}}


def test_notes_pass_between_files_of_torch_and_ours() -> None:
    ours, theirs = (side.export(nn.ReLU(), (X,)) for side in (lostwax, torch.export))
    for program in (ours, theirs):
        program.graph_module.meta["custom"] = NOTES
    for written, other in ((ours, torch.export), (theirs, lostwax)):
        file = io.BytesIO()
        (lostwax if written is ours else torch.export).save(written, file)
        file.seek(0)
        assert other.load(file).graph_module.meta["custom"] == NOTES
    assert lostwax.export(theirs.module(), (X,)).graph_module.meta["custom"] == NOTES


def test_notes_that_are_no_plain_data_are_not_saved() -> None:
    program = lostwax.export(nn.ReLU(), (X,))
    program.graph_module.meta["custom"] = {"a": object()}
    with pytest.raises(lostwax.errors.SaveError, match=r"meta\['custom'\] of the graph is not pla"):
        lostwax.save(program, io.BytesIO())


class Annotated(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        with torch.fx.traceback.annotate({"stage": 1}):
            x = x.sin()
            with torch.fx.traceback.annotate({"inner": 2}):
                x = x.cos()
        return x.tan()


@pytest.mark.skipif(not hasattr(torch.fx.traceback, "annotate"), reason="this torch has none")
def test_annotations_are_those_of_torch() -> None:
    found = []
    for side in (lostwax, torch.export):
        with torch.fx.traceback.preserve_node_meta():
            nodes = side.export(Annotated(), (X,)).graph.nodes
        found.append(
            {
                str(n.target): {
                    k: v
                    for k, v in n.meta.get("custom", {}).items()
                    if not k.startswith("_torchdynamo")
                }
                for n in nodes
                if n.op == "call_function"
            }
        )
    assert found[0] == found[1]
    assert found[0]["aten.cos.default"] == {"stage": 1, "inner": 2}


# --------------------------------------------------------------------------------------- constants


class Constant(nn.Module):
    def __init__(self, tensor: Tensor, kind: str) -> None:
        super().__init__()
        if kind == "attribute":
            self.c = tensor
        else:
            self.register_buffer("c", tensor, persistent=kind == "buffer")

    def forward(self, x: Tensor) -> Tensor:
        return x + self.c


class Sharing(nn.Module):
    def __init__(self, *kinds: str) -> None:
        super().__init__()
        shared = torch.tensor([1.0, 2.0, 3.0])
        self.inner = nn.ModuleList(Constant(shared, kind) for kind in kinds)

    def forward(self, x: Tensor) -> Tensor:
        for each in self.inner:
            x = each(x) * 2
        return x


KINDS = [
    ("attribute",) * 2,
    ("attribute",) * 3,
    ("temporary",) * 2,
    ("buffer",) * 2,
    ("temporary", "buffer"),
]


@pytest.mark.parametrize("kinds", KINDS, ids=" ".join)
def test_a_shared_constant_has_an_entry_for_each_name(kinds: tuple[str, ...]) -> None:
    module = Sharing(*kinds)
    ours, theirs = (side.export(module, (X,)) for side in (lostwax, torch.export))
    for program in (ours, save_and_load(ours), ours.run_decompositions(), copy.deepcopy(ours)):
        assert program.constants.keys() == theirs.constants.keys()
        assert program.state_dict.keys() == theirs.state_dict.keys()
        held = {**program.constants, **program.state_dict}.values()
        assert len({each.data_ptr() for each in held}) == 1
        torch.testing.assert_close(program.module()(X), module(X))
        tree = lostwax.unflatten(program)
        torch.testing.assert_close(tree(X), module(X))
        torch.testing.assert_close(tree.inner[1].c, module.inner[1].c)
    assert all(each is module.inner[0].c for each in ours.constants.values())


# ---------------------------------------------------------------------- programs of passes' results


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return self.lin(x).relu() + self.calls


def change_target(module: torch.fx.GraphModule) -> None:
    for node in module.graph.nodes:
        if node.target is aten.relu.default:
            node.target = aten.neg.default


def add_node(module: torch.fx.GraphModule) -> None:
    for node in list(module.graph.nodes):
        if node.target is aten.relu.default:
            with module.graph.inserting_before(node):
                new = module.graph.call_function(aten.neg.default, node.args)
            node.replace_all_uses_with(new)
            module.graph.erase_node(node)


def add_typed_node(module: torch.fx.GraphModule) -> None:
    """As passes for torch.export do: with a type, and no word of where it comes from."""
    types = {n.target: n.meta["val"] for n in module.graph.nodes if "val" in n.meta}
    add_node(module)
    for node in module.graph.nodes:
        if node.target is aten.neg.default:
            node.meta["val"] = types[aten.relu.default]


def change_result(module: torch.fx.GraphModule) -> None:
    output = module.graph.output_node()
    *written, result = output.args[0]
    with module.graph.inserting_before(output):
        new = module.graph.call_function(aten.neg.default, (result,))
    output.args = ((*written, new),)


def rename_input(module: torch.fx.GraphModule) -> None:
    node = next(n for n in module.graph.nodes if n.name == "x")
    node.name = node.target = "renamed"


EDITS: dict[Any, Any] = {
    change_target: lambda m, x: -m.lin(x) + m.calls,
    add_node: lambda m, x: -m.lin(x) + m.calls,
    add_typed_node: lambda m, x: -m.lin(x) + m.calls,
    change_result: lambda m, x: -(m.lin(x).relu() + m.calls),
    rename_input: lambda m, x: m.lin(x).relu() + m.calls,
}


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("edit", EDITS)
def test_a_program_is_made_of_what_a_pass_gives(edit: Any, copies: bool) -> None:
    module, batch = Counted(), lostwax.Dim("batch")
    program = lostwax.export(copy.deepcopy(module), (X,), dynamic_shapes=({0: batch},))
    graphs = copy.deepcopy(program.graph_module)
    edit(graphs)
    signature = copy.deepcopy(program.graph_signature) if copies else program.graph_signature
    made = save_and_load(program._update(graphs, signature))
    x, run = torch.randn(5, 3), made.module()
    for count in (1, 2):
        module.calls.fill_(count)
        torch.testing.assert_close(run(x), EDITS[edit](module, x))
    torch.testing.assert_close(program.module()(x), module.lin(x).relu() + 1)


def test_a_pass_of_torch_may_bring_state() -> None:
    module = Counted()
    program = lostwax.export(module, (X,))
    graphs, signature = copy.deepcopy((program.graph_module, program.graph_signature))
    relu = next(n for n in graphs.graph.nodes if n.target is aten.relu.default)
    first = next(iter(graphs.graph.nodes))
    with graphs.graph.inserting_before(first):
        new = graphs.graph.placeholder("p_scale")
    new.meta["val"] = relu.meta["val"].new_empty(3)
    with graphs.graph.inserting_after(relu):
        scaled = graphs.graph.call_function(aten.mul.Tensor, (relu, new))
    relu.replace_all_uses_with(scaled, delete_user_cb=lambda user: user is not scaled)
    spec = lostwax.InputSpec(
        lostwax.InputKind.PARAMETER, lostwax.TensorArgument("p_scale"), "scale"
    )
    signature.input_specs.insert(0, spec)
    scale = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
    state = {"scale": scale, **program.state_dict}
    made = program._update(graphs, signature, state_dict=state)
    torch.testing.assert_close(made.module()(X), module.lin(X).relu() * scale + 1)
    with pytest.raises(lostwax.errors.VerificationError, match="scale"):
        program._update(graphs, signature)


# ------------------------------------------------------------------------ tables of decompositions


@pytest.fixture(scope="module")
def library() -> Any:
    """A composite operator, and one with kernels alone."""
    with torch.library._scoped_library("table_users", "FRAGMENT") as lib:
        lib.define("parts(Tensor x) -> Tensor")
        lib.impl("parts", lambda x: x.sin() + 1, "CompositeImplicitAutograd")
        lib.define("whole(Tensor x) -> Tensor")
        lib.impl("whole", lambda x: x.clone(), "CPU")
        lib.impl("whole", torch.empty_like, "Meta")
        yield torch.ops.table_users


class Gate(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.silu(x)
        return torch.ops.table_users.whole(torch.ops.table_users.parts(x))


def pop_and_copy(table: Any) -> Any:
    table.pop(aten.silu.default)
    made = table.copy()
    table[aten.silu.default] = lambda x: x
    return made


TABLES: dict[str, Any] = {
    "as it is": lambda table: table,
    "pop": lambda table: table.pop(aten.silu.default) and table,
    "pop twice": lambda table: [table.pop(aten.silu.default, None) for _ in "ab"] and table,
    "pop composite": lambda table: table.pop(torch.ops.table_users.parts.default) and table,
    "pop whole": lambda table: [table.pop(torch.ops.table_users.whole.default)] and table,
    "del": lambda table: table.__delitem__(torch.ops.table_users.parts.default) or table,
    "update": lambda table: table.update({aten.silu.default: lambda x: x * 3}) or table,
    "update by name": lambda table: table.update(other_dict={aten.sin.default: torch.cos}) or table,
    "copy": pop_and_copy,
    "materialize": lambda table: table.materialize(),
    "dict": lambda table: {op: f for op, f in table.items() if op is not aten.silu.default},
}


@pytest.mark.parametrize("edit", TABLES)
def test_a_table_is_edited_as_torch_s(edit: str, library: Any) -> None:
    ours = lostwax.export(Gate(), (X,), keep="composite")
    theirs = torch.export.export(Gate(), (X,))
    want = theirs.run_decompositions(TABLES[edit](torch.export.default_decompositions()))
    for made in (lostwax.default_decompositions(), torch.export.default_decompositions()):
        got = ours.run_decompositions(TABLES[edit](made))
        for nodes in zip(got.graph.nodes, want.graph.nodes, strict=True):
            assert len({str(node.target) for node in nodes}) == 1


def test_a_table_is_a_container(library: Any) -> None:
    table = lostwax.default_decompositions()
    parts, whole = library.parts.default, library.whole.default
    listed = [*table]
    assert len(table) == len(listed) == len({*listed}) == len(table.materialize())
    assert all(op in table for op in listed)
    assert parts in listed
    assert whole not in table
    for op in (aten.silu.default, parts):
        assert callable(table.pop(op))
        assert op not in table
        assert table.pop(op, 5) == 5
        with pytest.raises(KeyError):
            table.pop(op)
        with pytest.raises(KeyError):
            del table[op]
    assert len(table) == len(listed) - 2
    with pytest.raises(KeyError):
        table.pop(aten.add.Tensor)  # core: it is not there
    assert table.pop(whole) is None
    table[whole] = torch.clone
    assert table.pop(whole) is torch.clone
    table.clear()
    assert not table
    assert len(table) == 0
