"""What a script multiplies or divides by the number of its GPUs, as one process drove them with ``DataParallel``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.precision import Precision
from amp_rules.plan.whole_lengths import WholeLengths
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Backward, Site
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import last_name, walk
from amp_rules.torch.functions import DEVICE_COUNTS
from amp_rules.torch.idioms import NAMED_LEARNING_RATE
from amp_rules.torch.wrappers import DATA_PARALLEL, SPREAD_IN_ONE_CALL

_MAX_VARIABLES = 4
"""Variables through which a factor is followed to the number of GPUs."""


class DeviceCounts:
    """The number of GPUs, wherever a script that wraps a model with ``DataParallel`` has it."""

    def __init__(self, program: Program, lengths: WholeLengths) -> None:
        self._program = program
        self._lengths = lengths
        spreading = program.calls_to(DATA_PARALLEL | SPREAD_IN_ONE_CALL)
        wrapping = [site for site in spreading if isinstance(site.node, ast.Call)]
        self._are_used = bool(wrapping)
        self._devices = [
            Site(site.module, site.scope, site.body, given)
            for site in wrapping
            if isinstance(site.node, ast.Call)
            for given in _devices_of(program, site.node, site.scope)
        ]
        self._texts = {text for site in self._devices for text in _split_texts(program, lengths, site.node, site.scope)}
        self._compared = {key for site in wrapping for key in _compared(site)}

    def products(self) -> Iterator[Site]:
        """Yield products with the number of GPUs."""
        for node, body, scope in self._program.nodes() if self._are_used else ():
            factors: list[ast.expr] = []
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
                factors = [node.left, node.right]
            elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Mult):
                factors = [node.value]
            if any(self._is_number(item, scope) for item in factors):
                yield Site(scope.module, scope, body, node)

    def divided_losses(self, precision: Precision) -> Iterator[Site]:
        """Yield where a loss is divided by the number of GPUs, in a training step or in a function that it calls."""
        if not self._are_used:
            return
        covered = {node for run in precision.training for item in run.statements() for node in blocks.walk_own(item)}
        covered |= {node for site in precision.backwards for node in _written_for(self._program, site)}
        called = self._program.called_from(covered)
        for node, body, scope in self._program.nodes():
            divisor = None
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                divisor = node.right
            elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):
                divisor = node.value
            if divisor is None or not (node in covered or body in called) or not self._is_number(divisor, scope):
                continue
            yield Site(scope.module, scope, body, node)

    def _is_number(self, node: ast.expr, scope: Scope) -> bool:
        if _variable(node, scope) in self._compared:
            return True
        return self._is_count(node, scope)

    def _is_count(self, node: ast.expr, scope: Scope, depth: int = 0) -> bool:
        """Whether an expression is the number of GPUs: asked for, or the length of what ``device_ids`` is given.

        So is the length of a text's parts that these were made of: ``len(args.gpus.split(","))``.
        """
        if isinstance(node, ast.Call):
            if self._program.callee_names(node, scope) & DEVICE_COUNTS:
                return True
            if blocks.path_of(node.func) == "len" and len(node.args) == 1:
                if any(_is_same(self._program, node.args[0], scope, other) for other in self._devices):
                    return True
                return bool(self._texts & set(_split_texts(self._program, self._lengths, node.args[0], scope)))
            inside = node.args if self._lengths.keeps(node, scope) else []
            return any(self._is_count(item, scope, depth) for item in inside)
        key = self._program.flow.key(node, scope) if isinstance(node, (ast.Name, ast.Attribute)) else None
        if depth >= _MAX_VARIABLES:
            return False
        if isinstance(node, ast.Attribute) and (key is None or not self._lengths.assigned.get(key)):
            # Of an object that is not followed, as settings that a library makes: what the same function puts there.
            path = blocks.path_of(node)
            values = [
                item.value
                for item in self._program.nodes_of(scope.node)
                if isinstance(item, ast.Assign) and path is not None and path in map(blocks.path_of, item.targets)
            ]
            return any(self._is_count(item, scope, depth + 1) for item in values)
        return key is not None and any(
            self._is_count(value, where, depth + 1) for value, where in self._lengths.assigned.get(key, ())
        )


def is_of_rate(site: Site) -> bool:
    """Whether a product is a learning rate, by the names of its factors and of what is given it."""
    holder = site.module.parents[site.node]
    names = [last_name(node) for node in walk(site.node) if isinstance(node, (ast.Name, ast.Attribute))]
    names += [holder.arg or ""] if isinstance(holder, ast.keyword) else []
    names += [last_name(target) for target in holder.targets] if isinstance(holder, ast.Assign) else []
    return any(map(NAMED_LEARNING_RATE.search, names))


def only_rounds(site: Site) -> bool:
    """Whether a product is the next multiple below, so that all GPUs get equally many: ``n // gpus * gpus``."""
    node = site.node
    if not isinstance(node, ast.BinOp):
        return False
    return any(
        isinstance(one, ast.BinOp) and isinstance(one.op, ast.FloorDiv) and ast.dump(one.right) == ast.dump(other)
        for one, other in ((node.left, node.right), (node.right, node.left))
    )


def _written_for(program: Program, site: Backward) -> Iterator[ast.AST]:
    """Yield what the loss of a backward pass is computed from in its function, below the forward pass too."""
    yield from walk(site.loss)
    names = {node.id for node in walk(site.loss) if isinstance(node, ast.Name)}
    for node in program.nodes_of(site.body):
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(item, ast.Name) and item.id in names for item in targets):
                yield from walk(node)


def _devices_of(program: Program, call: ast.Call, scope: Scope) -> Iterator[ast.expr]:
    """What a model is spread over, in the call that does it."""
    yield from (item.value for item in call.keywords if item.arg == "device_ids")
    if program.callee_names(call, scope) & SPREAD_IN_ONE_CALL:
        yield from call.args[2:3]


def _compared(site: Site) -> Iterator[tuple[str, ast.AST]]:
    """The variable of a condition on the number of GPUs around a wrapper: ``if args.n_gpu > 1:``."""
    for statement in blocks.enclosing(site.module, site.node):
        if not isinstance(statement, ast.If):
            continue
        for test in walk(statement.test):
            if isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.Gt, ast.GtE)) and len(test.ops) == 1:
                key = _variable(test.left, site.scope)
                limit = test.comparators[0]
                if key is not None and isinstance(limit, ast.Constant) and limit.value in (1, 2):
                    yield key


def _variable(node: ast.expr, scope: Scope) -> tuple[str, ast.AST] | None:
    """A variable or an option by its path and the body that its first name belongs to."""
    path = blocks.path_of(node) if isinstance(node, (ast.Name, ast.Attribute)) else None
    return (path, scope.owner(path.split(".")[0]).node) if path is not None else None


def _split_texts(program: Program, lengths: WholeLengths, node: ast.AST, scope: Scope, depth: int = 0) -> Iterator[str]:
    """Yield the texts whose parts an expression is made of: ``args.gpus`` of ``args.gpus.split(",")``."""
    for part in walk(node):
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr == "split":
            yield ast.unparse(part.func.value)
        elif isinstance(part, (ast.Name, ast.Attribute)) and depth < _MAX_VARIABLES:
            key = program.flow.key(part, scope)
            for value, where in lengths.assigned.get(key, ()) if key is not None else ():
                yield from _split_texts(program, lengths, value, where, depth + 1)


def _is_same(program: Program, node: ast.expr, scope: Scope, other: Site) -> bool:
    assert isinstance(other.node, ast.expr)
    key = program.flow.key(node, scope)
    if key is not None:
        return key == program.flow.key(other.node, other.scope)
    return isinstance(node, ast.Attribute) and ast.dump(node) == ast.dump(other.node)
