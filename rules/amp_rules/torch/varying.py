"""What makes a value differ from one training step to the next, and parts of models without parameters."""

from __future__ import annotations

DRAWN = ("random.", "numpy.random.", "secrets.", "torch.rand", "torch.normal", "torch.bernoulli", "torch.multinomial")
"""Functions that draw at random, by the beginnings of their names."""

DRAWING_METHODS = frozenset(
    {
        "random",
        "randint",
        "randrange",
        "integers",
        "choice",
        "choices",
        "sample",
        "uniform",
        "uniform_",
        "random_",
        "bernoulli_",
        "binomial",
    }
)
"""Methods of random generators, and of tensors, that draw."""

READS_DATA = frozenset({"item", "tolist", "any", "all", "nonzero", "is_nonzero", "equal", "allclose"})
"""Methods that give Python a number or truth out of a tensor."""

SELECTS = frozenset({"nonzero", "where", "unique", "unique_consecutive", "masked_select", "argwhere"})
"""Functions and methods whose result has as many items as the data says."""

OF_THE_SHAPE = frozenset({"shape", "ndim", "dtype", "device", "is_cuda", "requires_grad", "training", "grad_fn"})
"""Attributes of tensors and modules that stay the same from step to step."""

ASKS_SHAPE = frozenset({"size", "dim", "numel", "ndimension", "is_floating_point", "get_device"})
"""Methods of the same kind."""

ASKED_OF_SHAPE = frozenset({"shape", "ndim", "size", "dim", "ndimension", "numel"})
"""Attributes and methods of tensors that say their shape."""

ASKS_KIND = frozenset({"isinstance", "issubclass", "hasattr", "callable", "type", "len", "getattr", "id"})
"""Builtins of the same kind."""

WITHOUT_PARAMETERS = (
    "torch.nn.Identity", "torch.nn.Flatten", "torch.nn.Unflatten", "torch.nn.Dropout", "torch.nn.AlphaDropout",
    "torch.nn.FeatureAlphaDropout", "torch.nn.MaxPool", "torch.nn.AvgPool", "torch.nn.AdaptiveAvgPool",
    "torch.nn.AdaptiveMaxPool", "torch.nn.LPPool", "torch.nn.MaxUnpool", "torch.nn.FractionalMaxPool",
    "torch.nn.ReLU", "torch.nn.LeakyReLU", "torch.nn.RReLU", "torch.nn.ELU", "torch.nn.CELU", "torch.nn.SELU",
    "torch.nn.GELU", "torch.nn.SiLU", "torch.nn.Mish", "torch.nn.GLU", "torch.nn.Sigmoid", "torch.nn.Tanh",
    "torch.nn.Softplus", "torch.nn.Softshrink", "torch.nn.Hardshrink", "torch.nn.Hardsigmoid", "torch.nn.Hardswish",
    "torch.nn.Hardtanh", "torch.nn.LogSigmoid", "torch.nn.Softsign", "torch.nn.Tanhshrink", "torch.nn.Threshold",
    "torch.nn.Softmax", "torch.nn.Softmin", "torch.nn.LogSoftmax", "torch.nn.Upsample", "torch.nn.PixelShuffle",
    "torch.nn.PixelUnshuffle", "torch.nn.ReflectionPad", "torch.nn.ReplicationPad", "torch.nn.ZeroPad",
    "torch.nn.ConstantPad", "torch.nn.CircularPad", "torch.nn.Fold", "torch.nn.Unfold", "torch.nn.ChannelShuffle",
    "torch.nn.CosineSimilarity", "torch.nn.PairwiseDistance",
)  # fmt: skip
"""The beginnings of names of torch's modules that have no parameters; losses end in ``Loss``."""
