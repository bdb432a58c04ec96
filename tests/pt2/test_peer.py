"""What real `torch.export.save` wrote loads here, is verified, printed, run, and equals; and goes
back to torch.
"""

from __future__ import annotations

import io
import warnings
from typing import Any

import pytest
import torch

import lostwax
from tests.pt2.compare import assert_runs_alike, peer_load, saved
from tests.pt2.peer_programs import cases

NAMES = sorted(cases())
# where decomposing changes more than which operators there are
DECOMPOSED = [
    *("arguments", "asserts", "batch norm", "cond", "constants", "custom", "input", "item", "map"),
    *("modes", "no inputs", "parameter", "scan", "several", "while_loop"),
]

# torch's own module raises: it writes to a leaf that requires gradients.
PEER_CANNOT_RUN = {("parameter", True)}


@pytest.fixture(scope="module")
def programs() -> dict[str, Any]:
    return {}


def exported(programs: dict[str, Any], name: str) -> tuple[Any, Any]:
    if name not in programs:
        case = cases()[name]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            programs[name] = case, torch.export.export(
                case.module, case.args, case.kwargs, dynamic_shapes=case.dynamic,
                **(case.options or {}),
            )  # fmt: skip
    return programs[name]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "decomposed"), [(n, False) for n in NAMES] + [(n, True) for n in DECOMPOSED]
)
def test_round_trip(programs: dict[str, Any], name: str, decomposed: bool) -> None:
    case, peer = exported(programs, name)
    if decomposed:
        peer = peer.run_decompositions()
    buffer = io.BytesIO()
    torch.export.save(peer, buffer)
    data = buffer.getvalue()

    ours = lostwax.load(io.BytesIO(data))
    ours.validate()
    assert ours.dialect == ("ATEN" if decomposed else "TRAINING")
    text = str(ours)
    assert "def forward(self" in text
    if (name, decomposed) in PEER_CANNOT_RUN:
        ours.module()(*case.args)
        return
    fresh = peer_load(data)
    assert_runs_alike(ours.module(), fresh.module(), case.args, case.kwargs, times=2)

    again = saved(ours)
    assert str(lostwax.load(io.BytesIO(again))) == text
    assert saved(lostwax.load(io.BytesIO(again))) == again
    assert_runs_alike(peer_load(again).module(), peer_load(data).module(), case.args, case.kwargs)
