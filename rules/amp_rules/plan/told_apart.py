"""Loaders of loops that train or evaluate by a flag: which of them train, and where those are prepared."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace
from itertools import combinations

from amp_rules.flow.values import Value
from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.plan.loaders_by_flag import Apart, pass_in_the_way, tell_apart
from amp_rules.plan.loaders_by_function import by_function, calls_for_both
from amp_rules.plan.rebindings import Rebinding
from amp_rules.plan.step_conditions import never_both
from amp_rules.plan.training_flags import Flag, asks_for_mode, flag_of, flag_of_calls, handed_on, is_told_to_train
from amp_rules.roles.batches import TrainingData
from amp_rules.roles.loaders import LoaderUse
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import arguments_of
from amp_rules.source.syntax import COMPREHENSIONS, walk

_REPEATING = (*blocks.LOOPS, *COMPREHENSIONS)
_MAX_CALLERS = 4
"""Functions around the one that makes a loader in which a second call is looked for; factories have one or two."""


@dataclass
class ToldApart:
    """What feeds the training steps, once loops that train or evaluate by a flag are told apart."""

    data: TrainingData
    rebindings: list[Rebinding] = field(default_factory=list)
    reasons: list[Declined] = field(default_factory=list)

    def put(self, apart: Apart, use: LoaderUse) -> None:
        """Put what was told apart in the place of a loop's loaders."""
        self.data.uses.remove(use)
        self.data.uses.extend(apart.training)
        self.data.evaluated.extend(apart.evaluated)
        self.rebindings.extend(item for item in apart.rebindings if item not in self.rebindings)


def told_apart(program: Program, given: TrainingData) -> ToldApart:
    """Tell the loaders of loops apart that train or evaluate by a flag; with a reason where that is not certain.

    Shared out as a whole, evaluation would see a part of its data only.
    """
    data = replace(given, uses=[*given.uses], evaluated=[*given.evaluated])
    found = ToldApart(data)
    for use in given.uses:
        if use.is_of_one_phase:
            continue
        by_its_function = by_function(program, use) if len(use.values) > 1 else None
        if by_its_function is not None:
            found.put(by_its_function, use)
            continue
        several = (len(use.values) > 1 and not _are_alternatives(program, use.values)) or any(
            _in_comprehension(program, value) or _kept_in_loop(program, value) or _made_for_each(program, value)
            for value in use.values
        )
        for site in program.backwards:
            condition = flag_of(program, site)
            if condition is None or _always_trains(program, site):
                continue
            if not _is_about(use, site, *condition):
                continue
            flag = condition[1]
            loop = blocks.loop_around(use.module, use.loader)
            if flag is not None and loop is not None and is_told_to_train(program, loop, site, flag):
                if several and not any(other.values & use.values for other in data.evaluated):
                    found.reasons.append(_made_together(use))
                    break
                continue
            if flag is not None and use.body is not site.body:
                flag = handed_on(program, loop, site, flag) if loop is not None else None
            apart = tell_apart(program, use, flag, data) if flag is not None else None
            if apart is not None:
                found.put(apart, use)
                break
            if several:
                found.reasons.append(_mixed(program, use, flag, data))
                break
        else:
            loop = blocks.loop_around(use.module, use.loader)
            called = flag_of_calls(program, Site(use.module, use.scope, use.body, loop)) if loop is not None else None
            if several and called is not None:
                apart = tell_apart(program, use, called[1], data) if called[1] is not None else None
                if apart is not None:
                    found.put(apart, use)
                else:
                    found.reasons.append(_mixed(program, use, called[1], data))
            elif len(use.values) > 1 and calls_for_both(program, use):
                found.reasons.append(_mixed(program, use, None, data))
    return found


def _mixed(program: Program, use: LoaderUse, flag: Flag | None, data: TrainingData) -> Declined:
    text = use.module.text(use.loader)
    other = pass_in_the_way(program, use, flag, data) if flag is not None else None
    if other is not None:
        return declining.decline(
            declining.HAND_BATCHES,
            other.module,
            other.node,
            f"`{other.module.text(other.node)}` is gone over here, too, beside the loop over `{text}` that trains: it "
            "would be a share of the data here",
            "make a loader of its own for what goes over the data here",
        )
    loop = blocks.loop_around(use.module, use.loader)
    is_iterated = isinstance(loop, (ast.For, ast.AsyncFor)) and use.loader in set(walk(loop.iter))
    what = (
        f"one loop over `{text}` trains and evaluates"
        if is_iterated
        else f"a flag says whether the batches of `{text}` train, and one place makes its loader and others"
    )
    return declining.decline(
        declining.HAND_BATCHES,
        use.module,
        use.loader,
        f"{what}: evaluation would use only a share of its data",
        "wrap the training loader in `amp.prepare_loader(...)` where it is made, and leave the other",
    )


def _made_together(use: LoaderUse) -> Declined:
    return declining.decline(
        declining.HAND_BATCHES,
        use.module,
        use.loader,
        f"`{use.module.text(use.loader)}` comes from a function that makes other loaders too, and their use is not "
        "followed: an evaluation would use only a share of its data",
        "wrap the training loader in `amp.prepare_loader(...)` where that function is called for it",
    )


def _is_about(use: LoaderUse, site: Site, condition: ast.If, flag: Flag | None) -> bool:
    """Whether the condition around a backward pass may say what a loop over the loader is run for."""
    if use.body is site.body or (flag is not None and _is_parameter(flag.name, site)):
        return True
    return flag is None and asks_for_mode(condition.test)


def _always_trains(program: Program, site: Site) -> bool:
    """Whether the loop around a backward pass runs another one in each round, whatever the condition of this one.

    A critic learns in each round, and the generator in some of them.
    """
    loop = blocks.loop_around(site.module, site.node)
    return any(
        other.body is site.body
        and blocks.loop_around(other.module, other.node) is loop
        and flag_of(program, other) is None
        for other in program.backwards
    )


def _made_for_each(program: Program, value: Value) -> bool:
    """Whether the function that makes the loader is called in several places, for training and for evaluation maybe."""
    located = program.locate(value.site) if isinstance(value.site, ast.Call) else None
    info = program.function_of(located[0]) if located is not None else None
    for _ in range(_MAX_CALLERS if info is not None else 0):
        assert info is not None
        callers = program.flow.callers(info)
        if len(callers) != 1:
            return len(callers) > 1
        info = program.function_of(calling(next(iter(callers))).body)
        if info is None:
            return False
    return False


def _are_alternatives(program: Program, values: frozenset[Value]) -> bool:
    """Whether a function that is called once makes loaders in branches of which it runs one."""
    sites = [value.site for value in values if isinstance(value.site, ast.Call)]
    modules = [module for site in sites if (module := program.module_of(site)) is not None]
    if len(modules) != len(values) or len(set(modules)) != 1:
        return False
    module = modules[0]
    bodies = {blocks.body_of(module, site) for site in sites}
    return (
        len(bodies) == 1
        and _runs_once(program, module, sites[0])
        and all(
            never_both(module, blocks.statement_of(module, one), blocks.statement_of(module, other))
            for one, other in combinations(sites, 2)
        )
    )


def _runs_once(program: Program, module: Module, node: ast.AST) -> bool:
    """Whether a place is in no loop, nor is the one place that calls its function, and so on."""
    seen: set[ast.AST] = set()
    while node not in seen:
        seen.add(node)
        if any(isinstance(parent, _REPEATING) for parent in module.ancestors(node)):
            return False
        info = program.function_of(blocks.body_of(module, node))
        callers = [*program.flow.callers(info)] if info is not None else []
        if info is None or len(callers) != 1:
            return info is None
        module, node = callers[0].scope.module, callers[0].call
    return False


def _in_comprehension(program: Program, value: Value) -> bool:
    """Whether one constructor makes several loaders: ``{phase: DataLoader(...) for phase in phases}``."""
    module = program.module_of(value.site) if value.site is not None else None
    if module is None or value.site is None:
        return False
    return any(isinstance(parent, (ast.DictComp, ast.ListComp)) for parent in module.ancestors(value.site))


def _kept_in_loop(program: Program, value: Value) -> bool:
    """Whether a loop makes several loaders and keeps them: ``for phase in ...: loaders[phase] = DataLoader(...)``."""
    module = program.module_of(value.site) if value.site is not None else None
    if module is None or value.site is None:
        return False
    statement = blocks.statement_of(module, value.site)
    names = blocks.writes(statement)
    for parent in blocks.enclosing(module, value.site):
        if isinstance(parent, ast.For):
            for node in walk(parent):
                kept = isinstance(node, ast.Assign) and any(isinstance(item, ast.Subscript) for item in node.targets)
                if kept and (node is statement or blocks.reads(node) & names):
                    return True
    return False


def _is_parameter(name: str, site: Site) -> bool:
    owner = site.scope.owner(name).node
    return isinstance(owner, (ast.FunctionDef, ast.AsyncFunctionDef)) and any(
        argument.arg == name for argument in arguments_of(owner)
    )
