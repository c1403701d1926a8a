"""Data sets of a script with processes of its own: whether a sampler can share them out."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.rank_branches import names_rank
from amp_rules.flow.values import Value
from amp_rules.plan.own_ddp.drawn_alike import alike_seed
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.loader_arguments import given_to_loader
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import keyword, literal
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import last_name, values_given
from amp_rules.torch.data import SPLITS
from amp_rules.torch.idioms import NAMED_EVALUATION
from amp_rules.torch.replication import DRAWS, LIBRARY_SEEDS

_UNINDEXED = ("IterableDataset", "ChainDataset", "IterDataPipe")
_SEEDS = frozenset({"torch.manual_seed", "torch.random.manual_seed"}) | LIBRARY_SEEDS


def is_indexed(value: Value) -> bool:
    """Whether a data set gives its samples by their index."""
    if value.kind == "instance":
        method = value.ref.find_method("__getitem__")
        if method is None or any(base.rpartition(".")[2] in _UNINDEXED for base in value.ref.external_bases()):
            return False
        # What is drawn anew whatever the index is nothing to share out: each process would only draw less.
        index = method.by_place[1:2]
        return not index or any(isinstance(node, ast.Name) and node.id in index for node in method.nodes)
    name = value.name
    return name.startswith(("torchvision.datasets.", "torch.utils.data.")) and name.rpartition(".")[2] not in _UNINDEXED


def is_placeholder(value: Value) -> bool:
    """Whether a value is what a variable holds until it is given a data set: an empty list."""
    return value.kind == "sequence" and isinstance(value.site, (ast.List, ast.Tuple)) and not value.site.elts


def shares(own: OwnDdp, value: Value) -> bool:
    """Whether a data set may be the part of one process."""
    if value.kind == "instance":
        classes = [info.facts.node for info in value.ref.mro()]
        if any(names_rank(node) or "shard" in node.name.casefold() for node in classes):
            return True
    return value.site is not None and names_rank(value.site)


def is_of_each(own: OwnDdp, value: Value) -> bool:
    """Whether each process makes samples of its own: the rank goes into their number, or into the seed they have."""
    located = own.program.locate(value.site) if isinstance(value.site, ast.Call) else None
    if located is None or not isinstance(value.site, ast.Call):
        return False
    body, scope = located
    parts = list(_went_into(value.site, body))
    if any(isinstance(part, (ast.Name, ast.Attribute)) and names_rank(part) for part in parts):
        return True
    if not any(isinstance(part, ast.Call) and _draws(own, part, scope) for part in parts):
        return False
    seeds = [call.node for call in own.program.calls_to(_SEEDS) if isinstance(call.node, ast.Call)]
    return any(names_rank(item) for call in seeds for item in _seed(own, call)) and alike_seed(own) is None


def _draws(own: OwnDdp, call: ast.Call, scope: Scope) -> bool:
    """Whether a call draws from the generators of the process."""
    names = own.program.callee_names(call, scope)
    return any(name.startswith(DRAWS) for name in names) and not names & _SEEDS and keyword(call, "generator") is None


def _seed(own: OwnDdp, call: ast.Call) -> Iterator[ast.expr]:
    """What a seed is made of, in the function that sets it and in its callers."""
    located = own.program.locate(call)
    yield from values_given(call)
    info = own.program.function_of(located[0]) if located is not None else None
    for caller in own.program.flow.callers(info) if info is not None else ():
        yield from values_given(caller.call)
    if located is not None:
        for given in values_given(call):
            yield from (part for part in _went_into(given, located[0]) if isinstance(part, ast.expr))


def _went_into(made: ast.expr, body: ast.AST) -> Iterator[ast.AST]:
    """All that goes into a value, by the variables of its function: not where it lives, nor what a test decides."""
    bindings = [
        (path, value)
        for node in blocks.walk_body(body)
        if isinstance(node, ast.Assign)
        for target in node.targets
        for item, value in blocks.unpacked(target, node.value)
        if (path := blocks.path_of(item)) is not None
    ]
    pending, seen = [made], set[str]()
    while pending:
        node = pending.pop()
        yield node
        path = blocks.path_of(node) if isinstance(node, (ast.Name, ast.Attribute)) else None
        if path is not None and path not in seen:
            seen.add(path)
            pending += [value for name, value in bindings if name == path]
        pending += [part for part in _parts(node) if isinstance(part, ast.expr)]


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """What goes into a value at once; a rank that a call is given as it is may be for its device, or for a test."""
    if isinstance(node, ast.Call):
        name = last_name(node.func)
        given = [*node.args, *(item.value for item in node.keywords if item.arg not in ("device", "map_location"))]
        yield from (
            ()
            if name in ("to", "cuda")
            else (
                item
                for item in given
                if name in _SEEDING or not (isinstance(item, (ast.Name, ast.Attribute)) and names_rank(item))
            )
        )
        if isinstance(node.func, ast.Attribute):
            yield node.func.value
    elif isinstance(node, ast.IfExp):
        yield from (node.body, node.orelse)
    elif not isinstance(node, (ast.Compare, ast.JoinedStr, ast.Lambda)):
        yield from ast.iter_child_nodes(node)


_SEEDING = frozenset({"manual_seed", "seed", "default_rng", "RandomState", "Random"})


def is_shuffled_whole(own: OwnDdp, dataset: ast.expr, site: Site) -> bool:
    """Whether a loader shuffles a data set of which nothing is known but that its function makes it for all processes.

    Torch refuses to shuffle what gives no samples by their index.
    """
    assert isinstance(site.node, ast.Call)
    made = _made(dataset, site)
    return bool(made) and literal(given_to_loader(site.node, "shuffle")) is True and not any(map(names_rank, made))


def split_by_each(own: OwnDdp, dataset: ast.expr, site: Site) -> ast.Call | None:
    """The call that splits off a data set at random in another way on each process, for all that is known."""
    for value in _made(dataset, site):
        if not isinstance(value, ast.Call) or not own.program.callee_names(value, site.scope) & SPLITS:
            continue
        generator = keyword(value, "generator")
        if generator is not None and not names_rank(generator):
            continue
        seeds = [call.node for call in own.program.calls_to(_SEEDS) if isinstance(call.node, ast.Call)]
        if not seeds or any(names_rank(given) for call in seeds for given in values_given(call)):
            return value
    return None


def training_test(own: OwnDdp, site: Site) -> str | None:
    """The test that tells training from evaluation in a function that makes the loaders of both; None without one.

    A parameter says it, which is ``"train"`` in some calls and ``"val"`` in others, or true and false.
    """
    info = own.program.function_of(site.body)
    if info is None:
        return None
    callers = own.program.flow.callers(info)
    for name in info.parameters if len(callers) > 1 else ():
        if any(name in blocks.writes(item) for item in blocks.own_parts(site.body) if isinstance(item, ast.stmt)):
            continue
        given = {literal(info.argument_or_default(caller.call, name)) for caller in callers}
        if given == {True, False} and all(isinstance(item, bool) for item in given):
            if name in _SAYS_TRAINING:
                return name
        words = sorted(item for item in given if isinstance(item, str))
        training = [word for word in words if "train" in word.lower() and not NAMED_EVALUATION.search(word)]
        others = [word for word in words if word not in training]
        if len(words) == len(given) and len(training) == 1 and others and all(map(NAMED_EVALUATION.search, others)):
            return f'{name} == "{training[0]}"'
    return None


_SAYS_TRAINING = frozenset({"train", "is_train", "training", "is_training", "train_mode", "for_training"})


def _made(dataset: ast.expr, site: Site) -> list[ast.expr]:
    """What the function around a loader gives the variable of its data set, alone or among others."""
    path = blocks.path_of(dataset) if isinstance(dataset, (ast.Name, ast.Attribute)) else None
    return [
        value
        for node in blocks.walk_body(site.body)
        if path is not None and isinstance(node, ast.Assign)
        for target in node.targets
        for item, value in blocks.unpacked(target, node.value)
        if isinstance(item, (ast.Name, ast.Attribute)) and blocks.path_of(item) == path
    ]
