"""A program cut into stages: one after the other they compute what it does, each is a program like
any other, and what cannot be cut is refused."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lostwax
from lostwax import Dim
from lostwax.errors import SplitError
from lostwax.ir.stages.split import Stages


class Rope(nn.Module):
    """Layers that all read what is computed before the first."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(layers)])
        self.head = nn.Linear(8, 12, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        angle = torch.arange(tokens.shape[1])[:, None] * torch.arange(8.0)
        cos, sin = angle.cos(), angle.sin()
        for layer in self.layers:
            x = layer(x) * cos + x.flip(-1) * sin
        out: Tensor = self.head(x)
        return out


def tokens(batch: int = 2, length: int = 5) -> Tensor:
    return torch.randint(0, 12, (batch, length))


OPEN: Any = ({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},)


def reload(program: Any) -> Any:
    file = io.BytesIO()
    lostwax.save(program, file)
    file.seek(0)
    return lostwax.load(file)


def run_stages(stages: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
    """As processes would: what is sent arrives in memory of its own."""
    values = stages[0].module()(*args, **kwargs)
    for stage in stages[1:]:
        assert all(v.is_contiguous() for v in values)
        values = stage.module()(*(v.clone() for v in values))
    return values


def check(
    module: nn.Module, args: tuple[Any, ...], at: list[str], others: Sequence[Any] = (), **more: Any
) -> Stages:
    """The stages compute what the module does, also those from files."""
    program = lostwax.export(module, args, **more)
    before = str(program)
    stages = lostwax.split(program, at)
    assert str(program) == before
    files = [reload(stage) for stage in stages]
    for given in (args, *others):
        expected = module(*given)
        for way in (stages, files):
            found = run_stages(way, *given)
            torch.testing.assert_close(found, expected)
    return stages


def test_what_later_stages_need_is_handed_on() -> None:
    stages = check(
        Rope().eval(), (tokens(),), ["layers.1", "head"], [(tokens(3, 7),)], dynamic_shapes=OPEN
    )
    given = [s.graph_signature.user_inputs for s in stages]
    assert [len(each) for each in given] == [1, 3, 1]  # cos, sin and x; x
    assert [sorted(s.state_dict) for s in stages] == [
        ["embed.weight", "layers.0.bias", "layers.0.weight"],
        ["layers.1.bias", "layers.1.weight", "layers.2.bias", "layers.2.weight"],
        ["head.weight"],
    ]
    assert all(list(map(str, s.range_constraints)) == ["s0", "s1"] for s in (stages[0], stages[1]))
    assert repr(stages).splitlines()[4] == "1: from layers.1, 144 weights"
    assert "takes cos: f32[s1, 8], sin: f32[s1, 8], add: f32[s0, s1, 8]" in repr(stages)


def test_torch_reads_the_file_of_a_stage() -> None:
    module = Rope()
    stages = lostwax.split(lostwax.export(module, (tokens(),), dynamic_shapes=OPEN), ["layers.1"])
    values: Any = (given := tokens(3, 4),)
    for stage in stages:
        file = io.BytesIO()
        lostwax.save(stage, file)
        file.seek(0)
        values = torch.export.load(file).module()(*values)
    torch.testing.assert_close(values, module(given))


def test_gradients_go_through_stages() -> None:
    module = Rope()
    stages = lostwax.split(lostwax.export(module, (tokens(),)), ["layers.1", "head"])
    parts = [stage.module() for stage in stages]
    values: Any = (given := tokens(),)
    for part in parts:
        values = part(*values)
    values.square().mean().backward()
    module(given).square().mean().backward()
    wanted = dict(module.named_parameters())
    found = [pair for part in parts for pair in part.named_parameters()]
    assert len(found) == len(wanted)
    for name, parameter in found:
        torch.testing.assert_close(parameter.grad, wanted[name].grad)


class Layers(nn.Module):
    """Three linear layers, called as a test says."""

    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()
        self.layers, self.run = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)]), run

    def forward(self, x: Tensor) -> Any:
        return self.run(x, *self.layers)


def run_frozen(x: Tensor, one: Any, two: Any, three: Any) -> Any:
    with torch.no_grad():
        a = one(x)
    return two(a) + three(x)


def run_detached(x: Tensor, one: Any, two: Any, three: Any) -> Any:
    a = one(x)
    return two(a.detach()) + three(a)


def run_masked(x: Tensor, one: Any, two: Any, three: Any) -> Any:
    mask = x > 0
    return three(two(one(x).masked_fill(mask, 0))).masked_fill(~mask, 1)


def run_early(x: Tensor, one: Any, two: Any, three: Any) -> Any:
    a = one(x)
    return {"a": a, "x": x, "n": x.shape[0], "none": None, "y": three(two(a))}


def run_branches(x: Tensor, one: Any, two: Any, three: Any) -> Any:
    y = one(x)
    y = three(y) if y.sum() > 0 else y - 1
    y = two(y)
    return three(y) * 2 if y.sum() > 0 else y - 2


def run_in_lists(x: Tensor, one: Any, two: Any, three: Any) -> Any:
    parts = [one(each) for each in (x, x + 1)]
    return [two(each) for each in parts], three(parts[0]).t()


@pytest.mark.parametrize(
    ("run", "start"),
    [
        (run_frozen, "layers.1"),
        (run_detached, "layers.1"),
        (run_masked, "layers.1"),
        (run_early, "layers.1"),
        (run_branches, "layers.1"),
        (run_in_lists, "layers.1@0"),
    ],
)
def test_gradients_are_those_of_the_whole(run: Callable[..., Any], start: str) -> None:
    torch.manual_seed(0)
    module, x = Layers(run), torch.randn(3, 4)
    for sign in (1, -1):
        stages = check(module, (x * sign,), [start], [(-x * sign,)])
        parts = [stage.module() for stage in stages]
        module.zero_grad()
        for way in (run_stages(parts_of(parts), x), module(x)):
            sum(t.square().sum() for t in leaves_of(way) if t.requires_grad).backward()
        found: dict[str, Tensor] = {}
        for part in parts:
            for name, each in part.named_parameters():
                if each.grad is not None:
                    found[name] = found.get(name, torch.zeros(())) + each.grad
        for name, each in module.named_parameters():
            wanted = torch.zeros_like(each) if each.grad is None else each.grad
            torch.testing.assert_close(found.get(name, torch.zeros_like(each)), wanted)


def leaves_of(value: Any) -> list[Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(value) if isinstance(t, Tensor)]


def parts_of(modules: Sequence[Any]) -> list[Any]:
    """Modules that were made once, for `run_stages`."""
    return [SimpleNamespace(module=lambda m=m: m) for m in modules]


def test_the_call_of_the_first_and_the_result_of_the_last_are_the_program_s() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, batch: dict[str, Tensor], scale: float = 2.0, *, late: Tensor) -> Any:
            x = self.one(batch["x"]) * scale
            return {"y": self.two(x) + late, "n": (3, None, late)}

    module = Named()
    call = ({"x": torch.randn(2, 3)},)
    program = lostwax.export(module, call, {"late": torch.randn(2, 3)})
    stages = lostwax.split(program, ["two"])
    found = run_stages(stages, *call, late=(late := torch.randn(2, 3)))
    torch.testing.assert_close(found, module(*call, late=late))
    assert stages[1].graph_signature.user_inputs == ("late", "mul")


class Both(nn.Module):
    """Two modules of nothing, with what a test says before, between and after them."""

    def __init__(self, first: Callable[..., Any], then: Callable[..., Any]) -> None:
        super().__init__()
        self.one, self.two = nn.ReLU(), nn.ReLU()
        self.first, self.then = first, then

    def forward(self, *args: Tensor) -> Any:
        values = self.first(self.one(args[0]), *args[1:])
        values = values if isinstance(values, tuple) else (values,)
        return self.then(self.two(values[0]), *values)


IMAGE = torch.randn(2, 3, 4, 5)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (lambda x: (x, x.transpose(0, 1)), lambda y, x, t: (y, t @ t.transpose(-1, -2))),
        (lambda x: (x, x.exp().permute(3, 1, 0, 2).exp()), lambda y, x, t: (y, t.mean((0, 1)), t)),
        (lambda x: (x, x[:, :1].expand(2, 3, 4, 5)), lambda y, x, t: (y, t, y + t)),
        (lambda x: (x, x[..., 1:3]), lambda y, x, t: (y, t.sin())),
        (lambda x: (x, *x.unbind(1)), lambda y, x, a, b, c: (y, a - b * c)),
        (lambda x: (x, *x.topk(2)), lambda y, x, values, places: (y, values * places)),
        (lambda x: (x, *x.split(2, -1)), lambda y, x, a, b, c: (y, a + b)),
        (lambda x: (x, x.sum() > 0), lambda y, x, sign: torch.where(sign, y, -y)),
        (lambda x: (x, x.to(memory_format=torch.channels_last)), lambda y, x, t: (y, t.sin())),
        (lambda x: (x, x.unfold(3, 2, 1)), lambda y, x, t: (y, t.sum(-1))),
    ],
)
def test_layouts_are_as_they_were(first: Any, then: Any) -> None:
    """What goes to the next stage does so in one piece, and is laid out as before when read."""
    module = Both(first, then)
    stages = check(module, (IMAGE,), ["two"])
    found, expected = run_stages(stages, IMAGE), module(IMAGE)
    assert [t.stride() for t in tuple(found)] == [t.stride() for t in tuple(expected)]


def test_numbers_are_computed_from_sizes() -> None:
    def first(x: Tensor, y: Tensor) -> Any:
        return x, x.shape[0] // 2, y

    def then(r: Tensor, x: Tensor, n: int, y: Tensor) -> Tensor:
        return r[:n] * n + y.shape[0]

    module = Both(first, then)
    call = (torch.randn(4, 3), torch.randn(6))
    others = [(torch.randn(n, 3), torch.randn(m)) for n, m in ((8, 2), (2, 9))]
    sizes: Any = (({0: 2 * Dim("half")}, {0: Dim.DYNAMIC}),)
    stages = check(module, call, ["two"], others, dynamic_shapes=sizes)
    assert stages[1].graph_signature.user_inputs == ("args_1", "relu")


def test_numbers_of_data() -> None:
    def first(x: Tensor) -> Any:
        n = x.sum().to(torch.int64).item()
        torch._check(n >= 0)
        torch._check(n <= 3)
        return x, n, x.nonzero()

    def then(r: Tensor, x: Tensor, n: int, places: Tensor) -> Tensor:
        return r.sum() * n + places.sum() + torch.ones(n).sum() + places.shape[0]

    others = [(torch.tensor([1.0, 1, 1]),), (torch.tensor([0.0, 0, 0]),)]
    check(Both(first, then), (torch.tensor([0.0, 2, 0]),), ["two"], others)


def test_what_is_tied_is_in_both() -> None:
    module = Rope()
    module.head.weight = module.embed.weight
    stages = check(module, (tokens(),), ["layers.1", "head"])
    assert stages.shared == {"embed.weight": [0, 2]}
    assert sorted(stages[2].state_dict) == ["embed.weight", "head.weight"]
    assert "shared by [0, 2]: embed.weight" in repr(stages)


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.n += x.sum(0)
        return x * 2


class Counting(nn.Module):
    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.count, self.layer, self.reads = Counts(), nn.Linear(3, 3), reads

    def forward(self, x: Tensor) -> Tensor:
        before = self.count.n.clone() if self.reads else None
        x = self.layer(self.count(x))
        return x + self.count.n if before is None else x + before


def test_a_written_buffer_stays_where_it_is_written() -> None:
    """What the next stage reads of it is a copy: the next call must not change it."""
    module = Counting(reads=False)
    program = lostwax.export(module, (torch.ones(2, 3),))
    stages = lostwax.split(program, ["layer"])
    assert list(stages[0].state_dict) == ["count.n"]
    first, second = (stage.module() for stage in stages)
    inputs = [torch.randn(2, 3) for _ in range(3)]
    sent = [first(x) for x in inputs]  # as a schedule does
    found = [second(*values) for values in sent]
    torch.testing.assert_close(found, [module(x) for x in inputs])
    torch.testing.assert_close(first.count.n, module.count.n)


def test_batch_norm_is_trained_in_its_stage() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2), nn.BatchNorm1d(2))
    stages = lostwax.split(lostwax.export(module, (torch.randn(5, 3),)), ["2"])
    parts = [stage.module() for stage in stages]
    for _ in range(2):
        values: Any = (x := torch.randn(5, 3),)
        for part in parts:
            values = part(*values)
        torch.testing.assert_close(values, module(x))
    found = {name: value for part in parts for name, value in part.state_dict().items()}
    torch.testing.assert_close(found, dict(module.state_dict()))


def refuse(module: Any, args: tuple[Any, ...], at: Any, **more: Any) -> str:
    program = lostwax.export(module, args, **more)
    with pytest.raises(SplitError) as caught:
        lostwax.split(program, at)
    return str(caught.value) + "".join(caught.value.__notes__)


@pytest.mark.parametrize(
    ("at", "said"),
    [
        (["layers.9"], "the program has no module 'layers.9' (did you mean 'layers."),
        (["nothing"], "a path as in named_modules(): embed, layers.0, layers.1, layers.2, head"),
        ("layers.1", 'at=["layers.4"], for two stages'),
        ([], "takes a list of the modules"),
        ([3], "takes a list of the modules"),
        (3, "at= is 3, and takes a list of the modules"),
        (None, "takes a list of the modules"),
        (["layers.1@"], "has no call ''; it is called 1 times"),
        (["layers.1@²"], "has no call '²'"),
        (["layers.2", "layers.1"], "at=['layers.1', 'layers.2']"),
        (["layers.1", "layers.1"], "begin with the same operator, 'view_2'"),
        (["embed"], "'embed' is where the program begins"),
        (["embed", "head"], "at=['head']"),
        (["layers"], 'instead: at=["layers.0"], the first in it'),
    ],
)
def test_paths_that_are_refused(at: Any, said: str) -> None:
    message = refuse(Rope(), (tokens(),), at)
    assert said in message, message
    assert "test_split.py" in message


def test_paths_may_come_one_after_the_other() -> None:
    program = lostwax.export(Rope(), (tokens(),))
    stages = lostwax.split(program, (f"layers.{i}" for i in (1, 2)))  # type: ignore[arg-type]
    assert stages.at == ("layers.1", "layers.2")
    assert len(stages) == 3


def test_a_module_that_is_called_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.layer(x.sin()).cos())

    module, call = Twice(), (torch.randn(2, 3),)
    message = refuse(module, call, ["layer"])
    assert "is called 2 times" in message
    assert 'with one of "layer@0", "layer@1"' in message
    stages = check(module, call, ["layer@0", "layer@1"])
    assert stages.shared == {"layer.bias": [1, 2], "layer.weight": [1, 2]}
    assert "has no call '2'" in refuse(module, call, ["layer@2"])


def test_a_module_in_a_branch() -> None:
    class Chooses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.inner, self.last = nn.ReLU(), nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            x = self.inner(x) if x.sum() > 1 else x + 1
            return self.last(x)

    module, call = Chooses(), (torch.randn(2, 3),)
    message = refuse(module, call, ["inner"])
    assert "'inner' is called inside of 'cond', a branch or a loop" in message
    assert "test_split.py" in message
    check(module, call, ["last"], [(torch.ones(2, 3),), (-torch.ones(2, 3),)])


def test_a_module_that_computes_nothing() -> None:
    module = nn.Sequential(nn.ReLU(), nn.Identity(), nn.Tanh())
    assert "'1' computes nothing in this program" in refuse(module, (torch.ones(2),), ["1"])


def test_state_that_one_stage_writes_and_another_reads() -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.register_buffer("n", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            y = self.layer(x.sin() + self.n)
            self.n += y.sum(0)
            return y

    message = refuse(Late(), (torch.ones(2, 3),), ["layer"])
    assert "'n' is read in stage 0 and written in stage 1" in message
    assert "self.n += y.sum(0)" in message


def test_an_argument_that_a_later_stage_writes() -> None:
    def write(y: Tensor, x: Tensor, target: Tensor) -> Tensor:
        target.add_(1)
        return y

    module = Both(lambda x, target: (x, target), write)
    message = refuse(module, (torch.ones(2), torch.ones(2)), ["two"])
    assert "is read in stage 0 and written in stage 1" in message
    early = Both(lambda x, target: (x, target.mul_(2)), lambda y, x, t: y + t)
    program = lostwax.export(early, (torch.ones(2), torch.ones(2)))
    found = run_stages(lostwax.split(program, ["two"]), torch.ones(2), given := torch.ones(2))
    assert (found.tolist(), given.tolist()) == ([3, 3], [2, 2])


def test_memory_around_a_tensor_does_not_travel() -> None:
    """(Our own captures look at memory from its beginning.)"""

    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.two = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            part = (x * 2)[1:]
            y = self.two(x)
            return y[:2] + part.as_strided((2,), (1,), 0)

    program = lostwax.interop.from_torch(torch.export.export(Looks(), (torch.ones(4),)))
    with pytest.raises(SplitError, match="looks at the memory around 'slice"):
        lostwax.split(program, ["two"])


def test_a_number_that_no_tensor_has() -> None:
    module = Both(lambda x, n: (x, n), lambda y, x, n: y * n)
    sizes: Any = ((None, Dim.DYNAMIC),)
    message = refuse(module, (torch.ones(2), 3), ["two"], dynamic_shapes=sizes)
    assert "an input of the program" in message
    assert "as a tensor" in message


def test_programs_that_are_not_cut() -> None:
    joint = lostwax.export_joint(Rope(), (tokens(),), loss=lambda y: y.mean())
    with pytest.raises(SplitError, match="has its own backward"):
        lostwax.split(joint, ["layers.1"])
    with pytest.raises(TypeError, match="split takes a program of lostwax"):
        lostwax.split(Rope(), ["layers.1"])  # type: ignore[arg-type]


def test_sizes_are_checked_in_the_first_stage() -> None:
    sizes: Any = ({1: Dim("length", min=2, max=6)},)
    stages = lostwax.split(lostwax.export(Rope(), (tokens(),), dynamic_shapes=sizes), ["layers.1"])
    with pytest.raises(lostwax.errors.InputValueError, match="length"):
        stages[0].module()(tokens(2, 7))


def test_what_was_asked_is_asked_where_it_can_be() -> None:
    """Whether a parameter needs gradients is asked of those that a stage has."""

    class Asks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.one(x)
            y = self.two(x)
            return y * 2 if y.requires_grad else y

    stages = lostwax.split(lostwax.export(Asks(), (torch.ones(2, 3),)), ["two"])
    with torch.no_grad(), pytest.raises(lostwax.errors.InputValueError, match="requires no grad"):
        run_stages(stages, torch.ones(2, 3))


def test_core_aten_and_passes_are_cut_too() -> None:
    module = Rope().eval()
    program = lostwax.export(module, (tokens(),), dynamic_shapes=OPEN).run_decompositions()
    stages = lostwax.split(program, ["layers.1", "head"])
    torch.testing.assert_close(run_stages(stages, x := tokens(3, 4)), module(x))
    again = [stage.run_decompositions() for stage in lostwax.split(reload(program), ["layers.2"])]
    torch.testing.assert_close(run_stages(again, x), module(x))
