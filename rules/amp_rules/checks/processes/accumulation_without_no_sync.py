"""Gradient accumulation that averages over the processes at every small step."""

from __future__ import annotations

import ast

from amp_rules.checks.common.rank_branches import uses_framework
from amp_rules.checks.common.wrapping import is_ddp
from amp_rules.lint.check import Check, LintedFile
from amp_rules.source.index import FileIndex, Loop
from amp_rules.torch.idioms import NAMED_ACCUMULATION

_SAYS_SO = frozenset("no_sync require_backward_grad_sync delay_allreduce set_requires_gradient_sync".split())


class AccumulationWithoutNoSync(Check):
    """Gradient accumulation that averages over the processes at every small step.

    ## What it does

    Finds a loop with a `backward()` in every turn and an optimizer step only in some (`if (i + 1) % n == 0`), in a
    file that wraps its model in DistributedDataParallel and has no `no_sync`.

    ## Why

    DistributedDataParallel averages gradients over the processes in each backward pass. With 4 small steps to one
    optimizer step, 3 of 4 rounds of communication are for nothing: the sum of the averages is the average of the
    sums. For a model of 1 GB of gradients on a 10 Gbit/s network that is 2.4 s per step.

    ## Example

        for i, batch in enumerate(loader):
            (model(batch) / 4).backward()
            if (i + 1) % 4 == 0:
                optimizer.step()

    ## Use instead

        for i, batch in enumerate(loader):
            last = (i + 1) % 4 == 0
            with contextlib.nullcontext() if last else model.no_sync():
                (model(batch) / 4).backward()
            if last:
                optimizer.step()

    ## When it is silent

    When `no_sync` or `require_backward_grad_sync` occurs in the file, when a framework trains, and when the test
    of the step counts nothing that is called after accumulation, and no literal number.

    ## Source

    https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """

    code = "AMP909"
    name = "accumulation-without-no-sync"
    severity = "performance"
    message = "Accumulated gradients are averaged over the processes in every backward pass."
    advice = "Run all but the last backward pass of a step within `model.no_sync()`."
    triggers = ("DistributedDataParallel",)

    def visit_module(self, file: LintedFile) -> None:
        """Look for backward passes that happen more often than steps."""
        module = file.module
        index = module.index
        if index.words & _SAYS_SO or uses_framework(module):
            return
        wraps = [module.dotted(call.func) or "" for call in index.calls if is_ddp(module, call)]
        if not wraps or any(name.startswith("apex.") for name in wraps):
            # Apex's wrapper has no ``no_sync``.
            return
        told: set[Loop] = set()
        for call in index.named.get("backward", ()):
            loops = index.loops_around(call)
            if loops and loops[0] not in told and _steps_rarely(index, loops[0], call):
                told.add(loops[0])
                text = f"`{module.module.text(call)}` averages the gradients over the processes in every small step"
                self.report_in(file, call, text)


def _steps_rarely(index: FileIndex, loop: Loop, backward: ast.Call) -> bool:
    """Whether the steps of a loop all depend on a counter on which the backward pass does not."""
    steps = [
        call for call in index.named.get("step", ()) if loop in index.loops_around(call) and _is_of_optimizer(call)
    ]
    own = {id(test) for test, _ in index.branches(backward)}
    return bool(steps) and all(
        any(id(test) not in own and _counts(test) for test, _ in index.branches(call)) for call in steps
    )


def _is_of_optimizer(call: ast.Call) -> bool:
    text = ast.unparse(call).lower()
    return "optim" in text or "scaler" in text


def _counts(test: ast.expr) -> bool:
    """``(step + 1) % accumulation_steps == 0``."""
    return any(
        isinstance(item, ast.BinOp) and isinstance(item.op, ast.Mod) and _is_count(item.right)
        for item in ast.walk(test)
    )


def _is_count(divisor: ast.expr) -> bool:
    if isinstance(divisor, ast.Constant):
        return isinstance(divisor.value, int) and divisor.value > 1
    return NAMED_ACCUMULATION.search(ast.unparse(divisor)) is not None
