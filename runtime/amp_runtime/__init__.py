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
from amp_runtime._core.device import device as device
from amp_runtime._data.loader import prepare_loader as prepare_loader
from amp_runtime._data.seeding import seed_by_rank as seed_by_rank
from amp_runtime._distributed.ddp import DistributedModel as DistributedModel
from amp_runtime._distributed.group import barrier as barrier
from amp_runtime._distributed.group import is_main_process as is_main_process
from amp_runtime._distributed.group import local_rank as local_rank
from amp_runtime._distributed.group import main_process_first as main_process_first
from amp_runtime._distributed.group import rank as rank
from amp_runtime._distributed.group import reduce_mean as reduce_mean
from amp_runtime._distributed.group import reduce_sum as reduce_sum
from amp_runtime._distributed.group import world_size as world_size
from amp_runtime._distributed.on_main import on_main as on_main
from amp_runtime._distributed.syncbn import SyncBatchNorm as SyncBatchNorm
from amp_runtime._init import init as init
from amp_runtime._init import opt_level as opt_level
from amp_runtime._init import shutdown as shutdown
from amp_runtime._precision.autocast import autocast as autocast
from amp_runtime._precision.casts import float_function as float_function
from amp_runtime._precision.casts import half_function as half_function
from amp_runtime._prepare import prepare_model as prepare_model
from amp_runtime._prepare import unwrap as unwrap
from amp_runtime._saving.prefix import without_module_prefix as without_module_prefix
from amp_runtime._scaling.scaler import GradientOverflowError as GradientOverflowError
from amp_runtime._scaling.scaler import Scaler as Scaler
from amp_runtime._scaling.scaler import scaler as scaler

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
