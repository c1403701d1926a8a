"""Operations of torch that refuse half tensors.

Made by calling each operation below, on the CPU with torch 2.13, with a 4 x 4 positive definite matrix (or what the
operation wants instead) of float32, float16 and bfloat16: those that took float32 and raised ``RuntimeError`` or
``NotImplementedError`` for both half types are listed. It took ``bincount cov digamma erfinv fold grid_sample histc
kthvalue lgamma logcumsumexp matrix_exp median mode multinomial polygamma renorm searchsorted trace unique`` in either.

CUDA differs and was not run: there the Fourier transforms take float16 where sizes are powers of two (cuFFT), never
bfloat16; decompositions go to cuSOLVER and MAGMA, which have no half types; ``cdist`` and ``pdist`` are cast to
float32 by autocast. ``quantile`` tests for float and double itself, on any device.

Source: https://docs.pytorch.org/docs/stable/fft.html and
https://docs.pytorch.org/docs/stable/generated/torch.quantile.html
"""

from __future__ import annotations

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
