"""Training steps that go around DistributedDataParallel."""

from __future__ import annotations

import ast

from amp_rules.checks.common.around_wrappers import passes_around
from amp_rules.checks.common.origins import origins
from amp_rules.lint.check import Check, LintedFile
from amp_rules.source.facts import ModuleFacts
from amp_rules.source.syntax import spelling
from amp_rules.torch.wrappers import DISTRIBUTED_DATA_PARALLEL


class ForwardAroundDdp(Check):
    """Training steps that go around DistributedDataParallel.

    ## What it does

    Finds `model.module(...)` and `model.module.method(...)`, where `model` was wrapped in DistributedDataParallel, if
    the loss of a backward pass is computed from the result, in this function or in one that calls it.

    ## Why

    The wrapper arranges in its own `forward` that the backward pass averages the gradients. What is computed by the
    model inside goes around that: no gradient is averaged, no error is raised, and each process trains a model
    of its own. Only that of the process that saves is kept.

    ## Example

        model = DistributedDataParallel(model)
        loss = model.module.loss(batch)
        loss.backward()

    ## Use instead

        # forward() of the model calls loss()
        model = DistributedDataParallel(model)
        loss = model(batch)
        loss.backward()

    ## When it is silent

    When the wrapper is called as well, where the file trains, which averages all gradients of that backward pass;
    under `torch.no_grad()`, in evaluation, and for methods that are given nothing; where a framework trains, and where
    something in the file averages gradients by hand or uses `no_sync`.

    ## Source

    https://pytorch.org/docs/stable/notes/ddp.html
    """

    code = "AMP914"
    name = "forward-around-ddp"
    severity = "error"
    message = "The forward pass bypasses DistributedDataParallel: no gradient is averaged."
    advice = "Call the wrapped model itself, and let its forward() call the method."
    triggers = (".module.", ".module(")

    def visit_module(self, file: LintedFile) -> None:
        """Follow the results of each wrapped model's inside to a backward pass."""
        module = file.module
        for call, held in passes_around(module, lambda node: _is_wrapped(module, node)):
            name = spelling(held)
            text = f"This bypasses `{name}`, so that no gradient of this loss is averaged over the processes"
            self.report_in(file, call.func, text)


def _is_wrapped(module: ModuleFacts, held: ast.expr) -> bool:
    return any(
        isinstance(item.node, ast.Call) and item.module.dotted(item.node.func) in DISTRIBUTED_DATA_PARALLEL
        for item in origins(module, held)
    )
