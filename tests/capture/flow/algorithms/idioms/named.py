"""Dicts, words and functions that data choose; recursion with a bound; gradients inside."""

from __future__ import annotations

import enum
from collections import OrderedDict, defaultdict
from functools import cmp_to_key

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from tests.capture.flow.algorithms.program import draw, floats, ints, number, program


class Phase(enum.Enum):
    WARM = "warm"
    RUN = "run"
    DONE = "done"


@program(floats(1, 5, 1, 1), floats(1, 1, 1, 1), floats(9, 9, 9, 9))
def machine_of_words(x: Tensor) -> Tensor:
    state, total = "idle", torch.zeros(())
    for each in x:
        if state == "idle":
            if each > 3:
                state = "run"
        elif state == "run":
            total = total + each
            if each < 2:
                state = "stop"
    return total


@program(floats(1, 5, 1, 1), floats(1, 1, 1, 1), floats(9, 9, 9, 9))
def machine_of_an_enum(x: Tensor) -> Tensor:
    phase, total = Phase.WARM, torch.zeros(())
    for each in x:
        if phase is Phase.WARM and each > 3:
            phase = Phase.RUN
        elif phase is Phase.RUN:
            total = total + each
            if each < 2:
                phase = Phase.DONE
    return total


@program(number(20.0), number(1.0), number(0.1))
def machine_in_a_while(x: Tensor) -> tuple[Tensor, int]:
    state, steps = "run", 0
    while state != "stop":
        x = x / 2
        steps += 1
        if x < 1:
            state = "stop"
    return x, steps


@program(floats(1, 5, 1, 1), floats(1, 1, 1, 1), floats(9, 9, 9, 9))
def machine_by_match(x: Tensor) -> Tensor:
    state, total = "idle", torch.zeros(())
    for each in x:
        match state:
            case "idle" if each > 3:
                state = "run"
            case "run":
                total = total + each
                state = "run" if each > 2 else "idle"
            case _:
                total = total - 1
    return total


def _kind(x: Tensor) -> str:
    if x.norm() > 5:
        return "large"
    return "small" if x.norm() < 1 else "normal"


@program(draw(4), draw(4) * 10, torch.zeros(4))
def way_by_a_word(x: Tensor) -> Tensor:
    kind = _kind(x)
    if kind == "large":
        return x / 5
    if kind == "small":
        return x + 1
    return x


@program(draw(4), draw(4) * 10, torch.zeros(4))
def table_by_a_word(x: Tensor) -> Tensor:
    table = {"large": torch.tanh, "small": torch.exp, "normal": torch.relu}
    return table[_kind(x)](x)


@program(draw(4), draw(4) * 10, torch.zeros(4))
class ModuleByAWord(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(4, 2)})

    def forward(self, x: Tensor) -> Tensor:
        name = "a" if x.norm() > 5 else "b"
        return self.heads[name](x)


@program(draw(4), draw(4) * 10, torch.zeros(4))
def method_by_a_word(x: Tensor) -> Tensor:
    name = "cos" if x.norm() > 5 else "sin"
    return getattr(x, name)()


@program(draw(4), draw(4) * 10, torch.zeros(4))
def function_by_data(x: Tensor) -> Tensor:
    activation = torch.tanh if x.norm() > 5 else torch.relu
    return activation(x) + activation(x * 2)


@program(draw(4), draw(4) * 10, torch.zeros(4))
def key_that_is_set_once(x: Tensor) -> Tensor:
    memo: dict[str, Tensor] = {}
    for each in x:
        if each > 0.5 and "first" not in memo:
            memo["first"] = each
    return memo.get("first", torch.tensor(-1.0))


@program(draw(4), draw(4) * 10, torch.zeros(4))
def setdefault_on_one_side(x: Tensor) -> Tensor:
    memo: dict[str, Tensor] = {}
    for each in x:
        if each > 0:
            memo.setdefault("first", each)
        else:
            memo.setdefault("other", each)
    return memo.get("first", torch.zeros(())) - memo.get("other", torch.zeros(()))


@program(ints(0, 1, 0, 2), ints(0, 0, 0, 0), ints(2, 1, 0, 2))
def least_recently_used(ids: Tensor) -> Tensor:
    cache = OrderedDict((k, torch.tensor(10.0 + k)) for k in range(3))
    for each in ids:
        for k in range(3):
            if each == k:
                cache.move_to_end(k)
    return torch.stack([*cache.values()])


@program(ints(0, 1, 0, 2), ints(0, 0, 0, 0), ints(2, 1, 0, 2))
def counted_in_a_defaultdict(ids: Tensor) -> Tensor:
    counts: dict[int, int] = defaultdict(int)
    for each in ids:
        for k in range(3):
            if each == k:
                counts[k] += 1
    return torch.tensor([counts[k] for k in range(3)])


@program(ints(0, 1, 0, 2), ints(0, 0, 0, 0), ints(2, 1, 0, 2))
def histogram_in_a_dict(ids: Tensor) -> Tensor:
    counts = {k: 0 for k in range(3)}  # noqa: C420
    for each in ids.tolist():
        counts[each] += 1
    return torch.tensor(list(counts.values()))


def _refine(x: Tensor, depth: int) -> Tensor:
    if depth == 0 or x.norm() < 1:
        return x
    return _refine(x / 2, depth - 1)


@program(draw(4), draw(4) * 100, torch.zeros(4))
def recursion_with_a_bound(x: Tensor) -> Tensor:
    return _refine(x, 4)


def _search(values: Tensor, target: Tensor, low: int, high: int) -> int:
    if low >= high:
        return low
    middle = (low + high) // 2
    if values[middle] < target:
        return _search(values, target, middle + 1, high)
    return _search(values, target, low, middle)


@program(
    (floats(1, 3, 5, 7), number(4.0)),
    (floats(1, 3, 5, 7), number(0.0)),
    (floats(1, 3, 5, 7), number(9.0)),
)
def recursive_binary_search(values: Tensor, target: Tensor) -> int:
    return _search(values, target, 0, 4)


class Tree(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.gate = nn.Linear(2, 1)
        self.children_ = nn.ModuleList(Tree(depth - 1) for _ in range(2) if depth)

    def forward(self, x: Tensor) -> Tensor:
        score = self.gate(x)
        if not len(self.children_):
            return score
        if score > 0:
            return self.children_[0](x)
        return self.children_[1](x)


@program(draw(2), draw(2, seed=1) * 5, torch.zeros(2))
class DecisionTree(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.root = Tree(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.root(x)


@program(floats(3, 1, 2), floats(1, 1, 1), floats(-1, -2, -3))
def sorted_by_a_comparison(x: Tensor) -> Tensor:
    def compare(a: Tensor, b: Tensor) -> int:
        if a < b:
            return 1
        return -1 if a > b else 0

    return torch.stack(sorted(x, key=cmp_to_key(compare)))


@program((draw(4, 2), draw(4, 1)), (draw(4, 2) * 3, draw(4, 1)), (torch.zeros(4, 2), draw(4, 1)))
class Maml(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(2, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        def loss(weights: dict[str, Tensor]) -> Tensor:
            return (functional_call(self.net, weights, (x,)) - y).square().mean()

        weights = {name: p.detach() for name, p in self.net.named_parameters()}
        for _ in range(3):
            if loss(weights) < 1.0:
                break
            slopes = grad(loss)(weights)
            weights = {name: w - 0.1 * slopes[name] for name, w in weights.items()}
        return loss(weights)


@program((draw(4, 2), draw(4)), (draw(4, 2) * 3, draw(4)), (torch.zeros(4, 2), torch.ones(4) * 4))
def inner_loop_by_autograd(x: Tensor, y: Tensor) -> tuple[Tensor, int]:
    w, steps = torch.zeros(2, requires_grad=True), 0
    while steps < 4:
        loss = (x @ w - y).square().mean()
        if loss < 0.6:
            break
        (slope,) = torch.autograd.grad(loss, w)
        w = (w - 0.1 * slope).detach().requires_grad_()
        steps += 1
    return w.detach(), steps


@program(draw(2, 3), draw(2, 3, seed=1) * 10, torch.zeros(2, 3))
class SpectralNormUnderABranch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3))
        self.plain = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.layer.train()
        if x.norm() > 5:
            return self.layer(x)
        return self.plain(x)


@program(draw(2, 3), draw(2, 3, seed=1) * 10, torch.zeros(2, 3))
class BatchNormUnderABranch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        self.norm.train()
        if x.norm() > 5:
            x = self.norm(x)
        return x


@program(draw(4), draw(4) * 10, torch.zeros(4))
class CountsItsKinds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("large", torch.zeros(()))
        self.register_buffer("small", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        kind = "large" if x.norm() > 5 else "small"
        getattr(self, kind).add_(1)
        return x * getattr(self, kind)
