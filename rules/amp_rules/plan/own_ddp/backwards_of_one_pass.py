"""Backward passes with no forward pass since the last one: ``DistributedDataParallel`` averages the gradients once."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.averaging import may_average
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.wrappers import wrapped_by
from amp_rules.roles.sites import Backward, Site
from amp_rules.source import blocks
from amp_rules.source.index import leaves_before
from amp_rules.source.modules import Module
from amp_rules.source.syntax import children, last_name, walk
from amp_rules.torch.wrappers import DISTRIBUTED_DATA_PARALLEL

_WITHOUT_GRADIENT = frozenset({"detach", "item", "tolist", "numpy", "data"})
_MAX_DEPTH = 12
"""Variables between a pass through a model and the loss that is made of it."""


def backwards_of_one_pass(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first such backward pass of each body, where the gradients of both go into one step."""
    wraps = [site for site in own.program.calls_to(DISTRIBUTED_DATA_PARALLEL) if site.module in own.modules]
    if not wraps or len(own.program.backwards) < 2 or may_average(own.program):
        return
    told: set[ast.AST] = set()
    for second in own.program.backwards:
        if second.module not in own.modules or second.body in own.uncalled | told:
            continue
        first = _ahead(own, second)
        if first is None or _is_held_back(first) or _is_held_back(second):
            continue
        passes = _Passes(own, wraps)
        both = passes.behind(first) & passes.behind(second)
        if both and not _is_parted(own, first, second, wraps):
            told.add(second.body)
            name = sorted(both)[0]
            text = (
                f"no pass through `{name}` lies between the backward pass of line {first.told_line} and this one: "
                "DistributedDataParallel averages the gradients of the first alone, and each process adds its own of "
                "this one, so that the models become different; add both losses up, and call `backward()` once"
            )
            yield second.module, second.node, text


def _ahead(own: OwnDdp, second: Backward) -> Backward | None:
    """The backward pass that comes last before another one in its body, on every way there or in a branch above it."""
    here = [item for item in own.program.backwards if item.body is second.body and item.line < second.line]
    last = max(here, key=lambda item: item.line, default=None)
    if last is None or not _comes_to(last, second):
        return None
    loop = blocks.loop_around(last.module, last.node)
    return last if loop is blocks.loop_around(second.module, second.node) else None


def _comes_to(first: Backward, second: Backward) -> bool:
    """Whether the way goes from one backward pass to the other: the first is run on every way, or the second is."""
    if _outermost(first) in set(blocks.statements_above(second.module, second.statement, second.body)):
        return True
    later = _outermost(second)
    suite = blocks.place(second.module, later).suite
    current: ast.stmt = first.statement
    while current not in suite:
        parent = first.module.parents[current]
        if not isinstance(parent, (ast.If, ast.With, ast.AsyncWith)):
            return False
        current = parent
    return suite.index(current) < suite.index(later) and not leaves_before(first.module, first.node, second.node)


def _outermost(item: Site) -> ast.stmt:
    """The statement, or the block around it, of those that are always run: ``with``."""
    found = item.statement
    for parent in blocks.enclosing(item.module, found):
        if not isinstance(parent, (ast.With, ast.AsyncWith)):
            break
        found = parent
    return found


def _is_held_back(item: Site) -> bool:
    """Whether a backward pass stands under ``no_sync``."""
    return any(
        isinstance(parent, ast.With) and any("no_sync" in ast.unparse(head.context_expr) for head in parent.items)
        for parent in blocks.enclosing(item.module, item.node)
    )


def _is_parted(own: OwnDdp, first: Backward, second: Backward, wraps: list[Site]) -> bool:
    """Whether a model may be run between two backward passes, a step made, or gradients cleared."""
    after = first.statement.end_lineno or first.line
    for node in blocks.walk_body(first.body):
        if not isinstance(node, ast.Call) or not after < node.lineno or node.lineno > second.line:
            continue
        if node is second.call:
            continue
        site = Site(first.module, first.scope, first.body, node)
        if own.program.runs_step(node) or own.program.runs_forward(node) or last_name(node.func) == "zero_grad":
            return True
        if wrapped_by(own, node.func, site, wraps):
            return True
    return False


class _Passes:
    """The passes through wrapped models that a loss is made of."""

    def __init__(self, own: OwnDdp, wraps: list[Site]) -> None:
        self._own = own
        self._wraps = wraps

    def behind(self, backward: Backward) -> set[str]:
        """What the models are called there."""
        return self._of(backward.loss, backward, _MAX_DEPTH)

    def _of(self, node: ast.expr, at: Site, depth: int) -> set[str]:
        found: set[str] = set()
        pending: list[ast.AST] = [node]
        while pending:
            part = pending.pop()
            if isinstance(part, ast.Attribute) and part.attr in _WITHOUT_GRADIENT:
                continue
            if isinstance(part, ast.Call) and last_name(part.func) in _WITHOUT_GRADIENT:
                continue
            if isinstance(part, ast.Call) and wrapped_by(self._own, part.func, at, self._wraps):
                path = blocks.path_of(part.func)
                if path is not None and not self._own.program.without_gradients(at.module, part, at.body):
                    found.add(path)
            path = blocks.path_of(part) if isinstance(part, (ast.Name, ast.Attribute)) else None
            for value, where in self._assigned(path, at) if path is not None and depth else ():
                found |= self._of(value, where, depth - 1)
            pending.extend(children(part))
        return found

    def _assigned(self, path: str, at: Site) -> Iterator[tuple[ast.expr, Site]]:
        """Yield what a variable may have been assigned last above a place."""
        above = blocks.statements_above(at.module, at.statement, at.body)
        for statement in sorted(above, key=lambda item: item.lineno, reverse=True):
            certain = False
            for node in walk(statement):
                if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and path in blocks.writes(node):
                    if node.value is not None:
                        yield node.value, Site(at.module, at.scope, at.body, node.value)
                    is_plain = not isinstance(node, ast.AugAssign)
                    around = _outermost(Site(at.module, at.scope, at.body, node))
                    certain = certain or (is_plain and around is statement)
            if certain:
                return
