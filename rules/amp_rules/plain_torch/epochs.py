"""The epoch of samplers: DistributedSampler draws the same order again until it is told the next one."""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass

from amp_rules.flow.values import Value
from amp_rules.plain_torch.loader_arguments import arguments_of, is_plain
from amp_rules.plain_torch.loops import Counter, counter_of, is_over_phases, loops_around
from amp_rules.plain_torch.passes import Pass, Passes, names_in
from amp_rules.plain_torch.shared_loaders import Made, SharedLoaders
from amp_rules.plain_torch.translation import Translation
from amp_rules.plain_torch.uses import source_of
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk
from amp_rules.text.actions import Replace
from amp_rules.text.expression_edits import substitute

_MAX_CALLERS = 6
"""Functions between a loop over batches and the one over epochs; trainers have up to four."""


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
        self._passes = Passes(self._program, self._shared)
        self._is_written = False

    def write(self) -> None:
        """Have the lines written, those of one place under one condition."""
        if self._is_written:
            return
        self._is_written = True
        found: dict[_Told, None] = {}
        for item in self._passes.all():
            if not any(map(self._may_shuffle, item.values)):
                continue
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

    def _may_shuffle(self, loader: Value) -> bool:
        """Whether the epoch may matter: without shuffling a DistributedSampler gives the same order in each."""
        if not isinstance(loader.site, ast.Call):
            return True
        given = arguments_of(self._program, loader.site)
        shuffle = given.get("shuffle", ast.Constant(False))
        return None in given or not isinstance(shuffle, ast.Constant) or bool(shuffle.value)

    # ---- places --------------------------------------------------------------------------------------------------

    def _climb(self, item: Pass, depth: int) -> list[_Told] | None:
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
            outer = self._passes.at_caller(item, info, caller)
            if not outer.values:
                continue
            told = self._climb(outer, depth + 1)
            if told is None:
                return None
            found += told
        return found

    def _in_loops(self, item: Pass, loops: list[ast.stmt]) -> list[_Told] | None:
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
        is_new = not inner or (item.loader is not None and bool(names_in(item.loader) & written))
        place = statement if is_now_and_then or is_new else body[0]
        return [_Told(item.module, place, name, epoch, guard, counter)]

    def _by_itself(self, item: Pass) -> list[_Told]:
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

    def _sampler(self, item: Pass) -> tuple[str, str] | None:
        """The source of the sampler at a place, and the condition under which it is a DistributedSampler."""
        known = [self._shared.made.get(value.site) for value in item.values if value.site is not None]
        names = {made.sampler for made in known if made is not None and self._reaches(made, item)}
        if len(names) == 1 and all(made is not None and self._reaches(made, item) for made in known):
            return names.pop(), "{WORLD_SIZE} > 1"
        if item.loader is None or not is_plain(item.loader) or self._passes.is_wrapped(item):
            return None
        is_new = item.loader not in item.module.parents
        text = ast.unparse(item.loader) if is_new else source_of(item.module, item.loader)
        sampler = f"{text}.sampler"
        if is_new:
            return sampler, "{WORLD_SIZE} > 1"
        return sampler, "{WORLD_SIZE} > 1" if not self._passes.is_mixed(item) else f"isinstance({sampler}, {{sampler}})"

    def _reaches(self, made: Made, item: Pass) -> bool:
        """Whether the variable of a sampler is what a person would write at a place."""
        if made.body is item.body:
            return True
        info = self._program.function_of(item.body)
        is_given = info is not None and isinstance(item.loader, ast.Name) and item.loader.id in info.parameters
        return made.module is item.module and isinstance(made.body, ast.Module) and not is_given


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
