"""`to_torch` makes what torch's own reader makes of the same program: every node, every value, the
signature, ranges and conditions; and the program runs alike.

The sample has some random programs; `WHOLE=1` has five hundred.
"""

from __future__ import annotations

import copy
import io
import logging
import operator
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import nn
from torch._export.db.examples import all_examples

import lostwax
from examples.models import MODELS
from fuzz import ways
from fuzz.generate import KINDS, generate
from lostwax.errors import LostwaxError, SaveError
from lostwax.interop import to_torch
from tests import control_programs
from tests.interop.oracle import describe, differences, read_by_torch
from tests.pt2 import peer_programs
from tests.pt2.compare import assert_runs_alike, assert_same, called
from tests.whole import sampled

pytestmark = pytest.mark.filterwarnings("ignore")
OTHER_NAMES = {"regions"}
"""One graph is read by several nodes there, which torch's reader calls otherwise."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)  # torch's reader tells of symbols that no node has
    yield
    logging.disable(logging.NOTSET)


def check(program: Any) -> Any:
    made = to_torch(program)
    made.validate()
    assert differences(describe(made), describe(read_by_torch(program))) == []
    return made


@pytest.mark.parametrize("keep", ["core", "composite", "dynamic"])
@pytest.mark.parametrize("name", sampled(["bert", "unet"], list(MODELS)))
def test_models(name: str, keep: str) -> None:
    example = MODELS[name]
    model, inputs = example.tiny().eval(), example.tiny_inputs()
    if keep == "dynamic":
        dims = tuple({d: lostwax.Dim(n) for d, n in each.items()} for each in example.dynamic)
        program = lostwax.export(model, inputs, dynamic_shapes=dims)
    else:
        options: Any = {"keep": "composite"} if keep == "composite" else {}
        program = lostwax.export(model, inputs, **options)
    made = check(program)
    assert_runs_alike(made.module(), program.module(), inputs, {})
    for key, value in program.state_dict.items():
        assert made.state_dict[key] is value


@pytest.mark.parametrize("name", [n for n in control_programs.cases() if n not in OTHER_NAMES])
def test_control_flow(name: str) -> None:
    check(control_programs.program(name))


@pytest.mark.parametrize("name", sorted(all_examples()))
def test_exportdb(name: str) -> None:
    case = all_examples()[name]
    args, kwargs = copy.deepcopy((case.example_args, case.example_kwargs))
    program = lostwax.export(case.model, args, kwargs, dynamic_shapes=case.dynamic_shapes)
    made = check(program)
    assert_runs_alike(made.module(), program.module(), case.example_args, case.example_kwargs)


@pytest.mark.parametrize("name", list(peer_programs.cases()))
def test_parts_of_the_format(name: str) -> None:
    case = peer_programs.cases()[name]
    check(lostwax.export(case.module, case.args, case.kwargs, dynamic_shapes=case.dynamic))


@pytest.mark.parametrize("kind", KINDS)
def test_random_programs(kind: str) -> None:
    tried = 0
    for seed in range(sampled(5, 84)):
        names = generate(kind, seed).compiled().fresh()
        try:
            subject = names["make"]()
            args, kwargs = names["inputs"](0)
            dynamic = ways.spec(names, args, kwargs)
            program = lostwax.export(subject, args, kwargs, dynamic_shapes=dynamic)
        except Exception:  # of any class: eager's own, too; which are refused is not asked here
            continue
        tried += 1
        check_random(program, names)
    assert tried > sampled(1, 30)


def check_random(program: Any, names: dict[str, Any]) -> None:
    try:
        want = read_by_torch(program)
    except (AssertionError, LostwaxError, torch._export.serde.serialize.SerializeError):
        to_torch(program)  # the long way has no form for it
        return
    made = to_torch(program)
    made.validate()
    ignored = ("state.", "constants.")  # of state that shares memory, each has its own copies
    found = differences(describe(made), describe(want))
    assert [each for each in found if not each.startswith(ignored)] == []
    args, kwargs = names["inputs"](0)
    try:
        expected = run(want, args, kwargs)
    except Exception:  # of any class: what torch's module cannot hold or write
        return
    assert_same(run(made, args, kwargs), expected)


def run(program: Any, args: Any, kwargs: Any) -> Any:
    """What a program gives and what it makes of its inputs; its state is then as before."""
    held = (*program.state_dict.values(), *program.constants.values())
    before = [(t, t.detach().clone()) for t in held if isinstance(t, torch.Tensor)]
    try:
        return copy.deepcopy(detach(called(program.module(), args, kwargs)))
    finally:
        for tensor, value in before:
            tensor.data.copy_(value)


def detach(found: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda t: t.detach(), found)


@pytest.mark.parametrize("dynamic", [False, True])
def test_values_are_fakes_as_torch_makes_them(dynamic: bool) -> None:
    """Each has memory of its own, of one mode; what is not a fake's business is left as it is."""
    shapes = ({0: lostwax.Dim("batch", min=2)},) if dynamic else None
    program = lostwax.export(
        nn.Sequential(nn.Linear(4, 8), nn.ReLU()), (torch.randn(5, 4),), dynamic_shapes=shapes
    )
    with lostwax.FakeTensorMode():  # not asked
        made = to_torch(program)
    values = [node.meta["val"] for node in made.graph.nodes if node.op != "output"]
    assert len({value.untyped_storage()._cdata for value in values}) == len(values)
    assert len({id(value.fake_mode) for value in values}) == 1
    other = [n.meta["val"] for n in read_by_torch(program).graph.nodes if n.op != "output"]
    for one, two in zip(values, other, strict=True):
        assert sorted(vars(one)) == sorted(vars(two))
        assert str(torch._C._dispatch_keys(one)) == str(torch._C._dispatch_keys(two))
        assert str(one.untyped_storage().nbytes()) == str(two.untyped_storage().nbytes())
        with one.fake_mode:
            assert str((one * 2).add_(1).t().shape) == str(two.t().shape)
    if not dynamic:
        assert copy.deepcopy(values[-1]).shape == (5, 8)
    assert type(copy.deepcopy(made)) is type(made)


def test_a_result_that_is_read_twice() -> None:
    """torch's serializer wants each item once: the second node is the first."""
    program = lostwax.export(Topk(), (torch.randn(4, 6),))
    first = next(n for n in program.graph.nodes if n.target is operator.getitem)
    output = program.graph.output_node()
    with program.graph.inserting_before(output):
        again = program.graph.call_function(operator.getitem, (first.args[0], first.args[1] - 2))
    again.meta = dict(first.meta)
    output.args = ((again, *output.args[0][1:]),)
    program.graph_signature.output_specs[0].arg.name = again.name
    made = to_torch(program)
    made.validate()
    assert len(made.graph.nodes) == len(program.graph.nodes) - 1
    torch.export.save(made, io.BytesIO())
    x = torch.randn(4, 6)
    assert_same(made.module()(x), Topk()(x))


class Topk(nn.Module):
    def forward(self, x):
        return tuple(torch.topk(x, 2))


def test_what_is_no_graph_is_refused() -> None:
    program = lostwax.export(Topk(), (torch.randn(4, 6),))
    with program.graph.inserting_before(program.graph.output_node()):
        program.graph.get_attr("nothing")
    with pytest.raises(SaveError, match=r"nothing is no graph; only graphs(.|\n)*node 'nothing'"):
        to_torch(program)
