"""Sums and meters of the batches of one process that a script shows, and that nothing reduces."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.clock_times import is_time
from amp_rules.plan.listing import listed
from amp_rules.plan.own_ddp.beside_copies import beside_copies
from amp_rules.plan.own_ddp.loggers_shown import shown_loggers
from amp_rules.plan.own_ddp.losses_shown import shown_losses
from amp_rules.plan.own_ddp.meters import are_meters, meters_of
from amp_rules.plan.own_ddp.meters_shown import shown_meters
from amp_rules.plan.own_ddp.of_themselves import is_only_told_of_itself
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.shares import Named, Shares
from amp_rules.plan.own_ddp.shown_within import shown_within
from amp_rules.plan.own_ddp.told_by_callers import is_told_by_callers
from amp_rules.plan.rest_shown import root_of
from amp_rules.plan.summed_terms import is_of_batch
from amp_rules.plan.training_loops import TrainingLoop, added_to, variable
from amp_rules.plan.ways_to_show import is_shown, tells
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import FunctionNode, arguments_of
from amp_rules.source.syntax import is_text, last_name, values_given, walk
from amp_rules.torch.checkpoints import SAVES


def shown_of_one(own: OwnDdp, shares: Shares, named: Named) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first such sum of each loop that trains, with the names of the others; then all are ``named``."""
    metrics = shares.metrics
    loops = metrics.training_loops
    # Numbers that could be reduced, and are not, have a note of their own, unless a library looks after others.
    reduced = metrics.found if loops and not metrics.looked_after else []
    noted = {item.site.body for item in reduced}
    named |= {
        (item.site.body, root_of(path))
        for item in reduced
        for path in ([item.path] if item.path is not None else blocks.reads(item.site.node))
    }
    for loop in loops:
        if loop.body in noted:
            yield from _shown_meanwhile(shares, loop, named)
            continue
        nodes = [*walk(loop.loop)]
        added = {path: node for node in nodes for path in _sums(node) if _is_of_batch(shares, node)}
        for path, *_ in meters_of(own.program, loop):
            added.setdefault(path, loop.loop)
        for path, node in _meters_of_container(own, loop):
            added.setdefault(path, node)
        lists = {path: node for node in nodes for path in _lists(shares, node)}
        added = {
            path: node
            for path, node in added.items()
            if not _is_evaluated_by_first(own, loop, node) and not _begins_anew(loop, path, node)
        }
        told = [*shown_meters(own, shares, loop), *shown_loggers(own, shares, loop)]
        told = [path for path in told if not _is_made_in_each_round(loop, path)]
        added |= {path: loop.loop for path in told if path not in added}
        names = [
            path for path in added if path in told or _is_told(loop, path) or is_told_by_callers(own, loop, [path])
        ]
        names = [path for path in names if path in told or not metrics.may_tell_of(loop.body, path)]
        kept = [path for path in lists if path not in names]
        kept = [path for path in kept if is_averaged(loop, path) or _is_given_averaged(own, loop, path)]
        kept = [path for path in kept if not metrics.may_tell_of(loop.body, path)]
        added |= {path: lists[path] for path in kept}
        names += kept
        whole = Site(loop.module, loop.scope, loop.body, loop.loop)
        names = [path for path in names if not is_only_told_of_itself(own.program, whole, path)]
        if names:
            quoted = listed([f"`{name}`" for name in names])
            several = len(names) > 1
            keeps = f"keep{'' if several else 's'} numbers of" if kept else f"add{'' if several else 's'} up"
            its = "their" if several else "its"
            text = f"AMP233: {quoted} {keeps} the batches of one process"
            rest = f"{its} averages that are shown cover only that share of the data"
            over_all = [path for path in names if _is_divided_by_all(shares, loop, path)]
            if over_all:
                rest = "what is shown covers only that share of the data"
            if len(over_all) == len(names):
                shown, averages = ("they are", "averages") if several else ("it is", "average")
                rest = f"{shown} shown divided by the length of all the data: about 1/N of {its} {averages}"
            yield loop.module, added[names[0]], f"{text}: {rest}"
            named |= {(loop.body, root_of(name)) for name in names}
            continue
        in_files = _saved(own, loop) if added else set()
        saved = [path for path in added if path in in_files and not metrics.may_tell_of(loop.body, path)]
        if saved:
            quoted = listed([f"`{name}`" for name in saved])
            many = len(saved) > 1
            text = f"AMP233: {quoted} add{'' if many else 's'} up the batches of one process: what is saved of"
            text += f" {'them' if many else 'it'} covers only that share of the data"
            yield loop.module, added[saved[0]], text
        if metrics.may_be_of_all(loop.body):
            yield from _shown_meanwhile(shares, loop, named)
    yield from shown_within(own, shares, loops, named)
    yield from shown_losses(own, shares, loops, named)
    yield from beside_copies(own, shares, named)


def _saved(own: OwnDdp, loop: TrainingLoop) -> set[str | None]:
    """What checkpoints below a loop have for an entry, or divided by something: ``{"loss": total / n}``."""
    below = [node for node in blocks.walk_body(loop.body) if getattr(node, "lineno", 0) > loop.line]
    entries = [
        entry
        for call in below
        if isinstance(call, ast.Call) and call.args and own.program.callee_names(call, loop.scope) & SAVES
        for entry in _entries(below, call.args[0])
    ]
    return {
        variable(entry.left if isinstance(entry, ast.BinOp) and isinstance(entry.op, ast.Div) else entry)
        for entry in entries
    }


def _entries(nodes: list[ast.AST], saved: ast.expr) -> list[ast.expr]:
    """What a dictionary holds that is written out, or that the statements above give a variable."""
    if isinstance(saved, ast.Name):
        made = [node.value for node in nodes if isinstance(node, ast.Assign) and saved.id in blocks.writes(node)]
        return made[0].values if len(made) == 1 and isinstance(made[0], ast.Dict) else []
    return saved.values if isinstance(saved, ast.Dict) else []


def _is_made_in_each_round(loop: TrainingLoop, path: str) -> bool:
    """Whether each batch makes a meter anew: it adds nothing up."""
    body = loop.loop.body if isinstance(loop.loop, (ast.For, ast.While)) else []
    return any(isinstance(item, ast.Assign) and path in blocks.writes(item) for item in body)


def _is_divided_by_all(shares: Shares, loop: TrainingLoop, path: str) -> bool:
    """Whether a sum is divided by what counts the whole of the dataset: ``total / len(dataset)``."""
    for node in blocks.walk_body(loop.body):
        if not isinstance(node, (ast.BinOp, ast.AugAssign)) or not isinstance(node.op, ast.Div):
            continue
        over, by = (node.target, node.value) if isinstance(node, ast.AugAssign) else (node.left, node.right)
        if node.lineno >= loop.line and any(variable(part) == path for part in walk(over)):
            if shares.metrics.whole_lengths.count(by, loop.scope) is not None:
                return True
    return False


def _shown_meanwhile(shares: Shares, loop: TrainingLoop, named: Named) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first sum that a loop shows while it adds up, and that may be made one of all after it alone.

    The text names the others of the loop, too, and all are put to those that are ``named``.
    """
    inner = [*walk(loop.loop)]
    puts_together = shares.metrics.exchanges.puts_together
    if any(isinstance(node, ast.Call) and puts_together(node) for node in inner):
        return
    shown = {
        path: node
        for node in reversed(inner)
        for path in (_sums(node) if _is_of_batch(shares, node) else ())
        if not _begins_anew(loop, path, node) and _is_told(loop, path, inner)
    }
    if shown:
        named |= {(loop.body, root_of(path)) for path in shown}
        ordered = sorted(shown, key=lambda path: getattr(shown[path], "lineno", 0))
        names = listed([f"`{path}`" for path in ordered])
        text = f"AMP233: what the loop shows of {names} while it runs is of the batches of one process alone"
        yield loop.module, shown[ordered[0]], text


def _is_evaluated_by_first(own: OwnDdp, loop: TrainingLoop, node: ast.AST) -> bool:
    """Whether the first process alone runs a loop within the training that adds up: the data are all its own.

    A loader that gives it a share there has a note of its own.
    """
    inner = blocks.loop_around(loop.module, node)
    return inner is not None and inner is not loop.loop and own.is_of_first_alone(loop.module, inner)


def _begins_anew(loop: TrainingLoop, path: str, node: ast.AST) -> bool:
    """Whether each round sets a sum above what it adds: ``loss = 0``, then ``loss += part``, which is of one batch."""
    return not _is_set_before(loop, path) or any(
        isinstance(item, ast.Assign)
        and item.lineno < getattr(node, "lineno", 0)
        and path in blocks.writes(item)
        and path not in blocks.reads(item.value)
        for item in loop.loop.body
    )


def _is_set_before(loop: TrainingLoop, path: str) -> bool:
    """Whether a sum may have a value when the first round begins: its variable is written outside the loop, too."""
    if not path.isidentifier():
        return True
    inner = set(loop.inner)
    arguments = {item.arg for item in arguments_of(loop.body)} if isinstance(loop.body, FunctionNode) else set()
    shared = any(isinstance(node, (ast.Global, ast.Nonlocal)) and path in node.names for node in walk(loop.body))
    return (
        shared
        or path in arguments
        or any(
            isinstance(node, ast.Name) and node.id == path and not isinstance(node.ctx, ast.Load) and node not in inner
            for node in blocks.walk_body(loop.body)
        )
    )


def _sums(node: ast.AST) -> Iterator[str]:
    """Yield what a statement adds a number to, and no text."""
    if isinstance(node, (ast.AugAssign, ast.Assign)) and not is_text(node.value):
        yield from added_to(node)


def _meters_of_container(own: OwnDdp, loop: TrainingLoop) -> Iterator[tuple[str, ast.AST]]:
    """Yield the meters that a loop fills in a container: ``meters["loss"].update(loss.item())``."""
    for node in walk(loop.loop):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "update":
            held = node.func.value
            path = variable(held) if isinstance(held, ast.Subscript) else None
            if path is not None and not any(is_time(own.program, loop, item) for item in node.args):
                if are_meters(own.program, own.program.flow.values(held, loop.scope)):
                    yield path, node


def _lists(shares: Shares, node: ast.AST) -> Iterator[str]:
    """Yield what a call appends a number of a batch to: ``losses.append(loss.item())``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
        path = _held_by(node.func.value)
        if path is not None and len(node.args) == 1:
            if is_of_batch(node.args[0], shares.ranks):
                yield path


def _held_by(node: ast.expr) -> str | None:
    """The text of what holds a list, by a key that a variable says too: ``history[phase]["loss"]``."""
    inner = node
    while isinstance(inner, (ast.Attribute, ast.Subscript)):
        inner = inner.value
    return ast.unparse(node) if isinstance(inner, ast.Name) else None


def _averages(loop: TrainingLoop, path: str) -> tuple[list[ast.AST], list[ast.expr], set[str]]:
    """What a function runs from a loop on, the means of a list there, and the variables of these."""
    nodes = [node for node in blocks.walk_body(loop.body) if getattr(node, "lineno", 0) >= loop.line]
    means = [node for node in nodes if isinstance(node, ast.expr) and _is_mean_of(node, path)]
    names = {
        name
        for node in nodes
        if isinstance(node, ast.Assign) and any(part in means for part in walk(node.value))
        for name in blocks.writes(node)
    }
    return nodes, means, names


def _is_given_averaged(own: OwnDdp, loop: TrainingLoop, path: str) -> bool:
    """Whether a caller shows the mean of a list, which alone the function gives back: ``return np.mean(losses)``."""
    nodes, means, names = _averages(loop, path)
    given = [node.value for node in nodes if isinstance(node, ast.Return) and node.value is not None]
    info = own.program.function_of(loop.body)
    if info is None or not given or not all(value in means or blocks.path_of(value) in names for value in given):
        return False
    for caller in map(calling, own.program.flow.callers(info)):
        statement = caller.statement
        if not isinstance(statement, ast.Assign) or statement.value is not caller.node:
            continue
        told = blocks.writes(statement)
        for node in blocks.walk_body(caller.body):
            if isinstance(node, ast.Call) and tells(node) and node.lineno > caller.line:
                if blocks.touches(told, {name for item in values_given(node) for name in blocks.reads(item)}):
                    return True
    return False


def is_averaged(loop: TrainingLoop, path: str) -> bool:
    """Whether the function shows the mean of a list from its loop on."""
    nodes, means, names = _averages(loop, path)
    return any(is_shown(loop, node) for node in means) or any(
        isinstance(node, (ast.Name, ast.Attribute))
        and isinstance(node.ctx, ast.Load)
        and blocks.path_of(node) in names
        and is_shown(loop, node)
        for node in nodes
    )


def _is_mean_of(node: ast.expr, path: str) -> bool:
    """``mean(losses)``, ``torch.tensor(losses).mean()``, ``sum(losses) / len(losses)``."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        total = node.left
        return isinstance(total, ast.Call) and last_name(total.func) == "sum" and _is_given(total, path)
    return isinstance(node, ast.Call) and last_name(node.func) in _MEANS and _is_given(node, path)


def _is_given(call: ast.Call, path: str) -> bool:
    """Whether a function is given a list, or a method is one of what a function makes of it."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    given = [*call.args[:1], *(owner.args[:1] if isinstance(owner, ast.Call) else ())]
    given += [
        part
        for item in given
        if isinstance(item, ast.Call) and last_name(item.func) in _ARRAYS
        for part in item.args[:1]
    ]
    return any(_held_by(item) == path for item in given)


_ARRAYS = frozenset({"array", "asarray", "cat", "concatenate", "stack", "tensor"})
_MEANS = frozenset({"mean", "fmean", "average", "nanmean"})


def _is_of_batch(shares: Shares, node: ast.AST) -> bool:
    value = node.value if isinstance(node, (ast.AugAssign, ast.Assign)) else None
    return value is not None and is_of_batch(value, shares.ranks)


def _held(node: ast.Name | ast.Attribute | ast.Subscript) -> str | None:
    """What holds a number: of ``losses.avg`` the meter."""
    is_average = isinstance(node, ast.Attribute) and node.attr in ("avg", "average", "global_avg", "val")
    return variable(node.value if is_average and isinstance(node, ast.Attribute) else node)


def _is_told(loop: TrainingLoop, path: str, nodes: list[ast.AST] | None = None) -> bool:
    """Whether the function shows a sum from its loop on, or in some of it, or what it is divided to."""
    if nodes is None:
        nodes = [node for node in blocks.walk_body(loop.body) if getattr(node, "lineno", 0) >= loop.line]
    # ``running[0] += loss.item()``, and ``running / rounds`` is shown
    names = {path, path.partition("[")[0]}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Div):
            if any(variable(part) in names for part in walk(node.value.left)):
                names |= blocks.writes(node)
    return any(
        isinstance(node, (ast.Name, ast.Attribute, ast.Subscript))
        and isinstance(node.ctx, ast.Load)
        and _held(node) in names
        and is_shown(loop, node)
        for node in nodes
    )
