"""The same program written in other ways: what a rule says of one it must say of all.

Each function takes the syntax tree of a file and gives the tree of one that does the same, or None where there is
nothing in it to write in another way. The trees are new; lines of findings are compared by their text, so a function
that renames things says how.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
RETURNED = "returned"
"""What a function's result is called where it is no function any more."""
DEFINITIONS = (*FUNCTIONS, ast.ClassDef)
_KEPT_IN_MODULES = (*FUNCTIONS, ast.ClassDef, ast.Import, ast.ImportFrom)


@dataclass(frozen=True)
class Reworded:
    """A program in other words.

    Attributes:
        tree: the program.
        names: the new names, by the old ones.
    """

    tree: ast.Module
    names: Mapping[str, str] = field(default_factory=dict)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """A node and what it holds, without the insides of functions and classes in it."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            yield from _own(child)


def _statements(tree: ast.Module) -> list[ast.stmt]:
    """What a file runs itself."""
    return [item for item in tree.body if not isinstance(item, _KEPT_IN_MODULES) and not _is_docstring(item)]


def _plain_functions(tree: ast.Module) -> list[ast.FunctionDef]:
    """The functions of a file that are nothing but a list of statements with parameters."""
    found = []
    for item in tree.body:
        if not isinstance(item, ast.FunctionDef) or item.decorator_list or item.args.vararg or item.args.kwarg:
            continue
        inside = [node for part in item.body for node in _own(part)]
        if not any(isinstance(node, (ast.Yield, ast.YieldFrom, ast.Global, ast.Nonlocal)) for node in inside):
            found.append(item)
    return found


def _parameters(function: ast.FunctionDef) -> list[ast.arg]:
    given = function.args
    return [*given.posonlyargs, *given.args, *given.kwonlyargs]


def _loads(node: ast.AST, name: str) -> bool:
    return any(isinstance(item, ast.Name) and item.id == name for item in ast.walk(node))


def _bound(nodes: list[ast.stmt]) -> set[str]:
    found: set[str] = set()
    for part in nodes:
        for item in _own(part):
            if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store):
                found.add(item.id)
            elif isinstance(item, (*FUNCTIONS, ast.ClassDef)):
                found.add(item.name)
        found |= {item.name for item in ast.walk(part) if isinstance(item, (*FUNCTIONS, ast.ClassDef))}
    return found


def _parsed(text: str) -> list[ast.stmt]:
    return ast.parse(text).body


# ---- around statements -------------------------------------------------------------------------------------------


def _wrapped(tree: ast.Module, around: Callable[[list[ast.stmt]], list[ast.stmt]]) -> Reworded | None:
    """The bodies of functions, and what the file runs itself, put into another statement."""
    made = copy.deepcopy(tree)
    changed = False
    for item in ast.walk(made):
        if isinstance(item, FUNCTIONS) and not (len(item.body) == 1 and isinstance(item.body[0], ast.Pass)):
            head = item.body[:1] if _is_docstring(item.body[0]) else []
            calls_super = [part for part in item.body if "super().__init__" in ast.unparse(part)]
            rest = [part for part in item.body if part not in head and part not in calls_super]
            if rest:
                item.body = [*head, *calls_super, *around(rest)]
                changed = True
    loops = [item for item in made.body if isinstance(item, (ast.For, ast.While))]
    for item in loops:
        made.body[made.body.index(item) : made.body.index(item) + 1] = around([item])
        changed = True
    return Reworded(made) if changed else None


def in_try(tree: ast.Module) -> Reworded | None:
    """In ``try``, with a handler that lets errors out."""

    def around(body: list[ast.stmt]) -> list[ast.stmt]:
        made = _parsed("try:\n    pass\nexcept KeyboardInterrupt:\n    print('stopped')\n    raise")
        assert isinstance(made[0], ast.Try)
        made[0].body = body
        return made

    return _wrapped(tree, around)


def in_with(tree: ast.Module) -> Reworded | None:
    """In ``with``, for something that has nothing to do with types."""

    def around(body: list[ast.stmt]) -> list[ast.stmt]:
        made = _parsed("with _profiler.record_function('part'):\n    pass")
        assert isinstance(made[0], ast.With)
        made[0].body = body
        return made

    made = _wrapped(tree, around)
    if made is not None:
        _import(made.tree, "from torch import profiler as _profiler")
    return made


def _import(tree: ast.Module, text: str) -> None:
    """Put an import behind the last one from ``__future__``."""
    place = 0
    for index, item in enumerate(tree.body):
        if _is_docstring(item) or (isinstance(item, ast.ImportFrom) and item.module == "__future__"):
            place = index + 1
    tree.body[place:place] = _parsed(text)


# ---- where statements stand --------------------------------------------------------------------------------------


def module_as_function(tree: ast.Module) -> Reworded | None:
    """What the file runs itself, as a function that it calls."""
    body = _statements(tree)
    moved = [item for item in body if not (isinstance(item, ast.If) and _loads(item.test, "__name__"))]
    moved = [item for item in moved if not _is_constant(item)]
    bound = _bound(moved)
    rest = [item for item in tree.body if item not in moved]
    if not any(isinstance(item, (ast.For, ast.While, ast.Expr)) for item in moved):
        return None
    if any(_loads(item, name) for item in rest for name in bound):
        return None
    made = copy.deepcopy(tree)
    inside = [made.body[tree.body.index(item)] for item in moved]
    made.body = [item for item in made.body if item not in inside]
    function = _parsed("def run_everything():\n    pass\n\n\nrun_everything()")
    assert isinstance(function[0], ast.FunctionDef)
    function[0].body = inside
    made.body += function
    return Reworded(made)


def _is_constant(item: ast.stmt) -> bool:
    """Whether a statement names a number or a text for the rest of the file."""
    return isinstance(item, ast.Assign) and all(
        isinstance(node, (ast.Constant, ast.UnaryOp, ast.USub, ast.BinOp, ast.operator))
        for node in ast.walk(item.value)
    )


def function_as_module(tree: ast.Module) -> Reworded | None:
    """The last function that nobody calls, as statements of the file: what it was given is not known in either."""
    called = {item.id for item in ast.walk(tree) if isinstance(item, ast.Name)}
    for item in reversed(_plain_functions(tree)):
        returns = [node for part in item.body for node in _own(part) if isinstance(node, ast.Return)]
        inner = [node for part in item.body for node in ast.walk(part) if isinstance(node, (*FUNCTIONS, ast.ClassDef))]
        others = [other for other in tree.body if other is not item]
        bound = _bound(item.body) | {given.arg for given in _parameters(item)}
        if item.name in called or inner or any(node is not item.body[-1] for node in returns):
            continue
        if item.args.defaults or any(item.args.kw_defaults) or any(given.annotation for given in _parameters(item)):
            continue
        if any(_loads(other, name) for other in others for name in bound) or bound & _bound(others):
            continue
        made = copy.deepcopy(tree)
        place = tree.body.index(item)
        function = made.body.pop(place)
        assert isinstance(function, ast.FunctionDef)
        last = function.body[-1]
        if isinstance(last, ast.Return):
            value = last.value if last.value is not None else ast.Constant(None)
            function.body[-1] = ast.Assign([ast.Name(RETURNED, ast.Store())], value)
        made.body += [part for part in function.body if not _is_docstring(part)]
        return Reworded(made)
    return None


def function_as_method(tree: ast.Module) -> Reworded | None:
    """Functions that nobody calls, as methods of a class of no particular kind."""
    called = {item.id for item in ast.walk(tree) if isinstance(item, ast.Name)}
    moved = [item for item in _plain_functions(tree) if item.name not in called]
    if not moved:
        return None
    made = copy.deepcopy(tree)
    methods = [made.body[tree.body.index(item)] for item in moved]
    made.body = [item for item in made.body if item not in methods]
    holder = _parsed("class Work:\n    pass")[0]
    assert isinstance(holder, ast.ClassDef)
    for method in methods:
        assert isinstance(method, ast.FunctionDef)
        method.args.args.insert(0, ast.arg("self"))
        if method.args.posonlyargs:
            method.args.posonlyargs.insert(0, method.args.args.pop(0))
    holder.body = list(methods)
    made.body.append(holder)
    return Reworded(made)


def body_in_helper(tree: ast.Module) -> Reworded | None:
    """The body of each function in another one, which the function does nothing but call; defaults move along."""
    made = copy.deepcopy(tree)
    names: dict[str, str] = {}
    for item in _plain_functions(made):
        helper = copy.deepcopy(item)
        helper.name = names[item.name] = f"{item.name}_with"
        required = [*item.args.posonlyargs, *item.args.args]
        required = required[: len(required) - len(item.args.defaults)]
        named = [part for part, value in zip(item.args.kwonlyargs, item.args.kw_defaults, strict=True) if value is None]
        item.args = ast.arguments([], required, None, named, [None] * len(named), None, [])
        given = ", ".join([*(part.arg for part in required), *(f"{part.arg}={part.arg}" for part in named)])
        item.body = [ast.Return(ast.parse(f"{helper.name}({given})", mode="eval").body)]
        made.body.insert(made.body.index(item), helper)
    return Reworded(made, names) if names else None


# ---- names -------------------------------------------------------------------------------------------------------


class _Renaming(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self._names.get(node.id, node.id)
        return node


def aliased_imports(tree: ast.Module) -> Reworded | None:
    """Imports under other names."""
    taken = {item.id for item in ast.walk(tree) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)}
    taken |= {item.arg for item in ast.walk(tree) if isinstance(item, ast.arg)}
    made = copy.deepcopy(tree)
    names: dict[str, str] = {}
    for item in made.body:
        if isinstance(item, (ast.Import, ast.ImportFrom)) and getattr(item, "module", "") != "__future__":
            for alias in item.names:
                bound = alias.asname or alias.name
                if "." in bound or bound == "*" or bound in taken:
                    continue
                names[bound] = alias.asname = f"other{len(names)}" if bound[0].islower() else f"Other{len(names)}"
    if not names:
        return None
    # ``import torch.nn`` binds ``torch`` again, beside the alias.
    dotted = [item for item in ast.walk(made) if isinstance(item, ast.Import)]
    for item in dotted:
        for alias in item.names:
            head = alias.name.partition(".")[0]
            if "." in alias.name and alias.asname is None and head in names:
                return None
    return Reworded(_Renaming(names).visit(made), names)


def _of_torch(tree: ast.Module) -> set[str]:
    """The names under which a file imports things of torch and Apex."""
    found = set()
    for item in tree.body:
        if isinstance(item, ast.Import):
            found |= {
                (alias.asname or alias.name).partition(".")[0]
                for alias in item.names
                if alias.name.partition(".")[0] in ("torch", "apex")
            }
        elif isinstance(item, ast.ImportFrom) and (item.module or "").partition(".")[0] in ("torch", "apex"):
            found |= {alias.asname or alias.name for alias in item.names}
    return found


def _made_by_torch(scope: list[ast.stmt], imported: set[str]) -> list[ast.Assign]:
    """The assignments of a scope that give a name to something that torch makes."""
    found = []
    for part in scope:
        for item in _own(part):
            if not isinstance(item, ast.Assign) or len(item.targets) != 1 or not isinstance(item.value, ast.Call):
                continue
            function: ast.expr = item.value.func
            while isinstance(function, ast.Attribute):
                function = function.value
            if isinstance(item.targets[0], ast.Name) and isinstance(function, ast.Name) and function.id in imported:
                found.append(item)
    return found


def _scopes(tree: ast.Module) -> list[list[ast.stmt]]:
    return [tree.body, *(item.body for item in ast.walk(tree) if isinstance(item, FUNCTIONS))]


def renamed_objects(tree: ast.Module) -> Reworded | None:
    """Scalers, optimizers, samplers and the rest under names that say nothing."""
    imported = _of_torch(tree)
    given = {item.arg for item in ast.walk(tree) if isinstance(item, (ast.arg, ast.keyword))}
    given |= {item.name for item in ast.walk(tree) if isinstance(item, (*FUNCTIONS, ast.ClassDef))}
    once: dict[str, int] = {}
    for item in ast.walk(tree):
        if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store):
            once[item.id] = once.get(item.id, 0) + 1
    names: dict[str, str] = {}
    for scope in _scopes(tree):
        for item in _made_by_torch(scope, imported):
            assert isinstance(item.targets[0], ast.Name)
            name = item.targets[0].id
            if once[name] == 1 and name not in given and name not in imported:
                names.setdefault(name, f"thing{len(names) + 1}")
    return Reworded(_Renaming(names).visit(copy.deepcopy(tree)), names) if names else None


def second_names(tree: ast.Module) -> Reworded | None:
    """Objects of torch used under a second name."""
    imported = _of_torch(tree)
    made = copy.deepcopy(tree)
    names: dict[str, str] = {}
    for scope in _scopes(made):
        for item in _made_by_torch(scope, imported):
            assert isinstance(item.targets[0], ast.Name)
            name = item.targets[0].id
            stores = [
                node for node in ast.walk(made)
                if (isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store))
                or (isinstance(node, ast.arg) and node.arg == name)
            ]  # fmt: skip
            if item not in scope or len(stores) != 1 or name in names:
                continue
            names[name] = second = f"{name}_again"
            for part in scope[scope.index(item) + 1 :]:
                _Renaming({name: second}).visit(part)
            scope[scope.index(item) + 1 : scope.index(item) + 1] = _parsed(f"{second} = {name}")
    return Reworded(made, names) if names else None


WAYS: tuple[Callable[[ast.Module], Reworded | None], ...] = (
    in_try,
    in_with,
    module_as_function,
    function_as_module,
    function_as_method,
    body_in_helper,
    aliased_imports,
    renamed_objects,
    second_names,
)
"""Ways to write a program differently."""
