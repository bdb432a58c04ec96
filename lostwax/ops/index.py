"""Which file knows something of which operator. Made by `make index`."""

from __future__ import annotations

FAMILIES = {
    "lostwax.ops.collectives": """
        _c10d_functional::all_gather_into_tensor _c10d_functional::all_gather_into_tensor_coalesced
        _c10d_functional::all_reduce _c10d_functional::all_reduce_coalesced
        _c10d_functional::all_to_all_single _c10d_functional::batch_p2p_ops
        _c10d_functional::broadcast _c10d_functional::irecv _c10d_functional::isend
        _c10d_functional::reduce_scatter_tensor _c10d_functional::reduce_scatter_tensor_coalesced
        _c10d_functional::wait_tensor _c10d_functional_autograd::all_gather_into_tensor
        _c10d_functional_autograd::all_to_all_single
        _c10d_functional_autograd::reduce_scatter_tensor c10d::allgather_coalesced_ c10d::barrier
        c10d::check_for_nan c10d::gather_ c10d::monitored_barrier_ c10d::recv_
        c10d::recv_any_source_ c10d::reduce_ c10d::scatter_ c10d::send
    """,
    "lostwax.ops.math.fft": """
        _fft_c2c _fft_c2r _fft_r2c fft_fft fft_fft2 fft_fftfreq fft_fftn fft_hfft fft_hfft2
        fft_hfftn fft_ifft fft_ifft2 fft_ifftn fft_ihfft fft_ihfft2 fft_ihfftn fft_irfft fft_irfft2
        fft_irfftn fft_rfft fft_rfft2 fft_rfftfreq fft_rfftn
    """,
    "lostwax.ops.math.linalg": """
        _cholesky_solve_helper _compute_linear_combination _linalg_check_errors _linalg_det
        _linalg_eigh _linalg_eigvals _linalg_slogdet _linalg_solve_ex _linalg_svd cholesky
        cholesky_inverse cholesky_solve geqrf kron linalg_cholesky_ex linalg_eig linalg_eigvals
        linalg_householder_product linalg_inv_ex linalg_ldl_factor_ex linalg_ldl_solve linalg_lstsq
        linalg_lu linalg_lu_factor_ex linalg_lu_solve linalg_matrix_exp linalg_matrix_norm
        linalg_matrix_power linalg_matrix_rank linalg_pinv linalg_qr linalg_solve_triangular
        linalg_tensorinv lu_unpack ormqr triangular_solve
    """,
    "lostwax.ops.math.matmul": """
        _addmm_activation _cdist_backward _cdist_forward _grouped_mm _int_mm _pdist_backward
        _pdist_forward _trilinear _weight_int8pack_mm addbmm addbmm_ addmm addmm_ addmv addmv_ addr
        baddbmm baddbmm_ bmm dot linalg_cross matmul mm mv vdot
    """,
    "lostwax.ops.math.pointwise": """
        __lshift__ __rshift__ _conj_physical abs acos acosh add addcdiv addcmul angle asin asinh
        atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift
        bitwise_xor ceil clamp clamp_max clamp_min complex copysign cos cosh deg2rad digamma div eq
        erf erfc erfinv exp exp2 expm1 floor floor_divide fmax fmin fmod frac frexp gcd ge gt
        heaviside hypot i0 igamma igammac isinf isnan isneginf isposinf lcm ldexp le lerp lgamma log
        log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor logit
        lt masked_fill masked_fill_ maximum minimum mul mvlgamma nan_to_num ne neg nextafter polar
        polygamma pow rad2deg reciprocal remainder round rsqrt rsub sgn sigmoid sign signbit sin
        sinc sinh special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0
        special_bessel_y1 special_chebyshev_polynomial_t special_chebyshev_polynomial_u
        special_chebyshev_polynomial_v special_chebyshev_polynomial_w special_entr special_erfcx
        special_hermite_polynomial_h special_hermite_polynomial_he special_i0e special_i1
        special_i1e special_laguerre_polynomial_l special_legendre_polynomial_p special_log_ndtr
        special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0
        special_modified_bessel_k1 special_ndtri special_scaled_modified_bessel_k0
        special_scaled_modified_bessel_k1 special_shifted_chebyshev_polynomial_t
        special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v
        special_shifted_chebyshev_polynomial_w special_spherical_bessel_j0 special_xlog1py
        special_zeta sqrt sub tan tanh trunc where xlogy
    """,
    "lostwax.ops.math.reduce": """
        _aminmax _histogramdd_bin_edges _histogramdd_from_bin_cts _histogramdd_from_bin_tensors
        _is_all_true _is_any_true _log_softmax _log_softmax_backward_data _logcumsumexp
        _masked_softmax _masked_softmax_backward _safe_softmax _softmax _softmax_backward_data all
        amax amin aminmax any argmax argmin bincount count_nonzero cummax cummin cumprod cumsum dist
        hash_tensor histc histogram linalg__powsum linalg_vector_norm logcumsumexp logsumexp max
        mean median min mode nanmedian nanquantile nansum native_norm norm prod quantile renorm std
        std_mean sum trace var var_mean
    """,
    "lostwax.ops.nn.activations": """
        _prelu_kernel _prelu_kernel_backward celu elu elu_backward gelu gelu_backward glu
        glu_backward glu_jvp hardshrink hardshrink_backward hardsigmoid hardsigmoid_backward
        hardswish hardswish_backward hardtanh hardtanh_backward leaky_relu leaky_relu_backward
        log_sigmoid_backward log_sigmoid_forward logit_backward mish mish_backward relu
        sigmoid_backward silu silu_backward softplus softplus_backward softshrink
        softshrink_backward tanh_backward threshold threshold_ threshold_backward
    """,
    "lostwax.ops.nn.attention": """
        _efficient_attention_forward _fused_sdp_choice _native_multi_head_attention
        _scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward
        _scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention
        _scaled_dot_product_flash_attention_backward _scaled_dot_product_flash_attention_for_cpu
        _scaled_dot_product_flash_attention_for_cpu_backward _transform_bias_rescale_qkv
        _transformer_encoder_layer_fwd
    """,
    "lostwax.ops.nn.conv": """
        _convolution conv1d conv2d conv3d conv_tbc convolution convolution_backward
        convolution_backward_overrideable convolution_overrideable mkldnn_convolution
    """,
    "lostwax.ops.nn.embeddings": """
        _embedding_bag _embedding_bag_dense_backward _embedding_bag_forward_only
        _embedding_bag_per_sample_weights_backward embedding embedding_dense_backward
        embedding_renorm
    """,
    "lostwax.ops.nn.loss": """
        _ctc_loss _ctc_loss_backward binary_cross_entropy binary_cross_entropy_backward
        binary_cross_entropy_with_logits huber_loss huber_loss_backward mse_loss mse_loss_backward
        multi_margin_loss multi_margin_loss_backward multilabel_margin_loss_backward
        multilabel_margin_loss_forward nll_loss2d_backward nll_loss2d_forward nll_loss_backward
        nll_loss_forward smooth_l1_loss smooth_l1_loss_backward soft_margin_loss
        soft_margin_loss_backward
    """,
    "lostwax.ops.nn.norm": """
        _batch_norm_impl_index _batch_norm_no_update _batch_norm_with_update
        _batch_norm_with_update_functional _fused_rms_norm _fused_rms_norm_backward
        _native_batch_norm_legit _native_batch_norm_legit_functional
        _native_batch_norm_legit_no_training _weight_norm_interface _weight_norm_interface_backward
        batch_norm batch_norm_backward batch_norm_elemt batch_norm_stats batch_norm_update_stats
        cudnn_batch_norm group_norm instance_norm layer_norm miopen_batch_norm native_batch_norm
        native_batch_norm_backward native_group_norm native_group_norm_backward native_layer_norm
        native_layer_norm_backward
    """,
    "lostwax.ops.nn.pool": """
        _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d
        _adaptive_avg_pool3d_backward adaptive_max_pool2d adaptive_max_pool2d_backward
        adaptive_max_pool3d adaptive_max_pool3d_backward avg_pool2d avg_pool2d_backward avg_pool3d
        avg_pool3d_backward fractional_max_pool2d fractional_max_pool2d_backward
        fractional_max_pool3d fractional_max_pool3d_backward max_pool2d_with_indices
        max_pool2d_with_indices_backward max_pool3d_with_indices max_pool3d_with_indices_backward
        max_unpool2d max_unpool3d
    """,
    "lostwax.ops.nn.quantize": """
        _fake_quantize_per_tensor_affine_cachemask_tensor_qparams _fused_moving_avg_obs_fq_helper
        fake_quantize_per_channel_affine_cachemask fake_quantize_per_tensor_affine_cachemask
        torchao::choose_qparams_affine torchao::dequantize_affine torchao::quantize_affine
    """,
    "lostwax.ops.nn.resample": """
        _grid_sampler_2d_cpu_fallback _upsample_bicubic2d_aa _upsample_bicubic2d_aa_backward
        _upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward _upsample_lanczos2d_aa
        _upsample_lanczos2d_aa_backward _upsample_nearest_exact1d _upsample_nearest_exact1d_backward
        _upsample_nearest_exact2d _upsample_nearest_exact2d_backward _upsample_nearest_exact3d
        _upsample_nearest_exact3d_backward affine_grid_generator col2im grid_sampler_2d
        grid_sampler_2d_backward grid_sampler_3d grid_sampler_3d_backward im2col unfold_backward
        upsample_bicubic2d upsample_bicubic2d_backward upsample_bilinear2d
        upsample_bilinear2d_backward upsample_linear1d upsample_linear1d_backward upsample_nearest1d
        upsample_nearest1d_backward upsample_nearest2d upsample_nearest2d_backward
        upsample_nearest3d upsample_nearest3d_backward upsample_trilinear3d
        upsample_trilinear3d_backward
    """,
    "lostwax.ops.nn.rnn": """
        _pack_padded_sequence _pad_packed_sequence _thnn_fused_gru_cell _thnn_fused_lstm_cell
        _thnn_fused_lstm_cell_backward_impl gru lstm mkldnn_rnn_layer rnn_relu rnn_tanh
    """,
    "lostwax.ops.tensors.factory": """
        _efficientzerotensor arange bartlett_window blackman_window empty empty_like empty_permuted
        empty_strided eye fft_fftfreq fft_rfftfreq full full_like hamming_window hann_window
        kaiser_window linspace logspace new_empty new_empty_strided new_full new_ones new_zeros ones
        ones_like range scalar_tensor to tril_indices triu_indices zeros zeros_like
    """,
    "lostwax.ops.tensors.indexing": """
        _index_put_impl _index_put_impl_ _unsafe_index _unsafe_index_put _unsafe_masked_index
        _unsafe_masked_index_put_accumulate gather index index_add index_add_ index_copy index_copy_
        index_fill index_fill_ index_put index_put_ index_reduce index_reduce_ index_select
        masked_scatter masked_scatter_ masked_scatter_backward masked_select nonzero nonzero_static
        put put_ repeat_interleave scatter scatter_ scatter_add scatter_add_ scatter_reduce
        scatter_reduce_ take take_along_dim
    """,
    "lostwax.ops.tensors.random": """
        _dirichlet_grad _sample_dirichlet _standard_gamma _standard_gamma_grad bernoulli bernoulli_
        binomial cauchy exponential exponential_ geometric log_normal multinomial native_dropout
        native_dropout_backward normal normal_ normal_functional poisson rand rand_like randint
        randint_like randn randn_like random random_ randperm rrelu_with_noise rrelu_with_noise_
        rrelu_with_noise_functional uniform uniform_
    """,
    "lostwax.ops.tensors.rearrange": """
        _chunk_cat _foreach_zero_ _lazy_clone _stack _to_copy as_strided_scatter block_diag cat
        channel_shuffle clone constant_pad_nd copy copy_ diag_embed diagonal_backward
        diagonal_scatter fill fill_ flip lift_fresh_copy pixel_shuffle pixel_unshuffle
        reflection_pad1d reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward
        reflection_pad3d reflection_pad3d_backward repeat replication_pad1d
        replication_pad1d_backward replication_pad2d replication_pad2d_backward replication_pad3d
        replication_pad3d_backward roll rot90 select_backward select_scatter slice_backward
        slice_scatter stack tril triu zero zero_
    """,
    "lostwax.ops.tensors.scalars": """
        _assert_async _assert_scalar _assert_tensor_metadata _local_scalar_dense item
        sym_constrain_range sym_constrain_range_for_size sym_numel sym_size sym_storage_offset
        sym_stride
    """,
    "lostwax.ops.tensors.sorting": """
        _unique _unique2 bucketize isin kthvalue searchsorted sort topk unique_consecutive
        unique_dim unique_dim_consecutive
    """,
    "lostwax.ops.tensors.view_forms": """
        _conj_copy _neg_view_copy _reshape_alias_copy _reshape_copy _resize_output_ alias_copy
        as_strided_ as_strided_copy detach_copy diagonal_copy expand_copy narrow_copy permute_copy
        resize_ resize_as_ select_copy set_ slice_copy split_copy split_with_sizes_copy squeeze_
        squeeze_copy t_ t_copy transpose_ transpose_copy unbind_copy unfold_copy unsqueeze_
        unsqueeze_copy view_as_complex_copy view_as_real_copy view_copy
    """,
    "lostwax.ops.tensors.view_inverses": """
        _conj _neg_view _reshape_alias alias as_strided chunk detach diagonal expand flatten
        lift_fresh narrow permute reshape select slice split split_with_sizes squeeze t to transpose
        unbind unfold unsqueeze view view_as_complex view_as_real
    """,
    "lostwax.ops.tensors.view_parts": """
        as_strided diagonal narrow select slice split split_with_sizes unbind unfold unsafe_split
        unsafe_split_with_sizes
    """,
    "lostwax.ops.tensors.views": """
        _conj _fw_primal _make_dual _neg_view _reshape_alias _unpack_dual _unsafe_view alias
        as_strided conj detach detach_ expand flatten imag lift lift_fresh permute ravel real
        reshape reshape_as resolve_conj resolve_neg squeeze t transpose unsqueeze view
        view_as_complex view_as_real
    """,
}
"""Files, and the operators that they know something of."""

DECOMPOSITIONS = {
    "lostwax.ops.decompositions.attention": """
        _scaled_dot_product_flash_attention_for_cpu
    """,
    "lostwax.ops.decompositions.factory": """
        arange empty_like empty_permuted eye linspace new_empty new_empty_strided new_full new_ones
        new_zeros ones ones_like rand_like randn_like tril triu zeros zeros_like
    """,
    "lostwax.ops.decompositions.indexing": """
        _embedding_bag_forward_only embedding_renorm index_reduce max_unpool2d max_unpool3d put
        scatter sort take
    """,
    "lostwax.ops.decompositions.matmul": """
        _trilinear addbmm addmv baddbmm dot mv vdot
    """,
    "lostwax.ops.decompositions.norm": """
        _native_batch_norm_legit_functional _weight_norm_interface native_batch_norm
    """,
    "lostwax.ops.decompositions.pointwise": """
        _prelu_kernel addcdiv addcmul angle clamp_max clamp_min deg2rad exp2 fill floor_divide fmax
        fmin frac glu hardsigmoid hardswish hypot isneginf isposinf lerp log_sigmoid_forward
        masked_fill mish rad2deg rsub silu softplus square threshold zero
    """,
    "lostwax.ops.decompositions.reduce": """
        _is_all_true _is_any_true _safe_softmax all aminmax linalg_vector_norm logsumexp max min std
        std_mean sum var_mean
    """,
    "lostwax.ops.decompositions.resample": """
        adaptive_max_pool2d adaptive_max_pool3d upsample_bilinear2d upsample_linear1d
        upsample_nearest1d upsample_nearest2d
    """,
    "lostwax.ops.decompositions.views": """
        _reshape_alias _unsafe_view channel_shuffle diagonal_scatter pixel_shuffle pixel_unshuffle
        roll split squeeze stack t transpose unbind unsafe_split unsafe_split_with_sizes
    """,
}
"""Files, and the operators that they take apart."""
