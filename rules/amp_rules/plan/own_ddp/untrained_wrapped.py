"""Models that an optimizer holds and no wrapper has, beside a wrapper of one that nothing trains, as a teacher."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.given_models import ASKED
from amp_rules.flow.values import Value
from amp_rules.plan.own_ddp.averaging import may_average
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.absent import never_runs
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import argument_at
from amp_rules.source.modules import Module
from amp_rules.source.syntax import last_name, walk
from amp_rules.torch.idioms import NAMED_AVERAGES_GRADIENTS
from amp_rules.torch.wrappers import CONVERTS_BATCH_NORM, DATA_PARALLEL

_KEEPS_WEIGHTS = DATA_PARALLEL | CONVERTS_BATCH_NORM | {"apex.amp.initialize"}


def untrained_wrapped(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield where the model that is trained is made: the script wraps another, and each process trains its own.

    All of it stands in one body, where each variable is known by what it is assigned.
    """
    program = own.program
    trained = program.trained if own.wraps else set()
    bodies = {wrap.body for wrap in own.wraps}
    if not trained or len(bodies) != 1 or any(wrap.body in own.uncalled for wrap in own.wraps):
        return
    wrapped: dict[str, Site] = {}
    for wrap in own.wraps:
        assert isinstance(wrap.node, ast.Call)
        given = argument_at(wrap.node, "module", 0)
        if not isinstance(given, ast.Name) or program.flow.values(given, wrap.scope) & trained:
            return
        wrapped[given.id] = wrap
    first = next(iter(wrapped.values()))
    names = _held(own, first, trained)
    if not names or may_average(program):
        return
    sources = _sources(first.body)
    if any(_meet(name, other, sources) for name in names for other in wrapped):
        return
    for name, made in names.items():
        if not _may_be_joined(own, first, name):
            text = f"`{name}` is trained and in no DistributedDataParallel, as `{next(iter(wrapped))}` is, which no"
            yield (
                first.module,
                made,
                f"{text} optimizer holds: nothing averages its gradients over the processes, and each goes on with "
                "weights of its own",
            )


def _held(own: OwnDdp, site: Site, trained: set[Value]) -> dict[str, ast.AST]:
    """The variables of a body that hold trained models and whose parameters are asked for there, and what makes each.

    Nothing where a trained model is not one of them: it may be the one that is wrapped.
    """
    found: dict[str, ast.AST] = {}
    for value in sorted(trained, key=lambda item: getattr(item.site, "lineno", 0)):
        if not isinstance(value.site, ast.Call) or value.site not in site.module.parents:
            return {}
        statement = blocks.statement_of(site.module, value.site)
        if not isinstance(statement, ast.Assign) or blocks.body_of(site.module, statement) is not site.body:
            return {}
        target = statement.targets[0]
        if len(statement.targets) != 1 or not isinstance(target, ast.Name):
            return {}
        is_run = not never_runs(own.program.flow, site.module, statement)
        if is_run and own.several_alone(site.module, statement) is not False:
            found.setdefault(target.id, value.site)
    asked = {
        blocks.path_of(node.value)
        for node in blocks.walk_body(site.body)
        if isinstance(node, ast.Attribute) and node.attr in ASKED
    }
    return found if set(found) <= asked else {}


def _sources(body: ast.AST) -> dict[str, set[str]]:
    """The variables that go into each variable of a body, by all that it is assigned."""
    found: dict[str, set[str]] = {}
    for node in blocks.walk_body(body):
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and node.value is not None:
            read = {part.id for part in walk(node.value) if isinstance(part, ast.Name)}
            for path in blocks.writes(node):
                found.setdefault(path.partition(".")[0], set()).update(read)
    return found


def _meet(one: str, two: str, sources: dict[str, set[str]]) -> bool:
    return one in _all_sources(two, sources) or two in _all_sources(one, sources)


def _all_sources(name: str, sources: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    pending = [name]
    while pending:
        for source in sources.get(pending.pop(), ()):
            if source not in found:
                found.add(source)
                pending.append(source)
    return found


def _may_be_joined(own: OwnDdp, site: Site, name: str) -> bool:
    """Whether a library is given a model and may have its gradients averaged: ``accelerator.prepare(student)``."""
    for call, body, scope in own.program.calls():
        if body is not site.body or not any(
            isinstance(given, ast.Name) and given.id == name
            for item in (*call.args, *(part.value for part in call.keywords))
            for given in ([*item.elts] if isinstance(item, (ast.List, ast.Tuple)) else [item])
        ):
            continue
        if own.program.names(call.func, scope) & _KEEPS_WEIGHTS:
            continue
        if NAMED_AVERAGES_GRADIENTS.search(last_name(call.func)):
            return True
        is_known = bool(own.program.flow.callees(call))
        statement = blocks.statement_of(site.module, call)
        if not is_known and isinstance(statement, ast.Assign) and name in blocks.writes(statement):
            return True
        if any(word in last_name(call.func).lower() for word in ("ddp", "distribut", "parallel", "wrap")):
            return True
    return False
