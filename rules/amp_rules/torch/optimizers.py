"""Optimizers and learning rate schedulers."""

from __future__ import annotations

from amp_rules.torch.frameworks import OTHER_PACKAGES

OPTIMIZERS = frozenset(
    [
        "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "LBFGS", "Muon", "NAdam", "Optimizer",
        "RAdam", "RMSprop", "Rprop", "SGD", "SparseAdam",
    ]
)  # fmt: skip

EVALUATE_AGAIN = frozenset({"LBFGS", "Optimizer"})
"""Optimizers that evaluate a closure several times in a step, and the class of which nothing is known."""

OPTIMIZER_PREFIXES = ("torch.optim.", "amp_runtime.optim.", "apex.optimizers.", "apex.contrib.optimizers.")

COUNTED = frozenset({"_with_counter", "_wrapped_by_lr_sched"})
"""Marks of PyTorch's schedules on the ``step`` of an optimizer that counts its steps for them."""

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

OF_OTHER_FRAMEWORKS = tuple(f"{package}." for package in sorted(OTHER_PACKAGES))
"""Where classes with the names of torch's optimizers do not step tensors of torch."""

BY_ELEMENT = frozenset(
    f"{package}.{name}"
    for package in ("torch.optim", "amp_runtime.optim")
    for name in (
        *("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"),
        "SparseAdam",
    )
)
"""Optimizers that treat each element of a parameter by itself."""

FUSED_OPTIMIZERS = frozenset({"Adam", "AdamW", "SGD", "Adagrad"})
"""Optimizers of torch that have a fused kernel, and a class of the same name in ``amp_runtime.optim``."""

GROUP_SETTINGS = frozenset({"lr", "momentum", "weight_decay", "betas", "eps", "alpha", "dampening", "lr_scale"})
"""Keys of a parameter group that a script sets between steps."""

SETTINGS_OF_GROUPS = GROUP_SETTINGS | {"initial_lr"}
"""Keys of a parameter group that no step changes, whatever the gradients are."""

PARAMETERS_OF_OPTIMIZER = frozenset({"amp_runtime.master_params", "apex.amp.master_params"})
"""Functions that give the parameters of the optimizer that is their first argument."""

HOLDS_OPTIMIZER = frozenset({"optimizer", "_optimizer", "optim", "param_groups"})
"""Attributes by which ``amp.scaler.step`` finds the optimizer in an object around one."""


def is_optimizer_name(name: str) -> bool:
    """Whether a dotted name is that of an optimizer, or makes one."""
    if is_scheduler_name(name):
        return False
    if name.startswith(OPTIMIZER_PREFIXES) or name in THIRD_PARTY_OPTIMIZERS:
        return True
    head, _, last = name.rpartition(".")
    # Libraries name theirs as torch does: `pytorch_transformers.optimization.AdamW`, `bitsandbytes.optim.Adam`.
    return bool(head) and last in OPTIMIZERS - {"Optimizer"} and not name.startswith(OF_OTHER_FRAMEWORKS)


SCHEDULES_OF_A_LENGTH = frozenset({
    f"torch.optim.lr_scheduler.{name}"
    for name in ("OneCycleLR", "CyclicLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "PolynomialLR")
})  # fmt: skip
"""Schedules that are told how many steps they or their phases take: who leaves one out is behind them at the end."""

EXACT_SCHEDULES = frozenset({"torch.optim.lr_scheduler.OneCycleLR"})
"""Schedules that raise when they are stepped more often than they are long."""


def is_scheduler_name(name: str) -> bool:
    """Whether a dotted name is that of a learning rate scheduler.

    Libraries call theirs ``get_linear_schedule_with_warmup``, ``WarmupLR``: the name is all that tells them. What
    diffusers calls a scheduler takes the noise out of a sample, step by step, and has nothing to do with a rate.
    """
    last = name.rpartition(".")[2]
    if name.startswith("diffusers.") and last.endswith("Scheduler"):
        return False
    return name.startswith(SCHEDULER_PREFIXES) or "schedule" in last.lower() or last.endswith("LR")


PLATEAU = "ReduceLROnPlateau"
"""The schedule that is stepped with a metric."""
