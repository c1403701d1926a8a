"""What differs between the processes of one program, and what makes it equal again."""

from __future__ import annotations

DRAWS = (
    "torch.rand", "torch.normal", "torch.bernoulli", "torch.multinomial", "torch.poisson", "torch.dropout",
    "torch.nn.init.uniform", "torch.nn.init.normal", "torch.nn.init.trunc_normal", "torch.nn.init.xavier",
    "torch.nn.init.kaiming", "torch.nn.init.orthogonal", "torch.nn.init.sparse", "torch.nn.functional.gumbel_softmax",
    "torch.nn.functional.rrelu", "numpy.random.", "random.", "torch.utils.data.random_split",
)  # fmt: skip
"""Beginnings of the names of functions that draw from the generators of the process."""

NOISE = frozenset(
    {
        "torch.rand", "torch.randn", "torch.rand_like", "torch.randn_like", "torch.randint", "torch.randint_like",
        "torch.normal", "torch.bernoulli",
    }
)  # fmt: skip
"""Of these, those that draw a tensor, as noise or times of diffusion, by torch's generators."""

MADE_EMPTY = frozenset({"torch.empty", "torch.empty_like"})
"""What makes a tensor that is filled afterwards: ``torch.empty_like(mean).normal_()`` is noise, too."""

AUGMENTS = (
    "torchvision.transforms.Random",
    "torchvision.transforms.ColorJitter",
    "albumentations",
    "imgaug",
    "kornia",
)
"""Packages and classes that change samples at random."""

SIZED_DRAWS = frozenset(
    {
        "torch.rand", "torch.randn", "numpy.random.rand", "numpy.random.randn", "numpy.random.random",
        "numpy.random.random_sample", "numpy.random.standard_normal",
    }
)  # fmt: skip
"""Of these, those whose arguments are the size of what is drawn."""

ARRAY_DRAWS = frozenset(
    {
        "torch.randint", "torch.normal", "torch.bernoulli", "torch.multinomial", "torch.randperm", "torch.poisson",
        "torch.nn.functional.gumbel_softmax", "numpy.random.permutation",
    }
)  # fmt: skip
"""Those whose last argument is the size, or that draw one number for each that they are given."""

DROPOUT = ("torch.nn.functional.dropout", "torch.nn.functional.alpha_dropout", "torch.nn.functional.feature_")
"""Functions that draw in training mode only."""

GENERATORS = frozenset(
    {
        "numpy.random.default_rng", "numpy.random.RandomState", "numpy.random.Generator", "random.Random",
        "numpy.random.PCG64", "numpy.random.SeedSequence", "numpy.random.MT19937", "numpy.random.Philox",
    }
)  # fmt: skip
"""Generators of their own, which each process seeds by itself unless it is given a seed."""

SEEDS = frozenset(
    {
        "torch.manual_seed", "torch.random.manual_seed", "torch.cuda.manual_seed", "torch.cuda.manual_seed_all",
        "random.seed", "numpy.random.seed", "torch.cuda.random.manual_seed_all",
    }
)  # fmt: skip
"""Functions that seed the generators of the process."""

LIBRARY_SEEDS = frozenset(
    {
        "transformers.set_seed", "transformers.trainer_utils.set_seed", "transformers.enable_full_determinism",
        "lightning.seed_everything", "lightning.pytorch.seed_everything", "lightning_fabric.seed_everything",
        "pytorch_lightning.seed_everything", "pytorch_lightning.utilities.seed.seed_everything",
        "monai.utils.set_determinism",
    }
)  # fmt: skip
"""Functions of libraries that seed Python's, NumPy's and torch's generators with one number."""

SEEDED_BY_SYSTEM = frozenset({"random.seed", "numpy.random.seed"})
"""Of these, those that let the system choose where no seed is given."""

SEEDED_BY_CONSTRUCTOR = frozenset({"numpy.random.default_rng", "numpy.random.RandomState", "random.Random"})
"""Of the generators, those whose constructor is given nothing but a seed."""

NOISE_METHODS = frozenset({"normal", "standard_normal", "randn", "rand", "uniform", "laplace", "beta", "random_sample"})
"""Their methods that noise is drawn by; which sample or branch is taken is drawn by others."""

ENTROPY = frozenset({"random.SystemRandom"})
"""Generators that have no seed."""

NOT_DRAWN = frozenset(
    {
        "random.seed", "random.getstate", "random.setstate", "numpy.random.seed", "numpy.random.get_state",
        "numpy.random.set_state", "torch.random", "torch.random.manual_seed", "torch.random.get_rng_state",
        "torch.random.set_rng_state", "torch.random.fork_rng", "torch.random.seed", "torch.random.initial_seed",
    }
)  # fmt: skip
"""What has the name of a draw and is none."""

DRAWING_METHODS = frozenset(
    {
        "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "geometric_", "cauchy_", "log_normal_",
        "bernoulli", "multinomial", "rsample",
    }
)  # fmt: skip
"""Methods of tensors and distributions that draw."""

RESETTING = frozenset({"reset_parameters", "_reset_parameters"})
"""Methods of models that draw their weights anew."""

_READINGS = frozenset(
    f"time.{name}{more}"
    for name in ("time", "perf_counter", "monotonic", "process_time", "thread_time")
    for more in ("", "_ns")
)
"""Those of ``time`` that give a number."""

STOPWATCHES = _READINGS | {"timeit.default_timer", "torch.cuda.Event", "torch.Event"}
"""What scripts measure a time with."""

CLOCKS = _READINGS | frozenset(
    {
        "time.ctime", "time.localtime", "time.gmtime", "time.strftime", "time.asctime",
        "datetime.datetime.now", "datetime.datetime.today", "datetime.datetime.utcnow", "datetime.date.today",
        "timeit.default_timer", "numpy.datetime64",
    }
)  # fmt: skip
"""Functions that read the clock."""

ELAPSED = frozenset({"elapsed_time"})
"""Methods of events of a device that give the time between two of them."""

OF_A_TIME = frozenset({"numpy.datetime64"})
"""Those of them that do so only where they are asked for this moment."""

PROCESS = frozenset(
    {
        "os.getpid", "os.getppid", "os.urandom", "uuid.uuid1", "uuid.uuid4", "secrets.token_hex",
        "secrets.randbelow", "secrets.choice", "secrets.token_bytes",
        "tempfile.mkdtemp", "tempfile.mkstemp", "tempfile.TemporaryDirectory", "tempfile.NamedTemporaryFile",
        "tempfile.mktemp", "threading.get_ident", "psutil.virtual_memory", "psutil.cpu_percent",
        "torch.cuda.memory_allocated", "torch.cuda.max_memory_allocated", "torch.cuda.memory_reserved",
        "torch.cuda.mem_get_info", "torch.distributed.get_rank",
    }
)  # fmt: skip
"""What names one process, or says how its machine fares.

The name of a machine is the same for its processes; on several machines it chooses where each has the same data.
"""

DRAWN_IDENTIFIERS = frozenset({"uuid.uuid1", "uuid.uuid4", "secrets.token_hex"})
"""Those of them that draw what no other call gives: a part of the name of a run."""

MACHINE = frozenset({"os.uname", "platform.node", "platform.uname", "socket.getfqdn", "socket.gethostname"})
"""What names the machine."""

ENVIRONMENTS = ("gym.", "gymnasium.", "dm_control.", "pettingzoo.", "procgen.", "minigrid.", "retro.", "pybullet_envs.")
"""Libraries of environments, which each process has its own of."""

PIPES = frozenset(f"{module}.Pipe" for module in ("multiprocessing", "torch.multiprocessing"))
"""What makes the two ends of a pipe, at which processes ``send`` and ``recv``."""

SPACES = frozenset({"action_space", "observation_space", "spec", "metadata", "reward_range"})
"""Attributes of environments that are the same in each of one kind."""

STORED_EXPERIENCE = frozenset({"get_dataset", "qlearning_dataset", "sequence_dataset", "load_dataset"})
"""Functions and methods that read the steps which somebody stored, alike in all processes: of D4RL, above all."""

USES_OF_ENVIRONMENTS = frozenset({"action_space", "observation_space", "render", "reset_context"})
"""What is asked of an environment, or of the physics in it, and of no optimizer: ``step`` moves its time on."""

SIZES = frozenset({"shape", "names"})
"""Attributes that say how large a tensor is."""

KINDS = frozenset(
    {
        "ndim", "dtype", "device", "requires_grad", "is_cuda", "is_xpu", "is_mps", "is_cpu", "is_sparse", "is_leaf",
        "layout", "itemsize",
    }
)  # fmt: skip
"""Attributes that say of what kind a tensor is, which the batches of all processes have in common."""

SIZE_METHODS = frozenset({"size", "numel", "nelement", "stride", "__len__"})
"""Methods that say how large a tensor is."""

KIND_METHODS = frozenset(
    {"dim", "ndimension", "element_size", "get_device", "is_complex", "is_contiguous", "is_floating_point"}
)
"""Methods that say of what kind a tensor is."""

SIZED_BY_CONTENT = frozenset(
    {
        "nonzero", "argwhere", "unique", "unique_consecutive", "masked_select", "where", "nms", "batched_nms",
        "bincount", "tolist", "repeat_interleave", "split", "arange", "linspace", "zeros", "ones", "full", "empty",
        "compress", "flatnonzero", "combinations", "eye",
    }
)  # fmt: skip
"""Functions and methods whose result is as large as the numbers say that they are given."""

SIZED_BY_REST = frozenset({"split", "repeat_interleave"})
"""Those of the functions that are told by what follows the first argument; a method ``split`` may be that of a text."""

STACKING = frozenset({"torch.stack", "numpy.stack"})
"""Functions that put tensors of one shape into one, with a new dimension in front of theirs unless told otherwise."""

MADE_OF_ROWS = STACKING | frozenset(
    {
        "torch.tensor", "torch.as_tensor", "torch.Tensor", "torch.FloatTensor", "torch.LongTensor", "torch.IntTensor",
        "torch.BoolTensor", "torch.DoubleTensor", "numpy.array", "numpy.asarray", "torch.utils.data.default_collate",
        "torch.utils.data.dataloader.default_collate", "torch.utils.data._utils.collate.default_collate",
    }
)  # fmt: skip
"""Functions that make a row of each element of a list."""

PADDING = frozenset({"torch.nn.utils.rnn.pad_sequence"})
"""Functions that make a row of each sequence in a list where they are told that the batch comes first."""

MADE_IN_A_SHAPE = frozenset(
    f"{library}.{name}" for library in ("torch", "numpy") for name in ("zeros", "ones", "empty", "full")
)
"""Functions that are told the shape of what they make, the first dimension first."""

SAME_ROWS = frozenset({"long", "int", "bool", "byte", "short", "pin_memory", "type_as", "requires_grad_", "fill_"})
"""Methods of tensors that change neither the number of rows nor their order."""
