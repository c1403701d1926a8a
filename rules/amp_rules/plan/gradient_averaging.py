"""How the gradients of all ranks become one: by the wrapper during the backward pass, or when the optimizer steps."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from amp_rules.flow.values import ClassInfo, Value
from amp_rules.plan.changing import Changing
from amp_rules.plan.left_out import calls_as_written, why_changing, why_left_out
from amp_rules.plan.model_homes.home import Home
from amp_rules.plan.model_reads import reaches
from amp_rules.plan.precision import Precision
from amp_rules.plan.training_rounds import nodes_of_rounds
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.roles.widened import widened_parts
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import is_super, walk
from amp_rules.torch.apex import WRAPPERS
from amp_rules.torch.wrappers import DISTRIBUTED_DATA_PARALLEL

_MAX_CALLERS = 4
"""Functions between a model's place and the script's own level; a longer chain counts as run more than once."""


_OTHER_PASSES = frozenset(
    {"torch.autograd.grad", "torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint.checkpoint_sequential"}
)
"""What runs a part of a model again, or goes backward without ``backward``."""

_PREPARES_SEVERAL = "several models are prepared that may share what is trained"


@dataclass(frozen=True)
class Averaging:
    """When the gradients of the ranks are averaged.

    Attributes:
        delayed: when the optimizer steps, not by a wrapper during the backward pass.
        reason: why it is delayed, for the report.
        unused: why some parameters may get no gradient in a step, where what averages has to be told.
    """

    delayed: bool
    reason: str = ""
    unused: str = ""


def averaging(program: Program, precision: Precision, *, completes: bool) -> Averaging:
    """Decide whether the plain wrapper is enough: it supports one backward pass for each forward pass.

    Over rounds without a step it averages in each backward pass, which comes to the same: the sum of averages is the
    average of sums. Once, at the step, is faster; where the script's own scaler steps, only the wrapper averages, and
    searches for what takes no part.

    Args:
        program: the program.
        precision: what its training steps are.
        completes: whether the scaler that steps completes a backward pass in which a layer took no part, as the
            runtime's does. Which layers that are must be alike on all ranks then, as far as is seen.
    """
    reason = _why_delayed(program, precision)
    if reason:
        return Averaging(True, reason)
    # Adversarial passes read gradients before the step: those of an incomplete pass are no averages.
    if completes and not precision.scales_itself and not precision.perturbations:
        # Ranks that leave out others send gradients at other times, between what batch norm exchanges, say.
        changing = why_changing(program, precision, _training_calls(program, precision))
        return Averaging(bool(changing), changing)
    left_out = why_left_out(program, precision, _training_calls(program, precision))
    if left_out and precision.scales_itself:
        return Averaging(False, unused=left_out)
    return Averaging(bool(left_out), left_out)


def averaging_of_shards(program: Program, precision: Precision) -> Averaging:
    """The same for models that are sharded: always in the backward pass, after any number of forward passes."""
    return Averaging(False, unused=why_left_out(program, precision, _training_calls(program, precision)))


def runs_once_a_pass(program: Program) -> bool:
    """Whether each backward pass is of one forward pass, in a program that wraps its model itself.

    PyTorch's wrapper is enough then. While it searches for unused parameters it is not with checkpoints in the model.
    """
    if program.calls_to(_OTHER_PASSES) or not program.backwards:
        return False
    precision = Precision(backwards=program.backwards, steps=program.steps, scales_itself=True)
    nodes = nodes_of_rounds(program)
    calls = [site for site in calls_as_written(program) if nodes is None or site.node in nodes]
    return all(
        not _why_delayed_in(part, program, precision, None)
        for group in _by_wrapper(program, calls)
        for part in _rounds(program, group, precision)
    )


def _by_wrapper(program: Program, calls: list[Site]) -> list[list[Site]]:
    """The calls of each model that has a wrapper of its own, which counts the forward passes of that model alone.

    All as one group where a call may be of a model that no wrapper is given by itself, or that another call may run.
    """
    wrapped = [
        program.roles.modules(site.node.args[0], site.scope)
        for site in program.calls_to(WRAPPERS | DISTRIBUTED_DATA_PARALLEL)
        if isinstance(site.node, ast.Call) and site.node.args
    ]
    groups: dict[frozenset[Value], list[Site]] = {}
    for site in calls:
        assert isinstance(site.node, ast.Call)
        models = frozenset(program.called_models(site.node, site.scope))
        if not any(models and models <= held for held in wrapped):
            return [calls]
        groups.setdefault(models, []).append(site)
    apart = all(one.isdisjoint(two) for one, two in itertools.combinations(groups, 2))
    return list(groups.values()) if groups and apart else [calls]


def _why_delayed(program: Program, precision: Precision) -> str:
    """What the plain wrapper does not support; empty where it is enough."""
    if len(precision.homes) > 1:
        return "the script trains several models" if _train_several(program, precision) else _PREPARES_SEVERAL
    if precision.full_precision:
        return "gradients are computed by torch.autograd.grad"
    if precision.scales_itself and any(True for _ in widened_parts(program)):
        # Those of a model that the script makes half; the wrapper keeps to the types that weights had at its making.
        return "the model makes a part of itself float32 as it runs"
    if any(not home.rebinds for home in precision.homes):
        return "the model is kept in other places before it is complete"
    home = precision.homes[0]
    calls = _training_calls(program, precision)
    # Adversarial passes read gradients that have to be those of all ranks by then.
    pairs = bool(precision.perturbations) and _alternate(calls, precision.backwards)
    for part in [] if pairs else _rounds(program, calls, precision):
        reason = _why_delayed_in(part, program, precision, home)
        if reason:
            return reason
    if not all(reaches(program, home, call) for call in calls):
        return "the training loop has its own reference to the model"
    return ""


def _train_several(program: Program, precision: Precision) -> bool:
    """Whether training steps may call more than one of the models that are prepared; others evaluate."""
    calls = _training_calls(program, precision)
    called = [home for home in precision.homes if any(reaches(program, home, call) for call in calls)]
    return len(called) != 1


@dataclass(frozen=True)
class _Round:
    """What runs again and again until its gradients are used: the model's calls, the backward passes, the steps."""

    calls: list[Site]
    backwards: Sequence[Site]
    steps: Sequence[Site]


def _rounds(program: Program, calls: list[Site], precision: Precision) -> list[_Round]:
    """The rounds of loops that each have a step; all as one, where they cannot be told apart."""
    whole = _Round(calls, precision.backwards, precision.steps)
    if len(precision.backwards) < 2 or _freezes(program):
        return [whole]
    if not (_are_alike(calls) or _is_of_one_task(program, precision.backwards)):
        return [whole]
    found = dict.fromkeys(map(_loop_of, precision.backwards))
    rounds = {
        loop: _Round(*(_within(loop, sites) for sites in (calls, precision.backwards, precision.steps)))
        for loop in found
    }
    together = [site for part in rounds.values() for site in (*part.calls, *part.steps)]
    complete = all(part.calls and part.steps for part in rounds.values())
    if None in rounds or not complete or len(together) != len(calls) + len(precision.steps):
        return [whole]
    return list(rounds.values())


def _is_of_one_task(program: Program, sites: Sequence[Site]) -> bool:
    """Whether a run trains in one of several ways: methods of one name, of classes with one base, have a loop each."""
    first = list({site.body: site for site in sites}.values())
    return _override_each_other(program, first)


def _loop_of(site: Site) -> ast.stmt | None:
    return blocks.loop_around(site.module, site.node)


def _within(loop: object, sites: Sequence[Site]) -> list[Site]:
    return [site for site in sites if _loop_of(site) is loop]


def _freezes(program: Program) -> bool:
    """Whether some parameters are trained at times only: the wrapper would wait for those of another round."""
    return any(
        isinstance(node, ast.Attribute)
        and (node.attr == "requires_grad_" or (node.attr == "requires_grad" and isinstance(node.ctx, ast.Store)))
        for node, _, _ in program.nodes()
    )


def _why_delayed_in(part: _Round, program: Program, precision: Precision, home: Home | None) -> str:
    calls = part.calls
    one_for_each_model = _override_each_other(program, list(part.backwards))
    # A wrapper of the script's own looks at each pass anew, whichever of them a round makes.
    one_runs = _are_apart if home is None else _always_the_same_runs
    if not (one_for_each_model or one_runs(program, part.backwards)):
        is_of_a_step = any(_meet_in_a_step(program, *pair) for pair in itertools.combinations(part.backwards, 2))
        return "a step has several backward passes" if is_of_a_step else "the model is trained in several places"
    overriding = (
        home is not None and _override_each_other(program, calls) and runs_once(program, home.module, home.statement)
    )
    if not calls or not (overriding or _one_runs(program, calls)):
        return "the model runs several times, or not as a plain call, in a step"
    for site in calls:
        assert isinstance(site.node, ast.Call)
        by_name = isinstance(site.node.func, ast.Attribute) and site.node.func.attr == "forward"
        if by_name and program.flow.callees(site.node):
            return "forward is called by name"
    for backward in part.backwards:
        met = [
            call
            for call in calls
            if _choice_between(call, backward) is None
            and (call.body is backward.body or not _override_each_other(program, [call, backward]))
        ]
        if not met or not all(_same_round(program, call, backward) for call in met):
            return "a step adds up several forward passes"
        for step in () if precision.scales_itself else part.steps:
            if _choice_between(step, backward) is None and (
                _under_condition(step, backward, part.steps) or _outside_loop(step, backward)
            ):
                return "gradients are accumulated over several batches"
    return ""


def _alternate(calls: Sequence[Site], backwards: Sequence[Site]) -> bool:
    """Whether each of the model's calls is followed by its own backward pass before the next, in one suite with it."""
    sites = sorted([*calls, *backwards], key=lambda site: site.module.start(site.node))
    pairs = list(zip(sites[::2], sites[1::2], strict=len(sites) % 2 == 0))
    return (
        len({site.body for site in sites}) == 1
        and len(calls) == len(backwards)
        and _are_alike(list(calls))
        and all(
            call in calls
            and backward in backwards
            and blocks.place(call.module, call.statement).suite
            == blocks.place(backward.module, backward.statement).suite
            for call, backward in pairs
        )
    )


def _training_calls(program: Program, precision: Precision) -> list[Site]:
    """Calls of trained models, and of methods of theirs, that a training step makes."""
    covered = {node for run in precision.training for item in run.statements() for node in blocks.walk_own(item)}
    covered |= {node for site in precision.backwards for node in walk(site.loss)}
    called = program.called_from(covered)
    found: list[Site] = []
    for node, body, scope in program.nodes():
        if not isinstance(node, ast.Call) or not (node in covered or body in called) or program.is_model_code(body):
            continue
        site = Site(scope.module, scope, body, node)
        if program.without_gradients(scope.module, node, body):
            continue
        if any(program.is_trained(value) for value in program.called_models(node, scope)):
            found.append(site)
        elif isinstance(node.func, ast.Attribute) and program.flow.callees(node) and program.runs_model(node):
            if any(program.is_trained(value) for value in program.roles.modules(node.func.value, scope)):
                found.extend([site, site])
    return found


def _one_runs(program: Program, calls: list[Site]) -> bool:
    """Whether a round makes one of the calls at most, and each round the same one, or one that asks for the same parts.

    They stand in different branches.
    """
    if _are_alike(calls):
        return all(_choice_between(one, two) is not None for one, two in itertools.combinations(calls, 2))
    return _always_the_same_runs(program, calls)


def _are_apart(program: Program, sites: Sequence[Site]) -> bool:
    """Whether a round comes to one of the places at most: they stand in different branches."""
    return all(choice is not None for choice, _ in _choices(program, sites))


def _always_the_same_runs(program: Program, sites: Sequence[Site]) -> bool:
    """Whether all rounds run the same one of the places: what chooses the branch does not change."""
    changing = Changing(program)
    return all(
        choice is not None and not changing.changes(choice.test, Site(one.module, one.scope, one.body, choice))
        for choice, one in _choices(program, sites)
    )


def _choices(program: Program, sites: Sequence[Site]) -> Iterator[tuple[ast.If | None, Site]]:
    """Yield what chooses between each two of the places, with one of them; None where a round may come to both."""
    for first, second in itertools.combinations(sites, 2):
        one, two = _in_one_body(program, first, second)
        yield _choice_between(one, two), one


def _meet_in_a_step(program: Program, first: Site, second: Site) -> bool:
    """Whether a round of one loop comes to two places, not a round of one of its loops each."""
    one, two = _in_one_body(program, first, second)
    if one.body is not two.body:
        return False
    around, around_other = (
        [item for item in blocks.enclosing(site.module, site.node) if isinstance(item, blocks.LOOPS)]
        for site in (one, two)
    )
    if not around or not around_other:
        return around == around_other
    return around[0] in around_other or around_other[0] in around


def _in_one_body(program: Program, one: Site, two: Site) -> tuple[Site, Site]:
    """Two places; in place of one in a function of its own, the only call of that in the body of the other."""
    if one.body is two.body:
        return one, two
    lifted = next(_only_call(program, one, two.body), one)
    return lifted, two if lifted is not one else next(_only_call(program, two, one.body), two)


def _choice_between(one: Site, two: Site) -> ast.If | None:
    return blocks.choice_between(one.module, one.node, two.node) if one.body is two.body else None


def _are_alike(sites: list[Site]) -> bool:
    """Whether the calls are written alike: calls of one model, that ask for the same parts of it."""
    calls = [site.node for site in sites if isinstance(site.node, ast.Call)]
    return len({_pattern(call) for call in calls}) == 1


def _pattern(call: ast.Call) -> tuple[object, ...]:
    """A call without its variables; a constant may choose a part of the model."""
    given = [(None, item) for item in call.args] + [(item.arg, item.value) for item in call.keywords]
    shown = tuple((name, item.value if isinstance(item, ast.Constant) else ...) for name, item in given)
    return ast.unparse(call.func), shown


def _override_each_other(program: Program, sites: list[Site]) -> bool:
    """Whether only one of the calls runs: they stand in methods of one name, of classes with one base.

    Or of classes of which a run makes one.
    """
    infos = [program.function_of(site.body) for site in sites]
    found = [program.flow.class_of(info) for info in infos if info is not None]
    owners = [owner for owner in found if owner is not None]
    if len(sites) < 2 or len({id(owner) for owner in owners}) != len(sites):
        return False
    if len({info.name for info in infos if info is not None}) != 1:
        return False
    if not set.intersection(*({id(base) for base in owner.mro()[1:]} for owner in owners)):
        return _one_is_made(program, owners)
    # ``super().loss(batch)`` runs the other one too.
    return not any(is_super(node) for site in sites for node in program.nodes_of(site.body))


def _one_is_made(program: Program, owners: list[ClassInfo]) -> bool:
    """Whether an object of one of the classes alone is made: ``Diffusion(...) if kind == "ddpm" else Flow(...)``."""
    made: dict[int, list[Site]] = {id(owner): [] for owner in owners}
    for call, body, scope in program.calls():
        for value in program.flow.values(call.func, scope):
            if value.kind == "class" and id(value.ref) in made:
                made[id(value.ref)].append(Site(scope.module, scope, body, call))
    return all(made.values()) and all(
        first.body is second.body and _choice_between(first, second) is not None
        for one, two in itertools.combinations(made.values(), 2)
        for first, second in itertools.product(one, two)
    )


def runs_once(program: Program, module: Module, node: ast.AST, depth: int = 0) -> bool:
    """Whether no loop and no second caller runs a node again: two wrapped models may share parts."""
    if any(isinstance(parent, blocks.LOOPS) for parent in blocks.enclosing(module, node)):
        return False
    info = program.function_of(blocks.body_of(module, node))
    callers = program.flow.callers(info) if info is not None else []
    if not callers:
        return True
    if len(callers) > 1 or depth > _MAX_CALLERS:
        return False
    site = calling(callers[0])
    return runs_once(program, site.module, site.node, depth + 1)


def _same_round(program: Program, site: Site, backward: Site) -> bool:
    """Whether the model's call runs once for each backward pass."""
    if site.body is not backward.body:
        loops = _loops_around(site)
        return not loops or any(_loops_around(call) == loops for call in _only_call(program, backward, site.body))
    return _loops_around(site) == _loops_around(backward)


def _loops_around(site: Site) -> list[ast.stmt]:
    return [parent for parent in blocks.enclosing(site.module, site.node) if isinstance(parent, blocks.LOOPS)]


def _only_call(program: Program, backward: Site, body: ast.AST, depth: int = 0) -> Iterator[Site]:
    """The one call in a body that runs a backward pass, once, in another function: ``backward(loss, optimizer)``."""
    info = program.function_of(backward.body)
    callers = program.flow.callers(info) if info is not None else []
    if len(callers) != 1 or _loops_around(backward) or depth > _MAX_CALLERS:
        return
    call = calling(callers[0])
    if call.body is body:
        yield call
    else:
        yield from _only_call(program, call, body, depth + 1)


def _under_condition(step: Site, backward: Site, steps: Sequence[Site]) -> bool:
    """Whether there are rounds in which the backward pass runs, and no step follows."""
    around: set[ast.stmt] = set()
    if step.body is backward.body:
        around = set(blocks.enclosing(backward.module, backward.node))
    return any(
        isinstance(parent, ast.If) and parent not in around and not _always_steps(parent, steps)
        for parent in blocks.enclosing(step.module, step.node)
    )


def _always_steps(choice: ast.If, steps: Sequence[Site]) -> bool:
    """``if use_amp: scaler.step(optimizer) else: optimizer.step()``."""
    statements = {step.statement for step in steps}
    for suite in (choice.body, choice.orelse):
        found = statements & set(suite)
        deeper = (item for item in suite if isinstance(item, ast.If) and _always_steps(item, steps))
        if not found and not any(deeper):
            return False
    return True


def _outside_loop(step: Site, backward: Site) -> bool:
    """Whether the backward pass runs in a loop that ends before the step."""
    if step.body is not backward.body:
        return False
    around = set(blocks.enclosing(step.module, step.node))
    return any(
        isinstance(parent, blocks.LOOPS) and parent not in around
        for parent in blocks.enclosing(backward.module, backward.node)
    )
