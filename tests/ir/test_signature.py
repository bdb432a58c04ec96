"""The signature against torch.export's own, class by class and property by property."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import fx
from torch.export import graph_signature as peer

from lostwax.ir import signature as ours

CLASSES = [
    "ConstantArgument",
    "CustomObjArgument",
    "ExportBackwardSignature",
    "ExportGraphSignature",
    "InputSpec",
    "OutputSpec",
    "SymBoolArgument",
    "SymFloatArgument",
    "SymIntArgument",
    "TensorArgument",
    "TokenArgument",
]
PROPERTIES = [n for n, v in vars(peer.ExportGraphSignature).items() if isinstance(v, property)]


def forward(s: Any) -> Any:
    """One of every kind, in the classes of a module `s`."""
    tensor, kind, out = s.TensorArgument, s.InputKind, s.OutputKind
    return s.ExportGraphSignature(
        [
            s.InputSpec(kind.TOKEN, s.TokenArgument("token"), None),
            s.InputSpec(kind.PARAMETER, tensor("p_w"), "layer.w"),
            s.InputSpec(kind.BUFFER, tensor("b_mean"), "mean", persistent=True),
            s.InputSpec(kind.BUFFER, tensor("b_cache"), "cache", persistent=False),
            s.InputSpec(kind.CONSTANT_TENSOR, tensor("c_k"), "k"),
            s.InputSpec(kind.CUSTOM_OBJ, s.CustomObjArgument("obj", "my.Obj"), "obj"),
            s.InputSpec(kind.USER_INPUT, tensor("x"), None),
            s.InputSpec(kind.USER_INPUT, s.ConstantArgument("n", 3), None),
            s.InputSpec(kind.USER_INPUT, s.ConstantArgument("none", None), None),
            s.InputSpec(kind.USER_INPUT, s.SymIntArgument("size"), None),
        ],
        [
            s.OutputSpec(out.TOKEN, s.TokenArgument("token_1"), None),
            s.OutputSpec(out.BUFFER_MUTATION, tensor("add"), "mean"),
            s.OutputSpec(out.PARAMETER_MUTATION, tensor("mul"), "layer.w"),
            s.OutputSpec(out.USER_INPUT_MUTATION, tensor("sub"), "x"),
            s.OutputSpec(out.USER_OUTPUT, tensor("sub"), None),
            s.OutputSpec(out.USER_OUTPUT, s.ConstantArgument("", "text"), None),
            s.OutputSpec(out.USER_OUTPUT, s.SymIntArgument("size"), None),
        ],
    )


def joint(s: Any) -> Any:
    """Of a graph with gradients."""
    tensor, out = s.TensorArgument, s.OutputKind
    return s.ExportGraphSignature(
        [
            s.InputSpec(s.InputKind.PARAMETER, tensor("p_w"), "w"),
            s.InputSpec(s.InputKind.USER_INPUT, tensor("x"), None),
        ],
        [
            s.OutputSpec(out.LOSS_OUTPUT, tensor("loss"), None),
            s.OutputSpec(out.GRADIENT_TO_PARAMETER, tensor("g"), "w"),
            s.OutputSpec(out.GRADIENT_TO_USER_INPUT, tensor("h"), "x"),
        ],
    )


def plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value


@pytest.mark.parametrize("name", CLASSES)
def test_fields_and_defaults_are_the_peers(name):
    def fields(module: Any) -> list[Any]:
        return [(f.name, f.default) for f in dataclasses.fields(getattr(module, name))]

    own = {"OutputSpec": [("write", None)]}  # what torch does not say; last, and never asked for
    assert fields(ours) == [*fields(peer), *own.get(name, [])]


@pytest.mark.parametrize("name", ["InputKind", "OutputKind"])
def test_kinds_have_the_peers_values(name):
    def members(module: Any) -> dict[str, int]:
        return {m.name: m.value for m in getattr(module, name)}

    assert members(ours) == members(peer)


def test_no_property_is_missing():
    assert {"parameters", "backward_signature", "input_tokens"} <= set(PROPERTIES)
    assert [n for n in PROPERTIES if not hasattr(ours.ExportGraphSignature, n)] == []


@pytest.mark.parametrize("name", PROPERTIES)
@pytest.mark.parametrize("make", [forward, joint])
def test_a_property_is_the_peers(name, make):
    assert plain(getattr(make(ours), name)) == plain(getattr(make(peer), name))


@pytest.mark.parametrize("old", ["sub", "x", "add", "size", "absent"])
def test_replace_all_uses_is_the_peers(old):
    mine, theirs = forward(ours), forward(peer)
    mine.replace_all_uses(old, "new")
    theirs.replace_all_uses(old, "new")
    assert [s.arg.name for s in mine.input_specs] == [s.arg.name for s in theirs.input_specs]
    assert [s.arg.name for s in mine.output_specs] == [s.arg.name for s in theirs.output_specs]


def test_a_renamed_input_is_renamed_where_it_is_written():
    """torch leaves the old name in the target, which then means nothing."""
    signature = forward(ours)
    signature.replace_all_uses("x", "new")
    assert signature.user_inputs_to_mutate == {"sub": "new"}


def test_constants_among_the_outputs_are_not_renamed():
    signature = forward(ours)
    signature.replace_all_uses("", "new")
    assert signature.output_specs[5].arg == ours.ConstantArgument("", "text")


@pytest.mark.parametrize("replace_inputs", [False, True])
def test_the_replace_hook_is_the_peers(replace_inputs):
    graph = fx.Graph()
    x = graph.placeholder("x")
    sub = graph.call_function(torch.ops.aten.sub.Tensor, (x, 1), name="sub")
    output = graph.output((sub,))
    for node, user in [(sub, output), (x, sub), (x, output)]:
        mine, theirs = forward(ours), forward(peer)
        mine.get_replace_hook(replace_inputs)(node, "new", user)
        theirs.get_replace_hook(replace_inputs)(node, "new", user)
        assert [s.arg.name for s in mine.input_specs] == [s.arg.name for s in theirs.input_specs]
        assert [s.arg.name for s in mine.output_specs] == [s.arg.name for s in theirs.output_specs]


def test_the_hook_keeps_names_true_while_a_pass_replaces_nodes():
    graph = fx.Graph()
    x = graph.placeholder("x")
    old = graph.call_function(torch.ops.aten.sub.Tensor, (x, 1), name="sub")
    graph.output((old, old))
    module = fx.GraphModule(torch.nn.Module(), graph)
    signature = forward(ours)
    with module._set_replace_hook(signature.get_replace_hook()), graph.inserting_after(old):
        new = graph.call_function(torch.ops.aten.neg.default, (x,), name="better")
        old.replace_all_uses_with(new)
    assert signature.user_inputs_to_mutate == {"better": "x"}
    assert signature.user_outputs[0] == "better"


def test_printed_as_in_the_documents():
    signature = joint(ours)
    assert str(signature) == (
        "ExportGraphSignature(\n"
        "    input_specs=[\n"
        "        InputSpec(kind=<InputKind.PARAMETER: 2>, arg=TensorArgument(name='p_w'), "
        "target='w', persistent=None),\n"
        "        InputSpec(kind=<InputKind.USER_INPUT: 1>, arg=TensorArgument(name='x'), "
        "target=None, persistent=None),\n"
        "    ],\n"
        "    output_specs=[\n"
        "        OutputSpec(kind=<OutputKind.LOSS_OUTPUT: 2>, arg=TensorArgument(name='loss'), "
        "target=None),\n"
        "        OutputSpec(kind=<OutputKind.GRADIENT_TO_PARAMETER: 5>, "
        "arg=TensorArgument(name='g'), target='w'),\n"
        "        OutputSpec(kind=<OutputKind.GRADIENT_TO_USER_INPUT: 6>, "
        "arg=TensorArgument(name='h'), target='x'),\n"
        "    ],\n"
        ")"
    )
    assert repr(forward(ours)).replace("ours", "") == repr(forward(peer))
