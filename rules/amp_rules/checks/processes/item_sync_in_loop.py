"""Training loops that wait for the GPU in every step."""

from __future__ import annotations

import ast

from amp_rules.lattice.mode import Mode
from amp_rules.lint.check import Check, LintedFile
from amp_rules.source.index import FileIndex, Loop
from amp_rules.source.syntax import last_name, spelling

_READS = frozenset({"item", "cpu", "tolist", "numpy"})


class ItemSyncInLoop(Check):
    """Training loops that wait for the GPU in every step.

    ## What it does

    Finds `.item()`, `.cpu()`, `.tolist()`, `.numpy()`, `float()` and `print()` of the loss in every turn of a loop
    that calls `backward()`.

    ## Why

    Each of them waits until the GPU has done all that was asked of it, so that the next step is launched only then.
    In half precision kernels are short, and launching is what a step waits for: a step of 400 kernels at 5 us each
    is 2 ms of launches that overlap with nothing.

    ## Example

        for batch in loader:
            loss = step(batch)
            loss.backward()
            total += loss.item()

    ## Use instead

        for batch in loader:
            loss = step(batch)
            loss.backward()
            total += loss.detach()
        print(total.item())

    ## When it is silent

    When the value is read in an `if` only, as in `if i % 100 == 0:`, when the loop has no backward pass, and for
    values other than the one that `backward` is called on.

    ## Source

    https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html#avoid-unnecessary-cpu-gpu-synchronization
    """

    code = "AMP952"
    name = "item-sync-in-loop"
    severity = "performance"
    message = "A training loop waits for the GPU in every step."
    advice = "Sum up `loss.detach()` on the GPU and read it now and then, as in `if step % 100 == 0:`."
    preview = "how much a wait for the GPU costs depends on the length of the step"
    triggers = (".backward(",)

    def applies(self, mode: Mode) -> bool:
        """There is nothing to wait for on a CPU."""
        return mode.device == "cuda"

    def visit_module(self, file: LintedFile) -> None:
        """Look at the loops around each backward pass."""
        module = file.module
        index = module.index
        told: set[Loop] = set()
        for call in index.named.get("backward", ()):
            loops = index.loops_around(call)
            loss = _loss_of(call)
            if not loops or loss is None or loops[0] in told:
                continue
            read = next(
                (item for item in index.calls if _reads(item, loss) and _in_each_turn(index, item, loops[0])), None
            )
            if read is not None:
                told.add(loops[0])
                self.report_in(file, read, f"`{module.module.text(read)}` waits for the GPU in every step")


def _loss_of(call: ast.Call) -> str | None:
    """``loss`` of ``loss.backward()`` and of ``scaler.scale(loss).backward()``."""
    held: ast.expr | None = call.func.value if isinstance(call.func, ast.Attribute) else None
    if isinstance(held, ast.Call):
        held = held.args[0] if held.args else None
    if isinstance(held, ast.BinOp):
        held = held.left
    return spelling(held) if held is not None else None


def _reads(call: ast.Call, loss: str) -> bool:
    name = last_name(call.func)
    if isinstance(call.func, ast.Attribute) and name in _READS:
        value = call.func.value
        while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            value = value.func.value
        return spelling(value.value if isinstance(value, ast.Attribute) and value.attr == "data" else value) == loss
    if isinstance(call.func, ast.Name) and name in ("float", "print"):
        return any(spelling(item) == loss for item in call.args)
    return False


def _in_each_turn(index: FileIndex, node: ast.AST, loop: Loop) -> bool:
    """Whether a loop gets to ``node`` in each turn, with nothing asked in between."""
    if index.loops_around(node)[:1] != [loop]:
        return False
    for item in index.ancestors(node):
        if item is loop:
            return True
        if isinstance(item, (ast.If, ast.IfExp, ast.ExceptHandler, ast.BoolOp)):
            return False
    return False
