"""Where a program uses the runtime."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.resolver import names_of
from amp_rules.source.syntax import values_given
from amp_rules.text.runtime_vocabulary import RUNTIME, imported_runtime


@dataclass(frozen=True)
class Use(Site):
    """A name of the runtime in a program: ``amp.scaler.scale``.

    Attributes:
        node: the expression, the longest chain of attributes.
        path: its name without the package: ``scaler.scale``.
        call: the call of it, if it is called there.
    """

    node: ast.expr
    path: str
    call: ast.Call | None

    @property
    def whole(self) -> ast.expr:
        """The call, or the name where it is not called."""
        return self.call or self.node

    @property
    def argument(self) -> ast.expr:
        """The first argument of the call."""
        assert self.call is not None
        return self.call.args[0]

    @property
    def is_statement(self) -> bool:
        """Whether the call is a statement of its own."""
        return isinstance(self.module.parents[self.whole], ast.Expr)

    def keyword(self, name: str) -> ast.expr | None:
        """What a keyword of the call is given."""
        given = self.call.keywords if self.call else ()
        return next((item.value for item in given if item.arg == name), None)


def source_of(module: Module, node: ast.expr) -> str:
    """The whole source of an expression, on one line."""
    (line, start), (last, end) = module.start(node), module.end(node)
    return module.lines[line - 1][start:end] if line == last else ast.unparse(node)


def uses_of_runtime(program: Program) -> Iterator[Use]:
    """Yield every use of the runtime in the files of a program, those in functions that nothing calls too."""
    for module in program.flow.modules:
        name = imported_runtime(module)
        for node in module.nodes if name is not None else ():
            if isinstance(node, ast.Name) and node.id == name:
                yield _use(program, module, node)


def import_of_runtime(module: Module) -> ast.Import | None:
    """The statement that imports the runtime at the head of a file."""
    for node in module.tree.body:
        if isinstance(node, ast.Import) and any(alias.name == RUNTIME for alias in node.names):
            return node
    return None


def has_attribute(module: Module, name: str) -> bool:
    """Whether a file speaks of an attribute of that name, but for the runtime's."""
    runtime = imported_runtime(module)
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == name
        and not (isinstance(node.value, ast.Name) and node.value.id == runtime)
        for node in module.nodes
    )


def _use(program: Program, module: Module, name: ast.Name) -> Use:
    node: ast.expr = name
    parts = []
    while isinstance(parent := module.parents[node], ast.Attribute) and parent.value is node:
        parts.append(parent.attr)
        node = parent
    call = parent if isinstance(parent, ast.Call) and parent.func is node else None
    scope = program.flow.scopes.get(blocks.body_of(module, node)) or names_of(module).scope_of(node)
    return Use(module, scope, blocks.body_of(module, node), node, ".".join(parts), call)


def alike(starts: Sequence[Use]) -> bool:
    """Whether starts of two functions are the same call, whose arguments are constants."""
    calls = [use.call for use in starts if use.call is not None]
    given = [value for call in calls for value in values_given(call)]
    return (
        len(calls) == len({use.body for use in starts}) == 2
        and len({ast.dump(call) for call in calls}) == 1
        and all(isinstance(value, ast.Constant) for value in given)
        and not any(item.arg == "ddp" for call in calls for item in call.keywords)
    )
