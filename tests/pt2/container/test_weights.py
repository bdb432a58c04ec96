"""Weights that share memory without being one tensor, through files: they come back as they were,
so that writes to one show in the others, and each has its own gradient."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import lostwax
import lostwax.interop
from lostwax.errors import LoadError


class Packed(nn.Module):
    """One memory, many names: `b` is another parameter than `a`, `d` the same one."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.arange(6.0))
        self.b = nn.Parameter(self.a.data)
        self.c = nn.Parameter(self.a.data[2:4], requires_grad=False)
        self.d = self.a
        self.register_buffer("e", self.a.data.view(2, 3).t())
        self.register_buffer("f", self.a.data[1:3], persistent=False)
        self.register_buffer("bits", self.a.data.view(torch.int32))
        self.register_buffer("g", self.a.data[1:].view(torch.uint8), persistent=False)
        self.inner = nn.Module()
        self.inner.register_buffer("h", self.a.data[3:], persistent=False)
        self.register_buffer("apart", torch.ones(6))

    def forward(self, x: torch.Tensor) -> Any:
        y = x * self.a + self.b * 2 + self.c.sum() + self.d * self.apart
        bits = self.bits.sum() + self.g.sum()
        return y, self.e * 2, self.f + 1, bits, self.inner.h * 3


def _state(m: nn.Module) -> dict[str, torch.Tensor]:
    parameters = dict(m.named_parameters(remove_duplicate=False))
    return {**parameters, **dict(m.named_buffers(remove_duplicate=False))}


def _together(m: nn.Module, key: Callable[[torch.Tensor], Any]) -> dict[str, str]:
    """Of each name the first that is the same."""
    first: dict[Any, str] = {}
    return {name: first.setdefault(key(t), name) for name, t in sorted(_state(m).items())}


def _memory(t: torch.Tensor) -> int:
    return t.untyped_storage()._cdata


def _saved(program: Any) -> bytes:
    file = io.BytesIO()
    lostwax.save(program, file)
    return file.getvalue()


X = torch.full((6,), 2.0)
WAYS: dict[str, Callable[[Any], Any]] = {
    "module": lambda program: program.module(),
    "loaded": lambda program: lostwax.load(io.BytesIO(_saved(program))).module(),
    "twice": lambda program: lostwax.load(
        io.BytesIO(_saved(lostwax.load(io.BytesIO(_saved(program)))))
    ).module(),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_shares_memory_shares_it_afterwards(way: str) -> None:
    eager, mine = Packed(), Packed()
    module = WAYS[way](lostwax.export(mine, (X,)))
    assert _together(module, id) == _together(eager, id)
    assert _together(module, _memory) == _together(eager, _memory)
    assert list(module.state_dict()) == list(eager.state_dict())
    torch.testing.assert_close(_state(module), _state(eager))
    for m in (module, eager):
        m(X)[0].sum().backward()
    for name, parameter in eager.named_parameters():
        torch.testing.assert_close(module.get_parameter(name).grad, parameter.grad)
    with torch.no_grad():
        for m in (module, eager):
            m.b.mul_(3)
            m.f.add_(1)
    torch.testing.assert_close(module(X), eager(X))
    assert [t.requires_grad for t in module(X)] == [t.requires_grad for t in eager(X)]


def test_torch_reads_them() -> None:
    """Its table has one record for a dtype of weights, another one for constants."""
    eager = Packed()
    module: Any = torch.export.load(io.BytesIO(_saved(lostwax.export(Packed(), (X,))))).module()
    found, expected = module(X), eager(X)
    torch.testing.assert_close(found, expected)
    assert [t.requires_grad for t in found] == [t.requires_grad for t in expected]
    found[0].sum().backward()
    expected[0].sum().backward()
    torch.testing.assert_close((module.a.grad, module.b.grad), (eager.a.grad, eager.b.grad))
    with torch.no_grad():
        module.b.mul_(3)
        assert (module.a == module.b).all()


def test_torchs_files_keep_two_parameters_apart() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.ones(3))
            self.b = nn.Parameter(self.a.data)
            self.inner = nn.Linear(3, 3)
            self.tied = nn.Linear(3, 3)
            self.tied.weight = self.inner.weight

        def forward(self, x: torch.Tensor) -> Any:
            return self.tied(self.inner(x * self.a + self.b))

    eager, x = Two(), torch.ones(1, 3)
    file = io.BytesIO()
    torch.export.save(torch.export.export(eager, (x,)), file)
    module = lostwax.load(io.BytesIO(file.getvalue())).module()
    assert module.tied.weight is module.inner.weight
    assert module.a is not module.b
    assert _memory(module.a) == _memory(module.b)
    for m in (module, eager):
        m(x).sum().backward()
    torch.testing.assert_close(module.a.grad, eager.a.grad)
    torch.testing.assert_close(module.b.grad, eager.b.grad)


def test_several_programs_share_what_they_share() -> None:
    m = Packed()
    programs = {"one": lostwax.export(m, (X,)), "two": lostwax.export(m, (X + 1,))}
    file = io.BytesIO()
    lostwax.save(programs, file)
    one, two = lostwax.load(io.BytesIO(file.getvalue())).values()
    assert one.state_dict["a"] is two.state_dict["a"]
    assert one.state_dict["b"] is two.state_dict["b"]
    assert one.state_dict["a"] is not two.state_dict["b"]


def _changed(data: bytes, change: Callable[[Any], None]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as given, zipfile.ZipFile(out, "w") as made:
        for item in given.infolist():
            content = given.read(item)
            if item.filename.endswith("models/model.json"):
                records = json.loads(content)
                change(records["lostwax"]["sharing"])
                content = json.dumps(records).encode()
            made.writestr(item, content)
    return out.getvalue()


def _lying(*place: Any) -> Callable[[Any], None]:
    return lambda sharing: sharing["constants"]["lying"].update(f=list(place))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (_lying("data/weights/", "weight_0", 10**9), "needs"),
        (
            _lying("data/weights/", "weight_0", 3),
            "the byte 3",
        ),
        (
            _lying(1, 2, 3),
            "the place where it lies is damaged",
        ),
        (_lying("data/", "gone", 0), "gone"),
        (lambda s: s["weights"].update(tied=[]), "our own record of what shares memory is damaged"),
        (lambda s: s["weights"].update(names=[[]]), "our own record of what shares memory"),
    ],
)
def test_a_damaged_record_of_sharing_is_refused(change: Callable[[Any], None], text: str) -> None:
    data = _changed(_saved(lostwax.export(Packed(), (X,))), change)
    with pytest.raises(LoadError, match=text):
        lostwax.load(io.BytesIO(data))


# ------------------------------------------------------ what torch, which writes by copying, reads


class Memory(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(3))


class Twice(nn.Module):
    """One module, and one tensor, by several names; it is written to."""

    def __init__(self) -> None:
        super().__init__()
        self.one = Memory()
        self.other = self.one
        self.third = Memory()
        self.third.h = self.one.h
        self.register_buffer("passing", self.one.h, persistent=False)

    def forward(self, x: torch.Tensor) -> Any:
        before = self.other.h[:2]
        self.one.h.add_(x)
        return before.clone(), self.third.h + self.passing


class Replaced(nn.Module):
    """A buffer in the memory of a parameter and of a buffer; another takes its place."""

    def __init__(self, persistent: bool = True) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.arange(4.0))
        self.register_buffer("h", self.w.detach()[1:], persistent=persistent)
        self.register_buffer("beside", self.w.detach()[:2], persistent=persistent)

    def forward(self, x: torch.Tensor) -> Any:
        self.h = self.h.sort()[0] + x
        return self.h * 2, self.w * 1, self.beside + 1


PEERS: dict[str, Callable[[Any], Any]] = {
    "file": lambda program: torch.export.load(io.BytesIO(_saved(program))),
    "interop": lostwax.interop.to_torch,
}


@pytest.mark.parametrize("make", [Twice, Replaced, lambda: Replaced(persistent=False)])
@pytest.mark.parametrize("way", PEERS)
def test_torch_writes_what_the_original_writes(way: str, make: Callable[[], Any]) -> None:
    eager, x = make(), torch.ones(3)
    program = lostwax.export(make(), (x,))
    again = lostwax.load(io.BytesIO(_saved(program)))
    assert str(again) == str(program)
    assert _together(again.module(), _memory) == _together(eager, _memory)
    peer = PEERS[way](program).module()
    for _ in range(3):
        torch.testing.assert_close(peer(x), eager(x))
        torch.testing.assert_close(_state(peer), _state(eager))


def test_save_says_what_torch_does_not_check(recwarn: pytest.WarningsRecorder) -> None:
    def asking(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x * (2 if y.requires_grad else 3)

    x = torch.ones(3)
    program = lostwax.export(asking, (x, torch.ones(3)))
    _saved(lostwax.export(lambda x, y: x + y, (x, torch.ones(3))))
    assert not recwarn
    with pytest.warns(UserWarning, match="torch does not check") as told:
        _saved(program)
    (text,) = [str(w.message) for w in told]
    assert "y: requires_grad is False, asked at tests/pt2/container/test_weights.py" in text
    assert "x * (2 if y.requires_grad else 3)" in text
    with pytest.warns(UserWarning, match="y is written to, and shares no memory with other inputs"):
        _saved(lostwax.export(lambda x, y: x + y.add_(1), (x, torch.ones(3))))
    _saved(lostwax.export(lambda x, n: x.add_(n), (x, 2)))
    _saved(lostwax.export(lambda x: x.jax() if hasattr(x, "jax") else x + 1, (x,)))
    assert not recwarn
    with pytest.warns(UserWarning, match="x, y: they are one tensor"):
        _saved(lostwax.export(lambda x, y: x + 1 if x is y else x, (x, x)))
