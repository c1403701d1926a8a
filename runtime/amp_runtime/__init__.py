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
from amp_runtime._data.evaluation import gather_evaluated as gather_evaluated
from amp_runtime._data.evaluation import share_evaluation as share_evaluation
from amp_runtime._data.evaluation import sum_evaluated as sum_evaluated
from amp_runtime._data.lengths import share_of as share_of
from amp_runtime._data.lengths import sum_of_shares as sum_of_shares
from amp_runtime._data.loader import prepare_loader as prepare_loader
from amp_runtime._data.order import same_hash as same_hash
from amp_runtime._data.order import same_order as same_order
from amp_runtime._data.position import load_loader_state as load_loader_state
from amp_runtime._data.position import loader_state as loader_state
from amp_runtime._data.streams import drawn_alike as drawn_alike
from amp_runtime._data.streams import same_seed as same_seed
from amp_runtime._data.streams import seed_alike as seed_alike
from amp_runtime._data.streams import seed_by_rank as seed_by_rank
from amp_runtime._data.streams import seed_of_rank as seed_of_rank
from amp_runtime._distributed.batchnorm import SyncBatchNorm as SyncBatchNorm
from amp_runtime._distributed.batchnorm import convert_sync_batchnorm as convert_sync_batchnorm
from amp_runtime._distributed.batchnorm import create_syncbn_process_group as create_syncbn_process_group
from amp_runtime._distributed.ddp import DistributedModel as DistributedModel
from amp_runtime._distributed.ddp import no_sync as no_sync
from amp_runtime._distributed.embeddings import shard_embedding as shard_embedding
from amp_runtime._distributed.group import barrier as barrier
from amp_runtime._distributed.group import from_main_process as from_main_process
from amp_runtime._distributed.group import is_main_process as is_main_process
from amp_runtime._distributed.group import local_rank as local_rank
from amp_runtime._distributed.group import main_process_first as main_process_first
from amp_runtime._distributed.group import rank as rank
from amp_runtime._distributed.group import world_size as world_size
from amp_runtime._distributed.metrics import gather as gather
from amp_runtime._distributed.metrics import reduce_max as reduce_max
from amp_runtime._distributed.metrics import reduce_mean as reduce_mean
from amp_runtime._distributed.metrics import reduce_min as reduce_min
from amp_runtime._distributed.metrics import reduce_sum as reduce_sum
from amp_runtime._distributed.module_prefix import keep_module_prefix as keep_module_prefix
from amp_runtime._distributed.on_main import on_main as on_main
from amp_runtime._distributed.reducer import Reducer as Reducer
from amp_runtime._distributed.shadow import shadowing as shadowing
from amp_runtime._ema import EMA as EMA
from amp_runtime._init import init as init
from amp_runtime._init import opt_level as opt_level
from amp_runtime._init import shutdown as shutdown
from amp_runtime._precision.autocast import autocast as autocast
from amp_runtime._precision.casts import float_function as float_function
from amp_runtime._precision.casts import half_function as half_function
from amp_runtime._precision.casts import promote_function as promote_function
from amp_runtime._precision.inference import InferenceMismatchError as InferenceMismatchError
from amp_runtime._precision.inference import InferenceReport as InferenceReport
from amp_runtime._precision.inference import check_inference as check_inference
from amp_runtime._precision.inference import inference as inference
from amp_runtime._precision.masters import master_params as master_params
from amp_runtime._precision.policy import disable_casts as disable_casts
from amp_runtime._precision.registered import register_float_function as register_float_function
from amp_runtime._precision.registered import register_half_function as register_half_function
from amp_runtime._precision.registered import register_promote_function as register_promote_function
from amp_runtime._precision.threads import in_this_region as in_this_region
from amp_runtime._precision.widening import at_least_float32 as at_least_float32
from amp_runtime._prepare import prepare_model as prepare_model
from amp_runtime._prepare import unwrap as unwrap
from amp_runtime._quantizing.files import load_quantized as load_quantized
from amp_runtime._quantizing.files import save_quantized as save_quantized
from amp_runtime._quantizing.making import convert_quantized as convert_quantized
from amp_runtime._quantizing.making import quantize as quantize
from amp_runtime._quantizing.models import PreparedModel as PreparedModel
from amp_runtime._quantizing.models import QuantizedModel as QuantizedModel
from amp_runtime._saving.full import full_state_dict as full_state_dict
from amp_runtime._saving.load import load_checkpoint as load_checkpoint
from amp_runtime._saving.prefix import without_module_prefix as without_module_prefix
from amp_runtime._saving.save import save_checkpoint as save_checkpoint
from amp_runtime._scaling.clipping import clip_grad_norm_ as clip_grad_norm_
from amp_runtime._scaling.clipping import clip_grad_value_ as clip_grad_value_
from amp_runtime._scaling.overflow import OverflowLocation as OverflowLocation
from amp_runtime._scaling.scaler import GradientOverflowError as GradientOverflowError
from amp_runtime._scaling.scaler import Scaler as Scaler
from amp_runtime._scaling.scaler import scaler as scaler
from amp_runtime._timing.timer import StepTimer as StepTimer
from amp_runtime._version import __version__ as __version__

__all__ = [
    "EMA",
    "DistributedModel",
    "GradientOverflowError",
    "InferenceMismatchError",
    "InferenceReport",
    "OverflowLocation",
    "PreparedModel",
    "QuantizedModel",
    "Reducer",
    "Scaler",
    "StepTimer",
    "SyncBatchNorm",
    "at_least_float32",
    "autocast",
    "barrier",
    "check_inference",
    "clip_grad_norm_",
    "clip_grad_value_",
    "convert_quantized",
    "convert_sync_batchnorm",
    "create_syncbn_process_group",
    "device",
    "disable_casts",
    "drawn_alike",
    "float_function",
    "from_main_process",
    "full_state_dict",
    "gather",
    "gather_evaluated",
    "half_function",
    "in_this_region",
    "inference",
    "init",
    "is_main_process",
    "keep_module_prefix",
    "load_checkpoint",
    "load_loader_state",
    "load_quantized",
    "loader_state",
    "local_rank",
    "main_process_first",
    "master_params",
    "no_sync",
    "on_main",
    "opt_level",
    "optim",
    "prepare_loader",
    "prepare_model",
    "promote_function",
    "quantize",
    "rank",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_sum",
    "register_float_function",
    "register_half_function",
    "register_promote_function",
    "same_hash",
    "same_order",
    "same_seed",
    "save_checkpoint",
    "save_quantized",
    "scaler",
    "seed_alike",
    "seed_by_rank",
    "seed_of_rank",
    "shadowing",
    "shard_embedding",
    "share_evaluation",
    "share_of",
    "shutdown",
    "sum_evaluated",
    "sum_of_shares",
    "unwrap",
    "without_module_prefix",
    "world_size",
]
