"""Facts of one file that need no analysis: what its names mean, its functions and its classes."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from amp_rules.lint.finding import Finding, Fix, Safety, Severity, TextEdit
from amp_rules.lint.index import FileIndex, Function
from amp_rules.lint.mode import Mode
from amp_rules.program.modules import Module
from amp_rules.tables import torch_api as api

if TYPE_CHECKING:
    from amp_rules.lint.check import Check
    from amp_rules.lint.library import Library
    from amp_rules.lint.values import Value

_AUTOGRAD_FUNCTIONS = frozenset({"torch.autograd.Function", "torch.autograd.function.Function"})
_OPTIMIZER = "torch.optim."
_MODEL_METHODS = frozenset({"forward", "__call__"})


def nodes_of(root: ast.AST) -> list[ast.AST]:
    """What ``ast.walk`` yields, in half the time."""
    found = [root]
    for node in found:
        for value in node.__dict__.values():
            if value.__class__ is list:
                found += [item for item in value if isinstance(item, ast.AST)]
            elif isinstance(value, ast.AST):
                found.append(value)
    return found


class FunctionFacts:
    """A function or method of a file.

    Attributes:
        node: its definition.
        module: the file.
        cls: the class whose method it is.
        outer: the function that it is defined in.
    """

    def __init__(
        self, node: Function, module: ModuleFacts, cls: ClassFacts | None = None, outer: FunctionFacts | None = None
    ) -> None:
        self.node = node
        self.module = module
        self.cls = cls
        self.outer = outer
        self.evidence: dict[str, int] | None = None
        """Its names with how much says that they are tensors, filled in when a frame first asks for it."""

    def __repr__(self) -> str:
        return f"FunctionFacts({self.qualname})"

    @property
    def name(self) -> str:
        """Its own name."""
        return self.node.name

    @property
    def qualname(self) -> str:
        """Its name with that of its class."""
        return f"{self.cls.name}.{self.node.name}" if self.cls else self.node.name

    @property
    def is_forward(self) -> bool:
        """Whether it is the forward pass of a module."""
        return self.cls is not None and self.cls.is_module and self.node.name in _MODEL_METHODS

    @property
    def is_static(self) -> bool:
        """Whether it has no ``self``."""
        return any(isinstance(item, ast.Name) and item.id == "staticmethod" for item in self.node.decorator_list)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node of its text, outer ones first; made once for all who look through them."""
        return nodes_of(self.node)

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

    @cached_property
    def decorators(self) -> list[tuple[str, ast.expr]]:
        """Its decorators: the dotted name that each resolves to, and its node."""
        found = []
        for item in self.node.decorator_list:
            target = item.func if isinstance(item, ast.Call) else item
            found.append((self.module.dotted(target) or "", item))
        return found

    def has_decorator(self, *last_names: str) -> bool:
        """Whether a decorator's name ends in one of ``last_names``."""
        return any(name.rpartition(".")[2] in last_names for name, _ in self.decorators)


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
        self.attributes: dict[str, Value] | None = None
        """What ``__init__`` leaves in ``self``, filled in by the interpreter when it is first asked for."""
        self.methods: dict[str, FunctionFacts] = {}
        _collect_methods(node.body, self)

    def __repr__(self) -> str:
        return f"ClassFacts({self.name})"

    @property
    def name(self) -> str:
        """Its name."""
        return self.node.name

    @cached_property
    def base_names(self) -> tuple[str, ...]:
        """The dotted names of its bases, as far as they have one."""
        return tuple(name for base in self.node.bases if (name := self.module.dotted(base)))

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
        found: list[ClassFacts] = [self]
        for item in found:
            if len(found) > 12:
                break
            found.extend(base for base in item.bases if base not in found)
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
        return self.inherits(_is_module_name)

    @cached_property
    def is_autograd_function(self) -> bool:
        """Whether it is a ``torch.autograd.Function``."""
        return self.inherits(lambda name: name in _AUTOGRAD_FUNCTIONS)

    @cached_property
    def is_optimizer(self) -> bool:
        """Whether it is an optimizer."""
        return self.inherits(lambda name: name.startswith(_OPTIMIZER) and "lr_scheduler" not in name)

    def method(self, name: str) -> FunctionFacts | None:
        """The method of that name, its own or inherited within the project."""
        for cls in self.lineage:
            if name in cls.methods:
                return cls.methods[name]
        return None


_GLOBAL = re.compile(r"^[ \t]+global[ \t]+([\w, \t]+)", re.MULTILINE)
_ASSIGNED_TO_SELF = re.compile(r"\bself\.(\w+)(?=[^=\n()\[\]]{0,200}?=(?!=))")


def _is_module_name(name: str) -> bool:
    last = name.rpartition(".")[2]
    return (
        name in api.TORCH_MODULE_BASES
        or last.endswith(api.MODULE_BASE_SUFFIXES)
        or (name.startswith("torch.nn.") and last[:1].isupper() and "Parameter" not in last)
    )


def _collect_methods(body: list[ast.stmt], cls: ClassFacts) -> None:
    for item in body:
        if isinstance(item, Function):
            cls.methods[item.name] = FunctionFacts(item, cls.module, cls)
        elif isinstance(item, ast.If):
            _collect_methods(item.body, cls)
            _collect_methods(item.orelse, cls)
        elif isinstance(item, ast.Try):
            _collect_methods(item.body, cls)


class ModuleFacts:
    """What the names of a file mean.

    Attributes:
        module: the parsed file.
        library: finds the project's other files.
        imports: local name to dotted name; a relative import keeps its leading dots.
        functions: its functions by name.
        classes: its classes by name.
        constants: module variables that are assigned once, with their expressions.
        stars: modules of which everything is imported.
        report: takes the findings of checks that judge a class or the whole file.
        mode: in which the file is judged.
    """

    def __init__(self, module: Module, library: Library) -> None:
        self.module = module
        self.library = library
        self.imports: dict[str, str] = {}
        self.stars: list[str] = []
        self.functions: dict[str, FunctionFacts] = {}
        self.classes: dict[str, ClassFacts] = {}
        self.constants: dict[str, ast.expr] = {}
        self.values: dict[str, Value] = {}
        """The abstract values of module variables, filled in by the interpreter."""
        self._assigned: set[str] = set()
        self.report: Callable[..., None] = _ignore
        self.mode = Mode()
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
                self.functions[item.name] = FunctionFacts(item, self)
            elif isinstance(item, ast.ClassDef):
                self.classes[item.name] = ClassFacts(item, self)
            elif isinstance(item, (ast.Import, ast.ImportFrom)):
                for name, dotted in imported_names(item):
                    if name == "*":
                        self.stars.append(dotted)
                    else:
                        self.imports.setdefault(name, dotted)
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

    def holds(self, node: ast.AST) -> bool:
        """Whether a node stands in this file."""
        return id(node) in self._own

    @cached_property
    def _own(self) -> frozenset[int]:
        return frozenset(map(id, nodes_of(self.module.tree)))

    @cached_property
    def index(self) -> FileIndex:
        """Where its calls, assignments and loops stand."""
        return FileIndex(self)

    def found(
        self,
        check: Check,
        node: ast.AST,
        message: str,
        *,
        severity: Severity | None = None,
        fix: Fix | None = None,
        advice: str = "",
    ) -> None:
        """Take a finding of a check that judges a class or the whole file; as ``frame.report`` does for others."""
        self.report(
            Finding(
                path=self.module.path,
                span=self.module.span(node),
                code=check.code,
                name=check.name,
                severity=severity or check.severity,
                message=message,
                mode=str(self.mode),
                fix=fix,
                advice=advice or check.advice,
            )
        )

    def replacing(self, title: str, safety: Safety, *edits: tuple[ast.AST, str]) -> Fix:
        """A fix that puts an expression in place of each node."""
        return Fix(title, safety, tuple(TextEdit("replace", self.module.span(node), text) for node, text in edits))

    def dotted(self, node: ast.expr) -> str | None:
        """The dotted name that an expression of names and attributes stands for, through imports."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        head = self.imports.get(node.id, node.id)
        return canonical(".".join([head, *reversed(parts)]))

    def class_named(self, node: ast.expr) -> ClassFacts | None:
        """The class of the project that an expression names."""
        if isinstance(node, ast.Subscript):
            node = node.value
        if isinstance(node, ast.Name) and node.id in self.classes:
            return self.classes[node.id]
        name = self.dotted(node)
        found = self.library.resolve(self, name) if name else None
        return found if isinstance(found, ClassFacts) else None

    def all_functions(self) -> Iterator[FunctionFacts]:
        """Yield its functions and methods, in the order of lines; functions inside of functions are not among them."""
        found = [*self.functions.values(), *(item for cls in self.classes.values() for item in cls.methods.values())]
        yield from sorted(found, key=lambda item: item.node.lineno)


def imported_names(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """Yield the names that an import binds with what they stand for; ``*`` with the module."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.asname:
                yield alias.asname, canonical(alias.name)
            else:
                head = alias.name.partition(".")[0]
                yield head, head
        return
    prefix = "." * node.level + (node.module or "")
    for alias in node.names:
        if alias.name == "*":
            yield "*", prefix
        else:
            joint = "" if prefix.endswith(".") or not prefix else "."
            yield alias.asname or alias.name, canonical(f"{prefix}{joint}{alias.name}")


_CANONICAL = {
    "torch.functional.": "torch.",
    "torch.nn.modules.": "torch.nn.",
    "torch._C._nn.": "torch.nn.functional.",
}


def canonical(name: str) -> str:
    """One spelling for names that torch offers under several."""
    if name.startswith("torch."):
        for prefix, plain in _CANONICAL.items():
            if name.startswith(prefix):
                rest = name[len(prefix) :]
                return plain + rest.rpartition(".")[2] if prefix == "torch.nn.modules." else plain + rest
    return name


def _ignore(finding: Finding) -> None:
    """Drop a finding."""
