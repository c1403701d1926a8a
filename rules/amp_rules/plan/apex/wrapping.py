"""How a script for Apex wraps its models for several processes."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from amp_rules.plan import notes
from amp_rules.plan.apex.as_written import AsWritten
from amp_rules.plan.apex.file import ApexFile
from amp_rules.plan.report import Note
from amp_rules.roles.program import Program

WRAPPER = "apex.parallel.DistributedDataParallel"


def delays_exchange(file: ApexFile) -> bool:
    """Whether a wrapper of the file stays Apex's, which can exchange gradients at the end of the backward pass.

    Torch's wrapper wants each parameter used once, or searches one graph for those that are not, where Apex's takes
    whatever gradients there are. That search is enough where each backward pass is of one forward pass and no loss
    reads a parameter past it. It has no methods that switch the exchange, and keeps to the types that weights had when
    they were wrapped. With plain torch as the target it has to do, or the script is left alone.
    """
    return file.options.target != "torch" and bool(_why(file.references.calls(WRAPPER), file.as_written))


def wrapper_notes(program: Program) -> Iterator[Note]:
    """Yield a note for each file whose wrapper stays what Apex's was, with the reason."""
    used = AsWritten(program)
    for module in program.flow.modules:
        sites = [site for site in program.calls_to(frozenset({WRAPPER})) if site.module is module]
        why = _why([site.node for site in sites if isinstance(site.node, ast.Call)], used)
        if why:
            text = (
                f"`{module.text(sites[0].node)}` keeps Apex's wrapper, which `amp_runtime.apex.parallel` has: {why}, "
                "for which PyTorch's is not enough"
            )
            yield notes.note(notes.APEX_KEPT, module, sites[0].node, text)


def _why(calls: Sequence[ast.Call], used: AsWritten) -> str:
    """Why PyTorch's wrapper does not do in its place; empty where it does."""
    if not calls:
        return ""
    if used.switched:
        return f"the script switches the exchange of gradients itself by `{used.switched}()`"
    if used.widens_parts:
        return "the model makes a part of itself float32 as it runs"
    delays = any(
        item.arg == "delay_allreduce" and not (isinstance(item.value, ast.Constant) and not item.value.value)
        for call in calls
        for item in call.keywords
    )
    waits = "it exchanges gradients when the backward pass is over, and"
    if not (delays or used.left_out):
        return ""
    if used.reads_past_forward:
        return f"{waits} a loss may read a parameter past the model's forward pass"
    if delays and not used.is_one_pass:
        return f"{waits} the model may run more than once for one backward pass"
    return ""
