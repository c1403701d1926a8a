"""Which optimizers step next: by which names, and under which conditions."""

from __future__ import annotations

import ast
import re
from dataclasses import replace

from amp_rules.flow.values import Value
from amp_rules.plan.gradient_owners import GradientOwners
from amp_rules.plan.optimizer_names import hides_variable, in_comprehension, loop_head
from amp_rules.plan.step_conditions import conditions
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, Step
from amp_rules.source import blocks
from amp_rules.text.vocabulary import Unscaled


class NotToldError(Exception):
    """What steps next cannot be said at a place; the message is the reason, for the user."""


def next_to_step(
    program: Program, owners: GradientOwners, site: Site, where: blocks.Place
) -> dict[Unscaled, frozenset[Value]]:
    """The optimizers that step after a place, before the next backward pass, as far as they have a name at ``site``.

    Raises:
        NotToldError: what a step depends on cannot be asked there.
    """
    found: dict[tuple[str, str | None], tuple[Unscaled, frozenset[Value]]] = {}
    sites = {step.node: step for step in program.steps}
    between: list[ast.stmt] = []
    for later in where.suite[where.index + 1 :]:
        if program.runs_backward(later):
            break
        for node in blocks.walk_own(later) if program.runs_step(later) else ():
            if not isinstance(node, ast.Call):
                continue
            own = [sites[node]] if node in sites else []
            for step in own or _steps_within(program, node):
                item = _named(step, later) if own else _named_by(step, site, node)
                if item is None:
                    continue
                held = conditions(program, step, later if own else None, between if own else ())
                if held is None:
                    raise NotToldError(f"`{item.optimizer}` may be None, and whether it steps is not known here")
                also = tuple(_as_named(text, step, item) for text in held)
                item = replace(item, conditions=tuple(dict.fromkeys([*item.conditions, *also])))
                other, values = found.get((item.optimizer, item.loop), (item, frozenset()))
                found[item.optimizer, item.loop] = _either(other, item), values | owners.stepped(step)
        between.append(later)
    return dict(found.values())


def _either(one: Unscaled, other: Unscaled) -> Unscaled:
    """One optimizer that steps in two places: under what both have in common."""
    return replace(one, conditions=tuple(text for text in one.conditions if text in other.conditions))


def _named(step: Step, later: ast.stmt) -> Unscaled:
    """An optimizer that steps in the body of the place.

    Raises:
        NotToldError: it has no name there.
    """
    receiver = ast.unparse(step.optimizer)
    loop = _loop_over(receiver, later)
    if loop is not None:
        return Unscaled(receiver, loop_head(loop.target, loop.iter))
    named = in_comprehension(step)
    if named is not None and hides_variable(step):
        raise NotToldError(f"`{receiver}` is the name of another variable outside of the comprehension")
    return named or Unscaled(receiver)


def _named_by(step: Step, site: Site, call: ast.Call) -> Unscaled | None:
    """An optimizer that steps in a function that is called; None where it has no name at the place."""
    receiver = ast.unparse(step.optimizer)
    name = receiver.split(".")[0]
    if step.scope.is_function and receiver.startswith("self.") and isinstance(call.func, ast.Attribute):
        return Unscaled(ast.unparse(call.func.value) + receiver[4:])
    return Unscaled(receiver) if step.scope.owner(name) is site.scope.owner(name) else None


def _as_named(condition: str, step: Step, item: Unscaled) -> str:
    """A condition on the optimizer, by the name that the optimizer has at the place."""
    receiver = ast.unparse(step.optimizer)
    if receiver == item.optimizer:
        return condition
    owner = item.optimizer.removesuffix(receiver[4:])
    return re.sub(r"\bself\.", lambda _: f"{owner}.", condition)


def _steps_within(program: Program, call: ast.Call) -> list[Step]:
    """Steps in the functions that a call runs directly."""
    bodies = {info.node for info in program.flow.callees(call)}
    return [step for step in program.steps if step.body in bodies]


def _loop_over(receiver: str, statement: ast.stmt) -> ast.For | None:
    name = receiver.split(".")[0].split("[")[0]
    for node in blocks.walk_own(statement):
        if isinstance(node, ast.For) and name in blocks.writes_target(node):
            return node
    return None
