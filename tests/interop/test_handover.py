"""`to_torch` makes what torch's own reader makes of the same program: every node, every value, the
signature, ranges and conditions; and the program runs alike. `from_torch` gives back what was
handed over.

The sample has some random programs; `WHOLE=1` has five hundred.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import io
import logging
import math
import operator
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch._export.db.examples import all_examples
from torch._higher_order_ops import scan

import lostwax
from examples.models import MODELS
from fuzz import handover, ways
from fuzz.generate import KINDS, generate
from lostwax.errors import LostwaxError, SaveError
from lostwax.interop import from_torch, to_torch
from lostwax.interop.exchange import prepare
from lostwax.pt2.plain import find_lost
from tests import control_programs
from tests.interop.oracle import describe, describe_ours, differences, read_by_torch
from tests.interop.running import run
from tests.pt2 import peer_programs
from tests.pt2.compare import assert_runs_alike, assert_same
from tests.whole import sampled

pytestmark = pytest.mark.filterwarnings("ignore")
STATE = ("state.", "constants.", "examples")
"""Of state that shares memory, each hand-over has its own copies."""
OTHER_NAMES = ("modes", "regions")
"""Nodes that read graphs are called otherwise than these, which torch's reader does not keep."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)  # torch's reader tells of symbols that no node has
    yield
    logging.disable(logging.NOTSET)


def check(program: Any) -> Any:
    made = to_torch(program)
    made.validate()
    if not find_lost(program):
        assert differences(describe(made), describe(read_by_torch(program))) == []
    check_way_back(program, made)
    return made


def check_way_back(program: Any, made: Any) -> None:
    """There and back, a program is what it was; and once more there, what it was there."""
    back = from_torch(made)
    back.validate()
    plain, state, constants = prepare(program)
    given = dataclasses.replace(plain, state_dict=state, constants=constants)
    assert differences(describe_ours(back), describe_ours(given), STATE) == []
    assert differences(describe(to_torch(back)), describe(made), STATE) == []


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


@pytest.mark.parametrize("name", list(control_programs.cases()))
def test_control_flow(name: str) -> None:
    program = control_programs.program(name)
    if name in OTHER_NAMES:
        check_way_back(program, to_torch(program))
    else:
        check(program)


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
    assert differences(describe(made), describe(want), STATE) == []
    check_way_back(program, made)
    args, kwargs = names["inputs"](0)
    try:
        expected = run(want, args, kwargs)
    except Exception:  # of any class: what torch's module cannot hold or write
        return
    assert_same(run(made, args, kwargs), expected)


IN_TORCHS_HANDS = (
    ("ties", 6), ("identity", 1), ("enums", 4), ("state", 13), ("mixed", 53), ("rows", 11),
)  # fmt: skip


@pytest.mark.parametrize(("kind", "seed"), IN_TORCHS_HANDS)
def test_in_torchs_hands_a_program_does_what_it_does_in_ours(kind: str, seed: int) -> None:
    """A sample of `python -m fuzz.handover`."""
    assert handover.judge(seed, kind) == ("right", "")


# --------------------------------------------------------------------------- checks on data


class ChecksInBranch(nn.Module):
    def forward(self, x, k):
        n = k.item()
        torch._check(n >= 0)
        torch._check(n <= 6)
        z = torch.zeros(n)
        if x.sum() > 0:
            torch._check(n == 3)
            y = x + z.sum() + n
        else:
            y = x * 2 + z.sum()
        return y, z + 1


class ChecksInLoop(nn.Module):
    def forward(self, x, k):
        z = torch.zeros(k.item())
        while x.sum() < 3:
            torch._check(z.shape[0] == 3)
            x = x + z.sum() + 1
        return x, z + 1


@pytest.mark.parametrize(("cls", "other"), [(ChecksInBranch, -1.0), (ChecksInLoop, 4.0)])
def test_what_a_branch_checks_holds_in_it_alone(cls: Any, other: float) -> None:
    """torch was told that it always holds: the sizes outside were numbers, and what it made of the
    program refused all others."""
    program = lostwax.export(cls(), (torch.ones(2), torch.tensor(3)))
    made = to_torch(program)
    made.validate()
    (zeros,) = made.graph.find_nodes(op="call_function", target=torch.ops.aten.zeros.default)
    assert str(zeros.meta["val"].shape) == "torch.Size([u0])"
    for x, k in ((1.0, 3), (other, 5), (other, 0), (other, 3)):
        args = (torch.tensor([x, x]), torch.tensor(k))
        assert_same(made.module()(*args), cls()(*args))
    for module in (program.module(), made.module()):
        with pytest.raises(RuntimeError, match=r"u0 == 3 is required at .*test_handover"):
            module(torch.ones(2), torch.tensor(5))


class Truths(nn.Module):
    def forward(self, x):
        is_large = bool(x.sum() > 2)
        return x * is_large, is_large, int(is_large) + 1, not is_large


def test_a_truth_that_is_read_is_a_number() -> None:
    """To torch it is a `bool`; to make another program of this one raised."""
    program = lostwax.export(Truths(), (torch.ones(2),))
    made = to_torch(program)
    made.validate()
    check_way_back(program, made)
    for other in (made, made.run_decompositions()):
        module = other.module()
        for x in (torch.ones(2), 3 * torch.ones(2)):
            assert_same(module(x), Truths()(x))


# --------------------------------------------------------------------------- what torch has not


class Mode(enum.IntEnum):
    UP = 1


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 5


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda x: (x + 1, Mode.UP), "no members of an enumeration: .* in place of <Mode.UP: 1>"),
        (lambda x: (Doubled.apply(x), 1), "a backward of its own .* differentiates what it"),
    ],
)
def test_what_torch_has_no_form_for_is_told(function: Any, text: str) -> None:
    program = lostwax.export(Calls(function), (torch.ones(2, requires_grad=True),))
    with pytest.warns(UserWarning, match=text) as told:
        made = to_torch(program)
    assert told[0].filename == __file__
    file = io.BytesIO()
    torch.export.save(made, file)
    loaded = torch.export.load(io.BytesIO(file.getvalue()))
    for each in (made, loaded):
        found = each.module()(torch.ones(2))
        assert_same(found, (function(torch.ones(2))[0], 1))


# --------------------------------------------------------------------------- conditions on a call


def add_both(x: Any, y: Any) -> Any:
    return x.sum() + y.sum()


def ask_remainder(x: Any, y: Any) -> Any:
    return x.sum() + 1 if x.shape[0] % 3 == 0 else y.sum()


def ask_chain(x: Any, y: Any) -> Any:
    n = x.shape[0]
    for _ in range(5):
        n = (n * 3 + 1) // 2 + n % 7
    return x.sum() if n > 60 else y.sum()


A, B = lostwax.Dim("a"), lostwax.Dim("b", min=2, max=7)
AUTO = lostwax.Dim.AUTO
CONDITIONS: dict[str, tuple[Any, tuple[int, int], Any]] = {
    "twice": (add_both, (4, 4), (2 * A, 2 * A)),
    "twice and one more": (add_both, (4, 5), (2 * A, 2 * A + 1)),
    "one more first": (add_both, (5, 4), (A + 1, A)),
    "least": (add_both, (4, 3), (B, AUTO)),
    "limits of a dim that no size is": (add_both, (4, 6), (2 * B, 2 * B + 2)),
    "equal": (lambda x, y: x + y, (4, 4), (AUTO, AUTO)),
    "remainder": (ask_remainder, (3, 4), (AUTO, AUTO)),
    "long": (ask_chain, (9, 4), (AUTO, AUTO)),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_torch_refuses_the_calls_that_ours_refuses(name: str) -> None:
    """So do its file, what it makes of it, and what comes back."""
    function, sizes, dims = CONDITIONS[name]
    shapes = {"args": tuple({0: dim} for dim in dims)}
    example = tuple(torch.randn(size) for size in sizes)
    program = lostwax.export(Calls(function), example, dynamic_shapes=shapes)
    made = to_torch(program)
    file = io.BytesIO()
    torch.export.save(made, file)
    loaded = torch.export.load(io.BytesIO(file.getvalue()))
    programs = [made, made.run_decompositions(), loaded, from_torch(made), from_torch(loaded)]
    wanted = program.module()
    others = [each.module() for each in programs]
    sized = [(torch.randn(m), torch.randn(n)) for m in range(1, 10) for n in range(1, 10)]
    taken = [accepts(wanted, args) for args in sized]
    assert any(taken)
    assert not all(taken)
    for other in others:
        assert [accepts(other, args) for args in sized] == taken


class Calls(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def accepts(module: Any, args: Any) -> bool:
    try:
        module(*args)
    except (AssertionError, LostwaxError):
        return False
    return True


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
    with pytest.raises(RuntimeError, match="Cannot access data pointer of Tensor"):
        values[-1].data_ptr()
    assert type(copy.deepcopy(made)) is type(made)


def test_a_copy_after_unflatten_is_refused_as_of_torchs_own() -> None:
    """torch's `unflatten` leaves values with the program. Copied, they freed memory twice."""
    module, args = nn.Sequential(nn.Linear(4, 8), nn.ReLU()), (torch.randn(5, 4),)
    for made in (to_torch(lostwax.export(module, args)), torch.export.export(module, args)):
        made.run_decompositions()
        torch.export.unflatten(made)(*args)
        with pytest.raises(RuntimeError, match="Cannot access data pointer of Tensor"):
            copy.deepcopy(made)


@pytest.mark.parametrize("trainable", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_weights_that_are_fakes(trainable: bool, dynamic: bool) -> None:
    """Under a mode of the caller's, too, which was asked to make them parameters."""
    shapes = ({0: lostwax.Dim("batch")},) if dynamic else None
    with lostwax.FakeTensorMode():
        module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU()).to("cuda").eval()
        module.requires_grad_(trainable)
        args = (torch.randn(2, 4, device="cuda"),)
        program = lostwax.export(module, args, dynamic_shapes=shapes)
        made = to_torch(program)
    made.validate()
    check_way_back(program, made)
    weight = made.state_dict["0.weight"]
    assert isinstance(weight, nn.Parameter)
    assert (weight.device.type, weight.requires_grad) == ("cuda", trainable)
    assert type(weight) is type(made.graph.find_nodes(op="placeholder")[0].meta["val"])
    (example,) = made.example_inputs[0]
    assert type(example) is type(weight)
    assert isinstance(from_torch(made).example_inputs[0][0], lostwax.FakeTensor)
    assert copy.deepcopy(made).state_dict["0.weight"].shape == (4, 4)
    if not trainable:  # else torch ends the process, as of its own program: there is no CUDA
        from_torch(made.run_decompositions()).validate()


def test_a_program_with_tangents_is_saved_by_torch() -> None:
    """Its example has fakes: nobody has made tangents."""
    layer, x = nn.Linear(4, 3), torch.randn(5, 4, requires_grad=True)
    program = lostwax.export_joint(layer, (x,), tangents=True)
    made = to_torch(program)
    check_way_back(program, made)
    file = io.BytesIO()
    torch.export.save(made, file)
    loaded = torch.export.load(io.BytesIO(file.getvalue()))
    tangent = torch.randn(5, 3)
    state = (layer.weight.detach(), layer.bias.detach())
    for each in (made, loaded):
        kinds = [spec.kind.name for spec in each.graph_signature.output_specs]
        named = dict(zip(kinds, each.graph_module(*state, x.detach(), tangent), strict=False))
        assert_same(named["GRADIENT_TO_USER_INPUT"], tangent @ layer.weight)


class Grows(nn.Module):
    def forward(self, x, n):
        for _ in range(n.item()):
            x = torch.cat([x, x[-1:] * 2])
        return x


def test_symbols_of_data_are_in_order() -> None:
    """`u1 < u0` came back as `u0 > u1`."""
    program = lostwax.export(Grows(), (torch.ones(2, 3), torch.tensor(3)))
    made = to_torch(program)
    check_way_back(program, made)
    for n in (0, 1, 4):
        args = (torch.randn(2, 3), torch.tensor(n))
        assert_same(made.module()(*args), Grows()(*args))


@pytest.mark.parametrize("dynamic", [False, True])
def test_views_begin_where_they_do(dynamic: bool) -> None:
    """As in a program of torch's own."""

    def list_offsets(program: Any) -> dict[str, str]:
        nodes = [n for n in program.graph.nodes if "aten.s" in str(n.target)]
        return {str(n.target): str(n.meta["val"].storage_offset()) for n in nodes}

    shapes = ({0: lostwax.Dim.AUTO, 1: lostwax.Dim.AUTO},) if dynamic else None
    peer_shapes = ({0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO},) if dynamic else None
    ours = to_torch(lostwax.export(Views(), (torch.randn(4, 6),), dynamic_shapes=shapes))
    theirs = torch.export.export(Views(), (torch.randn(4, 6),), dynamic_shapes=peer_shapes)
    found, want = list_offsets(ours), list_offsets(theirs)
    if dynamic:
        assert found == {"aten.slice.Tensor": "2*s1", "aten.select.int": "2*s1 + 1"}
        theirs_names = [
            str(size) for size in theirs.graph.find_nodes(op="placeholder")[0].meta["val"].shape
        ]
        want = {key: text.replace(theirs_names[1], "s1") for key, text in want.items()}
    assert found == want


class Views(nn.Module):
    def forward(self, x):
        return x[2:].select(1, 1) + 1


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


class Pair(NamedTuple):
    one: Any
    other: Any


class Classes(nn.Module):
    def forward(self, pair, dtype):
        return Pair(pair.one + 1, torch.topk(pair.other, 2)), pair.one.to(dtype), dtype, 3j


def test_containers_and_constants_are_what_they_are() -> None:
    """Also those that files of torch have no name for: torch's own programs hold them, too."""
    args = (Pair(torch.randn(3), torch.randn(4, 6)), torch.float64)
    program = lostwax.export(Classes(), args)
    made = check(program)
    found = made.module()(*args)
    assert type(found[0]) is Pair
    assert type(found[0].other) is torch.return_types.topk
    assert found[2:] == (torch.float64, 3j)
    assert_runs_alike(made.module(), Classes(), args, {})


def read_and_count(x: torch.Tensor, c: torch.Tensor) -> Any:
    before = c.item() % 3  # nothing computes with it before the count goes on
    c += 1
    return x, before


def overwrite(x: torch.Tensor, c: torch.Tensor) -> Any:
    c.copy_(x)
    return x * 2


@pytest.mark.parametrize("function", [read_and_count, overwrite])
@pytest.mark.parametrize("by", ["in memory", "in a file"])
def test_torch_unflattens_what_reads_before_it_writes(function: Any, by: str) -> None:
    """Its `unflatten` writes to an input as soon as the new value is there."""

    def make_call() -> tuple[torch.Tensor, ...]:
        return torch.full((2,), 5), torch.tensor([1, 1])[: 1 + (function is overwrite)]

    class Module(nn.Module):
        def forward(self, x: torch.Tensor, c: torch.Tensor) -> Any:
            return function(x, c)

    program = lostwax.export(Module(), make_call())
    made = to_torch(program)
    if by == "in a file":
        file = io.BytesIO()
        lostwax.save(program, file)
        made = torch.export.load(io.BytesIO(file.getvalue()))
    given, expected = make_call(), make_call()
    assert_same(torch.export.unflatten(made)(*given), function(*expected))
    assert_same(given, expected)


def test_torch_knows_the_guards_of_the_program_and_no_others() -> None:
    """What torch asks while views of sizes that vary are made, holds for the example alone."""

    def parts(x: torch.Tensor) -> Any:
        return x[1:], x.reshape(-1)[x.shape[0] :], x[:, 2:].t()

    dims = ({0: lostwax.Dim("n", min=0), 1: lostwax.Dim("m", min=3)},)
    made = to_torch(lostwax.export(parts, (torch.ones(6, 8),), dynamic_shapes=dims))
    (node, *_) = made.graph.nodes
    env = node.meta["val"].fake_mode.shape_env
    assert len(env.guards) == len(made._guards_code)
    assert {str(s): str(r) for s, r in env.var_to_range.items()} == {
        str(s): str(r) for s, r in made.range_constraints.items() if s.is_Symbol
    }


def test_what_is_no_graph_is_refused() -> None:
    program = lostwax.export(Topk(), (torch.randn(4, 6),))
    with program.graph.inserting_before(program.graph.output_node()):
        program.graph.get_attr("nothing")
    with pytest.raises(SaveError, match=r"nothing is no graph; only graphs(.|\n)*node 'nothing'"):
        to_torch(program)


def test_torch_decomposes_what_reads_two_tensors_by_one_mask() -> None:
    """Its own trace counts a mask once, and cannot take two symbols for it."""

    def positive(x: torch.Tensor) -> Any:
        mask = x > 0
        return x[mask] + 1, (x * 2)[mask]

    x = torch.tensor([1.0, -1.0, 2.0])
    made = to_torch(lostwax.export(positive, (x,))).run_decompositions()
    assert_same(made.module()(x), positive(x))


def test_floats_keep_their_names_beside_those_that_torch_has_no_words_for() -> None:
    def roots(x: torch.Tensor, y: torch.Tensor) -> Any:
        a, b = x.sum().item(), y.sum().item()
        return y + math.sqrt(abs(b)), int(a)

    check(lostwax.export(roots, (torch.ones(2), torch.ones(2))))


def test_a_body_that_returns_a_list_comes_back_after_an_edit() -> None:
    """Making its types anew left the types of what it returns in a list, and not in a tuple."""

    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(2))

        def forward(self, x: torch.Tensor) -> Any:
            part = self.w[:1]
            y = scan(lambda c, r: (c + r * part[0], c * 1), x[0] * 1, x)[1]
            with torch.no_grad():
                self.w.add_(1)
            return y

    check(lostwax.export(Writing(), (torch.ones(2),)))


def test_a_class_that_is_made_for_one_module_comes_back_by_its_name() -> None:
    module = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
    check(lostwax.export(module, (torch.ones(3),)))


# --------------------------------------------------------------------------- the fuzzer itself

OUTCOMES = (("names", 30005, "skipped"), ("unwinding", 30505, "refused"), ("ways", 30028, "right"))


@pytest.mark.parametrize(("kind", "seed", "outcome"), OUTCOMES)
def test_the_fuzzer_judges_any_program(kind: str, seed: int, outcome: str) -> None:
    """One whose module torch does not take, one that raises KeyboardInterrupt, and one whose calls
    leave its buffer a history."""
    assert handover.judge(seed, kind)[0] == outcome


class Doubling(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Halving(torch.nn.Module):
    """torch captures no `while` on data."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        while x.sum() > 1:
            x = x / 2
        return x


def _judge_in_hands_that_raise(
    make: Any, is_wanted: Any, monkeypatch: pytest.MonkeyPatch, consumer: str = "module"
) -> str:
    taken = handover.to_torch
    handed: list[Any] = []

    def hand_over(program: Any) -> Any:
        handed.append(taken(program))
        return handed[-1]

    def take(made: Any) -> handover.Handed:
        if is_wanted(made in handed):
            raise RuntimeError("these hands take no such thing")
        return handover.Handed(made)

    monkeypatch.setattr(handover, "to_torch", hand_over)
    monkeypatch.setattr(handover, "CONSUMERS", {"module": handover.Handed, consumer: take})
    calls = [lambda: handover.Call([torch.ones(3)])]
    return handover._judge(handover.Case("", make, make, calls))[0]  # type: ignore[arg-type]


class Growing(torch.nn.Module):
    """Its loop does not run once."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(3) * 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.w * 1
        while y.sum() < x.sum():
            y = y * 2
        return y * x


class Wrong(Growing):
    """Another gradient than its own, which no loop is to blame for."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 2 - super().forward(x).detach()


def test_gradients_of_loops_that_do_not_run_are_torchs_and_no_others() -> None:
    calls = [lambda: handover.Call([torch.ones(3)])]
    case = handover.Case("", Growing, Growing, calls)  # type: ignore[arg-type]
    assert handover._judge(case)[:1] == ("limit",)
    program = lostwax.export(Growing(), (torch.ones(3),))
    ours = handover.call_all(handover.Handed(program), case)
    for exported, is_same in ((Growing, True), (Wrong, False)):
        made = to_torch(lostwax.export(exported(), (torch.ones(3),)))
        assert bool(handover._explain_gradients("module", made, case, ours)) is is_same


def test_what_torch_does_with_its_own_capture_is_no_limit_of_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judge = partial(_judge_in_hands_that_raise, monkeypatch=monkeypatch)
    assert judge(Doubling, lambda is_ours: False) == "right"
    assert judge(Doubling, lambda is_ours: True) == "limit"
    assert judge(Doubling, lambda is_ours: is_ours) == "wrong"


def test_where_torch_captures_nothing_the_judge_is_unsure(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it captures of our program says what torch takes, but not whether ours is sound."""
    judge = partial(_judge_in_hands_that_raise, Halving, monkeypatch=monkeypatch)
    assert judge(lambda is_ours: is_ours) == "unsure"
    assert judge(lambda is_ours: is_ours, consumer="saved") == "unsure"
    assert judge(lambda is_ours: True, consumer="saved") == "limit"
