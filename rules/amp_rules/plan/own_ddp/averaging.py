"""What averages gradients over processes: a wrapper, or the script by hand."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.idle import is_within_idle
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.syntax import children, last_name, walk
from amp_rules.torch.distributed import BROADCASTS, EXCHANGES
from amp_rules.torch.gradients import FACTS_OF_TENSORS
from amp_rules.torch.idioms import NAMED_AVERAGES_GRADIENTS
from amp_rules.torch.wrappers import DISTRIBUTED_DATA_PARALLEL, REDUCERS

_MAX_CALLERS = 3
"""Helpers between an exchange and who gives it gradients: ``all_reduce_list``, ``average``, ``step``."""


def may_wrap(program: Program) -> bool:
    """Whether the program wraps a model for several processes, or has something for it by another name.

    An import, a comment, and a look for the class (``isinstance(model, DDP)``) wrap nothing.
    """
    if program.calls_to(DISTRIBUTED_DATA_PARALLEL):
        return True
    looked_for = {
        part
        for call, _, _ in program.calls()
        if isinstance(call.func, ast.Name) and call.func.id == "isinstance" and len(call.args) == 2
        for part in walk(call.args[1])
    }
    for node, _, scope in program.nodes():
        if node in looked_for or not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(node.ctx, ast.Load):
            continue
        name = last_name(node)
        if name.endswith(("DistributedDataParallel", "DDP")):
            return True
        parent = scope.module.parents[node]
        if isinstance(parent, ast.Call) and parent.func is node and not program.flow.callees(parent):
            if "ddp" in name.lower() or "distribute" in name:
                return True  # a library's own: ``create_ddp_model(model)``
    return False


def may_average(program: Program) -> bool:
    """Whether the program exchanges gradients or parameters between processes by hand, for all that is known.

    A function that files import and nothing calls exchanges nothing.
    """
    if any(not is_within_idle(program, site.node, site.module) for site in program.calls_to(REDUCERS)):
        return True
    if any(
        isinstance(node, ast.FunctionDef)
        and NAMED_AVERAGES_GRADIENTS.search(node.name)
        and not is_within_idle(program, node, module)
        for module in program.flow.modules
        for node in module.nodes
    ):
        return True
    return any(
        _is_of_weights(program, site)
        for site in program.calls_to(EXCHANGES - BROADCASTS)
        if isinstance(site.node, ast.Call) and not is_within_idle(program, site.node, site.module)
    )


def _is_of_weights(program: Program, site: Site) -> bool:
    """Whether what a call is given may be gradients or parameters, by all that goes into it, in callers too."""
    assert isinstance(site.node, ast.Call)
    reached = [(site, [*site.node.args, *(item.value for item in site.node.keywords)])]
    asked: set[tuple[ast.AST, frozenset[str]]] = set()
    for _ in range(_MAX_CALLERS + 2):
        callers: list[tuple[Site, list[ast.expr]]] = []
        for place, given in reached:
            read, nodes = _sources(program, place, given)
            if any(_names_weights(node) for node in nodes):
                return True
            info = program.function_of(place.body)
            names = [name for name in info.parameters if name in read] if info is not None else []
            for caller in program.flow.callers(info) if info is not None else ():
                # Two ways that come to one call, for the same parameters, find the same.
                key = caller.call, frozenset(names)
                if info is not None and key not in asked:
                    asked.add(key)
                    arguments = (info.argument_or_default(caller.call, name) for name in names)
                    callers.append((calling(caller), [item for item in arguments if item is not None]))
        reached = callers
    return False


def _sources(program: Program, site: Site, given: list[ast.expr]) -> tuple[set[str], list[ast.AST]]:
    """The variables that go into expressions, in a function, and all that is read for them."""
    nodes = [node for item in given for node in _read_for(program, site, item)]
    read: set[str] = set()
    bindings = [pair for node in blocks.walk_body(site.body) for pair in _bindings(node)]
    pending = True
    while pending:
        new = {node.id for node in nodes if isinstance(node, ast.Name)} - read
        read |= new
        more = [value for target, value in bindings if new & {n.id for n in walk(target) if isinstance(n, ast.Name)}]
        nodes += [node for value in more for node in _read_for(program, site, value)]
        pending = bool(more)
    return read, nodes


def _read_for(program: Program, site: Site, node: ast.AST) -> Iterator[ast.AST]:
    """Yield what a value is made of; what a module gives, a loss, is neither its weights nor their gradients.

    Nor is a norm, or what tells of a shape: ``len(grad)``.
    """
    if isinstance(node, ast.Call) and program.roles.modules(node.func, site.scope):
        return
    if isinstance(node, ast.Call) and last_name(node.func) in _TELLS_OF:
        return
    if isinstance(node, ast.Attribute) and node.attr in FACTS_OF_TENSORS:
        return
    yield node
    for child in children(node):
        yield from _read_for(program, site, child)


def _bindings(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """What a node binds, and to what; a list that is appended to holds what it is given."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield target, node.value
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign)) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, (ast.For, ast.comprehension)):
        yield node.target, node.iter
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _FILLS:
        for argument in node.args:
            yield node.func.value, argument


_TELLS_OF = frozenset({"len", "norm", "get_total_norm", "clip_grad_norm_", *FACTS_OF_TENSORS})
"""Own names of functions and methods that say one thing of a tensor."""

_FILLS = ("append", "extend", "insert", "copy_")


def _names_weights(node: ast.AST) -> bool:
    name = last_name(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""
    return name in ("grad", "grads", "state_dict") or "gradient" in name or "param" in name
