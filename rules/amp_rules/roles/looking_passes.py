"""Backward passes that look at the model and train nothing: maps of what an output rests on, attacks in an evaluation.

Such a pass reads the gradients of its input or of a hidden layer, or those of weights that it cleared itself. What it
leaves in the parameters is cleared before the next training pass. So it needs no loss scale, and with a scale its
numbers would be wrong, or would overflow and stay in what is made of them: it stays as it is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from amp_rules.flow.flow import Flow
from amp_rules.flow.values import Value
from amp_rules.roles.cleared_passes import reads_of_cleared
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import is_none, own_name, walk
from amp_rules.torch.data import LOADERS_OF_TORCH
from amp_rules.torch.gradients import CLIP_METHODS, GRADIENT, GRADIENT_HOOK_FUNCTIONS, GRADIENT_HOOKS

_MARKS = frozenset({"requires_grad", "requires_grad_", "retain_grad"})
"""What makes a backward pass keep the gradient of a tensor."""

_COPIES = frozenset({"clone", "detach"})
_SAME_ELSEWHERE = frozenset({"cpu", "cuda", "double", "float", "requires_grad_", "to"})

_KEEP_BATCHES = frozenset(
    {"builtins.list", "builtins.sorted", "builtins.tuple", "collections.deque", "itertools.cycle", "itertools.tee"}
)

_REACHES_OTHERS = (
    GRADIENT_HOOKS | CLIP_METHODS | {name.rpartition(".")[2] for name in GRADIENT_HOOK_FUNCTIONS} | {"attrgetter"}
)


class _Call(Protocol):
    """A call, and where it stands."""

    @property
    def module(self) -> Module: ...
    @property
    def scope(self) -> Scope: ...
    @property
    def body(self) -> ast.AST: ...
    @property
    def node(self) -> ast.AST: ...
    @property
    def call(self) -> ast.Call: ...


class _Pass(_Call, Protocol):
    """A backward pass."""

    @property
    def loss(self) -> ast.expr: ...
    @property
    def is_scaled(self) -> bool: ...


class _Step(_Call, Protocol):
    """A step of an optimizer."""

    @property
    def optimizer(self) -> ast.expr: ...


class _Program(Protocol):
    """What is asked of a program, which asks for these passes itself."""

    flow: Flow

    @property
    def reads(self) -> list[tuple[ast.Name | ast.Attribute | ast.ImportFrom, Scope]]: ...
    def calls(self) -> Iterator[tuple[ast.Call, ast.AST, Scope]]: ...
    def called_from(self, nodes: Iterable[ast.AST]) -> set[ast.AST]: ...
    def callee_names(self, call: ast.Call, scope: Scope) -> set[str]: ...
    def function_of(self, body: ast.AST) -> FunctionFacts | None: ...
    def loose_parameters(self, call: ast.Call) -> set[Value]: ...


_P = TypeVar("_P", bound=_Pass)


@dataclass(frozen=True)
class Looks(Generic[_P]):
    """The backward passes of a program that look at its models.

    Attributes:
        backwards: the passes.
        bodies: the functions that they stand in, and all that these call.
        reads: the nodes that read the gradients of these passes.
        rounds: the nodes of the rounds of the training, and the functions that these call.
    """

    backwards: tuple[_P, ...] = ()
    bodies: frozenset[ast.AST] = frozenset()
    reads: frozenset[ast.AST] = frozenset()
    rounds: frozenset[ast.AST] = frozenset()


def looks(program: _Program, backwards: Sequence[_P], steps: Sequence[_Step], unknown: Sequence[_Step]) -> Looks[_P]:
    """Find them; none, unless each round of the training clears what they leave before its first backward pass.

    Args:
        program: the program.
        backwards: all backward passes.
        steps: the steps of its optimizers.
        unknown: calls that may be steps.
    """
    if not steps or unknown:
        return Looks()
    of_weights = {item: reads for item in backwards if (reads := _reads_of_weights(program, item)) is not None}
    candidates = {item: reads for item in backwards if (reads := _reads_of(item)) is not None} | of_weights
    if not candidates or len(candidates) == len(backwards) or _uses_apex(program):
        return Looks()
    weights = _loose_weights(program, steps)
    reads = frozenset(node for found in candidates.values() for node in found)
    reached = {item: {item.body} | program.called_from(blocks.walk_body(item.body)) for item in candidates}
    found = [
        item
        for item in candidates
        if (item in of_weights or _are_of_the_pass(program, item, candidates[item], weights))
        and not any(_reaches_other(node, reads) for body in reached[item] for node in blocks.walk_body(body))
    ]
    sites = ({item.node for item in steps} | {item.node for item in backwards}) - {item.node for item in found}
    found = [item for item in found if sites.isdisjoint(_nodes_of(reached[item]))]
    found = [item for item in found if _is_called_by_name(program, item.body)]
    others = {item.node for item in backwards if item not in found}
    rounds = _rounds(program, steps, {item.node for item in found}) if found else None
    if rounds is None or not others <= rounds:
        return Looks()
    if any(isinstance(node, ast.Attribute) and node.attr in _MARKS for node in rounds):
        return Looks()  # a tensor of the training may come with a gradient of its own
    bodies = frozenset(body for item in found for body in reached[item])
    return Looks(
        tuple(found), bodies, frozenset(node for item in found for node in candidates[item]), frozenset(rounds)
    )


def _nodes_of(bodies: Iterable[ast.AST]) -> set[ast.AST]:
    return {node for body in bodies for node in blocks.walk_body(body)}


def _is_called_by_name(program: _Program, body: ast.AST) -> bool:
    """Whether all that leads to a function is known: nothing hands it, or who calls it, to what calls it unseen."""
    above: set[ast.AST] = set()
    pending = [body]
    while pending:
        info = program.function_of(current := pending.pop())
        if info is None or current in above:
            continue
        above.add(current)
        callers = program.flow.callers(info)
        if not callers or isinstance(current, ast.Lambda):
            return False
        pending += [blocks.body_of(item.scope.module, item.call) for item in callers]
    names = {getattr(item, "name", "") for item in above}
    return not any(
        value.kind in ("function", "partial") and getattr(value.ref, "node", value.ref) in above
        for node, scope in program.reads
        if isinstance(node, (ast.Name, ast.Attribute)) and own_name(node) in names and not _is_called(node, scope)
        for value in program.flow.values(node, scope)
    )


def _is_called(node: ast.expr, scope: Scope) -> bool:
    parent = scope.module.parents.get(node)
    return isinstance(parent, ast.Call) and parent.func is node


def _uses_apex(program: _Program) -> bool:
    """Whether the script takes its precision from Apex: that casts wherever the pass runs."""
    return any(
        name.partition(".")[0] == "apex"
        for module in program.flow.modules
        for node in module.nodes
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [item.name for item in node.names])
    )


# ---- what a pass reads ---------------------------------------------------------------------------------------


def _reads_of(item: _Pass) -> frozenset[ast.AST] | None:
    """What reads gradients in the function of a pass, where all is of tensors that it marks; else None."""
    if not _is_plain(item):
        return None
    marked = {name for name, _ in _marked(item.body)}
    found = set()
    for node in blocks.walk_body(item.body):
        if isinstance(node, ast.Attribute) and node.attr == GRADIENT:
            if not isinstance(node.value, ast.Name) or node.value.id not in marked:
                return None
            found.add(node)
    return frozenset(found) or None


def _reads_of_weights(program: _Program, item: _Pass) -> frozenset[ast.AST] | None:
    """What reads gradients in the function of a pass, where all is of weights that it clears first; else None."""
    return reads_of_cleared(program.flow, item.module, item.body, item.call) if _is_plain(item) else None


def _is_plain(item: _Pass) -> bool:
    """Whether a pass is a statement of a function, ``loss.backward()``, that says no more than what it keeps."""
    if not isinstance(item.body, (ast.FunctionDef, ast.AsyncFunctionDef)) or item.loss in item.call.args:
        return False
    if item.is_scaled or any(word.arg != "retain_graph" for word in item.call.keywords) or len(item.call.args) > 1:
        return False
    return isinstance(item.scope.module.parents.get(item.call), ast.Expr)


def _marked(body: ast.AST) -> Iterator[tuple[str, str]]:
    """The variables whose gradients a function asks for, and how: ``f.retain_grad()``, ``x = y.requires_grad_()``."""
    for node in blocks.walk_body(body):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MARKS:
            if isinstance(node.func.value, ast.Name):
                yield node.func.value.id, node.func.attr
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Attribute) and target.attr in _MARKS and isinstance(target.value, ast.Name):
                    yield target.value.id, target.attr
            made = node.value
            is_marked = isinstance(made, ast.Call) and own_name(made.func) == "requires_grad_"
            if is_marked and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                yield node.targets[0].id, "requires_grad_"


def _loose_weights(program: _Program, steps: Sequence[_Step]) -> set[Value]:
    """The tensors that no model owns and an optimizer holds."""
    made = [value.site for step in steps for value in program.flow.values(step.optimizer, step.scope)]
    made += [call for call, _, _ in program.calls() if own_name(call.func) == "add_param_group"]
    return {value for call in made if isinstance(call, ast.Call) for value in program.loose_parameters(call)}


def _are_of_the_pass(program: _Program, item: _Pass, reads: frozenset[ast.AST], loose: set[Value]) -> bool:
    """Whether the tensors whose gradients are read are none that an optimizer holds, and are made for the pass alone.

    One that the training is given too would come with what it left there.
    """
    names = {node.value.id for node in reads if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)}
    retained = {name for name, how in _marked(item.body) if how == "retain_grad"}
    info = program.function_of(item.body)
    if info is None or not names.isdisjoint(info.parameters):
        return False
    for node in blocks.walk_body(item.body):
        if isinstance(node, ast.Name) and node.id in names:
            values = program.flow.values(node, item.scope)
            if any(value.kind == "parameters" or value in loose for value in values):
                return False
            if not isinstance(node.ctx, ast.Load) and not _is_new(program, item, node, node.id in retained):
                return False
    return all(item.scope.owner(name) is item.scope for name in names)


def _is_new(program: _Program, item: _Pass, name: ast.Name, is_retained: bool) -> bool:
    """Whether a variable gets a tensor that nothing else holds, or the same on another device.

    Args:
        program: the program.
        item: the pass.
        name: the variable, where it is bound.
        is_retained: whether it is asked for a gradient as what a model computed.
    """
    statement = blocks.statement_of(item.scope.module, name)
    if isinstance(statement, ast.For) and name in set(walk(statement.target)):
        loaders = program.flow.values(statement.iter, item.scope)
        return bool(loaders) and all(map(_stacks_samples, loaders)) and not _are_kept(program, loaders)
    if not isinstance(statement, ast.Assign):
        return False
    pairs = [pair for target in statement.targets for pair in blocks.unpacked(target, statement.value)]
    given = next((value for target, value in pairs if name in set(walk(target))), None)
    if not isinstance(given, ast.Call):
        return False
    if is_retained:
        return True
    current: ast.expr = given
    while isinstance(current, ast.Call) and isinstance(current.func, ast.Attribute):
        if current.func.attr in _COPIES:
            return True
        if current.func.attr not in _SAME_ELSEWHERE:
            return False
        current = current.func.value
    return isinstance(current, ast.Name) and current.id == name.id


def _stacks_samples(value: Value) -> bool:
    """Whether a value is a loader that makes new tensors of its samples."""
    call = value.site
    if (
        value.kind != "object"
        or value.ref not in LOADERS_OF_TORCH
        or not isinstance(call, ast.Call)
        or len(call.args) > 2
    ):
        return False
    words = {word.arg: word.value for word in call.keywords}
    size = call.args[1] if len(call.args) > 1 else words.get("batch_size")
    is_whole = is_none(size)
    return not is_whole and None not in words and "collate_fn" not in words


def _are_kept(program: _Program, loaders: set[Value]) -> bool:
    """Whether something keeps the batches of a loader, to give the same tensors again."""
    return any(
        program.callee_names(call, scope) & _KEEP_BATCHES
        and any(program.flow.values(item, scope) & loaders for item in call.args)
        for call, _, scope in program.calls()
    )


def _reaches_other(node: ast.AST, reads: frozenset[ast.AST]) -> bool:
    """Whether a node reaches gradients besides those that passes of this kind read."""
    if isinstance(node, ast.Attribute):
        return node.attr in _REACHES_OTHERS or (node.attr == GRADIENT and node not in reads)
    if isinstance(node, ast.Name):
        return node.id in _REACHES_OTHERS or node.id in ("exec", "eval")
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and GRADIENT in node.value.split(".")


# ---- what the training does with it --------------------------------------------------------------------------


def _rounds(program: _Program, steps: Sequence[_Step], passes: set[ast.AST]) -> set[ast.AST] | None:
    """The nodes that run in the rounds of all steps; None where one does not clear first, or runs such a pass."""
    found: set[ast.AST] = set()
    for step in steps:
        suite = _round_of(step)
        if suite is None:
            return None
        path = blocks.path_of(step.optimizer)
        if path is None or any(blocks.touches(blocks.writes(item), {path}) for item in suite):
            return None
        at = next(index for index, statement in enumerate(suite) if step.node in set(walk(statement)))
        clears = next((index for index, item in enumerate(suite[:at]) if _clears(program, item, step)), None)
        if clears is None:
            return None
        before = _run_by(program, suite[: clears + 1])
        if any(item.node in before for item in steps) or any(map(_is_backward, before)):
            return None
        found |= before | _run_by(program, suite[clears + 1 :])
    return None if passes & found else found


def _is_backward(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "backward"


def _run_by(program: _Program, suite: Sequence[ast.stmt]) -> set[ast.AST]:
    """The nodes that run with some statements, and the functions that these call."""
    nodes = {node for statement in suite for node in walk(statement)}
    bodies = program.called_from(nodes)
    return nodes | bodies | {node for body in bodies for node in walk(body)}


def _round_of(step: _Step) -> list[ast.stmt] | None:
    """The suite of the innermost loop around a step, or that of its function; None where it stands at a loop's end."""
    for parent in blocks.enclosing(step.module, step.node):
        if isinstance(parent, blocks.LOOPS):
            return parent.body if any(step.node in set(walk(item)) for item in parent.body) else None
    body = step.body
    return body.body if isinstance(body, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)) else None


def _clears(program: _Program, statement: ast.stmt, step: _Step) -> bool:
    """Whether a statement is ``optimizer.zero_grad()`` of the optimizer of a step."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "zero_grad"):
        return False
    if call.args or any(word.arg != "set_to_none" for word in call.keywords) or program.flow.callees(call):
        return False
    path = blocks.path_of(step.optimizer)
    return path is not None and blocks.path_of(call.func.value) == path
