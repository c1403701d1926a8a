"""Gradient accumulation that averages over the processes at every small step."""

from __future__ import annotations

import ast

from amp_rules.checks.common.rank_branches import uses_framework
from amp_rules.checks.common.wrapping import is_ddp
from amp_rules.lint.check import Check, LintedFile
from amp_rules.source.index import FileIndex
from amp_rules.torch.idioms import NAMED_ACCUMULATION

_SAYS_SO = frozenset("no_sync require_backward_grad_sync delay_allreduce set_requires_gradient_sync".split())


class AccumulationWithoutNoSync(Check):
    """Gradient accumulation that averages over the processes at every small step.

    ## What it does

    Finds a loop or function with a `backward()` in every turn and an optimizer step only in some
    (`if (i + 1) % n == 0`), in a file that wraps its model in DistributedDataParallel, or is judged with `--ddp`,
    and has no `no_sync`.

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
    triggers = ("DistributedDataParallel", ".backward(")

    def visit_module(self, file: LintedFile) -> None:
        """Look for backward passes that happen more often than steps."""
        module = file.module
        index = module.index
        if index.words & _SAYS_SO or uses_framework(module):
            return
        wraps = [module.dotted(call.func) or "" for call in index.calls if is_ddp(module, call)]
        if not (wraps or file.mode.ddp) or any(name.startswith("apex.") for name in wraps):
            # Apex's wrapper has no ``no_sync``.
            return
        told: set[ast.AST] = set()
        for call in index.named.get("backward", ()):
            loops = index.loops_around(call)
            around = loops[0] if loops else index.scope(call)
            if around is not None and around not in told and _steps_rarely(index, around, call):
                told.add(around)
                text = f"`{module.module.text(call)}` averages the gradients over the processes in every small step"
                self.report_in(file, call, text)


def _steps_rarely(index: FileIndex, around: ast.AST, backward: ast.Call) -> bool:
    """Whether the steps of a loop or function all depend on a counter on which the backward pass does not."""
    own = {id(test) for test, _ in index.branches(backward)}

    def asked(name: str) -> list[list[ast.expr]]:
        return [
            [test for test, _ in index.branches(call) if id(test) not in own]
            for call in index.named.get(name, ())
            if around in index.ancestors(call) and _is_of_optimizer(call)
        ]

    steps, emptied = asked("step"), asked("zero_grad")
    # What is emptied as seldom as it is stepped is added up, whatever its counter is called.
    seldom = {divisor for tests in emptied for test in tests for divisor in _divisors(test)} if all(emptied) else set()
    return bool(steps) and all(
        any(_counts(test) or seldom.intersection(_divisors(test)) for test in tests) for tests in steps
    )


def _divisors(test: ast.expr) -> set[str]:
    return {
        ast.unparse(item.right)
        for item in ast.walk(test)
        if isinstance(item, ast.BinOp) and isinstance(item.op, ast.Mod)
    }


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
