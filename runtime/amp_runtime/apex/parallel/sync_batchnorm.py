"""``apex.parallel.sync_batchnorm``."""

from amp_runtime.apex.parallel.optimized_sync_batchnorm import SyncBatchNorm as SyncBatchNorm
