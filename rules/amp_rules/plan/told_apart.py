"""Loaders of loops that train or evaluate by a flag: which of them train, and where those are prepared."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace

from amp_rules.flow.values import Value
from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.plan.loaders_to_prepare import Rebinding
from amp_rules.plan.training_flags import flag_of, tell_apart
from amp_rules.roles.batches import TrainingData
from amp_rules.roles.steps import Program, Site
from amp_rules.source import blocks
from amp_rules.source.scopes import arguments_of
from amp_rules.source.syntax import walk


@dataclass
class ToldApart:
    """What feeds the training steps, once loops that train or evaluate by a flag are told apart."""

    data: TrainingData
    rebindings: list[Rebinding] = field(default_factory=list)
    reasons: list[Declined] = field(default_factory=list)


def told_apart(program: Program, given: TrainingData) -> ToldApart:
    """Tell the loaders of loops apart that train or evaluate by a flag; with a reason where that is not certain.

    Shared out as a whole, evaluation would see a part of its data only.
    """
    data = replace(given, uses=[*given.uses], evaluated=[*given.evaluated])
    found = ToldApart(data)
    for use in given.uses:
        several = len(use.values) > 1 or any(
            _in_comprehension(program, value) or _kept_in_loop(program, value) for value in use.values
        )
        for site in program.backwards:
            condition = flag_of(program, site)
            if condition is None:
                continue
            if use.body is not site.body and not (condition[1] is not None and _is_parameter(condition[1].name, site)):
                continue
            flag = condition[1]
            apart = tell_apart(program, use, flag, data) if flag is not None and use.body is site.body else None
            if apart is not None:
                data.uses.remove(use)
                data.uses.extend(apart.training)
                data.evaluated.extend(apart.evaluated)
                found.rebindings.extend(apart.rebindings)
                break
            if several:
                found.reasons.append(
                    declining.decline(
                        declining.HAND_BATCHES,
                        use.module,
                        use.loader,
                        f"one loop over `{use.module.text(use.loader)}` trains and evaluates: evaluation would see a "
                        "share of its data only",
                        "wrap the training loader in `amp.prepare_loader(...)` where it is made, and leave the other",
                    )
                )
                break
    return found


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
