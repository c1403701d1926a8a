"""What gives a value that no gradient flows through: numbers, places, truth values, shapes."""

from __future__ import annotations

NUMBERS_OF = frozenset(
    f"builtins.{name}"
    for name in """
    all any bool callable complex float format hasattr hash id input int isinstance issubclass len open print range repr
    str type
    """.split()
)
"""Functions of Python whose result is never a tensor; ``max``, ``sum`` and their like give one where they are given
some."""

DETACHED_METHODS = frozenset(
    """
    all any argmax argmin argsort bincount bool byte char data_ptr detach detach_ device dim element_size eq equal ge
    get_device gt int int_repr is_floating_point isfinite isinf isnan item le long lt ndimension ne new_empty new_full
    new_ones new_tensor new_zeros nelement nonzero numel numpy requires_grad_ short size stride tolist
    state_dict parameters named_parameters buffers named_buffers modules named_modules children named_children
    """.split()
)
"""Methods of tensors and modules whose result carries no gradient."""

DETACHED_ATTRIBUTES = frozenset(
    """
    data device dtype grad grad_fn is_cuda is_leaf itemsize layout names nbytes ndim requires_grad shape training
    """.split()
)
"""Attributes of tensors and modules that carry no gradient."""

DETACHED_FUNCTIONS = frozenset(
    f"torch.{name}"
    for name in """
    all any arange argmax argmin argsort bincount bucketize empty empty_like eq equal eye from_numpy full
    full_like ge gt isclose isfinite isinf isnan is_tensor le linspace load logspace lt manual_seed multinomial ne
    nonzero normal numel ones ones_like rand rand_like randint randint_like randn randn_like randperm searchsorted
    tensor zeros zeros_like
    """.split()
)
"""Functions of torch whose result is not differentiated with respect to what they are given."""

DETACHED_PACKAGES = (
    "argparse.", "datetime.", "glob.", "json.", "logging.", "math.", "numpy.", "os.", "pathlib.", "pickle.", "re.",
    "time.", "torch.cuda.", "torch.optim.", "torch.utils.data.", "torchvision.datasets.", "yaml.",
)  # fmt: skip
"""Packages whose functions give nothing that carries a gradient."""
