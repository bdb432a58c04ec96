"""Functions that call modules: the program has their state by the names that the function has for
them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lostwax import export, load, save, unflatten
from lostwax.errors import CaptureError


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(3, 4)
        self.decoder = nn.Linear(4, 3)
        self.register_buffer("shift", torch.ones(4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x) + self.shift)


MODEL = Model()
LAYERS = [MODEL.encoder, MODEL.decoder]
decoder = nn.Linear(3, 3)  # also the name of an attribute
encode = MODEL.encoder.forward
forward = MODEL
X = torch.randn(2, 3)
ALL = ["encoder.weight", "encoder.bias", "decoder.weight", "decoder.bias", "shift"]
ENCODER = ALL[:2]
LISTED = ["0.weight", "0.bias", "1.weight", "1.bias"]


def closed_over() -> Callable[[Tensor], Tensor]:
    model = MODEL
    return lambda x: model(x)


def used(x: Tensor) -> Tensor:
    return MODEL.encoder(x)


class Runner:
    def __init__(self) -> None:
        self.net, self.factor = MODEL, 2

    def __call__(self, x: Tensor) -> Tensor:
        return self.net(x) * self.factor

    def run(self, x: Tensor) -> Tensor:
        return self.net(x)


def _of(prefix: str, names: list[str]) -> list[str]:
    return [f"{prefix}.{name}" for name in names]


FUNCTIONS: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "closure": (closed_over(), _of("model", ALL)),
    "global": (lambda x: MODEL(x), _of("MODEL", ALL)),
    "only what is read": (lambda x: MODEL.decoder(MODEL.encoder(x)), _of("MODEL", ALL[:4])),
    "called function": (lambda x: used(x) * 2, _of("MODEL", ENCODER)),
    "inner function": (lambda x: [(lambda y: used(y))(x)], _of("MODEL", ENCODER)),
    "decorated": (torch.no_grad()(closed_over()), _of("model", ALL)),
    "default": (lambda x, net=MODEL: net(x), _of("net", ALL)),
    "partial": (partial(lambda net, x: net(x), MODEL), _of("net", ALL)),
    "method": (lambda x: encode(x), ["encode.weight", "encode.bias"]),
    "object": (Runner(), _of("net", ALL)),
    "method of an object": (Runner().run, _of("net", ALL)),
    "list": (lambda x: LAYERS[1](LAYERS[0](x)), _of("LAYERS", LISTED)),
    "a name that modules have": (lambda x: forward(x), _of("forward_", ALL)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_state_has_the_names_of_the_function(name: str, tmp_path: Any) -> None:
    function, names = FUNCTIONS[name]
    program = export(function, (X,))
    program.validate()
    signature = program.graph_signature
    assert [*signature.parameters, *signature.buffers] == names
    assert not signature.lifted_tensor_constants
    assert program.state_dict.keys() | program.constants.keys() == set(names)
    save(program, tmp_path / "program.pt2")
    for module in (program.module(), unflatten(program), load(tmp_path / "program.pt2").module()):
        torch.testing.assert_close(module(X), function(X))


def test_their_state_is_written() -> None:
    norm = nn.BatchNorm1d(3)
    before = {name: t.clone() for name, t in norm.state_dict().items()}
    program = export(lambda x: norm(x), (X,))
    assert list(program.graph_signature.buffers_to_mutate.values()) == [
        "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"
    ]  # fmt: skip
    assert all(torch.equal(t, before[name]) for name, t in norm.state_dict().items())
    ours = program.module()
    torch.testing.assert_close(ours(X), norm(X))
    for name, t in norm.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[f"norm.{name}"], t)


def test_they_are_trained() -> None:
    ours = export(lambda x: MODEL(x).sum(), (X,)).module()
    ours(X).backward()
    wanted = torch.autograd.grad(MODEL(X).sum(), MODEL.encoder.weight)[0]
    torch.testing.assert_close(ours.get_parameter("MODEL.encoder.weight").grad, wanted)


def test_one_module_by_two_names_is_tied() -> None:
    head = MODEL.decoder
    program = export(lambda x: head(MODEL.encoder(x)), (X,))
    assert set(program.state_dict) == {*_of("head", ["weight", "bias"]), *_of("MODEL", ALL[:4])}
    assert len(program.graph_signature.parameters) == 4


def test_two_modules_of_one_name() -> None:
    def wrapped(inner: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        net = nn.Linear(3, 3)
        return lambda x: net(inner(x))

    function = wrapped(wrapped(lambda x: x))
    program = export(function, (X,))
    assert program.graph_signature.parameters == (
        "net.weight", "net.bias", "net_1.weight", "net_1.bias"
    )  # fmt: skip
    torch.testing.assert_close(program.module()(X), function(X))


def test_what_modules_keep_is_refused() -> None:
    def forward(x: Tensor) -> Tensor:
        before, MODEL.last = getattr(MODEL, "last", x), x  # type: ignore[assignment]
        return MODEL(before)

    with pytest.raises(CaptureError, match=r"MODEL\.last"):
        export(forward, (X,))
    assert not hasattr(MODEL, "last")


def test_modules_that_a_function_calls_are_named_in_its_nodes() -> None:
    nodes = export(closed_over(), (X,)).graph.nodes
    paths = [list(n.meta["nn_module_stack"]) for n in nodes if n.op == "call_function"]
    assert ["model", "model.encoder"] in paths
    assert ["model"] in paths
