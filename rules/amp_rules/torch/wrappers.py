"""What wraps a model or gives it back, alone or on several devices."""

from __future__ import annotations

COMPILES = frozenset({"torch.compile"})
"""Calls that give a model around a model, which has the attributes of the one inside."""

DATA_PARALLEL = frozenset(
    {
        "torch.nn.DataParallel",
        "torch.nn.parallel.DataParallel",
        "torch.nn.parallel.data_parallel.DataParallel",
    }
)
"""Wrappers of one process that use several devices."""

FULLY_SHARDED = frozenset(
    {
        "torch.distributed.fsdp.FullyShardedDataParallel",
        "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel",
    }
)
"""Wrappers that keep a shard of each parameter, and of its gradient, on each process."""

STEPS_OF_DATA_PARALLEL = frozenset({"replicate", "scatter", "gather", "parallel_apply"})
"""Methods by which ``DataParallel`` spreads a batch; a class of its own that replaces these is used as it is."""

CONVERTS_BATCH_NORM = frozenset(
    {
        "torch.nn.SyncBatchNorm.convert_sync_batchnorm",
        "torch.nn.modules.batchnorm.SyncBatchNorm.convert_sync_batchnorm",
        "amp_runtime.convert_sync_batchnorm",
    }
)
"""Functions that make a model's batch norm synchronised."""

PREPARES = frozenset({"amp_runtime.prepare_model"})
"""What prepares a model for its precision."""

PROGRESS_BARS = frozenset(
    {
        "tqdm.tqdm",
        "tqdm.auto.tqdm",
        "tqdm.std.tqdm",
        "tqdm.autonotebook.tqdm",
        "tqdm.notebook.tqdm",
        "tqdm.rich.tqdm",
        "tqdm.tqdm_notebook",
        "fastprogress.progress_bar",
        "fastprogress.fastprogress.progress_bar",
        "progressbar.progressbar",
        "rich.progress.track",
    }
)
"""Calls that show how far an iteration has come, over what they are given."""

SHOWN_BY_BARS = frozenset({"set_description", "set_description_str", "set_postfix", "set_postfix_str"})
"""Methods of such bars that show what they are given, and iterate over the same as before."""

GIVES_FUNCTIONS = {
    f"fastprogress.{module}force_console_behavior": (
        "fastprogress.fastprogress.master_bar",
        "fastprogress.fastprogress.progress_bar",
    )
    for module in ("", "fastprogress.")
}
"""Calls that give functions of their library, in this order: here the bars, as they look on a console."""

RETURNS_FIRST_ARGUMENT = frozenset(
    {
        *DATA_PARALLEL,
        "torch.autograd.Variable",
        "torch.autograd.variable.Variable",
        "torch.nn.parallel.DistributedDataParallel",
        "torch.nn.parallel.distributed.DistributedDataParallel",
        "torch.nn.SyncBatchNorm.convert_sync_batchnorm",
        "amp_runtime.apex.parallel.DistributedDataParallel",
        "apex.parallel.DistributedDataParallel",
        "apex.parallel.convert_syncbn_model",
        "amp_runtime.convert_sync_batchnorm",
        "amp_runtime.keep_module_prefix",
        "amp_runtime.prepare_model",
        "amp_runtime.prepare_loader",
        "amp_runtime.unwrap",
        "amp_runtime.optim.LARC",
        "torch.jit.script",
        "torch.jit.trace",
        *COMPILES,
        "torch.nn.utils.weight_norm",
        "torch.nn.utils.spectral_norm",
        *PROGRESS_BARS,
        "builtins.iter",
        "builtins.reversed",
        "builtins.sorted",
        "builtins.list",
        "builtins.tuple",
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


DISTRIBUTED_DATA_PARALLEL = frozenset(
    {
        "torch.nn.parallel.DistributedDataParallel",
        "torch.nn.parallel.distributed.DistributedDataParallel",
        "torch.nn.DistributedDataParallel",
    }
)

REDUCERS = frozenset({"amp_runtime.Reducer", "apex.parallel.Reducer", "amp_runtime.apex.parallel.Reducer"})
"""Classes whose objects average a model's gradients over the processes when the script says so."""

OF_DISTRIBUTED_DATA_PARALLEL = frozenset(
    """
    T_destination add_module apply bfloat16 broadcast_bucket_size broadcast_buffers bucket_bytes_cap buffers
    call_super_init children compile cpu cuda device device_ids device_type dim double dump_patches eval
    extra_repr find_unused_parameters float forward gather get_buffer get_extra_state get_parameter
    get_submodule gradient_as_bucket_view half ipu is_multi_device_module join join_device join_hook
    join_process_group load_state_dict logger mixed_precision module modules modules_buffers mtia named_buffers
    named_children named_module_buffers named_modules named_parameters no_sync output_device parameters
    parameters_to_ignore process_group reducer register_backward_hook register_buffer register_comm_hook
    register_forward_hook register_forward_pre_hook register_full_backward_hook register_full_backward_pre_hook
    register_load_state_dict_post_hook register_load_state_dict_pre_hook register_module register_parameter
    register_state_dict_post_hook register_state_dict_pre_hook require_backward_grad_sync
    require_forward_param_sync requires_grad_ scatter set_extra_state set_submodule share_memory state_dict
    static_graph to to_empty to_kwargs train training type use_side_stream_for_tensor_copies
    will_sync_module_buffers xpu zero_grad
    """.split()
)
"""The public attributes and methods of ``DistributedDataParallel``, those of every module included.

Source: ``dir()`` and ``vars()`` of an object of PyTorch 2.13, and ``ipu`` of earlier releases.
"""

TRACES = frozenset({"torch.jit.trace", "torch.jit.trace_module", "torch.onnx.export", "torch.export.export"})
"""Functions that run a model, given first, to write its graph down: no wrapper of torch's can be in it."""

TRACING_METHODS = frozenset({"add_graph"})
"""Methods of writers that do.

Source: https://pytorch.org/docs/stable/tensorboard.html
"""

WATCHING_METHODS = TRACING_METHODS | {"watch"}
"""Methods of loggers that are given a model and train nothing: ``wandb.watch(model)``."""

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
CALLS_WITH_WEIGHTS = frozenset(
    {"torch.func.functional_call", "torch.nn.utils.stateless.functional_call", "torch._functorch.functional_call"}
)
"""What runs a model with other weights than its own, and gives what the model gives."""
