"""What half precision holds, and what has no half precision: for checks and rewrites alike.

The numbers are those of ``torch.finfo``. The operations without a kernel were found by calling each one below, on the
CPU with torch 2.13, with a 4 x 4 positive definite matrix (or what the operation wants instead) of float32, float16 and
bfloat16: those that took float32 and raised ``RuntimeError`` or ``NotImplementedError`` for both half types are listed.
It took ``bincount cov digamma erfinv fold grid_sample histc
kthvalue lgamma logcumsumexp matrix_exp median mode multinomial polygamma renorm searchsorted trace unique`` in either.

CUDA differs and was not run: there the Fourier transforms take float16 where sizes are powers of two (cuFFT), never
bfloat16; decompositions go to cuSOLVER and MAGMA, which have no half types; ``cdist`` and ``pdist`` are cast to
float32 by autocast. ``quantile`` tests for float and double itself, on any device.

Source: https://docs.pytorch.org/docs/stable/fft.html and
https://docs.pytorch.org/docs/stable/generated/torch.quantile.html
"""

from __future__ import annotations

from typing import NamedTuple


class HalfNumbers(NamedTuple):
    """What a half type holds.

    Attributes:
        largest: the largest finite number.
        eps: the distance from 1 to the next larger number.
        smallest_normal: below this positive number, numbers lose digits.
        rounds_to_zero: the largest positive number that becomes 0.
        largest_exact_integer: the integers up to this one are exact.
    """

    largest: float
    eps: float
    smallest_normal: float
    rounds_to_zero: float
    largest_exact_integer: int


FLOAT16 = HalfNumbers(65504.0, 2.0**-10, 2.0**-14, 2.0**-25, 2048)
BFLOAT16 = HalfNumbers(3.3895313892515355e38, 2.0**-7, 2.0**-126, 2.0**-134, 256)

FOURIER = frozenset("fft ifft fft2 fftn rfft rfft2 rfftn irfft stft".split())
"""Fourier transforms: float16 on CUDA, where sizes are powers of two."""

DECOMPOSITIONS = frozenset(
    """
    cholesky cholesky_inverse cholesky_solve cond det eig eigh eigvals eigvalsh geqrf householder_product inv logdet
    lstsq lu matrix_power matrix_rank pinv qr slogdet solve solve_triangular svd svdvals
    """.split()
)
"""Linear algebra on matrices: no half type anywhere."""

DISTANCES = frozenset({"cdist", "pdist"})
QUANTILES = frozenset({"quantile", "nanquantile"})

UNSUPPORTED = FOURIER | DECOMPOSITIONS | DISTANCES | QUANTILES | {"ctc_loss"}
"""All of them, by the name that the linter gives the operation."""

OF_ONE_TYPE = frozenset({"batch_norm", "instance_norm"})
"""Norms that are given weights and running statistics as arguments, and whose kernels refuse a mixture of types."""

SPARSE_PRODUCTS = frozenset(
    f"torch.{name}"
    for name in "dsmm hspmm saddmm smm sspaddmm spmm sparse.addmm sparse.mm sparse.sampled_addmm".split()
)
"""Products of a sparse matrix. Autocast makes one operand half, and the backward pass raises on the two types."""

PRODUCTS = frozenset({"addmm", "matmul", "mm", "mv"})
"""Products that take a sparse matrix as well."""

SPARSE_MAKERS = frozenset(
    """
    sparse_bsc_tensor sparse_bsr_tensor sparse_compressed_tensor sparse_coo_tensor sparse_csc_tensor sparse_csr_tensor
    to_sparse to_sparse_bsc to_sparse_bsr to_sparse_coo to_sparse_csc to_sparse_csr
    """.split()
)
"""Functions and methods that make a sparse tensor."""

STAYING_SPARSE = frozenset(
    "clone coalesce contiguous cpu cuda detach double float half neg requires_grad_ t to transpose type".split()
)
"""Methods of a sparse tensor that give one."""

TYPES_OF_BITS = frozenset(f"torch.{name}" for name in "int int8 int16 int32 int64 long short uint8".split())
"""Types as which ``view`` gives the bits of a tensor, of which a half one has half as many."""
