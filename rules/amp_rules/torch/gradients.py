"""What reads or changes gradients."""

from __future__ import annotations

GRADIENT = "grad"
"""The attribute of a tensor that holds its gradient."""

FACTS_OF_TENSORS = frozenset(
    [
        "device", "dim", "dtype", "element_size", "is_contiguous", "is_cuda", "is_leaf", "is_sparse", "layout",
        "ndim", "nelement", "numel", "requires_grad", "requires_grad_", "shape", "size", "stride",
    ]
)  # fmt: skip
"""Attributes and methods of a tensor that tell nothing of its numbers."""

SHAPED_BY_ANOTHER = frozenset({"expand_as", "reshape_as", "resize_as_", "to", "type_as", "view_as"})
"""Methods that take the shape, the type or the device of their argument, and none of its numbers."""

MADE_IN_ITS_SHAPE = frozenset({"new_ones", "ones_like", "rand_like", "randint_like", "randn_like"})
"""Functions and methods that make a tensor in the shape or of the type of another, with other numbers.

Those that are missing make zeros, which are the same in any unit, or what is filled later.
"""

ZEROS = frozenset({"torch.zeros_like", "torch.zeros"})
"""Functions whose result is the same whatever it is multiplied by."""

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

CLIPS_BY_NORM = frozenset(name for name in CLIP_FUNCTIONS if ".clip_grad_norm" in name)
"""Those that reckon the norm of the gradients of their own process."""

CLIP_METHODS = frozenset({name.rpartition(".")[2] for name in CLIP_FUNCTIONS if "clip" in name.rpartition(".")[2]}) | {
    "clip_grad_value",
    "dispatch_clip_grad",
}
"""Last names of functions that clip, those of libraries included."""

GRADIENT_FUNCTIONS = frozenset({"torch.autograd.grad"})
"""Functions that give gradients instead of adding them to the parameters."""

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

EXCHANGE_HOOK = "register_comm_hook"
"""The method of wrappers whose hook, given second, exchanges the gradients of a bucket.

Source: https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html
"""

EXCHANGES_OF_BUCKETS = frozenset(
    """
    buffer gradients parameters index is_last all_reduce reduce_scatter all_gather_into_tensor reduce_scatter_tensor
    get_future then value wait Future set_result div div_ mul mul_ true_divide half bfloat16 float to type copy_
    decompress size numel get_rank get_world_size len print append time perf_counter contiguous view reshape flatten
    allreduce_hook fp16_compress_hook bf16_compress_hook fp16_compress_wrapper bf16_compress_wrapper
    """.split()
)
"""Last names of functions and methods that such a hook may call and whose result grows with the gradients."""

EXCHANGE_HOOK_FUNCTION = "register_ddp_comm_hook"
"""The function that registers such a hook, which it is told first by a member of an enumeration."""

WRAPS_EXCHANGES = frozenset({"fp16_compress_wrapper", "bf16_compress_wrapper"})
"""Last names of functions that make such a hook of the one that they are given."""

KEEP_NO_GRADIENTS = frozenset(
    """
    allreduce_hook fp16_compress_hook bf16_compress_hook noop_hook post_localSGD_hook
    ALLREDUCE FP16_COMPRESS BF16_COMPRESS NOOP
    """.split()
)
"""Last names of torch's own hooks, and of the members that stand for them, that keep nothing from step to step."""

KEEP_ERRORS = frozenset(
    """
    powerSGD_hook batched_powerSGD_hook
    POWER_SGD POWER_SGD_RANK2 BATCHED_POWER_SGD BATCHED_POWER_SGD_RANK2
    """.split()
)
"""Those that keep what they cut off of the gradients, and add it to those of the next step.

Source: https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html#powersgd-communication-hook
"""

GRADIENT_HOOK_FUNCTIONS = frozenset(
    {
        "torch.autograd.graph.register_multi_grad_hook",
        "torch.nn.modules.module.register_module_backward_hook",
        "torch.nn.modules.module.register_module_full_backward_hook",
        "torch.nn.modules.module.register_module_full_backward_pre_hook",
    }
)
"""Functions whose hooks are given gradients."""

BY_NAME = frozenset({"builtins.getattr", "builtins.setattr", "builtins.hasattr", "builtins.delattr"})
"""Functions that reach an attribute of their first argument by the name in their second."""

MAKES_GETTERS = frozenset({"operator.attrgetter", "operator.methodcaller"})
"""Functions that make a function which reaches an attribute or a method by a name."""

FINDS_FUNCTIONS = frozenset(
    {"builtins.eval", "builtins.getattr", "builtins.globals", "builtins.vars", "builtins.locals"}
)
"""Functions by which another one is found by its name."""

RUNS_TEXT = frozenset({"builtins.eval", "builtins.exec"})
"""Functions that run the code in a text."""

LOOKS_UP_NAMES = RUNS_TEXT | {
    "builtins.globals", "builtins.locals", "builtins.vars", "inspect.getmembers", "sys.modules"
}  # fmt: skip
"""By these a file finds what it has imported or defined itself."""

MOST_ARGUMENTS_OF_BACKWARD = 4
"""Those that ``Tensor.backward(gradient, retain_graph, create_graph, inputs)`` takes by place."""

LOAD_EXTENSIONS = frozenset({"torch.utils.cpp_extension.load", "torch.utils.cpp_extension.load_inline"})
"""What builds an extension and gives its module, whose functions are often called ``forward`` and ``backward``."""

BACKWARD_FUNCTIONS = frozenset(
    {
        "torch.autograd.backward",
        "torch.Tensor.backward",
        "torch._C.TensorBase.backward",
        "torch._tensor.Tensor.backward",
    }
)
"""Functions that run a backward pass from their first argument."""

ONLY_LOOKS = frozenset({"builtins.callable", "builtins.hasattr", "builtins.id", "functools.wraps", "inspect.signature"})
"""Functions that are told a function and never call it."""

NOT_HOMOGENEOUS = frozenset(
    [
        "ceil", "clamp", "clamp_", "clamp_max", "clamp_max_", "clamp_min", "clamp_min_", "clip", "clip_", "exp",
        "floor", "hardshrink", "hardtanh", "log", "log1p", "normalize", "pow", "pow_", "renorm", "round", "round_",
        "sigmoid", "sign", "sign_", "softmax", "softshrink", "sqrt", "square", "tanh",
    ]
)  # fmt: skip
"""Methods and functions whose result does not grow as their first argument does."""

SCALE_FREE = frozenset({"argmax", "argmin", "argsort", "sgn", "sign"})
"""Methods and functions whose result is the same whatever their tensor is multiplied by, and a number in any case.

Source: https://docs.pytorch.org/docs/stable/generated/torch.sign.html; of what is no number the sign is zero.
"""

NORMS = frozenset({"norm", "vector_norm"})
"""Functions and methods that give the length of a tensor."""

TESTS_OF_NUMBERS = frozenset({"isnan"})
"""Methods and functions that ask whether something is a number; of a loss in half the scale itself may be infinite."""

GROWS_WITH_GRADIENT = frozenset(
    [
        "T", "abs", "clone", "contiguous", "cpu", "cuda", "data", "detach", "div", "double", "expand", "flatten",
        "float", "mean", "mul", "neg", "permute", "repeat", "reshape", "squeeze", "sum", "to", "transpose", "unsqueeze",
        "view",
    ]
)  # fmt: skip
"""Attributes, methods and functions that give what grows as their one tensor does."""

RECORDS_NOTHING = frozenset({"no_grad", "inference_mode"})
"""Last names of what computes without recording for a backward pass, as a block or a decorator."""

MODES = frozenset({"requires_grad", "training", "is_grad_enabled"})
"""Attributes and functions of torch that say whether what is computed will be trained on."""

INNER_LOOPS = (
    "learn2learn.algorithms",
    "higher.innerloop_ctx",
    "higher.create_diff_optim",
    "higher.get_diff_optim",
    "torchmeta.utils.gradient_based",
)
"""What libraries of meta-learning have for the steps within a step: they take gradients of a loss by themselves."""
