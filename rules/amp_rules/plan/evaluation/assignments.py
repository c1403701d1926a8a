"""Which variables are surely assigned where they are read, statement by statement."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from amp_rules.source import blocks


class Unclear(Exception):
    """Something was not understood: a node, and a sentence without a full stop that names it."""

    def __init__(self, node: ast.AST, why: str) -> None:
        super().__init__(why)
        self.node = node
        self.why = why


def targets_of(target: ast.expr) -> Iterator[ast.expr]:
    """Yield what a target assigns, one by one."""
    if isinstance(target, (ast.Tuple, ast.List)):
        for part in target.elts:
            yield from targets_of(part)
    elif isinstance(target, ast.Starred):
        yield from targets_of(target.value)
    else:
        yield target


def names_in(target: ast.expr) -> set[str]:
    """The variables that a target assigns."""
    return {part.id for part in targets_of(target) if isinstance(part, ast.Name)}


def loaded(node: ast.AST) -> Iterator[ast.Name]:
    """Yield the variables that an expression reads, without those that its comprehensions and lambdas make."""
    made: set[str] = set()
    names: list[ast.Name] = []
    for part in ast.walk(node):
        if isinstance(part, ast.comprehension):
            made |= names_in(part.target)
        elif isinstance(part, ast.Lambda):
            made |= {item.arg for item in [*part.args.args, *part.args.kwonlyargs]}
        elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
            names.append(part)
    yield from (name for name in names if name.id not in made)


class Reads:
    """The first reads of variables that nothing has assigned before, in a run of statements.

    Args:
        names: the variables that matter.
    """

    def __init__(self, names: set[str]) -> None:
        self._names = names
        self.found: list[ast.Name] = []

    def run(self, statements: Iterable[ast.stmt], assigned: set[str], until: ast.AST | None = None) -> set[str] | None:
        """What is assigned after the statements; None where they do not go on to the next one.

        A loop counts as one that has a round: what its body assigns is assigned.
        """
        for item in statements:
            if item is until:
                return None
            after = self._one(item, assigned, until)
            if after is None:
                return None
            assigned = after
        return assigned

    def _one(self, item: ast.stmt, assigned: set[str], until: ast.AST | None) -> set[str] | None:
        if isinstance(item, (ast.Return, ast.Raise, ast.Continue, ast.Break)):
            self._expressions(item, assigned)
            return None
        if isinstance(item, ast.If):
            self._read(item.test, assigned)
            ends = [self.run(item.body, set(assigned), until), self.run(item.orelse, set(assigned), until)]
            return _meet(ends)
        if isinstance(item, (ast.For, ast.AsyncFor)):
            self._read(item.iter, assigned)
            inner = assigned | names_in(item.target)
            return (self.run([*item.body, *item.orelse], inner, until) or inner) | inner
        if isinstance(item, ast.While):
            self._read(item.test, assigned)
            return (self.run([*item.body, *item.orelse], set(assigned), until) or set()) | assigned
        if isinstance(item, (ast.With, ast.AsyncWith)):
            inner = set(assigned)
            for part in item.items:
                self._read(part.context_expr, inner)
                inner |= names_in(part.optional_vars) if part.optional_vars is not None else set()
            return self.run(item.body, inner, until)
        if isinstance(item, ast.Try):
            ends = [self.run([*item.body, *item.orelse], set(assigned), until)]
            ends += [self.run(handler.body, set(assigned), until) for handler in item.handlers]
            together = _meet(ends)
            return self.run(item.finalbody, together, until) if together is not None else None
        self._expressions(item, assigned)
        return assigned | {path for path in blocks.writes(item) if "." not in path and self._assigns(item, path)}

    @staticmethod
    def _assigns(item: ast.stmt, name: str) -> bool:
        targets = item.targets if isinstance(item, ast.Assign) else [getattr(item, "target", None)]
        return any(target is not None and name in names_in(target) for target in targets)

    def _expressions(self, item: ast.stmt, assigned: set[str]) -> None:
        self._read(item, assigned)
        if isinstance(item, ast.AugAssign) and isinstance(item.target, ast.Name):
            self._note(item.target, assigned)

    def _read(self, node: ast.AST, assigned: set[str]) -> None:
        for name in loaded(node):
            self._note(name, assigned)

    def _note(self, name: ast.Name, assigned: set[str]) -> None:
        if name.id in self._names and name.id not in assigned:
            self.found.append(name)


def _meet(ends: list[set[str] | None]) -> set[str] | None:
    going = [end for end in ends if end is not None]
    return set.intersection(*going) if going else None
