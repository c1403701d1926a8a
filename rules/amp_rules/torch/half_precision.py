"""What half precision holds, and what has no half precision: for checks and rewrites alike.

The numbers are those of ``torch.finfo``. Which operations have no half kernel is read off torch's own tests of its
operations, for several releases and both devices (:mod:`amp_rules.torch.half_kernels`); those that the linter names
were run as well, on the CPU with torch 2.13. Of the Fourier transforms, CUDA takes float16 where sizes are powers of
two (cuFFT), and bfloat16 in the newest release of torch alone.

Source: https://docs.pytorch.org/docs/stable/fft.html and
https://docs.pytorch.org/docs/stable/generated/torch.quantile.html
"""

from __future__ import annotations

import re
from typing import NamedTuple

from amp_rules.torch import half_kernels


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

LARGEST_FLOAT32 = 3.4028234663852886e38
"""The largest finite number of float32, which no half type holds."""

FOURIER = frozenset("fft ifft fft2 fftn rfft rfft2 rfftn irfft stft".split())
"""Fourier transforms: float16 on CUDA, where sizes are powers of two."""

COMPLEX_MAKERS = frozenset({"complex", "polar", "view_as_complex"})
"""What makes complex numbers of real ones: of float16 those of a type that torch calls experimental."""

_SPARSE = frozenset({"sampled_addmm"})
NO_KERNEL = {
    ("cpu", "fp16"): half_kernels.CPU_FLOAT16 - _SPARSE | COMPLEX_MAKERS,
    ("cpu", "bf16"): half_kernels.CPU_BFLOAT16 - _SPARSE,
    ("cuda", "fp16"): half_kernels.CUDA_FLOAT16 | FOURIER | COMPLEX_MAKERS,
    ("cuda", "bf16"): half_kernels.CUDA_BFLOAT16 | FOURIER,
}
"""By device and half type: the operations that raise, by the name that the linter gives them."""

UNSUPPORTED = frozenset(name for names in NO_KERNEL.values() for name in names)
"""All of them."""

NO_KERNEL_ANYWHERE = frozenset.intersection(*NO_KERNEL.values()) - FOURIER
"""Those that take neither half type on either device: linear algebra on matrices, quantiles, distances."""

DECOMPOSITIONS = frozenset(
    """
    cholesky cholesky_ex cholesky_inverse cholesky_solve det eig eigh eigvals eigvalsh inv inv_ex inverse ldl_factor
    logdet lstsq lu lu_factor pca_lowrank pinv pinverse qr slogdet solve solve_ex solve_triangular svd svd_lowrank
    svdvals triangular_solve
    """.split()
)
"""Linear algebra on matrices, whose results are as exact as the digits of the matrix and its condition allow."""

FUNCTIONS_OF_LINALG = frozenset(
    "cholesky_ex eig eigh eigvals eigvalsh inv inv_ex ldl_factor lu_factor pinv solve solve_ex svdvals".split()
)
"""Those that are no methods of tensors."""

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

KERNELS_IN_FLOAT32 = frozenset(
    {
        "fast_rnnt.rnnt_loss",
        "fast_rnnt.rnnt_loss_pruned",
        "fast_rnnt.rnnt_loss_simple",
        "fast_rnnt.rnnt_loss_smoothed",
        "geomloss.SamplesLoss",
        "k2.rnnt_loss",
        "k2.rnnt_loss_pruned",
        "k2.rnnt_loss_simple",
        "k2.rnnt_loss_smoothed",
        "warp_rnnt.rnnt_loss",
        "warpctc_pytorch.CTCLoss",
        "warprnnt_pytorch.RNNTLoss",
        "warprnnt_pytorch.rnnt_loss",
    }
)
"""Losses of other libraries that compute in compiled code of their own, which takes FP32 alone; autocast knows none.

That of ``geomloss`` compiles its kernels where it has KeOps; without, its distances are differences of half products.

Source: https://www.kernel-operations.io/geomloss; https://github.com/SeanNaren/warp-ctc; https://github.com/1ytic/warp-rnnt;
https://github.com/HawkAaron/warp-transducer; https://github.com/k2-fsa/k2
"""

KEEPS_TYPE_OF_INPUT = frozenset({"torch.nn.AdaptiveLogSoftmaxWithLoss"})
"""Layers of torch that put what autocast computes in one type into a tensor of their input's, which raises."""

_KERNELS_BY_NAME = frozenset(
    """
    ChamferDistance ChamferDistanceL1 ChamferDistanceL2 ChannelNorm Correlation CubicFeatureSampling DCN DCNv2
    DeformConv DeformConvPack Gridding GriddingReverse ModulatedDeformConv ModulatedDeformConvPack QueryAndGroup
    Resample2d SpatialCorrelationSampler chamfer_2DDist chamfer_3DDist chamfer_5DDist emdModule
    """.split()
)
"""Layers of packages that people compile beside a script: deformable convolutions, correlations of optical flow, sets
of points. Their kernels take FP32 alone, or float16 and not bfloat16, and all operands of one type.

Source: https://github.com/CharlesShang/DCNv2; https://github.com/NVIDIA/flownet2-pytorch;
https://github.com/ClementPinard/Pytorch-Correlation-extension;
https://github.com/ThibaultGROUEIX/ChamferDistancePytorch; https://github.com/hzxie/GRNet;
https://github.com/Colin97/MSN-Point-Cloud-Completion
"""
_OF_POINTS = re.compile(r"Pointnet\w*Module\w*")
"""Layers on sets of points: ``PointnetSAModule`` and its many variants, which group points in the same kernels.

Source: https://github.com/erikwijmans/Pointnet2_PyTorch
"""
_CASTING = ("torch.", "torchvision.", "mmcv.", "mmdet.", "detectron2.", "amp_runtime.", "apex.")
"""Packages whose layers of these names cast what they are given, or are looked at elsewhere."""


def is_layer_in_float32(name: str) -> bool:
    """Whether a class of a package, by its qualified name, is a layer that computes in FP32 kernels of its own."""
    last = name.rpartition(".")[2]
    is_known = last in _KERNELS_BY_NAME or _OF_POINTS.fullmatch(last) is not None
    return is_known and not name.startswith(_CASTING)


_POINT_FUNCTIONS = frozenset(
    """
    ball_query furthest_point_sample gather_operation grouping_operation three_interpolate three_nn
    """.split()
)
_POINT_FUNCTIONS_OF_PYTORCH3D = frozenset(
    {
        "pytorch3d.loss.chamfer.chamfer_distance",
        "pytorch3d.loss.chamfer_distance",
        *(f"pytorch3d.ops.{name}" for name in ("ball_query", "knn_points", "sample_farthest_points")),
        "pytorch3d.ops.ball_query.ball_query",
        "pytorch3d.ops.knn.knn_points",
        "pytorch3d.ops.sample_farthest_points.sample_farthest_points",
    }
)


def is_function_in_float32(name: str) -> bool:
    """Whether a function of a package, by its qualified name, computes on sets of points in FP32 kernels of its own.

    ``pointnet2_utils`` is compiled beside many scripts, and refuses what is not FP32. PyTorch3D's take FP32, or fp16
    and not bfloat16, and all operands of one type.

    Source: https://github.com/erikwijmans/Pointnet2_PyTorch; https://github.com/facebookresearch/pytorch3d
    """
    *package, last = name.split(".")
    in_utils = package[-1:] == ["pointnet2_utils"] and last in _POINT_FUNCTIONS
    return in_utils or name in _POINT_FUNCTIONS_OF_PYTORCH3D


COMPILED_RENDERERS = frozenset(
    [
        *(f"nvdiffrast.torch.{name}" for name in ("antialias", "interpolate", "rasterize", "texture")),
        *(f"gsplat.{name}" for name in ("rasterization", "rasterization_2dgs")),
        *(f"gsplat.rendering.{name}" for name in ("rasterization", "rasterization_2dgs")),
    ]
)
"""Renderers that hand all that they are given to compiled code that takes FP32 alone.

Source: https://github.com/NVlabs/nvdiffrast; https://github.com/nerfstudio-project/gsplat
"""

SCANS = frozenset(
    {"mamba_ssm.ops.selective_scan_interface.selective_scan_fn", "selective_scan.selective_scan_fn"},
)
"""Scans whose compiled code wants all operands of one type, and says no more than that a check failed.

Autocast makes those half that a layer gives, and leaves others in FP32.

Source: https://github.com/state-spaces/mamba
"""
SCANNED = {"u": 0, "delta": 1, "B": 3, "C": 4, "z": 6}
"""The operands of one type, each with its place; ``A``, ``D`` and the bias are FP32 whatever they are."""


PASSES_MESSAGES = frozenset("apply_edges group_apply_edges multi_update_all pull push send_and_recv update_all".split())
"""Methods of a graph of DGL that run its kernels when they are given functions of ``dgl.function``."""

DGL_WITH_HALF = (0, 9)
"""The first version of DGL whose packages compute in half; those before refuse it.

Source: https://www.dgl.ai/dgl_docs/guide/mixed_precision.html
"""

EXACT_IN_LIBRARIES = frozenset(
    [
        *(f"kornia.{name}" for name in ("homography_warp", "warp_affine", "warp_perspective")),
        *(f"kornia.geometry.{name}" for name in ("homography_warp", "warp_affine", "warp_perspective")),
        *(f"kornia.geometry.transform.{name}" for name in ("homography_warp", "warp_affine", "warp_perspective")),
        *(f"kornia.losses.{name}" for name in ("SSIMLoss", "ssim_loss")),
        *(f"piq.{name}" for name in ("MultiScaleSSIMLoss", "SSIMLoss", "multi_scale_ssim", "ssim")),
        *(f"pytorch_msssim.{name}" for name in ("MS_SSIM", "SSIM", "ms_ssim", "ssim")),
        *(f"pytorch_ssim.{name}" for name in ("SSIM", "ssim")),
        "torchmetrics.functional.image.structural_similarity_index_measure",
        "torchmetrics.functional.structural_similarity_index_measure",
    ]
)
"""What libraries compute by products or convolutions that need their digits: places in an image, local variances.

Autocast makes the operands half within the library, where no line of the project says so.

Source: https://kornia.readthedocs.io/en/latest/geometry.transform.html; https://github.com/photosynthesis-team/piq;
https://github.com/VainF/pytorch-msssim; https://github.com/Po-Hsun-Su/pytorch-ssim
"""

SPECTRAL_LAYERS = frozenset(
    f"torchaudio.transforms.{name}" for name in ("InverseMelScale", "LFCC", "MFCC", "MelScale", "MelSpectrogram")
)
"""Layers that multiply a spectrum by a bank of filters.

What they give spans many powers of ten, of which a logarithm is taken as a rule.

Source: https://docs.pytorch.org/audio/stable/transforms.html
"""

_RENDERERS = """
    ImplicitRenderer MeshRasterizer MeshRenderer MeshRendererWithFragments MonteCarloRaysampler MultinomialRaysampler
    NDCMultinomialRaysampler PointsRasterizer PointsRenderer VolumeRenderer
    """.split()
RENDERERS = frozenset(
    f"pytorch3d.renderer.{module}{name}" for module in ("", "implicit.", "mesh.", "points.") for name in _RENDERERS
)
"""Layers that turn and move points by the matrices of cameras, in products that autocast makes half.

A direction is the difference of two places on a ray, which lie hundreds of units from the middle of a scene.

Source: https://pytorch3d.readthedocs.io/en/latest/modules/renderer/index.html
"""

FIXED_STEPS = frozenset("euler midpoint heun2 heun3 rk4 explicit_adams implicit_adams fixed_adams".split())
"""Methods of ``torchdiffeq`` whose steps are those that they are told."""

SOLVERS = frozenset(
    {
        "ot.emd",
        "ot.emd2",
        "ot.sinkhorn",
        "ot.sinkhorn2",
        "torchcde.cdeint",
        "torchdiffeq.odeint",
        "torchdiffeq.odeint_adjoint",
        "torchdiffeq.odeint_event",
        "torchdyn.numerics.odeint",
    }
)
"""Solvers that go on until an error is small, in the types that they are given.

Their tolerances are some 1e-7, where half has steps of 1e-3. An integrator that measures its error of rounded numbers
makes tiny steps, and the products that it adds its stages up with are half under autocast. So is the function that it
integrates, and rounding it is an error like any other: it is FP32 as well.

Source: https://github.com/rtqichen/torchdiffeq; https://github.com/patrick-kidger/torchcde;
https://pythonot.github.io
"""
