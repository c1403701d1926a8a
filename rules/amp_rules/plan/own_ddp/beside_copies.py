"""Numbers of one process that are shown or decided on, while only a copy of them is put together with the others'."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.of_themselves import names_process
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.shares import Named, Shares
from amp_rules.plan.summed_terms import is_of_batch
from amp_rules.plan.ways_to_show import tells
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import last_name, values_given, walk
from amp_rules.torch.distributed import REDUCTIONS

_COPIES = frozenset({"tensor", "Tensor", "FloatTensor", "DoubleTensor", "as_tensor", "new_tensor", "clone"})
"""What makes another tensor of a number or a tensor."""

_MOVES = frozenset({"to", "cuda", "cpu", "float", "double", "detach"})


def beside_copies(own: OwnDdp, shares: Shares, told: Named) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first place where each such number, which is not ``told``, is shown, or else compared; then it is."""
    for exchange, copy, name in _exchanged_copies(own, shares):
        nodes = list(blocks.walk_body(exchange.body))
        if (exchange.body, name) in told or not _is_of_share(shares, nodes, name, copy):
            continue
        shown, compared = _shown(nodes, name, exchange), _compared(nodes, name, exchange)
        place = shown if shown is not None else compared
        if place is not None:
            told.add((exchange.body, name))
            text = (
                f"AMP233: `{name}` stays the number of one process: `{exchange.module.text(exchange.node)}` puts a copy"
            )
            does = "shown" if shown is not None else "decided on"
            text += f" of it together with the others', and what is {does} here is not that"
            if shown is not None and compared is not None:
                text += f"; `{exchange.module.text(compared)}` decides by it, too"
            yield exchange.module, place, text


def _exchanged_copies(own: OwnDdp, shares: Shares) -> Iterator[tuple[Site, str, str]]:
    """Yield the calls that exchange copies, each with what becomes the number of all, and of what it is a copy."""
    for site in own.program.calls_to(REDUCTIONS):
        given = site.node.args[0] if isinstance(site.node, ast.Call) and site.node.args else None
        if isinstance(given, ast.Name) and site.module in own.modules and site.body not in own.uncalled:
            name = _copied(list(blocks.walk_body(site.body)), given.id, site)
            if name is not None:
                yield site, given.id, name
    exchanges = shares.metrics.exchanges
    for call, body, scope in own.program.calls():
        site = Site(scope.module, scope, body, call)
        if scope.module not in own.modules or body in own.uncalled or not call.args:
            continue
        given, statement = _without_moves(call.args[0]), site.statement
        if isinstance(given, ast.Name) and isinstance(statement, ast.Assign) and exchanges.leaves_its_own(call):
            if exchanges.puts_together(call):
                for copy in sorted(blocks.writes(statement) - {given.id}):
                    yield site, copy, given.id


def _copied(nodes: list[ast.AST], copy: str, exchange: Site) -> str | None:
    """The variable of which another one, before it is exchanged, is a copy: ``t = torch.tensor(mean).cuda()``."""
    made = [node for node in nodes if isinstance(node, ast.Assign) and copy in blocks.writes(node)]
    before = [node for node in made if node.lineno < exchange.line]
    if not before:
        return None
    value = _without_moves(max(before, key=lambda node: node.lineno).value)
    if not isinstance(value, ast.Call) or last_name(value.func) not in _COPIES:
        return None
    of: ast.expr | None = value.args[0] if value.args else None
    if last_name(value.func) == "clone":
        of = value.func.value if isinstance(value.func, ast.Attribute) else None
    if isinstance(of, ast.List) and len(of.elts) == 1:
        of = of.elts[0]
    of = _without_moves(of) if of is not None else None
    return of.id if isinstance(of, ast.Name) and of.id != copy else None


def _without_moves(value: ast.expr) -> ast.expr:
    """``loss`` of ``loss.detach().to(device)``."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _MOVES:
        value = value.func.value
    return value


def _is_of_share(shares: Shares, nodes: list[ast.AST], name: str, copy: str) -> bool:
    """Whether a variable rests on the share of its process, and never gets what the copy has become."""
    of_copy = {copy}
    for _ in range(_HOPS):
        of_copy |= {
            path
            for node in nodes
            if isinstance(node, ast.Assign) and blocks.touches(of_copy, blocks.reads(node.value))
            for path in blocks.writes(node)
        }
    if name in of_copy:
        return False
    given = [node.value for node in nodes if isinstance(node, ast.Assign) and name in blocks.writes(node)]
    given += [node.value for node in nodes if isinstance(node, ast.AugAssign) and name in blocks.writes(node)]
    return any(is_of_batch(value, shares.ranks) for value in given)


_HOPS = 3


def _shown(nodes: list[ast.AST], name: str, exchange: Site) -> ast.Call | None:
    """The first call below an exchange of its copy that shows what a variable holds."""
    for node in nodes:
        if isinstance(node, ast.Call) and node.lineno > exchange.line and tells(node):
            given = values_given(node)
            if any(name in blocks.reads(value) for value in given) and not any(map(names_process, given)):
                return node
    return None


def _compared(nodes: list[ast.AST], name: str, exchange: Site) -> ast.Compare | None:
    """The first comparison there that decides by a variable."""
    tests = [node.test for node in nodes if isinstance(node, ast.If) and node.lineno > exchange.line]
    parts = (part for test in tests for part in walk(test))
    return next((part for part in parts if isinstance(part, ast.Compare) and name in blocks.reads(part)), None)
