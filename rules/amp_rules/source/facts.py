"""Facts of one file that need no analysis: what its names mean, its functions and its classes.

Both analyses stand on these: types and intervals (:mod:`amp_rules.lattice`) and what a name may hold
(:mod:`amp_rules.flow`). What an analysis finds out it keeps to itself. The points-to analysis adds, in tables of its
own:

- by function: who calls it, and whether anything reaches it;
- by class: the values that its bases may be where an expression does not name them (``class A(make_base())``), and what
  attributes are assigned from outside;
- scopes, as :attr:`amp_rules.source.resolver.Names.scopes` has them, with what star imports bind.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Protocol

from amp_rules.source.blocks import suites
from amp_rules.source.index import FileIndex, Function
from amp_rules.source.modules import Module
from amp_rules.source.resolver import names_of
from amp_rules.source.scopes import FunctionNode, arguments_of
from amp_rules.source.syntax import children, walk
from amp_rules.torch.models import is_module_base
from amp_rules.torch.optimizers import is_optimizer_name

_AUTOGRAD_FUNCTIONS = frozenset({"torch.autograd.Function", "torch.autograd.function.Function"})
_MODEL_METHODS = frozenset({"forward", "__call__"})
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


class FunctionFacts:
    """A function, method or lambda of a file.

    Attributes:
        node: its definition.
        module: the file.
        cls: the class whose method it is.
        outer: the function that it is defined in.
    """

    def __init__(
        self, node: FunctionNode, module: ModuleFacts, cls: ClassFacts | None = None, outer: FunctionFacts | None = None
    ) -> None:
        self.node = node
        self.module = module
        self.cls = cls
        self.outer = outer

    def __repr__(self) -> str:
        return f"FunctionFacts({self.qualname})"

    @property
    def name(self) -> str:
        """Its own name."""
        return "<lambda>" if isinstance(self.node, ast.Lambda) else self.node.name

    @property
    def qualname(self) -> str:
        """Its name with that of its class."""
        return f"{self.cls.name}.{self.name}" if self.cls else self.name

    @property
    def place(self) -> tuple[str, int]:
        """Its file and line, for those of several files to be told in one order."""
        return str(self.module.module.path), self.node.lineno

    @property
    def is_forward(self) -> bool:
        """Whether it is the forward pass of a module."""
        return self.cls is not None and self.cls.is_module and self.name in _MODEL_METHODS

    @cached_property
    def is_static(self) -> bool:
        """Whether it takes neither ``self`` nor ``cls``: a static method, or no method."""
        return self.cls is None or any(
            isinstance(item, ast.Name) and item.id == "staticmethod" for item in self.decorator_list
        )

    @cached_property
    def is_class_method(self) -> bool:
        """Whether its first parameter is the class."""
        return self.has_decorator("classmethod")

    @cached_property
    def is_property(self) -> bool:
        """Whether attribute access calls it."""
        return self.has_decorator("property", "cached_property")

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """All its parameters, ``self`` included, ``*args`` and ``**kwargs`` last."""
        return tuple(item.arg for item in arguments_of(self.node))

    @cached_property
    def by_place(self) -> tuple[str, ...]:
        """The parameters that are not for keywords alone, ``self`` or ``cls`` included."""
        arguments = self.node.args
        return tuple(item.arg for item in [*arguments.posonlyargs, *arguments.args])

    @property
    def receiver(self) -> str | None:
        """Its ``self`` or ``cls``, which no call gives; None where it has none."""
        return self.by_place[0] if not self.is_static and self.by_place else None

    @cached_property
    def positional(self) -> tuple[str, ...]:
        """The parameters that a call can give by their place, without ``self`` and ``cls``."""
        return self.by_place[1:] if self.receiver is not None else self.by_place

    @cached_property
    def defaults(self) -> dict[str, ast.expr]:
        """What parameters are when no call gives them, in the order of the text."""
        arguments = self.node.args
        by_place = self.by_place[len(self.by_place) - len(arguments.defaults) :]
        by_name = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        return {
            **dict(zip(by_place, arguments.defaults, strict=True)),
            **{item.arg: default for item, default in by_name if default is not None},
        }

    def argument(self, call: ast.Call, name: str) -> ast.expr | None:
        """What a call gives for a parameter by its name or place; None where it gives nothing."""
        for item in call.keywords:
            if item.arg == name:
                return item.value
        index = self.positional.index(name) if name in self.positional else len(call.args)
        return call.args[index] if index < len(call.args) else None

    def argument_or_default(self, call: ast.Call, name: str) -> ast.expr | None:
        """What a parameter is in a call; None when that is not known.

        What a call gives itself, ``**options`` beside it cannot give once more.
        """
        if any(isinstance(item, ast.Starred) for item in call.args):
            return None
        given = self.argument(call, name)
        if given is not None or any(item.arg is None for item in call.keywords):
            return given
        return self.defaults.get(name)

    def bound(self, call: ast.Call) -> Iterator[tuple[str | None, ast.expr]]:
        """Yield what a call gives with the parameter that gets it; None for ``**``."""
        yield from zip(self.positional, call.args, strict=False)
        for item in call.keywords:
            yield item.arg, item.value

    @cached_property
    def _results(self) -> tuple[list[ast.expr], list[ast.expr]]:
        """What it returns, and what it yields itself, not what functions within it do."""
        if isinstance(self.node, ast.Lambda):
            return [self.node.body], []
        returns: list[ast.expr] = []
        yields: list[ast.expr] = []
        stack: list[ast.AST] = [*self.body]
        while stack:
            current = stack.pop()
            if isinstance(current, _DEFINITIONS):
                continue
            if isinstance(current, ast.Return) and current.value is not None:
                returns.append(current.value)
            elif isinstance(current, (ast.Yield, ast.YieldFrom)) and current.value is not None:
                yields.append(current.value)
            stack.extend(children(current))
        return returns, yields

    @property
    def returns(self) -> list[ast.expr]:
        """The expressions that it returns, the last first."""
        return self._results[0]

    @property
    def yields(self) -> list[ast.expr]:
        """The expressions that it yields, the last first."""
        return self._results[1]

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node of its text, outer ones first; made once for all who look through them."""
        return [*walk(self.node)]

    @cached_property
    def registers(self) -> bool:
        """Whether it makes parameters or buffers."""
        made = ("Parameter", "register_buffer", "register_parameter")
        return any(isinstance(item, ast.Attribute) and item.attr in made for item in self.nodes)

    @cached_property
    def is_generator(self) -> bool:
        """Whether calling it gives an iterator."""
        rows = self.module.module.lines[self.node.lineno - 1 : self.node.end_lineno]
        # Looking at every node is worth it only where the word occurs at all.
        return any("yield" in row for row in rows) and any(
            isinstance(item, (ast.Yield, ast.YieldFrom)) for item in self.nodes
        )

    @property
    def body(self) -> list[ast.stmt]:
        """Its statements; none of a lambda, whose expression is what it returns."""
        return [] if isinstance(self.node, ast.Lambda) else self.node.body

    @property
    def decorator_list(self) -> list[ast.expr]:
        """Its decorators as they are written."""
        return [] if isinstance(self.node, ast.Lambda) else self.node.decorator_list

    @cached_property
    def decorators(self) -> list[tuple[str, ast.expr]]:
        """Its decorators: the dotted name that each resolves to, and its node."""
        return _named_decorators(self.decorator_list, self.module)

    def has_decorator(self, *last_names: str) -> bool:
        """Whether a decorator's name ends in one of ``last_names``."""
        return any(name.rpartition(".")[2] in last_names for name, _ in self.decorators)


def _named_decorators(decorators: list[ast.expr], module: ModuleFacts) -> list[tuple[str, ast.expr]]:
    found = []
    for item in decorators:
        target = item.func if isinstance(item, ast.Call) else item
        found.append((module.dotted(target) or "", item))
    return found


class ClassFacts:
    """A class of a file.

    Attributes:
        node: its definition.
        module: the file.
        methods: its own functions by name.
    """

    def __init__(self, node: ast.ClassDef, module: ModuleFacts, outer: FunctionFacts | None = None) -> None:
        self.node = node
        self.module = module
        self.outer = outer
        self.methods: dict[str, FunctionFacts] = {}
        _collect_methods(node.body, self)

    def __repr__(self) -> str:
        return f"ClassFacts({self.name})"

    @property
    def name(self) -> str:
        """Its name."""
        return self.node.name

    @property
    def qualname(self) -> str:
        """Its name with that of the function that it is defined in."""
        return f"{self.outer.qualname}.{self.name}" if self.outer else self.name

    @cached_property
    def base_names(self) -> tuple[str, ...]:
        """The dotted names of its bases, as far as they have one."""
        return tuple(name for base in self.node.bases if (name := self.module.dotted(base)))

    @cached_property
    def decorators(self) -> list[tuple[str, ast.expr]]:
        """Its decorators, as those of a function."""
        return _named_decorators(self.node.decorator_list, self.module)

    @cached_property
    def bases(self) -> tuple[ClassFacts, ...]:
        """Those of its bases that are classes of the project."""
        found = []
        for base in self.node.bases:
            facts = self.module.class_named(base)
            if facts is not None and facts is not self:
                found.append(facts)
        return tuple(found)

    @cached_property
    def lineage(self) -> tuple[ClassFacts, ...]:
        """This class and its bases of the project, nearest first."""
        found = {self: None}
        pending = [self]
        for item in pending:
            # Files may import each other in a circle, and then a class may seem to inherit from itself.
            further = [base for base in item.bases if base not in found]
            found.update(dict.fromkeys(further))
            pending += further
        return tuple(found)

    @cached_property
    def external_bases(self) -> frozenset[str]:
        """The dotted names of all its bases outside of the project."""
        return frozenset(name for cls in self.lineage for name in cls.base_names)

    @cached_property
    def reassigned(self) -> frozenset[str]:
        """What its methods but ``__init__`` assign to members of ``self``."""
        init = self.methods.get("__init__")
        left_out = range(init.node.lineno - 1, init.node.end_lineno or 0) if init is not None else range(0)
        rows = self.module.module.lines
        lines = [rows[i] for i in range(self.node.lineno - 1, self.node.end_lineno or 0) if i not in left_out]
        return frozenset(_ASSIGNED_TO_SELF.findall("\n".join(lines)))

    def inherits(self, test: Callable[[str], bool]) -> bool:
        """Whether a base's dotted name passes ``test``; those of bases in the project are looked at last."""
        if any(test(name) for name in self.base_names):
            return True
        return any(test(name) for name in self.external_bases)

    @cached_property
    def is_module(self) -> bool:
        """Whether it is an ``nn.Module``."""
        return self.inherits(is_module_base)

    @cached_property
    def is_autograd_function(self) -> bool:
        """Whether it is a ``torch.autograd.Function``."""
        return self.inherits(lambda name: name in _AUTOGRAD_FUNCTIONS)

    @cached_property
    def is_optimizer(self) -> bool:
        """Whether it is an optimizer."""
        return self.inherits(is_optimizer_name)

    def method(self, name: str) -> FunctionFacts | None:
        """The method of that name, its own or inherited within the project."""
        for cls in self.lineage:
            if name in cls.methods:
                return cls.methods[name]
        return None


_GLOBAL = re.compile(r"^[ \t]+global[ \t]+([\w, \t]+)", re.MULTILINE)
_ASSIGNED_TO_SELF = re.compile(r"\bself\.(\w+)(?=[^=\n()\[\]]{0,200}?=(?!=))")


def _collect_methods(body: list[ast.stmt], cls: ClassFacts) -> None:
    for item in body:
        if isinstance(item, Function):
            cls.methods[item.name] = cls.module.function_facts(item, cls)
        elif not isinstance(item, ast.ClassDef):
            # Of several branches the first counts, as others are what a class falls back on.
            for suite in reversed([*suites(item)]):
                _collect_methods(suite, cls)


class ModuleFacts:
    """What the names of a file mean.

    Attributes:
        module: the parsed file.
        project: finds what its imports lead to.
        names: what its names mean.
        imports: local name to dotted name; a relative import keeps its leading dots.
        functions: its functions by name.
        classes: its classes by name.
        constants: module variables that are assigned once, with their expressions.
        stars: modules of which everything is imported.
    """

    def __init__(self, module: Module, project: Definitions) -> None:
        self.module = module
        self.project = project
        self.names = names_of(module)
        self.imports = self.names.imports
        self.stars = self.names.stars
        self.dotted = self.names.dotted
        self._function_facts: dict[ast.AST, FunctionFacts] = {}
        self._class_facts: dict[ast.AST, ClassFacts] = {}
        self.functions: dict[str, FunctionFacts] = {}
        self.classes: dict[str, ClassFacts] = {}
        self.constants: dict[str, ast.expr] = {}
        self._assigned: set[str] = set()
        self._collect(module.tree.body)
        if "global " in module.source.text:
            # Functions that say so may assign it.
            for names in _GLOBAL.findall(module.source.text):
                for name in names.split(","):
                    self.constants.pop(name.strip(), None)

    def __repr__(self) -> str:
        return f"ModuleFacts({self.module.path.name})"

    def _collect(self, body: list[ast.stmt]) -> None:
        for item in body:
            if isinstance(item, Function):
                self.functions[item.name] = self.function_facts(item)
            elif isinstance(item, ast.ClassDef):
                self.classes[item.name] = self.class_facts(item)
            elif isinstance(item, (ast.Assign, ast.AnnAssign)):
                self._collect_assignment(item)
            elif isinstance(item, ast.AugAssign):
                self._forget(item.target)
            elif isinstance(item, ast.For):
                self._forget(item.target)
                self._collect(item.body)
            elif isinstance(item, ast.If):
                self._collect(item.body)
                self._collect(item.orelse)
            elif isinstance(item, ast.Try):
                self._collect(item.body)
                for handler in item.handlers:
                    self._collect(handler.body)
            elif isinstance(item, ast.With):
                self._collect(item.body)

    def _collect_assignment(self, item: ast.Assign | ast.AnnAssign) -> None:
        targets = item.targets if isinstance(item, ast.Assign) else [item.target]
        for target in targets:
            if isinstance(target, ast.Name):
                if target.id in self._assigned or item.value is None or target.id in self.imports:
                    self.constants.pop(target.id, None)
                else:
                    self.constants[target.id] = item.value
                self._assigned.add(target.id)
            else:
                self._forget(target)

    def _forget(self, target: ast.expr) -> None:
        """Note that a module variable is something else at times."""
        for item in target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]:
            if isinstance(item, ast.Name):
                self.constants.pop(item.id, None)
                self._assigned.add(item.id)

    def function_facts(self, node: FunctionNode, cls: ClassFacts | None = None) -> FunctionFacts:
        """The facts of a function, method or lambda; for each there is one object, made when it is first asked for."""
        known = self._function_facts.get(node)
        if known is None:
            known = self._function_facts[node] = FunctionFacts(node, self, cls)
        return known

    def class_facts(self, node: ast.ClassDef) -> ClassFacts:
        """The facts of a class, one object as well."""
        known = self._class_facts.get(node)
        if known is None:
            known = self._class_facts[node] = ClassFacts(node, self)
        return known

    def holds(self, node: ast.AST) -> bool:
        """Whether a node stands in this file."""
        return id(node) in self._own

    @cached_property
    def _own(self) -> frozenset[int]:
        return frozenset(map(id, walk(self.module.tree)))

    @cached_property
    def index(self) -> FileIndex:
        """Where its calls, assignments and loops stand."""
        inits = {name: cls.methods["__init__"].node for name, cls in self.classes.items() if "__init__" in cls.methods}
        return FileIndex(self.module, {name: node for name, node in inits.items() if isinstance(node, Function)})

    def class_named(self, node: ast.expr) -> ClassFacts | None:
        """The class of the project that an expression names."""
        if isinstance(node, ast.Subscript):
            node = node.value
        if isinstance(node, ast.Name) and node.id in self.classes:
            return self.classes[node.id]
        name = self.dotted(node)
        found = self.project.resolve(self, name) if name else None
        return found if isinstance(found, ClassFacts) else None

    def imported(self) -> Iterator[ModuleFacts]:
        """The files of the project that it imports, or imports anything of; one as often as it does."""
        for dotted in (*self.imports.values(), *self.stars):
            found = self.project.resolve(self, dotted)
            if found is not None:
                yield found if isinstance(found, ModuleFacts) else found.module

    def all_functions(self) -> Iterator[FunctionFacts]:
        """Yield its functions and methods, in the order of lines; functions inside of functions are not among them."""
        found = [*self.functions.values(), *(item for cls in self.classes.values() for item in cls.methods.values())]
        yield from sorted(found, key=lambda item: item.node.lineno)


Definition = FunctionFacts | ClassFacts | ModuleFacts


class Definitions(Protocol):
    """What finds the definitions that names lead to in other files; see :mod:`amp_rules.source.project_facts`."""

    def resolve(self, importer: ModuleFacts, dotted: str) -> Definition | None:
        """The function, class or module of the project that ``dotted`` stands for in ``importer``."""

    def module_of_constant(self, importer: ModuleFacts, dotted: str) -> tuple[ModuleFacts, str] | None:
        """The file and the name of the module variable that ``dotted`` stands for."""

    def users(self, function: FunctionFacts) -> list[ModuleFacts]:
        """The other files of the project that import a function, or the file that it stands in."""

    def importers(self, module: ModuleFacts) -> list[ModuleFacts]:
        """The other files of the project that import a file, or anything in it."""
