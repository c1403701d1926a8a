"""How a script for Apex wraps its models for several processes."""

from __future__ import annotations

import ast

from amp_rules.plan.apex.file import ApexFile

WRAPPER = "apex.parallel.DistributedDataParallel"


def delays_exchange(file: ApexFile) -> bool:
    """Whether a wrapper of the file has to exchange gradients at the end of the backward pass.

    Torch's wrapper wants each parameter used once, or searches one graph for those that are not, where Apex's takes
    whatever gradients there are. That search is enough where each backward pass is of one forward pass and no loss
    reads a parameter past it. With plain torch as the target it has to do.
    """
    if file.options.target == "torch":
        return False
    delays = any(
        item.arg == "delay_allreduce" and not (isinstance(item.value, ast.Constant) and not item.value.value)
        for call in file.references.calls(WRAPPER)
        for item in call.keywords
    )
    if delays:
        return not file.as_written.is_one_pass
    used = file.as_written
    return bool(file.references.calls(WRAPPER) and used.left_out) and used.reads_past_forward
