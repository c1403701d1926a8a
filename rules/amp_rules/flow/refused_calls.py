"""Classes that a call cannot make: of several that a name may find, those that take other arguments."""

from __future__ import annotations

import ast

from amp_rules.flow.values import Value


def accepted(values: set[Value], parents: dict[ast.AST, ast.AST], called: ast.AST) -> set[Value]:
    """The values without the classes that refuse the arguments of the call which ``called`` is the function of."""
    call = parents.get(called)
    if not isinstance(call, ast.Call) or call.func is not called:
        return values
    return {value for value in values if not refuses(value, call)}


def refuses(value: Value, call: ast.Call) -> bool:
    """Whether a class takes no argument of such a name, or fewer than it is given, or needs more."""
    made = value.ref.find_method("__init__") if value.kind == "class" else None
    if made is None or not isinstance(made.node, ast.FunctionDef) or made.node.args.kwarg or made.node.decorator_list:
        return False
    given = made.node.args
    named = {item.arg for item in call.keywords}
    if not named - {None} <= {item.arg for item in (*given.args, *given.kwonlyargs)}:
        return True
    if None in named or any(isinstance(item, ast.Starred) for item in call.args):
        return False
    by_place = [*given.posonlyargs, *given.args][1:]
    if len(call.args) > len(by_place) and given.vararg is None:
        return True
    needed = by_place[len(call.args) : len(by_place) - len(given.defaults)]
    return any(item.arg not in named for item in needed)
