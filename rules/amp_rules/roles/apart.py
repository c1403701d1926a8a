"""Steps beside the training that stay as they are, in full precision."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from amp_rules.flow.values import Value
from amp_rules.roles.kinds import is_module, is_without_parameters
from amp_rules.roles.optimizer_models import OptimizerModels
from amp_rules.roles.own_gradients import sets_all_gradients
from amp_rules.roles.sites import Apart, Backward, Step, closure_of
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts


def steps_apart(program: OptimizerModels, steps: Sequence[Step], backwards: Sequence[Backward]) -> list[Apart]:
    """The steps with closures that have nothing to do with the other steps; none, where there are no others."""
    closures = {step: given for step in steps if (given := closure_of(step)) is not None}
    others = [step for step in steps if step not in closures]
    if not closures or not others:
        return []
    searches = [one for step, given in closures.items() if (one := _search(program, step, given, backwards))]
    elsewhere = {model for step in others for model in _models_of_step(program, step) or ()}
    is_known = all(_models_of_step(program, step) is not None for step in others)
    found = []
    for step, given in closures.items():
        own = set() if _fits_own_numbers(program, step, others) else _models_of_step(program, step)
        if own is None or not is_known or not own.isdisjoint(elsewhere) or _are_parts(program, own):
            continue
        functions = [value.ref for value in program.flow.values(given, step.scope) if value.kind == "function"]
        inside = tuple(item for item in backwards if item.body in {info.node for info in functions})
        if functions and inside and _stays_within(program, functions, step, inside, own, backwards):
            found.append(Apart(step, inside))
    left = {item for one in found for item in one.backwards}
    return [*searches, *found] if len(left) < len(backwards) else searches


def _search(program: OptimizerModels, step: Step, given: ast.expr, backwards: Sequence[Backward]) -> Apart | None:
    """A step that has nothing to do with the scale, as its closure sets all gradients by ``torch.autograd.grad``."""
    values = program.flow.values(step.optimizer, step.scope)
    made = [value.site for value in values if isinstance(value.site, ast.Call)]
    functions = [value.ref for value in program.flow.values(given, step.scope) if value.kind == "function"]
    bodies = tuple(info.node for info in functions)

    def is_differentiated(call: ast.Call) -> bool:
        located = program.locate(call)
        return located is not None and "torch.autograd.grad" in program.callee_names(call, located[1])

    if not functions or len(made) != len(values) or not sets_all_gradients(made, bodies, is_differentiated):
        return None
    if any((located := program.locate(call)) is None or located[0] is not step.body for call in made):
        return None  # the names are those of another function
    if any(caller.call is not step.call for info in functions for caller in program.flow.callers(info)):
        return None
    called = program.called_from(node for body in bodies for node in blocks.walk_body(body)) | set(bodies)
    if any(item.body in called for item in backwards):
        return None
    return Apart(step, (), bodies)


def _fits_own_numbers(program: OptimizerModels, step: Step, others: Sequence[Step]) -> bool:
    """Whether a step is of tensors that its function makes, and no other optimizer has: a temperature of outputs."""
    if not program.fits_loose_tensors(step):
        return False
    own = _loose_tensors(program, step)
    for value in own:
        located = program.locate(value.site) if value.site is not None else None
        if located is None or located[0] is not step.body:
            return False
    return all(own.isdisjoint(_loose_tensors(program, other)) for other in others)


def _loose_tensors(program: OptimizerModels, step: Step) -> set[Value]:
    made = [value.site for value in program.flow.values(step.optimizer, step.scope)]
    return {item for site in made if isinstance(site, ast.Call) for item in program.loose_parameters(site)}


def _models_of_step(program: OptimizerModels, step: Step) -> set[Value] | None:
    """The models that an optimizer trains; None where they are not known."""
    found: set[Value] = set()
    for value in program.flow.values(step.optimizer, step.scope):
        models = program.models_of_optimizer(value.site) if isinstance(value.site, ast.Call) else set()
        if not models:
            return None
        found |= models
    return found or None


def _are_parts(program: OptimizerModels, models: set[Value]) -> bool:
    """Whether an object of a class of models keeps one of them, or one is kept by another's attribute."""
    for (owner, _), cell in program.flow.cells.items():
        info = program.flow.classes.get(owner) if isinstance(owner, ast.ClassDef) else None
        if info is None or not is_module(Value("instance", info)):
            continue
        if not models.isdisjoint(cell.values | program.flow.elements(cell.values)):
            return True
    return any(value.kind == "attribute" for value in models)


def _stays_within(
    program: OptimizerModels,
    functions: Sequence[FunctionFacts],
    step: Step,
    inside: Sequence[Backward],
    own: set[Value],
    backwards: Sequence[Backward],
) -> bool:
    """Whether nothing but the step calls the closures, and they run no model and no backward pass of others."""
    bodies = {info.node for info in functions}
    callers = [caller.call for info in functions for caller in program.flow.callers(info)]
    if any(call is not step.call for call in callers):
        return False
    called = program.called_from(node for body in bodies for node in blocks.walk_body(body)) | bodies
    if any(item.body in called and item not in inside for item in backwards):
        return False
    return all(
        model in own or is_without_parameters(model)
        for call, body, scope in program.calls()
        if body in called and not program.is_model_code(body)
        for model in program.called_models(call, scope)
    )
