"""Numbers of the batches of one process that a script only saves, or by which it only decides what is saved.

``torch.save({"model": model.state_dict(), "loss": total / len(loader)}, path)``, and ``torch.save(...)`` or
``kept = copy.deepcopy(model)`` below ``if loss.item() < best:``. What is shown is told elsewhere, and what is made of
that is understood.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from amp_rules.plan.distribution import Distribution
from amp_rules.plan.rank_numbers import Told
from amp_rules.plan.rest_shown import not_named, reads_of, root_of
from amp_rules.plan.summed_terms import is_of_batch
from amp_rules.plan.ways_to_show import tells_failure
from amp_rules.ranks.origins import Kind, Origins
from amp_rules.roles.path_objects import assigned
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import called_name, is_none, is_text, walk
from amp_rules.torch.models import COPIES
from amp_rules.torch.writers import SAVERS

_SAVED = (
    "is saved and rests on the batches of one process: it covers only rank 0's share of the data",
    "are saved and rest on the batches of one process: they cover only rank 0's share of the data",
)
DECIDES = (
    "decides what is saved and rests on the batches of one process: only rank 0's share of the data has a say",
    "decide what is saved and rest on the batches of one process: only rank 0's share of the data has a say",
)

KEEPS = (
    "decides which weights are kept and rests on the batches of one process: only rank 0's share of the data has a say",
    "decide which weights are kept and rest on the batches of one process: only rank 0's share of the data has a say",
)

_OF_NUMBERS = frozenset(
    {"torch.save", "numpy.save", "numpy.savez", "numpy.savez_compressed", "numpy.savetxt", "scipy.io.savemat"}
)
"""Calls that save what they are given; the dictionary of a checkpoint may hold numbers beside the model."""

_STATES = frozenset({"state_dict", "parameters", "named_parameters", "get_state", "get_rng_state"})
"""Calls that give no number of a batch, but the state of a model or an optimizer."""


@dataclass(frozen=True)
class Saved:
    """A number that is saved, or that decides what is.

    Attributes:
        site: the call or the test.
        name: the variable.
        decides: whether it is one that decides.
        keeps: whether what it decides is only which weights a copy of the model holds.
    """

    site: Site
    name: str
    decides: bool
    keeps: bool = False


def saved_of_shares(processes: Distribution) -> Iterator[Saved]:
    """Yield the numbers of one process that calls save which show nothing, and those that decide what is saved."""
    program = processes.program
    saves = program.closure(lambda node: _is_saver(program, node, SAVERS))
    for body, scope in program.bodies:
        for node in program.nodes_of(body):
            site = Site(scope.module, scope, body, node)
            if isinstance(node, ast.Call) and node.args and _is_saver(program, node, _OF_NUMBERS):
                numbers = {ast.unparse(part): part for part in _numbers(program, node, scope)}
                for name, part in numbers.items():
                    if _is_made_of_batches(processes, part, scope) and not tells_failure(scope.module, node):
                        yield Saved(site, name, decides=False)
            elif isinstance(node, ast.If):
                is_saved = any(map(saves, node.body))
                if not is_saved and not any(_keeps_copy(program, item, scope) for item in node.body):
                    continue
                weighed = _deciding(processes, node)
                if weighed is not None and not tells_failure(scope.module, node.body[0]):
                    yield Saved(Site(scope.module, scope, body, node.test), weighed, decides=True, keeps=not is_saved)


def not_told(processes: Distribution, saved: Sequence[Saved], told: Sequence[Told]) -> Iterator[Told]:
    """Yield what decides, and what is saved that is not told already and not made of that; each variable once.

    Who is told that a number is shown of one process does not know yet that it decides.
    """
    deciding = [(item.site, item.name) for item in saved if item.decides and not item.keeps]
    keeping = [(item.site, item.name) for item in saved if item.keeps]
    others = [(item.site, item.name) for item in saved if not item.decides]
    known: set[tuple[ast.AST, str]] = set()
    for places, text in ((deciding, DECIDES), (keeping, KEEPS), (not_named(processes, others, told), _SAVED)):
        for site, name in places:
            variable = site.body, root_of(name)
            if variable not in known:
                known.add(variable)
                yield Told(site, name, *text)


def _deciding(processes: Distribution, node: ast.If) -> str | None:
    """The number of one process that a test weighs; not the best so far, which takes it over: ``best = loss``."""
    ranks = processes.agreed.ranks
    if not _is_of_batches(ranks.truth_origins(node.test)):
        return None
    taken = {path for item in node.body for part in blocks.walk_own(item) for path in blocks.writes(part)}
    # What a method decides by may be one of many things that its object keeps.
    read = [part for part in reads_of(node.test) if not isinstance(part, ast.Call)]
    names = [ast.unparse(part) for part in read if _is_of_batches(ranks.own_origins(part))]
    return next((name for name in names if name not in taken), names[0] if names else None)


def _keeps_copy(program: Program, statement: ast.stmt, scope: Scope) -> bool:
    """``best = copy.deepcopy(model)``, and the same of its ``state_dict()``."""
    call = statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None
    if not isinstance(call, ast.Call) or not call.args or not program.callee_names(call, scope) & COPIES:
        return False
    given = call.args[0]
    if isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute) and given.func.attr == "state_dict":
        given = given.func.value
    return any(map(program.is_trained, program.roles.modules(given, scope)))


def _is_saver(program: Program, node: ast.AST, names: frozenset[str]) -> bool:
    if not isinstance(node, ast.Call):
        return False
    located = program.locate(node)
    return located is not None and not program.callee_names(node, located[1]).isdisjoint(names)


def _numbers(program: Program, call: ast.Call, scope: Scope) -> Iterator[ast.expr]:
    """Yield what a call saves: what the dictionary holds that it is given, and else the variables themselves."""
    pending: list[ast.expr] = [*call.args, *(item.value for item in call.keywords)]
    seen: set[ast.expr] = set()
    while pending:
        value = pending.pop(0)
        if value in seen:
            continue
        seen.add(value)
        if isinstance(value, ast.Dict):
            pending += value.values
        elif isinstance(value, ast.Call) and called_name(value) == "dict":
            pending += [item.value for item in value.keywords]
        elif isinstance(value, ast.Name) and (made := _displays(program, value, scope)):
            pending += made
        elif not _holds_state(program, value, scope):
            yield from (part for part in reads_of(value) if not _holds_state(program, part, scope))


def _displays(program: Program, name: ast.Name, scope: Scope) -> list[ast.expr]:
    """The dictionaries that a variable holds, if it holds nothing else."""
    made = [value for value in assigned(program, name, scope) if not is_none(value)]
    return made if made and all(isinstance(value, ast.Dict) for value in made) else []


def _holds_state(program: Program, value: ast.expr, scope: Scope) -> bool:
    """Whether an expression is a model or an optimizer, or the state of one."""
    if any(isinstance(part, ast.Call) and called_name(part) in _STATES for part in walk(value)):
        return True
    return bool(program.flow.values(value, scope)) and bool(program.roles.modules(value, scope))


def _is_made_of_batches(processes: Distribution, part: ast.expr, scope: Scope) -> bool:
    """Whether a number rests on batches itself: the name of the best file rests on a decision by them alone."""
    ranks = processes.agreed.ranks
    if not is_of_batch(part, ranks):
        return False
    given = assigned(processes.program, part, scope) if isinstance(part, ast.Name) else []
    return not given or any(not _is_path(value) or is_of_batch(value, ranks) for value in given)


def _is_path(value: ast.expr) -> bool:
    return is_text(value) or (isinstance(value, ast.Call) and called_name(value) in ("join", "Path", "joinpath"))


def _is_of_batches(origins: Origins) -> bool:
    return any(origin.kind is Kind.BATCH for origin in origins)
