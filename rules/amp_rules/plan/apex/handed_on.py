"""Apex's ``amp`` where it is kept in an attribute: ``args.amp = amp``, and ``args.amp.scale_loss(...)`` elsewhere."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from amp_rules.plan.apex.references import References
from amp_rules.roles.program import Program
from amp_rules.source.modules import Module
from amp_rules.source.resolver import names_of
from amp_rules.source.syntax import is_none
from amp_rules.torch import apex as api

AMP = "apex.amp"

_OF_STATE = frozenset({"state_dict", "load_state_dict"})
_FUNCTIONS = frozenset({"initialize", "scale_loss", *(path.rpartition(".")[2] for path in api.RENAMED)})
_OF_NO_STATE = _FUNCTIONS - _OF_STATE
# No other object of a training script has these.
_OF_AMP_ALONE = frozenset({"scale_loss", "master_params", "disable_casts"})
_TESTS = (ast.If, ast.IfExp, ast.While, ast.Assert)


@dataclass(frozen=True)
class HandedOn:
    """Where a program keeps ``amp`` in attributes of its objects, and asks for it there.

    Attributes:
        writes: the statements that put it there.
        reads: the expressions that hold it.
        files: the files with such expressions.
        empty: the statements that say it is None at first, ``self.amp = None``, where that is all they do.
        scalers: the statements that put it where the scaler does as well: what reads the attribute asks whether there
            is one, or hands it on to what loads and saves its state.
        is_used_elsewhere: whether something calls its functions by another way, as a parameter.
    """

    writes: frozenset[ast.stmt] = frozenset()
    reads: frozenset[ast.expr] = frozenset()
    files: frozenset[Module] = frozenset()
    empty: frozenset[ast.stmt] = frozenset()
    scalers: frozenset[ast.stmt] = frozenset()
    is_used_elsewhere: bool = False


def handed_on(program: Program, users: set[Module]) -> HandedOn:
    """What is known of ``amp`` in attributes of a program.

    An attribute's name counts for all objects: whatever is put under it must be ``amp``, or None before that, and
    whatever is read under it must be used as ``amp``.

    Args:
        program: the program, as it is on disk.
        users: the files that import something of Apex.
    """
    known = {module: _amp_in(module) for module in users}
    writes: dict[str, list[ast.stmt]] = {}
    for module, nodes in known.items():
        for node in nodes:
            value = or_none(module, node)
            assignment = module.parents[value]
            if isinstance(assignment, ast.Assign) and assignment.value is value and len(assignment.targets) == 1:
                target = assignment.targets[0]
                if isinstance(target, ast.Attribute):
                    writes.setdefault(target.attr, []).append(assignment)
    reads: dict[ast.expr, Module] = {}
    empty: set[ast.stmt] = set()
    is_lost = is_kept = False
    for module, attribute in _attributes(program):
        if attribute.attr not in writes or attribute in known.get(module, ()) or _is_of_library(module, attribute):
            continue
        parent = module.parents[attribute]
        if isinstance(attribute.ctx, ast.Load) and isinstance(parent, ast.Attribute) and parent.attr in _FUNCTIONS:
            reads[attribute] = module
        elif is_set_to_none(module, attribute):
            # Each read calls a function of `amp`, which None has not: a program that runs has written over it.
            empty.update([parent] if isinstance(parent, ast.Assign) and len(parent.targets) == 1 else [])
        elif isinstance(attribute.ctx, ast.Load) and (_is_asked(module, attribute) or _is_given(module, attribute)):
            is_kept = True
        else:
            is_lost |= parent not in writes[attribute.attr]
    elsewhere = any(
        (attribute.attr in _OF_AMP_ALONE or (attribute.attr in _OF_NO_STATE and _is_called_amp(attribute.value)))
        and attribute.value not in reads
        and attribute.value not in known.get(module, ())
        for module, attribute in _attributes(program)
    )
    if is_lost or (is_kept and elsewhere):
        return HandedOn(is_used_elsewhere=elsewhere or bool(reads))
    stored = frozenset(item for items in writes.values() for item in items)
    files = {*reads.values(), *(module for module, node in _attributes(program) if module.parents[node] in empty)}
    if is_kept:
        return HandedOn(reads=frozenset(reads), files=frozenset(reads.values()), scalers=stored)
    return HandedOn(stored, frozenset(reads), frozenset(files), frozenset(empty), is_used_elsewhere=elsewhere)


def or_none(module: Module, node: ast.expr) -> ast.expr:
    """``amp if args.fp16 else None`` around ``amp``; the node itself without it."""
    choice = module.parents[node]
    if isinstance(choice, ast.IfExp) and node is not choice.test:
        if is_none(choice.orelse if node is choice.body else choice.body):
            return choice
    return node


def amp_of(value: ast.expr) -> ast.expr:
    """What stands for ``amp`` in what an attribute is given: the whole, or the branch that is not None."""
    if isinstance(value, ast.IfExp):
        return value.orelse if is_none(value.body) else value.body
    return value


def is_set_to_none(module: Module, target: ast.expr) -> bool:
    """Whether an assignment gives the target None: alone, or in a row as in ``self.a, self.b = None, 0``."""
    parent = module.parents[target]
    if isinstance(parent, ast.Assign) and target in parent.targets:
        return is_none(parent.value)
    holder = module.parents[parent] if isinstance(parent, (ast.Tuple, ast.List)) else None
    if not isinstance(parent, (ast.Tuple, ast.List)) or not isinstance(holder, ast.Assign):
        return False
    values = holder.value
    if not isinstance(values, (ast.Tuple, ast.List)) or len(values.elts) != len(parent.elts):
        return False
    starred = any(isinstance(item, ast.Starred) for item in (*values.elts, *parent.elts))
    return not starred and is_none(values.elts[parent.elts.index(target)])


def _is_asked(module: Module, node: ast.expr) -> bool:
    """Whether an expression is only asked whether it is there: ``if self.amp:``, ``if half and self.amp is None:``."""
    inner: ast.AST = node
    parent = module.parents[node]
    if isinstance(parent, ast.Compare) and parent.left is node and len(parent.ops) == 1:
        if not isinstance(parent.ops[0], (ast.Is, ast.IsNot)) or not is_none(parent.comparators[0]):
            return False
        inner, parent = parent, module.parents[parent]
    while isinstance(parent, (ast.BoolOp, ast.UnaryOp)):
        if isinstance(parent, ast.BoolOp) and isinstance(parent.op, ast.And) and inner is not parent.values[-1]:
            return True  # ``self.amp and self.amp.state_dict()`` gives it on only where it is None
        inner, parent = parent, module.parents[parent]
    return isinstance(parent, _TESTS) and parent.test is inner


def _is_given(module: Module, node: ast.expr) -> bool:
    """Whether an expression is an argument by name, as of what loads and saves: ``save(model=model, amp=amp)``."""
    parent = module.parents[node]
    return isinstance(parent, ast.keyword) and parent.arg is not None


def _is_called_amp(node: ast.expr) -> bool:
    """A parameter, as far as its name tells."""
    return isinstance(node, ast.Name) and node.id == "amp"


def _attributes(program: Program) -> Iterator[tuple[Module, ast.Attribute]]:
    return (
        (module, node) for module in program.flow.modules for node in module.nodes if isinstance(node, ast.Attribute)
    )


def _amp_in(module: Module) -> set[ast.expr]:
    """The expressions of a file that its imports make ``amp``."""
    references = References(module)
    return {
        node
        for node in module.nodes
        if isinstance(node, (ast.Name, ast.Attribute))
        and isinstance(node.ctx, ast.Load)
        and references.target(node) == AMP
    }


def _is_of_library(module: Module, node: ast.Attribute) -> bool:
    """Whether the path begins with an import: ``torch.cuda.amp``."""
    return bool(names_of(module).targets(node))
