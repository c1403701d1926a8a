"""Questions that name Apex, or a part of it, in a string: ``find_spec("apex")``, ``"state_dict" in amp.__dict__``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.apex.references import is_apex
from amp_rules.source.modules import Module
from amp_rules.source.resolver import Names, names_of
from amp_rules.source.syntax import walk
from amp_rules.torch.apex import (
    ASKED_OF_TRANSFORMERS,
    DROPIN_MODULES,
    FINDERS,
    FLAG_OF_TRANSFORMERS,
    LOADED_MODULES,
)
from amp_rules.torch.apex_names import DROPIN_NAMES


def questions(module: Module) -> Iterator[ast.expr]:
    """Every expression that is told whether Apex is loaded, or can be imported."""
    names = names_of(module)
    for node in module.nodes:
        if isinstance(node, ast.Compare | ast.Call) and answer(names, node) is not None:
            yield node


def flags_of_transformers(module: Module) -> Iterator[ast.Attribute]:
    """Every ``self.use_apex`` in a class that derives from one of transformers, and does not set it itself."""
    names = names_of(module)
    for owner in module.nodes:
        if not isinstance(owner, ast.ClassDef):
            continue
        bases = [names.target(base) or "" for base in owner.bases if isinstance(base, (ast.Name, ast.Attribute))]
        flags = [
            node
            for node in walk(owner)
            if isinstance(node, ast.Attribute)
            and node.attr == FLAG_OF_TRANSFORMERS
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        ]
        if any(base.startswith("transformers.") for base in bases) and all(isinstance(f.ctx, ast.Load) for f in flags):
            yield from flags


def answer(names: Names, node: ast.expr) -> bool | None:
    """What such a question is answered where Apex is installed, as a truth value; None of anything else."""
    if isinstance(node, ast.Call):
        target = names.target(node.func)
        if target is not None and is_question_of_transformers(target):
            return True
        return True if target in FINDERS and node.args and _names_apex(node.args[0]) else None
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and _names_apex(node.left):
        if isinstance(node.ops[0], (ast.In, ast.NotIn)) and names.target(node.comparators[0]) == LOADED_MODULES:
            return isinstance(node.ops[0], ast.In)
    return None


def is_question_of_transformers(target: str) -> bool:
    """Whether a dotted name is that of ``is_apex_available`` of transformers."""
    return target.partition(".")[0] == "transformers" and target.rpartition(".")[2] == ASKED_OF_TRANSFORMERS


def asked_of(names: Names, node: ast.expr) -> str | None:
    """The dotted name that ``"state_dict" in amp.__dict__`` asks for; None of anything else."""
    asked = _asked_member(node)
    target = names.target(asked[0]) if asked is not None else None
    return f"{target}.{asked[1]}" if asked is not None and target in DROPIN_MODULES else None


def answer_of_member(names: Names, node: ast.expr) -> bool | None:
    """What is answered where a module of Apex is asked for a name that it has; None of anything else."""
    asked = _asked_member(node)
    return asked[2] if asked is not None and asked_of(names, node) in DROPIN_NAMES else None


def _asked_member(node: ast.expr) -> tuple[ast.expr, str, bool] | None:
    """Of ``"x" in amp.__dict__`` and ``hasattr(amp, "x")``: who is asked, for what, and the answer if it is there."""
    owner: ast.expr | None = None
    name: ast.expr | None = None
    holds = True
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id == "hasattr" and len(node.args) == 2:
            owner, name = node.args
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], (ast.In, ast.NotIn)):
        owner, name, holds = _whole(node.comparators[0]), node.left, isinstance(node.ops[0], ast.In)
    if not isinstance(owner, ast.Name | ast.Attribute) or not isinstance(name, ast.Constant):
        return None
    return (owner, name.value, holds) if isinstance(name.value, str) else None


def _whole(node: ast.expr) -> ast.expr | None:
    """``amp`` of ``amp.__dict__``, ``amp.__dict__.keys()``, ``vars(amp)`` and ``dir(amp)``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "keys":
        return _whole(node.func.value)
    if isinstance(node, ast.Call):
        is_listing = isinstance(node.func, ast.Name) and node.func.id in ("dir", "vars") and len(node.args) == 1
        return node.args[0] if is_listing else None
    return node.value if isinstance(node, ast.Attribute) and node.attr == "__dict__" else None


def _names_apex(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and is_apex(node.value)
