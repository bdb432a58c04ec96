"""Names that collide: with nodes, with Python, with what torch's modules and generated code have.

Each program is checked, printed, run, decomposed, passed through, saved, loaded and unflattened.
"""

from __future__ import annotations

import io
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import lostwax
from tests.pt2.compare import peer_load, saved

NAMES = [
    *("output", "self", "torch", "add", "getitem", "device", "inf", "nan", "print", "len", "args"),
    *("kwargs", "input_1", "math", "operator", "pytree", "fx_pytree", "NoneType", "max_1", "mul"),
    *("graph", "code", "bodies", "_constants", "_running", "type", "é", "данные", "L", "output_1"),
    *("sym_size", "getitem_1", "p_w", "forward_", "round", "slice", "root", "detach"),
]
KEYS = ["class", "None", "a.b", "a-b", "0", "", "with space", "it's", 'x"y', "a\nb", "output.0"]
X, Y = torch.randn(3, 4), torch.randn(3, 4)


def check(subject: Any, args: Any, kwargs: Any = None, peer: bool = False) -> None:
    kwargs = kwargs or {}
    want = subject(*args, **kwargs)
    program = lostwax.export(subject, args, kwargs)
    program.validate()
    assert "forward" in program.graph_module.code
    data = saved(program)
    again = lostwax.load(io.BytesIO(data))
    assert str(again) == str(program)
    for each in (
        program,
        again,
        program.run_decompositions(),
        lostwax.passes.ConstantFolding()(again),
    ):
        each.validate()
        torch.testing.assert_close(each.module()(*args, **kwargs), want)
        torch.testing.assert_close(lostwax.unflatten(each)(*args, **kwargs), want)
    if peer:
        torch.testing.assert_close(peer_load(data).module()(*args, **kwargs), want)


def made(source: str) -> Any:
    space: dict[str, Any] = {"T": torch}
    exec(source, space)
    return space["made"]


@pytest.mark.filterwarnings("ignore:torch.export.load")
@pytest.mark.parametrize("name", NAMES)
def test_arguments(name: str) -> None:
    body = f"T.max({name} + other, 0)[0] * 2 + {name}.shape[0]"
    peer = name in ("output", "self", "torch", "pytree", "fx_pytree", "getitem", "é")
    check(made(f"def made({name}, other): return {body}"), (X, Y), peer=peer)
    check(made(f"def made(other, *, {name}): return {body}"), (X,), {name: Y})


@pytest.mark.filterwarnings("ignore:torch.export.load")
@pytest.mark.parametrize("name", [*NAMES[:12], *KEYS])
def test_keys(name: str) -> None:
    check(lambda d: {k: v + 1 for k, v in d.items()}, ({name: X, "other": Y},))
    check(lambda **given: [v + 1 for v in given.values()], (), {name: X, "other": Y})


class Holder(nn.Module):
    def __init__(self, name: str, kind: str) -> None:
        super().__init__()
        self.name, self.kind = name, kind
        value = torch.randn(3, 4)
        if kind == "parameter":
            self.register_parameter(name, nn.Parameter(value))
        elif kind == "module":
            self.add_module(name, nn.Linear(4, 4))
        elif kind == "constant":
            setattr(self, name, value)
        else:
            self.register_buffer(name, value, persistent=kind == "buffer")

    def forward(self, x: torch.Tensor) -> Any:
        held = getattr(self, self.name)
        return (held(x) if self.kind == "module" else held * x).max(0)[0]


@pytest.mark.filterwarnings("ignore:torch.export.load")
@pytest.mark.parametrize("kind", ["parameter", "buffer", "passing", "constant", "module"])
def test_state(kind: str) -> None:
    for name in NAMES:
        if hasattr(nn.Module(), name) and kind != "constant":
            continue
        check(Holder(name, kind), (X,))


def test_torch_is_told_other_names_and_ours_come_back() -> None:
    program = lostwax.export(made("def made(torch, x): return torch + x"), (X, Y))
    data = saved(program)
    again = lostwax.load(io.BytesIO(data)).module()
    torch.testing.assert_close(again(torch=X, x=Y), X + Y)
    theirs = peer_load(data)
    torch.testing.assert_close(theirs.module()(X, Y), X + Y)
    assert theirs.module_call_graph[0].signature.forward_arg_names == ["torch_", "x"]
    torch.testing.assert_close(torch.export.unflatten(theirs)(X, Y), X + Y)


def test_the_argument_self_by_name() -> None:
    module = lostwax.export(made("def made(self, x): return self - x"), (X, Y)).module()
    seen = []
    module.register_forward_hook(lambda *_: seen.append(1))
    torch.testing.assert_close(module(self=X, x=Y), X - Y)
    torch.testing.assert_close(module(X, Y), X - Y)
    assert seen == [1, 1]


class Decaying(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.weight.mul_(0.5)
        return x * self.weight


@pytest.mark.parametrize(
    ("subject", "kwargs", "text"),
    [
        (lambda x, **given: x + given["class"], {"class": Y}, "the keyword 'class'"),
        (Holder("graph", "parameter"), {}, "the attribute 'graph'"),
        (made("def made(float): return float.add_(1) * 2"), {}, "the input 'float', which is writ"),
        (
            Decaying(),
            {},
            "the parameter 'weight', which is written to: it does so with gradients",
        ),
        (lambda x: (x + 1, "text"), {}, "result 1, 'text': it has no results that are texts"),
    ],
)
def test_what_torch_cannot_have_is_said(subject: Any, kwargs: Any, text: str) -> None:
    with pytest.warns(UserWarning, match="torch.export.load will not read") as told:
        saved(lostwax.export(subject, (X.clone(),), kwargs))
    assert any(text in str(each.message) for each in told)


def test_a_leaf_that_is_written_to_is_said() -> None:
    def halved(x: torch.Tensor) -> torch.Tensor:
        x.data.mul_(0.5)
        return x + 1

    with pytest.warns(UserWarning, match="the input 'x', which is written to: it does so with"):
        data = saved(lostwax.export(halved, (X.clone().requires_grad_(),)))
    theirs, mine = X.clone().requires_grad_(), X.clone().requires_grad_()
    with torch.no_grad():
        torch.testing.assert_close(peer_load(data).module()(theirs), halved(mine))
    torch.testing.assert_close(theirs, mine)
    with pytest.warns(UserWarning, match="has a gradient is False, asked at") as told:
        saved(lostwax.export(halved, (X.clone(),)))
    assert not any("it does so with" in str(each.message) for each in told)


def test_an_input_that_is_written_to_and_called_as_a_buffer_is_said() -> None:
    class Same(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("x", torch.zeros(3, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.add_(1) + self.x

    program = lostwax.export(Same(), (X.clone(),))
    with pytest.warns(UserWarning, match="the input 'x', .* writes to the state of that name"):
        data = saved(program)
    x = X.clone()
    lostwax.load(io.BytesIO(data)).module()(x)
    torch.testing.assert_close(x, X + 1)


def test_nothing_is_said_of_ordinary_names() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        saved(lostwax.export(lambda x, *, y: x + y, (X,), {"y": Y}))


def test_a_parameter_that_is_written_to_is_so_for_torch_without_gradients() -> None:
    with pytest.warns(UserWarning, match="called under torch.no_grad"):
        data = saved(lostwax.export(Decaying(), (X,)))
    theirs, eager = peer_load(data).module(), Decaying()
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(theirs(X), eager(X))
