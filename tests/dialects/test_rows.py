"""The file of dtype rows is what its making gives: torch's kernels and the runtime's decide."""

from __future__ import annotations

import pytest
import torch

from lostwax.dialects.dtype_rows import read_rows
from tests.pte.runtime import portable
from tests.whole import sampled

assert portable  # without the runtime nothing of this is tried
pytestmark = pytest.mark.skipif(
    not torch.__version__.startswith("2.13"), reason="the file is of torch 2.13's kernels"
)
BY_HAND = """
    _fft_c2r.default _local_scalar_dense.default atan2.out
    adaptive_avg_pool1d.default bitwise_and.Scalar copy.default
    fmod.Scalar gt.Scalar index.Tensor pow.Scalar resize_.default scatter.value sym_numel.default
    sym_size.int var.dim
"""
"""Of whose calls none is taken from torch's `op_db`, which takes long."""


def test_the_file_is_what_its_making_gives() -> None:
    from tests.dialects import make_rows

    core = {str(op).removeprefix("aten."): op for op in make_rows.core_operators()}
    whole = [*core.values()]
    wanted = sampled([core[name] for name in BY_HAND.split()], whole)
    calls = make_rows.harvest(wanted, None if wanted == whole else ())
    known = read_rows()
    for op in wanted:
        entry = make_rows.make_entry(op, calls[op])
        assert entry is not None, op
        assert entry == known[entry.operator], op


def test_calls_are_judged_by_the_runtime() -> None:
    from tests.dialects.kernels import judge

    aten = torch.ops.aten
    x, half = torch.randn(3, 4), torch.randn(3, 4).half()
    given = [{"self": each} for each in (x, half)]
    right = [(each, [aten.sigmoid(each["self"])]) for each in given]
    wrong = [(each, [aten.sigmoid(each["self"]) + 1]) for each in given]
    assert judge(aten.sigmoid.default, right + wrong) == [True, True, False, False]
    number = [{"self": torch.ones(1)}, {"self": torch.ones(1).half()}]
    assert judge(aten._local_scalar_dense.default, [(each, []) for each in number]) == [True, False]
    assert judge(aten.col2im.default, [({}, [])]) == [False]  # it has no kernel
