"""What a training loop keeps of its batches for later losses: a running centre, a radius, a balance of two losses.

Each process keeps what its own batches gave, and no exchange of gradients makes that one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial
from itertools import chain

from amp_rules.flow.cells import CellKey
from amp_rules.flow.values import ClassInfo, Value
from amp_rules.plan.carried_state import Round, settled_or_sized
from amp_rules.plan.distribution import Distribution
from amp_rules.plan.model_parts import trained_classes
from amp_rules.plan.notes import LOSS_OVER_BATCH, note
from amp_rules.plan.precision import Precision
from amp_rules.plan.report import Note
from amp_rules.ranks.origins import Kind
from amp_rules.roles.kinds import is_module
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.scopes import FunctionNode, arguments_of
from amp_rules.source.syntax import COMPREHENSIONS, called_name, own_variables, walk
from amp_rules.torch.accumulation import MADE_TO_FILL
from amp_rules.torch.gradients import FACTS_OF_TENSORS, SHAPED_BY_ANOTHER

_Round = tuple[Site, list[ast.stmt]]
"""What runs once for each batch, with its statements."""

_LISTS = (ast.List, ast.Tuple, ast.ListComp)

_KEEPING = frozenset({"append", "extend", "appendleft"})

_WITHOUT_GRADIENT = frozenset({"detach", "data", "item", "numpy", "tolist"})
"""Methods and attributes that give the numbers of a tensor alone."""


def notes(program: Program, precision: Precision, processes: Distribution) -> Iterator[Note]:
    """Yield the first place of each that is kept."""
    losses = {node for run in precision.training for item in run.statements() for node in blocks.walk_own(item)}
    told: set[str] = set()
    rounds = list(_rounds(program, processes, losses))
    kept = chain(
        _kept(program, processes, losses, rounds),
        _kept_by_modules(program, processes, losses),
        _kept_by_objects(program, processes, losses, rounds),
        _made_between(program, processes, losses, rounds),
    )
    for site, path in kept:
        if path not in told:
            told.add(path)
            text = f"`{path}` keeps what the batches of one process gave, and later losses of that process use it"
            yield note(LOSS_OVER_BATCH, site.module, site.node, text)


def _kept(
    program: Program, processes: Distribution, losses: set[ast.AST], rounds: list[_Round]
) -> Iterator[tuple[Site, str]]:
    own = list(_own_losses(program, losses))
    for site, body in (*rounds, *own):
        inner = [node for item in body for node in blocks.walk_own(item)]
        # A module that computes a loss of what it keeps may keep what has a gradient.
        is_own = any(site is item for item, _ in own)
        read = set(inner) if is_own else losses
        used: dict[str | None, int] = {}
        updating = {(part, path) for node in inner for part, path in _of_update(node)}
        for node in inner:
            if isinstance(node, (ast.Name, ast.Attribute)) and (node, blocks.path_of(node)) in updating:
                continue  # what goes on by itself is no loss
            if node not in read or not isinstance(node, (ast.Name, ast.Attribute)):
                continue
            if isinstance(node.ctx, ast.Load) and not _is_no_number_of(site, node):
                used[blocks.path_of(node)] = max(node.lineno, used.get(blocks.path_of(node), 0))
        entry = Round(written=_begun_with(site.node), settled=partial(settled_or_sized, body=body, site=site))
        entry.run(body)
        for node in inner:
            if not isinstance(node, (ast.Assign, ast.AugAssign)):
                continue
            for path in _paths(node) & entry.carried & used.keys():
                if path is None:
                    continue
                of_loss = node in losses and not _counts_batch(program, site, node, inner)
                if of_loss and not (is_own or _is_without_gradient(program, site, node)):
                    continue
                goes_on = isinstance(node, ast.AugAssign) or path in blocks.reads(node.value)
                if not goes_on and node.lineno < used[path]:
                    continue  # made for the loss below it
                if isinstance(site.node, FunctionNode) and "." not in path:
                    continue  # a variable of a function ends with it
                if _adds_of_batch(processes, node.value, path):
                    yield Site(site.module, site.scope, site.body, node), path


def _kept_by_modules(program: Program, processes: Distribution, losses: set[ast.AST]) -> Iterator[tuple[Site, str]]:
    """Yield plain attributes that a module computes of the batch for the next loss: ``self.s = torch.log(mean)``.

    Buffers of what is prepared become those of rank 0 after each step.
    """
    for function in program.called_from(losses):
        info = program.function_of(function)
        if info is None or info.receiver is None or info.name == "__init__" or isinstance(info.node, ast.Lambda):
            continue
        owner = program.flow.class_of(info)
        if owner is None or not is_module(Value("instance", owner)):
            continue
        scope = program.flow.scopes[function]
        site = Site(scope.module, scope, function, function)
        entry = Round(written=_begun_with(function) - {info.receiver})
        entry.run(info.node.body)
        inner = [node for item in info.node.body for node in blocks.walk_own(item)]
        updating = {(part, path) for node in inner for part, path in _of_update(node)}
        registered = _registered(owner)
        for node in inner:
            if not isinstance(node, (ast.Assign, ast.AugAssign)) or not _is_without_gradient(program, site, node):
                continue
            for path in _paths(node) & entry.carried:
                receiver, _, name = (path or "").partition(".")
                if path is None or receiver != info.receiver or not name.isidentifier() or name in registered:
                    continue
                if not _is_used(inner, path, updating) or not _adds_of_batch(processes, node.value, path):
                    continue
                yield Site(scope.module, scope, function, node), path


def _kept_by_objects(
    program: Program, processes: Distribution, losses: set[ast.AST], rounds: list[_Round]
) -> Iterator[tuple[Site, str]]:
    """Yield what an object that is no module keeps of the batches, and gives to the losses: ``norm.update(x)``."""
    of_losses = program.called_from(losses)
    beside = {node for _, body in rounds for item in body for node in blocks.walk_own(item)}
    read: set[CellKey] | None = None
    for function in program.called_from(beside - losses):
        info = program.function_of(function)
        owner = program.flow.class_of(info) if info is not None else None
        if info is None or owner is None or info.name == "__init__" or isinstance(info.node, ast.Lambda):
            continue
        if function in of_losses or is_module(Value("instance", owner)):
            continue
        scope = program.flow.scopes[function]
        entry = Round(written=_begun_with(function) - {info.receiver or ""})
        entry.run(info.node.body)
        for node in program.nodes_of(function):
            if not isinstance(node, (ast.Assign, ast.AugAssign)):
                continue
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                place = blocks.reading(target)
                path = blocks.path_of(place)
                if path is None or path not in entry.carried or not _adds_of_batch(processes, node.value, path):
                    continue
                read = _read_by(program, losses, of_losses) if read is None else read
                if program.flow.key(place, scope) in read:
                    yield Site(scope.module, scope, function, node), path


def _made_between(
    program: Program, processes: Distribution, losses: set[ast.AST], rounds: list[_Round]
) -> Iterator[tuple[Site, str]]:
    """Yield what a script makes between two epochs of what the batches gave, and losses are weighed by."""
    ranks = processes.agreed.ranks
    for site, body in rounds:
        if not isinstance(site.node, (ast.For, ast.AsyncFor)):
            continue
        inner = [node for item in body for node in blocks.walk_own(item)]
        statements = [item for item in inner if isinstance(item, ast.stmt) and not isinstance(item, ast.Expr)]
        written = blocks.writes_target(site.node).union(*map(blocks.writes, statements))
        written = written.union(*(own_variables(item) for item in inner if isinstance(item, COMPREHENSIONS)))
        written |= {path for item in inner if (path := _filled(item)) is not None}
        for node in inner:
            if node not in losses or not isinstance(node, (ast.Name, ast.Attribute)):
                continue
            path = blocks.path_of(node) if isinstance(node.ctx, ast.Load) else None
            if path is None or blocks.touches(written, {path}) or _is_no_number_of(site, node):
                continue
            holds = all(_holds_numbers(program, ref.site) for ref in ranks.objects(node))
            origins = ranks.origins(node) if holds else ranks.own_origins(node)
            if any(origin.kind is Kind.BATCH for origin in origins):
                yield Site(site.module, site.scope, site.body, node), path


def _holds_numbers(program: Program, made: ast.AST) -> bool:
    """Whether this makes a list, or an array that is written into: ``weights = np.ones([2, epochs])``."""
    if not isinstance(made, ast.Call):
        return isinstance(made, _LISTS)
    located = program.locate(made)
    return located is not None and bool(program.callee_names(made, located[1]) & MADE_TO_FILL)


def _is_no_number_of(site: Site, node: ast.AST) -> bool:
    """Whether what is kept is only asked how much it is, or given more: ``len(kept)``, ``kept.append(loss.item())``."""
    parent = site.module.parents[node]
    if isinstance(parent, ast.Call):
        return node in parent.args and called_name(parent) == "len"
    if not isinstance(parent, ast.Attribute) or parent.attr not in _KEEPING:
        return False
    call = site.module.parents[parent]
    return isinstance(call, ast.Call) and call.func is parent and isinstance(site.module.parents[call], ast.Expr)


def _filled(node: ast.AST) -> str | None:
    """The tensor that a call fills anew: ``inputs`` of ``inputs.resize_as_(x).copy_(x)``."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_")):
        return None
    filled: ast.expr = node
    while isinstance(filled, (ast.Call, ast.Attribute, ast.Subscript)):
        if isinstance(filled, ast.Attribute) and blocks.path_of(filled) is not None:
            break
        filled = filled.func if isinstance(filled, ast.Call) else filled.value
    return blocks.path_of(filled)


def _read_by(program: Program, losses: set[ast.AST], called: set[ast.AST]) -> set[CellKey]:
    """The attributes that losses read, and the functions that they call."""
    return {
        key
        for node in chain(losses, *map(program.nodes_of, called))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
        if (located := program.locate(node)) is not None
        if (key := program.flow.key(node, located[1])) is not None
    }


def _registered(owner: ClassInfo) -> set[str]:
    """The names of buffers and parameters that the classes of a module register."""
    return {
        node.args[0].value
        for info in owner.mro()
        for node in walk(info.facts.node)
        if isinstance(node, ast.Call) and called_name(node) in ("register_buffer", "register_parameter")
        if node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str)
    }


def _is_used(inner: list[ast.AST], path: str, updating: set[tuple[ast.AST, str | None]]) -> bool:
    """Whether a variable is read for something else than what it is next."""
    return any(
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Load)
        and blocks.path_of(node) == path
        and (node, path) not in updating
        for node in inner
    )


def _rounds(program: Program, processes: Distribution, losses: set[ast.AST]) -> Iterator[tuple[Site, list[ast.stmt]]]:
    """Yield what runs once for each batch: the bodies of loops, and functions of steps that they call."""
    loops: dict[ast.AST, Site] = {loop.loop: loop for loop in processes.loops}
    loops |= {site.node: site for site in processes.data.loops if isinstance(site.node, blocks.LOOPS)}
    inside: set[ast.AST] = set()
    for node, loop in loops.items():
        body: list[ast.stmt] = getattr(node, "body", [])
        inside.update(part for item in body for part in blocks.walk_own(item))
        yield Site(loop.module, loop.scope, loop.body, node), body
    for function in program.called_from(inside):
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if any(node in losses for node in program.nodes_of(function)):
            scope = program.flow.scopes[function]
            yield Site(scope.module, scope, function, function), function.body


def _own_losses(program: Program, losses: set[ast.AST]) -> Iterator[tuple[Site, list[ast.stmt]]]:
    """Yield the forward passes of modules that no step trains and that compute a loss."""
    trained: set[object] | None = None
    for function in program.called_from(losses):
        owner = program.owner_of(function)
        if not isinstance(function, ast.FunctionDef) or function.name != "forward" or owner is None:
            continue
        if trained is None:
            trained = trained_classes(program)
        if owner.facts.is_module and owner not in trained:
            scope = program.flow.scopes[function]
            yield Site(scope.module, scope, function, function), function.body


def _of_update(node: ast.AST) -> Iterator[tuple[ast.AST, str | None]]:
    """What a statement reads that gives one variable a new value, with that variable: ``mean = 0.9 * mean + ...``.

    That it writes into something is no use of what stands there: ``values[name] = loss.item()``.
    """
    if isinstance(node, (ast.Assign, ast.AugAssign)):
        paths = _paths(node)
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from ((part, path) for path in paths for part in walk(node.value) if len(paths) == 1)
        yield from ((part, path) for path in paths for target in targets for part in walk(target))


def _begun_with(node: ast.AST) -> set[str]:
    """The variables that are new in each round: of a loop's head, and parameters."""
    if isinstance(node, (ast.For, ast.AsyncFor)):
        return blocks.writes_target(node)
    return {item.arg for item in arguments_of(node)} if isinstance(node, FunctionNode) else set()


def _paths(node: ast.Assign | ast.AugAssign) -> set[str | None]:
    """What a statement gives another value; ``radius`` of ``radius.data = ...``."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    found = (blocks.path_of(blocks.reading(target)) for target in targets)
    return {path.removesuffix(".data") if path is not None else None for path in found}


def _adds_of_batch(processes: Distribution, value: ast.expr, path: str) -> bool:
    """Whether a variable gets what another one has of the batch of a process; the batch itself it gets by ``next``."""
    if isinstance(value, ast.Call) and called_name(value) == "next":
        return False
    ranks = processes.agreed.ranks
    called = {part.func for part in walk(value) if isinstance(part, ast.Call)}
    owners: set[ast.AST] = set()
    for part in walk(value):
        # ``weight.to(preds.device)`` and ``weight.expand(preds.size(0))`` take none of its numbers.
        if isinstance(part, ast.Attribute) and (part not in called or part.attr in FACTS_OF_TENSORS):
            owners.add(part.value)
        if isinstance(part, ast.Call) and called_name(part) in SHAPED_BY_ANOTHER:
            owners.update(part.args)
    return any(
        origin.kind is Kind.BATCH
        for part in walk(value)
        if isinstance(part, (ast.Name, ast.Attribute)) and part not in owners
        if not blocks.touches({path}, blocks.reads(part))
        for origin in ranks.origins(part)
    )


def _counts_batch(program: Program, site: Site, node: ast.Assign | ast.AugAssign, inner: list[ast.AST]) -> bool:
    """Whether a sum goes on by what the batch itself holds: ``counts += torch.bincount(labels)``."""
    if not isinstance(node, ast.AugAssign) or not isinstance(site.node, (ast.For, ast.AsyncFor)):
        return False
    given, read = blocks.writes_target(site.node), blocks.reads(node.value)
    if not read & given or program.runs_model(node.value):
        return False
    made = {path for item in inner if isinstance(item, ast.stmt) for path in blocks.writes(item)} - given
    return not blocks.touches(made, read)


def _is_without_gradient(program: Program, site: Site, node: ast.Assign | ast.AugAssign) -> bool:
    """Whether a value is no part of a loss that is computed there."""
    read = {part.id for part in walk(node.value) if isinstance(part, ast.Name)}
    made = [  # ``count = mask.sum().item()`` above ``self.mean = 0.9 * self.mean + 0.1 * count``
        item.value
        for item in program.nodes_of(site.body)
        if isinstance(item, ast.Assign) and any(isinstance(to, ast.Name) and to.id in read for to in item.targets)
    ]
    taken = any(
        isinstance(part, ast.Attribute) and part.attr in _WITHOUT_GRADIENT
        for value in (node.value, *made)
        for part in walk(value)
    )
    return taken or program.without_gradients(site.module, node, site.body)
