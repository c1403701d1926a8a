"""Whether a program shows the names that ``DataParallel`` gives to the parts of a model: ``module.fc.weight``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from amp_rules.flow.values import ClassInfo, Value
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import argument_at
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import called_name, walk
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


def asks_for_devices(program: Program, *, keeps_names: bool) -> list[Site]:
    """Places that ask a wrapped model for the devices it is spread over.

    Not those that ask only a model that is spread over several, which none is any more.

    Args:
        program: the program.
        keeps_names: whether a ``DataParallel`` stays for its names: it has no devices.
    """
    wrapped = program.calls_to(DATA_PARALLEL)
    sites = [
        Site(scope.module, scope, body, node)
        for node, body, scope in (program.nodes() if wrapped else ())
        if isinstance(node, ast.Attribute)
        and node.attr in ("device_ids", "output_device")
        and isinstance(node.ctx, ast.Load)
        and program.roles.modules(node.value, scope)
        and not any(node in walk(site.node) for site in wrapped)
    ]
    return [site for site in sites if not _asks_where_spread(program, site, keeps_names=keeps_names)]


def _asks_where_spread(program: Program, site: Site, *, keeps_names: bool) -> bool:
    """Whether a place, ``model.device_ids``, asks only a model that is spread over several."""
    asked = site.node
    assert isinstance(asked, ast.Attribute)
    around = [test for test, holds in blocks.tests_around(site.module, asked) if holds]
    beside = [*around, *_asked_before(site.module, asked)]
    if not any(_is_for_wrapper(program, test, asked.value, site.scope) for test in beside):
        return False
    return not keeps_names or any(map(_asks_for_several, [*around, *_comparison_with(site.module, asked)]))


def _asked_before(module: Module, node: ast.expr) -> Iterator[ast.expr]:
    """What holds where a part of ``a and b`` is asked: the parts before it."""
    child: ast.AST = node
    for parent in module.ancestors(node):
        if isinstance(parent, ast.stmt):
            return
        if isinstance(parent, ast.BoolOp) and isinstance(parent.op, ast.And):
            yield from parent.values[: parent.values.index(child)]  # type: ignore[arg-type]
        child = parent


def _is_for_wrapper(program: Program, test: ast.expr, model: ast.expr, scope: Scope) -> bool:
    """``isinstance(model, DataParallel)`` of this model."""
    if not (
        isinstance(test, ast.Call)
        and len(test.args) == 2
        and program.callee_names(test, scope) & {"builtins.isinstance"}
        and blocks.path_of(model) is not None
        and ast.dump(test.args[0]) == ast.dump(model)
        and isinstance(test.args[1], (ast.Name, ast.Attribute))
    ):
        return False
    names = program.names(test.args[1], scope)
    return bool(names) and names <= DATA_PARALLEL


def _comparison_with(module: Module, node: ast.expr) -> Iterator[ast.expr]:
    """The comparison that a node stands in."""
    yield from (parent for parent in list(module.ancestors(node))[:2] if isinstance(parent, ast.Compare))


def _asks_for_several(test: ast.expr) -> bool:
    """``len(model.device_ids) > 1``, which no empty list comes up to."""
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.left, ast.Call)
        and called_name(test.left) == "len"
        and any(isinstance(item, ast.Attribute) and item.attr == "device_ids" for item in test.left.args)
        and len(test.ops) == 1
        and isinstance(test.ops[0], (ast.Gt, ast.GtE))
        and isinstance(test.comparators[0], ast.Constant)
        and test.comparators[0].value in (1, 2)
    )
