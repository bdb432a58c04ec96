"""A change of whatever an export reads is seen."""

from __future__ import annotations

import functools
import gc
import os
import random
import threading
import time
import weakref
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lostwax import Dim, export
from tests.export_cache.exports import Small, X, add, captures, describe


def load(folder: Path, **files: str) -> dict[str, Any]:
    """The names of the first file, which has the others as globals."""
    modules: dict[str, Any] = {}
    for name, text in reversed(files.items()):
        module = modules[name] = ModuleType(name)
        vars(module).update(modules, __file__=str(folder / f"{name}.py"))
        (folder / f"{name}.py").write_text(text)
        exec(compile(text, module.__file__, "exec"), vars(module))
    return vars(module)


SOURCE = """
import torch
FACTOR = 2.0
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
    def forward(self, x):
        return other.help(self.linear(x)) * FACTOR
"""
OTHER = """
def help(x):
    return x.relu() + 1
"""


@pytest.mark.parametrize(
    ("old", "new"), [("FACTOR = 2.0", "FACTOR = 3.0"), ("* FACTOR", "- FACTOR"), ("relu", "tanh")]
)
def test_changed_sources(kept, tmp_path, old, new):
    def make(change: Any) -> nn.Module:
        return load(tmp_path, net=change(SOURCE), other=change(OTHER))["Net"]()

    assert captures(kept, make(lambda text: text), (X,))
    assert not captures(kept, make(lambda text: text), (X,))
    assert captures(kept, make(lambda text: text.replace(old, new)), (X,))
    assert not captures(kept, make(lambda text: text), (X,))


class Other(Small):
    pass


class Deeper(Small):
    def step(self, x):
        return x + 2


def rename(net: Small) -> Any:
    net.__class__ = Other


def override(net: Small) -> Any:
    net.__class__ = Deeper


def set_to(path: str, value: Any) -> Any:
    *names, last = path.split(".")

    def change(net: Small) -> None:
        setattr(functools.reduce(getattr, names, net), last, value)

    return change


def give_forward(net: Small) -> None:
    net.forward = lambda x: Small.forward(net, x) + 1


def tie(net: Small) -> None:
    net.b.weight = net.a.weight


def share(net: Small) -> None:
    net.kept = net.passing.view(4)


def transpose(net: Small) -> None:
    net.a.weight = nn.Parameter(net.a.weight.t())


def grow(net: Small) -> None:
    net.config.names["b"].append(3)


def add_key(net: Small) -> None:
    net.config.names["c"] = 1


def add_module(net: Small) -> None:
    net.more = nn.ReLU()


CHANGES = {
    "scale": set_to("config.scale", 3.0),
    "type": set_to("config.scale", 2),
    "act": set_to("config.act", "tanh"),
    "item": lambda net: net.config.names["b"].__setitem__(1, 5),
    "longer": grow,
    "key": add_key,
    "config": set_to(
        "config", type("Config", (), {"scale": 2.0, "act": "relu", "names": {"b": [1, 2]}})()
    ),
    "subclass": rename,
    "method": override,
    "forward": give_forward,
    "function": set_to("call", lambda x: x - 1),
    "closure": set_to("call", (lambda n: lambda x: x * n)(5)),
    "wider": set_to("b", nn.Linear(4, 8)),
    "half": lambda net: net.half(),
    "double": lambda net: net.double(),
    "frozen": lambda net: net.a.weight.requires_grad_(False),
    "no bias": set_to("b.bias", None),
    "tied": tie,
    "shared": share,
    "strides": transpose,
    "eval": lambda net: net.eval(),
    "eval of a part": lambda net: net.drop.eval(),
    "rate": set_to("drop.p", 0.1),
    "hook": lambda net: net.a.register_forward_hook(lambda *given: given[2] + 1),
    "hook before": lambda net: net.register_forward_pre_hook(lambda net, given: (given[0] * 2,)),
    "module": add_module,
    "attribute": set_to("kept", torch.zeros(4)),
    "larger": set_to("kept", torch.ones(2, 4)),
    "no longer": lambda net: delattr(net, "kept"),
    "persistent": lambda net: net.register_buffer("passing", net.passing),
    "slope": set_to("b", nn.Sequential(nn.LeakyReLU(0.5))),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changed_modules(kept, change):
    assert captures(kept, Small(), (X,))
    assert not captures(kept, Small(), (X,))
    net = Small()
    change(net)
    before = kept.hits
    try:
        wanted = export(net, (X,))
    except Exception as error:
        with kept, pytest.raises(type(error)):
            export(net, (X,))
    else:
        with kept:
            assert describe(export(net, (X,))) == describe(wanted)
    assert kept.hits == before
    assert not captures(kept, Small(), (X,))


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_modules_changed_within_a_block(kept, change):
    """There, what has been looked at is not looked at again while it is in its place."""
    net = Small()
    with kept:
        for hits in (0, 1, 2):
            export(net, (X,))
            assert kept.hits == hits
        change(net)
        failed = None
        try:
            made = describe(export(net, (X,)))
        except Exception as error:
            failed = type(error)
    assert kept.hits == 2
    if failed is None:
        assert made == describe(export(net, (X,)))
    else:
        with pytest.raises(failed):
            export(net, (X,))


class Looking(nn.Module):
    """Reads tensors and arrays while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.n = torch.tensor(2)
        self.array = np.ones(3)

    def forward(self, x):
        return x * self.n.item() + float(self.array.sum())


@pytest.mark.parametrize(
    "change",
    [
        lambda net: net.n.fill_(5),
        lambda net: net.n.data.fill_(5),
        lambda net: net.array.__setitem__(0, 7.0),
    ],
)
def test_values_changed_within_a_block(kept, change):
    net = Looking()
    with kept:
        export(net, (X,))
        if "not kept" in kept.why():
            return
        export(net, (X,))
        assert kept.hits == 1
        change(net)
        made = describe(export(net, (X,)))
    assert kept.hits == 1
    assert made == describe(export(net, (X,)))


def test_a_block_holds_modules_and_no_longer(kept):
    net = nn.Sequential(nn.Linear(4, 4))
    gone = weakref.ref(net)
    with kept:
        export(net, (X,))
        export(net, (X,))
        del net
        gc.collect()
        assert gone() is not None
    gc.collect()
    assert gone() is None


def make_closed(n: int) -> Any:
    def closed(x):
        return x * n

    return closed


def test_closures(kept):
    assert captures(kept, make_closed(2), (X,))
    assert not captures(kept, make_closed(2), (X,))
    assert captures(kept, make_closed(3), (X,))


def test_patched_methods(kept, monkeypatch):
    assert captures(kept, Small(), (X,))
    with monkeypatch.context() as patch:
        patch.setattr(Small, "step", lambda self, x: x + 7)
        assert captures(kept, Small(), (X,))
    with monkeypatch.context() as patch:
        patch.setattr(Small, "KIND", 4)
        assert captures(kept, Small(), (X,))
    assert not captures(kept, Small(), (X,))


@pytest.mark.parametrize(
    ("owner", "name"),
    [(nn.Linear, "forward"), (torch, "relu"), (nn.functional, "linear"), (torch.Tensor, "__add__"),
     (nn.Module, "__call__")],
)  # fmt: skip
def test_patched_torch(kept, monkeypatch, owner, name):
    """Whether it was patched before or afterwards."""
    plain = getattr(owner, name)
    net = Small()

    def patched(*args: Any, **kwargs: Any) -> Any:
        return torch.neg(plain(*args, **kwargs))

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, patched)
        captures(kept, net, (X,))
    assert captures(kept, net, (X,))
    assert not captures(kept, net, (X,))
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, patched)
        assert captures(kept, net, (X,))


CALLS: dict[str, Any] = {
    "dtype": lambda: ((X.double(),), {}),
    "size": lambda: ((torch.randn(3, 4),), {}),
    "rank": lambda: ((torch.randn(4),), {}),
    "stride": lambda: ((torch.randn(4, 2).t(),), {}),
    "offset": lambda: ((torch.randn(12)[4:].view(2, 4),), {}),
    "requires_grad": lambda: ((X.clone().requires_grad_(),), {}),
    "by name": lambda: ((), {"x": X}),
    "parameter": lambda: ((nn.Parameter(X),), {}),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_changed_examples(kept, call):
    def net(x):
        return x.relu() + 1

    captures(kept, net, (X,))
    args, kwargs = call()
    assert captures(kept, net, args, kwargs)
    assert not captures(kept, net, args, kwargs)
    assert not captures(kept, net, (X.clone(),))


def test_changed_arguments(kept):
    y = torch.randn(2, 4)
    assert captures(kept, add, (X, y))
    for args in ((X, X), (X, X.view(2, 4)), (X, y, 2), (X, y, 2.0), (X, 3), (X, True), (X, 1)):
        assert captures(kept, add, args), args
        assert not captures(kept, add, args), args
    assert not captures(kept, add, (X, y.clone()))


def take(given):
    return given[0] + given[1] if isinstance(given, (tuple, list)) else given["a"] + given["b"]


def test_changed_structures(kept):
    for given in ((X, X + 1), [X, X + 1], {"a": X, "b": X + 1}, {"b": X + 1, "a": X}):
        assert captures(kept, take, (given,))
        assert not captures(kept, take, (given,))


SHAPES: list[Any] = [
    None,
    {"x": {0: Dim("b")}},
    {"x": {0: Dim("b", min=2)}},
    {"x": {0: Dim("b", max=9)}},
    {"x": {0: Dim("c")}},
    {"x": {0: 2 * Dim("b")}},
    {"x": {0: Dim.DYNAMIC}},
    {"x": {0: Dim.AUTO, 1: Dim.AUTO}},
    {"x": {0: Dim.AUTO(min=2), 1: Dim.AUTO}},
    {"x": {0: Dim("b"), 1: Dim("c")}},
]


def test_dynamic_shapes(kept):
    def net(x):
        return x.relu() * x.shape[0]

    for shapes in SHAPES:
        assert captures(kept, net, (torch.randn(4, 6),), dynamic_shapes=shapes), shapes
        assert not captures(kept, net, (torch.randn(4, 6),), dynamic_shapes=shapes), shapes
    more: dict[str, Any] = {"dynamic_shapes": SHAPES[-1], "constraints": ["b % 2 == 0"]}
    assert captures(kept, net, (torch.randn(4, 6),), **more)
    assert not captures(kept, net, (torch.randn(4, 6),), **more)


def test_options(kept):
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    for options in (
        {},
        {"keep": [torch.ops.aten.linear.default]},
        {"keep": "composite"},
        {"preserve_module_call_signature": ["0"]},
        {"control_flow": "refuse"},
        {"prefer_deferred_runtime_asserts_over_guards": True},
        {"tell_exporting": False},
        {"constants": {"input"}},
    ):
        assert captures(kept, net, (X,), **options), options
        assert not captures(kept, net, (X,), **options), options


def test_the_values_of_constants(kept):
    def net(x, n):
        return x[: int(n)]

    for value in (1, 2):
        call = net, (X, torch.tensor(value))
        assert captures(kept, *call, constants={"n"})
        assert not captures(kept, *call, constants={"n"})


def settings() -> dict[str, Any]:
    return {
        "no_grad": torch.no_grad(),
        "inference": torch.inference_mode(),
        "autocast": torch.autocast("cpu", torch.bfloat16),
        "autocast to half": torch.autocast("cpu", torch.float16),
        "device": torch.device("meta"),
        "sdpa": torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    }


@pytest.mark.parametrize("name", settings())
def test_settings(kept, name):
    def net(x):
        y = x.view(1, 1, *x.shape)
        return nn.functional.scaled_dot_product_attention(y, y, y) @ torch.ones(4, 4, device="cpu")

    assert captures(kept, net, (X,))
    with settings()[name]:
        captures(kept, net, (X,))
        assert not kept.hits
    assert not captures(kept, net, (X,))


def test_the_default_dtype(kept):
    def net(x):
        return x + torch.ones(4)

    assert captures(kept, net, (X,))
    torch.set_default_dtype(torch.float64)
    try:
        assert captures(kept, net, (X,))
    finally:
        torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(True)
    try:
        assert captures(kept, net, (X,))
    finally:
        torch.use_deterministic_algorithms(False)
    assert not captures(kept, net, (X,))


# ---------------------------------------------------------------------------- what is read outside


def test_variables_of_the_environment(kept, monkeypatch):
    def net(x):
        return x * int(os.environ.get("LW_TEST_SCALE", "1"))

    assert captures(kept, net, (X,))
    assert not captures(kept, net, (X,))
    monkeypatch.setenv("LW_OTHER", "3")
    assert not captures(kept, net, (X,))
    monkeypatch.setenv("LW_TEST_SCALE", "3")
    assert captures(kept, net, (X,))
    assert not captures(kept, net, (X,))


def read_clock(x):
    return x * time.time()


def read_file(x):
    return x * len(Path(__file__).read_text())


def draw(x):
    return x * random.random()


def list_environment(x):
    return x * len(list(os.environ))


@pytest.mark.parametrize("function", [read_clock, read_file, draw, list_environment])
@pytest.mark.filterwarnings("ignore:the module draws")
def test_what_reads_outside_is_not_kept(kept, function):
    for _ in range(2):
        with kept:
            export(function, (X,))
        assert "not kept" in kept.why(), kept.why()
    assert kept.hits == 0


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def forward(self, x):
        self.n += 1
        return x * self.n


def test_an_export_that_warns_warns_each_time(kept):
    for _ in range(2):
        with kept, pytest.warns(UserWarning, match="n"):
            export(Counting(), (X,))
        assert "it warns" in kept.why()


def test_what_has_no_text_is_not_kept(kept):
    lock = threading.Lock()

    def net(x):
        with lock:
            return x + 1

    for _ in range(2):
        assert captures(kept, net, (X,))
    assert "lock" in kept.why()


def test_strict_exports_are_made(kept):
    for _ in range(2):
        assert captures(kept, add, (X, X), strict=True)
    assert "strict" in kept.why()
