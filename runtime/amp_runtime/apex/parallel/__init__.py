"""Apex's parallel wrappers, on any backend of torch.distributed."""

from amp_runtime._distributed.batchnorm import create_syncbn_process_group as create_syncbn_process_group
from amp_runtime.apex.parallel.distributed import DistributedDataParallel as DistributedDataParallel
from amp_runtime.apex.parallel.distributed import Reducer as Reducer
from amp_runtime.apex.parallel.distributed import apply_flat_dist_call as apply_flat_dist_call
from amp_runtime.apex.parallel.distributed import flat_dist_call as flat_dist_call
from amp_runtime.apex.parallel.distributed import flatten as flatten
from amp_runtime.apex.parallel.distributed import split_by_type as split_by_type
from amp_runtime.apex.parallel.distributed import split_half_float_double as split_half_float_double
from amp_runtime.apex.parallel.distributed import unflatten as unflatten
from amp_runtime.apex.parallel.LARC import LARC as LARC  # shadows the module of that name, as in Apex
from amp_runtime.apex.parallel.optimized_sync_batchnorm import SyncBatchNorm as SyncBatchNorm
from amp_runtime.apex.parallel.optimized_sync_batchnorm import convert_syncbn_model as convert_syncbn_model

__all__ = [
    "LARC",
    "DistributedDataParallel",
    "Reducer",
    "SyncBatchNorm",
    "apply_flat_dist_call",
    "convert_syncbn_model",
    "create_syncbn_process_group",
    "flat_dist_call",
    "flatten",
    "split_by_type",
    "split_half_float_double",
    "unflatten",
]
