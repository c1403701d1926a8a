"""Which functions and classes are the well-known helpers for half precision: Apex's, or copies in the project."""

from __future__ import annotations

import ast

from amp_rules.flow.values import Value
from amp_rules.plan.apex.references import References
from amp_rules.roles.kinds import is_optimizer
from amp_rules.roles.program import Program
from amp_rules.source.facts import ClassFacts, FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import own_name, walk
from amp_rules.torch import own_half as names

# A copy of one of these functions is short; a longer one of the same name does more.
_MOST_STATEMENTS = 25


class Helpers:
    """Tells the helpers by what names hold in one program."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._known: dict[Module, References] = {}
        self._own: dict[ast.AST, bool] = {}

    def called(self, call: ast.Call, scope: Scope) -> str | None:
        """The name of the helper that a call runs, as Apex calls it; None where it runs something else."""
        if not isinstance(call.func, (ast.Name, ast.Attribute)):
            return None
        return self.named(call.func, scope)

    def named(self, node: ast.expr, scope: Scope) -> str | None:
        """The name of the helper that an expression is."""
        values = self._program.flow.values(node, scope)
        if not values and isinstance(node, ast.Name):
            target = self._references(scope.module).target(node)  # `from apex.fp16_utils import *`
            return _of_apex(target) if target is not None else None
        found = {helper_of(value) for value in values}
        return found.pop() if len(found) == 1 else None

    def parameters(self, call: ast.Call, scope: Scope) -> tuple[str, ...]:
        """What a class of the project that is called takes; nothing where it is Apex's."""
        for value in self._program.flow.values(call.func, scope):
            method = value.ref.facts.method("__init__") if value.kind == "class" else None
            if method is not None:
                positional: tuple[str, ...] = method.positional
                return positional
        return ()

    def _references(self, module: Module) -> References:
        if module not in self._known:
            self._known[module] = References(module)
        return self._known[module]

    def is_wrapper(self, node: ast.expr, scope: Scope) -> bool:
        """Whether an expression can hold an ``FP16_Optimizer``."""
        return any(_made_by(value) == names.WRAPPER for value in self._program.flow.values(node, scope))

    def is_of_another(self, node: ast.Attribute, scope: Scope) -> bool:
        """Whether Apex's wrapper lacks what is asked for, and a class of the project has it that may stand there, too.

        ``optimizer.get_lr()``, where one branch makes a wrapper, raises there with it and without.
        """
        if node.attr in names.WRAPPERS_OWN | names.KEPT_ATTRIBUTES | names.CLIPPING:
            return False
        values = self._program.flow.values(node.value, scope)
        own = [value for value in values if value.kind == "instance"]
        if any(_made_by(value) == names.WRAPPER for value in own):
            return False
        return any(value.ref.find_method(node.attr) is not None for value in own)

    def is_own(self, body: ast.AST, scope: Scope) -> bool:
        """Whether a body is that of a helper itself, or of a method of one."""
        if body not in self._own:
            info = self._program.function_of(body)
            self._own[body] = (info is not None and _function_helper(info) is not None) or any(
                isinstance(item, ast.ClassDef) and self._is_wrapper_class(item) for item in scope.module.ancestors(body)
            )
        return self._own[body]

    def _is_wrapper_class(self, node: ast.ClassDef) -> bool:
        info = self._program.flow.classes.get(node)
        return info is not None and _class_helper(info.facts) == names.WRAPPER

    def is_optimizer(self, node: ast.expr, scope: Scope) -> bool:
        """Whether an expression can hold an optimizer: one that a wrapper holds has none of a wrapper's own methods."""
        return any(map(is_optimizer, self._program.flow.values(node, scope)))

    def is_converted(self, node: ast.expr, scope: Scope) -> bool:
        """Whether an expression can hold what a converter of Apex gave, of which nothing else is known."""
        return any(_made_by(value) in names.CONVERTERS for value in self._program.flow.values(node, scope))


def is_float_at_once(module: Module, call: ast.Call) -> bool:
    """Whether what a call makes half is float32 in the same breath: ``model.half().float()`` rounds weights once."""
    method = module.parents[call]
    again = module.parents[method]
    return isinstance(method, ast.Attribute) and method.attr == "float" and isinstance(again, ast.Call)


def is_copied(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether an expression is a copy of a model that is made there: what is done to it changes no other."""
    return isinstance(node, ast.Call) and bool(program.callee_names(node, scope) & {"copy.deepcopy"})


def _made_by(value: Value) -> str | None:
    if value.kind == "object":
        return _of_apex(value.ref) if isinstance(value.ref, str) else None
    return _class_helper(value.ref.facts) if value.kind == "instance" else None


def helper_of(value: Value) -> str | None:
    """The name of the helper that a value is."""
    if value.kind == "external":
        return _of_apex(value.ref)
    if value.kind == "function":
        return _function_helper(value.ref)
    return _class_helper(value.ref.facts) if value.kind == "class" else None


def _of_apex(name: str) -> str | None:
    last = name.rpartition(".")[2]
    return last if name.startswith(tuple(f"{item}." for item in names.APEX)) else None


def _class_helper(facts: ClassFacts) -> str | None:
    """A class with the shape of one of them, whatever it is called."""
    backward, step = facts.method("backward"), facts.method("step")
    if backward is not None and step is not None and not facts.is_module:
        starts = any(isinstance(node, ast.Attribute) and node.attr == "backward" for node in backward.nodes)
        text = ast.unparse(facts.node)
        widens = ".float()" in text or "torch.float" in text or "FloatTensor" in text
        if starts and widens and "scale" in text and facts.method("__init__") is not None:
            return names.WRAPPER
    if facts.is_module and facts.name in names.CONVERTERS and "half" in ast.unparse(facts.node):
        return facts.name
    return None


def _function_helper(info: FunctionFacts) -> str | None:
    """A copy of one of them under its own name, or a function that only makes a model half, or its norms float32."""
    if info.cls is not None or isinstance(info.node, ast.Lambda):
        return None
    if sum(isinstance(node, ast.stmt) for node in walk(info.node)) > _MOST_STATEMENTS:
        return None
    text = ast.unparse(info.node)
    if info.name in names.CONVERTERS and ("half" in text or "dtype" in text):
        return info.name
    if info.name == names.MASTERS and (".float()" in text or ".double()" in text) and len(info.returns) >= 1:
        return info.name
    if info.name in (names.TO_MASTERS, names.TO_MODEL) and ".copy_(" in text:
        return info.name
    if _only_widens_norms(info):
        return "BN_convert_float"
    return "network_to_half" if _makes_half(info) else None


def _makes_half(info: FunctionFacts) -> bool:
    """Whether a function does little more than to make its first argument half, and gives that back."""
    if len(info.parameters) != 1 or not info.returns:
        return False
    model = info.parameters[0]
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "half"
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == model
        for node in info.nodes
    ) and not any(isinstance(node, (ast.For, ast.While, ast.With, ast.Try)) for node in info.nodes)


def _only_widens_norms(info: FunctionFacts) -> bool:
    """Whether all that a function does is to call ``float()`` on the batch norms among a module's parts."""
    calls = [node for node in info.nodes if isinstance(node, ast.Call)]
    called = [own_name(node.func) for node in calls]
    return (
        "float" in called
        and info.name in called
        and "BatchNorm" in ast.unparse(info.node)
        and set(called) <= {"float", "children", "modules", "isinstance", info.name}
    )
