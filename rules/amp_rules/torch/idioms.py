"""Idioms: what is decided by the spelling of a name, and by nothing better.

Everything else is resolved through imports, values and roles. The linter may use these to support a finding or to keep
silent. Where a script joins its processes itself, names for the rank and for several processes count for rewrites too,
mostly to leave code alone: see :mod:`amp_rules.plan.own_ddp`. Of a project's own names a rewrite rests on one in two
more places, and both leave code alone: parameter groups of an optimizer are not merged in a file where something called
``optim`` counts on them, and a model is prepared after a function called ``init...`` that is given nothing but the
model. Each says where the spelling comes from. What the names of parameters say of types is in
:mod:`amp_rules.lattice.parameter_names`.
"""

from __future__ import annotations

import re

NAMED_OPTIMIZER = re.compile(r"(?:^|_)(?:opt|optim)(?:$|s$|_|[A-Z0-9])|[oO]ptimi[sz]er")
"""Variables and attributes of optimizers: ``optimizer``, ``opt_g``, ``self.optim``. The tutorials of PyTorch and nearly
all of 373 public training scripts call theirs so.
"""

NAMED_OPTIMIZER_BUILDER = re.compile(r"^(build|create|make|get|init|setup|configure|construct)_(\w+_)?optim(izer)?s?$")
"""Functions that make an optimizer of the model that they are given: ``build_optimizer`` (Detectron2, MMCV)."""

NAMED_WRAPPER = re.compile(r"accelerat|fabric|deepspeed|engine$|strategy|trainer$|runner$|plugin$|booster|manager$")
"""Objects of libraries that run backward passes and steps: ``accelerator``, ``fabric``, ``model_engine`` (DeepSpeed),
``strategy`` (Lightning), ``booster`` (Colossal-AI).
"""

NAMED_JOIN = re.compile(r"^(init|setup|initialize)_?(torch_)?(dist|ddp|process_group)", re.IGNORECASE)
"""Functions of projects that join a process group: ``init_distributed_mode`` (torchvision), ``setup_ddp``."""

NAMED_LAUNCHER = re.compile(r"slurm|\bo?mpi|launcher", re.IGNORECASE)
"""Tests that ask what starts the processes: ``args.launcher == "slurm"``."""

NAMED_RANK = re.compile(
    r"rank|(is|on)_?(main|master|primary|chief|root|leader|writer)|(main|master|chief)_?(proc|node|only)"
    r"|world_?size|distributed|process_(zero|index|id)|proc_id|node_id|^ddp$|local_zero|coordinator"
    r"|first_(process|proc|worker)$|^(is_?)?(master|main|primary|chief)$|n_?gpus?$|num_?gpus|nprocs|num_processes"
    r"|standalone",
    re.IGNORECASE,
)
"""What tells ranks apart: ``args.local_rank``, ``is_main_process()``, ``world_size``, ``args.gpu == 0`` after it."""

NAMED_LOCAL_RANK = re.compile(r"local_?(rank|main|master|zero|process|leader)", re.IGNORECASE)
"""What tells the processes of one machine apart: ``args.local_rank``, ``LOCAL_RANK`` (torchrun), and
``is_local_main_process`` (Accelerate).
"""

NAMED_SEVERAL = re.compile(
    r"^_?(training_|train_)?(is_|use_|with_|enable_|do_)?(multi_?processing_?)?(distributed|dist|ddp)(_training|_mode|_run|_train)?$"
    r"|^(is_)?(dist_|distributed_)?(is_)?(avail|available)?(_and_)?(is_)?initialized$|^(get_)?world_?size$"
    r"|^(n_?procs?|num_(processes|replicas|procs)|nprocs)$",
    re.IGNORECASE,
)
"""What says that there are several processes, or how many: ``args.distributed`` (torchvision), ``world_size``."""

NAMED_COUNT = re.compile(
    r"^(get_)?world(_?size)?$|^n_?(gpus?|procs?)$|^num_?(gpus?|procs?|processes|replicas)$", re.IGNORECASE
)
"""Numbers of processes or GPUs: ``if cfg.NUM_GPUS:`` asks for no rank, and holds where there are several."""

NAMED_OF_SEVERAL = re.compile(r"^(DDP|Distributed(DataParallel|Sampler))$")
"""Classes of what there is where there are several processes: ``isinstance(model, DDP)``."""

NAMED_FIRST_RANK = re.compile(r"is_?(local_?)?(main|master|primary)(_?process)?$|is_rank_?(zero|0)$", re.IGNORECASE)
"""Functions and properties that hold on one rank alone: ``is_main_process``, ``is_rank_zero``."""

NAMED_DEVICE = re.compile(r"gpu|device|proc|^pid$|worker|^cuda|^id$", re.IGNORECASE)
"""Numbers of devices, which launchers of one process a GPU give for the rank: ``gpu`` in PyTorch's ImageNet example."""

NAMED_OWN_PART = re.compile(
    r"(^|_)(gpu|device|pid|worker|proc|process|node|host|machine|shard)(_?(id|idx|index|num|number|name))?$",
    re.IGNORECASE,
)
"""What puts the process into a path: ``f"log_{gpu}.txt"``, ``worker_id``, ``shard_id``."""

NAMED_OWN_HOLE = re.compile(r"(rank|gpu|worker|proc)[-_]?(\{|%[dis])", re.IGNORECASE)
"""Texts that a number of the process is put into: ``"rank{}.log".format(number)``, ``"gpu_%d.txt"``."""

NAMED_FILE_WRITER = re.compile(
    r"^(save|write|dump|export)_(json|pickle|pkl|yaml|yml|csv|txt|text|np[yz]|image|img|fig|figure|model|weights|state|"
    r"checkpoint|ckpt|video|audio|wav)s?$"
)
"""Functions that write what they are given into a file: ``save_json`` (batchgenerators)."""

NAMED_ONE_RANK = re.compile(r"rank|main_|main_?process|on_?main|master|zero|only", re.IGNORECASE)
"""Decorators that run a function on one rank: ``rank_zero_only`` (Lightning), ``master_only`` (MMCV); ``hydra.main`` is
none."""

EXACT_RANK = re.compile(
    r"^(local_|global_|world_|dist_|my_)?rank$|^get_(local_|global_)?rank$|^RANK$|^LOCAL_RANK$", re.IGNORECASE
)
"""Ranks alone, where a world size in the test would mean something else."""

EXACT_FIRST_RANK = re.compile(
    r"^(self\.)?_?is_(main|master|primary|first|rank_?0|rank_zero|global_zero)(_process|_rank|_worker)?$"
)
"""The answer to "is this the first rank?" alone."""

NAMED_EVALUATION = re.compile(r"val|test|eval|dev(?!ice)|valid|infer|predict", re.IGNORECASE)
"""Loaders, functions and phases that do not train: ``val_loader``, ``evaluate``, ``test_dl``."""

NAMED_PURPOSE = re.compile(rf"{NAMED_EVALUATION.pattern}|train|mode(?!l)|flag|phase|split|stage|subset", re.IGNORECASE)
"""What says what a loader is for: ``args.eval_only``, ``config["mode"]``, ``settings.is_train``."""

NAMED_EPOCH = re.compile(r"epoch", re.IGNORECASE)
"""Variables that count epochs."""

NAMED_SHARE = re.compile(r"[Ss]ampler|[Ii]terable|split_dataset_by_node|shard|webdataset|wds|[Bb]uckets|num_replicas")
"""Samplers and data sets that share samples out themselves: ``GroupSampler``, ``IterableDataset``, webdataset."""

NAMED_ACCUMULATION = re.compile(r"accum|grad_?acc|update_freq|virtual_batch|sub_?divisions|micro", re.IGNORECASE)
"""Counts of batches in one step: ``gradient_accumulation_steps`` (Hugging Face), ``update_freq`` (fairseq),
``subdivisions`` (Darknet).
"""

NAMED_AVERAGES_GRADIENTS = re.compile(
    r"(average|avg|reduce|sync)\w*grad|grad\w*(average|avg|reduce|sync)", re.IGNORECASE
)
"""Functions that average gradients over processes by hand: ``average_gradients`` (PyTorch's tutorial)."""

NAMED_CLIPPING = re.compile(r"clip_?grad|grad(ient)?s?_?clip", re.IGNORECASE)
"""Functions that clip the gradients of a model that they are given: ``clip_gradient(optimizer, model, limit)``."""

NAMED_AVERAGING_CLASS = re.compile(
    r"^(Model)?(EMA|Ema)(V\d)?$|^(Model|Weight|Param|Parameter)?_?(EMA|Ema)(Model|Helper|Wrapper)?$"
    r"|ExponentialMovingAverage|^AveragedModel$|^SWA\w*Model$"
)
"""Classes that average weights: ``ModelEmaV2`` (timm), ``ExponentialMovingAverage`` (torch_ema)."""

NAMED_AVERAGED_COPY = re.compile(r"ema|teacher|shadow|average|avg|momentum|polyak", re.IGNORECASE)
"""Copies of a model whose weights are averaged: ``teacher``, ``ema_model``."""

NAMED_UNWRAP = re.compile(r"unwrap|de_parallel|is_parallel|without_ddp|strip", re.IGNORECASE)
"""Ways to the model in its wrapper, beside ``.module``: ``unwrap_model`` (Accelerate), ``de_parallel`` (YOLOv5)."""

NAMED_RUNNING_AVERAGE = re.compile(
    r"(^|_)(ema|swa|avg|average|averaged|moving_average|shadow|teacher|momentum_encoder)($|_)", re.I
)
"""Buffers that hold running averages."""

NAMED_AVERAGING = re.compile(r"(^|[._])(ema|swa|polyak)([._]|$)|average|deepcopy", re.I)
"""Calls that average or copy the weights of the models that they are given, by path: ``self.ema.update``."""

NAMED_EMA = re.compile(r"EMA$|Ema$|ModelEma|AveragedModel$|ExponentialMovingAverage$|^ema$")
"""Classes and functions of moving averages that keep the parameters they are given."""

NAMED_LOGIT_SCALE = re.compile(r"logits?_?scale|similarity_scale|(^|_)temperature$")
"""Learned scales of logits, which CLIP keeps as logarithms."""

NAMED_LOGARITHM = re.compile(r"log(?!it)|lprobs?(?:$|_)")
"""Logarithms, whose exponentials were representable before: ``log_probs``, ``lprobs`` (fairseq)."""

NAMED_POSITIONS = re.compile(r"(^|_)(positions?|pos|position_ids|pos_ids|pos_idx|seq_pos)(_expanded)?$")
"""Whole numbers that count tokens or pixels: ``position_ids`` (Hugging Face)."""

NAMED_LENGTH = re.compile(
    r"(^|_)(seq(uence)?_?len(gths?)?|sequence|max_?len(gth)?|context(_len\w*)?|n_ctx|\w*positions?)(_|$)"
)
"""Lengths of sequences: ``max_seq_len``, ``n_ctx`` (GPT-2)."""

NAMED_FREQUENCY = ("freq", "omega")
"""Parts of the names of frequencies of rotary and sinusoidal embeddings."""

NAMED_NETWORK = ("model", "unet", "network", "encoder", "decoder", "vae", "transformer")
"""Parts of the names of networks whose output is half where they are."""

NAMED_LOSS = ("loss", "criterion", "reducer")
"""Parts of the names of functions and classes that make a loss of many elements."""

NAMED_BATCH_NORM = re.compile(r"(?:^|_)bn|[Bb]atch_?[Nn]orm|BN")
"""Functions around a batch norm, which autocast leaves as it is."""

NAMED_WEIGHT = re.compile(r"(?:^|_)(?:w|b|weights?|bias|kernel|gamma|beta)(?:$|_|\d)")
"""Arguments of autograd functions that are parameters of a layer."""

NAMED_SAVING = re.compile(r"save|checkpoint|ckpt")
"""Functions and classes that write checkpoints, in lower case: ``save_checkpoint``, ``Checkpointer`` (fvcore)."""

NAMED_LOADING = re.compile(r"load|resume|restore|restart|recover|read|init|\w+_from_(?:checkpoint|ckpt)")
"""How functions begin that read them."""

NAMED_WHOLE_STATE = re.compile(r"^(self|trainer|runner|engine|state)$|extra|others?$|kwargs|_states?$")
"""Arguments that may hold all that belongs into a checkpoint: ``trainer``, ``extra_state`` (fairseq)."""

NAMED_LEARNING_RATE = re.compile(r"(?:^|_)lrs?(?:_|$)|learning_?rate", re.IGNORECASE)
"""Variables and arguments that hold a learning rate."""

NAMED_STEP_PART = re.compile(r"scaler|sched|opt|(?:^|_| )lr")
"""Names that say what something is in the training step, whether or not they are right: what flows into them tells."""

NAMED_TRIAL = ("test", "_test", "main", "_main", "demo")
"""How functions begin that try others out with tensors that no training gives them: their calls are not believed."""

SCALER, SCHEDULER, ACCUMULATION, MASK, EPSILON = "scaler", "sched", "accum", "mask", "eps"
"""Parts of names in lower case: of a scaler, a scheduler, a count of batches, a mask, an epsilon."""

NAMED_RESHAPE = re.compile(
    r"(?:^|_)(?:rearrange|reshape|permute|transpose|view|flatten|unflatten|split|merge|combine|chunk|gather|expand"
    r"|repeat|shuffle|roll|fold|unfold|partition|windows?|heads?|drop|dropout|pad|unpad)(?:$|_|\d)"
)
"""Functions that move elements and keep their type: ``rearrange2``, ``split_heads``, ``window_partition``."""

NAMED_TRAINING = frozenset({"train", "trainer", "training", "fit", "finetune", "pretrain", "learn", "learner"})
"""First or last words of what trains: ``train_model``, ``run_training``, ``Trainer``. Only what a script in which no
backward pass was found is told rests on them: that it seems to train, and what of it could not be followed."""

NO_TRAINING = frozenset(
    """
    arg args arguments augment batch cfg config configs data dataset datasets dir epochs evaluate file files images
    iter labels loader loaders loss mode model models options opts param parser path sampler set size split step steps
    test transform transforms
    """.split()
)
"""Words of what is for training and does not train: ``get_train_loader``, ``train_test_split``."""

NO_STEP = frozenset(
    "adjust checkpoint decay init load lr lrs print restore resume save schedule scheduler warmup".split()
)
"""Words of what is given an optimizer and does not step it: ``save_checkpoint``, ``adjust_lr``."""

NAMED_TRAINER = re.compile(
    r"trainer|runner|engine|learner|solver|agent|experiment|manager|algo|pipeline", re.IGNORECASE
)
"""Objects whose ``train()`` trains, where a model's only sets its mode."""

ASKS_VERSION = re.compile(
    r"torch\.__version__|TORCH_VERSION|torch\.version\b|hasattr\(torch[\w.]*, .*(?:amp|autocast|GradScaler)"
)
"""A test of which torch is installed: of its version, or whether it has the new names of mixed precision."""

VERSION_OF_TORCH = "torch.__version__"
VERSION_PARSERS = frozenset({"parse", "Version", "LooseVersion", "StrictVersion", "TorchVersion", "str"})
"""What makes of a version, given as a text, one that can be compared."""
