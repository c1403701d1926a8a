"""Functions of torch that make tensors."""

from __future__ import annotations

PARAMETER_MAKERS = frozenset({"torch.nn.Parameter", "torch.nn.parameter.Parameter"})
"""Calls that make a parameter, which belongs to the module that keeps it."""

TENSOR_MAKERS = frozenset(
    {
        *PARAMETER_MAKERS,
        *(f"torch.{name}" for name in ("tensor", "zeros", "ones", "full", "rand", "randn", "empty", "eye", "normal")),
    }
)
"""Calls that make a tensor of its own."""

DEVICE_COUNTS = frozenset({"torch.cuda.device_count"})
"""Calls that say how many GPUs a process sees."""

SUMMARISING_TESTS = frozenset({"builtins.any", "builtins.all", "torch.any", "torch.all"})
"""Functions that say one thing of many numbers."""

FINITE_TESTS = frozenset({"isnan", "isinf", "isfinite", "isposinf", "isneginf"})
"""Own names of functions and methods that ask whether something is a finite number."""

NUMBER_TESTS = (
    SUMMARISING_TESTS
    | {f"{library}.{name}" for library in ("torch", "math", "numpy") for name in FINITE_TESTS}
    | {"builtins.bool", "builtins.float", "builtins.int", "builtins.abs"}
)
"""Functions that say something of a number, which is true of the mean of several where it is true of one of them."""

NUMBER_METHODS = frozenset({"isnan", "isinf", "isfinite", "any", "all", "abs", "bool"})
"""The same as methods."""

GIVES_NUMBER = frozenset(
    {
        "builtins.float", "builtins.int", "builtins.round", "builtins.len", "builtins.sum", "builtins.min",
        "builtins.max", "builtins.abs", "numpy.mean", "numpy.sum", "numpy.average", "numpy.median", "numpy.max",
        "numpy.min", "statistics.mean", "math.exp", "math.log", "math.sqrt", "math.log2", "math.log10", "math.fabs",
        "numpy.exp", "numpy.log", "numpy.sqrt", "numpy.round",
    }
)  # fmt: skip
"""Functions that give a number, which carries no gradient."""

COMPUTED_FROM_ALL = frozenset(
    "item norm sum mean prod std var median max min amax amin dist dot numel nelement dim any all isnan isinf isfinite "
    "count_nonzero".split()
)
"""Methods of a tensor whose result is worked out of its elements: a number, or one for each row."""

TENSOR_GIVING = frozenset(
    "clone contiguous cpu cuda detach double flatten float half long permute reshape squeeze to transpose unsqueeze "
    "view".split()
)
"""Methods of a tensor that give a tensor, whatever it holds."""

INFINITIES = frozenset({"math.inf", "numpy.inf", "torch.inf"})
"""Names of the infinite number."""

OTHER_SHAPE = frozenset(
    "view reshape contiguous squeeze unsqueeze flatten unflatten permute transpose t expand expand_as repeat narrow "
    "detach clone cpu size dim numel".split()
)
"""Methods of tensors that compute nothing: they give the same numbers in another shape or place, or a size."""

READS_FILE = frozenset(
    {"torch.load", "numpy.load", "numpy.loadtxt", "builtins.open", "io.open", "pandas.read_csv", "joblib.load"}
)
"""Functions that read the file whose path they are given first."""

SCRIPTING = frozenset({"torch.jit.script", "torch.jit.script_method"})
"""Decorators of functions that TorchScript compiles: they hold nothing but what it can read."""

CONVOLUTIONS = frozenset(f"torch.{prefix}conv{n}d" for prefix in ("", "nn.functional.") for n in (1, 2, 3))
"""Functions that move a table of weights over a tensor."""
