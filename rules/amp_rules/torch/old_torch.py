"""Names of old PyTorch, and what has their place.

What is listed as renamed takes the same arguments and gives the same numbers on PyTorch 2.4 to 2.13.
"""

from __future__ import annotations

import re

ASYNC = "async"
NON_BLOCKING = "non_blocking"
COPYING = frozenset({"cuda", "to", "type", "copy_"})
"""Methods that took ``async``."""

VARIABLE = "torch.autograd.Variable"

_INITIALISERS = (
    "uniform normal constant eye dirac xavier_uniform xavier_normal kaiming_uniform kaiming_normal orthogonal sparse"
).split()

RENAMED: dict[str, str] = {
    **{f"torch.nn.init.{name}": f"torch.nn.init.{name}_" for name in _INITIALISERS},
    "torch.nn.utils.clip_grad_norm": "torch.nn.utils.clip_grad_norm_",
    "torch.nn.NLLLoss2d": "torch.nn.NLLLoss",
    "torch.nn.functional.upsample": "torch.nn.functional.interpolate",
    "torchvision.transforms.Scale": "torchvision.transforms.Resize",
    "torchvision.transforms.RandomSizedCrop": "torchvision.transforms.RandomResizedCrop",
}
"""Functions and classes with another name in the same module and the same arguments."""

GONE_TRANSFORMS = frozenset({"Scale", "RandomSizedCrop"})
"""Of what is renamed, what is not there by its old name any more."""

SIX = {
    "torch._six.container_abcs": "import collections.abc as container_abcs",
    "torch._six.inf": "from math import inf",
    "torch._six.nan": "from math import nan",
    "torch._six.queue": "import queue",
}
SIX_VALUES = {
    "torch._six.string_classes": "(str, bytes)",
    "torch._six.int_classes": "int",
    "torch._six.PY3": "True",
    "torch._six.PY37": "True",
}
"""What ``torch._six`` held; the module is gone since PyTorch 2.0."""

NUMPY = {
    "numpy.int": "int",
    "numpy.float": "float",
    "numpy.bool": "bool",
    "numpy.object": "object",
    "numpy.str": "str",
    "numpy.complex": "complex",
    "numpy.long": "int",
    "numpy.unicode": "str",
    "numpy.float_": "np.float64",
    "numpy.complex_": "np.complex128",
    "numpy.unicode_": "np.str_",
    "numpy.string_": "np.bytes_",
    "numpy.Inf": "np.inf",
    "numpy.Infinity": "np.inf",
    "numpy.NaN": "np.nan",
    "numpy.NAN": "np.nan",
    "numpy.bool8": "np.bool_",
    "numpy.product": "np.prod",
    "numpy.alltrue": "np.all",
    "numpy.sometrue": "np.any",
    "numpy.cumproduct": "np.cumprod",
    "numpy.in1d": "np.isin",
}
"""Names that NumPy 1.24 and 2.0 have taken out; ``np`` stands for the file's own name of NumPy."""

ABSTRACT = frozenset(
    {
        "Awaitable",
        "Callable",
        "Collection",
        "Container",
        "Generator",
        "Hashable",
        "ItemsView",
        "Iterable",
        "Iterator",
        "KeysView",
        "Mapping",
        "MappingView",
        "MutableMapping",
        "MutableSequence",
        "MutableSet",
        "Reversible",
        "Sequence",
        "Set",
        "Sized",
        "ValuesView",
    }
)
"""Classes of ``collections.abc`` that were in ``collections`` until Python 3.9."""

# ---- losses ------------------------------------------------------------------------------------------------

_AVERAGES = ("size_average", "reduce", "reduction")
_WEIGHTED = ("weight", "size_average", "reduce", "reduction")
_CLASSES = ("weight", "size_average", "ignore_index", "reduce", "reduction")
_MARGIN = ("margin", "size_average", "reduce", "reduction")

LOSS_MODULES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("L1Loss", "MSELoss", "SmoothL1Loss", "SoftMarginLoss", "KLDivLoss"), _AVERAGES),
    "MultiLabelMarginLoss": _AVERAGES,
    **dict.fromkeys(("NLLLoss", "NLLLoss2d", "CrossEntropyLoss"), _CLASSES),
    **dict.fromkeys(("BCELoss", "BCEWithLogitsLoss", "MultiLabelSoftMarginLoss"), _WEIGHTED),
    "PoissonNLLLoss": ("log_input", "full", "size_average", "eps", "reduce", "reduction"),
    **dict.fromkeys(("CosineEmbeddingLoss", "HingeEmbeddingLoss", "MarginRankingLoss"), _MARGIN),
    "MultiMarginLoss": ("p", "margin", *_WEIGHTED),
    "TripletMarginLoss": ("margin", "p", "eps", "swap", *_AVERAGES),
}
"""Losses by their parameters."""

LOSS_FUNCTIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("l1_loss", "mse_loss", "smooth_l1_loss", "soft_margin_loss", "kl_div", "multilabel_margin_loss"),
        ("input", "target", *_AVERAGES),
    ),
    **dict.fromkeys(("nll_loss", "cross_entropy"), ("input", "target", *_CLASSES)),
    **dict.fromkeys(
        ("binary_cross_entropy", "binary_cross_entropy_with_logits", "multilabel_soft_margin_loss"),
        ("input", "target", *_WEIGHTED),
    ),
    "poisson_nll_loss": ("input", "target", "log_input", "full", "size_average", "eps", "reduce", "reduction"),
    "cosine_embedding_loss": ("input1", "input2", "target", *_MARGIN),
    "hinge_embedding_loss": ("input", "target", *_MARGIN),
    "margin_ranking_loss": ("input1", "input2", "target", *_MARGIN),
    "multi_margin_loss": ("input", "target", "p", "margin", *_WEIGHTED),
    "triplet_margin_loss": ("anchor", "positive", "negative", "margin", "p", "eps", "swap", *_AVERAGES),
}
"""The same of their functions."""

OTHER_LOSSES = frozenset({"CTCLoss", "HuberLoss", "GaussianNLLLoss", "TripletMarginWithDistanceLoss"})
OTHER_LOSS_FUNCTIONS = frozenset({"ctc_loss", "huber_loss", "gaussian_nll_loss"})

# ---- tensors -----------------------------------------------------------------------------------------------

CONSTRUCTORS = frozenset(
    f"torch.{name}"
    for name in (
        "zeros ones empty full eye rand randn randint randperm arange range linspace logspace tensor "
        "from_numpy multinomial tril_indices triu_indices hann_window hamming_window Tensor "
        "FloatTensor DoubleTensor HalfTensor LongTensor IntTensor ShortTensor CharTensor ByteTensor BoolTensor "
        "cuda.FloatTensor cuda.DoubleTensor cuda.HalfTensor cuda.LongTensor cuda.IntTensor cuda.ByteTensor "
        "cuda.BoolTensor"
    ).split()
)
"""Functions that make tensors from numbers; those of tensors too, whose result has no gradient."""

LIKE = frozenset({"zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "randint_like"})
NEW = frozenset({"new", "new_zeros", "new_ones", "new_empty", "new_full", "new_tensor"})

BOOLEAN = frozenset(
    "eq ne lt le gt ge isnan isinf isfinite logical_and logical_or logical_not logical_xor bool".split()
)
WITHOUT_GRADIENT = frozenset("argmax argmin argsort long int byte sign detach nonzero histc bincount".split())
REDUCTIONS = frozenset(
    "sum mean max min prod std var norm median mode logsumexp all any nansum nanmean argmax argmin amax amin".split()
)
SAME_RANK = frozenset(
    "cuda cpu to float double half bfloat16 long int byte bool type type_as contiguous clone exp log sqrt abs neg relu "
    "sigmoid tanh clamp clamp_ pow round floor ceil sign detach detach_ pin_memory cumsum fill_ zero_ add add_ sub "
    "sub_ mul mul_ div div_ normal_ uniform_ random_ bernoulli_ copy_ softmax log_softmax log1p exp_ log_ float_power "
    "rsqrt reciprocal sin cos erf cumprod transpose t flip roll eq ne lt le gt ge masked_fill masked_fill_ scatter_ "
    "index_fill_ triu tril neg_ abs_ exponential_ cauchy_ log_normal_ requires_grad_ expand_as view_as new_tensor "
    "share_memory_ logical_not logical_and logical_or isnan isinf".split()
)
SHAPED = frozenset("view reshape expand repeat permute resize_".split())
"""Methods whose arguments are the sizes of the result, one for each dimension."""
KEEPS_TYPE = frozenset(
    "clone contiguous cpu cuda detach expand expand_as flatten permute repeat reshape squeeze t transpose unsqueeze "
    "view".split()
)
"""Methods whose result has the type of the tensor; `view` of a type is not asked for by scripts of that time."""
TENSOR_METHODS = (
    SAME_RANK
    | SHAPED
    | REDUCTIONS
    | NEW
    | frozenset(
        "squeeze unsqueeze squeeze_ unsqueeze_ view reshape flatten transpose_ permute expand repeat index_select "
        "gather "
        "masked_select narrow select chunk split topk sort max min mm matmul bmm mv dot addmm addmv t_ diag "
        "diagonal unfold scatter scatter_add index_copy_ index_add_ unbind resize_as_ resize_ nonzero".split()
    )
)
NUMBERS = frozenset("size numel item tolist dim ndimension nelement element_size get_device stride".split())
"""Methods that give no tensor."""
TORCH_FUNCTIONS = frozenset(
    "abs exp log sqrt sigmoid tanh relu pow clamp round floor ceil sign cat stack squeeze unsqueeze transpose mm "
    "matmul "
    "bmm mean sum max min prod std var norm sort topk where gather index_select masked_select dot ger outer einsum t "
    "add sub mul div argmax argmin eq ne lt le gt ge nonzero cumsum tril triu diag flatten split chunk reshape "
    "logsumexp all any isnan log1p addmm".split()
)
"""Functions of ``torch`` whose result has a gradient only if an argument has one."""
OF_ONE = (
    REDUCTIONS
    | SHAPED
    | frozenset(
        "cuda cpu to type transpose squeeze unsqueeze narrow chunk split float double half long int byte bool t "
        "contiguous "
        "clone topk sort flatten pin_memory clamp unbind unfold cumsum softmax log_softmax".split()
    )
)
"""Functions whose other arguments are sizes and the like."""
QUIET = frozenset({"dim", "keepdim", "dtype", "device", "non_blocking", "size", "descending", "k"})
"""Keywords that are no tensors with a gradient."""

LAYERS = frozenset(
    "Linear Dropout ReLU LeakyReLU ELU GELU PReLU Sigmoid Tanh Softmax LogSoftmax LayerNorm Identity".split()
)
"""Layers that keep the number of dimensions."""
SAME_RANK_FUNCTIONS = frozenset(
    "relu leaky_relu elu gelu dropout linear sigmoid tanh softmax log_softmax softplus normalize layer_norm".split()
)

# ---- arithmetic --------------------------------------------------------------------------------------------

SCALED = frozenset({"add", "sub"})
"""``x.add(alpha, other)``, now ``x.add(other, alpha=alpha)``."""
VALUED = frozenset({"addcmul", "addcdiv"})
"""``x.addcmul(value, a, b)``, now ``x.addcmul(a, b, value=value)``."""
PRODUCTS = frozenset({"addmm", "addmv", "addr", "addbmm", "baddbmm"})
"""``x.addmm(beta, alpha, a, b)``, now ``x.addmm(a, b, beta=beta, alpha=alpha)``."""
MASKED = frozenset({"masked_fill", "masked_fill_", "masked_select", "masked_scatter", "masked_scatter_"})
"""Methods that take a mask of ``torch.bool`` as their first argument."""
SCATTERING = frozenset({"scatter", "scatter_", "scatter_add", "scatter_add_"})
"""Methods that call ``src`` what they scatter."""
SOFTMAX = frozenset({"softmax", "log_softmax", "softmin"})
"""Functions of ``torch.nn.functional`` that choose a dimension by the number of dimensions when none is given."""
DTYPES = {
    "FloatTensor": "float32",
    "DoubleTensor": "float64",
    "HalfTensor": "float16",
    "BFloat16Tensor": "bfloat16",
}
"""Tensor types by their data type."""
LINEAR_ALGEBRA = {
    "torch.qr": "torch.linalg.qr",
    "torch.cholesky": "torch.linalg.cholesky",
    "torch.matrix_rank": "torch.linalg.matrix_rank",
}
"""Functions with another name and the same result, when they are called with one matrix only."""
STILL_THERE = frozenset({"torch.qr", "torch.cholesky"})
"""Those of them that PyTorch 2.13 still has by the old name."""
SOLVERS = frozenset({"torch.solve", "torch.gesv"})
DATASETS = frozenset(
    f"torchvision.datasets.{name}"
    for name in ("MNIST", "FashionMNIST", "KMNIST", "EMNIST", "QMNIST", "CIFAR10", "CIFAR100")
)
DATASET_ATTRIBUTES = {
    "train_data": "data",
    "test_data": "data",
    "train_labels": "targets",
    "test_labels": "targets",
}
SCHEDULERS = "torch.optim.lr_scheduler."

REWRITTEN = frozenset({"torch.symeig", *SOLVERS, *LINEAR_ALGEBRA})
"""Of what is gone, that which a rewrite tells about itself."""

# ---- what is gone without a counterpart --------------------------------------------------------------------

_WITH_ADDRESSES = "alexnet densenet googlenet inception mnasnet mobilenet resnet shufflenetv2 squeezenet vgg".split()

GONE: dict[str, tuple[str, str]] = {
    "torch.gels": ("was removed", "use torch.linalg.lstsq(A, B).solution; the order of the arguments has changed"),
    "torch.lstsq": ("was removed", "use torch.linalg.lstsq(A, B).solution; the order of the arguments has changed"),
    "torch.eig": ("was removed", "use torch.linalg.eig, which gives complex numbers"),
    "torch.symeig": ("was removed", 'use torch.linalg.eigh(A, UPLO="U"), or eigvalsh for the values alone'),
    "torch.solve": ("was removed", "use torch.linalg.solve(A, B); the order of the arguments has changed"),
    "torch.gesv": ("was removed", "use torch.linalg.solve(A, B); the order of the arguments has changed"),
    "torch.potrf": ("was removed", "use torch.linalg.cholesky(A, upper=True)"),
    "torch.btrifact": ("was removed", "use torch.linalg.lu_factor"),
    "torch.btrisolve": ("was removed", "use torch.lu_solve"),
    "torch.rfft": ("was removed", "use torch.fft.rfft, which gives complex numbers"),
    "torch.irfft": ("was removed", "use torch.fft.irfft, which takes complex numbers"),
    "torch._utils._accumulate": ("was removed", "use itertools.accumulate"),
    "torch.hub._download_url_to_file": ("was removed", "use torch.hub.download_url_to_file"),
    "torch.nn.modules.loss._assert_no_grad": ("was removed", "leave the call out"),
    "torch.optim.lr_scheduler.SAVE_STATE_WARNING": ("was removed", "leave the warning out"),
    "torchvision.models.utils": ("was removed", "import load_state_dict_from_url from torch.hub"),
    **dict.fromkeys(
        (f"torchvision.models.{name}.model_urls" for name in _WITH_ADDRESSES),
        ("was removed", "take the address from torchvision's weights: ResNet50_Weights.IMAGENET1K_V1.url"),
    ),
    "torch.utils.ffi": ("was removed", "build the extension with torch.utils.cpp_extension"),
    "torch.legacy": ("was removed", "use torch.nn"),
    "torch.nn._functions": ("was removed", "use torch.nn.functional, or torch.autograd.Function"),
    "torch.utils.serialization": ("was removed", "convert the file with a PyTorch before 1.0"),
    "torch.utils.data.dataloader._DataLoaderIter": ("was removed", "let iter(loader) make the iterator"),
    "torch.utils.data.dataloader._use_shared_memory": (
        "was removed",
        "ask torch.utils.data.get_worker_info() is not None",
    ),
    "torchtext.data.Field": ("went to torchtext.legacy, which is gone too", "prepare the text with your own code"),
    "torchtext.data.BucketIterator": (
        "went to torchtext.legacy, which is gone too",
        "use a DataLoader with a sampler",
    ),
    "torchtext.legacy": ("is gone", "prepare the text with your own code"),
}
"""What no rewrite knows a counterpart for: what became of it, and what to do."""

GONE_MODULES = frozenset(
    {"torch.legacy", "torch.nn._functions", "torch.utils.ffi", "torch.utils.serialization"}
    | {"torchtext.legacy", "torchvision.models.utils"}
)
"""Those of them that are modules, whose last name says little."""

TRANSPOSING = frozenset({"t", "transpose", "permute", "swapaxes", "swapdims", "movedim"})
"""Methods and functions whose result has the same elements in another order of dimensions."""

ELEMENTWISE = frozenset(
    "eq ne lt le gt ge add sub mul div abs neg exp log sigmoid tanh logical_not logical_and logical_or "
    "float double half int long bool byte type to cpu cuda clone detach".split()
)
"""Methods and functions whose result is laid out in memory as their operands are, since PyTorch 1.5."""

CASTING = frozenset("float double half int long bool cpu cuda".split())
REDUCING = frozenset("sum mean any all max min item tolist numel".split())
"""Methods that may give the tensor itself, and those whose result holds nothing of its memory."""

GIVES_FEATURES = "convert_examples_to_features"
"""How the functions of transformers are named that give a list of objects, or a data set, of a data set's examples.

Source: https://huggingface.co/docs/transformers/main_classes/processors
"""

PICKLED_SETTINGS = frozenset(
    {
        "addict.Dict",
        "argparse.ArgumentParser.parse_args",
        "argparse.ArgumentParser.parse_known_args",
        "argparse.Namespace",
        "easydict.EasyDict",
        "munch.Munch",
        "omegaconf.OmegaConf.create",
        "omegaconf.OmegaConf.load",
        "omegaconf.OmegaConf.merge",
        "types.SimpleNamespace",
        "yacs.config.CfgNode",
    }
)
"""What makes objects of settings that checkpoints hold, and that ``torch.load`` refuses unless it is told not to.

Source: https://docs.pytorch.org/docs/stable/notes/serialization.html#weights-only
"""

PARSED_OPTIONS = frozenset({"argparse.ArgumentParser.parse_args", "argparse.Namespace"})
"""What gives the options of the command line as one object."""

NAMED_AS_CLASS = re.compile(r"[A-Z]\w*[a-z]")
"""Names of torch's classes; its modules are in small letters."""

NUMPY_NUMBERS = frozenset(
    f"numpy.{name}"
    for name in (
        "mean average median nanmean nanmedian std var sum max min amax amin argmax argmin percentile quantile "
        "linalg.norm float32 float64"
    ).split()
)
"""What gives a number of NumPy, or an array: ``torch.load`` refuses both alike."""

NUMPY_ARITHMETIC = NUMPY_NUMBERS | {
    f"numpy.{name}"
    for name in (
        "abs around clip cos exp exp2 float_power interp log log10 log2 maximum minimum power prod round sin sqrt "
        "square tan tanh"
    ).split()
}
"""What gives a number of NumPy where it is given numbers."""

SCHEDULES_OF_A_FUNCTION = frozenset(f"torch.optim.lr_scheduler.{name}" for name in ("LambdaLR", "MultiplicativeLR"))
"""Schedulers that multiply the learning rate by what a function gives, their second argument ``lr_lambda``."""
