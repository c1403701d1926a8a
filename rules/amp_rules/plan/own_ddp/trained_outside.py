"""Models that are trained beside one in ``DistributedDataParallel``, and that no wrapper has."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.values import Value
from amp_rules.plan.model_parts import surely_has_parameters
from amp_rules.plan.own_ddp.averaging import may_average
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.spawned import Spawned
from amp_rules.roles.kinds import is_module
from amp_rules.source import blocks
from amp_rules.source.index import argument_at
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import last_name, walk

_WRAPPING = ("ddp", "distribut", "parallel", "wrap")
"""What the names of functions say that may put a model into a wrapper."""


def trained_outside(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield where such a model is made: each process goes on with weights of its own."""
    program = own.program
    trained = program.trained if own.wraps else set()
    if len(trained) < 2 or may_average(program):
        return
    wrapped: set[Value] = set()
    for wrap in own.wraps:
        call = wrap.node
        assert isinstance(call, ast.Call)
        given = argument_at(call, "module", 0)
        values = program.flow.values(given, wrap.scope) if given is not None else set()
        if not any(map(is_module, values)):
            return  # any of them may be this one's: ``models[name] = DDP(models[name])``
        wrapped |= values
    inside = program.with_parts(wrapped)
    kinds = {value.ref for value in inside}
    taken = _taken(own)
    told: set[str] = set()
    spawned = Spawned(own)
    steps = [step for step in program.steps if not spawned.is_left_to_parent(step)]
    stepped = {model for step in steps for model in program.models_of_step(step)}
    if len(steps) < len(program.steps):
        trained = trained & stepped
    for value in sorted(trained - inside, key=lambda item: getattr(item.site, "lineno", 0)):
        located = program.locate(value.site) if isinstance(value.site, ast.Call) else None
        if located is None or not isinstance(value.site, ast.Call) or not surely_has_parameters(program, value):
            continue
        module = located[1].module
        # A class whose objects are wrapped elsewhere may have made this one for them, or for one process. Of one that
        # is taken apart, ``DDP(Net(whole.encoder, whole.decoder))``, the parts are trained, and not what held them.
        if value.ref in kinds or value in taken or program.with_parts({value}) & inside:
            continue
        if _is_made_for_parts(own, located[0], kinds) or _is_part_of_all(value):
            continue
        if module not in own.modules or own.several_alone(module, value.site) is False or located[0] in own.uncalled:
            continue
        name = _name(module, value.site)
        if name is not None and name not in told and not _is_never_run(own, value):
            told.add(name)
            text = f"`{name}` is trained and in no DistributedDataParallel: nothing averages its gradients"
            yield module, value.site, f"{text} over the processes, and each goes on with weights of its own"


def _is_never_run(own: OwnDdp, value: Value) -> bool:
    """Whether nothing calls a model, nor gives it to anything that may: it has no gradients, whatever it was made for.

    ``classes, centers = make_criteria()``, where only ``centers.parameters()`` is read.
    """
    program = own.program
    for node, body, scope in program.nodes():
        if not isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) or not isinstance(node.ctx, ast.Load):
            continue
        info = program.function_of(body)
        if info is not None and blocks.path_of(node) == info.receiver:
            continue  # what its methods do with it, somebody has to call
        if value in program.flow.values(node, scope) and not _only_hands_on(own, node, scope):
            return False
    return True


def _only_hands_on(own: OwnDdp, node: ast.expr, scope: Scope) -> bool:
    """Whether a place asks a model for its parameters, or gives it to a variable or a function of the project."""
    parents = scope.module.parents
    parent = parents[node]
    if isinstance(parent, ast.keyword):
        parent = parents[parent]
    if isinstance(parent, ast.Attribute):
        around = parents[parent]
        return parent.attr in _ASKS_NOTHING and isinstance(around, ast.Call) and around.func is parent
    if isinstance(parent, ast.Call):
        return node is not parent.func and bool(own.program.flow.callees(parent))
    if isinstance(parent, ast.Tuple):
        parent = parents[parent]
    return isinstance(parent, (ast.Assign, ast.Return))


_ASKS_NOTHING = frozenset(
    {"cpu", "cuda", "eval", "load_state_dict", "named_parameters", "parameters", "state_dict", "to", "train"}
    | {"requires_grad_", "zero_grad"}
)
"""Methods of a model that run nothing of it."""


def _is_made_for_parts(own: OwnDdp, body: ast.AST, kinds: set[object]) -> bool:
    """Whether a model is made where an object that is wrapped is, which may keep its layers and not the model."""
    info = own.program.function_of(body)
    return (
        info is not None
        and info.name == "__init__"
        and info.cls is not None
        and any(getattr(kind, "facts", None) is info.cls for kind in kinds)
    )


def _is_part_of_all(value: Value) -> bool:
    """Whether a model keeps a part of what all processes hold: its rank says how large its parameters are.

    Each process trains a part of its own then, as of the weights of a million classes.
    """
    for info in value.ref.mro() if value.kind == "instance" else ():
        init = info.facts.methods.get("__init__")
        if init is None:
            continue
        nodes = [*blocks.walk_body(init.node)]
        rows = [(blocks.writes(node), node.value) for node in nodes if isinstance(node, _ASSIGNS) and node.value]
        found: set[str] = set()
        while True:
            more = {
                path
                for written, given in rows
                if blocks.touches(found, blocks.reads(given)) or _asks_rank(given)
                for path in written
            }
            if more <= found:
                break
            found |= more
        if any(
            isinstance(node, ast.Call) and _makes(node) and blocks.touches(found, blocks.reads(node)) for node in nodes
        ):
            return True
    return False


_ASSIGNS = (ast.Assign, ast.AnnAssign, ast.AugAssign)
_MAKES = frozenset({"Parameter", "register_parameter", "register_buffer", "Linear", "Embedding"})


def _makes(call: ast.Call) -> bool:
    return last_name(call.func) in _MAKES


def _asks_rank(given: ast.expr) -> bool:
    calls = [part for part in walk(given) if isinstance(part, ast.Call)]
    return any(last_name(call.func) in ("get_rank", "get_world_size") for call in calls)


def _taken(own: OwnDdp) -> set[Value]:
    """What is given to a function that may wrap it, by its name."""
    wraps = {wrap.node for wrap in own.wraps}
    found: set[Value] = set()
    for call, _, scope in own.program.calls():
        name = last_name(call.func).lower()
        if call not in wraps and any(word in name for word in _WRAPPING):
            for given in [*call.args, *(item.value for item in call.keywords)]:
                found |= own.program.flow.values(given, scope)
    return found


def _name(module: Module, made: ast.Call) -> str | None:
    """The variable that a model is assigned to, through ``Net().to(device)``."""
    statement = blocks.statement_of(module, made)
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        return blocks.path_of(target) if isinstance(target, (ast.Name, ast.Attribute)) else None
    return None
