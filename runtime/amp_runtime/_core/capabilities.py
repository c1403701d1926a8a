"""What a device has in half precision: its flags say what it computes, and every operation is tried once.

torch has no list of this. A kernel may be missing for one processor, one build or one version: the bfloat16 LSTM of
oneDNN, which autocast takes on the CPU, needs AVX-512 and raises without it. Answers come from flags and from trials
and never from timing, so that two runs on one machine compute the same.

A trial is a forward and a backward pass over a few numbers. It draws nothing from a random generator.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F

Make = Callable[..., torch.Tensor]
"""Makes a tensor of the given shape that requires a gradient, on the device and in the type of a trial."""
Trial = Callable[[Make], Any]
"""Runs an operation once; the first tensor of what it returns is differentiated."""

_SIZE = 8  # features of the trials of layers; oneDNN and cuDNN have kernels for any


def computes(kind: str, dtype: torch.dtype) -> bool:
    """Whether a device computes in a half type, by its flags and a matrix product: what ``dtype="auto"`` asks.

    GPUs before Ampere only emulate bfloat16, which their flags tell and no trial would. A CPU without bfloat16
    arithmetic counts as computing in it, see :func:`emulates`: it would emulate float16 as well, which has less range.

    Args:
        kind: the device type, such as ``"cuda"``.
        dtype: ``torch.float16`` or ``torch.bfloat16``.
    """
    return _by_flags(kind, dtype) and not lacks("linear", kind, dtype, by_autocast=True)


def emulates(kind: str, dtype: torch.dtype) -> bool:
    """Whether a device computes in a half type without arithmetic for it: many times slower than in float32.

    True only of bfloat16 on CPUs. Without AVX-512 or Arm's BF16, and in builds without oneDNN such as those for macOS,
    torch has plain loops for it. With AVX-512 alone oneDNN widens every number first.

    Args:
        kind: the device type.
        dtype: the half type.
    """
    if kind != "cpu" or dtype is not torch.bfloat16:
        return False
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return True
    has_kernels = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    if has_kernels is not None and not has_kernels():
        return True
    has_instructions = getattr(torch.cpu, "_is_avx512_bf16_supported", None)  # since torch 2.6
    only_avx512 = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return only_avx512 and has_instructions is not None and not has_instructions()


def lacking(kind: str, dtype: torch.dtype, by_autocast: Collection[str]) -> frozenset[str]:
    """The operations of ``TRIALS`` that a device lacks in a half type, on any rank once the ranks have agreed.

    Args:
        kind: the device type.
        dtype: the half type.
        by_autocast: the operations that torch's own autocast casts. For float32 tensors it may take another kernel
            than for half ones, so these are tried in both ways.
    """
    agreed = _agreed.get((kind, dtype))
    if agreed is not None:
        return agreed
    if (kind, dtype) not in _complete:
        if torch.compiler.is_compiling():
            return frozenset()
        missing = frozenset(name for name in TRIALS if lacks(name, kind, dtype, name in by_autocast))
        _complete[kind, dtype] = missing
    return _complete[kind, dtype]


def lacks(name: str, kind: str, dtype: torch.dtype, by_autocast: bool) -> bool:
    """Whether a device lacks one operation of ``TRIALS`` or ``UNSCALE`` in a half type; see :func:`lacking`."""
    agreed = _agreed.get((kind, dtype))
    if agreed is not None and name in TRIALS:
        return name in agreed
    if (kind, dtype, name) not in _complaints:
        if torch.compiler.is_compiling():
            return False  # a trial would become a part of the graph; prepare_model has made those of TRIALS before
        ways = (False, True) if by_autocast else (False,)
        _complaints[kind, dtype, name] = next(filter(None, (_complaint(name, kind, dtype, way) for way in ways)), "")
    return bool(_complaints[kind, dtype, name])


def reason(name: str, kind: str, dtype: torch.dtype) -> str:
    """What torch said when an operation was tried here; empty where this process's device has it."""
    return _complaints.get((kind, dtype, name), "")


def agree(kind: str, dtype: torch.dtype, missing: Iterable[str]) -> None:
    """Takes ``missing`` for the answer from now on: what one rank lacks, no rank uses."""
    _agreed[kind, dtype] = frozenset(missing)


def forget_agreement() -> None:
    """Goes back to this process's own answers, which are kept: a device does not change."""
    _agreed.clear()


_complaints: dict[tuple[str, torch.dtype, str], str] = {}
_complete: dict[tuple[str, torch.dtype], frozenset[str]] = {}
_agreed: dict[tuple[str, torch.dtype], frozenset[str]] = {}


def _by_flags(kind: str, dtype: torch.dtype) -> bool:
    if dtype is not torch.bfloat16:
        return True
    if kind == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return kind != "mps"  # some of its chips emulate bfloat16, and no flag tells which


def _complaint(name: str, kind: str, dtype: torch.dtype, by_autocast: bool) -> str:
    """What torch says against an operation in a half type, or nothing.

    What fails in float32 too is not the type's fault: a build without the operation, deterministic algorithms that
    were asked for, a device that is not there.
    """
    said = _tried(name, kind, dtype, by_autocast)
    return said if said and not _tried(name, kind, torch.float32, by_autocast=False) else ""


def _tried(name: str, kind: str, dtype: torch.dtype, by_autocast: bool) -> str:
    """Runs a trial; returns the first line of its error, or nothing."""
    made: list[torch.Tensor] = []

    def make(*shape: int) -> torch.Tensor:
        held = torch.float32 if by_autocast else dtype
        made.append(torch.full(shape, 0.5, device=kind, dtype=held, requires_grad=True))
        return made[-1]

    try:
        with _apart_from_the_script(kind):
            with _autocast(kind, dtype if by_autocast else None):
                result = (TRIALS.get(name) or _unscale)(make)
            while not isinstance(result, torch.Tensor):
                result = result[0]
            # Not backward(), which somebody who watches the training would take for a step.
            torch.autograd.grad(result.float().sum(), made, allow_unused=True)
    except Exception as error:  # whatever it is, the operation cannot be used
        return (str(error).splitlines() or [type(error).__name__])[0]
    return ""


def _autocast(kind: str, dtype: torch.dtype | None) -> torch.autocast:
    # Without its cache, which would keep the casts of the trial's tensors until a surrounding region ends.
    return torch.autocast(kind, dtype, enabled=dtype is not None, cache_enabled=False)


@contextmanager
def _apart_from_the_script(kind: str) -> Iterator[None]:
    """Runs a block that leaves no trace, and that nothing which the script has turned on reaches."""
    module = getattr(torch, kind)
    numbered = [module.current_device()] if hasattr(module, "current_device") and kind != "cpu" else []
    with (
        warnings.catch_warnings(),
        torch.random.fork_rng(numbered, device_type=kind if numbered else "cuda"),
        torch.inference_mode(False),
        torch.enable_grad(),
        # The mode of a region would cast what is tried, and one of the script's would count or record it.
        torch._C.DisableTorchFunction(),
        _without_benchmarks(),
    ):
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _without_benchmarks() -> Iterator[None]:
    """Keeps cuDNN from timing its kernels for a trial, where the script has asked it to."""
    asked = torch.backends.cudnn.benchmark
    if asked:
        torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        if asked:
            torch.backends.cudnn.benchmark = True


def _recurrent(function: Callable[..., Any], gates: int, states: int = 1) -> Trial:
    def trial(make: Make) -> Any:
        weights = [make(gates * _SIZE, _SIZE), make(gates * _SIZE, _SIZE), make(gates * _SIZE), make(gates * _SIZE)]
        state = [make(1, 2, _SIZE) for _ in range(states)]
        # has_biases, num_layers, dropout, train, bidirectional, batch_first
        return function(make(2, 2, _SIZE), state if states > 1 else state[0], weights, True, 1, 0.0, True, False, False)

    return trial


def _cell(function: Callable[..., Any], gates: int, states: int = 1) -> Trial:
    def trial(make: Make) -> Any:
        weights = [make(gates * _SIZE, _SIZE), make(gates * _SIZE, _SIZE), make(gates * _SIZE), make(gates * _SIZE)]
        state = [make(2, _SIZE) for _ in range(states)]
        return function(make(2, _SIZE), state if states > 1 else state[0], *weights)

    return trial


def _convolution(function: Callable[..., Any], dimensions: int) -> Trial:
    space, window = (5,) * dimensions, (3,) * dimensions
    return lambda make: function(make(2, _SIZE, *space), make(_SIZE, _SIZE, *window), make(_SIZE))


def _of(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Trial:
    return lambda make: function(*(make(*shape) for shape in shapes))


UNSCALE = "unscale"
"""The kernel that unscales gradients. CUDA's refuses bfloat16 in torch 2.4 to 2.13: pytorch/pytorch#127176."""


def _unscale(make: Make) -> torch.Tensor:
    gradient = make(_SIZE)
    scalars = torch.zeros(1, device=gradient.device), torch.ones((), device=gradient.device)
    torch._amp_foreach_non_finite_check_and_unscale_([gradient.detach()], *scalars)
    return gradient * 1


_VECTOR, _MATRIX, _BATCH = (_SIZE,), (_SIZE, _SIZE), (2, _SIZE, _SIZE)

TRIALS: Mapping[str, Trial] = {
    "addbmm": _of(torch.addbmm, _MATRIX, _BATCH, _BATCH),
    "addmm": _of(torch.addmm, _MATRIX, _MATRIX, _MATRIX),
    "addmv": _of(torch.addmv, _VECTOR, _MATRIX, _VECTOR),
    "addr": _of(torch.addr, _MATRIX, _VECTOR, _VECTOR),
    "baddbmm": _of(torch.baddbmm, _BATCH, _BATCH, _BATCH),
    "bmm": _of(torch.bmm, _BATCH, _BATCH),
    "chain_matmul": _of(torch.chain_matmul, _MATRIX, _MATRIX, _MATRIX),
    "conv1d": _convolution(F.conv1d, 1),
    "conv2d": _convolution(F.conv2d, 2),
    "conv3d": _convolution(F.conv3d, 3),
    "conv_tbc": _of(torch.conv_tbc, (5, 2, _SIZE), (3, _SIZE, _SIZE), _VECTOR),
    "conv_transpose1d": _convolution(F.conv_transpose1d, 1),
    "conv_transpose2d": _convolution(F.conv_transpose2d, 2),
    "conv_transpose3d": _convolution(F.conv_transpose3d, 3),
    "einsum": lambda make: torch.einsum("bij,bjk->bik", make(*_BATCH), make(*_BATCH)),
    "gru": _recurrent(torch.gru, 3),
    "gru_cell": _cell(torch.gru_cell, 3),
    "linalg.multi_dot": lambda make: torch.linalg.multi_dot([make(*_MATRIX), make(*_MATRIX), make(*_MATRIX)]),
    "linalg.vecdot": _of(torch.linalg.vecdot, _MATRIX, _MATRIX),
    "linear": _of(F.linear, _MATRIX, _MATRIX, _VECTOR),
    "lstm": _recurrent(torch.lstm, 4, states=2),
    "lstm_cell": _cell(torch.lstm_cell, 4, states=2),
    "matmul": _of(torch.matmul, _BATCH, _MATRIX),
    "mm": _of(torch.mm, _MATRIX, _MATRIX),
    "mv": _of(torch.mv, _MATRIX, _VECTOR),
    "prelu": _of(F.prelu, _MATRIX, _VECTOR),
    "rnn_relu": _recurrent(torch.rnn_relu, 1),
    "rnn_relu_cell": _cell(torch.rnn_relu_cell, 1),
    "rnn_tanh": _recurrent(torch.rnn_tanh, 1),
    "rnn_tanh_cell": _cell(torch.rnn_tanh_cell, 1),
    "scaled_dot_product_attention": _of(F.scaled_dot_product_attention, _BATCH, _BATCH, _BATCH),
}
"""How each operation that autocast runs in half is tried, by its name in ``_precision/cast_tables.py``."""
