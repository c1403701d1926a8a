"""Numbers that a script works out of a count of steps over all epochs: an annealed weight, a temperature, a warm-up.

A remainder, as in ``step % 500 == 0``, only chooses steps, and stands with what is done every so many of them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from amp_rules.flow.cells import CellKey
from amp_rules.plan.batch_loops import BatchLoop
from amp_rules.plan.training_loops import added_to, counts_up
from amp_rules.plan.ways_to_show import SHOWING_OR_WRITING
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import called_name, is_text

_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Pow)

_NAMES_FILES = frozenset({"join", "save", "str", "savefig", "save_image", "open"})
"""Functions and methods that make a name of a number, or write a file that it names."""


def worked_out(
    program: Program, loop: BatchLoop, counters: set[str], attributes: set[CellKey]
) -> Iterator[tuple[Site, ast.expr]]:
    """Yield expressions in which a loop, or a function that it calls, computes with a counter or compares it.

    Args:
        program: the program.
        loop: a loop over the batches of an epoch.
        counters: variables of the loop's function that count steps over all epochs.
        attributes: attributes that what the loop calls counts up.
    """
    # What the loop itself counts up in an attribute is read by the functions that it calls, too.
    counted = [node for node in loop.inner if isinstance(node, ast.Attribute) and blocks.path_of(node) in counters]
    keys = {program.flow.key(blocks.reading(node), loop.scope) for node in counted}
    attributes = attributes | {key for key in keys if key is not None}
    yield from _within(program, loop, loop.inner, _sums(loop.inner), counters, attributes)
    called = program.called_from(loop.inner) if attributes else set()
    # A meter adds in one method, and divides by how often it did in another.
    sums = {body: _sums(program.nodes_of(body)) for body in called}
    kept = {path for paths in sums.values() for path in paths if path.startswith("self.")}
    for body in called:
        scope = program.flow.scopes[body]
        site = Site(scope.module, scope, body, body)
        nodes = program.nodes_of(body)
        names = _names_of(program, nodes, scope, attributes)
        yield from _within(program, site, nodes, sums[body] | kept, names, attributes)


def _names_of(program: Program, nodes: Iterable[ast.AST], scope: Scope, attributes: set[CellKey]) -> set[str]:
    """The variables of a function that may be given one of the attributes: ``step = self.step``.

    Also by a choice, ``step = self.step if step is None else step``.
    """
    return {
        target.id
        for node in nodes
        if isinstance(node, ast.Assign)
        for value in _chosen(node.value)
        if isinstance(value, ast.Attribute) and program.flow.key(value, scope) in attributes
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _chosen(value: ast.expr) -> Iterator[ast.expr]:
    """What an expression may be, where it chooses: ``a if test else b``, ``a or b``."""
    if isinstance(value, ast.IfExp):
        yield from (*_chosen(value.body), *_chosen(value.orelse))
    elif isinstance(value, ast.BoolOp):
        for item in value.values:
            yield from _chosen(item)
    else:
        yield value


def _within(
    program: Program,
    site: Site,
    nodes: list[ast.AST],
    sums: set[str],
    counters: set[str],
    attributes: set[CellKey],
    *,
    calls: bool = True,
) -> Iterator[tuple[Site, ast.expr]]:
    shown: dict[str, bool] = {}
    for node in nodes:
        if _is_read(program, node, site.scope, counters, attributes):
            found = _computes(site, node, sums) or (_computing_call(program, site, node) if calls else None)
            if found is not None and not _is_only_shown(site, found, nodes, shown):
                yield Site(site.module, site.scope, site.body, found), found


def _sums(nodes: Iterable[ast.AST]) -> set[str]:
    """What is added up, other than a count."""
    return {path for node in nodes if not counts_up(node) for path in added_to(node)}


def _is_read(program: Program, node: ast.AST, scope: Scope, counters: set[str], attributes: set[CellKey]) -> bool:
    if not isinstance(getattr(node, "ctx", None), ast.Load):
        return False
    if isinstance(node, ast.Name):
        return node.id in counters
    return isinstance(node, ast.Attribute) and bool(attributes) and program.flow.key(node, scope) in attributes


def _computes(site: Site, node: ast.AST, sums: set[str]) -> ast.expr | None:
    """The smallest expression that computes with a counter or compares it; None where it only shows or counts."""
    found: ast.expr | None = None
    child = node
    for parent in site.module.ancestors(node):
        if isinstance(parent, ast.stmt):
            return None if counts_up(parent) else found
        if isinstance(parent, ast.JoinedStr) or (isinstance(parent, ast.Subscript) and child is parent.slice):
            return None
        if isinstance(parent, ast.BinOp):
            if isinstance(parent.op, ast.Mod) or is_text(parent.left):
                return None  # every so many steps, or a text
            if isinstance(parent.op, (ast.Div, ast.FloorDiv)) and child is parent.right:
                if blocks.touches(blocks.reads(parent.left), sums):
                    return None  # a mean over the steps
            if isinstance(parent.op, ast.Div) and _is_in_both(parent, node):
                return None  # a running mean: `(mean * n + x) / (n + 1)`
            if found is None and isinstance(parent.op, _ARITHMETIC) and not _is_next(parent):
                found = parent
        elif isinstance(parent, ast.Compare):
            others = [item for item in (parent.left, *parent.comparators) if item is not child]
            if found is None and not any(
                isinstance(item, ast.Constant) and item.value in (0, 1, None) for item in others
            ):
                found = parent
        elif isinstance(parent, ast.Call) and child is not parent.func:
            if called_name(parent) in SHOWING_OR_WRITING | _NAMES_FILES:
                return None
        child = parent
    return found


def _is_in_both(quotient: ast.BinOp, counter: ast.AST) -> bool:
    path = blocks.path_of(counter)
    return path in blocks.reads(quotient.left) and path in blocks.reads(quotient.right)


def _computing_call(program: Program, site: Site, node: ast.AST) -> ast.Call | None:
    """The call of a function that is given a counter and computes with it: ``weight_at(step)``."""
    parent = site.module.parents.get(node)
    given = node
    if isinstance(parent, ast.BinOp) and _is_next(parent):
        given, parent = parent, site.module.parents.get(parent)
    if isinstance(parent, ast.keyword):
        parent = site.module.parents.get(parent)
    if not isinstance(parent, ast.Call) or given is parent.func:
        return None
    for info in program.flow.callees(parent):
        name = next((name for name, value in info.bound(parent) if value is given), None)
        scope = program.flow.scopes[info.node]
        place = Site(scope.module, scope, info.node, info.node)
        nodes = program.nodes_of(info.node)
        if name is not None and any(_within(program, place, nodes, _sums(nodes), {name}, set(), calls=False)):
            return parent
    return None


def _is_next(node: ast.BinOp) -> bool:
    """``step + 1``."""
    sides = (node.left, node.right)
    return isinstance(node.op, (ast.Add, ast.Sub)) and any(
        isinstance(side, ast.Constant) and side.value == 1 for side in sides
    )


def _is_only_shown(site: Site, found: ast.expr, nodes: list[ast.AST], shown: dict[str, bool]) -> bool:
    """Whether the variable that gets a number is read by nothing but what shows it."""
    statement = blocks.statement_of(site.module, found)
    if not isinstance(statement, ast.Assign):
        return False
    names = {target.id for target in statement.targets if isinstance(target, ast.Name)}
    if len(names) != len(statement.targets):
        return False
    for name in names - shown.keys():
        reads = [node for node in nodes if isinstance(node, ast.Name) and node.id == name]
        shown[name] = all(
            any(
                isinstance(parent, ast.JoinedStr)
                or (isinstance(parent, ast.Call) and called_name(parent) in SHOWING_OR_WRITING | _NAMES_FILES)
                for parent in site.module.ancestors(node)
            )
            for node in reads
            if isinstance(node.ctx, ast.Load)
        )
    return all(shown[name] for name in names)
