"""Loops over shared loaders, and what they add up: sums and counts of the batches of one rank."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeGuard

from amp_rules.plan.training_flags import Flag, flag_in, flag_of, flag_of_calls, is_told_to_train
from amp_rules.roles.batches import DataFlow
from amp_rules.roles.loaders import LoaderUse
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Backward, Site, calling
from amp_rules.source import blocks
from amp_rules.source.syntax import is_text, walk

_MAX_CALLERS = 3
"""Functions through which a sum is handed back as it is; beyond, it is taken for what its callers make of it."""


SHOWING = frozenset(
    {"print", "format", "info", "debug", "set_postfix", "set_description", "write", "add_scalar", "log"}
)
"""Functions and methods that show a number, or make a text of it."""


@dataclass(frozen=True)
class TrainingLoop(Site):
    """A ``for`` loop over a loader that is shared out.

    Attributes:
        use: the loader that it iterates.
        evaluates: whether other rounds of it evaluate, over loaders that are not shared out: it trains by a flag.
        flag: that flag, where one variable is asked.
        stepping: the statements of the program in which optimizers step.
    """

    use: LoaderUse
    evaluates: bool
    flag: Flag | None = None
    stepping: frozenset[ast.AST] = frozenset()

    @property
    def loop(self) -> ast.For | ast.AsyncFor:
        """The statement."""
        assert isinstance(self.node, (ast.For, ast.AsyncFor))
        return self.node

    @cached_property
    def inner(self) -> list[ast.AST]:
        """The nodes that run in each round."""
        return [node for item in self.loop.body for node in blocks.walk_own(item)]

    @cached_property
    def only_evaluating(self) -> set[ast.AST]:
        """The nodes that run in rounds that evaluate alone: those of ``if phase == "valid"``."""
        found: set[ast.AST] = set()
        for node in self.inner if self.flag is not None and self.evaluates else ():
            asked = flag_in(node.test, True) if isinstance(node, ast.If) else None
            if self.flag is None or asked is None or not isinstance(node, ast.If):
                continue
            for suite, given in ((node.body, asked), (node.orelse, replace(asked, holds=not asked.holds))):
                if self.flag.excludes(given):
                    found |= {part for item in suite for part in blocks.walk_own(item)}
        return found

    @cached_property
    def sums(self) -> tuple[str, ...]:
        """What the loop adds to in each round and does not begin anew: ``correct += ...``, ``total = total + ...``."""
        found = dict.fromkeys(path for node in self.inner for path in added_to(node) if path not in self.means)
        for node in self.inner:
            for path in [path for path in found if _assigns(node, path) or _scales(node, path)]:
                del found[path]
        return tuple(found)

    @cached_property
    def means(self) -> dict[str, ast.AST]:
        """What the loop keeps a running mean in, and where: ``mean += (loss - mean) / step``.

        Not what it begins anew in each round, as in ``target = target + torch.ones(target.size())``.
        """
        found = {path: node for node in self.inner for path in _additions(node) if path not in added_to(node)}
        begun = {path for path in found for node in self.inner if _assigns(node, path)}
        return {path: node for path, node in found.items() if path not in begun}

    @cached_property
    def lists(self) -> tuple[str, ...]:
        """What the loop appends to in each round."""
        paths = (
            variable(node.func.value)
            for node in self.inner
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if node.func.attr in ("append", "extend")
        )
        return tuple(dict.fromkeys(path for path in paths if path is not None))

    @cached_property
    def counters(self) -> set[str]:
        """Variables that count the rounds: those of its head, and what is counted up by one."""
        return blocks.writes_target(self.loop) | {
            path for node in self.inner if counts_up(node) for path in added_to(node)
        }

    @cached_property
    def steps(self) -> frozenset[str]:
        """Variables that count rounds or steps, which all ranks make together, whatever is in a batch."""
        changing = {path for node in self.inner if isinstance(node, ast.stmt) for path in blocks.writes(node)}
        local = (changing | blocks.writes_target(self.loop)) - self._numbers()
        inside = set(self.inner)

        def is_steady(node: ast.AST) -> bool:
            if not self.stepping.isdisjoint(blocks.place(self.module, blocks.statement_of(self.module, node)).suite):
                return True  # `steps += 1` beside a step
            around = [item for item in blocks.enclosing(self.module, node) if item in inside]
            return all(isinstance(item, ast.If) and not blocks.reads(item.test) & local for item in around)

        return frozenset(path for node in self.inner if counts_up(node) and is_steady(node) for path in added_to(node))

    def _numbers(self) -> set[str]:
        """What is counted up by one, and the number of the round that ``enumerate`` gives."""
        found = {path for node in self.inner if counts_up(node) for path in added_to(node)}
        target = self.loop.target
        if isinstance(target, ast.Tuple) and any(
            isinstance(n, ast.Name) and n.id == "enumerate" for n in walk(self.loop.iter)
        ):
            found |= {path for path in (variable(target.elts[0]),) if path is not None}
        return found


@dataclass(frozen=True)
class Counted(Site):
    """A statement after which variables hold sums over the batches of one rank: a loop, or a call that ran it.

    Attributes:
        sums: the variables.
        lists: variables that hold what the batches gave, one by one.
        loader: the source of what was iterated, where that may be a loader that is not shared out.
        counters: variables that count the rounds.
        steps: those of the sums that count steps, which all ranks make together.
        depth: through how many functions the sums were handed back.
        means: those of the sums of which each term is divided by a number of one rank already.
    """

    sums: tuple[str, ...]
    lists: tuple[str, ...] = ()
    loader: str | None = None
    counters: frozenset[str] | set[str] = frozenset()
    steps: frozenset[str] = frozenset()
    depth: int = 0
    means: frozenset[str] = frozenset()

    def following(self) -> Iterator[ast.stmt]:
        """Yield the statements that run after it in the same function, before a loop around it goes on."""
        for suite, index in blocks.suites_around(self.module, self.statement):
            yield from suite[index + 1 :]

    def after_loops(self, path: str) -> Iterator[ast.stmt]:
        """Yield the statements behind the loops around it, which see what the last round left in a variable.

        Up to one that gives the variable another value, in a loop of its own perhaps.
        """
        around = [item for item in blocks.enclosing(self.module, self.statement) if isinstance(item, blocks.LOOPS)]
        for loop in around:
            for suite, index in blocks.suites_around(self.module, loop):
                for item in suite[index + 1 :]:
                    if any(_assigns(node, path) or _scales(node, path) for node in blocks.walk_own(item)):
                        return
                    yield item

    def nodes_following(self) -> Iterator[ast.AST]:
        """Yield their nodes."""
        for item in self.following():
            yield from blocks.walk_own(item)

    def nodes_after_loops(self, path: str) -> Iterator[ast.AST]:
        """Yield their nodes."""
        for item in self.after_loops(path):
            yield from blocks.walk_own(item)

    def is_changed(self, path: str) -> bool:
        """Whether something else than a sum is made of a variable after it: ``total /= len(loader)``, on any way."""
        return any(
            _scales(node, path) or (path in blocks.writes(node) and path not in added_to(node))
            for node in self.nodes_following()
            if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign))
        )

    def begins(self, path: str) -> bool:
        """Whether the sum begins anew each time: it is assigned before, within the loops around, or just there."""
        if not isinstance(self.node, blocks.LOOPS):
            return True
        base = path.partition("[")[0]
        before = (item for suite, index in blocks.suites_around(self.module, self.statement) for item in suite[:index])
        return any(_assigns(node, path) or _assigns(node, base) for item in before for node in blocks.walk_own(item))


def counted(loop: TrainingLoop) -> Iterator[Counted]:
    """Yield what is known after a loop, and after the loops around it where sums go on through their rounds."""
    loader = loop.module.text(loop.use.loader) if loop.evaluates else None
    sums: tuple[str, ...] = loop.sums
    around = [item for item in blocks.enclosing(loop.module, loop.loop) if isinstance(item, blocks.LOOPS)]
    for node in [loop.loop, *around]:
        whole = Counted(loop.module, loop.scope, loop.body, node, sums, loop.lists, loader, loop.counters, loop.steps)
        begun = tuple(path for path in sums if whole.begins(path))
        yield replace(whole, sums=begun, lists=loop.lists if node is loop.loop else ())
        sums = tuple(path for path in sums if path not in begun)
        if loader is not None:
            return  # what is iterated may be another loader by then


def handed_back(program: Program, place: Counted, kept: set[str]) -> Iterator[Counted]:
    """Yield the calls that give their callers some of the sums as they are: ``total, correct = train(...)``."""
    info = program.function_of(place.body)
    if info is None or place.depth >= _MAX_CALLERS:
        return
    given = {
        index: path
        for value in info.returns
        for index, part in enumerate(value.elts if isinstance(value, ast.Tuple) else [value])
        if (path := variable(part)) in kept and not place.is_changed(path)
    }
    for caller in program.flow.callers(info) if given else ():
        site = calling(caller)
        statement = site.statement
        if not (isinstance(statement, ast.Assign) and statement.value is caller.call and len(statement.targets) == 1):
            continue
        target = statement.targets[0]
        parts = list(target.elts) if isinstance(target, ast.Tuple) else [target]
        loader = place.loader
        if loader is not None:
            argument = info.argument_or_default(caller.call, loader) if loader in info.parameters else None
            if argument is None or blocks.path_of(argument) is None:
                continue
            loader = site.module.text(argument)
        paths = {variable(parts[index]): path for index, path in given.items() if index < len(parts)}
        sums = tuple(path for path in paths if path is not None)
        steps, means = (frozenset(path for path in sums if paths[path] in held) for held in (place.steps, place.means))
        yield Counted(
            site.module, site.scope, site.body, statement, sums, (), loader, frozenset(), steps, place.depth + 1, means
        )


def training_loops(program: Program, batches: DataFlow) -> list[TrainingLoop]:
    """The loops that training steps take their batches from, in order."""
    found: dict[ast.AST, TrainingLoop] = {}
    stepping: frozenset[ast.AST] = frozenset(step.statement for step in program.steps)
    for site in program.backwards:
        for loop, uses in batches.feeding(site, heads=True).loops:
            known = found.get(loop.node)
            condition = None if uses[0].is_of_one_phase else flag_of(program, site)
            if condition is None and site.body is not loop.body and not uses[0].is_of_one_phase:
                condition = flag_of_calls(program, Site(loop.module, loop.scope, loop.body, loop.node))
            if condition is not None and _is_handed_on(site, condition[0]):
                condition = None
            if condition is not None and condition[1] is not None and isinstance(loop.node, blocks.LOOPS):
                condition = None if is_told_to_train(program, loop.node, site, condition[1]) else condition
            evaluates = condition is not None and (known is None or known.evaluates)
            flag = condition[1] if condition is not None and known is None else None
            if known is not None and known.flag is not None and condition is not None and condition[1] is not None:
                # ``if turn == 0: first.backward()`` and ``if turn == 1: second.backward()``: each round trains.
                evaluates = evaluates and not known.flag.excludes(condition[1])
            place = (loop.module, loop.scope, loop.body, loop.node)
            found[loop.node] = TrainingLoop(*place, uses[0], evaluates, flag, stepping)
    return sorted(found.values(), key=lambda loop: (str(loop.module.path), loop.line))


def _is_handed_on(site: Backward, condition: ast.If) -> bool:
    """Whether the other branch gives the loss to what goes backward for it: ``scaler(loss, optimizer)``."""
    path = blocks.path_of(site.loss)
    inside = {node for item in condition.body for node in walk(item)}
    other = condition.orelse if site.node in inside else condition.body
    return path is not None and any(
        isinstance(node, ast.Call) and len(node.args) > 1 and path == blocks.path_of(node.args[0])
        for item in other
        for node in walk(item)
    )


def variable(node: ast.AST) -> str | None:
    """The text of what holds a value: a name, an attribute of one, an item with a constant key."""
    inner = node
    while isinstance(inner, (ast.Attribute, ast.Subscript)):
        if isinstance(inner, ast.Subscript) and not isinstance(inner.slice, ast.Constant):
            return None
        inner = inner.value
    return ast.unparse(node) if isinstance(inner, ast.Name) else None


def counts_up(node: ast.AST) -> bool:
    """``step += 1``, or ``step = step + 1``; ``hits[label] += 1`` counts no rounds."""
    if isinstance(node, ast.AugAssign):
        return _is_one(node.value) and not _is_entry(node.target)
    if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and any(_additions(node))):
        return False
    return _is_one(node.value.left) or _is_one(node.value.right)


def _is_one(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 1


def added_to(node: ast.AST) -> Iterator[str]:
    """Yield the variables that a statement adds to: ``total`` of ``total += n`` and of ``total = total + n``.

    Not those of which it adds what they hold, as in ``mean += (n - mean) / count``: they hold no sum.
    """
    for path in _additions(node):
        assert isinstance(node, (ast.Assign, ast.AugAssign))
        # `hits` of ``hits[label] += 1`` is read, as Python sees it, but nothing that it holds is added.
        count = sum(variable(item) == path for item in walk(node.value))
        if count <= (0 if isinstance(node, ast.AugAssign) else 1):
            yield path


def _additions(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and not is_text(node.value):
        # ``hits[label] += 1`` adds to the whole.
        target: ast.expr = node.target
        while _is_entry(target):
            target = target.value
        path = variable(target)
        if path is not None:
            yield path
    elif isinstance(node, ast.Assign) and len(node.targets) == 1:
        yield from _sums_of(node.targets[0], node.value)


def adds_to_entry(node: ast.AST, path: str) -> bool:
    """Whether a statement adds to a part of a variable: ``hits[label] += 1``."""
    return isinstance(node, ast.AugAssign) and _is_entry(node.target) and path in _additions(node)


def _is_entry(target: ast.expr) -> TypeGuard[ast.Subscript]:
    """Whether this is a part of a variable that is not known by a name of its own: ``hits[label]``."""
    return isinstance(target, ast.Subscript) and variable(target) is None


def _sums_of(target: ast.expr, value: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for one, other in zip(target.elts, value.elts, strict=True):
            yield from _sums_of(one, other)
    elif isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add) and not is_text(value):
        path = variable(target)
        if path is not None and path in (variable(value.left), variable(value.right)):
            yield path


def _scales(node: ast.AST, path: str) -> bool:
    """Whether a statement makes another number of a variable by itself: ``total /= steps``."""
    return isinstance(node, ast.AugAssign) and not isinstance(node.op, ast.Add) and variable(node.target) == path


def _assigns(node: ast.AST, path: str) -> bool:
    """Whether a statement gives the variable a value that does not rest on the one that it had."""
    if not isinstance(node, (ast.Assign, ast.AnnAssign)) or path in _additions(node):
        return False
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    parts = [part for target in targets for part in (target.elts if isinstance(target, ast.Tuple) else [target])]
    return any(variable(part) == path for part in parts)
