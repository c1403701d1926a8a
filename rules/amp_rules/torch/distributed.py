"""Several processes."""

from __future__ import annotations

import re

OWN_SHARDING = (
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.distributed._composable",
    "torch.distributed.pipelining",
)
"""Parts of torch that keep a share of a gradient on each rank, which a scaler must know of."""

OLD_PIPELINE = "torch.distributed.pipeline"
"""Runs a model in parts on several GPUs of one process; current PyTorch has it no more.

Source: https://github.com/pytorch/pytorch/pull/127354
"""

RPC = "torch.distributed.rpc"
"""Calls functions of other processes."""

OPENS_RPC = f"{RPC}.init_rpc"
"""What joins the processes that call each other."""

AVERAGES_BY_ITSELF = tuple(
    f"horovod.torch.{name}"
    for name in (
        "DistributedOptimizer",
        "allreduce",
        "allreduce_",
        "allreduce_async",
        "allreduce_async_",
        "grouped_allreduce",
        "grouped_allreduce_",
        "grouped_allreduce_async",
        "grouped_allreduce_async_",
    )
)
"""What averages gradients over processes that ``torch.distributed`` knows nothing of."""

SUMS_OF_HOROVOD = frozenset({"horovod.torch.allreduce", "horovod.torch.allreduce_"})
"""Those of them that are done with a tensor when they return: what they were given, or give back, is the average."""

JOINS_HOROVOD = frozenset({"horovod.torch.init"})
"""What joins those processes."""

TRAINS_ON_TPU = frozenset(
    {
        "spawn", "_mp_fn", "launch", "optimizer_step", "reduce_gradients", "all_reduce", "mesh_reduce", "all_gather",
        "ParallelLoader", "MpDeviceLoader", "XlaFullyShardedDataParallel", "XlaDistributedDataParallel",
    }
)  # fmt: skip
"""Own names of what starts or feeds the processes of TPUs, and reduces over them. Other parts of torch_xla move a model
and save it, in libraries that leave the choice of a device to their users."""

REDUCES_ON_TPU = frozenset({"optimizer_step", "reduce_gradients", "all_reduce", "mesh_reduce", "all_gather"})
"""Those of them that work in processes which others started; where there is one, they change nothing."""

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

OF_ONE_PROCESS = ("apex.parallel.LARC", "amp_runtime.apex.parallel.LARC")
"""Names below those that have to do with one process alone."""

ASKS_GROUP = frozenset(
    f"torch.distributed.{name}"
    for name in (
        "is_available is_initialized is_nccl_available is_gloo_available is_mpi_available is_torchelastic_launched "
        "get_rank get_world_size get_backend barrier monitored_barrier broadcast broadcast_object_list all_reduce "
        "reduce all_gather all_gather_object all_gather_into_tensor gather gather_object reduce_scatter ReduceOp "
        "ReduceOp.SUM ReduceOp.AVG ReduceOp.MAX ReduceOp.MIN ReduceOp.PRODUCT "
        "reduce_op reduce_op.SUM reduce_op.MAX reduce_op.MIN reduce_op.PRODUCT "
        "distributed_c10d._get_default_group distributed_c10d._default_pg"
    ).split()
)
"""What asks for a group of processes, or works in one that others joined."""

ASKS_RANK = frozenset(f"torch.distributed.{name}" for name in ("get_rank", "is_available", "is_initialized"))
"""What only asks whether there is a group, and for the rank in it: ranks may do other things then, and none waits."""

GETS_RANK = frozenset({"torch.distributed.get_rank", "torch.distributed.distributed_c10d.get_rank"})
"""What gives a process its rank."""

GETS_WORLD_SIZE = frozenset({"torch.distributed.get_world_size", "torch.distributed.distributed_c10d.get_world_size"})
"""What gives it their number."""

PROCESSES = frozenset(
    f"{package}.{name}"
    for package in ("multiprocessing", "torch.multiprocessing", "torch.multiprocessing.spawn", "multiprocess")
    for name in ("Process", "spawn", "start_processes")
)
"""They run a function in a process of its own, which they are given as ``target=``, ``fn=`` or the first argument."""

SPAWNS = frozenset(name for name in PROCESSES if name.endswith(("spawn", "start_processes")))
"""Those that give the function the number of the process first. The new process runs the script's own file again."""

PROCESS_POOLS = frozenset(
    {
        "multiprocessing.Pool",
        "multiprocessing.pool.Pool",
        "torch.multiprocessing.Pool",
        "torch.multiprocessing.pool.Pool",
        "multiprocess.Pool",
        "concurrent.futures.ProcessPoolExecutor",
        "concurrent.futures.process.ProcessPoolExecutor",
    }
)
"""Pools whose methods run the function that they are given in other processes."""

POOL_METHODS = frozenset("apply apply_async imap imap_unordered map map_async starmap starmap_async submit".split())

OTHER_PROCESS_WRAPPERS = frozenset({"joblib.delayed", "ray.remote", "dask.delayed"})
"""Called with a function, or as its decorator, they have it run in other processes."""

LIBRARY_LAUNCHERS = frozenset(
    {
        "accelerate.notebook_launcher",
        "accelerate.launchers.notebook_launcher",
        "detectron2.engine.launch",
        "detectron2.engine.launch.launch",
        "tensorfn.distributed.launch",
        "tensorfn.distributed.launch.launch",
        "yolox.core.launch",
        "yolox.core.launch.launch",
    }
)
"""They run their first argument in processes that they start and join, one for each GPU.

Source: https://detectron2.readthedocs.io/en/latest/modules/engine.html#detectron2.engine.launch
"""

JOINS = frozenset({"torch.distributed.init_process_group", "torch.distributed.distributed_c10d.init_process_group"})
"""They join the processes of a script."""

WORLD_SIZE_OF_JOIN, RANK_OF_JOIN = 3, 4
"""The places of ``world_size`` and ``rank`` among their arguments, ``timeout`` before them."""

LEAVES = frozenset(
    {"torch.distributed.destroy_process_group", "torch.distributed.distributed_c10d.destroy_process_group"}
)
"""They end what a process has joined."""

JOINING_WORDS = ("init_process_group", "init_dist", "setup_dist", "init_device_mesh", "ddp_setup", "setup_ddp")
"""Texts in files that may join processes in a way that was not followed."""

OPTION_OF_LAUNCHERS = ("--local_rank", "--local-rank")
"""The option that ``torch.distributed.launch`` passes; torchrun sets ``LOCAL_RANK`` in the environment instead."""

RANK_VARIABLES = frozenset({"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"})
"""Variables of the environment by which launchers tell a process its rank among all."""

LOCAL_RANK_VARIABLES = frozenset({"LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"})
"""The same of its rank on its machine."""

WORLD_SIZE_READ = 'int({os}.environ.get("WORLD_SIZE", "1"))'
"""How a migration to plain PyTorch reads the number of processes; ``{os}`` is the module's name."""


LAUNCHER_VARIABLES = frozenset({"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"})
"""Variables by which torchrun tells a process where all meet, how many there are, and which of them it is."""

VARIABLES_OF_OTHERS = ("SLURM_", "OMPI_", "PMI_", "MPI_")
"""What the variables of launchers begin with that leave the meeting place to the script."""

OF_SEVERAL_GPUS = {
    f"torch.distributed.{name}_multigpu": f"torch.distributed.{name}"
    for name in ("all_reduce", "all_gather", "broadcast", "reduce", "reduce_scatter")
}
"""Exchanges of processes with several GPUs each, which PyTorch has no more, and what has their place.

They took a list with a tensor of each GPU of the process. Source: https://github.com/pytorch/pytorch/pull/114156
"""

EXCHANGES = frozenset(OF_SEVERAL_GPUS) | frozenset(
    f"torch.distributed.{name}"
    for name in (
        "all_reduce", "reduce", "all_gather", "all_gather_object", "gather", "gather_object", "broadcast",
        "broadcast_object_list", "all_gather_into_tensor", "reduce_scatter", "all_to_all", "send", "isend",
        "all_reduce_coalesced", "nn.functional.all_reduce", "nn.all_reduce",
    )
)  # fmt: skip
"""What gives numbers of one process to others."""

REDUCTIONS = frozenset({"torch.distributed.all_reduce", "torch.distributed.reduce"})
"""Those of them that put the numbers of all into the place of one's own: their sum, if nothing else is asked for."""

BARRIERS = frozenset({"torch.distributed.barrier", "torch.distributed.monitored_barrier"})
"""In which processes wait for each other, and give nothing."""

SUMS = frozenset({"torch.distributed.ReduceOp.SUM"})
AVERAGES = frozenset({"torch.distributed.ReduceOp.AVG"})
"""What an exchange makes of the numbers of all."""

BROADCASTS = frozenset({"torch.distributed.broadcast", "torch.distributed.broadcast_object_list"})
"""Those of them by which one process tells all others what it has."""

GATHERS = frozenset(
    {f"torch.distributed.{name}" for name in ("all_gather", "all_gather_object", "all_gather_into_tensor")}
    | {"torch.distributed.nn.functional.all_gather", "torch.distributed.nn.all_gather", "amp_runtime.gather"}
)
"""What gives every process the values of all."""

INTO_ANOTHER = {
    "torch.distributed.all_gather": ("tensor_list", 0),
    "torch.distributed.all_gather_object": ("object_list", 0),
    "torch.distributed.all_gather_into_tensor": ("output_tensor", 0),
    "torch.distributed.gather": ("gather_list", 1),
    "torch.distributed.gather_object": ("object_gather_list", 1),
}
"""What leaves the tensor that it is given as it is, with the argument that it puts what all have into."""

MADE_ALIKE = (
    BROADCASTS
    | {"torch.distributed.all_reduce", "torch.distributed.all_reduce_coalesced"}
    | (GATHERS & INTO_ANOTHER.keys())
)
"""Exchanges that leave every process the same in what they write to: what they are given, or another argument."""

GIVES_ALIKE = (GATHERS - INTO_ANOTHER.keys()) | {
    "torch.distributed.nn.functional.all_reduce", "torch.distributed.nn.all_reduce",
    *(f"amp_runtime.reduce_{name}" for name in ("mean", "sum", "max", "min")),
    "amp_runtime.from_main_process", "amp_runtime.world_size", "amp_runtime.broadcast",
}  # fmt: skip
"""What gives every process the same, and leaves what it is given as it is."""

CONVERTING_NAMES = frozenset({"convert_sync_batchnorm", "convert_syncbn_model"})
"""The functions of torch and Apex that put synchronised batch norm into a model, by their own names."""

SYNC_BATCH_NORM = CONVERTING_NAMES | {"SyncBatchNorm", "SynchronizedBatchNorm2d", "NaiveSyncBatchNorm"}
"""Names that a program with synchronised batch norm has somewhere."""

SYNCHRONISED_NORM = re.compile(r"^sync(bn|batchnorm)|abnsync|(bn|batchnorm)(1d|2d|3d)?sync")
"""What else is called so, in small letters and without underscores: ``InPlaceABNSync``."""

REDUCING_NAME = re.compile(r"all_?reduce|all_?gather|(reduce|gather)_(tensor|dict|metric|across)")
"""The own name of a function of a library that puts numbers of all processes together: timm's ``reduce_tensor``."""

GATHERING_NAME = re.compile(r"^gather(_object)?$")
"""That of one in a library's file on communication, detectron2's ``comm.gather``; of arrays it looks up elements."""

NAMED_COMMUNICATION = re.compile(r"\b(comm|dist)|distributed", re.IGNORECASE)
"""What such a file is called."""
