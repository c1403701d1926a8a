"""Functions with a backward pass of their own that write into what they are given: a memory of features.

At O1 such a buffer is FP32. At O2 and O3 it is half, as with Apex: a function in FP32 would write into a copy.
Batch norm keeps its own in FP32 at O2.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from amp_rules.flow.values import ClassInfo
from amp_rules.plan.apex.stages import initializing
from amp_rules.plan.function_writes import FunctionWrite, function_writes
from amp_rules.roles.batch_norm import is_batch_norm
from amp_rules.roles.program import Program
from amp_rules.source.index import argument_at, literal
from amp_rules.source.modules import Module
from amp_rules.source.syntax import last_name
from amp_rules.torch import apex as api

_IN_FP32 = frozenset({"O0", "O1"})
"""Levels at which buffers stay FP32."""
_NORM_IN_FP32 = _IN_FP32 | {"O2"}


@dataclass(frozen=True)
class HalfWrite:
    """A place where such a function writes into what may be half.

    Attributes:
        module: the file.
        node: what writes.
        name: the function's.
        of_batch_norm: whether it writes into buffers of batch norm, which are half at O3 alone.
    """

    module: Module
    node: ast.AST
    name: str
    of_batch_norm: bool


def weights_stay(program: Program) -> bool:
    """Whether ``amp.initialize`` makes no weight and no buffer half, at O1."""
    return all(_given(call, "opt_level", "O1") in _IN_FP32 for call in initializing(program))


def writes_into_half(program: Program) -> HalfWrite | None:
    """The first place where such a function writes, in a program whose buffers may be half."""
    if weights_stay(program):
        return None
    calls = initializing(program)
    whole_norm = all(_given(call, "keep_batchnorm_fp32", None) in (None, True, "True") for call in calls)
    half_norm = any(_given(call, "keep_batchnorm_fp32", None) in (False, "False") for call in calls)
    at_most_o2 = all(_given(call, "opt_level", "O1") in _NORM_IN_FP32 for call in calls)
    for info in program.flow.classes.values():
        writes = list(function_writes(info))
        if writes and _is_never_applied(program, info):
            continue
        for write in writes:
            of_norm = not half_norm and _is_of_batch_norm(program, info, write)
            if not (of_norm and whole_norm and at_most_o2):
                return HalfWrite(info.facts.module.module, write.node, info.facts.name, of_norm)
    return None


def _given(call: ast.Call, name: str, default: object) -> object:
    given = argument_at(call, name, api.INITIALIZE_PARAMETERS.index(name))
    return default if given is None else literal(given)


def _is_never_applied(program: Program, info: ClassInfo) -> bool:
    """Whether the function is applied in places alone that nothing runs: by layers that no model is made of."""
    calls = [(module, node) for module, node in _applications(program, info) if not isinstance(node, ast.alias)]
    places = (module.parents[node] if isinstance(node, ast.Name) else node for module, node in calls)
    return bool(calls) and all(program.locate(place) is None for place in places)


def _is_of_batch_norm(program: Program, info: ClassInfo, write: FunctionWrite) -> bool:
    """Whether a forward pass writes into a parameter that only layers of batch norm give, of their own buffers."""
    method, target = write.method, write.target
    if method.name != "forward" or not isinstance(target, ast.Name) or target.id not in method.by_place:
        return False
    # ``apply`` gives the context itself, and the class where it is asked for.
    place = method.by_place.index(target.id) - (2 if method.is_class_method else 1)
    calls = [(module, module.parents[node]) for module, node in _applications(program, info)]
    return bool(calls) and all(
        isinstance(call, ast.Call) and _gives_own_buffer(program, module, call, place) for module, call in calls
    )


def _applications(program: Program, info: ClassInfo) -> Iterator[tuple[Module, ast.AST]]:
    """Yield what reads ``apply``, or a name that a file gives it: by their spelling, in all files."""
    nodes = [(module, node) for module in program.flow.modules for node in module.nodes]
    names: set[str] = set()
    for module, node in nodes:
        if isinstance(node, ast.Attribute) and node.attr == "apply" and last_name(node.value) == info.facts.name:
            parent = module.parents[node]
            if isinstance(parent, ast.Assign) and all(isinstance(item, ast.Name) for item in parent.targets):
                names |= {item.id for item in parent.targets if isinstance(item, ast.Name)}
            else:
                yield module, node
    known = {*names, info.facts.name}
    for module, node in nodes:
        is_read = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names
        is_of_module = isinstance(node, ast.Attribute) and node.attr in names
        is_renamed = isinstance(node, ast.alias) and node.asname is not None and {node.name, node.asname} & known
        if is_read or is_of_module or is_renamed:
            yield module, node


def _gives_own_buffer(program: Program, module: Module, call: ast.Call, place: int) -> bool:
    owners = [program.flow.classes[item] for item in module.ancestors(call) if item in program.flow.classes]
    given = call.args[place] if len(call.args) > place else None
    return (
        any(is_batch_norm(name) for info in owners for name in info.external_bases())
        and isinstance(given, ast.Attribute)
        and isinstance(given.value, ast.Name)
        and given.value.id == "self"
    )
