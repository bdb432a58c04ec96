"""The operators that are not core and yet stay whole, each with the reason.

The list is documentation, and a test checks it: of torch's `op_db`, `run_decompositions` leaves
only operators that are core or listed here. Where a decomposition covers some calls of an operator,
only the other calls stay.
"""

from __future__ import annotations

WHOLE: dict[str, str] = {}
"""Name of the overload → why nothing takes it apart."""


def _keep(reason: str, names: str) -> None:
    for name in names.split():
        WHOLE[f"aten.{name}" if "." in name else f"aten.{name}.default"] = reason


_keep("it stops a gradient: nothing else does", "detach")
_keep("it is a check of the program", "_assert_scalar _assert_tensor_metadata _assert_async.msg")
_keep("it is a check of the program", "_linalg_check_errors")
_keep(
    "it draws random numbers: other operators would draw others",
    "bernoulli bernoulli.p bernoulli.Tensor multinomial randint randint.low randint_like "
    "randint_like.low_dtype cauchy exponential geometric log_normal normal.Tensor_Tensor "
    "normal.Tensor_float normal.float_Tensor normal.float_float normal_functional uniform poisson "
    "binomial _standard_gamma _sample_dirichlet rrelu_with_noise_functional rand_like randn_like "
    "fractional_max_pool2d fractional_max_pool3d",
)
_keep(
    "the size of its result depends on data",
    "masked_select _unique2 unique_dim unique_consecutive unique_dim_consecutive bincount "
    "nonzero_static repeat_interleave.Tensor",
)
_keep(
    "a factorisation or a solver",
    "cholesky cholesky_inverse cholesky_solve geqrf linalg_cholesky_ex linalg_eig _linalg_eigh "
    "_linalg_eigvals linalg_eigvals linalg_householder_product linalg_inv_ex linalg_ldl_factor_ex "
    "linalg_ldl_solve linalg_lstsq linalg_lu linalg_lu_factor_ex linalg_lu_solve linalg_matrix_exp "
    "linalg_matrix_sqrth linalg_pinv.atol_rtol_tensor linalg_polar linalg_qr "
    "linalg_solve_triangular _linalg_det _linalg_slogdet "
    "_linalg_solve_ex _linalg_svd lu_unpack ormqr triangular_solve",
)
_keep(
    "no core operator knows its numbers: complex ones",
    "_conj _conj_physical _neg_view angle complex _fft_c2c polar view_as_complex view_as_real "
    "resolve_conj vdot linalg_vector_norm logsumexp",
)
_keep(
    "a special function, which sums of core operators would compute with fewer digits",
    "digamma erfc erfinv i0 igamma igammac lgamma polygamma special_airy_ai special_bessel_j0 "
    "special_bessel_j1 special_bessel_y0 special_bessel_y1 special_chebyshev_polynomial_t "
    "special_chebyshev_polynomial_u special_chebyshev_polynomial_v special_chebyshev_polynomial_w "
    "special_erfcx special_hermite_polynomial_h special_hermite_polynomial_he special_i0e "
    "special_i1 special_i1e special_laguerre_polynomial_l special_legendre_polynomial_p "
    "special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0 "
    "special_modified_bessel_k1 special_ndtri special_scaled_modified_bessel_k0 "
    "special_scaled_modified_bessel_k1 special_shifted_chebyshev_polynomial_t "
    "special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v "
    "special_shifted_chebyshev_polynomial_w special_spherical_bessel_j0 special_zeta",
)
_keep(
    "it reads the bits of numbers",
    "bitwise_left_shift.Tensor bitwise_right_shift.Tensor frexp.Tensor gcd hash_tensor nextafter "
    "signbit",
)
_keep(
    "an algorithm, not arithmetic: order statistics, scans, histograms, searches",
    "bucketize.Tensor bucketize.Scalar cummax cummin histc histogram.bin_ct histogram.bins_tensor "
    "_histogramdd_bin_edges _histogramdd_from_bin_cts _histogramdd_from_bin_tensors kthvalue "
    "logcumsumexp median median.dim mode nanmedian nanmedian.dim searchsorted.Tensor "
    "searchsorted.Scalar segment_reduce sort.stable _ctc_loss _ctc_loss.Tensor",
)
_keep("a kernel of its own for some hardware", "_scaled_mm _scaled_mm_v2 _grouped_mm")
_keep(
    "an interpolation or a pooling that core ATen has only for fewer dimensions",
    "grid_sampler_3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa",
)
_keep("it speaks of memory", "as_strided_scatter")
_keep("a view, of any strides: `as_strided` would hold for those at capture alone", "unfold")
_keep(
    "if key and value have fewer heads, or how wide a head is varies",
    "_scaled_dot_product_flash_attention_for_cpu",
)
_keep(
    "a kernel of one device, which is called by name",
    "_flash_attention_forward _efficient_attention_forward",
)
_keep(
    "if a size varies: its windows are of as many sizes", "adaptive_max_pool2d adaptive_max_pool3d"
)
_keep(
    "if its length varies: as many steps as the length says are no fixed number of calls",
    "lstm.input gru.input rnn_tanh.input rnn_relu.input",
)
_keep(
    "if the size varies: as many results as it says are no fixed number of values",
    "split.Tensor unsafe_split.Tensor unbind.int",
)
_keep(
    "if it makes integers: rounded as the kernel does it",
    "linspace linspace.Tensor_Tensor linspace.Tensor_Scalar linspace.Scalar_Tensor",
)
