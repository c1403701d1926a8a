"""Layers that each process runs or leaves out by a draw of its own, or a number out of its batch: stochastic depth."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.batch_norms import BatchNorms
from amp_rules.plan.changing import Changing
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk
from amp_rules.torch.varying import DRAWN

_NOT_KNOWN = 2
"""How little is said by what lets something run or not of which it is not known whether it has batch norm."""


def skipped_by_some(program: Program, norms: BatchNorms) -> str | None:
    """Why batch norm may run on some ranks alone, by what is another on each; None where nothing says so.

    Ranks that leave it out would leave the others waiting for their statistics. Of several, the one that says most:
    a draw around what has batch norm for certain, then any test around that, then one around what is not known.
    """
    found = sorted(_skips(program, norms), key=lambda item: item[0])
    if not found:
        return None
    rank, text = found[0]
    if rank >= _NOT_KNOWN:
        return f"`{text}` lets each process decide which layers it runs, and whether batch norm is in them is not known"
    return f"`{text}` lets each process decide whether it runs, and the others would wait for its statistics"


def _skips(program: Program, norms: BatchNorms) -> Iterator[tuple[int, str]]:
    """Yield what lets layers run or not, with how little it says."""
    changing = Changing(program, by_rank=True)
    for call, body, scope in program.calls():
        module = scope.module
        if not program.is_model_code(body):
            continue
        has_norm = any(map(norms.are_in, program.roles.modules(call.func, scope)))
        if not has_norm and not _is_of_loop(module, call):
            continue
        for test in _tests(module, call, body):
            if changing.changes(test, Site(module, scope, body, test)):
                yield _NOT_KNOWN - has_norm - (has_norm and _is_drawn(program, test)), module.text(test)
        for loop in blocks.enclosing(module, call):
            if isinstance(loop, (ast.For, ast.AsyncFor)) and _is_drawn(program, loop.iter):
                yield _NOT_KNOWN - 2 * has_norm, module.text(loop.iter)


def _is_of_loop(module: Module, call: ast.Call) -> bool:
    """Whether a call runs what a loop around it goes through, which is not known: a layer, perhaps."""
    return any(
        isinstance(loop, (ast.For, ast.AsyncFor)) and blocks.path_of(call.func) in blocks.writes_target(loop)
        for loop in blocks.enclosing(module, call)
    )


def _tests(module: Module, call: ast.Call, body: ast.AST) -> Iterator[ast.expr]:
    """Yield the tests that decide whether a call is reached: those around it, and around what leaves before it."""
    around = set(module.ancestors(call))
    for item in module.ancestors(call):
        if item is body:
            break
        if isinstance(item, (ast.If, ast.IfExp, ast.While)) and call not in set(walk(item.test)):
            yield item.test
    for node in blocks.walk_body(body):
        if isinstance(node, (ast.Return, ast.Continue, ast.Break)) and _may_leave_out(module, node, call):
            for parent in blocks.enclosing(module, node):
                if isinstance(parent, ast.If) and parent not in around:
                    yield parent.test


def _may_leave_out(module: Module, leaving: ast.stmt, call: ast.Call) -> bool:
    """Whether a call is not reached once something leaves: below it, or in a further round of a loop around both."""
    if call in set(walk(leaving)):
        return False
    loops = [item for item in blocks.enclosing(module, leaving) if isinstance(item, blocks.LOOPS)]
    shared = [item for item in loops if item in set(blocks.enclosing(module, call))]
    if isinstance(leaving, ast.Return):
        return bool(shared) or leaving.lineno < call.lineno
    if not loops or loops[0] not in shared:
        return False  # the loop that it leaves is another one
    return isinstance(leaving, ast.Break) or leaving.lineno < call.lineno


def _is_drawn(program: Program, node: ast.expr) -> bool:
    """Whether an expression draws at random itself: ``random.sample(self.blocks, 2)``."""
    for part in walk(node):
        located = program.locate(part) if isinstance(part, ast.Call) else None
        if located is not None and isinstance(part, ast.Call):
            if any(name.startswith(DRAWN) for name in program.callee_names(part, located[1])):
                return True
    return False
