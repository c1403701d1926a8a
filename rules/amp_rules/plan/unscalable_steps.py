"""Optimizer steps and backward passes that cannot be scaled, and those that are not understood."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.values import Value
from amp_rules.plan import declining, gradient_functions, method_values
from amp_rules.plan.declining import Declined
from amp_rules.plan.given_flags import may_be_true
from amp_rules.plan.unresolved import trail_end
from amp_rules.roles.kinds import is_optimizer
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Step
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.index import keyword
from amp_rules.source.syntax import own_name, walk
from amp_rules.torch.optimizers import EVALUATE_AGAIN


def reasons(program: Program) -> Iterator[Declined]:
    """Steps that cannot be scaled, calls that may be steps, and backward passes that no step follows."""
    for step in program.steps:
        given = [item for item in step.call.args if item is not step.optimizer]
        others = _own_arguments(program, step)
        if others:
            yield declining.decline(
                declining.UNKNOWN_STEP,
                step.module,
                step.node,
                f"`{step.module.text(step.call)}` gives the optimizer's own `step` {others}: what it does with scaled "
                "gradients beside it was not followed",
                "step with `amp.scaler.step(optimizer, ...)` by hand, which hands the arguments on, then "
                "`amp.scaler.update()`",
            )
        elif given or step.call.keywords:
            again = _evaluates_again_as(program, step)
            text = f"evaluates the loss several times in one step{again}, and the loss scale could change in between"
            recipe = "keep this optimizer in FP32, or autocast the forward pass of the closure and scale nothing"
            if len(given) + len(step.call.keywords) == 1 and _evaluates_once(program, step):
                closure = step.module.text(given[0] if given else step.call.keywords[0].value)
                optimizer = step.module.text(step.optimizer)
                text = "evaluates the loss within the step, where nothing can look at its scaled gradients first"
                recipe = f"`loss = {closure}()`, then `{optimizer}.step()` computes the same with this optimizer: "
                recipe += "write that, then migrate again"
            what = f"`{step.module.text(step.call)}` {text}"
            yield declining.decline(declining.CLOSURE, step.module, step.node, what, recipe)
        if isinstance(step.body, ast.Lambda):
            yield declining.decline(
                declining.UNKNOWN_STEP,
                step.module,
                step.node,
                f"`{step.module.text(step.call)}` is inside a lambda, which has no room for `amp.scaler.update()`",
                "write a function in place of the lambda, with `amp.scaler.step(...)`, then `amp.scaler.update()`",
            )
        statement = step.statement
        if isinstance(statement, ast.Return) and statement.value is not step.call:
            yield declining.decline(
                declining.UNKNOWN_STEP,
                step.module,
                step.node,
                f"`{step.module.text(step.call)}` is part of a return statement, so no `amp.scaler.update()` can "
                "follow it",
                "step on a line of its own, with `amp.scaler.step(...)`, then `amp.scaler.update()`, and return below",
            )
    for site in program.unknown_steps:
        yield _unknown_step(program, site)
    handed_around = list(method_values.reasons(program))
    yield from handed_around
    if not program.steps and not program.unknown_steps and not handed_around:
        backward = program.backwards[0]
        yield declining.decline(
            declining.NO_OPTIMIZER,
            backward.module,
            backward.node,
            f"no optimizer steps after `{backward.module.text(backward.call)}`: its gradients are used by hand",
            "use an optimizer of torch.optim; scaled gradients must be unscaled before anything reads them",
        )
        return  # what starts from gradients of its own belongs to a step that the first reason asks for
    for backward in program.backwards:
        is_given = backward.loss in backward.call.args and len(backward.call.args) + len(backward.call.keywords) > 1
        if is_given and gradient_functions.runs_in_backward(program, backward.body):
            yield declining.decline(
                declining.GRADIENT_ACCESS,
                backward.module,
                backward.node,
                f"`{backward.module.text(backward.call)}` differentiates what the backward pass of an "
                "`autograd.Function` computes again: that runs without autocast, so it would not be what the forward "
                "pass computed",
                "give the function's `forward` and `backward` `torch.amp.custom_fwd` and `custom_bwd`, whose autocast "
                "is the same, then migrate by hand",
            )
        graph = keyword(backward.call, "create_graph")
        if graph is not None and may_be_true(program, graph, backward.scope):
            yield declining.decline(
                declining.GRADIENT_ACCESS,
                backward.module,
                backward.node,
                f"`{backward.module.text(backward.call)}` keeps a graph of the scaled gradients: a second derivative "
                "stays scaled",
                "use `torch.autograd.grad(loss, parameters, create_graph=True)`, whose gradients are not scaled",
            )


def _evaluates_once(program: Program, step: Step) -> bool:
    """Whether all that a step may step are optimizers of PyTorch that evaluate a closure once, above their update."""
    values = program.flow.values(step.optimizer, step.scope)
    classes = _classes(values)
    return bool(values) and len(classes) == len(values) and EVALUATE_AGAIN.isdisjoint(classes)


def _evaluates_again_as(program: Program, step: Step) -> str:
    """Of which class an optimizer is that evaluates several times, where it may be of one that evaluates once, too."""
    classes = set(_classes(program.flow.values(step.optimizer, step.scope)))
    if "Optimizer" in classes or not classes & EVALUATE_AGAIN or classes <= EVALUATE_AGAIN:
        return ""
    return f" where it is {' or '.join(sorted(classes & EVALUATE_AGAIN))}"


def _classes(values: set[Value]) -> list[str]:
    """The classes of those values that are optimizers of a library."""
    return [str(value.ref).rpartition(".")[2] for value in values if value.kind == "object" and is_optimizer(value)]


def _own_arguments(program: Program, step: Step) -> str:
    """What a step of the project's own is given beside a closure, in words; nothing where it is given a closure."""
    names: set[str] = set()
    callees = program.flow.callees(step.call)
    for info in callees:
        given = {name for name in info.parameters[1:] if info.argument(step.call, name) is not None}
        if any(_is_closure(info, name) for name in given):
            return ""
        names |= given
    if not callees:
        for item in step.call.args:
            held = program.flow.values(item, step.scope)
            is_data = isinstance(item, ast.Attribute) and "closure" not in item.attr.lower()
            if item is step.optimizer or not is_data or any(value.kind in ("function", "partial") for value in held):
                return ""
            names.add(step.module.text(item))
    return ", ".join(f"`{name}`" for name in sorted(names))


def _is_closure(info: FunctionFacts, name: str) -> bool:
    """Whether a step calls what it is given, or gives it to another step."""
    return "closure" in name.lower() or any(
        isinstance(node, ast.Call)
        and (
            (isinstance(node.func, ast.Name) and node.func.id == name)
            or (
                own_name(node.func) == "step"
                and any(isinstance(item, ast.Name) and item.id == name for item in node.args)
            )
        )
        for node in walk(info.node)
    )


def _unknown_step(program: Program, site: Step) -> Declined:
    trail = trail_end(program, site.optimizer, site.scope, site.body)
    if not trail and isinstance(site.optimizer, ast.Attribute):
        # What has the attribute may be made in a way that cannot be followed.
        owner = trail_end(program, site.optimizer.value, site.scope, site.body)
        trail = f": it is an attribute of `{site.module.text(site.optimizer.value)}`{owner}" if owner else ""
    return declining.decline(
        declining.UNKNOWN_STEP,
        site.module,
        site.node,
        f"it is not known whether `{site.module.text(site.optimizer)}` is an optimizer{trail}",
        "if it is one, step it with `amp.scaler.step(...)`; else rename the method, or make the object where it can "
        "be followed",
    )
