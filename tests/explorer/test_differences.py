"""Two programs on a page, and what differs; profiles."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import nn

import lostwax
from tests.explorer.programs import lowered, net

SAME, CHANGED, ONLY_HERE = range(3)


class Net(nn.Module):
    """Its parts can be exchanged, each for one that differs in one way."""

    def __init__(self, act: Any = torch.relu, scale: float = 2.0, extra: bool = False) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)
        self.act, self.scale, self.extra = act, scale, extra

    def forward(self, x: Any) -> Any:
        x = self.act(self.first(x)) * self.scale
        if self.extra:
            x = x.tanh()
        return self.last(x)


def export(*, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    torch.manual_seed(0)
    return lostwax.export(Net(**options).to(dtype).eval(), (torch.randn(3, 4, dtype=dtype),))


def differences(a: Any, b: Any) -> list[dict[str, int]]:
    """For both programs the nodes that are not the same."""
    data = json.loads(json.dumps(lostwax.explore(a, diff=b).data))
    return [
        {n: c for n, c in zip(p["columns"]["name"], p["changes"], strict=True) if c}
        for p in data["programs"]
    ]


def test_a_program_is_like_itself():
    assert differences(export(), export()) == [{}, {}]
    assert differences(net(), net()) == [{}, {}]


def test_an_operator_that_was_exchanged_is_in_one_program_only_and_its_reader_changed():
    assert differences(export(), export(act=torch.sigmoid)) == [
        {"relu": ONLY_HERE, "mul": CHANGED},
        {"sigmoid": ONLY_HERE, "mul": CHANGED},
    ]


def test_another_number_is_a_change():
    assert differences(export(), export(scale=3.0)) == [{"mul": CHANGED}, {"mul": CHANGED}]


def test_what_comes_after_an_operator_that_is_new_stays_the_same():
    a, b = differences(export(), export(extra=True))
    assert (a, b) == ({"addmm_1": CHANGED}, {"tanh": ONLY_HERE, "addmm_1": CHANGED})


def test_another_dtype_changes_all():
    a, b = differences(export(), export(dtype=torch.float64))
    assert a == b
    assert set(a.values()) == {CHANGED}
    assert {"x", "p_first_weight", "mul"} <= set(a)


def test_bodies_of_control_flow_are_compared():
    def make(then: Any) -> Any:
        def f(x: Any) -> Any:
            return torch.cond(x.sum() > 0, then, lambda x: x.cos(), (x,))

        return lostwax.export(f, (torch.randn(3),))

    a, b = differences(make(lambda x: x.sin()), make(lambda x: x.sinh()))
    assert (a, b) == ({"sin": ONLY_HERE, "output": CHANGED}, {"sinh": ONLY_HERE, "output": CHANGED})


def test_files_are_compared_and_named(tmp_path):
    for name, program in (("a", export()), ("b", export(extra=True))):
        lostwax.save(program, tmp_path / f"{name}.pt2")
        program.to_edge().to_executable().save(tmp_path / f"{name}.pte")
    page = lostwax.explore(tmp_path / "a.pt2", diff=tmp_path / "b.pt2")
    assert repr(page) == "Page('a.pt2 and b.pt2': a.pt2, b.pt2)"
    assert page.data["diff"] is True
    a, b = differences(tmp_path / "a.pte", tmp_path / "b.pte")
    assert [c for c in a.values() if c == ONLY_HERE] == []
    assert [c for c in b.values() if c == ONLY_HERE] == [ONLY_HERE]


def test_a_diff_is_of_two():
    with pytest.raises(ValueError, match="the second are 3 stages"):
        lostwax.explore(export(), diff=list(lowered()))
    with pytest.raises(ValueError, match="diff shows two programs, lower the stages of one"):
        lostwax.explore(export(), diff=export(), lower=True)
    with pytest.raises(ValueError, match="the first program has a, b, the second forward\n  inst"):
        lostwax.explore({"a": export(), "b": export()}, diff=export())


# --------------------------------------------------------------------------------------- profiles


def profile_of(page: Any, at: int = 0) -> dict[str, dict[str, float]]:
    program = json.loads(json.dumps(page.data))["programs"][at]
    names = program["columns"]["name"]
    return {
        table: {names[int(node)]: value for node, value in found.items()}
        for table, found in program["profile"].items()
    }


def test_a_profile_is_a_dict_or_a_file(tmp_path):
    given = {"seconds": {"mul": 0.25, "elsewhere": 1}, "errors": {"relu": 1e-6}}
    (tmp_path / "p.json").write_text(json.dumps(given))
    for each in (given, tmp_path / "p.json", str(tmp_path / "p.json")):
        found = profile_of(lostwax.explore(export(), profile=each))
        assert found == {"seconds": {"mul": 0.25}, "errors": {"relu": 1e-6}}


@pytest.mark.parametrize(
    "given", [{}, {"time": {}}, {"seconds": [1]}, {"seconds": {"mul": "1"}}, 3]
    + [{"seconds": {"mul": number}} for number in (math.nan, math.inf, -1)],
)  # fmt: skip
def test_what_is_no_profile_is_refused(given):
    with pytest.raises(ValueError, match=r'a profile is a dict of numbers.*\n  instead: \{"seco'):
        lostwax.explore(export(), profile=given)


def test_a_profile_of_another_program_is_refused(tmp_path):
    with pytest.raises(ValueError, match="names no node of the program: it has conv, bn"):
        lostwax.explore(export(), profile={"seconds": {"conv": 1, "bn": 2}})
    (tmp_path / "p.json").write_text("{")
    with pytest.raises(ValueError, match=r"p\.json is no profile: "):
        lostwax.explore(export(), profile=tmp_path / "p.json")


def test_a_program_is_measured_here(tmp_path):
    lostwax.save(net(), tmp_path / "net.pt2")
    seed = torch.random.get_rng_state()
    for each in (net(), tmp_path / "net.pt2"):
        found = profile_of(lostwax.explore(each, profile=True))
        calls = [n.name for n in net().graph.nodes if n.op == "call_function"]
        assert list(found["seconds"]) == calls
        assert all(seconds > 0 for seconds in found["seconds"].values())
        assert found["errors"] == {}
    assert torch.equal(seed, torch.random.get_rng_state())


def test_errors_are_those_against_the_other_program():
    page = lostwax.explore(export(), diff=export(scale=2.02), profile=True)
    errors = profile_of(page, 1)["errors"]
    assert errors["relu"] == 0
    assert errors["mul"] == pytest.approx(0.01, rel=1e-3)
    assert 0 < errors["addmm_1"] < 0.1


class Odd(nn.Module):
    """Values that are no number, complex, not there yet, or random; it writes to its buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(4))
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Any) -> Any:
        self.count.add_(1)
        x = self.drop(x) + self.count
        return torch.view_as_real(torch.fft.fft(x)), (x * 0).log() * 0, torch.empty_like(x), x > 1


def test_a_program_has_no_errors_against_itself_and_is_not_changed():
    program = lostwax.export(Odd(), (torch.randn(4),))
    before = program.state_dict["count"].clone()
    errors = profile_of(lostwax.explore(program, diff=program, profile=True), 1)["errors"]
    assert len(errors) > 5
    assert set(errors.values()) == {0}
    assert torch.equal(program.state_dict["count"], before)


def test_what_takes_another_example_has_times_but_no_errors():
    other = lostwax.export(nn.Linear(5, 2), (torch.randn(3, 5),))
    found = profile_of(lostwax.explore(export(), diff=other, profile=True), 1)
    assert found["seconds"]
    assert found["errors"] == {}


def test_a_program_without_an_example_is_not_measured():
    program = export()
    program.example_inputs = None
    with pytest.raises(ValueError, match="has no example inputs, with which it could be measured"):
        lostwax.explore(program, profile=True)


def test_a_file_without_an_example_is_not_measured(tmp_path):
    export().to_edge().to_executable().save(tmp_path / "x.pte")
    with pytest.raises(ValueError, match=r"a \.pte file has no example\n  instead: a profile"):
        lostwax.explore(tmp_path / "x.pte", profile=True)
