"""Programs of torch here and back are what they were; and torch does with a program that is handed
over all that it does with its own: checks, runs, saves, loads, decomposes and unflattens it.

The sample has some programs; `WHOLE=1` has all of the tests'. (`test_handover.py` has programs of
ours, there and back.)
"""

from __future__ import annotations

import copy
import io
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.utils._pytree as pytree
from torch import nn
from torch._export.db.examples import all_examples

import lostwax
from examples.models import MODELS
from lostwax.errors import LoadError
from lostwax.interop import from_torch, to_torch
from tests import control_programs
from tests.interop.oracle import (
    describe_calls,
    describe_ours,
    differences,
    read_by_us,
)
from tests.interop.running import detach, run
from tests.pt2 import peer_programs
from tests.pt2.compare import assert_same, called
from tests.whole import sampled

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)  # torch's reader tells of symbols that no node has
    yield
    logging.disable(logging.NOTSET)


class Case(NamedTuple):
    module: nn.Module
    args: Any
    kwargs: Any = None
    dynamic: Any = None

    def ours(self) -> Any:
        args, kwargs = copy.deepcopy((self.args, self.kwargs))
        return lostwax.export(self.module, args, kwargs, dynamic_shapes=self.dynamic)

    def theirs(self) -> Any:
        args, kwargs = copy.deepcopy((self.args, self.kwargs))
        return torch.export.export(self.module, args, kwargs, dynamic_shapes=self.dynamic)


def of_control(name: str) -> Case:
    case = control_programs.cases()[name]
    return Case(case.module, case.args, None, case.dynamic)


def of_format(name: str) -> Case:
    case = peer_programs.cases()[name]
    return Case(case.module, case.args, case.kwargs, case.dynamic)


def of_exportdb(name: str) -> Case:
    case = all_examples()[name]
    return Case(case.model, case.example_args, case.example_kwargs, case.dynamic_shapes)


def of_model(name: str) -> Case:
    example = MODELS[name]
    dims = tuple({d: lostwax.Dim(n) for d, n in each.items()} for each in example.dynamic)
    return Case(example.tiny().eval(), example.tiny_inputs(), None, dims)


CONTROL = [name for name, case in control_programs.cases().items() if case.by == "both"]
CASES: dict[str, Callable[[], Case]] = {
    **{f"control: {name}": partial(of_control, name) for name in CONTROL},
    **{f"format: {name}": partial(of_format, name) for name in peer_programs.cases()},
    **{f"exportdb: {name}": partial(of_exportdb, name) for name in sorted(all_examples())},
    **{f"model: {name}": partial(of_model, name) for name in MODELS},
}


@pytest.mark.parametrize(
    "name", sampled(["control: cond closure", "format: trees", "format: item"], list(CASES))
)
def test_theirs_here_and_back(name: str) -> None:
    case = CASES[name]()
    try:
        theirs = case.theirs()
    except Exception:  # of any class: what torch does not export
        return
    ours = from_torch(theirs)
    ours.validate()
    if name in UNTAKEN:
        return
    assert differences(describe_ours(ours, True), describe_ours(read_by_us(theirs), True)) == []
    made = to_torch(ours)
    made.validate()
    assert differences(describe_calls(made), describe_calls(theirs)) == []
    assert_same(run(made, case.args, case.kwargs), run(theirs, case.args, case.kwargs))


UNTAKEN = {
    "format: shared": "torch.export.save: tensors view the same data as different types",
    "format: parameter": "torch writes to the parameter with gradients switched on",
}
"""What torch does not do with its own programs, either."""
OURS = {
    **{f"control: {name}": partial(of_control, name) for name in control_programs.cases()},
    **CASES,
}
TAKEN = [name for name in OURS if name not in UNTAKEN]


@pytest.mark.parametrize(
    "name", sampled(["control: while", "control: while number", "format: trees"], TAKEN)
)
def test_torch_takes_what_is_handed_over(name: str) -> None:
    case = OURS[name]()
    program = case.ours()
    check_uses(to_torch(program), run(program, case.args, case.kwargs), case)


def check_uses(made: Any, want: Any, case: Case) -> None:
    """Do with a program what torch does with its own."""
    made.validate()
    file = io.BytesIO()
    torch.export.save(made, file)
    loaded = torch.export.load(io.BytesIO(file.getvalue()))
    core = made.run_decompositions()
    core.validate()
    nested = torch.export.unflatten(made)
    assert_same(run(made, case.args, case.kwargs), want)
    assert_same(run(loaded, case.args, case.kwargs), want)
    assert_close(run(core, case.args, case.kwargs), want)
    assert_same(detach(called(nested, case.args, case.kwargs)), want)


def assert_close(found: Any, want: Any) -> None:
    """Equal up to the order in which an operator that was taken apart adds."""
    (some, one), (others, other) = pytree.tree_flatten(found), pytree.tree_flatten(want)
    assert one == other
    torch.testing.assert_close(some, others)


# ---------------------------------------------------------------------------------------- refusals


def find_call(theirs: Any) -> Any:
    return theirs.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default)[0]


def spoil_target(theirs: Any) -> None:
    find_call(theirs).target = len


def spoil_value(theirs: Any) -> None:
    del find_call(theirs).meta["val"]


def spoil_layout(theirs: Any) -> None:
    theirs.graph.find_nodes(op="placeholder")[0].meta["val"] = torch.ones(2, 2).to_sparse()


def spoil_attribute(theirs: Any) -> None:
    theirs.graph_module.register_buffer("held", torch.ones(2))
    with theirs.graph.inserting_before(theirs.graph.output_node()):
        theirs.graph.get_attr("held")


def spoil_argument(theirs: Any) -> None:
    find_call(theirs).kwargs = {"other": torch.Generator()}


def spoil_input(theirs: Any) -> None:
    spec = theirs.graph_signature.input_specs[0]
    spec.kind = type(spec.kind).CUSTOM_OBJ
    spec.arg = torch.export.graph_signature.CustomObjArgument(name="x", class_fqn="a.B")


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (spoil_target, r"'builtins.len' is not a function that a program may call.*node 'relu'"),
        (spoil_value, r"nothing is known of its result: it has no meta\['val'\].*node 'relu'"),
        (spoil_layout, r"a tensor of torch.float32, torch.sparse_coo, has no type.*node 'input'"),
        (spoil_attribute, r"held is a Tensor; only graphs are read as attributes"),
        (spoil_argument, r"its argument <torch.*Generator.*> is neither a node nor a constant"),
        (spoil_input, r"the input 'x' is an object of the class 'a.B'; a program of lostwax holds"),
    ],
)
def test_what_we_have_not_is_refused(spoil: Callable[[Any], None], text: str) -> None:
    theirs = torch.export.export(nn.ReLU(), (torch.ones(2, 2),))
    spoil(theirs)
    with pytest.raises(LoadError, match=f"(?s){text}"):
        from_torch(theirs)


def test_what_is_no_program_is_refused() -> None:
    with pytest.raises(TypeError, match="takes torch's programs; this is a ReLU"):
        from_torch(nn.ReLU())  # type: ignore[arg-type]


class Contiguous(nn.Module):
    """It writes to what `contiguous` gives, which is its input if that lies so."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.contiguous()
        y.add_(1)
        return y * 2


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_torch_checks_strides_also_when_it_has_decomposed(is_dynamic: bool) -> None:
    """Its decompositions take those of the graph for known."""
    shapes = ({0: lostwax.Dim("rows", max=8)},) if is_dynamic else None
    program = lostwax.export(Contiguous(), (torch.ones(2, 3, 4),), dynamic_shapes=shapes)
    made = to_torch(program)
    decomposed = made.run_decompositions()
    others = torch.ones(5 if is_dynamic else 2, 3, 4), torch.ones(2, 4, 3).mT
    for theirs in (made, decomposed):
        assert torch.equal(theirs.module()(others[0]), torch.full_like(others[0], 4))
        others[0].fill_(1)
        with pytest.raises((AssertionError, RuntimeError), match=r"stride"):
            theirs.module()(others[1])
    if is_dynamic:
        assert made.module()(torch.ones(0, 4, 3).mT).shape == (0, 3, 4), "it has no layout"
    again = from_torch(made)
    assert list(again.guards) == list(program.guards)
    with pytest.raises(RuntimeError, match="must have strides"):
        again.module()(others[1])
    with pytest.raises(LoadError, match=r"(?s)does not assert .*stride.*decompose it here"):
        from_torch(decomposed)


def test_floats_of_data_come_back_in_their_order() -> None:
    """torch sorts what it adds and multiplies."""

    def scale(x: torch.Tensor, y: torch.Tensor) -> Any:
        a, n = y.sum().item(), int(x.sum())
        return x * (a - n), x * (n - a), x * (a + (2 - n)), x * (1e-9 * abs(a)), x * -(a * n)

    program = lostwax.export(scale, (torch.ones(3), torch.ones(2) * 1.5))
    again = from_torch(to_torch(program))
    numbers = [
        [str(node.meta["val"]) for node in each.graph.nodes if node.op == "call_function"]
        for each in (program, again)
    ]
    assert numbers[0] == numbers[1]
    assert sum("f1" in text or "f0" in text for text in numbers[0]) > 4
