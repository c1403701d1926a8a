"""Gradient accumulation that averages over the processes at every small step."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.rank_branches import uses_framework
from amp_rules.checks.common.wrapping import is_ddp
from amp_rules.lint.check import Check, LintedFile
from amp_rules.roles.written_processes import is_for_several
from amp_rules.source.index import FileIndex
from amp_rules.torch.idioms import NAMED_ACCUMULATION

_SAYS_SO = frozenset("no_sync require_backward_grad_sync delay_allreduce set_requires_gradient_sync".split())


class AccumulationWithoutNoSync(Check):
    """Gradient accumulation that averages over the processes at every small step.

    ## What it does

    Finds a loop or function with a `backward()` in every turn and an optimizer step only in some
    (`if (i + 1) % n == 0`), in a file that wraps its model in DistributedDataParallel, or is judged with `--ddp`,
    and has no `no_sync`. Where there is one, finds a choice (`a.no_sync() if last else nullcontext()`, or `if` and
    `else`) that enters it for the last small step of all.

    ## Why

    DistributedDataParallel averages gradients over the processes in each backward pass. With 4 small steps to one
    optimizer step, 3 of 4 rounds of communication are for nothing: the sum of the averages is the average of the
    sums. For a model of 1 GB of gradients on a 10 Gbit/s network that is 2.4 s per step. The other way round it is an
    error: what is left out of the average is the gradient of the last small step, so each process steps with its own
    and their weights part.

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

    When `no_sync` or `require_backward_grad_sync` occurs in the file and is not chosen the wrong way round, when a
    framework trains, where the model is wrapped under `if WORLD_SIZE > 1` as `amp-migrate --target torch` writes it
    (its averages are right, and its report tells of them), and when the test of the step counts nothing that is called
    after accumulation, and no literal number.

    ## Source

    https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """

    code = "AMP909"
    name = "accumulation-without-no-sync"
    severity = "performance"
    message = "Accumulated gradients are averaged over the processes in every backward pass."
    advice = (
        "Run all but the last backward pass of a step within `model.no_sync()`; with the runtime, `amp.no_sync(model)`."
    )
    triggers = ("DistributedDataParallel", ".backward(", ".no_sync")

    def visit_module(self, file: LintedFile) -> None:
        """Look for backward passes that happen more often than steps."""
        module = file.module
        index = module.index
        for chosen in index.uses("no_sync"):
            if isinstance(chosen, ast.Attribute) and _is_for_the_last(index, chosen):
                text = f"`{module.module.text(chosen)}` is entered for the last small step: each process then"
                self.report_in(file, chosen, f"{text} steps with its own gradients", severity="error")
        if index.words & _SAYS_SO or uses_framework(module):
            return
        made = [call for call in index.calls if is_ddp(module, call)]
        if made and all(is_for_several(module.module, call) for call in made):
            # ``amp-migrate --target torch`` wrote it, and says itself that it averages in each small step.
            return
        wraps = [module.dotted(call.func) or "" for call in made]
        if not (wraps or file.mode.ddp) or any(name.startswith(("apex.", "amp_runtime.apex.")) for name in wraps):
            # Apex's wrapper has no ``no_sync``, and neither has the runtime's.
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


# ---- the wrong way round -----------------------------------------------------------------------------------------


def _is_for_the_last(index: FileIndex, chosen: ast.Attribute) -> bool:
    """Whether a test chooses ``no_sync`` where it says that the small step is the last one."""
    child: ast.AST = chosen
    for item in index.ancestors(chosen):
        if isinstance(item, ast.IfExp) or (isinstance(item, ast.If) and item.orelse):
            body = item.body if isinstance(item.body, list) else [item.body]
            if child is item.test:
                return False
            steps = _counted_steps(index, chosen)
            parts = [*_parts(index, item.test, child in body)]
            asked = {(ast.unparse(test), said) for test, said in parts}
            # What a choice asks for both ways does not settle it: ``not last and not (not last and sharded)``.
            settled = [(test, said) for test, said in parts if (ast.unparse(test), not said) not in asked]
            return any(_says_last(index, chosen, test, said, steps) for test, said in settled)
        if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return False
        child = item
    return False


def _parts(index: FileIndex, test: ast.expr, outcome: bool) -> Iterator[tuple[ast.expr, bool]]:
    """Yield the parts of a test with what they say where it comes out like that, or may alone bring that about."""
    if isinstance(test, ast.BoolOp):
        for part in test.values:
            yield from _parts(index, part, outcome)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _parts(index, test.operand, not outcome)
    else:
        held = index.values_of(test) if isinstance(test, ast.Name) else []
        if len(held) == 1 and not isinstance(held[0], ast.Name):
            yield from _parts(index, held[0], outcome)
        else:
            yield test, outcome


def _counted_steps(index: FileIndex, chosen: ast.AST) -> set[tuple[str, bool]] | None:
    """What the tests around the optimizer's steps say of a remainder, in the same function; None without a step."""
    scope = index.scope(chosen)
    steps = [call for call in index.named.get("step", ()) if index.scope(call) is scope and _is_of_optimizer(call)]
    if not steps:
        return None
    return {
        (ast.unparse(part), said)
        for call in steps
        for test, outcome in index.branches(call)
        for part, said in _parts(index, test, outcome)
        if _divisors(part)
    }


def _says_last(
    index: FileIndex, chosen: ast.AST, test: ast.expr, outcome: bool, steps: set[tuple[str, bool]] | None
) -> bool:
    """Whether a test that comes out like that says that the small step is the last before the optimizer's."""
    if _divisors(test):
        if steps is not None:
            return (ast.unparse(test), outcome) in steps
        return _counts(test) and _is_full(test) is outcome
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return False
    if not isinstance(test.ops[0], (ast.Eq, ast.GtE) if outcome else (ast.NotEq, ast.Lt)):
        return False
    sides = ast.unparse(test.left), ast.unparse(test.comparators[0])
    return any(sides in _lasts(loop) for loop in index.loops_around(chosen))


def _is_full(test: ast.expr) -> bool | None:
    """What ``(i + 1) % n``, or that with ``== 0``, says of whether ``n`` small steps are full; None of other tests."""
    rest, is_zero = test, False
    if isinstance(test, ast.Compare) and isinstance(test.comparators[0], ast.Constant) and len(test.ops) == 1:
        if test.comparators[0].value != 0 or not isinstance(test.ops[0], (ast.Eq, ast.NotEq)):
            return None
        rest, is_zero = test.left, isinstance(test.ops[0], ast.Eq)
    if isinstance(rest, ast.BinOp) and isinstance(rest.op, ast.Mod) and isinstance(rest.left, ast.BinOp):
        if isinstance(rest.left.op, ast.Add) and ast.unparse(rest.left.right) == "1":
            return is_zero
    return None


def _lasts(loop: ast.AST) -> set[tuple[str, str]]:
    """Both sides of the tests that are true in the last turn of a loop with a counter."""
    if not isinstance(loop, ast.For) or not isinstance(loop.iter, ast.Call) or len(loop.iter.args) != 1:
        return set()
    of, given = ast.unparse(loop.iter.func), ast.unparse(loop.iter.args[0])
    target = loop.target
    if of == "enumerate" and not loop.iter.keywords and isinstance(target, ast.Tuple):
        target, given = target.elts[0], f"len({given})"
    elif of != "range":
        return set()
    counter = ast.unparse(target)
    return {(counter, f"{given} - 1"), (f"{counter} + 1", given)}
