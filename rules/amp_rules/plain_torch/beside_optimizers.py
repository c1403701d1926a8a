"""Where the scaler can be made beside the optimizers that it steps, before everything that uses it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from amp_rules.plain_torch.uses import Use
from amp_rules.roles.kinds import is_optimizer
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import FunctionNode


@dataclass(frozen=True)
class Origin:
    """Where a variable is made.

    Attributes:
        module: the file.
        body: the function, or the file itself.
        statement: the statement below which it is made; None where the script starts.
        is_by_calls: whether the statement calls what makes an optimizer.
    """

    module: Module
    body: ast.AST
    statement: ast.stmt | None = None
    is_by_calls: bool = False


_Chain = dict[ast.AST, tuple[Module, ast.AST]]
"""By the bodies that make something, the innermost first: the file, and the expression there that makes it."""


def origins(program: Program, uses: Sequence[Use]) -> Iterator[Origin]:
    """Yield the places below all optimizers that a scaler steps, the innermost first; none where some are unknown.

    Args:
        program: the program in the runtime's words.
        uses: what uses the scaler.
    """
    sites: dict[ast.AST, None] = {}
    for use in uses:
        if use.path != "scaler.step":
            continue
        if use.call is None or not use.call.args:
            return
        made = [value.site for value in program.flow.values(use.argument, use.scope) if is_optimizer(value)]
        if not made or not all(isinstance(site, ast.Call) for site in made):
            return
        sites |= {site: None for site in made if site is not None}
    chains = [_chain(program, site) for site in sites]
    for body in chains[0] if chains else ():
        if all(body in chain for chain in chains):
            module = chains[0][body][0]
            for statement in _below_all(module, [chain[body][1] for chain in chains]):
                yield Origin(module, body, statement, any(next(iter(chain)) is not body for chain in chains))


def _chain(program: Program, site: ast.AST) -> _Chain:
    """The body that makes an optimizer, and those that have it made by a call of their own."""
    found: _Chain = {}
    module, node = program.module_of(site), site
    while module is not None and (body := blocks.body_of(module, node)) not in found:
        found[body] = module, node
        info = program.flow.functions.get(body)
        callers = program.flow.callers(info) if info is not None else []
        if len(callers) != 1:
            break
        module, node = callers[0].scope.module, callers[0].call
    return found


def _below_all(module: Module, nodes: Sequence[ast.AST]) -> Iterator[ast.stmt]:
    """Yield, for each suite that holds all the nodes, the last of its statements that does."""
    chains = [_statements(module, node) for node in nodes]
    for suite in chains[0]:
        if all(suite in chain for chain in chains):
            _, first = suite
            yield blocks.place(module, first).suite[max(chain[suite] for chain in chains)]


def _statements(module: Module, node: ast.AST) -> dict[tuple[ast.AST, ast.stmt], int]:
    """Where a node is in each suite around it, up to its body: suites are known by owner and first statement."""
    statement = blocks.statement_of(module, node)
    found = {}
    for item in (statement, *blocks.enclosing(module, statement)):
        place = blocks.place(module, item)
        if isinstance(place.parent, ast.ClassDef):
            break
        found[place.parent, place.suite[0]] = place.index
    return found


def comes_first(program: Program, origin: Origin, users: set[ast.AST]) -> bool:
    """Whether a statement runs before all that use a variable.

    Args:
        program: the program.
        origin: the statement.
        users: the uses, and the calls that pass the variable on.
    """
    assert origin.statement is not None
    place = blocks.place(origin.module, origin.statement)
    below: set[ast.AST] = set(place.suite[place.index + 1 :])
    runs = program.closure(lambda node: node in users)
    wanted: list[ast.AST | None] = [
        node for node in blocks.walk_body(origin.body) if isinstance(node, ast.Call) and runs(node)
    ]
    wanted += [_in_body(origin, user) for user in users if origin.module is program.module_of(user)]
    return all(
        item in below or any(parent in below for parent in origin.module.ancestors(item))
        for item in wanted
        if item is not None
    )


def _in_body(origin: Origin, user: ast.AST) -> ast.AST | None:
    """What stands in the body itself: a user, or the function around it; None where it is outside of the body.

    Functions of the file's own level are left out: what calls them is looked at.
    """
    found = user
    for parent in origin.module.ancestors(user):
        if parent is origin.body:
            is_function_of_file = isinstance(origin.body, ast.Module) and found is not user
            return None if is_function_of_file else found
        if isinstance(parent, FunctionNode):
            found = parent
    return None
