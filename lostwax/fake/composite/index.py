"""Which file knows something of which operator. Made by `make index`."""

from __future__ import annotations

FAMILIES = {
    "lostwax.fake.composite.attention": """
        scaled_dot_product_attention
    """,
    "lostwax.fake.composite.collectives": """
        _c10d_functional::all_gather_into_tensor_out _c10d_functional::all_reduce_
        _c10d_functional::all_reduce_coalesced_ _c10d_functional::broadcast_
        _c10d_functional::reduce_scatter_tensor_out c10d::_allgather_base_
        c10d::_reduce_scatter_base_ c10d::allgather_ c10d::allgather_into_tensor_coalesced_
        c10d::allreduce_ c10d::allreduce_coalesced_ c10d::alltoall_ c10d::alltoall_base_
        c10d::broadcast_ c10d::reduce_scatter_ c10d::reduce_scatter_tensor_coalesced_
    """,
    "lostwax.fake.composite.composites": """
        _has_same_storage_numel _new_zeros_with_same_feature_meta chunk contiguous fill_diagonal_
        flatten linear log_softmax matmul narrow reshape softmax tensor_split to type_as
    """,
    "lostwax.fake.composite.dropouts": """
        alpha_dropout alpha_dropout_ dropout dropout_ feature_alpha_dropout feature_alpha_dropout_
        feature_dropout feature_dropout_
    """,
    "lostwax.fake.composite.layers": """
        adaptive_avg_pool2d batch_norm conv1d conv2d conv3d conv_transpose1d conv_transpose2d
        conv_transpose3d ctc_loss group_norm layer_norm max_pool2d
    """,
    "lostwax.fake.composite.resampling": """
        _upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_lanczos2d_aa
        _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
        upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d
        upsample_nearest2d upsample_nearest3d upsample_trilinear3d
    """,
    "lostwax.fake.composite.sized": """
        adaptive_max_pool1d broadcast_tensors cdist cosine_similarity diff gru_cell histogramdd kron
        lstm_cell max_pool1d nll_loss_nd pad_sequence rnn_relu_cell rnn_tanh_cell take_along_dim
        tensor_split tensordot
    """,
    "lostwax.fake.composite.spectral": """
        fft_fft fft_hfft fft_ifft fft_ihfft fft_irfft fft_rfft istft stft
    """,
}
"""Files, and the operators that they know something of."""
