"""Data pick an element: an expert, a layer, a function, a number."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lostwax
from lostwax import export
from lostwax.errors import LostwaxError

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Experts(nn.Module):
    def __init__(self, count: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(count))
        self.named = nn.ModuleDict({f"{{e}}_{i}": nn.Linear(4, 4) for i in range(count)})
        for i in range(count):
            setattr(self, f"expert{i}", nn.Linear(4, 4))


class ByTensor(Experts):
    def forward(self, x: Tensor, i: Tensor) -> Tensor:
        return self.experts[i](x) + 1  # type: ignore[no-any-return]


class ByNumber(Experts):
    def forward(self, x: Tensor, i: Tensor) -> Tensor:
        y = torch.relu(x)
        return self.experts[0](y) * 2 + self.experts[i.item()](y)  # type: ignore[no-any-return]


class ByKey(Experts):
    def forward(self, x: Tensor, i: Tensor) -> Tensor:
        return self.named[f"{{e}}_{i}"](x)


class ByName(Experts):
    def forward(self, x: Tensor, i: Tensor) -> Tensor:
        return getattr(self, f"expert{i}")(x)  # type: ignore[no-any-return]


class InConditions(Experts):
    def forward(self, x: Tensor, i: Tensor) -> Tensor:
        if self.experts[i](x).sum() > 0:
            x = x + 1
        while x.sum() < self.experts[i](torch.ones(2, 4)).sum() + 9:
            x = x + 1
        return x if self.experts[i % 2](x).sum() > 0 and x.sum() > 0 else x * 2


class InALoop(Experts):
    def forward(self, x: Tensor, i: Tensor) -> Tensor:
        for k in range(int(i)):
            x = self.experts[k](x)
        return x


class Two(Experts):
    def forward(self, x: Tensor, i: Tensor) -> Tensor:
        best = torch.argmax(x.sum(1))
        return self.experts[best](x) * self.experts[i](x)


class Functions(Experts):
    def forward(self, x: Tensor, i: Tensor) -> Tensor:
        functions = (torch.relu, torch.tanh, lambda x: x * 2)
        chosen, scale = functions[i], [1.0, 2.0, 5.0][i]
        return chosen(x) * scale


class Numbers(Experts):
    def forward(self, x: Tensor, i: Tensor) -> Tensor:
        weight = {0: 1.0, 1: 2.0, 2: 4.0}[i.item()]
        return x * weight


class ByNumberInKey(Experts):
    def forward(self, x: Tensor, i: Tensor) -> Tensor:
        scales = {"e0": 1.0, "e1": 2.0, "e2": 3.0}
        return x * scales[f"e{i.item()}"]


class ByTruth(Experts):
    def forward(self, x: Tensor, i: Tensor) -> Tensor:
        scales, is_late = (1.0, 2.0, 3.0), (i > 0).item()
        return x * scales[is_late] + scales[i > 1] * {0: 5.0, 1: 7.0}[is_late]


class Kept(Experts):
    """What the state is, is picked and written to."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = [torch.zeros(4) for _ in range(3)]

    def forward(self, x: Tensor, i: Tensor) -> Tensor:
        counts = [torch.zeros(4), torch.ones(4), torch.ones(4) * 2]
        counts[i].add_(1)
        return torch.stack(counts) + x.sum()


class Got(Experts):
    """Of a dict whose keys are no numbers from 0 on, or with another if there is none."""

    def forward(self, x: Tensor, i: Tensor) -> Any:
        n, layers = i.item(), {-3: self.experts[0], 2.0: self.experts[1], "a": self.experts[2]}
        y = layers.get(n, torch.relu)(x) + {True: 1.0, 3: 2.0, 1.5: 9.0}.get(n, 0.0)
        found = {0: x, 2: y}.get(n)
        return y if found is None else found * 2, 2 in layers, y + (n in layers), n in {1, -2}


MODULES = [
    ByTensor, ByNumber, ByKey, ByName, ByNumberInKey, ByTruth, InConditions, InALoop, Two,
    Functions, Numbers, Kept, Got,
]  # fmt: skip


@pytest.mark.parametrize("cls", MODULES)
def test_every_element_is_picked(cls: Any) -> None:
    module = cls()
    program = export(module, (X, torch.tensor(1))).module()
    for i in range(-4, 4):
        index = torch.tensor(i)
        try:
            want = module(X, index)
        except (LookupError, AttributeError):
            with pytest.raises(RuntimeError):
                program(X, index)
        else:
            torch.testing.assert_close(program(X, index), want)


def test_of_many_elements() -> None:
    module = ByTensor(20)
    program = export(module, (X, torch.tensor(1))).module()
    for i in (-20, -1, 0, 7, 8, 19):
        torch.testing.assert_close(program(X, torch.tensor(i)), module(X, torch.tensor(i)))


def test_in_a_file(tmp_path: Any) -> None:
    module = ByTensor()
    path = tmp_path / "experts.pt2"
    lostwax.save(export(module, (X, torch.tensor(1))), path)
    for program in (lostwax.load(path).module(), torch.export.load(path).module()):
        for i in range(3):
            torch.testing.assert_close(program(X, torch.tensor(i)), module(X, torch.tensor(i)))


class Caught(Experts):
    def forward(self, x: Tensor, i: Tensor) -> Tensor:
        try:
            x = self.experts[i](x)
        except IndexError as error:
            x = x * len(str(error))
        return x


class Many(Experts):
    def forward(self, x: Tensor, i: Tensor) -> Tensor:
        return x * [float(k) for k in range(200)][i]


class Backwards(list[Any]):
    def __getitem__(self, i: Any) -> Any:
        return super().__getitem__(-1 - i)


class OfAnother(Experts):
    """Its elements are not where those of a list are."""

    def forward(self, x: Tensor, i: Tensor) -> Tensor:
        return x * Backwards([1.0, 2.0, 3.0])[i]


class ByDefault(Experts):
    def forward(self, x: Tensor, i: Tensor) -> Tensor:
        return x * defaultdict(float, {0: 1.0, 1: 2.0})[i.item()]


@pytest.mark.parametrize(
    ("cls", "text"),
    [
        (Caught, "may be caught"),
        (Many, "data pick one of 200 elements"),
        (OfAnother, "a concrete integer is needed"),
        (ByDefault, "a concrete integer is needed"),
    ],
)
def test_refused(cls: Any, text: str) -> None:
    with pytest.raises(LostwaxError, match=text):
        export(cls(), (X, torch.tensor(1)))


def test_a_key_that_is_not_there_is_the_users_error() -> None:
    class Missing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * {"a": 1.0}["u0"]

    with pytest.raises(KeyError, match="u0"):
        export(Missing(), (X,))


def test_control_flow_can_be_refused() -> None:
    with pytest.raises(LostwaxError, match="a concrete integer is needed"):
        export(ByTensor(), (X, torch.tensor(1)), control_flow="refuse")


class Routed(Experts):
    """As the experts of Switch transformers do it."""

    def forward(self, x: Tensor, i: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        chosen = torch.nn.functional.one_hot((x.sum(1) > i).long(), 3)
        for hit in torch.greater(chosen.sum(0), 0).nonzero():
            rows = torch.where(chosen[:, hit[0]])[0]
            out.index_add_(0, rows, self.named[f"{{e}}_{hit[0]}"](x[rows]))
        return out


def test_those_that_a_loop_picks() -> None:
    module = Routed()
    program = export(module, (X, torch.tensor(0))).module()
    for i in (-9, 0, 9):
        torch.testing.assert_close(program(X, torch.tensor(i)), module(X, torch.tensor(i)))


class InWindows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        parts = [x[i : min(x.shape[0], i + 16)].cumsum(0) for i in range(0, x.shape[0], 16)]
        return torch.cat(parts) + len(parts)


def test_a_loop_whose_number_of_turns_is_certain() -> None:
    length = lostwax.Dim("length", min=1, max=16)
    shapes = ({0: length},)
    program = export(InWindows(), (X,), dynamic_shapes=shapes, control_flow="sizes").module()
    for n in (1, 5, 16):
        x = torch.randn(n, 4)
        torch.testing.assert_close(program(x), InWindows()(x))


def test_a_dict_that_makes_what_it_has_not() -> None:
    scales = defaultdict(lambda: 9.0, {0: 1.0, 1: 2.0})

    def pick(x: Tensor, i: Tensor) -> Tensor:
        return x * scales[i.item()]

    with pytest.raises(LostwaxError):
        export(pick, (X, torch.tensor(1)))


SCALES: list[Any] = [
    {0: 1.0, 1: 2.0, 5: 3.0},
    {0: 1.0, -1: 2.0},
    {1: 2.0, 0: 1.0},
    {2: 5.0, "a": 7.0, None: 8.0, 3.0: 4.0, 2.5: 6.0},
    OrderedDict([(5, 1.0), (1, 2.0)]),
    {True: 1.0, 7: 2.0},
]


def _pick(x: Tensor, n: Any, scales: Any) -> Tensor:
    return x * scales[n]


def _pick_known(x: Tensor, n: Any, scales: Any) -> Tensor:
    return x * (scales[n] if n in scales else 0.5)  # noqa: SIM401


def _pick_in_branch(x: Tensor, n: Any, scales: Any) -> Tensor:
    if n in scales and x.sum() > 0:
        x = x + scales[n]
    return x


def _pick_in_loop(x: Tensor, n: Any, scales: Any) -> Tensor:
    for k in range(-1, 3):
        if n + k in scales:
            x = x * scales[n + k]
    return x


@pytest.mark.parametrize("pick", [_pick, _pick_known, _pick_in_branch, _pick_in_loop])
@pytest.mark.parametrize("scales", SCALES)
def test_elements_of_a_dict_by_keys_of_any_numbers(scales: Any, pick: Any) -> None:
    def call(x: Tensor, i: Tensor) -> Tensor:
        return pick(x, i.item(), scales)  # type: ignore[no-any-return]

    program = export(call, (X, torch.tensor(int(next(iter(scales)))))).module()
    for n in range(-2, 8):
        try:
            wanted = call(X, torch.tensor(n))
        except KeyError:
            with pytest.raises(RuntimeError, match="KeyError"):
                program(X, torch.tensor(n))
        else:
            torch.testing.assert_close(program(X, torch.tensor(n)), wanted)


def test_a_key_of_another_number() -> None:
    def pick(x: Tensor, i: Tensor) -> Tensor:
        return x * {"e0": 1.0, "e1": 2.0, "e7": 3.0}[f"e{i}"]

    with pytest.raises(LostwaxError):
        export(pick, (X, torch.tensor(1)))


def test_a_tensor_is_no_number_as_a_key() -> None:
    def pick(x: Tensor, i: Tensor) -> Tensor:
        return x * {0: 1.0, 1: 2.0}[i]  # type: ignore[index]

    for call in (pick, lambda x, i: export(pick, (x, i))):
        with pytest.raises(KeyError):
            call(X, torch.tensor(1))  # type: ignore[operator]
