"""Methods that nothing in the program can call: their names are written for objects of other classes alone."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cached_property

from amp_rules.flow.statements import is_main_guard
from amp_rules.flow.values import ClassInfo
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.scopes import FunctionNode
from amp_rules.source.syntax import last_name, names_written, walk
from amp_rules.torch.gradients import RECORDS_NOTHING
from amp_rules.torch.models import CALLED_BY_MODULE

_BASES_THAT_CALL_NOTHING = frozenset({"abc.ABC", "builtins.object"})
"""Classes of libraries that call no method of their subclasses."""

_KINDS = frozenset({"classmethod", "staticmethod"})
"""Decorators that give a method to nobody: its name is asked of its class."""

_FINDS_ANY = frozenset({"Fire", "attrgetter", "dir", "eval", "exec", "getmembers", "methodcaller"})
"""By these a method may be found without its name being written."""

Written = tuple[Module, ast.AST]


def uncalled_methods(program: Program, functions: Iterable[ast.AST]) -> set[ast.AST]:
    """The methods that nothing calls; ``functions`` are those that nothing calls either.

    A name is written for another class where it is asked of ``self`` in a method of a class that has no subclass in
    common with this one: ``self.backward_G()`` beside a ``backward_G`` of a sibling.
    """
    return _Methods(program).uncalled(set(functions))


def only_without_gradients(decorators: Iterable[ast.expr]) -> bool:
    """Whether decorators only keep gradients from being recorded: nobody else gets hold of the function by them."""
    made = (item.func if isinstance(item, ast.Call) else item for item in decorators)
    return all(last_name(item) in RECORDS_NOTHING for item in made)


class _Methods:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._relatives: dict[ClassInfo, set[ClassInfo]] = {}

    def uncalled(self, found: set[ast.AST]) -> set[ast.AST]:
        given = set(found)
        methods = {info.node: info for info in self._candidates()}
        written = self._written({info.name for info in methods.values()}) if methods else None
        if written is None:
            return set()
        while added := {
            node
            for node, info in methods.items()
            if node not in found
            and self._is_called_by(info, found)
            and all(self._is_none(info, place, found) for place in written[info.name])
        }:
            found |= added
        return found - given

    def _is_called_by(self, info: FunctionFacts, dead: set[ast.AST]) -> bool:
        """Whether nothing but dead functions calls a method, as far as was followed."""
        return not any(
            dead.isdisjoint(caller.scope.module.ancestors(caller.call)) for caller in self._program.flow.callers(info)
        )

    def _candidates(self) -> Iterator[FunctionFacts]:
        """Yield plain methods of known classes."""
        for info in self._program.flow.functions.values():
            owner = self._program.flow.class_of(info)
            if owner is None or info.node not in self._in_files or info.name.startswith("__"):
                continue
            if not only_without_gradients(item for item in info.decorator_list if last_name(item) not in _KINDS):
                continue
            if all(self._is_known(relative, info.name) for relative in self._relatives_of(owner)):
                yield info

    @cached_property
    def _in_files(self) -> set[ast.AST]:
        """The methods of classes that stand in a file's own suite."""
        return {
            method
            for module in self._program.flow.modules
            for item in module.tree.body
            if isinstance(item, ast.ClassDef)
            for method in item.body
        }

    def _is_known(self, info: ClassInfo, name: str) -> bool:
        """Whether all bases of a class are known, and those of libraries call no method of a name."""
        unknown = info.external_bases() - _BASES_THAT_CALL_NOTHING
        if name not in CALLED_BY_MODULE:
            unknown -= {"torch.nn.Module"}
        return len(info.bases) >= len(info.facts.node.bases) and not unknown

    def _relatives_of(self, info: ClassInfo) -> set[ClassInfo]:
        """The classes that an object of this one may be of too: its bases, its subclasses, and their bases."""
        known = self._relatives.get(info)
        if known is None:
            families = [other.mro() for other in self._program.flow.classes.values()]
            known = {other for family in families if info in family for other in family}
            self._relatives[info] = known
        return known

    # ---- where names are written -----------------------------------------------------------------------------------

    def _written(self, names: set[str]) -> dict[str, list[Written]] | None:
        """Where each name may be asked for, in code, as a text, or put together; None where anything may be."""
        found: dict[str, list[Written]] = {name: [] for name in names}
        for module, node in self._running():
            if isinstance(node, ast.Call) and _finds_any(node.func):
                return None
            for name in names.intersection(names_written(node)):
                found[name].append((module, node))
            made = _made_name(node)
            if made is not None and _may_be_called(module, node):
                for name in names:
                    if _may_name(made, name):
                        found[name].append((module, node))
        return found

    def _running(self) -> Iterator[Written]:
        """Yield the nodes of the files, without what an imported one only runs where it is the script."""
        for module in self._program.flow.modules:
            for statement in module.tree.body:
                is_guard = isinstance(statement, ast.If) and is_main_guard(statement)
                if not is_guard or module is self._program.entry:
                    yield from ((module, node) for node in walk(statement))

    def _is_none(self, info: FunctionFacts, place: Written, dead: set[ast.AST]) -> bool:
        """Whether a place cannot stand for a method: it never runs, or is about objects of another class."""
        module, node = place
        around = set(module.ancestors(node))
        if info.node in around or not dead.isdisjoint(around):
            return True
        if isinstance(node, ast.Name):
            # A bare name is a method in the suite of its class alone.
            return not isinstance(next(filter(_is_scope, module.ancestors(node)), None), ast.ClassDef)
        owner = self._program.flow.class_of(info)
        assert owner is not None
        asked = node.value if isinstance(node, ast.Attribute) else node.args[0] if isinstance(node, ast.Call) else None
        if asked is not None and self._is_of_others(asked, self._relatives_of(owner)):
            return True
        cls = self._class_of_self(module, asked) if asked is not None else None
        return cls is not None and cls not in self._relatives_of(owner)

    def _is_of_others(self, node: ast.expr, relatives: set[ClassInfo]) -> bool:
        """Whether an expression is known to hold objects of other classes alone."""
        located = self._program.locate(node)
        values = self._program.flow.values(node, located[1]) if located is not None else set()
        return bool(values) and all(
            value.kind in ("external", "object") or (value.kind == "instance" and value.ref not in relatives)
            for value in values
        )

    def _class_of_self(self, module: Module, node: ast.expr) -> ClassInfo | None:
        """The class in whose method an expression is ``self``; None for anything else."""
        if not isinstance(node, ast.Name):
            return None
        for parent in module.ancestors(node):
            if not isinstance(parent, FunctionNode):
                continue
            if node.id in {part.arg for part in walk(parent.args) if isinstance(part, ast.arg)}:
                info = self._program.flow.functions.get(parent)
                if info is None or info.node not in self._in_files or info.receiver != node.id:
                    return None
                stored = (part for part in walk(parent) if isinstance(part, ast.Name) and part.id == node.id)
                owner = self._program.flow.class_of(info)
                is_plain = all(isinstance(part.ctx, ast.Load) for part in stored)
                return owner if owner is not None and is_plain and all(map(self._is_known_base, owner.mro())) else None
        return None

    def _is_known_base(self, info: ClassInfo) -> bool:
        return len(info.bases) >= len(info.facts.node.bases)


def _is_scope(node: ast.AST) -> bool:
    return isinstance(node, (FunctionNode, ast.ClassDef))


def _finds_any(called: ast.expr) -> bool:
    """Whether a function may find any method; ``model.eval()`` finds none."""
    return last_name(called) in _FINDS_ANY and not (isinstance(called, ast.Attribute) and called.attr == "eval")


def _made_name(node: ast.AST) -> ast.expr | None:
    """The name that ``getattr`` is given, if that is no literal."""
    if not (isinstance(node, ast.Call) and last_name(node.func) == "getattr" and len(node.args) > 1):
        return None
    return None if isinstance(node.args[1], ast.Constant) else node.args[1]


def _may_be_called(module: Module, node: ast.AST) -> bool:
    """Whether what ``getattr`` gives may be called: it is more than compared, asked for a part, or kept as an item."""
    parent = module.parents[node]
    if isinstance(parent, (ast.Compare, ast.Attribute, ast.Subscript, ast.Expr)):
        return False
    if isinstance(parent, ast.Assign):
        if all(isinstance(target, ast.Subscript) for target in parent.targets):
            return False
        return not (len(parent.targets) == 1 and _is_asked_for_items(module, parent.targets[0]))
    return not (
        isinstance(parent, ast.Call) and node in parent.args and blocks.path_of(parent.func) in ("float", "len")
    )


def _is_asked_for_items(module: Module, target: ast.expr) -> bool:
    """Whether a variable of a function is only asked for parts: ``part = getattr(net, name)``, then ``part.weight``."""
    around = next((parent for parent in module.ancestors(target) if isinstance(parent, FunctionNode)), None)
    if around is None or not isinstance(target, ast.Name):
        return False
    named = [node for node in walk(around) if isinstance(node, ast.Name) and node.id == target.id]
    scopes = (ast.Global, ast.Nonlocal)
    if any(isinstance(node, scopes) and target.id in node.names for node in walk(around)):
        return False
    return all(isinstance(node.ctx, ast.Store) or _is_indexed_or_iterated(module.parents[node], node) for node in named)


def _is_indexed_or_iterated(parent: ast.AST, node: ast.Name) -> bool:
    if isinstance(parent, (ast.Attribute, ast.Subscript)):
        return parent.value is node
    if isinstance(parent, ast.Call) and last_name(parent.func) in ("getattr", "hasattr"):
        return parent.args[0] is node  # what that gives is looked at in its turn
    return isinstance(parent, (ast.For, ast.comprehension)) and parent.iter is node


def _may_name(made: ast.expr, name: str) -> bool:
    """Whether a text that is put together may be a name: ``"net" + part`` is none but those that begin with that."""
    first = last = made
    while isinstance(first, ast.BinOp) or (isinstance(first, ast.JoinedStr) and first.values):
        first = first.left if isinstance(first, ast.BinOp) else first.values[0]
    while isinstance(last, ast.BinOp) or (isinstance(last, ast.JoinedStr) and last.values):
        last = last.right if isinstance(last, ast.BinOp) else last.values[-1]
    begins = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""
    ends = last.value if isinstance(last, ast.Constant) and isinstance(last.value, str) else ""
    return name.startswith(begins.partition("%")[0].partition("{")[0]) and name.endswith(ends)
