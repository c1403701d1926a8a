"""Whether a program shows the names that ``DataParallel`` gives to the parts of a model: ``module.fc.weight``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from amp_rules.flow.values import ClassInfo, Value
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source.index import argument_at
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk
from amp_rules.torch.wrappers import DATA_PARALLEL
from amp_rules.torch.writers import WHOLE_OBJECT_WRITERS

_SHOWS_NAMES = frozenset(
    {
        "state_dict", "load_state_dict", "named_parameters", "named_modules", "named_buffers", "named_children",
        "get_submodule", "get_parameter", "get_buffer", "_modules",
    }
)  # fmt: skip

_OF_LIBRARIES = ("torch.nn.", "torchvision.models.")


def names_are_seen(program: Program) -> bool:
    """Whether checkpoints, or the script itself, have the names of a model inside ``DataParallel``.

    Any reader, in this program or beside it, then rests on them: they are a part of the file's format. Where all is
    asked of ``model.module``, nothing shows that there was a wrapper.
    """
    if not program.calls_to(DATA_PARALLEL):
        return False
    return any(True for _ in _shown(program))


def wrapper_is_required(program: Program) -> bool:
    """Whether the script asserts that a model is wrapped: ``assert isinstance(model, DataParallel)``."""
    return bool(program.calls_to(DATA_PARALLEL)) and any(
        isinstance(call.args[1], (ast.Name, ast.Attribute)) and program.names(call.args[1], scope) & DATA_PARALLEL
        for node, _, scope in program.nodes()
        if isinstance(node, ast.Assert)
        for call in walk(node.test)
        if isinstance(call, ast.Call) and len(call.args) == 2
        if isinstance(call.func, ast.Name) and call.func.id == "isinstance"
    )


def _shown(program: Program) -> Iterator[Site]:
    wrapped = _wrapped(program)
    for node, body, scope in program.nodes():
        if program.is_model_code(body):
            continue
        site = Site(scope.module, scope, body, node)
        if (
            isinstance(node, ast.Attribute)
            and node.attr in _SHOWS_NAMES
            and _may_be_wrapped(program, node.value, scope, wrapped)
        ):
            yield site
        elif isinstance(node, ast.Call) and program.callee_names(node, scope) & WHOLE_OBJECT_WRITERS and node.args:
            if any(_is_whole_model(program, part, scope) for part in _own_parts(node.args[0])):
                yield site


def _wrapped(program: Program) -> frozenset[ClassInfo]:
    """The classes, and their bases, of what is wrapped; empty where one is not of the program."""
    found: set[ClassInfo] = set()
    for site in program.calls_to(DATA_PARALLEL):
        call = site.node
        given = argument_at(call, "module", 0) if isinstance(call, ast.Call) else None
        models = program.roles.modules(given, site.scope) if given is not None else set()
        targets = site.statement.targets if isinstance(site.statement, ast.Assign) else []
        given_to_another = any(isinstance(item, ast.Attribute) and not _is_own(item) for item in targets)
        if not models or given_to_another or any(value.kind != "instance" for value in models):
            return frozenset()
        found |= _classes(models)
    return frozenset(found)


def _is_own(target: ast.Attribute) -> bool:
    return isinstance(target.value, ast.Name) and target.value.id == "self"


def _classes(models: Iterable[Value]) -> set[ClassInfo]:
    return {info for value in models if value.kind == "instance" for info in value.ref.mro()}


def _may_be_wrapped(program: Program, node: ast.expr, scope: Scope, wrapped: frozenset[ClassInfo]) -> bool:
    if isinstance(node, ast.Attribute) and node.attr == "module":
        return False
    models = program.roles.modules(node, scope)
    if models:
        # Of a trainer that is wrapped, the network in it keeps its own names.
        is_known = bool(wrapped) and all(
            value.kind == "instance" or str(value.name).startswith(_OF_LIBRARIES) for value in models
        )
        return not is_known or not wrapped.isdisjoint(_classes(program.with_parts(models)))
    # What a helper is given and nothing is known of is taken for a model; an optimizer or a schedule is known.
    return not program.flow.values(node, scope) and "step" not in program.roles.uses(node, scope)


def _is_whole_model(program: Program, part: ast.AST, scope: Scope) -> bool:
    return isinstance(part, (ast.Name, ast.Attribute)) and bool(program.roles.modules(part, scope))


def _own_parts(node: ast.expr) -> Iterator[ast.AST]:
    """The node, or the values of a dictionary or a list; not what a call or an attribute is asked of."""
    if isinstance(node, ast.Dict):
        yield from (part for value in node.values for part in _own_parts(value))
    elif isinstance(node, (ast.List, ast.Tuple)):
        yield from (part for value in node.elts for part in _own_parts(value))
    elif not (isinstance(node, ast.Attribute) and node.attr == "module"):
        yield from (node,) if not isinstance(node, ast.Call) else ()


def asks_for_devices(program: Program) -> list[Site]:
    """Places that ask a wrapped model for the devices it is spread over."""
    wrapped = program.calls_to(DATA_PARALLEL)
    return [
        Site(scope.module, scope, body, node)
        for node, body, scope in (program.nodes() if wrapped else ())
        if isinstance(node, ast.Attribute)
        and node.attr in ("device_ids", "output_device")
        and isinstance(node.ctx, ast.Load)
        and program.roles.modules(node.value, scope)
        and not any(node in walk(site.node) for site in wrapped)
    ]
