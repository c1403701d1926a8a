"""What becomes of an operation in half precision: one answer for rules and rewrites."""

from __future__ import annotations

import pytest
import torch
from amp_rules.lattice.half_precision import fate
from amp_rules.lattice.mode import Mode
from amp_rules.lattice.torch_operations import KNOWN_OPERATIONS, function_named, layer_named
from amp_rules.torch.half_precision import BFLOAT16, FLOAT16, UNSUPPORTED, HalfNumbers


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
