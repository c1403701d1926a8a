"""What operations of torch do to abstract values: types by the cast table of the mode, intervals, provenance."""

from __future__ import annotations

import math
from collections.abc import Callable

from amp_rules.lattice.abstract_values import (
    ASSUMED,
    BOOL,
    CAST,
    ELEMENTWISE_BITS,
    F32,
    F64,
    FLOATS,
    GUARDED,
    INF,
    INT,
    INTEGRAL,
    LOOP,
    LOW,
    MAX_SUBTRACTED,
    NUM,
    OTHER,
    PARAMETER,
    POSITION,
    PROBABILITY,
    SIGMOID,
    TENSORS,
    ZERO_DIM,
    Value,
    alternatives,
    promote,
    same,
)  # fmt: skip
from amp_rules.lattice.half_precision import Casts
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


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


VIEWS = _names(
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

SPLITS = _names("chunk split unbind tensor_split hsplit vsplit dsplit split_with_sizes broadcast_tensors meshgrid")
"""Operations that give several tensors of the type of one."""

PAIRS = _names("topk sort kthvalue mode cummax cummin")
"""Operations that give values and their indices; ``max``, ``min`` and ``median`` do so with a dimension."""

ELEMENTWISE = _names(
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

REDUCTIONS = _names(
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

INTEGERS = _names(
    "argmax argmin argsort nonzero bincount multinomial count_nonzero searchsorted bucketize long int short"
)
BOOLEANS = _names(
    """
    eq ne lt le gt ge isnan isinf isfinite
    logical_and logical_or logical_not logical_xor all any bool is_nonzero isclose
    allclose equal compare not
    """
)
NUMBERS = _names(
    """
    item numel size dim ndim nelement element_size tolist get_device stride len is_floating_point is_complex
    ndimension
    """
)

_COUNTS = _names("numel size dim ndim nelement element_size len ndimension")

FACTORIES = _names(
    """
    zeros ones empty full rand randn arange linspace logspace eye tensor as_tensor from_numpy hann_window hamming_window
    randint randperm normal range scalar_tensor Tensor FloatTensor
    """
)
"""Functions of torch that make a tensor, float32 unless they are told otherwise."""

LIKES = _names("zeros_like ones_like empty_like full_like rand_like randn_like randint_like")
NEWS = _names("new_zeros new_ones new_empty new_full new_tensor new")
"""Functions and methods that make a tensor of the type of another."""

CASTS = {"float": F32, "half": LOW, "double": F64, "bfloat16": LOW, "long": INT, "int": INT, "bool": BOOL, "byte": INT}
"""Methods that convert to one type."""

TENSOR_METHODS = (
    VIEWS | SPLITS | PAIRS | ELEMENTWISE | REDUCTIONS | INTEGERS | BOOLEANS | NUMBERS | NEWS | set(CASTS)
    | {"to", "type", "type_as", "numpy", "backward", "unique", "histc", "cov", "svd", "eigh", "qr", "lstsq", "solve",
       "exponential", "uniform", "random", "geometric", "cauchy", "log_normal", "retain_grad", "register_hook"}
) - {"identity", "data", "alias", "drop_path", "compare", "len", "fold", "linear", "rearrange", "dropout"}  # fmt: skip
"""Methods that mark their receiver as a tensor, if anything may."""

SHARED_METHODS = _names(
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


OF_TWO = _names(
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


UNMODELLED = UNSUPPORTED | _names("arctanh renorm set_default_dtype set_default_tensor_type")
"""Functions of torch that observers are shown under their own names, though nothing is known of what they give."""

CONSTRUCTS = _names(
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


def dtype_named(value: Value | None) -> int:
    """The types that a value given as ``dtype=`` stands for; 0 where it says nothing."""
    if value is None or (value.is_const and value.const is None):
        return 0
    if value.sym is not None:
        return DTYPES.get(value.sym, 0)
    if value.op == "dtype" and value.args:
        return value.args[0].dtypes
    if value.is_const and isinstance(value.const, str):
        return DTYPES.get(value.const, DTYPES.get(f"torch.{value.const}", 0))
    if value.op == "join":
        found = [dtype_named(item) for item in value.args]
        return 0 if 0 in found else _union(found)
    if value.op == "promote_types":
        kinds = [dtype_named(item) for item in value.args]
        return 0 if 0 in kinds or len(kinds) != 2 else promote(*kinds)
    return 0


_OF_ONE_TYPE = frozenset({"matmul", "mm", "bmm", "mv", "dot", "baddbmm", "addmm"})


def _union(masks: list[int]) -> int:
    result = 0
    for mask in masks:
        result |= mask
    return result


def explicit_dtype(value: Value) -> Value | None:
    """The ``dtype=`` argument of a call."""
    given = value.kwargs.get("dtype") if value.kwargs else None
    if given is None and value.op in _TYPED_BY_POSITION:
        given = next((item for item in value.args[1:] if item.sym in DTYPES or item.op == "dtype"), None)
    return None if given is not None and given.is_const and given.const is None else given


def apply(value: Value, table: Casts | None) -> None:
    """Fill in what ``value``, made by an operation on tensors, may be.

    Args:
        value: with operation and arguments set.
        table: the cast table where autocast is on.
    """
    op, args = value.op, value.args
    first = args[0] if args else None
    if op in VIEWS:
        if first is not None:
            _keep(value, first)
            if op == "conj" or is_complex(first):
                value.dtypes, value.tensor, value.anchor = (F32 if op == "real" else OTHER), 2, None
                return
            if table is not None and op in table.float32:
                value.dtypes, value.anchor = _raised(first.dtypes), None
        return
    if op in INTEGERS:
        value.dtypes, value.tensor = INT, 2
        if first is not None:
            value.bits = first.bits & (POSITION | LOOP) | INTEGRAL
        return
    if op in BOOLEANS:
        decided = op in ("allclose", "equal", "is_nonzero")
        value.dtypes = BOOL if not decided and any(item.tensor for item in args) else NUM
        value.tensor = max((item.tensor for item in args), default=0) if not decided else 0
        value.lo, value.hi = 0.0, 1.0
        value.bits = INTEGRAL
        return
    if op in NUMBERS:
        value.dtypes = NUM
        if op in _COUNTS:
            value.lo, value.bits = 0.0, INTEGRAL
        return
    if any(is_complex(item) for item in args):
        # Autocast leaves complex numbers alone, and each of their parts is float32.
        value.dtypes, value.tensor = (F32 if op in _REAL_PARTS else OTHER), 2
        if op in _REAL_PARTS:
            fill_interval(value)
        return
    mask = 0
    tensor = 0
    bits = 0
    weak = 0
    numbers = 0
    for item in args if not value.kwargs else (*args, *_operands(value.kwargs)):
        kind = item.dtypes
        if item.op == "tuple" or item.op == "list" or item.op == "join":
            for element in _elements(item):
                kind = element.dtypes if element.op != "starred" else LOW | F32
                mask = promote(mask, kind) if mask else kind
                tensor = max(tensor, element.tensor)
                bits |= element.bits & ELEMENTWISE_BITS
            if item.op != "join" or item.dtypes == OTHER:
                continue
            kind = item.dtypes
        if item.tensor > tensor:
            tensor = item.tensor
        bits |= item.bits & ELEMENTWISE_BITS
        if item.bits & ZERO_DIM and op not in _LOSSES:
            weak = promote(weak, kind) if weak else kind
        elif kind == NUM:
            numbers |= _number_kind(item)
        elif kind & (TENSORS | NUM) and not (op == "where" and item is first):
            mask = promote(mask, kind) if mask else kind
    if weak:
        # A tensor without dimensions decides only where it is of a higher category than the others.
        if not mask:
            mask, bits = weak, bits | ZERO_DIM
        elif mask & (INT | BOOL):
            mask = mask & FLOATS | promote(mask & ~FLOATS, weak)
        if mask & NUM and mask != NUM:
            # Where the other is a number of Python, the tensor decides after all.
            mask = mask & ~NUM | weak
    if numbers:
        mask = _with_numbers(op, mask, numbers)
    given = explicit_dtype(value)
    named = dtype_named(given)
    if given is not None and op not in ("where",):
        mask = named or mask | LOW | F32
        bits = (bits & ~ASSUMED) | CAST
        if given.op == "dtype":
            value.anchor = given.args[0].root
            bits |= given.args[0].bits & ASSUMED
    elif table is not None and not value.inplace and tensor:
        if op in table.lower:
            mask, bits = _lowered(mask), bits & ~(ASSUMED | ZERO_DIM)
        elif op in table.float32:
            mask, bits = _raised(mask), bits & ~ASSUMED
        elif op in table.widest and any(item.dtypes == F32 and item.tensor for item in args):
            mask = F32
    elif table is None and op in _OF_ONE_TYPE:
        # Operands of two types would raise, so they are of one, whichever it is.
        mask = _union([item.dtypes & FLOATS for item in args if item.tensor and not item.bits & PARAMETER]) or mask
    if value.inplace and first is not None:
        mask, value.anchor = first.dtypes, first.root
        bits |= first.bits & ZERO_DIM
    if mask & (INT | BOOL) and not value.inplace:
        if op in _FLOATING:
            mask = mask & ~(INT | BOOL) | F32
        elif mask & BOOL and op in _COUNTING:
            mask = mask & ~BOOL | INT
    if op in _FLOATING and not mask & FLOATS:
        mask = F32
    if op in REDUCTIONS:
        tensor = max(tensor, 1)
        bits = bits | ZERO_DIM if _is_of_everything(value) else bits & ~ZERO_DIM
    value.dtypes = mask or OTHER
    value.tensor = tensor
    value.bits = bits
    if value.anchor is None and first is not None and table is None:
        _anchor(value)
    elif value.anchor is None and first is not None and table is not None and op not in table.lower:
        if op not in table.float32:
            _anchor(value)
    fill_interval(value)


def is_complex(value: Value) -> bool:
    """Whether a value is complex for certain: ``1j``, or a tensor that is of none of the types that are told apart."""
    return value.const.__class__ is complex or (value.tensor == 2 and value.dtypes == OTHER)


_REAL_PARTS = frozenset({"abs", "real", "norm", "vector_norm", "matrix_norm"})
"""What gives real numbers of complex ones."""


def _operands(kwargs: dict[str, Value]) -> list[Value]:
    """The tensors among the keyword arguments."""
    return [kwargs[name] for name in ("other", "min", "max", "tensor1", "tensor2") if name in kwargs]


def _elements(value: Value) -> list[Value]:
    """The elements of a list; of several, where it may be one or another."""
    lists = [item for item in alternatives(value) if item.op in ("list", "tuple")]
    return [element for item in lists for element in item.args]


def _number_kind(value: Value) -> int:
    """1 for a whole number of Python, 2 for another, 3 where that is not known; a boolean decides nothing."""
    if value.is_const:
        kind = value.const.__class__
        return 2 if kind is float else 1 if kind is int else 0
    return 1 if value.bits & INTEGRAL else 3


def _with_numbers(op: str, mask: int, numbers: int) -> int:
    """The types of arithmetic between tensors of the types ``mask`` and numbers of Python."""
    if not mask:
        return NUM if op != "where" else (INT if numbers & 1 else 0) | (F32 if numbers & 2 else 0)
    if not mask & (INT | BOOL) or op not in _ARITHMETIC:
        return mask
    whole = mask & ~BOOL | INT if mask & BOOL else mask
    fractional = mask & ~(INT | BOOL) | F32
    return (whole if numbers & 1 else 0) | (fractional if numbers & 2 else 0)


def _lowered(mask: int) -> int:
    """The types after a cast to half, which leaves float64 and integers alone."""
    if mask & (LOW | F32) or not mask & TENSORS:
        return LOW | mask & F64
    return mask & (F64 | INT | BOOL)


def _raised(mask: int) -> int:
    """The types after a cast to float32, which leaves float64 and integers alone."""
    kept = mask & (F64 | INT | BOOL)
    return kept | F32 if mask & (LOW | F32) or not kept else kept


def _is_of_everything(value: Value) -> bool:
    """Whether a reduction is over all elements, so that its result has no dimensions."""
    op, kwargs = value.op, value.kwargs
    if op in _LOSSES:
        reduction = kwargs.get("reduction") if kwargs else None
        return reduction is None or (reduction.is_const and reduction.const in ("mean", "sum"))
    if op in ("dist", "logsumexp", "matrix_norm", "nuclear_norm"):
        return op == "dist"
    if kwargs and ("dim" in kwargs or "axis" in kwargs or "keepdim" in kwargs):
        return False
    dim = value.arg(2 if op in _ORDER_FIRST else 1)
    return dim is None or (dim.is_const and isinstance(dim.const, bool))


def fill_interval(value: Value) -> None:
    """Fill in the interval of an operation's result, where the operation has one and is given what it needs."""
    interval = INTERVALS.get(value.op)
    if interval is not None and len(value.args) >= (2 if value.op in _OF_TWO else 1) and not _is_scaled(value):
        interval(value)


_OF_TWO = frozenset({"add", "sub", "mul", "div"})


def _anchor(value: Value) -> None:
    """Note that the result has the type of its only kind of operand."""
    root: Value | None = None
    for item in value.args:
        if item.dtypes == NUM or not item.tensor:
            continue
        if root is None:
            root = item.root
        elif item.root is not root:
            return
    if root is not None and root.dtypes == value.dtypes:
        value.anchor = root


def _is_scaled(value: Value) -> bool:
    """Whether ``alpha=`` or ``rounding_mode=`` changes what an operation does."""
    kwargs = value.kwargs
    return bool(kwargs) and ("alpha" in kwargs or "rounding_mode" in kwargs)  # type: ignore[operator]


_LOSSES = frozenset(op for op in REDUCTIONS if op.endswith(("_loss", "_entropy", "_logits")) or op == "kl_div")
_ORDER_FIRST = _names("norm vector_norm quantile nanquantile")
"""Reductions whose second argument is not the dimension."""
_ARITHMETIC = _names("add sub mul div floordiv mod pow rpow fmod clamp clamp_min clamp_max where xlogy neg abs")
"""Operations in which a number of Python decides between integers and floats."""
_COUNTING = _names("sum nansum prod cumsum cumprod")
"""Operations that make integers of booleans."""
_TYPED_BY_POSITION = _names("softmax log_softmax softmin sum mean prod cumsum cumprod")
_FLOATING = _names(
    """
    exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sigmoid tanh softmax log_softmax mean var std norm div
    true_divide sin cos tan sinh cosh asin acos atan atan2 asinh acosh atanh erf erfc erfinv logsumexp softplus
    logsigmoid vector_norm logit lgamma digamma sinc xlogy nanmean
    """
)
"""Operations that make floats of integers."""
_SAME_SHAPE = _names(
    "contiguous clone detach detach_ alias requires_grad_ data cpu cuda pin_memory share_memory_ squeeze real"
)
"""Views that leave alone what has no dimensions."""


def _keep(value: Value, first: Value) -> None:
    value.dtypes, value.tensor = first.dtypes, first.tensor
    value.bits, value.lo, value.hi = first.bits, first.lo, first.hi
    if first.bits & ZERO_DIM and value.op not in _SAME_SHAPE:
        value.bits &= ~ZERO_DIM
    value.anchor = first.root
    value.data = first.data


def apply_view(value: Value, first: Value) -> None:
    """Fill in what a part of ``first``, or the same in another shape, may be."""
    _keep(value, first)


def cast(value: Value, dtypes: int, like: Value | None = None) -> None:
    """Fill in the result of a conversion of ``value.args[0]``; ``dtypes`` 0 means that it is not known to what."""
    first = value.args[0]
    _keep(value, first)
    value.bits |= first.bits & ZERO_DIM
    value.tensor = max(first.tensor, 1) if first.tensor or first.dtypes != OTHER else first.tensor
    if dtypes:
        value.dtypes = dtypes
        value.bits = (value.bits & ~ASSUMED) | CAST | (like.bits & ASSUMED if like is not None else 0)
        value.anchor = like.root if like is not None else None
    if value.dtypes & (INT | BOOL) == value.dtypes:
        value.bits |= INTEGRAL


# ---- intervals ---------------------------------------------------------------------------------------------------


def _between(lo: float, hi: float, bits: int = 0) -> Callable[[Value], None]:
    def fill(value: Value) -> None:
        value.lo, value.hi = lo, hi
        value.bits |= bits

    return fill


def _pass(value: Value) -> None:
    if value.args:
        value.lo, value.hi = value.args[0].lo, value.args[0].hi


def _dropout(value: Value) -> None:
    """Some elements become 0, the others grow."""
    first = value.args[0]
    value.lo, value.hi = (0.0 if first.lo >= 0 else -INF), (0.0 if first.hi <= 0 else INF)
    value.bits |= first.bits & MAX_SUBTRACTED


def _not_negative(value: Value) -> None:
    value.lo = 0.0


def _relu(value: Value) -> None:
    first = value.args[0]
    value.lo, value.hi = max(0.0, first.lo), max(0.0, first.hi)


def _abs(value: Value) -> None:
    first = value.args[0]
    low = 0.0 if first.lo <= 0 <= first.hi else min(abs(first.lo), abs(first.hi))
    value.lo, value.hi = low, max(abs(first.lo), abs(first.hi))


def _neg(value: Value) -> None:
    first = value.args[0]
    value.lo, value.hi = -first.hi, -first.lo


def _exp(value: Value) -> None:
    first = value.args[0]
    value.lo = _guarded_exp(first.lo)
    value.hi = _guarded_exp(first.hi)


def _guarded_exp(x: float) -> float:
    return math.exp(x) if x < 700 else INF


def _square(value: Value) -> None:
    _abs(value)
    value.lo, value.hi = value.lo * value.lo, _product(value.hi, value.hi)


def _pow(value: Value) -> None:
    power = value.args[1].number if len(value.args) > 1 else None
    if power is not None and power % 2 == 0:
        value.lo = 0.0
        if power == 2:
            _square(value)
    elif value.args[0].lo >= 0:
        value.lo = 0.0


def _add(value: Value) -> None:
    a, b = value.args[0], value.args[1]
    if a.lo != -b.lo:
        value.lo = a.lo + b.lo
    elif abs(a.lo) != INF:
        value.lo = 0.0
    if a.hi != -b.hi:
        value.hi = a.hi + b.hi
    elif abs(a.hi) != INF:
        value.hi = 0.0
    for one, other in ((a, b), (b, a)):
        if one.number is not None:
            value.bits |= other.bits & MAX_SUBTRACTED if one.number <= 0 else 0
            if 0 < one.number < 0.5:
                value.bits |= GUARDED


def _sub(value: Value) -> None:
    a, b = value.args[0], value.args[1]
    if a.lo != b.hi or abs(a.lo) != INF:
        value.lo = a.lo - b.hi
    if a.hi != b.lo or abs(a.hi) != INF:
        value.hi = a.hi - b.lo
    if _is_maximum_of(b, a):
        value.bits |= MAX_SUBTRACTED
        value.hi = 0.0


_UNCHANGED = _names(
    "to type_as float double half bfloat16 detach clone contiguous data alias unsqueeze squeeze view reshape expand "
    "expand_as view_as cpu cuda values"
)


def _is_maximum_of(b: Value, a: Value) -> bool:
    """Whether ``b`` is the maximum of ``a``, over a dimension or altogether, or their logsumexp."""
    for item in alternatives(b.through(_UNCHANGED | {"getitem"})):
        item = item.through(_UNCHANGED | {"getitem"})
        if item.op not in ("max", "amax", "logsumexp", "cummax", "maximum") or not item.args:
            return False
        if not same(item.args[0].through(_UNCHANGED), a.through(_UNCHANGED)):
            return False
    return True


def _product(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


def _mul(value: Value) -> None:
    a, b = value.args[0], value.args[1]
    if same(a, b):
        _square(value)
        return
    if (a.lo == -INF and a.hi == INF) or (b.lo == -INF and b.hi == INF):
        return
    corners = [_product(x, y) for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    value.lo, value.hi = min(corners), max(corners)


def _div(value: Value) -> None:
    a, b = value.args[0], value.args[1]
    if b.number:
        ends = (a.lo / b.number, a.hi / b.number)
        value.lo, value.hi = min(ends), max(ends)
    elif b.lo >= 0:
        if a.lo >= 0:
            value.lo = 0.0
        if a.hi <= 0:
            value.hi = 0.0


def _clamp(value: Value) -> None:
    first = value.args[0]
    value.lo, value.hi = first.lo, first.hi
    low, high = clamp_bounds(value)
    if low is not None and low.dtypes != OTHER:
        value.lo = max(value.lo, low.lo)
        value.hi = max(value.hi, low.hi)
        if low.lo > 0:
            value.bits |= GUARDED
    if high is not None and high.dtypes != OTHER:
        value.hi = min(value.hi, high.hi)
        value.lo = min(value.lo, high.lo)


def clamp_bounds(value: Value) -> tuple[Value | None, Value | None]:
    """The least and the largest value that a ``clamp``, ``clamp_min``, ``clamp_max`` lets through."""
    if value.op == "clamp_min":
        return value.arg(1, "min"), None
    if value.op == "clamp_max":
        return None, value.arg(1, "max")
    return value.arg(1, "min"), value.arg(2, "max")


def _maximum(value: Value) -> None:
    if len(value.args) > 1:
        value.lo = max(value.args[0].lo, value.args[1].lo)
        value.hi = max(value.args[0].hi, value.args[1].hi)


def _minimum(value: Value) -> None:
    if len(value.args) > 1:
        value.lo = min(value.args[0].lo, value.args[1].lo)
        value.hi = min(value.args[0].hi, value.args[1].hi)


def _extreme(value: Value) -> None:
    """``max`` and ``min``: of one tensor over a dimension, or of two tensors."""
    _pass(value)
    if len(value.args) > 1 and value.args[1].tensor:
        if value.args[1].tensor == 2:
            (_maximum if value.op == "max" else _minimum)(value)
        elif value.op == "max":
            value.hi = max(value.hi, value.args[1].hi)
        else:
            value.lo = min(value.lo, value.args[1].lo)


def _sum(value: Value) -> None:
    first = value.args[0]
    if first.lo >= 0:
        value.lo = 0.0
    if first.hi <= 0:
        value.hi = 0.0
    if first.bits & PROBABILITY:
        value.bits |= PROBABILITY


def _where(value: Value) -> None:
    if len(value.args) == 3:
        test, first, second = value.args
        (low, high), (least, most) = _selected(first, test, True), _selected(second, test, False)
        value.lo, value.hi = min(low, least), max(high, most)


def _masked_fill(value: Value) -> None:
    filled = value.arg(2, "value")
    low, high = _selected(value.args[0], value.args[1], False) if len(value.args) > 1 else (-INF, INF)
    value.lo = min(low, filled.lo if filled is not None else -INF)
    value.hi = max(high, filled.hi if filled is not None else INF)


_COPIES = frozenset({"alias", "clone", "contiguous", "detach", "float", "to"})
"""What leaves each element where it is."""


def _selected(value: Value, test: Value, holds: bool) -> tuple[float, float]:
    """The interval of the elements of a value for which a test holds, or does not."""
    while test.op in ("invert", "logical_not") and test.args:
        test, holds = test.args[0], not holds
    low, high = value.lo, value.hi
    if test.op in ("lt", "le", "gt", "ge") and len(test.args) == 2 and not math.isnan(value.lo):
        left, right = test.args
        below = (test.op in ("lt", "le")) is holds
        if left.through(_COPIES) is value.through(_COPIES):
            low, high = (low, min(high, right.hi)) if below else (max(low, right.lo), high)
        elif right.through(_COPIES) is value.through(_COPIES):
            low, high = (max(low, left.lo), high) if below else (low, min(high, left.hi))
    return (low, high) if low <= high else (value.lo, value.hi)


def _sqrt(value: Value) -> None:
    first = value.args[0]
    value.lo = math.sqrt(first.lo) if 0 < first.lo < INF else 0.0
    value.hi = math.sqrt(first.hi) if 0 < first.hi < INF else INF
    value.bits |= first.bits & GUARDED


def _cumsum(value: Value) -> None:
    first = value.args[0]
    value.bits |= first.bits & INTEGRAL
    if first.dtypes & ~(BOOL | INT) == 0 and first.tensor:
        value.dtypes = INT if value.dtypes & (INT | BOOL) else value.dtypes
        value.bits |= POSITION
    if first.lo >= 0:
        value.lo = 0.0


def _monotonic(function: Callable[[float], float]) -> Callable[[Value], None]:
    """Of a function that only rises: what it makes of the ends, where it is defined there."""

    def fill(value: Value) -> None:
        first = value.args[0]
        value.lo, value.hi = _at(function, first.lo, -INF), _at(function, first.hi, INF)

    return fill


def _at(function: Callable[[float], float], x: float, otherwise: float) -> float:
    try:
        return function(x)
    except (ValueError, OverflowError):
        return otherwise


def _list(value: Value) -> None:
    """``cat`` and ``stack``."""
    given = value.args[0]
    elements = given.args if given.op in ("tuple", "list") and given.data is None else ()
    if elements and all(item.op != "starred" for item in elements):
        value.lo, value.hi = min(item.lo for item in elements), max(item.hi for item in elements)


def _spread(value: Value) -> None:
    """A variance or deviation: of two elements at both ends at most."""
    first = value.args[0]
    half = (first.hi - first.lo) / math.sqrt(2.0)
    value.lo, value.hi = 0.0, half if value.op == "std" else _product(half, half)


def _softplus(value: Value) -> None:
    value.lo, value.hi = 0.0, max(0.0, value.args[0].hi) + 1.0


def _pooled(value: Value) -> None:
    """Averages, in which zeros may have part."""
    first = value.args[0]
    value.lo, value.hi = min(0.0, first.lo), max(0.0, first.hi)


def _mod(value: Value) -> None:
    divisor = value.args[1].number if len(value.args) > 1 else None
    if divisor is not None:
        value.lo, value.hi = min(0.0, divisor), max(0.0, divisor)


def _uniform(value: Value) -> None:
    low, high = value.arg(1, "from"), value.arg(2, "to")
    value.lo = low.lo if low is not None else 0.0
    value.hi = high.hi if high is not None else 1.0


_PI = math.pi
INTERVALS: dict[str, Callable[[Value], None]] = {
    "softmax": _between(0.0, 1.0, PROBABILITY),
    "gumbel_softmax": _between(0.0, 1.0, PROBABILITY),
    "softmin": _between(0.0, 1.0, PROBABILITY),
    "sigmoid": _between(0.0, 1.0, SIGMOID),
    "hardsigmoid": _between(0.0, 1.0),
    "tanh": _between(-1.0, 1.0),
    "sin": _between(-1.0, 1.0),
    "cos": _between(-1.0, 1.0),
    "erf": _between(-1.0, 1.0),
    "sign": _between(-1.0, 1.0),
    "relu6": _between(0.0, 6.0),
    "cosine_similarity": _between(-1.0, 1.0),
    "normalize": _between(-1.0, 1.0),
    "bernoulli": _between(0.0, 1.0),
    "hardtanh": _clamp,
    "atan": _between(-_PI / 2, _PI / 2),
    "asin": _between(-_PI / 2, _PI / 2),
    "acos": _between(0.0, _PI),
    "atan2": _between(-_PI, _PI),
    "erfc": _between(0.0, 2.0),
    "frac": _between(-1.0, 1.0),
    "log_softmax": _between(-INF, 0.0),
    "logsigmoid": _between(-INF, 0.0),
    "relu": _relu,
    "abs": _abs,
    "neg": _neg,
    "exp": _exp,
    "exp2": _monotonic(lambda x: 2.0**x),
    "expm1": _monotonic(math.expm1),
    "log": _monotonic(math.log),
    "log2": _monotonic(math.log2),
    "log10": _monotonic(math.log10),
    "log1p": _monotonic(math.log1p),
    "floor": _monotonic(lambda x: float(math.floor(x))),
    "ceil": _monotonic(lambda x: float(math.ceil(x))),
    "round": _monotonic(lambda x: float(round(x))),
    "trunc": _monotonic(lambda x: float(math.trunc(x))),
    "mod": _mod,
    "uniform": _uniform,
    "cat": _list,
    "stack": _list,
    "avg_pool1d": _pooled,
    "avg_pool2d": _pooled,
    "avg_pool3d": _pooled,
    "adaptive_avg_pool1d": _pooled,
    "adaptive_avg_pool2d": _pooled,
    "adaptive_avg_pool3d": _pooled,
    "square": _square,
    "pow": _pow,
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "clamp": _clamp,
    "clamp_min": _clamp,
    "clamp_max": _clamp,
    "maximum": _maximum,
    "minimum": _minimum,
    "max": _extreme,
    "min": _extreme,
    "amax": _pass,
    "amin": _pass,
    "mean": _pass,
    "nanmean": _pass,
    "median": _pass,
    "dropout": _dropout,
    "masked_scatter": _pass,
    "where": _where,
    "masked_fill": _masked_fill,
    "sum": _sum,
    "cumsum": _cumsum,
    "sqrt": _sqrt,
    "norm": _not_negative,
    "vector_norm": _not_negative,
    "var": _spread,
    "std": _spread,
    "softplus": _softplus,
    "cdist": _not_negative,
    "rsqrt": _not_negative,
}
