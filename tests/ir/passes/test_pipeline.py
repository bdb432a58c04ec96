"""Passes and pipelines: contracts, verification, journals, plain FX passes, drafts."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn
from torch.fx.passes.infra.pass_base import PassBase, PassResult

import lostwax
from lostwax.errors import PassError
from lostwax.ir.signature import InputKind, OutputKind
from lostwax.passes import (
    PROPERTIES,
    CommonSubexpressions,
    DeadCode,
    FxPass,
    Journal,
    NoOps,
    Pass,
    Pipeline,
    Property,
)

aten = torch.ops.aten


class Model(nn.Module):
    """Reads a parameter, writes a buffer, returns several things."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x, y):
        self.count += 1
        z = self.linear(x).relu()
        return {"z": z + y, "x": x, "n": self.count * 2}


def arguments():
    return torch.randn(2, 3), torch.randn(4)


@pytest.fixture(scope="module")
def program():
    return lostwax.export(Model(), arguments())


def agrees(after, before, *args):
    """Two programs that return the same, twice over, as state is written."""
    one, other = after.module(), before.module()
    for _ in range(2):
        torch.testing.assert_close(one(*args), other(*args))


def calls(program):
    return [n.name for n in program.graph.nodes if n.op == "call_function"]


def swap_relu(module):
    """A plain FX pass that edits in place: relu becomes clamp."""
    for node in module.graph.nodes:
        if node.target is aten.relu.default:
            with module.graph.inserting_before(node):
                new = module.graph.call_function(aten.clamp_min.default, (node.args[0], 0))
            node.replace_all_uses_with(new)
            module.graph.erase_node(node)


# ------------------------------------------------------------------------------------ running


def test_a_pass_gives_a_new_program_and_leaves_the_old_one(program):
    text, weights = str(program), dict(program.state_dict)
    after = Pipeline((swap_relu,))(program)
    assert str(program) == text
    assert after is not program
    assert "clamp_min" in str(after)
    assert all(after.state_dict[k] is v for k, v in weights.items())
    agrees(after, program, *arguments())


def test_untouched_nodes_keep_their_names_and_values(program):
    after = Pipeline((swap_relu,))(program)
    before = {n.name: n for n in program.graph.nodes}
    kept = [n for n in after.graph.nodes if n.name in before]
    assert len(kept) == len(before) - 1
    for node in kept:
        assert node.meta.get("val") is before[node.name].meta.get("val") or node.op == "output"


def test_new_nodes_have_types_and_come_from_the_line_of_what_they_replace(program):
    after = Pipeline((swap_relu,))(program)
    (new,) = [n for n in after.graph.nodes if n.target is aten.clamp_min.default]
    (old,) = [n for n in program.graph.nodes if n.target is aten.relu.default]
    assert new.meta["val"].fake_type == old.meta["val"].fake_type
    for key in ("stack_trace", "nn_module_stack", "source_fn_stack"):
        assert new.meta[key] == old.meta[key]


def test_a_pass_is_a_frozen_value():
    assert NoOps() == NoOps()
    assert hash(Pipeline((NoOps(), DeadCode()))) == hash(Pipeline((NoOps(), DeadCode())))
    with pytest.raises(dataclasses.FrozenInstanceError):
        NoOps().name = "other"


def test_pipelines_nest_and_print():
    inner = Pipeline((NoOps(), DeadCode()))
    assert list(Pipeline((inner, CommonSubexpressions()))) == [*inner, CommonSubexpressions()]
    assert repr(inner) == "Pipeline(passes=(NoOps(), DeadCode()))"


def test_an_empty_pipeline_changes_nothing(program):
    assert Pipeline(())(program) is program


# ----------------------------------------------------------------------------------- contracts


@dataclasses.dataclass(frozen=True)
class NeedsClean(Pass):
    requires = ("no-dead-code",)

    def edit(self, draft):
        pass


@dataclasses.dataclass(frozen=True)
class Dirties(Pass):
    loses = ("no-dead-code",)

    def edit(self, draft):
        with draft.graph.inserting_before(draft.graph.output_node()):
            node = next(iter(draft.inputs))
            draft.graph.call_function(aten.sin.default, (node,))


@dataclasses.dataclass(frozen=True)
class DirtiesSecretly(Dirties):
    loses = ()


@dataclasses.dataclass(frozen=True)
class Promises(Dirties):
    loses = ()
    ensures = ("no-dead-code",)


def test_a_pass_after_one_that_ensures_what_it_requires(program):
    Pipeline((Dirties(), DeadCode(), NeedsClean()))(program)


def test_a_missing_requirement_is_found_before_anything_runs(program):
    ran = []
    pipeline = Pipeline((FxPass(ran.append), Dirties(), NeedsClean()))
    with pytest.raises(
        PassError,
        match=r"the pass 'NeedsClean' requires 'no-dead-code' .*'Dirties', before it, loses that\n"
        r"  instead: put a pass that ensures 'no-dead-code' before it",
    ):
        pipeline(program)
    assert not ran


def test_a_requirement_that_the_given_program_does_not_meet(program):
    dirty = Dirties()(program)
    with pytest.raises(PassError, match=r"not true of the program .*'sin_default': nothing reads"):
        NeedsClean()(dirty)


def test_a_property_lost_in_secret_is_found(program):
    with pytest.raises(PassError, match="'NeedsClean' requires 'no-dead-code'"):
        Pipeline((DeadCode(), DirtiesSecretly(), NeedsClean()))(program)


def test_a_broken_promise_names_the_pass_and_the_property(program):
    with pytest.raises(PassError, match=r"'Promises' ensures 'no-dead-code'.*'sin_default'"):
        Promises()(program)


def test_properties_of_ones_own(program, monkeypatch):
    def check(program):
        for node in program.graph.nodes:
            if node.target is aten.relu.default:
                yield node, "it is a relu"

    @dataclasses.dataclass(frozen=True)
    class NoRelu(Pass):
        ensures = ("no-relu",)

        def edit(self, draft):
            swap_relu(draft.graph_module)

    with pytest.raises(PassError, match="'no-relu', which is not known; known are core-aten"):
        NoRelu()(program)
    monkeypatch.setitem(PROPERTIES, "no-relu", Property("no-relu", "no relu is left", check))
    NoRelu()(program)


def test_a_broken_pass_is_named_with_the_rule_and_the_node(program):
    def breaks(module):
        for node in module.graph.nodes:
            if node.target is aten.relu.default:
                node.target = torch.relu

    with pytest.raises(PassError) as error:
        Pipeline((DeadCode(), breaks))(program)
    assert "the pass 'breaks' broke the program:\n  node 'relu' breaks the rule 'operators'" in str(
        error.value
    )
    assert error.value.name == "breaks"
    assert [v.rule for v in error.value.violations] == ["operators"]
    Pipeline((breaks,))(program, verify=False)


def test_a_pass_that_makes_an_ill_typed_call(program):
    def breaks(module):
        for node in module.graph.nodes:
            if node.target is aten.addmm.default:
                node.args = (node.args[0], node.args[2], node.args[1])

    with pytest.raises(
        PassError, match=r"the pass 'breaks' failed: .*node 'addmm' cannot be typed"
    ):
        Pipeline((breaks,))(program)


def test_an_error_of_a_pass_says_which_it_was(program):
    def fails(module):
        raise KeyError("ouch")

    with pytest.raises(KeyError, match="ouch") as error:
        Pipeline((fails,))(program)
    assert "while running the pass FxPass" in error.value.__notes__[0]


def test_what_is_no_pass_is_refused():
    with pytest.raises(PassError, match=r"is not a pass\n  instead: DeadCode\(\)"):
        Pipeline((DeadCode,))
    with pytest.raises(PassError, match="a Pipeline is made of a tuple of passes"):
        Pipeline(DeadCode())


# ------------------------------------------------------------------------------------- journal


def test_a_journal_records_before_and_after(program):
    journal = Journal()
    after = Pipeline((DeadCode(), swap_relu))(program, journal=journal)
    assert [e.name for e in journal] == ["DeadCode", "swap_relu"]
    assert journal[0].before is program
    assert journal["swap_relu"].after is after
    assert journal["swap_relu"].nodes == (len(program.graph.nodes),) * 2
    assert (journal[0].changed, journal[1].changed) == (False, True)
    assert journal[0].diff() == ""
    changes = [s for s in journal["swap_relu"].diff(0).splitlines() if s[0] in "+-"]
    assert [s.split(":")[0].split("=")[0].strip() for s in changes] == [
        "--- before swap_relu",
        "+++ after swap_relu",
        "-        relu",
        "+        clamp_min_default",
        "-        add_1",
        "+        add_1",
    ]
    assert "swap_relu" in str(journal).splitlines()[1]
    with pytest.raises(KeyError, match="there were: DeadCode, swap_relu"):
        journal["NoOps"]


# --------------------------------------------------------------------------------- FX passes


def test_a_pass_that_returns_another_module(program):
    def copies(module):
        graph = torch.fx.Graph()
        graph.output(graph.graph_copy(module.graph, {}))
        return torch.fx.GraphModule(module, graph)

    agrees(Pipeline((copies,))(program), program, *arguments())


def test_a_transformer_of_torch_fx(program):
    """It builds another graph, whose placeholders say nothing of their types."""

    class Swaps(torch.fx.Transformer):
        def call_function(self, target, args, kwargs):
            if target is aten.relu.default:
                target, args = aten.clamp_min.default, (*args, 0)
            return super().call_function(target, args, kwargs)

    after = Pipeline((lambda module: Swaps(module).transform(),))(program)
    assert "clamp_min" in str(after)
    agrees(after, program, *arguments())
    for node in after.graph.nodes:
        if node.op == "call_function":
            assert node.meta["nn_module_stack"], node


def test_a_pass_of_torch_fx(program):
    class Swaps(PassBase):
        def call(self, graph_module):
            swap_relu(graph_module)
            return PassResult(graph_module, True)

    after = Pipeline((Swaps(),))(program)
    assert "clamp_min" in str(after)
    agrees(after, program, *arguments())


def test_what_a_pass_may_return(program):
    with pytest.raises(PassError, match="it returned a int\n  instead: return the GraphModule"):
        Pipeline((lambda module: 1,))(program)


def test_renamed_placeholders_and_outputs(program):
    def renames(module):
        for node in module.graph.nodes:
            if node.op == "placeholder":
                node.name = f"my_{node.name}"
        value = module.graph.output_node().args[0][1]
        value.name = "result"

    after = Pipeline((renames,))(program)
    assert all(s.arg.name.startswith("my_") for s in after.graph_signature.input_specs)
    assert after.graph_signature.user_outputs[0] == "result"
    assert after.root_signature.inputs[0].name == "my_x"
    agrees(after, program, *arguments())


def test_erased_placeholders():
    def erases(module):
        for node in reversed(module.graph.nodes):
            if node.op == "placeholder" and not node.users:
                module.graph.erase_node(node)

    class Partial(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, a, b, c, flag=True):
            return self.used(b)

    args = (torch.ones(1), torch.ones(3, 2), torch.ones(2))
    program = lostwax.export(Partial(), args)
    after = Pipeline((erases,))(program)
    assert after.graph_signature.parameters == ("used.weight", "used.bias")
    assert after.graph_signature.user_inputs == ("a", "b", "c")
    agrees(after, program, *args)


def test_a_dropped_write(program):
    def forgets(module):
        output = module.graph.output_node()
        output.args = (output.args[0][1:],)

    after = Pipeline((forgets, DeadCode()))(program)
    assert [s.kind for s in after.graph_signature.output_specs] == [OutputKind.USER_OUTPUT] * 3
    module = after.module()
    module(*arguments())
    assert module.count == 0


def test_a_dropped_result_is_refused(program):
    def forgets(module):
        output = module.graph.output_node()
        output.args = (output.args[0][:-1],)

    with pytest.raises(PassError, match="3 values are returned, 4 were before"):
        Pipeline((forgets,))(program)


def test_a_new_placeholder_is_refused(program):
    def adds(module):
        with module.graph.inserting_before(next(iter(module.graph.nodes))):
            module.graph.placeholder("more").meta["val"] = 1

    with pytest.raises(PassError, match=r"'more' is a new placeholder.*\n  instead: draft.add"):
        Pipeline((adds,))(program)


def test_tensors_that_a_pass_puts_on_the_module_become_state(program):
    def scales(module):
        module.register_buffer("scale", torch.full((4,), 3.0))
        for node in list(module.graph.nodes):
            if node.target is aten.relu.default:
                with module.graph.inserting_after(node):
                    scale = module.graph.get_attr("scale")
                with module.graph.inserting_after(scale):
                    new = module.graph.call_function(aten.mul.Tensor, (node, scale))
                node.replace_all_uses_with(new)
                new.args = (node, scale)

    after = Pipeline((scales,))(program)
    assert after.constants["scale"][0] == 3
    kinds = [s.kind for s in after.graph_signature.input_specs]
    assert kinds.index(InputKind.CONSTANT_TENSOR) == kinds.index(InputKind.BUFFER) + 1
    x, _ = arguments()
    z, scaled = (p.module()(x, torch.zeros(4))["z"] for p in (program, after))
    torch.testing.assert_close(scaled, 3 * z)


def test_a_condition_on_sizes_that_a_pass_needs_is_one_of_the_program():
    """A sum with another input instead of a constant: from now on their sizes must agree."""
    shapes = {"x": {0: lostwax.Dim("a")}, "y": {0: lostwax.Dim("b")}}
    program = lostwax.export(
        lambda x, y: (x + 1, y + 1), (torch.ones(3), torch.ones(3)), dynamic_shapes=shapes
    )

    def joins(module):
        x, y = (n for n in module.graph.nodes if n.op == "placeholder")
        next(iter(x.users)).args = (x, y)

    for _ in range(2):  # what was learned of the one is not known of the other
        after = Pipeline((joins, DeadCode()))(program)
        assert after.module()(torch.ones(5), torch.ones(5))[0].sum() == 10
        with pytest.raises(lostwax.errors.InputValueError, match="captured under the condition"):
            after.module()(torch.ones(5), torch.ones(6))
    program.module()(torch.ones(5), torch.ones(6))
    assert len(after.guards) == 1


def test_a_divisibility_that_a_pass_needs():
    program = lostwax.export(
        lambda x: x.view(-1, 1) + 1, (torch.ones(6),), dynamic_shapes=({0: lostwax.Dim("n")},)
    )

    def thirds(module):
        for node in module.graph.nodes:
            if node.target is aten.view.default:
                node.args = (node.args[0], [-1, 3])

    after = Pipeline((thirds, DeadCode(), CommonSubexpressions(), NoOps()))(program)
    assert after.module()(torch.ones(9)).shape == (3, 3)
    with pytest.raises(lostwax.errors.InputValueError, match="% 3 == 0"):
        after.module()(torch.ones(8))
    assert after.run_decompositions().module()(torch.ones(3)).shape == (1, 3)
    assert Pipeline((thirds,))(program).guards[0].predicate == "x.shape[0] % 3 == 0"
