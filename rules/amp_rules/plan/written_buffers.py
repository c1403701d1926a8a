"""Modules that train nothing and write buffers in a training step, such as a loss that keeps a running centre.

Each rank would write its own from its own batches. Prepared like models, they have those of rank 0 after each step.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator

from amp_rules.flow.values import ClassInfo, Value
from amp_rules.plan import declining
from amp_rules.plan.batch_norms import normalising_beside
from amp_rules.plan.declining import Declined
from amp_rules.plan.model_homes.home import Home
from amp_rules.plan.model_homes.homes import Homes
from amp_rules.plan.precision import Precision
from amp_rules.roles.kinds import is_module
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.syntax import walk

_OR_EVALUATE = "; or put it into evaluation mode"


def homes(program: Program, precision: Precision) -> list[Home]:
    """Where such modules are prepared."""
    finder = Homes(program)
    return _once(home for value in _writers(program, precision) for home in finder.each_of(value))


def homes_of_batch_norm(program: Program, precision: Precision) -> list[Home]:
    """Where modules that normalise by the batch are prepared: they train nothing, and write no buffers themselves."""
    finder = Homes(program)
    others = {home.key for home in homes(program, precision)}
    found = [home for value in normalising_beside(program, precision) for home in finder.each_of(value)]
    return _once(home for home in found if home.key not in others)


def _once(found: Iterable[Home]) -> list[Home]:
    """Each place once: the branches above it may each make a module for the variable."""
    return list({(home.statement, home.variable): home for home in found}.values())


def reasons(program: Program, precision: Precision, *, sync_bn: bool) -> Iterator[Declined]:
    """Yield those that no variable holds."""
    finder = Homes(program)
    by_hand = "give it a variable of its own, and write `variable = amp.prepare_model(variable)` after it"
    told = [
        (value, "has batch norm in training mode, which would use only the share of each process", _OR_EVALUATE)
        for value in (normalising_beside(program, precision) if sync_bn else ())
    ]
    told += [
        (value, "writes buffers in each step, which would differ on each rank", "")
        for value in _writers(program, precision)
    ]
    for value, what, otherwise in told:
        located = program.locate(value.site) if isinstance(value.site, ast.Call) else None
        if finder.of(value) is None and located is not None and isinstance(value.site, ast.Call):
            module = located[1].module
            text = f"`{module.text(value.site)}` {what}"
            yield declining.decline(declining.GRADIENTS_OUTSIDE, module, value.site, text, by_hand + otherwise)


def _writers(program: Program, precision: Precision) -> list[Value]:
    """The modules that run in training steps, write buffers, and have nothing that is trained, nor are part of it."""
    covered = {node for run in precision.training for item in run.statements() for node in blocks.walk_own(item)}
    called = program.called_from(covered)
    instances = _instances(program)
    writing = {
        owner
        for owner in program.flow.classes.values()
        if is_module(Value("instance", owner))
        and not any(map(program.is_trained, instances[owner]))
        and any(_writes(owner, method) for method in owner.facts.methods.values() if method.node in called)
    }
    found = {value for owner in writing for value in instances[owner]}
    found -= program.with_parts(program.trained) if found else set()
    parts = {value for value in found if _is_part(program, value)}
    return sorted(found - parts, key=lambda value: getattr(value.site, "lineno", 0))


def _instances(program: Program) -> defaultdict[ClassInfo, set[Value]]:
    """The objects of each class, those of classes derived from it among them."""
    made = {
        value
        for cell in program.flow.cells.values()
        for value in cell.values
        if value.kind == "instance" and value.site is not None
    }
    found: defaultdict[ClassInfo, set[Value]] = defaultdict(set)
    for value in made:
        for owner in value.ref.mro():
            found[owner].add(value)
    return found


def _is_part(program: Program, value: Value) -> bool:
    """Whether a module of the project keeps it: it is followed with that, or that is a writer as well.

    What a module makes in its own code is its part, in whatever it is kept: ``layers += [norm_layer(width)]``.
    """
    located = program.locate(value.site) if value.site is not None else None
    if located is not None and program.is_model_code(located[0]):
        return True
    return any(
        value in values or value in program.flow.elements(values)
        for info in program.flow.classes.values()
        if is_module(Value("instance", info))
        for values in program.flow.held_by(info.facts.node)
    )


def _writes(owner: ClassInfo, method: FunctionFacts) -> bool:
    """Whether a method writes one of the buffers that the class registers."""
    if method.name == "__init__":
        return False
    names = _buffers(owner)
    written = {path for statement in method.body for path in blocks.writes(statement)}
    return bool(written & names) or any(_in_place(node, names) for node in method.nodes)


def writes_of_batch(owner: ClassInfo, method: FunctionFacts) -> ast.AST | None:
    """Where a method writes one of the buffers with more than a constant, which counts or clears."""
    if method.name == "__init__":
        return None
    names = _buffers(owner)
    for node in method.nodes:
        is_assigned = isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and _assigned(node) & names
        if (is_assigned or _in_place(node, names)) and not _is_constant(node):
            return node
    return None


def _assigned(node: ast.Assign | ast.AugAssign | ast.AnnAssign) -> set[str]:
    """The paths that a statement assigns; ``self.queue`` for ``self.queue[:, 2:]``, too."""
    found = blocks.writes(node)
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        owner: ast.expr = target
        while isinstance(owner, ast.Subscript):
            owner = owner.value
        found |= {path for path in [blocks.path_of(owner)] if path is not None}
    return found


def _buffers(owner: ClassInfo) -> set[str]:
    """The buffers that a class registers, as methods have them."""
    return {
        f"self.{node.args[0].value!s}"
        for info in owner.mro()
        for node in walk(info.facts.node)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "register_buffer"
        and node.args
        and isinstance(node.args[0], ast.Constant)
    }


def _is_constant(node: ast.AST) -> bool:
    """``self.steps += 1``, ``self.steps.add_(1)``."""
    if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
        return isinstance(node, ast.AugAssign) and isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Expr):
        node = node.value
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr[-1:] != "_":
        return False
    return all(isinstance(item, ast.Constant) for item in [*node.args, *(one.value for one in node.keywords)]) and (
        blocks.path_of(node.func.value) is not None
    )


def _in_place(node: ast.AST, names: set[str]) -> bool:
    """``self.center.mul_(0.9)``, ``update(self.center, value)`` as a statement."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        if any(blocks.path_of(argument) in names for argument in node.value.args):
            return True
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_")):
        return False
    owner: ast.expr = node.func.value
    while True:  # ``self.center.mul_(0.9).add_(mean)``, ``self.center.data.copy_(mean)``
        if blocks.path_of(owner) in names:
            return True
        if isinstance(owner, ast.Call) and isinstance(owner.func, ast.Attribute):
            owner = owner.func.value
        elif isinstance(owner, ast.Attribute):
            owner = owner.value
        else:
            return False
