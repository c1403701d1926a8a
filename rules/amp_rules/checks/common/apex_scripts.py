"""What rules about scripts for Apex share."""

from __future__ import annotations

import ast

from amp_rules.lattice.abstract_values import Value, alternatives
from amp_rules.lattice.frame import Frame
from amp_rules.source.facts import ModuleFacts
from amp_rules.source.index import keyword

_PRECISION = ("amp", "apex", "fp16", "half", "precision", "opt_level", "mixed")


def is_call_of(value: Value | None, *names: str) -> bool:
    """Whether a value is the result of calling something of Apex."""
    if value is None or value.op != "call" or not value.args:
        return False
    return (value.args[0].sym or "") in {f"apex.{name}" for name in names}


def apex_calls(module: ModuleFacts, *names: str) -> list[ast.Call]:
    """The calls of things of Apex in a file, in the order of the text."""
    wanted = {f"apex.{name}" for name in names}
    found = [item for item in module.index.calls if module.dotted(item.func) in wanted]
    return sorted(found, key=lambda item: (item.lineno, item.col_offset))


def opt_levels(module: ModuleFacts) -> set[str]:
    """The levels that a file asks ``amp.initialize`` for, an empty text where one is computed."""
    found = set()
    for call in apex_calls(module, "amp.initialize"):
        given = keyword(call, "opt_level")
        if given is None and len(call.args) < 4:
            found.add("O1")
        else:
            found.add(given.value if isinstance(given, ast.Constant) and isinstance(given.value, str) else "")
    return found


def initialized_as(value: Value) -> Value:
    """What ``amp.initialize`` was given for one part of its result; anything else is what it was."""
    if value.op not in ("getitem", "element") or not value.args or not is_call_of(value.args[0], "amp.initialize"):
        return value
    index = value.args[1].const if len(value.args) > 1 else None
    names = ("models", "optimizers")
    given = value.args[0].arg(1 + index, names[index]) if index in (0, 1) else None
    return given if given is not None else value


def each_of(value: Value | None) -> tuple[Value, ...]:
    """What a value may be, the items of a list or tuple one by one."""
    found: list[Value] = []
    for item in alternatives(value) if value is not None else ():
        found += item.args if item.op in ("list", "tuple") else [item]
    return tuple(found)


def has_master_weights(module: ModuleFacts, frame: Frame) -> bool:
    """Whether the optimizer holds float32 copies of half weights: the file says so, or leaves it to the mode."""
    levels = opt_levels(module)
    if "" in levels:
        return frame.mode.opt_level == "O2"
    return "O2" in levels


def asks_for_precision(frame: Frame, node: ast.AST | None) -> bool:
    """Whether a test around a place asks for the precision."""
    parents = frame.module.index.parents
    while node is not None:
        node = parents.get(node)
        if isinstance(node, (ast.If, ast.IfExp)):
            test = ast.unparse(node.test).lower()
            if any(word in test for word in _PRECISION):
                return True
    return False
