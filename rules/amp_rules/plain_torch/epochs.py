"""The epoch of samplers: DistributedSampler draws the same order again until it is told the next one."""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass

from amp_rules.flow.values import CallSite, Value
from amp_rules.plain_torch.loader_arguments import is_plain, text_of
from amp_rules.plain_torch.loops import Counter, counter_of, is_over_phases, loops_around
from amp_rules.plain_torch.shared_loaders import Made, SharedLoaders
from amp_rules.plain_torch.translation import Translation
from amp_rules.roles.loaders import Loaders, is_loader
from amp_rules.roles.steps import Program, Site, calling
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk
from amp_rules.text.actions import Replace
from amp_rules.text.expression_edits import substitute

_MAX_CALLERS = 6
"""Functions between a loop over batches and the one over epochs; trainers have up to four."""


@dataclass(frozen=True)
class _Pass(Site):
    """An expression that begins a pass over a loader, or a call that leads to one.

    Attributes:
        loader: the expression that holds the loader there; None where it is not in reach.
        values: the shared loaders that it may be.
        is_iterator: whether it is an iterator of its own, as in ``batches = iter(loader)``.
    """

    node: ast.expr
    loader: ast.expr | None
    values: frozenset[Value]
    is_iterator: bool = False


@dataclass(frozen=True)
class _Told:
    """Where a sampler is told its epoch: above a statement.

    Attributes:
        sampler: the source of the sampler.
        epoch: the source of the epoch.
        guard: the condition, a template.
        counter: what counts the epochs.
    """

    module: Module
    statement: ast.stmt
    sampler: str
    epoch: str
    guard: str
    counter: Counter | None = None


class Epochs:
    """Writes ``set_epoch``, once for the whole program."""

    def __init__(self, translation: Translation) -> None:
        self._translation = translation
        self._program = translation.program
        self._shared = translation.part(SharedLoaders)
        self._is_written = False

    def write(self) -> None:
        """Have the lines written, those of one place under one condition."""
        if self._is_written:
            return
        self._is_written = True
        found: dict[_Told, None] = {}
        for item in self._passes():
            told = self._climb(item, 0)
            if told is None:
                told = self._by_itself(item)
            found |= dict.fromkeys(told)
        rows: defaultdict[tuple[Module, ast.stmt, str], dict[str, None]] = defaultdict(dict)
        for line in found:
            rows[line.module, line.statement, line.guard][f"    {line.sampler}.set_epoch({line.epoch})"] = None
        for (module, statement, guard), lines in rows.items():
            self._translation.insert(module, statement, "\n".join([f"if {guard}:", *lines]), order=1)
        for module, counter in {(line.module, line.counter) for line in found}:
            if counter is not None and counter.target is not None:
                self._translation.do(module, Replace(counter.target, substitute(counter.name)))

    # ---- passes --------------------------------------------------------------------------------------------------

    def _passes(self) -> list[_Pass]:
        """Where passes over shared loaders begin."""
        loaders = Loaders(self._program)
        beside = {use.argument for use in self._shared.decided if self._shared.is_beside(use)}
        found: dict[ast.AST, _Pass] = {}
        for node, body, scope in self._program.nodes():
            if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
                begun: ast.expr = node.iter
            elif isinstance(node, ast.Call) and "builtins.iter" in self._program.callee_names(node, scope):
                begun = node
            else:
                continue
            for use in loaders.direct(begun, Site(scope.module, scope, body, node)):
                values = use.values if use.loader in beside else use.values & self._shared.values
                if (
                    values
                    and not self._is_another(use.loader, values)
                    and not _is_handed_on(self._program, begun, use.loader, scope.module)
                ):
                    loader = self._renamed(use.loader)
                    found[use.loader] = _Pass(scope.module, scope, body, begun, loader, values, begun is node)
        return list(found.values())

    def _is_another(self, loader: ast.expr, values: frozenset[Value]) -> bool:
        """Whether it is another one of the loaders that a constructor makes: ``loaders["val"]``."""
        if not isinstance(loader, ast.Subscript) or not isinstance(loader.slice, ast.Constant):
            return False
        if not all(map(self._shared.is_one_of_several, values)):
            return False
        prepared = {ast.dump(use.argument) for use in self._shared.decided}
        return ast.dump(loader) not in prepared

    def _renamed(self, node: ast.expr) -> ast.expr:
        """The loader of the process's own, where a whole one stands."""
        _, name = self._shared.beside.renamed.get(node, (None, None))
        return node if name is None else ast.parse(name, mode="eval").body

    # ---- places --------------------------------------------------------------------------------------------------

    def _climb(self, item: _Pass, depth: int) -> list[_Told] | None:
        """Where samplers are told the epoch of a pass: in the loop around it, here or in the callers.

        None where that is not in reach; nothing where the pass is the only one.
        """
        loops = loops_around(item.module, item.node)
        if loops:
            return self._in_loops(item, loops)
        info = self._program.function_of(item.body)
        if info is None:
            return []
        callers = self._program.flow.callers(info)
        if not callers or depth >= _MAX_CALLERS:
            return None
        found: list[_Told] = []
        for caller in callers:
            outer = self._at_caller(item, info, caller)
            if not outer.values:
                continue
            told = self._climb(outer, depth + 1)
            if told is None:
                return None
            found += told
        return found

    def _at_caller(self, item: _Pass, info: FunctionFacts, caller: CallSite) -> _Pass:
        """The call that leads to a pass, with the loader as the caller knows it."""
        site = calling(caller)
        loader = _given(item, info, site)
        values = item.values
        if loader in self._shared.beside.renamed:
            loader = self._renamed(loader)
        elif loader is not None and loader in site.module.parents:
            values &= self._program.flow.values(loader, site.scope)
            if self._is_another(loader, values):
                values = frozenset()
        return _Pass(site.module, site.scope, site.body, caller.call, loader, values)

    def _in_loops(self, item: _Pass, loops: list[ast.stmt]) -> list[_Told] | None:
        made = {value.site for value in item.values}
        inner = [loop for loop in loops if made.isdisjoint(walk(loop))]
        rounds = [loop for loop in inner or loops[:1] if not is_over_phases(self._program, loop, item.scope)]
        loop = (rounds or loops[-1:])[0]
        statement = blocks.statement_of(item.module, item.node)
        counter = counter_of(self._program, item, loop)
        if not inner and counter is None:
            return []  # a new loader in each round, of what nothing counts: its first pass is its only one
        sampler = self._sampler(item)
        if sampler is None:
            return None
        name, guard = sampler
        is_now_and_then = item.is_iterator and _is_conditional(item.module, statement, loop)
        if inner and (len(rounds) > 1 or is_now_and_then):
            counter = None
        epoch = f"{name}.epoch + 1" if counter is None else counter.name
        body = loop.body  # type: ignore[attr-defined]
        written = {path.partition(".")[0] for part in body for path in blocks.writes(part)} | _targets(loop)
        is_new = not inner or (item.loader is not None and bool(_names(item.loader) & written))
        place = statement if is_now_and_then or is_new else body[0]
        return [_Told(item.module, place, name, epoch, guard, counter)]

    def _by_itself(self, item: _Pass) -> list[_Told]:
        """The line right before the pass, where no counter is in reach."""
        found = self._sampler(item)
        if found is None:
            self._translation.decline(
                item.module,
                item.node,
                f"`{item.module.text(item.node)}` goes over a shared loader in each epoch, and its sampler is out of "
                "reach there: the order would be the same each time",
                "put the loader into a variable before the loop over epochs",
                "distribution",
            )
            return []
        name, guard = found
        return [_Told(item.module, blocks.statement_of(item.module, item.node), name, f"{name}.epoch + 1", guard)]

    # ---- samplers ------------------------------------------------------------------------------------------------

    def _sampler(self, item: _Pass) -> tuple[str, str] | None:
        """The source of the sampler at a place, and the condition under which it is a DistributedSampler."""
        known = [self._shared.made.get(value.site) for value in item.values if value.site is not None]
        names = {made.sampler for made in known if made is not None and self._reaches(made, item)}
        if len(names) == 1 and all(made is not None and self._reaches(made, item) for made in known):
            return names.pop(), "{WORLD_SIZE} > 1"
        if item.loader is None or not is_plain(item.loader):
            return None
        is_new = item.loader not in item.module.parents
        text = ast.unparse(item.loader) if is_new else text_of(item.module, item.loader)
        sampler = f"{text}.sampler"
        if is_new:
            return sampler, "{WORLD_SIZE} > 1"
        held = {value for value in self._program.flow.values(item.loader, item.scope) if is_loader(value)}
        is_shared = held <= item.values and not any(self._shared.is_one_of_several(value) for value in item.values)
        return sampler, "{WORLD_SIZE} > 1" if is_shared else f"isinstance({sampler}, {{sampler}})"

    def _reaches(self, made: Made, item: _Pass) -> bool:
        """Whether the variable of a sampler is known at a place."""
        return made.body is item.body or (made.module is item.module and isinstance(made.body, ast.Module))


def _is_handed_on(program: Program, begun: ast.expr, loader: ast.expr, module: Module) -> bool:
    """Whether a generator of the project, or an object of it, is given the loader: the passes begin there."""
    node: ast.AST = loader
    while node is not begun:
        node = module.parents[node]
        if isinstance(node, ast.Call):
            if any(info.yields or info.name == "__init__" for info in program.flow.callees(node)):
                return True
    return False


def _given(item: _Pass, info: FunctionFacts, site: Site) -> ast.expr | None:
    """The loader of a pass, as the caller of its function knows it."""
    call, loader = site.node, item.loader
    assert isinstance(call, ast.Call)
    if isinstance(loader, ast.Name):
        if loader.id in info.parameters:
            return info.argument_or_default(call, loader.id)
        is_global = isinstance(item.scope.owner(loader.id).node, ast.Module)
        return loader if is_global and site.module is item.module else None
    if isinstance(loader, ast.Attribute) and isinstance(call.func, ast.Attribute):
        root = loader
        while isinstance(root.value, ast.Attribute):
            root = root.value
        if isinstance(root.value, ast.Name) and root.value.id == info.receiver and is_plain(call.func.value):
            own = item.scope.node
            if isinstance(call.func.value, ast.Name) and call.func.value.id == root.value.id and own is not None:
                return loader
    return None


def _is_conditional(module: Module, statement: ast.stmt, loop: ast.stmt) -> bool:
    """Whether not every round of a loop comes by a statement."""
    for parent in blocks.enclosing(module, statement):
        if parent is loop:
            return False
        if isinstance(parent, (ast.If, ast.Try)):
            return True
    return False


def _targets(loop: ast.stmt) -> set[str]:
    return blocks.writes_target(loop) if isinstance(loop, (ast.For, ast.AsyncFor)) else set()


def _names(node: ast.expr) -> set[str]:
    return {item.id for item in walk(node) if isinstance(item, ast.Name)}
