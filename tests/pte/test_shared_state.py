"""State that several methods of one module share, in the real runtime, beside eager execution."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import lostwax
from lostwax.errors import LoweringError
from lostwax.pte import load_runtime
from lostwax.pte.executable import ExecutableConfig
from tests.pte.runtime import Runtime, assert_close

LENGTH = 12


class Decoder(nn.Module):
    """Attention over a cache of keys and values; `start` fills it with a text, `forward` continues
    by one token."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embed = nn.Embedding(13, 8)
        self.project = nn.Linear(8, 24)
        self.head = nn.Linear(8, 13)
        self.register_buffer("keys", torch.zeros(LENGTH, 8))
        self.register_buffer("values", torch.zeros(LENGTH, 8))
        for weight in self.parameters():
            nn.init.normal_(weight)

    def attend(self, tokens: Any, at: Any) -> Any:
        q, k, v = self.project(self.embed(tokens)).chunk(3, -1)
        self.keys.index_copy_(0, at, k)
        self.values.index_copy_(0, at, v)
        seen = torch.arange(LENGTH) <= at.unsqueeze(-1)
        scores = (q @ self.keys.t()).masked_fill(~seen, float("-inf"))
        return self.head(scores.softmax(-1) @ self.values)[-1].argmax(-1, keepdim=True)

    def forward(self, token: Any, at: Any) -> Any:
        return self.attend(token, at)


class Start(nn.Module):
    def __init__(self, model: Decoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Any) -> Any:
        return self.model.attend(tokens, torch.arange(tokens.shape[0]))


def decode(start: Any, forward: Any, text: list[int]) -> list[int]:
    token = start(torch.tensor(text))
    found = [int(token)]
    for at in range(len(text), LENGTH):
        token = forward(token, torch.tensor([at]))
        found.append(int(token))
    return found


def test_a_greedy_decoder_of_two_methods() -> None:
    model = Decoder().eval()
    size = ({0: lostwax.Dim("length", min=2, max=LENGTH)},)
    first = lostwax.export(Start(model).eval(), (torch.tensor([1, 2, 3]),), dynamic_shapes=size)
    more = lostwax.export(model, (torch.tensor([1]), torch.tensor([3])))
    executable = lostwax.to_edge({"start": first, "forward": more}).to_executable()
    assert executable.state_size == 2 * LENGTH * 8 * 4
    loaded = load_runtime(executable.buffer)

    def run(method: str) -> Any:
        return lambda *inputs: loaded.run(inputs, method=method)[0]

    for text in ([1, 2, 3], [5, 4], [7, 7, 1, 0, 12]):
        with torch.no_grad():
            wanted = decode(Start(model), model, text)
        assert decode(run("start"), run("forward"), text) == wanted
        assert len(set(wanted)) > 1


class Tally(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.tensor([3.0, 4.0]))
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Any) -> Any:
        self.total.add_(x)
        self.calls.add_(1)
        return (self.total * 2).exp().log()


class Read(nn.Module):
    def __init__(self, tally: Tally) -> None:
        super().__init__()
        self.tally = tally

    def forward(self) -> Any:
        return self.tally.total, self.tally.total.sum() + 0


def lower(module: Tally, **config: Any) -> Any:
    add = lostwax.export(module, (torch.ones(2),))
    read = lostwax.export(Read(module), ())
    return lostwax.to_edge({"add": add, "read": read}).to_executable(ExecutableConfig(**config))


@pytest.mark.parametrize("reads_first", [False, True])
def test_a_method_that_only_reads_sees_what_another_wrote(reads_first: bool) -> None:
    module = Tally()
    executable = lower(module)
    loaded = load_runtime(executable.buffer)
    for i in range(3):
        x = torch.randn(2)
        if i or reads_first:
            assert_close(loaded.run((), method="read"), Read(module)())
        assert_close(loaded.run((x,), method="add"), [module(x)])
        assert_close(loaded.run((), method="read"), Read(module)())


class Nothing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("none", torch.zeros(0))

    def forward(self, x: Any) -> Any:
        self.none.add_(1)
        return x + self.none.sum()


def test_state_without_elements() -> None:
    program = lostwax.export(Nothing(), (torch.ones(2),))
    loaded = load_runtime(lostwax.to_edge({"a": program, "b": program}).to_executable().buffer)
    for method in "ab":
        assert_close(loaded.run((torch.ones(2),), method=method), [torch.ones(2)])


def test_full_verification_accepts_methods_that_share() -> None:
    runtime = Runtime(lower(Tally()).buffer)
    assert_close(runtime(torch.ones(2), method="add"), [torch.tensor([8.0, 10.0])])


def test_state_of_one_name_in_two_modules_is_not_shared() -> None:
    one, other = Tally(), Tally()
    edge = lostwax.to_edge(
        {
            "one": lostwax.export(one, (torch.ones(2),)),
            "two": lostwax.export(other, (torch.ones(2),)),
        }
    )
    loaded = load_runtime(edge.to_executable().buffer)
    for _ in range(2):
        for name, module in (("one", one), ("two", other)):
            x = torch.rand(2)
            assert_close(loaded.run((x,), method=name), [module(x)])


def test_loaded_programs_share_by_name(tmp_path: Any) -> None:
    programs = {}
    module = Tally()
    for name in ("one", "two"):
        lostwax.save(lostwax.export(module, (torch.ones(2),)), tmp_path / f"{name}.pt2")
        programs[name] = lostwax.load(tmp_path / f"{name}.pt2")
    edge = lostwax.to_edge(programs)
    loaded = load_runtime(edge.to_executable(ExecutableConfig(shared_state=("total",))).buffer)
    for name in ("one", "two", "one"):
        x = torch.rand(2)
        assert_close(loaded.run((x,), method=name), [module(x)])
    with pytest.raises(LoweringError, match="no method has the state 'sum'"):
        edge.to_executable(ExecutableConfig(shared_state=("sum",)))
    with torch.no_grad():
        programs["two"].state_dict["total"].add_(1)
    with pytest.raises(LoweringError, match="cannot be shared"):
        lostwax.to_edge(programs).to_executable(ExecutableConfig(shared_state=("total",)))


def test_first_values_that_nobody_reads_are_not_in_the_file() -> None:
    """A cache that is filled from its beginning; nothing else of the file is another."""
    module = Kept()
    program = lostwax.export(module, (torch.ones(256), torch.tensor(0)))
    sizes = []
    for names in ((), ("rows",)):
        made = program.to_edge().to_executable(ExecutableConfig(unread_state=names))
        sizes.append(made.sizes["state"])
        loaded, eager = load_runtime(made.buffer), Kept()
        for at in range(3):
            x = torch.rand(256)
            args = x, torch.tensor(at)
            assert_close(loaded.run(args), [eager(*args)])
    assert sizes == [16 * 256 * 4, 0]
    with pytest.raises(LoweringError, match="no method writes the state 'row', which is to be unr"):
        program.to_edge().to_executable(ExecutableConfig(unread_state=("row",)))


class Kept(nn.Module):
    """The sum of all rows that were written."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(16, 256))

    def forward(self, row: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.rows.index_copy_(0, at.reshape(1), row[None])
        is_written = torch.arange(16)[:, None] <= at
        return torch.where(is_written, self.rows, 0).sum(0)
