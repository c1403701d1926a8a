"""Mixed precision and several processes for a training script, inert until ``init`` is called.

import amp_runtime as amp

amp.init(opt_level="O1", ddp=True)
train_loader = amp.prepare_loader(DataLoader(train_set, batch_size=64, shuffle=True))
model = amp.prepare_model(Net().to(amp.device()))
optimizer = amp.optim.AdamW(model.parameters(), lr=1e-3)

for x, y in train_loader:
    optimizer.zero_grad()
    with amp.autocast():
        loss = F.cross_entropy(model(x), y)
    amp.scaler.scale(loss).backward()
    amp.scaler.step(optimizer)
    amp.scaler.update()
"""

from amp_runtime import optim as optim
from amp_runtime._autocast import autocast as autocast
from amp_runtime._casts import float_function as float_function
from amp_runtime._casts import half_function as half_function
from amp_runtime._checkpoints import without_module_prefix as without_module_prefix
from amp_runtime._ddp import DistributedModel as DistributedModel
from amp_runtime._device import device as device
from amp_runtime._distributed import barrier as barrier
from amp_runtime._distributed import is_main_process as is_main_process
from amp_runtime._distributed import local_rank as local_rank
from amp_runtime._distributed import main_process_first as main_process_first
from amp_runtime._distributed import rank as rank
from amp_runtime._distributed import reduce_mean as reduce_mean
from amp_runtime._distributed import reduce_sum as reduce_sum
from amp_runtime._distributed import world_size as world_size
from amp_runtime._init import init as init
from amp_runtime._init import opt_level as opt_level
from amp_runtime._init import shutdown as shutdown
from amp_runtime._loader import prepare_loader as prepare_loader
from amp_runtime._model import prepare_model as prepare_model
from amp_runtime._model import unwrap as unwrap
from amp_runtime._on_main import on_main as on_main
from amp_runtime._scaler import GradientOverflowError as GradientOverflowError
from amp_runtime._scaler import Scaler as Scaler
from amp_runtime._scaler import scaler as scaler
from amp_runtime._seeding import seed_by_rank as seed_by_rank
from amp_runtime._syncbn import SyncBatchNorm as SyncBatchNorm

__all__ = [
    "DistributedModel",
    "GradientOverflowError",
    "Scaler",
    "SyncBatchNorm",
    "autocast",
    "barrier",
    "device",
    "float_function",
    "half_function",
    "init",
    "is_main_process",
    "local_rank",
    "main_process_first",
    "on_main",
    "opt_level",
    "optim",
    "prepare_loader",
    "prepare_model",
    "rank",
    "reduce_mean",
    "reduce_sum",
    "scaler",
    "seed_by_rank",
    "shutdown",
    "unwrap",
    "without_module_prefix",
    "world_size",
]
