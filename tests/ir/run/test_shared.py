"""Modules of several programs that hold one state, beside the eager module."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lostwax
from lostwax.errors import SharedStateError

pytestmark = pytest.mark.core

LENGTH = 16


class Decoder(nn.Module):
    """Decodes with a cache: buffers that are written in place and replaced, saved or not."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 8), nn.Linear(8, 20)
        self.register_buffer("cache", torch.zeros(1, LENGTH, 8))
        self.register_buffer("total", torch.zeros(8), persistent=False)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, tokens: Tensor, at: Tensor) -> Tensor:
        x = self.embedding(tokens)
        self.cache[:, at] = x
        self.total = self.total + x.sum((0, 1))
        self.count += 1
        seen = torch.arange(LENGTH) <= at[-1]
        return self.head((self.cache * seen[None, :, None]).sum(1) + self.total)

    def read(self, x: Tensor) -> Tensor:
        return x + self.cache.sum() + self.count


def decode(prefill: Any, step: Any) -> Tensor:
    found = [prefill(torch.tensor([[1, 2, 3]]), torch.arange(3))]
    for position in range(3, 8):
        token = found[-1].argmax(-1, keepdim=True)
        found.append(step(token, torch.tensor([position])))
    return torch.stack(found)


@pytest.fixture(scope="module")
def model() -> Decoder:
    torch.manual_seed(0)
    return Decoder().eval().requires_grad_(False)


@pytest.fixture(scope="module")
def programs(model: Decoder) -> dict[str, lostwax.ExportedProgram]:
    return {
        "prefill": lostwax.export(model, (torch.tensor([[1, 2, 3]]), torch.arange(3))),
        "step": lostwax.export(model, (torch.tensor([[4]]), torch.tensor([3]))),
        "read": lostwax.export(model.read, (torch.zeros(1),)),
    }


@pytest.fixture(scope="module")
def wanted(model: Decoder) -> Tensor:
    own = copy.deepcopy(model)
    return decode(own, own)


def loaded(programs: Any) -> Any:
    file = io.BytesIO()
    lostwax.save(programs, file)
    file.seek(0)
    return lostwax.load(file)


def decomposed(programs: Any) -> Any:
    return {name: program.run_decompositions() for name, program in programs.items()}


@pytest.mark.parametrize("change", [dict, loaded, decomposed])
def test_what_one_writes_the_others_read(change, programs, model, wanted):
    for _ in range(2):  # each group has a state of its own
        made = lostwax.modules(change(programs))
        assert torch.equal(decode(made["prefill"], made["step"]), wanted)
        assert made["read"](torch.zeros(1)) == made["step"].cache.sum() + 6
    assert model.count == 0
    assert programs["step"].state_dict["count"] == 0


def test_modules_of_their_own_do_not_share(programs, wanted):
    apart = decode(programs["prefill"].module(), programs["step"].module())
    assert not torch.equal(apart, wanted)


def test_copies_and_conversions_are_of_all(programs, wanted):
    made = lostwax.modules(programs)
    twin = copy.deepcopy(made)
    assert torch.equal(decode(twin["prefill"], twin["step"]), wanted)
    assert made["step"].count == 0
    made["read"].double()
    assert made["prefill"].cache.dtype is torch.float64
    assert decode(made["prefill"], made["step"]).dtype is torch.float64


def test_weights_that_are_only_read_are_not_copied(programs, model):
    made = lostwax.modules(programs)
    assert made["prefill"].head.weight.data_ptr() == model.head.weight.data_ptr()
    assert made["prefill"].head.weight is made["step"].head.weight
    assert [*made["prefill"].state_dict()] == [*model.state_dict()]


def test_programs_of_two_modules_are_refused(programs):
    other = lostwax.export(Decoder().eval().read, (torch.zeros(1),))
    with pytest.raises(SharedStateError) as caught:
        lostwax.modules({"step": programs["step"], "other": other})
    assert "the programs 'step' and 'other' both have 'cache'" in str(caught.value)
    assert "lostwax.save({'step': …, 'other': …}, path)" in str(caught.value)
    with pytest.raises(TypeError, match="modules takes programs by name"):
        lostwax.modules(programs["step"])


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(2))
        self.register_buffer("sum", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        self.count = self.count + 1  # another tensor in its place
        self.sum.add_(x)  # the same
        return self.count + self.sum


class Counters(nn.Module):
    """Has a part whose state has the names of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Counter()
        self.register_buffer("count", torch.full((2,), 100.0))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 10
        return self.part(x) + self.count


@pytest.mark.parametrize("change", [dict, loaded])
@pytest.mark.parametrize("order", [("whole", "part", "called"), ("part", "called", "whole")])
def test_programs_of_a_part_share_its_state(order, change):
    model, x = Counters(), torch.ones(2)
    exported = {"whole": model, "part": model.part, "called": lambda x: model.part(x) * 2}
    made = lostwax.modules(change({name: lostwax.export(exported[name], (x,)) for name in order}))
    for dtype in (torch.float32, torch.float64):
        made["part"].to(dtype)
        model.to(dtype)
        x = x.to(dtype)
        for name in ("part", "whole", "called", "whole", "part"):
            assert torch.equal(made[name](x), exported[name](x))
    made["part"].count = torch.zeros(2, dtype=torch.float64)
    model.part.count = torch.zeros(2, dtype=torch.float64)
    assert torch.equal(made["called"](x), exported["called"](x))


def test_one_tensor_by_two_names_that_no_place_explains_is_refused():
    one, other, x = Counter(), nn.Module(), torch.ones(2)
    other.register_buffer("total", one.sum)
    programs = {
        "one": lostwax.export(one, (x,)),
        "other": lostwax.export(lambda x: other.total + x, (x,)),
    }
    with pytest.raises(SharedStateError, match=r"one tensor by two names, 'sum' and 'other.total'"):
        lostwax.modules(programs)


def test_what_torch_reads_is_as_before(programs, wanted, tmp_path):
    pytest.importorskip("torch.export.pt2_archive")
    from torch.export.pt2_archive._package import load_pt2

    lostwax.save({"step": programs["step"]}, tmp_path / "step.pt2")
    theirs = load_pt2(str(tmp_path / "step.pt2")).exported_programs["step"].module()
    tokens, at = torch.tensor([[4]]), torch.tensor([3])
    ours = lostwax.modules({"step": programs["step"]})["step"]
    for _ in range(2):
        assert torch.allclose(theirs(tokens, at), ours(tokens, at))
