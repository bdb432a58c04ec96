"""Fakes agree with eager on a GPU, on torch's samples of every operator, but for what
exceptions.toml lists under `cuda`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.ops.conformance import operators
from tests.ops.ours import OurFakes
from tests.ops.report import Choice, concrete, groups

EXCEPTIONS: dict[str, dict[str, Any]] = tomllib.loads(
    (Path(__file__).parents[1] / "ops" / "exceptions.toml").read_text()
)["cuda"]
OPERATORS = operators()
NAMES = [*OPERATORS] if torch.cuda.is_available() else ["each operator"]
"""Without a GPU one test is skipped, and not hundreds."""
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", NAMES)
def test_it_agrees(name: str) -> None:
    tally = concrete(OPERATORS[name], Choice(OurFakes, device="cuda"))["static"]
    listed = EXCEPTIONS.get(name, {}).get("failing", 0)
    examples = [f"{n}× {o.verdict} {c}\n    {o.detail}" for c, o, n in groups(tally)[:5]]
    assert tally.bad() <= listed, "\n".join(examples)
