"""Models that are called in the place of their wrappers: ``wrapped = DDP(model)``, then ``loss = f(model(x), y)``.

Or whose wrapper nothing keeps: ``model = DDP(model).module``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.averaging import may_average
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import keyword
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk

_ASKED = frozenset(
    {
        *("parameters", "named_parameters", "state_dict", "load_state_dict", "train", "eval", "module", "modules"),
        *("to", "cuda", "zero_grad", "requires_grad_"),
    }
)
"""What a wrapper is asked for where it runs no forward pass."""


def called_bare(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first such call of each model, where the loop trains and nothing uses the wrapper otherwise."""
    for wrap in own.wraps if own.wraps and not may_average(own.program) else ():
        parent = wrap.module.parents.get(wrap.node)
        if isinstance(parent, ast.Attribute) and parent.attr == "module":
            text = f"`{wrap.module.text(parent)}` is the model again, and the wrapper is gone: nothing averages the"
            yield wrap.module, parent, f"{text} gradients over the processes; keep the wrapper, and call that"
            continue
        names = _names(wrap)
        if names is None:
            continue
        bare, wrapper = names
        if _may_be_called(wrap, wrapper):
            continue
        call = next(_calls(own, wrap, bare), None)
        if call is not None:
            text = f"`{bare}` is called in the place of its wrapper `{wrapper}`: nothing averages the gradients"
            yield wrap.module, call, f"{text} over the processes; call `{wrapper}`"


def _names(wrap: Site) -> tuple[str, str] | None:
    """The variables of a model and of its wrapper, where these are two of one function."""
    call, statement = wrap.node, wrap.statement
    if not (isinstance(call, ast.Call) and isinstance(statement, ast.Assign) and statement.value is call):
        return None
    given = call.args[0] if call.args else keyword(call, "module")
    target = statement.targets[0] if len(statement.targets) == 1 else None
    if not (isinstance(given, ast.Name) and isinstance(target, ast.Name)) or given.id == target.id:
        return None
    return given.id, target.id


def _may_be_called(wrap: Site, wrapper: str) -> bool:
    """Whether a name is given anew, handed on or called: only what it is asked for tells that it runs nothing."""
    parents = wrap.module.parents
    return any(
        node is not wrap.statement.targets[0]  # type: ignore[attr-defined]
        and not (isinstance(parent := parents[node], ast.Attribute) and parent.attr in _ASKED)
        for node in wrap.module.nodes
        if isinstance(node, ast.Name) and node.id == wrapper
    )


def _calls(own: OwnDdp, wrap: Site, bare: str) -> Iterator[ast.Call]:
    """Yield the calls of a model in loops of the same function that train, behind its wrapper."""
    for loop in blocks.walk_body(wrap.body):
        if isinstance(loop, (ast.For, ast.While)) and loop.lineno > wrap.line and own.program.runs_backward(loop):
            for node in walk(loop):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == bare:
                    if not own.program.without_gradients(wrap.module, node, wrap.body):
                        yield node
