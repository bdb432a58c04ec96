"""Fakes agree with eager on torch's samples of every operator, but for what exceptions.toml lists.

A sample that fails and is not counted there fails the test, and so does a line that is out of date:
an exception leaves the list when it is mended.

Some operators have a thousand samples, which differ little. `make fuzz` tries all of them; else it
is `FEW` of each dtype, always the same ones, but for the operators that are listed.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lostwax.torch_version import TORCH, parse
from tests.ops.conformance import FORMS, Call, beyond, calls, dtypes_of, eagerly, operators
from tests.ops.ours import OurFakes
from tests.ops.report import SYMBOLIC_FORMS, Choice, Tally, concrete, groups, symbolic
from tests.whole import WHOLE

EXCEPTIONS: dict[str, dict[str, dict[str, Any]]] = tomllib.loads(
    (Path(__file__).parent / "exceptions.toml").read_text()
)
OPERATORS = operators()
BAR = 0.99
FEW = 5
RUN = {"symbolic": 29_300, "static": 50_000}
"""So many samples eager runs, about; `make fuzz` counts them."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("section", RUN)
def test_the_share(section: str) -> None:
    """Of the samples that eager runs. With symbolic sizes a refusal is no wrong answer; those that
    there are stand in the list."""
    failing = sum(map(failures, EXCEPTIONS[section].values()))
    assert failing <= (1 - BAR) * RUN[section]


@pytest.mark.skipif(not WHOLE, reason="takes minutes: make fuzz")
def test_the_number_of_samples() -> None:
    ran = Counter(call.form for call in samples(FORMS) if runs(call))
    assert ran.total() >= 0.99 * RUN["static"]
    assert sum(ran[form] for form in SYMBOLIC_FORMS) >= 0.99 * RUN["symbolic"]


def samples(forms: tuple[str, ...]) -> Iterator[Call]:
    for op in OPERATORS.values():
        for dtype in dtypes_of(op):
            yield from calls(op, dtype, forms)


def runs(call: Call) -> bool:
    run = eagerly(call)
    return run.error is None and not beyond(run)


@pytest.mark.parametrize("name", OPERATORS)
def test_concrete_sizes(name: str) -> None:
    choice = Choice(OurFakes, few=few(name, "static", "errors"))
    for section, tally in concrete(OPERATORS[name], choice).items():
        check(name, section, tally)


@pytest.mark.parametrize("name", OPERATORS)
def test_symbolic_sizes(name: str) -> None:
    choice = Choice(OurFakes, SYMBOLIC_FORMS, few=few(name, "symbolic", "refused"))
    for section, tally in symbolic(OPERATORS[name], choice).items():
        check(name, section, tally)


def few(name: str, *sections: str) -> int | None:
    """How many samples are tried; None: all. An exception says how many of all fail."""
    is_listed = any(name in EXCEPTIONS[section] for section in sections)
    return None if WHOLE or is_listed else FEW


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
