"""What the rewrites of old PyTorch are given."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from amp_rules.plan import declining
from amp_rules.plan.context import Change
from amp_rules.plan.old_torch.python_versions import is_for_an_older_python
from amp_rules.plan.old_torch.tensors import Tensors
from amp_rules.plan.report import Refusal
from amp_rules.plan.rule import Rule
from amp_rules.roles.program import Program
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk
from amp_rules.text.actions import Action
from amp_rules.torch.gradients import LOOKS_UP_NAMES


@dataclass(frozen=True)
class Use:
    """An expression that means something of another package: the whole chain of attributes that does."""

    module: Module
    node: ast.Name | ast.Attribute
    target: str

    @property
    def parent(self) -> ast.AST:
        """The node around it."""
        return self.module.parents[self.node]

    @property
    def call(self) -> ast.Call | None:
        """The call of it, if it is called."""
        parent = self.parent
        return parent if isinstance(parent, ast.Call) and parent.func is self.node else None


@dataclass
class OldProgram:
    """One program between two rounds.

    Attributes:
        program: the program as the round before left it.
        modules: those of its files that may be changed.
        left: what was left alone and why, each with the code of the rewrite.
        refused: of that, what a current PyTorch refuses: the place, what it is and what to do.
    """

    program: Program
    modules: list[Module]
    left: list[tuple[str, Refusal]] = field(default_factory=list)
    refused: list[tuple[Module, ast.AST, str, str]] = field(default_factory=list)

    @cached_property
    def tensors(self) -> Tensors:
        """What is known of the program's tensors."""
        return Tensors(self.program)

    @cached_property
    def uses(self) -> list[Use]:
        """Every expression that means something of another package, in the order of files and lines.

        Not those that only an older Python comes to.
        """
        return [use for module in self.modules for use in self._uses(module)]

    def _uses(self, module: Module) -> Iterator[Use]:
        found = []
        for node in module.nodes:
            if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(node.ctx, ast.Load):
                continue
            parent = module.parents[node]
            if isinstance(parent, ast.Attribute) and isinstance(parent.ctx, ast.Load):
                # Only a chain that goes on as a name of the package is longer.
                if self.tensors.target(module, parent) is not None:
                    continue
            target = self.tensors.target(module, node)
            if target is not None and "." in target and not is_for_an_older_python(module, node):
                found.append(Use(module, node, target))
        return iter(sorted(found, key=lambda use: module.start(use.node)))

    def uses_of(self, *prefixes: str) -> Iterator[Use]:
        """The uses whose meaning begins so."""
        return (use for use in self.uses if use.target.startswith(prefixes))

    def nodes(self) -> Iterator[tuple[Module, ast.AST]]:
        """Every node of the files."""
        for module in self.modules:
            for node in module.nodes:
                yield module, node

    def source(self, module: Module, node: ast.AST) -> str:
        """The exact source of a node on one line; of several lines, as Python would write it."""
        (line, column), (end_line, end_column) = module.start(node), module.end(node)
        rows = module.lines[line - 1 : end_line]
        return rows[0][column:end_column] if len(rows) == 1 else ast.unparse(node)

    def refuse(self, rule: Rule, module: Module, node: ast.AST, message: str, recipe: str) -> None:
        """Notes a place that is left as it is, and that a current PyTorch refuses."""
        self.leave(rule, module, node, message, recipe)
        self.refused.append((module, node, message, recipe))

    def leave(self, rule: Rule, module: Module, node: ast.AST, message: str, recipe: str) -> None:
        """Notes a place that is left as it is."""
        why = declining.OLD_PLACE
        found = Refusal(module.path, module.span(node), why.code, why.name, why.unit, message, recipe)
        self.left.append((rule.code, found))

    def binds(self, module: Module, name: str) -> bool:
        """Whether the file gives a name to something of its own."""
        return any(key[1] == name for key in self.tensors.definitions(module))

    def wanted_elsewhere(self, module: Module, name: str) -> bool:
        """Whether another file of the program takes a name from this one."""
        return any(name in names for other, names in self._wanted.items() if other is not module)

    def looked_up(self, module: Module, name: str) -> bool:
        """Whether the file may find a name of its own by a text: ``globals()["xavier_uniform"]``, ``eval(args.init)``.

        That is so where it looks up names at all, and a text of the program has this one in it, or begins or ends it;
        and where nothing else in the file reads the name, which is there to be looked up then.
        """
        looks = [*self._look_ups(module)]
        if not looks:
            return False
        if not any(isinstance(node, ast.Name) and node.id == name for node in module.nodes):
            return True
        parts = {text.strip("%s{} ()") for node in looks for text in _texts(walk(_whole(module, node)))}
        if any(part and (name.startswith(part) or name.endswith(part)) for part in parts):
            return True
        word = re.compile(rf"\b{re.escape(name)}\b")
        return any(word.search(text) for other in self.program.flow.modules for text in _texts(other.nodes))

    def _look_ups(self, module: Module) -> Iterator[ast.expr]:
        for node, _, scope in self.program.nodes():
            if scope.module is module and isinstance(node, (ast.Name, ast.Attribute)):
                if self.program.names(node, scope) & LOOKS_UP_NAMES:
                    yield node

    @cached_property
    def _wanted(self) -> dict[Module, set[str]]:
        return {module: self._wanted_by(module) for module in self.program.flow.modules}

    def _wanted_by(self, module: Module) -> set[str]:
        """Names that a file may take from other files of the project."""
        found: set[str] = set()
        star = False
        names = self.tensors.names[module]
        find = self.program.project.find
        outside: dict[str, bool] = {}

        def is_outside(name: str) -> bool:
            if name not in outside:
                outside[name] = find(module, name) is None
            return outside[name]

        for node in module.parents:
            if isinstance(node, ast.ImportFrom) and find(module, node.module or "", node.level) is not None:
                star = star or any(alias.name == "*" for alias in node.names)
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.Attribute) and not any(
                is_outside(target.split(".")[0]) for target in names.targets(node)
            ):
                found.add(node.attr)
        if star:
            found |= {node.id for node in module.nodes if isinstance(node, ast.Name)}
        return found


def _texts(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The strings among some nodes."""
    return (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def _whole(module: Module, node: ast.AST) -> ast.AST:
    """The whole expression that one is a part of."""
    while isinstance(parent := module.parents.get(node), (ast.expr, ast.keyword)):
        node = parent
    return node


def change(rule: Rule, module: Module, node: ast.AST, message: str, *actions: Action) -> Change:
    """An edit of old PyTorch."""
    return Change(rule, module, node, message, actions)
