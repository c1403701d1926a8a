"""Models that a script makes half itself, and what it calls them with."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.source.facts import ModuleFacts
from amp_rules.source.syntax import last_name, spelling

_HALVES = frozenset({"torch.float16", "torch.half", "torch.bfloat16"})
_FACTORIES = frozenset(f"torch.{name}" for name in "zeros ones empty full rand randn".split())
_MOVING = frozenset("cuda cpu unsqueeze view reshape expand repeat contiguous clone detach".split())
_NAMES = 4
"""Names that stand for each other, one after the other."""
_SAYS_TYPE = ("autocast", "set_default_dtype", "set_default_tensor_type")
"""With any of these in a file, a factory may make something else, or the model may take it."""


def float32_inputs(module: ModuleFacts) -> Iterator[tuple[ast.Call, ast.expr, ast.Call]]:
    """The calls of a model that this very function made half before, with a float32 tensor that it makes.

    Yields:
        the call, the tensor, and where the model became half.
    """
    index = module.index
    if any(word in index.words for word in _SAYS_TYPE):
        return
    for made in [*index.named.get("half", ()), *index.named.get("bfloat16", ()), *index.named.get("to", ())]:
        if not isinstance(made.func, ast.Attribute) or not _to_half(made, module):
            continue
        held = made.func.value
        name = held.id if isinstance(held, ast.Name) else None
        if name is None or not _is_kept(made, name, module):
            continue
        for call in index.named.get(name, ()):
            if not (isinstance(call.func, ast.Name) and call.args and index.precedes(made, call)):
                continue
            given = call.args[0]
            made_here = _meant(given, module)
            if made_here is None or not _is_float32(made_here, module):
                continue
            if not _is_converted_between(made, call, name, module) and not _opposed(made, call, module):
                yield call, made_here, made


def _to_half(call: ast.Call, module: ModuleFacts) -> bool:
    """Whether a call of a method converts to a half type."""
    given = [*call.args, *(item.value for item in call.keywords)]
    if last_name(call.func) in ("half", "bfloat16"):
        return not given
    return any((module.dotted(item) or "") in _HALVES for item in given)


def _is_kept(call: ast.Call, name: str, module: ModuleFacts) -> bool:
    """Whether the model itself is converted: as a statement of its own, or under its own name again."""
    parent = module.index.parents.get(call)
    if isinstance(parent, ast.Assign):
        return len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name) and parent.targets[0].id == name
    return isinstance(parent, ast.Expr)


def _meant(node: ast.expr, module: ModuleFacts) -> ast.expr | None:
    """What an expression is, or a variable holds that is assigned once and bound in no other way."""
    index, scope = module.index, module.index.scope(node)
    for _ in range(_NAMES):
        if not isinstance(node, ast.Name):
            return node
        stores = [
            item for item in index.uses(node.id) if isinstance(item.ctx, ast.Store) and index.scope(item) is scope
        ]
        values = [item for item in index.values_of(node) if index.scope(item) is scope]
        if len(stores) != 1 or len(values) != 1:
            return None
        node = values[0]
    return None


def _is_float32(node: ast.expr, module: ModuleFacts) -> bool:
    """Whether an expression is a new tensor that nobody gives a type, moved and shaped at most."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        dotted = module.dotted(node.func) or ""
        if dotted in _FACTORIES:
            return all(item.arg is not None and item.arg != "dtype" and item.arg != "out" for item in node.keywords)
        if node.func.attr == "to":
            given = [*node.args, *(item.value for item in node.keywords)]
            if not all(_is_place(item, module) for item in given):
                return False
        elif node.func.attr not in _MOVING:
            return False
        node = node.func.value
    return False


def _is_place(node: ast.expr, module: ModuleFacts) -> bool:
    """Whether an argument of ``to`` says where, and nothing of a type."""
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.Call):
        return module.dotted(node.func) == "torch.device"
    name = (last_name(node) or "").lower()
    return "device" in name or name in ("rank", "local_rank", "gpu")


def _is_converted_between(made: ast.Call, call: ast.Call, name: str, module: ModuleFacts) -> bool:
    """Whether the name may hold something else by then, or the model was converted again."""
    index = module.index
    scope = index.scope(call)

    def is_between(node: ast.AST) -> bool:
        return index.scope(node) is scope and made.lineno < node.lineno < call.lineno  # type: ignore[attr-defined]

    if any(isinstance(item.ctx, ast.Store) and is_between(item) for item in index.uses(name)):
        return True
    again = [*index.named.get("float", ()), *index.named.get("to", ()), *index.named.get("double", ())]
    for item in again:
        if isinstance(item.func, ast.Attribute) and spelling(item.func.value) == name and is_between(item):
            return True
    return False


def _opposed(made: ast.Call, call: ast.Call, module: ModuleFacts) -> bool:
    """Whether the call is reached only where a test comes out other than for the conversion."""
    first = {ast.unparse(test): outcome for test, outcome in module.index.branches(made)}
    for test, outcome in module.index.branches(call):
        text = ast.unparse(test)
        if first.get(text, outcome) is not outcome:
            return True
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            if first.get(ast.unparse(test.operand)) is outcome:
                return True
    return False
