"""What autocast does to the operations that Python code calls, by the name of the function or method.

Read off torch 2.13's registered autocast kernels and checked by running every entry under a fake CUDA device (and on
the CPU). An operation in no list runs in the widest type of its tensors. In-place and ``out=`` variants are never cast.

Source: https://docs.pytorch.org/docs/stable/amp.html#autocast-op-reference
"""

from __future__ import annotations

_MATRIX_PRODUCTS = frozenset(
    """
    matmul mm bmm mv addmm addmv addr addbmm baddbmm einsum linear chain_matmul multi_dot vecdot prelu
    conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d
    scaled_dot_product_attention multi_head_attention lstm gru rnn lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
    """.split()
)
_LOSSES = frozenset(
    """
    mse_loss l1_loss smooth_l1_loss huber_loss nll_loss cross_entropy kl_div poisson_nll_loss margin_ranking_loss
    cosine_embedding_loss hinge_embedding_loss multi_margin_loss multilabel_margin_loss soft_margin_loss
    triplet_margin_loss binary_cross_entropy_with_logits
    """.split()
)

CUDA_LOWER = _MATRIX_PRODUCTS
"""Run in half precision on CUDA, whatever they are given."""

CUDA_FLOAT32 = _LOSSES | frozenset(
    """
    sum prod cumsum cumprod norm vector_norm matrix_norm nuclear_norm frobenius_norm dist pdist cdist renorm
    logsumexp exp expm1 log log10 log1p log2 pow square rsqrt reciprocal softmax log_softmax softmin gumbel_softmax
    softplus acos asin cosh sinh tan erfinv layer_norm group_norm rms_norm normalize cosine_similarity
    pairwise_distance interpolate upsample local_response_norm
    """.split()
)
"""Run in float32 on CUDA, unless they are given ``dtype=``."""

CUDA_WIDEST = frozenset(
    "addcdiv addcmul atan2 bilinear cross dot vdot grid_sample index_put tensordot scatter_add".split()
)
"""Run in the widest type of their tensors on CUDA, also where torch would refuse to mix."""

CUDA_REFUSED = frozenset({"binary_cross_entropy"})
"""Raise under autocast on CUDA."""

CPU_LOWER = frozenset(
    """
    matmul mm bmm addmm addbmm baddbmm linear vecdot prelu einsum tensordot inner
    conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d
    scaled_dot_product_attention multi_head_attention lstm rnn chain_matmul multi_dot
    """.split()
)
CPU_FLOAT32 = (
    _LOSSES
    | {"binary_cross_entropy", "prod", "cdist", "ctc_loss", "trace", "quantile", "nanquantile", "grid_sample"}
    | {"avg_pool3d", "adaptive_avg_pool3d", "max_pool3d"}
    | frozenset("inverse inv pinverse cholesky svd eigh eigvalsh qr solve lstsq stft istft fft ifft rfft irfft".split())
)
CPU_WIDEST = frozenset("stack cat index_copy".split())
CPU_REFUSED: frozenset[str] = frozenset()
