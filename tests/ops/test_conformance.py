"""Fakes agree with eager on torch's samples of every operator, but for what exceptions.toml lists.

A sample that fails and is not counted there fails the test, and so does a line that is out of date:
an exception leaves the list when it is mended.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lostwax.torch_version import TORCH, parse
from tests.ops.conformance import FORMS, Call, beyond, calls, dtypes_of, eagerly, operators
from tests.ops.ours import OurFakes
from tests.ops.report import SYMBOLIC_FORMS, Choice, Tally, concrete, groups, symbolic

EXCEPTIONS: dict[str, dict[str, dict[str, Any]]] = tomllib.loads(
    (Path(__file__).parent / "exceptions.toml").read_text()
)
OPERATORS = operators()
BAR = 0.99


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_share() -> None:
    """Of the samples that eager runs. With symbolic sizes a refusal is no wrong answer; those that
    there are stand in the list. (First, since it is the longest: more forms would only add to the
    share, and are counted where it is needed, with 2.11; so do more samples, once there are
    enough.)"""
    failing = {section: sum(map(failures, of.values())) for section, of in EXCEPTIONS.items()}
    symbolic, static = (failing[section] / (1 - BAR) for section in ("symbolic", "static"))
    ran = count_runs(SYMBOLIC_FORMS, max(symbolic, static))
    assert ran >= symbolic, f"{failing['symbolic']} of {ran} with symbols"
    if ran < static:
        ran += count_runs(tuple(f for f in FORMS if f not in SYMBOLIC_FORMS), static - ran)
    assert ran >= static, f"{failing['static']} of {ran}"


def count_runs(forms: tuple[str, ...], enough: float) -> int:
    """How many samples eager runs, as far as it matters."""
    ran = 0
    for call in samples(forms):
        ran += runs(call)
        if ran >= enough:
            break
    return ran


def samples(forms: tuple[str, ...]) -> Iterator[Call]:
    for op in OPERATORS.values():
        for dtype in dtypes_of(op):
            yield from calls(op, dtype, forms)


def runs(call: Call) -> bool:
    run = eagerly(call)
    return run.error is None and not beyond(run)


@pytest.mark.parametrize("name", OPERATORS)
def test_concrete_sizes(name: str) -> None:
    for section, tally in concrete(OPERATORS[name], Choice(OurFakes)).items():
        check(name, section, tally)


@pytest.mark.parametrize("name", OPERATORS)
def test_symbolic_sizes(name: str) -> None:
    for section, tally in symbolic(OPERATORS[name], Choice(OurFakes, SYMBOLIC_FORMS)).items():
        check(name, section, tally)


def failures(entry: dict[str, Any]) -> int:
    """How many samples fail with the torch at hand: one number, or one for each version since which
    it is so."""
    failing = entry["failing"]
    if isinstance(failing, int):
        return failing
    reached = [parse(since) for since in failing if parse(since) <= TORCH]
    return failing["{}.{}".format(*max(reached))] if reached else 0


def check(name: str, section: str, tally: Tally) -> None:
    listed = failures(EXCEPTIONS[section].get(name, {"failing": 0}))
    if tally.bad() > listed:
        examples = [f"{n}× {o.verdict} {c}\n    {o.detail}" for c, o, n in groups(tally)[:5]]
        pytest.fail(
            f"{name}, {section}: {tally.bad()} of {tally.judged()} samples fail, "
            f"exceptions.toml lists {listed}\n" + "\n".join(examples),
            pytrace=False,
        )
    # Which sizes are tried with symbols depends on the guards: fewer failures are no news there.
    stale = not tally.bad() if section == "symbolic" else tally.bad() < listed
    assert not (listed and stale), (
        f"{name}, {section}: exceptions.toml lists {listed} failing samples, and only "
        f"{tally.bad()} fail: correct the list"
    )


def test_exceptions_are_of_operators_and_have_reasons() -> None:
    for section, entries in EXCEPTIONS.items():
        for name, entry in entries.items():
            assert name in OPERATORS or not failures(entry), f"{section}: no sample of {name}"
            assert entry["failing"], f"{section}: nothing fails of {name}"
            assert entry["reason"], f"{section}: {name} has no reason"
