"""Give each process its share of an evaluation, with the result of one process.

## What it does
With `--shard-eval`, the loader of an evaluation loop goes through `amp.share_evaluation(...)`: each process takes
whole batches, none twice, and some possibly none. Behind the loop, sums and counts go through
`amp.sum_evaluated(...)`, lists through `amp.gather_evaluated(...)`, in the order of the loader; objects that average,
such as an `AverageMeter`, get the sums of all processes. The loader itself stays whole, so `len(test_loader)` and
`len(test_loader.dataset)` go on to count everything.

## Why
Evaluated on every process, the numbers are right, and take as long as on one. Shared out here, integers are exactly
those of one process: each batch is the same, and is seen once. Sums of floating-point numbers differ by the order of
additions alone. A mean over batches stays one: the sum over all batches is divided by the number of all.

## Before
    with torch.no_grad():
        for x, y in test_loader:
            correct += (model(x).argmax(1) == y).sum().item()
    print(correct / len(test_loader.dataset))

## After
    with torch.no_grad():
        for x, y in amp.share_evaluation(test_loader):
            correct += (model(x).argmax(1) == y).sum().item()
        correct = amp.sum_evaluated(correct)
    print(correct / len(test_loader.dataset))

## When it declines
Never: an evaluation that is not understood stays whole on every process, which a note says with the reason (AMP286).
It is so where a loop ends early, draws random numbers, writes files or shows each batch, where a result is used that
is of the last batch, where the model runs with gradients or without `eval()`, and with `--target torch`.

## Leaving it out
Yes: each process evaluates everything then.

## Source
https://pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather_object
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change, Context
from amp_rules.plan.evaluation.loops import SharedLoop
from amp_rules.plan.evaluation.notes import of_evaluations
from amp_rules.plan.report import Note
from amp_rules.plan.rule import Rule
from amp_rules.plan.wanted import wants

RULE = Rule(
    "AMP223",
    "share-evaluation",
    "Each process gets its share of an evaluation.",
    "distribution",
    optional=True,
    together=True,
)


def changes(context: Context) -> Iterator[Change]:
    """Yield the edits for each evaluation that is shared out."""
    if not context.options.shard_eval or context.options.target == "torch":
        return
    for shared in context.processes.evaluations.shared:
        module = shared.module
        text = module.text(shared.loader)
        written = context.vocabulary.shared_evaluation(module, shared.loader)
        yield Change.written(RULE, module, shared.loader, f"each process evaluates its part of `{text}`", written)
        sums, worked_out = _sums(shared)
        lists = list(shared.found.lists)
        if sums or lists:
            named = ", ".join(f"`{path}`" for path in [*(path for group in sums for path in group), *lists])
            message = f"{named} of all processes, as one would have found"
            written = context.vocabulary.put_together(module, shared.loop, sums, lists, worked_out)
            yield Change.written(RULE, module, shared.loop, message, written)


def notes(context: Context) -> Iterator[Note]:
    """Yield which evaluations are shared out, and why others are not."""
    if context.options.shard_eval and wants(context.options, RULE.code):
        made = {change.node for change in context.made if change.rule is RULE}
        yield from of_evaluations(context.processes, made, in_torch=context.options.target == "torch")


def _sums(shared: SharedLoop) -> tuple[list[list[str]], list[str]]:
    """What is summed, in groups, and statements that work out again what rests on it."""
    sums = [[path] for path in shared.found.sums]
    worked_out: list[str] = []
    for path, meter in shared.found.meters.items():
        sums.append([f"{path}.{name}" for name in meter.sums])
        rows = [
            f"{path}.{name} = {ast.unparse(_Of(path, meter.receiver).visit(_copy(value)))}"
            for name, value in meter.derived
        ]
        divisors = sorted({f"{path}.{name}" for _, value in meter.derived for name in _divisors(value)})
        if divisors:  # as without a batch, where nothing was worked out
            rows = [f"if {' and '.join(divisors)}:", *(f"    {row}" for row in rows)]
        worked_out += rows
    return sums, worked_out


def _divisors(value: ast.expr) -> Iterator[str]:
    for part in ast.walk(value):
        if isinstance(part, ast.BinOp) and isinstance(part.op, (ast.Div, ast.FloorDiv)):
            if isinstance(part.right, ast.Attribute):
                yield part.right.attr


def _copy(value: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(value), mode="eval").body


class _Of(ast.NodeTransformer):
    """Puts an object's own name in the place of ``self``."""

    def __init__(self, path: str, receiver: str) -> None:
        self._path = path
        self._receiver = receiver

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """The object itself, where ``self`` stood."""
        return ast.parse(self._path, mode="eval").body if node.id == self._receiver else node
