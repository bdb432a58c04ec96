"""Which results of an operator have a gradient if its arguments do. Integers and booleans never do,
and are not listed.

Autograd decides this in C++, below what a fake sees. The tables list the operators for which the
answer is not "all"; `tests/ops/test_gradients.py` compares them with the tables that torch was
built from.
"""

from __future__ import annotations

from typing import Any

from torch._ops import OpOverload

from lostwax.ops.registry import operator
from lostwax.ops.traits import Trait
from lostwax.torch_version import BESSEL_HAS_GRADIENT

_BESSEL = """
    special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1
    special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0
    special_modified_bessel_k1
"""
_NO_RESULT = """
    empty_like zeros_like ones_like full_like rand_like randn_like new_empty new_empty_strided
    new_zeros new_ones new_full histc linspace logspace special_airy_ai
    special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v
    special_chebyshev_polynomial_w special_hermite_polynomial_h special_hermite_polynomial_he
    special_laguerre_polynomial_l special_legendre_polynomial_p special_scaled_modified_bessel_k0
    special_scaled_modified_bessel_k1 special_shifted_chebyshev_polynomial_t
    special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v
    special_shifted_chebyshev_polynomial_w special_spherical_bessel_j0
"""
_FIRST = """
    _batch_norm_no_update _batch_norm_with_update _batch_norm_with_update_functional
    _native_batch_norm_legit _native_batch_norm_legit_functional
    _native_batch_norm_legit_no_training native_batch_norm cudnn_batch_norm miopen_batch_norm
    native_layer_norm _weight_norm_interface _thnn_fused_gru_cell rrelu_with_noise_functional
    nll_loss_forward nll_loss2d_forward multilabel_margin_loss_forward log_sigmoid_forward
    _ctc_loss _cudnn_ctc_loss miopen_ctc_loss _linalg_det _linalg_solve_ex
    _fused_moving_avg_obs_fq_helper _sparse_mm_reduce_impl
    _scaled_dot_product_cudnn_attention _scaled_dot_product_efficient_attention
    _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_fused_attention_overrideable _cudnn_attention_forward
    _efficient_attention_forward _flash_attention_forward
"""
_FIRST_TWO = "linalg_lstsq _linalg_slogdet _thnn_fused_lstm_cell"
_FIRST_THREE = "_cudnn_rnn miopen_rnn mkldnn_rnn_layer _lstm_mps"
_ALL_BUT_THE_FIRST = "linalg_lu lu_unpack"

_RESULTS: dict[str, tuple[int, ...]] = {
    f"aten::{name}": results
    for names, results in (
        (_NO_RESULT, ()),
        ("" if BESSEL_HAS_GRADIENT else _BESSEL, ()),
        (_FIRST, (0,)),
        (_FIRST_TWO, (0, 1)),
        (_FIRST_THREE, (0, 1, 2)),
        (_ALL_BUT_THE_FIRST, (1, 2)),
    )
    for name in names.split()
}


def has_gradient(target: Any, index: int) -> bool:
    """Does result number `index` have a gradient if the arguments do?"""
    if not isinstance(target, OpOverload):
        return True
    results = _RESULTS.get(target._schema.name)
    if results is None:
        return Trait.STOPS_GRADIENT not in operator(target).traits
    return index in results
