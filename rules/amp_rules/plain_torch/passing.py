"""Which functions can be given one more argument by all who call them, and which classes one more attribute."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from amp_rules.flow.values import Value
from amp_rules.plain_torch.translation import Translation
from amp_rules.source import blocks
from amp_rules.source.facts import ClassFacts, FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.resolver import names_of

_HARMLESS = frozenset({"no_grad", "enable_grad", "inference_mode", "staticmethod", "classmethod", "abstractmethod"})
"""Decorators that hand every argument on."""

_RECIPE = "call it plainly everywhere, or keep the runtime here (--target runtime)"


@dataclass(frozen=True)
class Obstacle:
    """Why a variable does not get to a place, and what to do.

    Attributes:
        module: the file.
        node: the place.
        message: why not.
        recipe: what to do.
    """

    module: Module
    node: ast.AST
    message: str
    recipe: str


class Passing:
    """What can be passed through the functions of a program."""

    def __init__(self, translation: Translation) -> None:
        self._program = translation.program
        self._known: dict[FunctionFacts, list[Obstacle]] = {}

    # ---- functions -------------------------------------------------------------------------------------------------

    def obstacles(self, info: FunctionFacts) -> list[Obstacle]:
        """Why not every call of a function can be given one more argument; empty where they can."""
        if info not in self._known:
            self._known[info] = self._obstacles(info)
        return self._known[info]

    def _obstacles(self, info: FunctionFacts) -> list[Obstacle]:
        module, node, name = info.module.module, info.node, f"`{info.qualname}`"
        if isinstance(node, ast.Lambda):
            return [Obstacle(module, node, "a lambda uses the scaler, which it cannot be given", "make it a function")]
        if info.name.startswith("__") and info.name.endswith("__"):
            return [Obstacle(module, node, f"Python itself calls {name}, which cannot be given the scaler", _RECIPE)]
        for dotted, decorator in info.decorators:
            if dotted.rpartition(".")[2] not in _HARMLESS:
                text = module.text(decorator)
                message = f"`@{text}` stands between {name} and its calls, which would have to give it the scaler"
                return [Obstacle(module, decorator, message, "take the decorator off, or --target runtime")]
        callers = self._program.flow.callers(info)
        if not callers:
            message = f"nothing in the program calls {name}, so nothing can give it the scaler"
            recipe = "take it out if it is not used any more, or call it in this script"
            return [Obstacle(module, node, message, recipe)]
        found: list[Obstacle] = []
        for caller in callers:
            others = self._program.flow.callees(caller.call) - {info}
            if others:
                named = ", ".join(sorted(f"`{other.qualname}`" for other in others))
                message = f"this runs {name} or {named}, and only the first needs the scaler"
                found.append(Obstacle(caller.scope.module, caller.call, message, _RECIPE))
        calls = {caller.call for caller in callers}
        for other in self._program.flow.modules:
            for use in self._loose_uses(other, info, calls):
                parent = other.parents[use]
                if isinstance(parent, ast.Call) and parent.func is use:
                    message = f"this may call {name} too, in a way that is not understood, and has no scaler to give it"
                else:
                    message = f"{name} is handed on: who calls it is not known, and would have to give it the scaler"
                found.append(Obstacle(other, use, message, _RECIPE))
        # Who calls it from files outside of the program is known when all scripts are: `folder/torch_users.py`.
        return found

    def _loose_uses(self, module: Module, info: FunctionFacts, calls: set[ast.Call]) -> list[ast.expr]:
        """Where a file reads the function without a call that is known."""
        found: list[ast.expr] = []
        for node in module.nodes:
            if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(node.ctx, ast.Load):
                continue
            if (node.id if isinstance(node, ast.Name) else node.attr) == info.name:
                is_it = self._may_be(module, node, info)
            else:
                is_it = isinstance(node, ast.Name) and self._is_known_as(module, node, info)
            parent = module.parents[node]
            if is_it and not (isinstance(parent, ast.Call) and parent.func is node and parent in calls):
                found.append(node)
        return found

    def _is_known_as(self, module: Module, node: ast.Name, info: FunctionFacts) -> bool:
        """Whether a name of another spelling is the function, as in ``import train as fit``."""
        scope = self._program.flow.scopes.get(blocks.body_of(module, node))
        if scope is None:
            return False
        parent = module.parents[node]
        if isinstance(parent, ast.Attribute):
            return False
        return any(_is(value, info) for value in self._program.flow.values(node, scope))

    def _may_be(self, module: Module, node: ast.Name | ast.Attribute, info: FunctionFacts) -> bool:
        located = self._program.locate(node)
        if located is not None:
            values = self._program.flow.values(node, located[1])
            if any(_is(value, info) for value in values):
                return True
            if isinstance(node, ast.Attribute) and info.cls is not None and not values:
                # An object of which nothing is known could be one of this class.
                return not self._program.flow.values(node.value, located[1]) and self._fits(module, node, info)
            return False
        if isinstance(node, ast.Name):
            if info.cls is not None:
                return False
            owner = names_of(module).scope_of(node).owner(node.id)
            is_own = module is info.module.module and isinstance(owner.node, ast.Module)
            return is_own or info.name in names_of(module).imports
        return (
            info.cls is not None
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
            and (self._class_around(module, node) in [item.node for item in info.cls.lineage])
        )

    def _fits(self, module: Module, node: ast.Attribute, info: FunctionFacts) -> bool:
        """Whether a call of an unknown method could be one of this function, by its number of arguments."""
        call = module.parents[node]
        if not (isinstance(call, ast.Call) and call.func is node):
            return False
        least = len(info.positional) - len(info.node.args.defaults)
        given = len(call.args) + len(call.keywords)
        is_open = any(isinstance(item, ast.Starred) for item in call.args) or any(k.arg is None for k in call.keywords)
        return is_open or least <= given <= len(info.parameters)

    def _class_around(self, module: Module, node: ast.AST) -> ast.AST | None:
        return next((item for item in module.ancestors(node) if isinstance(item, ast.ClassDef)), None)

    def leaves_defaults(self, info: FunctionFacts) -> bool:
        """Whether no call of a function gives by its place what has a default."""
        least = len(info.positional) - len(info.node.args.defaults)
        bound = 1 if info.receiver is not None else 0
        return all(
            bound + len(site.call.args) <= least and not any(isinstance(item, ast.Starred) for item in site.call.args)
            for site in self._program.flow.callers(info)
        )

    # ---- classes ---------------------------------------------------------------------------------------------------

    def lineage(self, cls: ClassFacts) -> list[ClassFacts]:
        """A class and its bases within the program, the nearest first."""
        info = self._program.flow.classes.get(cls.node)
        return [cls] if info is None else [item.facts for item in info.mro()]

    def is_method_of(self, info: FunctionFacts, cls: ClassFacts) -> bool:
        """Whether a function is given an object of a class, or of one derived from it, which has been made."""
        is_bound = info.receiver is not None and not info.is_class_method and info.name != "__new__"
        return is_bound and info.cls is not None and cls in self.lineage(info.cls)

    def initializer(self, cls: ClassFacts) -> FunctionFacts | None:
        """The ``__init__`` that a class has, or inherits within the program."""
        return next((base.methods["__init__"] for base in self.lineage(cls) if "__init__" in base.methods), None)

    def can_hold(self, cls: ClassFacts) -> bool:
        """Whether every object of a class can be given one more attribute by ``__init__``."""
        initializer = self.initializer(cls)
        if initializer is None or initializer.receiver is None or initializer.node not in self._program.flow.functions:
            return False
        for info in self._program.flow.classes.values():
            facts = info.facts
            if initializer.cls not in self.lineage(facts):
                continue
            own = facts.methods.get("__init__")
            if own is not None and own is not initializer and not _calls_super(own):
                return False
            if any(name in facts.methods for name in ("__setattr__", "__getstate__", "__new__")) or _names_dict(facts):
                return False
        return True


def _is(value: Value, info: FunctionFacts) -> bool:
    if value.kind == "partial":
        return _is(value.ref, info) if isinstance(value.ref, Value) else False
    return value.kind == "function" and value.ref is info


def _calls_super(initializer: FunctionFacts) -> bool:
    """Whether ``__init__`` always runs that of its base."""
    for statement in initializer.body:
        call = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "__init__":
            return True
    return False


def _names_dict(facts: ClassFacts) -> bool:
    """Whether methods of a class look at all its attributes at once, or it fixes which there are."""
    for node in ast.walk(facts.node):
        if isinstance(node, ast.Attribute) and node.attr == "__dict__":
            return True
        if isinstance(node, ast.Name) and node.id in ("vars", "__slots__", "__dict__"):
            return True
    return False
