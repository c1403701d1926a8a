"""Models with weights that only look like parameters of torch: nothing can copy or average them over processes."""

from __future__ import annotations

from collections.abc import Iterator

from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.plan.library_uses import first_use
from amp_rules.roles.program import Program
from amp_rules.torch.models import OF_WRAPPED_WEIGHTS


def reasons(program: Program) -> Iterator[Declined]:
    """Yield the first use of each library with such weights."""
    for library, prefixes in OF_WRAPPED_WEIGHTS.items():
        found = first_use(program, prefixes)
        if found is None:
            continue
        module, node, name = found
        yield declining.decline(
            declining.GRADIENTS_OUTSIDE,
            module,
            node,
            f"`{name}` has weights of a class of its own, each around the tensor that is trained: {library} refuses "
            "functions of torch on them, so they cannot be copied to other processes, and DistributedDataParallel "
            "would average no gradient",
            "train in one process, or average the gradients of the tensors inside, `parameter.tensor.grad`, by hand",
        )
