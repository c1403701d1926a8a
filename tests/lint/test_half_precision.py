"""What becomes of an operation in half precision: one answer for rules and rewrites."""

from __future__ import annotations

import re

import pytest
import torch
from amp_rules.lattice.half_precision import fate
from amp_rules.lattice.mode import Mode
from amp_rules.lattice.operation_names import KNOWN_OPERATIONS, function_named, layer_named
from amp_rules.torch import half_kernels
from amp_rules.torch.half_precision import BFLOAT16, FLOAT16, FOURIER, UNSUPPORTED, HalfNumbers
from amp_rules.torch.written_numbers import WRITTEN


@pytest.mark.parametrize(("dtype", "held"), [(torch.float16, FLOAT16), (torch.bfloat16, BFLOAT16)])
def test_the_numbers_are_those_of_torch(dtype: torch.dtype, held: HalfNumbers) -> None:
    info = torch.finfo(dtype)
    assert (held.largest, held.eps, held.smallest_normal) == (info.max, info.eps, info.smallest_normal)
    vanishing = torch.tensor([held.rounds_to_zero, held.rounds_to_zero * 1.01], dtype=torch.float64).to(dtype)
    assert (vanishing != 0).tolist() == [False, True]
    last = held.largest_exact_integer
    assert torch.tensor([last, last + 1], dtype=torch.float64).to(dtype).tolist() == [last, last]


@pytest.mark.parametrize(
    ("operation", "device", "autocast", "expected"),
    [
        ("matmul", "cuda", True, "lowered"),
        ("matmul", "cuda", False, "as given"),
        ("softmax", "cuda", True, "float32"),
        ("softmax", "cpu", True, "as given"),
        ("cdist", "cuda", True, "float32"),
        ("cdist", "cuda", False, "no kernel"),
        ("inv", "cuda", True, "no kernel"),
        ("histc", "cuda", False, "no kernel"),
        ("histc", "cpu", False, "as given"),
        ("view_as_complex", "cuda", False, "no kernel"),
        ("inv", "cpu", True, "float32"),
        ("dot", "cuda", True, "widest"),
        ("binary_cross_entropy", "cuda", True, "refused"),
        ("binary_cross_entropy", "cpu", True, "float32"),
        ("binary_cross_entropy", "cuda", False, "as given"),
    ],
)
def test_device_and_autocast_decide(operation: str, device: str, autocast: bool, expected: str) -> None:
    assert fate(operation, Mode("O1", "fp16", device), autocast) == expected


@pytest.mark.parametrize(
    ("name", "function", "layer"),
    [
        ("torch.linalg.inv", "inv", ""),
        ("torch.inverse", "inv", ""),
        ("torch.special.expit", "sigmoid", ""),
        ("torch.nn.BCELoss", "", "binary_cross_entropy"),
        ("torch.nn.functional.binary_cross_entropy", "binary_cross_entropy", ""),
        ("numpy.linalg.inv", "", ""),
        ("torch.distributed.inv", "", ""),
    ],
)
def test_qualified_names_lead_to_operations(name: str, function: str, layer: str) -> None:
    assert (function_named(name), layer_named(name)) == (function, layer)


def test_every_operation_without_a_kernel_is_one_that_the_linter_knows() -> None:
    assert UNSUPPORTED <= KNOWN_OPERATIONS
    assert WRITTEN.keys() <= KNOWN_OPERATIONS


def test_every_operation_without_a_kernel_says_where_that_was_seen() -> None:
    assert half_kernels.SEEN.keys() >= UNSUPPORTED - FOURIER
    for place in half_kernels.SEEN.values():
        assert re.fullmatch(r"[a-z_/]+\.py:\d+", place)
    assert all(written.seen for written in WRITTEN.values())


_OF_A_MATRIX = """
    cholesky cholesky_ex cond det eig eigh eigvals eigvalsh inv inv_ex ldl_factor ldl_factor_ex lu lu_factor
    lu_factor_ex matrix_rank pinv qr slogdet svd svdvals vander
"""
_CALLS = {
    **{name: getattr(torch.linalg, name) for name in _OF_A_MATRIX.split()},
    **{name: getattr(torch.fft, name) for name in half_kernels.CPU_FLOAT16 if hasattr(torch.fft, name)},
    **{name: getattr(torch, name) for name in "cholesky_inverse geqrf logdet pinverse histogram svd_lowrank".split()},
    "pca_lowrank": lambda x: torch.pca_lowrank(x, q=2),
    "cdist": lambda x: torch.cdist(x, x),
    "pdist": torch.nn.functional.pdist,
    "quantile": lambda x: torch.quantile(x, 0.5),
    "nanquantile": lambda x: torch.nanquantile(x, 0.5),
    "matrix_power": lambda x: torch.linalg.matrix_power(x, -2),
    "solve": lambda x: torch.linalg.solve(x, x),
    "solve_ex": lambda x: torch.linalg.solve_ex(x, x),
    "solve_triangular": lambda x: torch.linalg.solve_triangular(x, x, upper=True),
    "triangular_solve": lambda x: torch.triangular_solve(x, x),
    "lstsq": lambda x: torch.linalg.lstsq(x, x),
    "cholesky_solve": lambda x: torch.cholesky_solve(x, x),
    "householder_product": lambda x: torch.linalg.householder_product(x, x[0]),
    "ormqr": lambda x: torch.ormqr(x, x[0], x),
    "polar": lambda x: torch.polar(x, x),
    "complex": lambda x: torch.complex(x, x),
    "view_as_complex": lambda x: torch.view_as_complex(x.reshape(-1, 2)),
    "tensorinv": lambda x: torch.linalg.tensorinv(x, ind=1),
    "tensorsolve": lambda x: torch.linalg.tensorsolve(x, x[0]),
    "ctc_loss": lambda x: torch.nn.functional.ctc_loss(
        x[:, None].log_softmax(-1), torch.tensor([[1, 2]]), torch.tensor([4]), torch.tensor([2])
    ),
    "stft": lambda x: torch.stft(x.flatten(), 4, window=torch.ones(4, dtype=x.dtype), return_complex=True),
    "avg_pool3d": lambda x: torch.nn.functional.avg_pool3d(x[None, None], 1),
    "multi_margin_loss": lambda x: torch.nn.functional.multi_margin_loss(x, torch.tensor([0, 1, 2, 3])),
    "multilabel_margin_loss": lambda x: torch.nn.functional.multilabel_margin_loss(x, torch.ones(4, 4).long()),
    "rrelu": lambda x: torch.nn.functional.rrelu(x, training=True),
    "ndtri": lambda x: torch.special.ndtri(x),
    "histc": lambda x: torch.histc(x),
    "igamma": lambda x: torch.special.gammainc(x, x),
    "igammac": lambda x: torch.special.gammaincc(x, x),
}
_NOT_CALLED = {"histogramdd", "ldl_solve", "lu_solve", "lu_unpack", "matrix_sqrth", "sampled_addmm"}


def test_nearly_all_of_them_are_called() -> None:
    assert half_kernels.SEEN.keys() - _CALLS.keys() == _NOT_CALLED


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", sorted(_CALLS))
def test_the_cpu_refuses_what_the_table_says_and_nothing_else(name: str, dtype: str) -> None:
    matrix = torch.eye(4) * 2 + torch.arange(16.0).reshape(4, 4) / 100
    matrix = matrix @ matrix.T
    _CALLS[name](matrix)
    if name in {"float16": half_kernels.CPU_FLOAT16, "bfloat16": half_kernels.CPU_BFLOAT16}[dtype]:
        with pytest.raises((RuntimeError, NotImplementedError)):
            _CALLS[name](matrix.to(getattr(torch, dtype)))
    elif name != "polar":  # which took both half types no earlier than a later release
        _CALLS[name](matrix.to(getattr(torch, dtype)))


@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_what_becomes_of_a_number_on_the_cpu(name: str) -> None:
    x, mask, at = torch.zeros(4).half(), torch.tensor([True, False, True, False]), torch.tensor([0])

    def setitem() -> torch.Tensor:
        held = x.clone()
        held[mask] = -1e9
        return held

    calls = {
        "fill": lambda: x.clone().fill_(-1e9),
        "full": lambda: torch.full((2,), -1e9, dtype=torch.float16),
        "full_like": lambda: torch.full_like(x, -1e9),
        "new_full": lambda: x.new_full((2,), -1e9),
        "pad": lambda: torch.nn.functional.pad(x, (0, 1), value=-1e9),
        "fill_diagonal": lambda: torch.zeros(2, 2).half().fill_diagonal_(-1e9),
        "masked_fill": lambda: x.masked_fill(mask, -1e9),
        "index_fill": lambda: x.index_fill(0, at, -1e9),
        "scatter": lambda: x.scatter(0, at, -1e9),
        "threshold": lambda: torch.nn.functional.threshold(x, 0.5, -1e9),
        "clamp": lambda: x.clamp(-1e9, 1.0),
        "clamp_min": lambda: x.clamp_min(-1e9),
        "clamp_max": lambda: x.clamp_max(-1e9),
        "hardtanh": lambda: torch.nn.functional.hardtanh(x, -1e9, 1.0),
        "where": lambda: torch.where(mask, x, -1e9),
        "setitem": setitem,
        "nan_to_num": lambda: (x - float("inf")).nan_to_num(neginf=-1e9),
        "tensor": lambda: torch.tensor(-1e9, dtype=torch.float16),
        "as_tensor": lambda: torch.as_tensor(-1e9, dtype=torch.float16),
        "new_tensor": lambda: x.new_tensor(-1e9),
    }
    if WRITTEN[name].cpu == "raises":
        with pytest.raises(RuntimeError, match="without overflow"):
            calls[name]()
    else:
        assert calls[name]().isinf().any()
