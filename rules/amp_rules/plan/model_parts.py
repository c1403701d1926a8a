"""The parts of models, and which models and layers have parameters."""

from __future__ import annotations

import ast

from amp_rules.flow.values import ClassInfo, Value
from amp_rules.roles.kinds import is_module, is_without_parameters
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.index import keyword, literal
from amp_rules.source.resolver import names_of
from amp_rules.source.syntax import walk
from amp_rules.torch.functions import PARAMETER_MAKERS
from amp_rules.torch.models import CHAINS, is_module_base, is_network_of_library
from amp_rules.torch.varying import WITHOUT_PARAMETERS

_EMPTY = frozenset({"torch.nn.Module", "torch.nn.modules.Module", "torch.nn.modules.module.Module"})
_CONTAINERS = CHAINS | frozenset({"torch.nn.ModuleList", "torch.nn.ModuleDict"})
"""Modules whose parameters are those of what they are given."""

_OF_NUMBERS = frozenset({"int", "float", "bool", "len", "max", "min", "abs", "round", "isinstance", "tuple", "range"})


def has_parameters(value: Value) -> bool:
    """Whether a model or layer has parameters, as far as its class says; what a layer gives has none."""
    if value.kind == "instance":
        return is_module(value) and not _is_plain(value.ref)
    return is_module(value) and not value.is_result and not is_without_parameters(value)


def _is_plain(info: ClassInfo) -> bool:
    """Whether a class of the project has no parameters: it keeps numbers, poolings and the like, and inherits none."""
    return not any(map(_brings_parameters, info.external_bases())) and not any(
        isinstance(node, ast.Call) and isinstance(node.func, (ast.Attribute, ast.Name)) and not _makes_none(node, one)
        for one in info.mro()
        for method in (one.facts.methods.get("__init__"),)
        if method is not None
        for statement in method.body
        for node in walk(statement)
        if not _is_super(statement)
    )


def surely_has_parameters(program: Program, value: Value) -> bool:
    """Whether a model has parameters to train for certain, as a layer of torch does: no buffers, and none frozen."""
    if value.kind == "instance" and any(map(_freezes, value.ref.mro())):
        return False
    return any(map(makes_parameters, program.parts_from({value})))


def _freezes(info: ClassInfo) -> bool:
    """Whether a class keeps parameters from being trained, asked by no option."""
    module = info.facts.module.module
    return any(
        _asks_for_gradient(node) is False and not any(isinstance(item, ast.If) for item in module.ancestors(node))
        for node in walk(info.facts.node)
    )


def _asks_for_gradient(node: ast.AST) -> object:
    """What ``requires_grad`` is set to: ``p.requires_grad = False``, ``net.requires_grad_(False)``."""
    if isinstance(node, ast.Assign) and any(
        isinstance(item, ast.Attribute) and item.attr == "requires_grad" for item in node.targets
    ):
        return literal(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "requires_grad_":
        return literal(node.args[0]) if node.args else None
    return None


def makes_parameters(value: Value) -> bool:
    """Whether a model or layer has parameters that it makes itself, or may have: not those of its parts."""
    if value.kind != "instance":
        return has_parameters(value) and (value.ref is None or str(value.ref) not in _CONTAINERS)
    return any(map(_brings_parameters, value.ref.external_bases() - _CONTAINERS)) or any(
        isinstance(node, ast.Call) and _makes_parameter(node, info)
        for info in value.ref.mro()
        for node in walk(info.facts.node)
    )


def _makes_parameter(call: ast.Call, info: ClassInfo) -> bool:
    """Whether a call makes a parameter that is trained."""
    name = names_of(info.facts.module.module).dotted(call.func) or ""
    if name in PARAMETER_MAKERS:
        return literal(keyword(call, "requires_grad")) is not False
    return _brings_parameters(name) and name not in _CONTAINERS and not name.endswith("Loss")


def _brings_parameters(base: str) -> bool:
    """Whether a class of a library has parameters for what derives from it, or is given them: ``nn.Sequential``."""
    is_layer = base.startswith("torch.nn.") and is_module_base(base) and base not in _EMPTY
    return (is_layer and not base.startswith(WITHOUT_PARAMETERS)) or is_network_of_library(base)


def _makes_none(call: ast.Call, info: ClassInfo) -> bool:
    """Whether a call in a constructor makes a layer without parameters, or a number."""
    name = names_of(info.facts.module.module).dotted(call.func) or blocks.path_of(call.func) or ""
    return name.startswith(WITHOUT_PARAMETERS) or name in _OF_NUMBERS or name.startswith("math.")


def _is_super(statement: ast.stmt) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "super" for node in walk(statement))


def trained_classes(program: Program) -> set[object]:
    """The classes of the project of which a trained model, or a part of one, is."""
    return {value.ref for value in program.with_parts(program.trained) if value.kind == "instance"}


def has_weights(program: Program, value: Value) -> bool:
    """Whether a module has weights, for all that is known: a library's may, unless it is a layer without."""
    if not is_module(value):
        return True
    parts = program.with_parts({value})
    return any(makes_parameters(part) or _takes_apart(program, part) or _holds_unknown(program, part) for part in parts)


def _holds_unknown(program: Program, value: Value) -> bool:
    """Whether a container is given what no module is known of, as ``nn.Sequential(torch.load(path), head)`` is."""
    located = program.locate(value.site) if value.kind == "object" and isinstance(value.site, ast.Call) else None
    if located is None or not isinstance(value.site, ast.Call) or value.name not in _CONTAINERS:
        return False
    given = [item for item in value.site.args if not isinstance(item, ast.Starred)]
    return any(not _gives_modules(program.flow.values(item, located[1])) for item in given)


def _gives_modules(values: set[Value]) -> bool:
    return bool(values) and all(is_module(value) or value.kind == "sequence" for value in values)


def _takes_apart(program: Program, value: Value) -> bool:
    """Whether a class makes a network of a library, and may keep its parts: ``*list(resnet50().children())[:-2]``."""
    for info in value.ref.mro() if value.kind == "instance" else ():
        for node in walk(info.facts.node):
            located = program.locate(node) if isinstance(node, ast.Call) else None
            if located is None or not isinstance(node, ast.Call):
                continue
            made = {item for item in program.flow.values(node, located[1]) if item.site is node and is_module(item)}
            if any(item.kind == "object" and makes_parameters(item) for item in made):
                return True
    return False
