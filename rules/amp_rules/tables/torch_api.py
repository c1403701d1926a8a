"""Names of PyTorch and its neighbours, by what they are for."""

from __future__ import annotations

TORCH_MODULE_BASES = frozenset(
    {
        "torch.nn.Module",
        "torch.nn.modules.Module",
        "torch.nn.modules.module.Module",
        "torch.nn.Sequential",
        "torch.nn.ModuleList",
        "torch.nn.ModuleDict",
        "torch.jit.ScriptModule",
    }
)
"""Classes whose subclasses are models."""

MODULE_BASE_SUFFIXES = ("PreTrainedModel", "Module", "MessagePassing", "ModelMixin", "LightningModule")
"""Last parts of library classes whose subclasses are models (transformers, torch_geometric, ...)."""

RETURNS_RECEIVER = frozenset(
    [
        "to",
        "cuda",
        "cpu",
        "train",
        "eval",
        "float",
        "double",
        "half",
        "bfloat16",
        "apply",
        "requires_grad_",
        "share_memory",
        "type",
        "to_empty",
        "contiguous",
        "clone",
        "detach",
    ]
)
"""Methods of modules that give the module itself."""

RETURNS_FIRST_ARGUMENT = frozenset(
    {
        "torch.autograd.Variable",
        "torch.autograd.variable.Variable",
        "torch.nn.DataParallel",
        "torch.nn.parallel.DataParallel",
        "torch.nn.parallel.data_parallel.DataParallel",
        "torch.nn.parallel.DistributedDataParallel",
        "torch.nn.parallel.distributed.DistributedDataParallel",
        "torch.nn.SyncBatchNorm.convert_sync_batchnorm",
        "amp_runtime.convert_sync_batchnorm",
        "amp_runtime.prepare_model",
        "amp_runtime.prepare_loader",
        "amp_runtime.optim.LARC",
        "torch.jit.script",
        "torch.jit.trace",
        "torch.compile",
        "torch.nn.utils.weight_norm",
        "torch.nn.utils.spectral_norm",
        "tqdm.tqdm",
        "tqdm.auto.tqdm",
        "tqdm.std.tqdm",
        "tqdm.notebook.tqdm",
        "tqdm.tqdm_notebook",
        "progressbar.progressbar",
        "rich.progress.track",
        "builtins.iter",
        "builtins.reversed",
        "builtins.sorted",
        "builtins.list",
        "builtins.tuple",
        "builtins.filter",
        "itertools.cycle",
        "itertools.islice",
        "functools.partial",
        "typing.cast",
        "weakref.proxy",
    }
)
"""Calls that give back what they were given, or a view of it."""

COPIES_FIRST_ARGUMENT = frozenset({"copy.deepcopy", "copy.copy"})
"""Calls that give a new object of the same kind."""

DATA_PARALLEL = frozenset(
    {
        "torch.nn.DataParallel",
        "torch.nn.parallel.DataParallel",
        "torch.nn.parallel.data_parallel.DataParallel",
    }
)

DISTRIBUTED_DATA_PARALLEL = frozenset(
    {
        "torch.nn.parallel.DistributedDataParallel",
        "torch.nn.parallel.distributed.DistributedDataParallel",
        "torch.nn.DistributedDataParallel",
    }
)

OPTIMIZERS = frozenset(
    [
        "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "LBFGS", "Muon", "NAdam", "Optimizer",
        "RAdam", "RMSprop", "Rprop", "SGD", "SparseAdam",
    ]
)  # fmt: skip
OPTIMIZER_PREFIXES = ("torch.optim.", "amp_runtime.optim.")
SCHEDULER_PREFIXES = ("torch.optim.lr_scheduler.", "torch.optim.swa_utils.")
THIRD_PARTY_OPTIMIZERS = frozenset(
    {
        "transformers.AdamW",
        "transformers.Adafactor",
        "transformers.optimization.AdamW",
        "pytorch_pretrained_bert.BertAdam",
        "pytorch_pretrained_bert.optimization.BertAdam",
        "pytorch_transformers.AdamW",
        "torch_optimizer.RAdam",
        "timm.optim.create_optimizer",
        "timm.optim.create_optimizer_v2",
        "lion_pytorch.Lion",
        "adamp.AdamP",
    }
)

NAMESPACES = frozenset(
    {
        "types.SimpleNamespace",
        "argparse.Namespace",
        "easydict.EasyDict",
        "addict.Dict",
        "munch.Munch",
        "munch.DefaultMunch",
        "box.Box",
        "ml_collections.ConfigDict",
        "omegaconf.OmegaConf.create",
    }
)
"""Classes whose objects have what they are given by keyword, or the items of a dictionary, as attributes."""

CONTAINERS = frozenset(
    {
        "builtins.dict",
        "builtins.list",
        "collections.OrderedDict",
        "collections.defaultdict",
        "collections.deque",
        "collections.UserDict",
        "torch.nn.ModuleDict",
        "torch.nn.ModuleList",
    }
)
"""Classes whose objects hold others by index or name."""

CONFIG_LOADERS = frozenset(
    {"json.load", "json.loads", "yaml.load", "yaml.safe_load", "yaml.full_load", "toml.load", "toml.loads"}
)
"""Calls that give settings read from a file: dictionaries of dictionaries."""

LOADER_CLASSES = frozenset({"DataLoader"})
LOADER_PREFIXES = ("torch.utils.data", "torch_geometric", "dgl.dataloading", "monai.data")

FUSED_OPTIMIZERS = frozenset({"Adam", "AdamW", "SGD", "Adagrad"})
"""Optimizers of torch that have a fused kernel, and a class of the same name in ``amp_runtime.optim``."""

CLIP_FUNCTIONS = frozenset(
    {
        "torch.nn.utils.clip_grad_norm_",
        "torch.nn.utils.clip_grad_norm",
        "torch.nn.utils.clip_grad_value_",
        "torch.nn.utils.clip_grad.clip_grad_norm_",
        "torch.nn.utils.clip_grad.clip_grad_norm",
        "torch.nn.utils.clip_grad.clip_grad_value_",
        "torch.nn.utils.get_total_norm",
        "torch.nn.utils.clip_grads_with_norm_",
    }
)
"""Functions that read or change gradients of the parameters they are given."""

PROBABILITY_LOSSES = frozenset({"BCELoss"})
PROBABILITY_LOSS_FUNCTIONS = frozenset({"torch.nn.functional.binary_cross_entropy", "torch.binary_cross_entropy"})
"""Losses of probabilities: autocast on CUDA refuses them, in half they lose the tails."""

FUNCTIONAL_NORMS = frozenset(
    {
        "torch.nn.functional.batch_norm",
        "torch.nn.functional.instance_norm",
        "torch.batch_norm",
        "torch.instance_norm",
    }
)
"""Norms that are given weights and running statistics, which must have one type."""

FETCHERS = frozenset(
    {
        "urllib.request.urlopen",
        "urllib.request.urlretrieve",
        "requests.get",
        "wget.download",
        "gdown.download",
        "torch.hub.load",
        "torch.hub.load_state_dict_from_url",
        "torch.hub.download_url_to_file",
        "torch.utils.model_zoo.load_url",
        "torchvision.datasets.utils.download_url",
    }
)
"""Calls that download."""

TENSOR_MAKERS = frozenset(
    {
        "torch.nn.Parameter",
        "torch.nn.parameter.Parameter",
        *(f"torch.{name}" for name in ("tensor", "zeros", "ones", "full", "rand", "randn", "empty", "eye", "normal")),
    }
)
"""Calls that make a tensor of its own."""

SIGMOIDS = frozenset({"torch.sigmoid", "torch.nn.functional.sigmoid", "torch.special.expit"})

SAVERS = frozenset(
    {
        "torch.save",
        "torchvision.utils.save_image",
        "torchvision.utils.utils.save_image",
        "torch.jit.save",
        "torch.onnx.export",
        "numpy.save",
        "numpy.savez",
        "numpy.savez_compressed",
        "numpy.savetxt",
        "pickle.dump",
        "json.dump",
        "yaml.dump",
        "joblib.dump",
        "shutil.copy",
        "shutil.copyfile",
        "shutil.copy2",
        "matplotlib.pyplot.savefig",
        "matplotlib.pyplot.show",
        "matplotlib.pyplot.pause",
        "imageio.imwrite",
        "imageio.imsave",
        "cv2.imwrite",
        "scipy.io.savemat",
        "scipy.misc.imsave",
    }
)
"""Calls that write a file or show a window: with several processes only one may."""

WRITERS = frozenset(
    {
        "torch.utils.tensorboard.SummaryWriter",
        "torch.utils.tensorboard.writer.SummaryWriter",
        "tensorboardX.SummaryWriter",
        "visdom.Visdom",
        "tensorboard_logger.Logger",
    }
)
"""Logging clients, of which one per run is wanted."""

TORCH_AMP = (
    "torch.cuda.amp",
    "torch.amp",
    "torch.autocast",
    "torch.cpu.amp",
)
OWN_PRECISION = (*TORCH_AMP, "apex")
SCALERS = frozenset(
    {
        "amp_runtime.scaler",
        "torch.GradScaler",
        "torch.amp.GradScaler",
        "torch.amp.grad_scaler.GradScaler",
        "torch.cuda.amp.GradScaler",
        "torch.cuda.amp.grad_scaler.GradScaler",
        "torch.cpu.amp.GradScaler",
    }
)
"""Scalers of losses."""

OWN_SHARDING = (
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.distributed._composable",
    "torch.distributed.pipelining",
    "torch.distributed.pipeline",
    "torch.distributed.rpc",
)
"""Parts of torch that keep a share of a gradient on each rank, which a scaler must know of."""

OWN_DISTRIBUTION = (
    "torch.distributed",
    "torch.nn.parallel.DistributedDataParallel",
    "torch.nn.parallel.distributed",
    "torch.nn.parallel.distributed_c10d",
    "apex.parallel",
    "amp_runtime.apex.parallel",
    "horovod",
    "torch_xla",
    "torch.utils.data.distributed",
)
SPREAD_BY_HAND = frozenset(
    f"torch.nn.parallel.{name}"
    for name in (
        "data_parallel", "parallel_apply", "replicate",
        "data_parallel.data_parallel", "parallel_apply.parallel_apply", "replicate.replicate",
    )
)  # fmt: skip
"""What runs one model on several GPUs of one process."""

SPREAD_IN_ONE_CALL = frozenset({"torch.nn.parallel.data_parallel", "torch.nn.parallel.data_parallel.data_parallel"})
"""The one of them that takes the model and its input, and gives what the model gives."""

GRADIENT_HOOKS = frozenset(
    {
        "register_hook",
        "register_backward_hook",
        "register_full_backward_hook",
        "register_full_backward_pre_hook",
        "register_post_accumulate_grad_hook",
    }
)
"""Methods of tensors and modules whose hooks are given gradients."""

MADE_BY_SETTINGS = frozenset({"hydra.utils.instantiate", "hydra.utils.call", "pydoc.locate"})
"""Functions that make what a dotted path in the settings names."""

OWN_FRAMEWORK = (
    "accelerate",
    "pytorch_lightning",
    "lightning",
    "deepspeed",
    "ignite",
    "catalyst",
    "fastai",
    "ray.train",
    "composer",
    "colossalai",
    "transformers.Trainer",
    "torchtnt",
    "skorch",
    "fairscale",
)
