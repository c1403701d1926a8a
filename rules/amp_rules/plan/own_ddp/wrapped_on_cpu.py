"""Models that are wrapped while they are on the CPU, and moved below.

``model = Net()``, ``wrapped = DDP(model, device_ids=[local_rank])``, and then ``model.to(device)``. Torch refuses that
with ``device_ids``, and NCCL without them; with gloo the wrapper's hooks are on what the move leaves behind.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.rank_branches import names_rank
from amp_rules.flow.values import ClassInfo
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import argument_at, keyword
from amp_rules.source.modules import Module
from amp_rules.source.syntax import called_name, is_none, last_name, walk
from amp_rules.torch.devices import DEFAULT_DEVICE, MOVING, MOVING_MODELS
from amp_rules.torch.idioms import NAMED_DEVICE

_REFUSED = "with `device_ids` torch raises a ValueError"
_LEFT_BEHIND = "NCCL refuses tensors of the CPU, and with gloo nothing averages the gradients of what has moved"
_ASKS = frozenset({"eval", "load_state_dict", "named_parameters", "parameters", "state_dict", "train"})
"""What a model may be asked for where it is."""
_LAYERS = tuple(
    f"torch.nn.{name}"
    for name in ("BatchNorm", "Conv", "Embedding", "GRU", "LSTM", "LayerNorm", "Linear", "MultiheadAttention", "RNN")
)
"""How layers that have weights are called, which torch makes on the CPU."""


def wrapped_on_cpu(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield where such a model is wrapped."""
    for wrap in own.wraps:
        call = wrap.node
        held = argument_at(call, "module", 0) if isinstance(call, ast.Call) else None
        devices = argument_at(call, "device_ids", 1) if isinstance(call, ast.Call) else None
        is_listed = isinstance(devices, (ast.List, ast.Tuple)) and bool(devices.elts)
        if not isinstance(held, ast.Name) or not (is_listed or devices is None or is_none(devices)):
            continue
        if wrap.module not in own.modules or not _is_on_cpu(own, wrap, held.id):
            continue
        moved = _moved_below(wrap, held.id)
        if moved is not None:
            line = wrap.module.line_on_disk(moved.lineno)
            wrong = _REFUSED if is_listed else _LEFT_BEHIND
            yield wrap.module, call, f"`{held.id}` is on the CPU here, and line {line} moves it: {wrong}; move it above"


def _moved_below(wrap: Site, name: str) -> ast.Call | None:
    """Where a model is moved once it is wrapped."""
    for node in blocks.walk_body(wrap.body):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MOVING:
            if blocks.path_of(node.func.value) == name and node.lineno > wrap.line and _goes_to_gpu(node):
                return node
    return None


def _goes_to_gpu(move: ast.Call) -> bool:
    """``model.cuda()``, ``model.to(device)``, ``model.to("cuda:0")``; ``model.to(torch.float64)`` moves nothing."""
    given = move.args[0] if move.args else keyword(move, "device")
    if last_name(move.func) == "cuda" or given is None:
        return last_name(move.func) == "cuda"
    if isinstance(given, ast.Constant):
        return isinstance(given.value, int) or str(given.value).startswith("cuda")
    return names_rank(given) or NAMED_DEVICE.search(last_name(given)) is not None


def _is_on_cpu(own: OwnDdp, wrap: Site, name: str) -> bool:
    """Whether a model is made above its wrapping, and stays where it is until then."""
    around = blocks.enclosing(wrap.module, wrap.node)
    if any(isinstance(item, (ast.With, ast.AsyncWith)) for item in around):
        return False
    above = [node for node in blocks.walk_body(wrap.body) if getattr(node, "lineno", wrap.line) < wrap.line]
    names = [node for node in above if isinstance(node, ast.Name) and node.id == name]
    stored = [node for node in names if not isinstance(node.ctx, ast.Load)]
    made = wrap.module.parents[stored[0]] if len(stored) == 1 else None
    if not isinstance(made, ast.Assign) or made not in blocks.statements_above(wrap.module, wrap.statement, wrap.body):
        return False
    if not all(_is_asked(wrap.module, node) for node in names if node is not stored[0]):
        return False
    values = own.program.flow.values(made.value.func, wrap.scope) if isinstance(made.value, ast.Call) else set()
    if not values or any(value.kind != "class" for value in values) or _sets_default(own):
        return False
    return all(_has_layer_on_cpu(own, value.ref) for value in values)


def _is_asked(module: Module, node: ast.Name) -> bool:
    asked = module.parents[node]
    return isinstance(asked, ast.Attribute) and asked.attr in _ASKS


def _sets_default(own: OwnDdp) -> bool:
    return any(called_name(call) in DEFAULT_DEVICE for call, _, _ in own.program.calls())


def _has_layer_on_cpu(own: OwnDdp, info: ClassInfo) -> bool:
    """Whether a class sets an attribute to a layer of torch's that nothing in it moves."""
    nodes = [node for base in info.mro() for node in walk(base.facts.node)]
    moved = {
        blocks.path_of(node.func.value)
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MOVING_MODELS
    }
    if "self" in moved or any(isinstance(node, (ast.With, ast.AsyncWith)) for node in nodes):
        return False
    for node in nodes:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        located = own.program.locate(node.value)
        if located is None or keyword(node.value, "device") is not None or blocks.writes(node) & moved:
            continue
        is_own = all(path.startswith("self.") for path in blocks.writes(node))
        if is_own and any(name.startswith(_LAYERS) for name in own.program.callee_names(node.value, located[1])):
            return True
    return False
