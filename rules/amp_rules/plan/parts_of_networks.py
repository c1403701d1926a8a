"""Networks of libraries that a model keeps whole and uses in parts: ``self.resnet.layer1(x)``, and never ``.fc``.

The wrapper would wait for the gradients of the other parts.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass, field

from amp_rules.flow.values import Value
from amp_rules.roles.kinds import is_module
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import values_given
from amp_rules.torch.models import PARTS_OF_NETWORKS, RETURNS_RECEIVER, TELLS_OF_MODEL, WITH_POOLER

_RUNS_WHOLE = frozenset({"forward", "__call__"})
_ALL_PARTS = frozenset({"children", "named_children", "modules", "named_modules", "_modules"})
_PLAIN_LAYERS = "torch.nn."
_SPLIT_LAYERS = frozenset({"torch.nn.Transformer"})


def why_in_parts(program: Program) -> str:
    """Which network is used in parts, for the report; empty where none is."""
    attributes = _attributes(program)
    if not attributes:
        return ""
    uses = _uses(program, attributes)
    for (owner, name), networks in sorted(attributes.items(), key=lambda item: item[0][1]):
        found = uses.get(name)
        if found is None or found.is_frozen:
            continue
        where = f"`{owner.name}.{name}`"
        if found.whole:
            if any(map(_has_pooler, networks)) and not any(_reads_pooled(program, site) for site in found.whole):
                return f"nothing is seen to use the pooled output of {where}"
            continue
        if not (found.parts or found.is_listed):
            continue
        missing = {part for network in networks for part in _missing(network, found)}
        if missing:
            named = " and ".join(f"`{part}`" for part in sorted(missing))
            take = "takes" if len(missing) == 1 else "take"
            return f"{where} is a whole network, of which {named} {take} no part in a forward pass"
        if any(_parts(network) is None for network in networks):
            return f"{where} is a network of a library, and parts of it are used"
    return ""


@dataclass
class _Uses:
    """What a program does with one network.

    Attributes:
        whole: its forward passes, and what may run one.
        parts: the parts that are used.
        replaced: those that something else takes the place of, or that are deleted.
        is_listed: whether it is taken apart, into parts that are not told by name.
        is_frozen: whether its parameters are not trained.
    """

    whole: list[Site] = field(default_factory=list)
    parts: set[str] = field(default_factory=set)
    replaced: set[str] = field(default_factory=set)
    is_listed: bool = False
    is_frozen: bool = False


def _attributes(program: Program) -> dict[tuple[ast.ClassDef, str], set[Value]]:
    """The attributes of models that hold a network of a library, of those that are trained."""
    candidates = {
        (holder, name): found
        for (holder, name), cell in program.flow.cells.items()
        if isinstance(holder, ast.ClassDef)
        and isinstance(name, str)
        and is_module(Value("instance", program.flow.classes[holder]))
        if (found := {value for value in cell.values if _is_network(value)})
    }
    if not candidates:
        return {}
    trained = {
        info.facts.node
        for value in program.with_parts(program.trained)
        if value.kind == "instance"
        for info in value.ref.mro()
    }
    return {key: found for key, found in candidates.items() if key[0] in trained}


def _is_network(value: Value) -> bool:
    return (
        value.kind == "object"
        and is_module(value)
        and (not value.name.startswith(_PLAIN_LAYERS) or value.name in _SPLIT_LAYERS)
    )


def _uses(program: Program, attributes: dict[tuple[ast.ClassDef, str], set[Value]]) -> dict[str, _Uses]:
    names: defaultdict[str, set[Value]] = defaultdict(set)
    for (_, name), values in attributes.items():
        names[name] |= values
    found: dict[str, _Uses] = {}
    for node, body, scope in program.nodes():
        if not (isinstance(node, ast.Attribute) and node.attr in names and isinstance(node.ctx, ast.Load)):
            continue
        if program.flow.values(node, scope) & names[node.attr]:
            _note(found.setdefault(node.attr, _Uses()), Site(scope.module, scope, body, node), program)
    return found


def _note(uses: _Uses, site: Site, program: Program) -> None:
    """Add one place that names the network."""
    parents = site.module.parents
    parent = parents[site.node]
    info = program.function_of(site.body)
    is_making = info is not None and info.name == "__init__" and program.is_model_code(site.body)
    other_name = _other_name(parent, site, program)
    if other_name is not None:
        for node in other_name:
            _note(uses, Site(site.module, site.scope, site.body, node), program)
        return
    if not isinstance(parent, ast.Attribute):
        is_called = isinstance(parent, ast.Call) and parent.func is site.node
        if is_called or not is_making:
            uses.whole.append(Site(site.module, site.scope, site.body, parent))
        return
    name = parent.attr
    outer = parents[parent]
    is_called = isinstance(outer, ast.Call) and outer.func is parent
    if not isinstance(parent.ctx, ast.Load):
        uses.replaced.add(name)
    elif name in _RUNS_WHOLE:
        uses.whole.append(Site(site.module, site.scope, site.body, outer))
    elif name in _ALL_PARTS:
        uses.is_listed = True
    elif name == "requires_grad_" and is_called:
        uses.is_frozen = uses.is_frozen or is_off(outer)
    elif name == "parameters":
        uses.is_frozen = uses.is_frozen or (freezes_all(site.module, parent) and not _runs_late(program, site))
    elif name in RETURNS_RECEIVER | TELLS_OF_MODEL or (is_making and isinstance(outer, ast.Attribute)):
        pass  # ``self.resnet.fc.in_features`` uses no layer
    else:
        uses.parts.add(name)


def _other_name(parent: ast.AST, site: Site, program: Program) -> list[ast.Name] | None:
    """The places that read a network by the name that a function gives it: ``net = self.net``, and nothing else."""
    if not (isinstance(parent, ast.Assign) and parent.value is site.node and len(parent.targets) == 1):
        return None
    (target,) = parent.targets
    if not isinstance(target, ast.Name) or not site.scope.is_function or site.scope.owner(target.id) is not site.scope:
        return None
    named = [node for node in program.nodes_of(site.body) if isinstance(node, ast.Name) and node.id == target.id]
    written = [node for node in named if not isinstance(node.ctx, ast.Load)]
    return [node for node in named if isinstance(node.ctx, ast.Load)] if written == [target] else None


def is_off(call: ast.AST) -> bool:
    """``requires_grad_(False)``."""
    given = values_given(call) if isinstance(call, ast.Call) else []
    return len(given) == 1 and isinstance(given[0], ast.Constant) and not given[0].value


def freezes_all(module: Module, parameters: ast.AST) -> bool:
    """``for p in self.net.parameters(): p.requires_grad = False``."""
    loop = blocks.statement_of(module, parameters)
    if not isinstance(loop, ast.For) or any(isinstance(item, ast.If) for item in blocks.enclosing(module, loop)):
        return False
    return any(
        isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Attribute) and target.attr == "requires_grad" for target in node.targets)
        and isinstance(node.value, ast.Constant)
        and not node.value.value
        for node in loop.body
    )


def _runs_late(program: Program, site: Site) -> bool:
    """Whether the function that holds a place is called in rounds of a loop alone, after training began, or never."""
    info = program.function_of(site.body)
    if info is None or info.name == "__init__":
        return False
    callers = program.flow.callers(info)
    return all(
        any(
            isinstance(item, blocks.LOOPS) and program.runs_backward(item)
            for item in blocks.enclosing(caller.scope.module, caller.call)
        )
        for caller in callers
    )


# ---- what is known of the libraries' networks ----------------------------------------------------------------------


def _parts(network: Value) -> frozenset[str] | None:
    """The parts with parameters of a network; None where they are not known."""
    head, _, last = network.name.rpartition(".")
    if not head.startswith("torchvision.models"):
        return None
    for beginnings, parts in PARTS_OF_NETWORKS.items():
        if last.lower().startswith(beginnings):
            return parts
    return None


def _missing(network: Value, uses: _Uses) -> set[str]:
    """The parts of a network that nothing uses; none where that is not known."""
    parts = _parts(network)
    return set() if parts is None else set(parts) - uses.parts - uses.replaced


def _has_pooler(network: Value) -> bool:
    """Whether a network computes a second output from the first, by weights of its own: ``BertModel``."""
    if not network.name.startswith("transformers."):
        return False
    site = network.site
    if isinstance(site, ast.Call) and any(item.arg == "add_pooling_layer" for item in site.keywords):
        return False
    head = network.name.rpartition(".")[0].rpartition(".")[2]
    return head.removesuffix("Model") in WITH_POOLER


def _reads_pooled(program: Program, site: Site) -> bool:
    """Whether what a forward pass gives is read for more than its first output, as far as it is followed."""
    module = site.module
    parent = module.parents[site.node]
    if isinstance(parent, ast.Subscript):
        return not _is_first(parent)
    if isinstance(parent, ast.Attribute):
        return parent.attr not in ("last_hidden_state", "hidden_states")
    if not (isinstance(parent, ast.Assign) and len(parent.targets) == 1):
        return True
    target = parent.targets[0]
    nodes = program.nodes_of(site.body)
    reads = [node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    if isinstance(target, (ast.Tuple, ast.List)):
        if len(target.elts) < 2 or any(isinstance(item, ast.Starred) for item in target.elts):
            return True
        second = target.elts[1]
        return not isinstance(second, ast.Name) or any(node.id == second.id for node in reads)
    if not isinstance(target, ast.Name):
        return True
    last = _bound_anew(module, parent, target.id)
    for node in reads:
        if node.id != target.id or not site.line <= node.lineno <= last:
            continue
        outer = module.parents[node]
        is_first = isinstance(outer, ast.Subscript) and outer.value is node and _is_first(outer)
        is_named = isinstance(outer, ast.Attribute) and outer.attr in ("last_hidden_state", "hidden_states")
        if not (is_first or is_named):
            return True
    return False


def _bound_anew(module: Module, statement: ast.stmt, name: str) -> float:
    """The last line that may read what a statement gave a name: the next one of its suite gives it something else."""
    where = blocks.place(module, statement)
    for later in where.suite[where.index + 1 :]:
        if isinstance(later, ast.Assign) and any(
            isinstance(item, ast.Name) and item.id == name for item in later.targets
        ):
            return later.end_lineno or later.lineno
    return float("inf")


def _is_first(node: ast.Subscript) -> bool:
    return isinstance(node.slice, ast.Constant) and node.slice.value in (0, "last_hidden_state")
