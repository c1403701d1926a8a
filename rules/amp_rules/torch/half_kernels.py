"""Operations without a half kernel: written by ``scripts/torch_tables.py``, not by hand.

Torch's own tests of its operations list the types that each takes, on the CPU and on CUDA. An operation stands here
where it takes float32 and none of the releases 2.4.0, 2.7.0, 2.13.0, 2.15.0 takes the half type. That an operation
takes float16 need not mean every size: Fourier transforms on CUDA take powers of two.
"""

from __future__ import annotations

CPU_FLOAT16 = frozenset(
    """
    avg_pool3d cdist cholesky cholesky_ex cholesky_inverse cholesky_solve cond ctc_loss det eig eigh eigvals
    eigvalsh fft fft2 fftn geqrf hfft hfft2 hfftn histogram histogramdd householder_product ifft ifft2 ifftn
    ihfft ihfft2 ihfftn inv inv_ex irfft irfft2 irfftn ldl_factor ldl_factor_ex ldl_solve logdet lstsq lu
    lu_factor lu_factor_ex lu_solve lu_unpack matrix_power matrix_rank matrix_sqrth multi_margin_loss
    multilabel_margin_loss nanquantile ndtri ormqr pca_lowrank pdist pinv pinverse qr quantile rfft rfft2 rfftn
    rrelu sampled_addmm slogdet solve solve_ex solve_triangular stft svd svd_lowrank svdvals tensorinv
    tensorsolve triangular_solve vander
    """.split()
)
CPU_BFLOAT16 = frozenset(
    """
    avg_pool3d cdist cholesky cholesky_ex cholesky_inverse cholesky_solve complex cond ctc_loss det eig eigh
    eigvals eigvalsh fft fft2 fftn geqrf hfft hfft2 hfftn histogram histogramdd householder_product ifft ifft2
    ifftn ihfft ihfft2 ihfftn inv inv_ex irfft irfft2 irfftn ldl_factor ldl_factor_ex ldl_solve logdet lstsq lu
    lu_factor lu_factor_ex lu_solve lu_unpack matrix_power matrix_rank matrix_sqrth multi_margin_loss
    multilabel_margin_loss nanquantile ndtri ormqr pca_lowrank pdist pinv pinverse polar qr quantile rfft rfft2
    rfftn sampled_addmm slogdet solve solve_ex solve_triangular stft svd svd_lowrank svdvals tensorinv
    tensorsolve triangular_solve vander view_as_complex
    """.split()
)
CUDA_FLOAT16 = frozenset(
    """
    cdist cholesky cholesky_ex cholesky_inverse cholesky_solve cond ctc_loss det eig eigh eigvals eigvalsh geqrf
    histc householder_product igamma igammac inv inv_ex ldl_factor ldl_factor_ex ldl_solve logdet lstsq lu
    lu_factor lu_factor_ex lu_solve lu_unpack matrix_power matrix_rank matrix_sqrth nanquantile ndtri ormqr
    pca_lowrank pdist pinv pinverse qr quantile slogdet solve solve_ex solve_triangular stft svd svd_lowrank
    svdvals tensorinv tensorsolve triangular_solve vander
    """.split()
)
CUDA_BFLOAT16 = frozenset(
    """
    cdist cholesky cholesky_ex cholesky_inverse cholesky_solve complex cond ctc_loss det eig eigh eigvals
    eigvalsh geqrf histc householder_product igamma igammac inv inv_ex ldl_factor ldl_factor_ex ldl_solve logdet
    lstsq lu lu_factor lu_factor_ex lu_solve lu_unpack matrix_power matrix_rank matrix_sqrth nanquantile ndtri
    ormqr pca_lowrank pdist pinv pinverse polar qr quantile slogdet solve solve_ex solve_triangular svd
    svd_lowrank svdvals tensorinv tensorsolve triangular_solve vander view_as_complex
    """.split()
)

SEEN = {
    "avg_pool3d": "common_methods_invocations.py:15864",
    "cdist": "common_methods_invocations.py:13169",
    "cholesky": "opinfo/definitions/linalg.py:1323",
    "cholesky_ex": "opinfo/definitions/linalg.py:1335",
    "cholesky_inverse": "common_methods_invocations.py:13202",
    "cholesky_solve": "common_methods_invocations.py:13248",
    "complex": "common_methods_invocations.py:13431",
    "cond": "opinfo/definitions/linalg.py:1377",
    "ctc_loss": "common_methods_invocations.py:22676",
    "det": "opinfo/definitions/linalg.py:1278",
    "eig": "opinfo/definitions/linalg.py:1411",
    "eigh": "opinfo/definitions/linalg.py:1503",
    "eigvals": "opinfo/definitions/linalg.py:1461",
    "eigvalsh": "opinfo/definitions/linalg.py:1542",
    "fft": "opinfo/definitions/fft.py:141",
    "fft2": "opinfo/definitions/fft.py:161",
    "fftn": "opinfo/definitions/fft.py:192",
    "geqrf": "common_methods_invocations.py:14254",
    "hfft": "opinfo/definitions/fft.py:216",
    "hfft2": "opinfo/definitions/fft.py:249",
    "hfftn": "opinfo/definitions/fft.py:295",
    "histc": "common_methods_invocations.py:20648",
    "histogram": "common_methods_invocations.py:20607",
    "histogramdd": "common_methods_invocations.py:20633",
    "householder_product": "opinfo/definitions/linalg.py:1581",
    "ifft": "opinfo/definitions/fft.py:399",
    "ifft2": "opinfo/definitions/fft.py:419",
    "ifftn": "opinfo/definitions/fft.py:446",
    "igamma": "common_methods_invocations.py:17905",
    "igammac": "common_methods_invocations.py:17946",
    "ihfft": "opinfo/definitions/fft.py:474",
    "ihfft2": "opinfo/definitions/fft.py:493",
    "ihfftn": "opinfo/definitions/fft.py:523",
    "inv": "opinfo/definitions/linalg.py:2142",
    "inv_ex": "opinfo/definitions/linalg.py:2186",
    "irfft": "opinfo/definitions/fft.py:552",
    "irfft2": "opinfo/definitions/fft.py:573",
    "irfftn": "opinfo/definitions/fft.py:601",
    "ldl_factor": "opinfo/definitions/linalg.py:1646",
    "ldl_factor_ex": "opinfo/definitions/linalg.py:1658",
    "ldl_solve": "opinfo/definitions/linalg.py:1679",
    "logdet": "common_methods_invocations.py:21464",
    "lstsq": "opinfo/definitions/linalg.py:1699",
    "lu": "opinfo/definitions/linalg.py:2091",
    "lu_factor": "opinfo/definitions/linalg.py:2048",
    "lu_factor_ex": "opinfo/definitions/linalg.py:2070",
    "lu_solve": "opinfo/definitions/linalg.py:2121",
    "lu_unpack": "common_methods_invocations.py:14595",
    "matrix_power": "opinfo/definitions/linalg.py:1775",
    "matrix_rank": "opinfo/definitions/linalg.py:2367",
    "matrix_sqrth": "opinfo/definitions/linalg.py:1301",
    "multi_margin_loss": "common_methods_invocations.py:16732",
    "multilabel_margin_loss": "common_methods_invocations.py:16754",
    "nanquantile": "common_methods_invocations.py:14945",
    "ndtri": "opinfo/definitions/special.py:327",
    "ormqr": "common_methods_invocations.py:18189",
    "pca_lowrank": "common_methods_invocations.py:19317",
    "pdist": "common_methods_invocations.py:22792",
    "pinv": "opinfo/definitions/linalg.py:2424",
    "pinverse": "common_methods_invocations.py:19568",
    "polar": "opinfo/definitions/linalg.py:1976",
    "qr": "opinfo/definitions/linalg.py:1963",
    "quantile": "common_methods_invocations.py:14936",
    "rfft": "opinfo/definitions/fft.py:331",
    "rfft2": "opinfo/definitions/fft.py:349",
    "rfftn": "opinfo/definitions/fft.py:370",
    "rrelu": "common_methods_invocations.py:17251",
    "sampled_addmm": "common_methods_invocations.py:14077",
    "slogdet": "opinfo/definitions/linalg.py:2004",
    "solve": "opinfo/definitions/linalg.py:2230",
    "solve_ex": "opinfo/definitions/linalg.py:2273",
    "solve_triangular": "opinfo/definitions/linalg.py:2314",
    "stft": "common_methods_invocations.py:13985",
    "svd": "opinfo/definitions/linalg.py:2556",
    "svd_lowrank": "common_methods_invocations.py:19281",
    "svdvals": "opinfo/definitions/linalg.py:2594",
    "tensorinv": "opinfo/definitions/linalg.py:2627",
    "tensorsolve": "opinfo/definitions/linalg.py:2678",
    "triangular_solve": "common_methods_invocations.py:18967",
    "vander": "opinfo/definitions/linalg.py:2015",
    "view_as_complex": "common_methods_invocations.py:13417",
}
"""Where the tests of 2.15.0, below ``torch/testing/_internal/``, list the types of each of them."""
