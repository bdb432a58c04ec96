"""Which results have a gradient: what `lostwax/ops/gradients.py` says beside what this torch was
built from, the file that its own generator of autograd reads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torchgen
import yaml
from torch._C import parse_schema

from lostwax.ops.gradients import has_gradient

DERIVATIVES = Path(torchgen.__file__).parent / "packaged/autograd/derivatives.yaml"
_NEVER_REAL = """
    _embedding_bag _fake_quantize_per_tensor_affine_cachemask_tensor_qparams _fused_dropout
    _indices _is_all_true _is_any_true _pack_padded_sequence _unique _unique2 adaptive_max_pool2d
    adaptive_max_pool3d all any ccol_indices col_indices count_nonzero crow_indices cummax cummin
    eq fake_quantize_per_channel_affine_cachemask fake_quantize_per_tensor_affine_cachemask
    fractional_max_pool2d fractional_max_pool3d frexp ge gt hash_tensor indices isnan kthvalue le
    linalg_cholesky_ex linalg_inv_ex linalg_lu_factor_ex lt max max_pool2d_with_indices
    max_pool3d_with_indices median min mode multinomial nanmedian native_dropout ne nonzero one_hot
    row_indices sort topk unique_consecutive unique_dim unique_dim_consecutive
"""
"""Their results without a gradient are integers or truths."""
_NO_PROGRAMS = """
    _efficientzerotensor _new_zeros_with_same_feature_meta _values miopen_rnn_backward
"""
"""Of autograd itself, of sparse tensors and of other devices: no program has them."""
APART = {*_NEVER_REAL.split(), *_NO_PROGRAMS.split()}


def results_with_gradient(entry: dict[str, Any]) -> tuple[str, list[bool]]:
    """An operator, and for each result whether it has a gradient. By the generator's rule: a
    formula that speaks of `grad`, not of `grads`, is of the first result alone."""
    schema = parse_schema(f"aten::{entry['name'].strip()}")
    formulas = entry.get("dispatch", {}).get("Default", entry)
    arguments = {argument.name for argument in schema.arguments}
    texts = [str(text) for key, text in formulas.items() if arguments.issuperset(key.split(", "))]
    count = len(schema.returns)
    if "output_differentiability" in entry:
        mask = [each is not False for each in entry["output_differentiability"]]
    elif texts and all(text == "non_differentiable" for text in texts):
        mask = [False] * count
    elif any(re.search(r"\bgrad\b", text) for text in texts):
        mask = [i == 0 for i in range(count)]
    else:
        mask = [True] * count
    return f"{schema.name.removeprefix('aten::')}.{schema.overload_name or 'default'}", mask


ENTRIES = dict(map(results_with_gradient, yaml.safe_load(DERIVATIVES.read_text())))


@pytest.mark.parametrize("name", [name for name, mask in ENTRIES.items() if not all(mask)])
def test_not_every_result_has_a_gradient(name: str) -> None:
    base, overload = name.split(".")
    if base not in APART:
        assert ours(base, overload, len(ENTRIES[name])) == ENTRIES[name]


def test_all_that_has_a_formula_has_a_gradient() -> None:
    for name, mask in ENTRIES.items():
        base, overload = name.split(".")
        if all(mask) and overload in getattr(torch.ops.aten, base).overloads():
            assert all(ours(base, overload, len(mask))), name


def ours(base: str, overload: str, count: int) -> list[bool]:
    target = getattr(getattr(torch.ops.aten, base), overload)
    return [has_gradient(target, i) for i in range(count)]
