"""The names of torch's operations, types, layers and constructors, by kind."""

from __future__ import annotations

from amp_rules.lattice.abstract_values import (
    BOOL,
    F32,
    F64,
    INT,
    LOW,
    OTHER,
)  # fmt: skip
from amp_rules.torch.half_precision import UNSUPPORTED

DTYPES = {
    "torch.float16": LOW, "torch.half": LOW, "torch.bfloat16": LOW, "torch.float32": F32, "torch.float": F32,
    "torch.float64": F64, "torch.double": F64, "torch.bool": BOOL, "torch.long": INT, "torch.int64": INT,
    "torch.int": INT, "torch.int32": INT, "torch.int16": INT, "torch.short": INT, "torch.int8": INT,
    "torch.uint8": INT, "torch.HalfTensor": LOW, "torch.cuda.HalfTensor": LOW, "torch.BFloat16Tensor": LOW,
    "torch.cuda.BFloat16Tensor": LOW, "torch.FloatTensor": F32, "torch.cuda.FloatTensor": F32,
    "torch.DoubleTensor": F64, "torch.cuda.DoubleTensor": F64, "torch.LongTensor": INT, "torch.cuda.LongTensor": INT,
    "torch.IntTensor": INT, "torch.cuda.IntTensor": INT, "torch.BoolTensor": BOOL, "torch.cuda.BoolTensor": BOOL,
    "torch.ByteTensor": INT, "torch.cuda.ByteTensor": INT, "torch.uint16": INT, "torch.uint32": INT,
    "builtins.float": F32, "builtins.int": INT, "builtins.bool": BOOL, "torch.complex64": OTHER,
    "torch.complex128": OTHER, "torch.cfloat": OTHER,
}  # fmt: skip
"""Types of torch by name."""


def words(text: str) -> frozenset[str]:
    """The words of a text, each once."""
    return frozenset(text.split())


VIEWS = words(
    """
    view reshape flatten unflatten squeeze unsqueeze expand expand_as permute transpose t contiguous clone detach alias
    view_as repeat repeat_interleave requires_grad_ narrow swapaxes
    swapdims movedim moveaxis tile roll flip broadcast_to
    index_select gather masked_select take take_along_dim diagonal tril triu unfold fold select data numpy_view
    cpu cuda pin_memory share_memory_ rearrange resolve_conj ravel adjoint
    conj mT T H diag diag_embed real detach_ sort_values
    max_pool1d max_pool2d max_pool3d adaptive_max_pool1d adaptive_max_pool2d pixel_shuffle pixel_unshuffle
    channel_shuffle rot90 squeeze_ unsqueeze_ pad
    """
)
"""Operations that move elements and keep type and range."""

SPLITS = words("chunk split unbind tensor_split hsplit vsplit dsplit split_with_sizes broadcast_tensors meshgrid")
"""Operations that give several tensors of the type of one."""

PAIRS = words("topk sort kthvalue mode cummax cummin")
"""Operations that give values and their indices; ``max``, ``min`` and ``median`` do so with a dimension."""

WITH_STATES = words("lstm gru rnn lstm_cell multi_head_attention")
"""Operations that give their output and something beside it: states, weights of attention."""

ELEMENTWISE = words(
    """
    add sub mul div floordiv floor_divide true_divide mod remainder fmod pow rpow neg abs absolute exp exp2 expm1 log
    log2 log10 log1p sqrt rsqrt square reciprocal sigmoid logsigmoid tanh relu relu6 leaky_relu gelu silu elu selu celu
    mish hardtanh hardsigmoid hardswish softplus softsign tanhshrink erf erfc
    erfinv sin cos tan asin acos atan sinh cosh
    asinh acosh atanh arccos arcsin arctan atan2 ceil floor round trunc frac sign clamp clip clamp_min clamp_max maximum
    minimum fmax fmin where masked_fill lerp addcmul addcdiv nan_to_num softmax log_softmax softmin softmax2d
    gumbel_softmax dropout alpha_dropout feature_alpha_dropout dropout1d dropout2d dropout3d drop_path threshold logit
    logaddexp logaddexp2 hypot copysign lgamma digamma cross sinc xlogy xlog1py bernoulli prelu rrelu glu
    masked_scatter scatter scatter_add scatter_reduce index_add index_copy index_fill index_put copy put fill zero
    fill_diagonal
    cumsum cumprod logcumsumexp batch_norm layer_norm group_norm instance_norm rms_norm local_response_norm normalize
    interpolate upsample grid_sample avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d
    adaptive_avg_pool3d embedding embedding_bag lp_pool2d conv1d conv2d conv3d conv_tbc conv_transpose1d
    conv_transpose2d conv_transpose3d linear bilinear matmul mm bmm mv dot vdot outer ger inner einsum tensordot kron
    addmm addmv addr addbmm baddbmm chain_matmul multi_dot vecdot scaled_dot_product_attention cat stack concat
    concatenate hstack vstack dstack block_diag identity matrix_exp matrix_power cdist pdist cosine_similarity
    pairwise_distance pinverse inverse inv pinv cholesky det trace fft ifft rfft irfft stft istft
    """
)
"""Operations whose result has the widest type of its tensors, unless autocast says otherwise."""

REDUCTIONS = words(
    """
    sum mean prod var std norm vector_norm matrix_norm logsumexp
    nansum nanmean amax amin max min median dist nuclear_norm
    frobenius_norm quantile nanquantile mse_loss l1_loss smooth_l1_loss huber_loss nll_loss cross_entropy kl_div
    poisson_nll_loss margin_ranking_loss cosine_embedding_loss hinge_embedding_loss multi_margin_loss
    multilabel_margin_loss soft_margin_loss triplet_margin_loss binary_cross_entropy
    binary_cross_entropy_with_logits ctc_loss gaussian_nll_loss
    """
)
"""Operations that make one number of many; without a dimension the result has none."""

INTEGERS = words(
    "argmax argmin argsort nonzero bincount multinomial count_nonzero searchsorted bucketize long int short"
)
BOOLEANS = words(
    """
    eq ne lt le gt ge isnan isinf isfinite
    logical_and logical_or logical_not logical_xor all any bool is_nonzero isclose
    allclose equal compare not
    """
)
NUMBERS = words(
    """
    item numel size dim ndim nelement element_size tolist get_device stride len is_floating_point is_complex
    ndimension
    """
)

COUNTS = words("numel size dim ndim nelement element_size len ndimension")

FACTORIES = words(
    """
    zeros ones empty full rand randn arange linspace logspace eye tensor as_tensor from_numpy hann_window hamming_window
    randint randperm normal range scalar_tensor Tensor FloatTensor
    """
)
"""Functions of torch that make a tensor, float32 unless they are told otherwise."""

LIKES = words("zeros_like ones_like empty_like full_like rand_like randn_like randint_like")
NEWS = words("new_zeros new_ones new_empty new_full new_tensor new")
"""Functions and methods that make a tensor of the type of another."""

CASTS = {"float": F32, "half": LOW, "double": F64, "bfloat16": LOW, "long": INT, "int": INT, "bool": BOOL, "byte": INT}
"""Methods that convert to one type."""

TENSOR_METHODS = (
    VIEWS | SPLITS | PAIRS | ELEMENTWISE | REDUCTIONS | INTEGERS | BOOLEANS | NUMBERS | NEWS | set(CASTS)
    | {"to", "type", "type_as", "numpy", "backward", "unique", "histc", "cov", "svd", "eigh", "qr", "lstsq", "solve",
       "exponential", "uniform", "random", "geometric", "cauchy", "log_normal", "retain_grad", "register_hook"}
) - {"identity", "data", "alias", "drop_path", "compare", "len", "fold", "linear", "rearrange", "dropout"}  # fmt: skip
"""Methods that mark their receiver as a tensor, if anything may."""

SHARED_METHODS = words(
    """
    sum mean prod var std max min argmax argmin all any reshape transpose copy round squeeze flatten repeat cumsum
    cumprod dot clip sort split size float int bool item tolist take T real index type to apply put trace format add
    update dim stride fill sign norm zero abs pow log exp mode unique numpy
    """
)
"""Methods that other objects have too: they do not prove a tensor."""

TENSOR_ONLY = TENSOR_METHODS - SHARED_METHODS
"""Methods that prove a tensor."""

RENAMED = {
    "absolute": "abs", "true_divide": "div", "divide": "div", "multiply": "mul", "subtract": "sub", "clip": "clamp",
    "expit": "sigmoid", "concat": "cat", "concatenate": "cat", "arccos": "acos", "arcsin": "asin", "negative": "neg",
    "remainder": "mod", "floor_divide": "floordiv", "ger": "outer",
    "scaled_dot_product": "scaled_dot_product_attention",
    "log_sigmoid": "logsigmoid", "swapaxes": "transpose", "swapdims": "transpose", "upsample_bilinear": "interpolate",
    "upsample": "interpolate", "inverse": "inv", "__matmul__": "matmul",
}  # fmt: skip
"""Other spellings of an operation."""

MODULES = {
    "Conv1d": "conv1d", "Conv2d": "conv2d", "Conv3d": "conv3d", "ConvTranspose1d": "conv_transpose1d",
    "ConvTranspose2d": "conv_transpose2d", "ConvTranspose3d": "conv_transpose3d", "Linear": "linear",
    "LazyLinear": "linear", "Bilinear": "bilinear", "PReLU": "prelu", "Softmax": "softmax", "Softmax2d": "softmax",
    "LogSoftmax": "log_softmax", "Softmin": "softmin", "Sigmoid": "sigmoid", "LogSigmoid": "logsigmoid",
    "Tanh": "tanh", "ReLU": "relu", "ReLU6": "relu6", "LeakyReLU": "leaky_relu", "GELU": "gelu", "SiLU": "silu",
    "ELU": "elu", "Softplus": "softplus", "LayerNorm": "layer_norm", "GroupNorm": "group_norm", "RMSNorm": "rms_norm",
    "BatchNorm1d": "batch_norm", "BatchNorm2d": "batch_norm", "BatchNorm3d": "batch_norm",
    "SyncBatchNorm": "batch_norm", "InstanceNorm1d": "instance_norm", "InstanceNorm2d": "instance_norm",
    "Dropout": "dropout", "Dropout2d": "dropout", "Identity": "identity", "Flatten": "flatten",
    "Embedding": "embedding", "EmbeddingBag": "embedding_bag", "BCELoss": "binary_cross_entropy",
    "BCEWithLogitsLoss": "binary_cross_entropy_with_logits", "CrossEntropyLoss": "cross_entropy", "NLLLoss": "nll_loss",
    "MSELoss": "mse_loss", "L1Loss": "l1_loss", "SmoothL1Loss": "smooth_l1_loss", "HuberLoss": "huber_loss",
    "KLDivLoss": "kl_div", "CosineSimilarity": "cosine_similarity", "MaxPool1d": "max_pool1d",
    "MaxPool2d": "max_pool2d", "AvgPool2d": "avg_pool2d", "AdaptiveAvgPool2d": "adaptive_avg_pool2d",
    "AdaptiveAvgPool1d": "adaptive_avg_pool1d", "Upsample": "interpolate", "MultiheadAttention": "multi_head_attention",
    "LSTM": "lstm", "GRU": "gru", "RNN": "rnn", "LSTMCell": "lstm_cell", "GRUCell": "gru_cell",
    "RNNCell": "rnn_tanh_cell", "PixelShuffle": "pixel_shuffle", "CTCLoss": "ctc_loss",
    "Hardtanh": "hardtanh", "Hardsigmoid": "hardsigmoid", "Hardswish": "hardswish", "Mish": "mish", "SELU": "selu",
    "CELU": "celu", "Softsign": "softsign", "Tanhshrink": "tanhshrink", "Threshold": "threshold", "GLU": "glu",
    "AvgPool1d": "avg_pool1d", "AvgPool3d": "avg_pool3d", "AdaptiveAvgPool3d": "adaptive_avg_pool3d",
    "MaxPool3d": "max_pool3d", "Dropout1d": "dropout", "Dropout3d": "dropout", "AlphaDropout": "alpha_dropout",
    "InstanceNorm3d": "instance_norm", "Unflatten": "unflatten", "PixelUnshuffle": "pixel_unshuffle",
    "PairwiseDistance": "pairwise_distance", "PoissonNLLLoss": "poisson_nll_loss",
    "GaussianNLLLoss": "gaussian_nll_loss", "MarginRankingLoss": "margin_ranking_loss",
    "TripletMarginLoss": "triplet_margin_loss", "CosineEmbeddingLoss": "cosine_embedding_loss",
    "HingeEmbeddingLoss": "hinge_embedding_loss", "SoftMarginLoss": "soft_margin_loss",
    "MultiMarginLoss": "multi_margin_loss", "MultiLabelMarginLoss": "multilabel_margin_loss",
}  # fmt: skip
"""Layers by the operation that calling them is."""


OF_TWO = words(
    """
    add sub mul div floordiv mod pow matmul mm bmm mv dot vdot outer inner kron maximum minimum fmax fmin atan2 fmod
    floor_divide true_divide remainder eq ne lt le gt ge type_as view_as expand_as masked_fill lerp cross cdist dist
    """
)
"""Operations that nobody calls without a second operand."""


_FUNCTIONS_OF = ("torch", "torch.nn.functional", "torch.linalg", "torch.fft", "torch.special")


def function_named(name: str) -> str:
    """The operation that calling a function of torch is, by its qualified name; empty for any other name."""
    place, _, last = name.rpartition(".")
    return RENAMED.get(last, last) if place in _FUNCTIONS_OF and last[:1].islower() else ""


def layer_named(name: str) -> str:
    """The operation that calling a layer of torch is, by the qualified name of its class; empty for any other name."""
    return MODULES.get(name.rpartition(".")[2], "") if name.startswith("torch.nn.") else ""


UNMODELLED = UNSUPPORTED | words("arctanh renorm set_default_dtype set_default_tensor_type")
"""Functions of torch that observers are shown under their own names, though nothing is known of what they give."""

CONSTRUCTS = words(
    """
    call method module unfollowed instance layer layer_to layer_cuda layer_half layer_float layer_bfloat16 layer_cpu
    layer_eval layer_train autocast typed_tensor numpy builtin_sum
    setitem setattr augment return grad buffer parameter finfo
    """
)
"""What else observers are shown: calls of what is no operation, writes, and what Python's constructs do.

A ``call`` is of something unknown, a ``method`` one of it, a ``module`` that of a layer of which nothing is known;
``unfollowed`` is a function of the project that is not run in line; ``instance`` and ``layer`` are made, ``layer_half``
is the method of a layer; ``augment`` is ``x += y``.
"""

KNOWN_OPERATIONS = (
    VIEWS | SPLITS | PAIRS | ELEMENTWISE | REDUCTIONS | INTEGERS | BOOLEANS | NUMBERS | FACTORIES | LIKES | NEWS
    | TENSOR_METHODS | frozenset(MODULES.values()) | UNMODELLED | CONSTRUCTS
)  # fmt: skip
"""Every name under which an operation may be shown."""
