"""Scores and means of one process's share of the data, in functions that reduce other numbers."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.file_names import more_places
from amp_rules.plan.listing import listed
from amp_rules.plan.own_ddp.exchanges import Exchanges
from amp_rules.plan.own_ddp.meters_shown import AVERAGES
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.shares import Named, Shares
from amp_rules.plan.own_ddp.shown_of_one import is_averaged
from amp_rules.plan.rest_shown import root_of
from amp_rules.plan.summed_terms import is_of_batch
from amp_rules.plan.training_loops import TrainingLoop
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import values_given, walk

_SCORES = ("scipy.stats.", "sklearn.metrics.")
"""Packages whose functions compute a score of guesses and labels, and exchange nothing."""
_NAMED = 3
"""Lists that a sentence names."""
_FILLING = frozenset({"append", "extend"})


def scores_of_one(own: OwnDdp, shares: Shares, named: Named) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first such score of each function; where it reduces nothing, the loop itself has a note.

    What they are made of is ``named`` then.
    """
    metrics = shares.metrics
    if metrics.looked_after:
        return
    told: set[ast.AST] = set()
    objects: dict[ast.AST, list[tuple[TrainingLoop, ast.expr]]] = {}
    for loop in metrics.loops:
        exchanges = metrics.exchanges
        if loop.body in told or exchanges.becomes_of_all(loop.body):
            continue
        reducing = [node for node in blocks.walk_body(loop.body) if _reduces(exchanges, node)]
        is_reduced_later = bool(reducing) and not set(reducing) & set(walk(loop.loop))
        kept = set(_kept(shares, loop)) if is_reduced_later else set()
        kept = {path for path in kept if not any(_may_take(own, loop, call, path) for call in reducing)}
        found = list(_scores(own, loop, kept)) if kept else []
        if found:
            told.add(loop.body)
            named.update((loop.body, path) for node in found for path in _about(loop, node))
            text = f"AMP233: `{loop.module.text(found[0])}` is the score of one process's share of the data, and is not"
            others = more_places(own.program, [(loop.module, node) for node in found])
            yield loop.module, found[0], f"{text} reduced like the numbers beside it{others}"
            continue
        averaged = [path for path in dict.fromkeys(_kept(shares, loop)) if path in kept and is_averaged(loop, path)]
        if averaged:
            told.add(loop.body)
            named.update((loop.body, path) for path in averaged)
            text = f"AMP233: {_kept_by(averaged)} of one process's share of the data: what is shown of"
            them = "them" if len(averaged) > 1 else "it"
            yield loop.module, loop.loop, f"{text} {them} is not reduced like the numbers beside it"
            continue
        asked = _asked_objects(own, shares, loop) if is_reduced_later else {}
        asked = {
            name: node for name, node in asked.items() if not any(_may_take(own, loop, it, name) for it in reducing)
        }
        objects.setdefault(loop.body, []).extend((loop, node) for node in asked.values())
    for body, rows in objects.items():
        if rows and body not in told:
            loop, node = rows[0]
            named.update((body, path) for item, other in rows for path in _about(item, other))
            text = (
                f"AMP233: `{loop.module.text(node)}` is of one process's share of the data, and is not reduced, as "
                "other numbers of this function are"
            )
            yield loop.module, node, text + more_places(own.program, [(item.module, other) for item, other in rows])


def _about(loop: TrainingLoop, node: ast.AST) -> set[str]:
    """The variables of a score: what it is made of, and what gets it."""
    return {root_of(path) for path in blocks.reads(node) | blocks.writes(blocks.statement_of(loop.module, node))}


def _asked_objects(own: OwnDdp, shares: Shares, loop: TrainingLoop) -> dict[str, ast.expr]:
    """Objects of the project that a loop tells of its batches, with what they are asked for below the loop.

    ``score.update(guesses, labels)``, and then ``info = score.result()`` or ``score.parts["loss"].avg``.
    """
    inner = set(walk(loop.loop))
    told = {
        path
        for node in inner
        if isinstance(node, ast.Call) and isinstance(loop.module.parents[node], ast.Expr)
        if (path := _object_of(own, loop, node)) is not None
        and any(is_of_batch(item, shares.ranks) for item in values_given(node))
    }
    found: dict[str, ast.expr] = {}
    for node in blocks.walk_body(loop.body) if told else ():
        if not isinstance(node, (ast.Call, ast.Attribute)) or node in inner or node.lineno <= loop.line:
            continue
        path = _object_of(own, loop, node) if isinstance(node, ast.Call) else _average_in(node)
        if path in told and not isinstance(loop.module.parents[node], ast.Expr):
            assert path is not None
            found.setdefault(path, node)
    return found


def _average_in(node: ast.Attribute) -> str | None:
    """The variable of an object of which an entry's average is read: ``score.parts["loss"].avg``."""
    held = node.value if node.attr in AVERAGES and isinstance(node.ctx, ast.Load) else None
    if not isinstance(held, ast.Subscript):
        return None
    while isinstance(held, (ast.Subscript, ast.Attribute)):
        held = held.value
    return held.id if isinstance(held, ast.Name) else None


def _object_of(own: OwnDdp, loop: TrainingLoop, call: ast.Call) -> str | None:
    """The variable of an object of a class of the project, no model, of which a call is a method."""
    held = call.func.value if isinstance(call.func, ast.Attribute) else None
    if not isinstance(held, ast.Name) or own.program.roles.modules(held, loop.scope):
        return None
    values = own.program.flow.values(held, loop.scope)
    is_known = bool(values) and all(value.kind == "instance" for value in values)
    return held.id if is_known and own.program.flow.callees(call) else None


def _kept_by(names: list[str]) -> str:
    """The lists, and what they do; of many the first ones."""
    keep = "keep" if len(names) > 1 else "keeps"
    return f"{listed([f'`{name}`' for name in names], _NAMED, 'more lists')} {keep} numbers"


def _reduces(exchanges: Exchanges, node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and exchanges.puts_together(node)


def _may_take(own: OwnDdp, loop: TrainingLoop, call: ast.AST, path: str) -> bool:
    """Whether a call may put a list together with those of the others: it is given, or read by what is called."""
    names = _made_of(loop, {path})
    assert isinstance(call, ast.Call)
    if blocks.touches(blocks.reads(call) | blocks.writes(blocks.statement_of(loop.module, call)), names):
        return True
    return any(
        isinstance(node, ast.Name) and node.id in names and node.id not in info.parameters
        for info in own.program.flow.callees(call)
        for node in blocks.walk_body(info.node)
    )


def _made_of(loop: TrainingLoop, names: set[str]) -> set[str]:
    """The variables below a loop that are made of others, and those."""
    nodes = [node for node in blocks.walk_body(loop.body) if isinstance(node, ast.Assign) and node.lineno > loop.line]
    found = set(names)
    for _ in nodes:
        made = {
            path for node in nodes if blocks.touches(blocks.reads(node.value), found) for path in blocks.writes(node)
        }
        if made <= found:
            break
        found |= made
    return found


def _kept(shares: Shares, loop: TrainingLoop) -> Iterator[str]:
    """Yield the lists that a loop puts something of its batches into: ``guesses.extend(guess.cpu().numpy())``."""
    for node in walk(loop.loop):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _FILLING:
            path = blocks.path_of(node.func.value)
            if path is not None and path.isidentifier() and len(node.args) == 1:
                if is_of_batch(node.args[0], shares.ranks):
                    yield path


def _scores(own: OwnDdp, loop: TrainingLoop, kept: set[str]) -> Iterator[ast.Call]:
    """Yield the scores below a loop that are given such lists alone, or what was made of them by another name."""
    kept = _made_of(loop, kept)
    for node in blocks.walk_body(loop.body):
        if not isinstance(node, ast.Call) or node.lineno <= loop.line:
            continue
        given = [item for item in values_given(node) if not isinstance(item, ast.Constant)]
        if given and all(blocks.reads(item) & kept for item in given[:2]):
            if any(name.startswith(_SCORES) for name in own.program.callee_names(node, loop.scope)):
                yield node
