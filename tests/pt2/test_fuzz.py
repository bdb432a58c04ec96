"""Thousands of damaged archives: each loads, or raises a `LoadError`, quickly and in little memory.

More of them, with the seeds of what went wrong:

    python -m tests.pt2.test_fuzz [count [first seed]]
"""

from __future__ import annotations

import io
import json
import resource
import sys
import time
import traceback
import warnings
from collections import Counter

import pytest
import torch
from torch import nn

import lostwax
from lostwax.errors import LoadError, VerificationError
from tests.capture.small import Rounded
from tests.pt2.compare import saved
from tests.pt2.mutants import mutant, records
from tests.pt2.peer_programs import cases
from tests.whole import sampled

CHUNKS, SIZE = sampled(2, 4), 750


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(3, 2)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.t = torch.ones(2)

    def forward(self, x, y, n=3):
        self.count += 1
        values, _ = torch.max(self.l(x), dim=1)
        return {"v": values + y.sum(), "t": [self.t * x.shape[0], x.reshape(-1)[: y.shape[0]]]}


class Particular(nn.Linear):
    """All that our own record is for: a number that an assertion fixes, a backward of its own,
    items whose metadata is not that of the call."""

    def forward(self, x, k):
        n = k.item()
        torch._check(n == x.shape[0])
        a, b = Rounded.apply(super().forward(x)).split(2, 1)
        return a * n, b + torch.ones(n, 1)


def particular() -> bytes:
    args = (torch.randn(4, 3), torch.tensor(4))
    program = lostwax.export(Particular(3, 3), args, dynamic_shapes=({0: lostwax.Dim.AUTO}, None))
    with pytest.warns(UserWarning, match="a backward of its own"):
        return saved(program.run_decompositions())


def test_our_own_record_is_in_use() -> None:
    own = json.loads(records(particular())["archive/models/model.json"])["lostwax"]
    for part in ("facts", "symbols", "values", "items", "order", "ranges"):
        assert own["whole"]["lostwax"][part]


def archives() -> list[bytes]:
    """Programs of ours with symbols, writes and all that our own record is for, and three of
    torch's."""
    args = (torch.randn(4, 3), torch.randn(5))
    auto = {"x": {0: lostwax.Dim.AUTO}, "y": {0: lostwax.Dim.AUTO}}
    found = [saved(lostwax.export(Small(), args, dynamic_shapes=auto)), particular()]
    for name in ("cond", "trees", "symbolic"):
        case = cases()[name]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            peer = torch.export.export(
                case.module, case.args, case.kwargs, dynamic_shapes=case.dynamic
            )
            buffer = io.BytesIO()
            torch.export.save(peer, buffer)
        found.append(buffer.getvalue())
    return found


@pytest.fixture(scope="module")
def bases() -> list[bytes]:
    return archives()


def outcome(data: bytes) -> str:
    """What becomes of an archive; anything else than these words is an exception that escapes."""
    try:
        program = lostwax.load(io.BytesIO(data))
    except LoadError as error:
        return "refused" if error.where else "refused without a place"
    for each in program.values() if isinstance(program, dict) else [program]:
        str(each)
        try:
            each.validate()
        except VerificationError:
            return "not a program"
    return "loaded"


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_archive_does_harm(bases: list[bytes], chunk: int) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    counts: Counter[str] = Counter()
    for seed in range(chunk * SIZE, (chunk + 1) * SIZE):
        counts[outcome(mutant(bases[seed % len(bases)], seed))] += 1
    assert counts.keys() <= {"refused", "loaded", "not a program"}
    assert counts["refused"] > SIZE / 4
    assert counts["loaded"] > 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10  # in KiB


def main() -> None:
    count, first = (int(a) for a in (*sys.argv[1:3], *("10000", "0")[len(sys.argv) - 1 :]))
    found, counts, slow = archives(), Counter(), 0.0
    for seed in range(first, first + count):
        data = mutant(found[seed % len(found)], seed)
        start = time.perf_counter()
        try:
            counts[outcome(data)] += 1
        except Exception:
            counts["WRONG"] += 1
            print(f"seed {seed}:\n{traceback.format_exc(limit=-6)}")
        slow = max(slow, time.perf_counter() - start)
    print(dict(counts), f"slowest {slow:.2f} s")


if __name__ == "__main__":
    main()
