"""Modules, classes and attributes that are found by a name made at run time."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from amp_rules.flow.attributes import Attributes
from amp_rules.flow.cells import Mark
from amp_rules.flow.containers import Containers
from amp_rules.flow.local_variables import LocalVariables
from amp_rules.flow.parts import Evaluation, Invocation, Overlay
from amp_rules.flow.reached import Reached
from amp_rules.flow.refused_calls import accepted
from amp_rules.flow.store import Store
from amp_rules.flow.values import Value, dictionary_of
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope

IMPORTS_BY_NAME = frozenset({"importlib.import_module", "builtins.__import__"})
"""Functions that import the module whose name they are given."""
_MAX_SIBLINGS = 60
"""Modules of a folder that a name made at run time can find. Folders of models have up to fifty; each is evaluated.
What comes after them, by name, is not looked at, and a model defined there is not known."""
_MAX_PARTS = 50
"""Expressions that one name is put together from, variables included; the rest of a longer one can be anything."""
_PLACEHOLDER = re.compile(r"%[sd]|\{[^{}]*\}")
_ANYTHING = ".+"


class Reflection:
    """``importlib.import_module``, ``globals()[name]``, ``getattr(self, "net" + name)`` and the like.

    What a name can be is over-estimated: every module of the folder, every class and function of the module, every
    attribute that begins and ends in the same way.
    """

    def __init__(
        self,
        store: Store,
        reached: Reached,
        containers: Containers,
        attributes: Attributes,
        variables: LocalVariables,
        evaluation: Evaluation,
    ) -> None:
        self._store = store
        self._reached = reached
        self._containers = containers
        self._attributes = attributes
        self._variables = variables
        self._evaluation = evaluation
        self._parsed: dict[tuple[str, ast.AST], ast.expr] = {}

    def apply(self, name: str, given: Invocation) -> set[Value] | None:
        """What a built-in function of this kind gives; None for other functions."""
        node, arguments, scope = given.node, given.arguments, given.scope
        if name in IMPORTS_BY_NAME and node.args:
            return self._import_by_name(given)
        if name == "imp.load_source" and len(node.args) > 1:
            return self._load_by_path(given)
        if name == "builtins.globals":
            return {dictionary_of(Value("module", scope.top.module))}
        if name == "builtins.vars" and arguments:
            return {dictionary_of(value) for value in arguments[0] if value.kind in ("module", "external", "instance")}
        if name == "builtins.eval" and node.args:
            return accepted(self._evaluated(node.args[0], scope), scope.module.parents, node)
        if name == "builtins.getattr" and len(node.args) >= 2:
            return accepted(self._getattr(given), scope.module.parents, node)
        if name == "builtins.setattr" and len(arguments) == 3:
            self._setattr(given)
            return set()
        return None

    # ---- names ---------------------------------------------------------------------------------------------

    def _texts(self, node: ast.expr, scope: Scope, overlay: Overlay | None) -> set[str]:
        """The strings that the expression, which is a name, can be, where all of them are known.

        No list is a name: after ``if isinstance(names, str): names = [names]`` each of them seems to be one, too.
        """
        if isinstance(node, ast.Constant):
            return {node.value} if isinstance(node.value, str) else set()
        if not isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            return set()
        values = self._evaluation.expressions.evaluate(node, scope, overlay)
        values = {value for value in values if value.kind != "sequence"}
        found = {value.ref for value in values if value.kind == "constant" and isinstance(value.ref, str)}
        return found if len(found) == len(values) else set()

    def _pattern(self, node: ast.expr, scope: Scope) -> str:
        """A regular expression for a string that is put together; ``.+`` where a part is not known.

        A variable that is made from itself, ``name = prefix + name``, can be anything.
        """
        found: list[str] = []
        open_names: frozenset[str] = frozenset()
        pending = [(node, open_names)]
        for _ in range(_MAX_PARTS):
            if not pending:
                return "".join(found)
            part, open_names = pending.pop()
            inner = self._parts(part, scope, open_names)
            if isinstance(inner, str):
                found.append(inner)
                continue
            if isinstance(part, ast.Name):
                open_names |= {part.id}
            pending.extend((item, open_names) for item in reversed(inner))
        return "".join([*found, _ANYTHING])

    def _parts(self, node: ast.expr, scope: Scope, open_names: frozenset[str]) -> str | list[ast.expr]:
        """What a string is put together from, in order; a regular expression for what has no parts."""
        if isinstance(node, ast.JoinedStr):
            return node.values
        if isinstance(node, ast.FormattedValue):
            return [node.value]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return [node.left, node.right]
        joined = self._joined(node, scope)
        if joined is not None:
            return joined
        template = _template(node)
        if template is not None:
            return ".+".join(re.escape(part) for part in _PLACEHOLDER.split(template))
        if isinstance(node, ast.Name) and node.id in ("__name__", "__package__"):
            return re.escape(f"<{node.id}>")
        if isinstance(node, ast.Name):
            given = self._variables[scope.node].get(node.id, [])
            is_plain = len(given) == 1 and not isinstance(given[0], ast.Name) and node.id not in open_names
            return given if is_plain else _ANYTHING
        return re.escape(str(node.value)) if isinstance(node, ast.Constant) else _ANYTHING

    def _joined(self, node: ast.expr, scope: Scope) -> list[ast.expr] | None:
        """What ``".".join(["models", name])`` and ``os.path.join("models", name)`` are put together from."""
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "join"):
            return None
        between, parts = node.func.value, node.args
        if any(value.ref == "os.path.join" for value in self._evaluation.expressions.evaluate(node.func, scope)):
            between = ast.Constant("/")
        elif not isinstance(between, ast.Constant) or not isinstance(between.value, str) or len(parts) != 1:
            return None
        else:
            parts = parts[0].elts if isinstance(parts[0], (ast.List, ast.Tuple)) else []
        if not parts or any(isinstance(part, ast.Starred) for part in parts):
            return None
        return [item for part in parts for item in (between, part)][1:]

    # ---- modules -------------------------------------------------------------------------------------------

    def _load_by_path(self, given: Invocation) -> set[Value]:
        """``imp.load_source("trainer", os.path.join("trainers", name + ".py"))``, from where the script stands."""
        path = self._pattern(given.node.args[1], given.scope)
        if not path.endswith(r"\.py"):
            return set()
        name = path.removesuffix(r"\.py").removeprefix(r"\./").replace("/", r"\.")
        return {Value("module", module) for module in self._matching(given.scope.module, name, has_package=False)}

    def _import_by_name(self, given: Invocation) -> set[Value]:
        node = given.node
        name = node.args[0]
        importer = given.scope.module
        has_package = len(node.args) > 1 or any(item.arg == "package" for item in node.keywords)
        values = self._evaluation.expressions.evaluate(name, given.scope, given.overlay)
        known = {value.ref for value in values if value.kind == "constant" and isinstance(value.ref, str)}
        found: set[Value] = set()
        for text in sorted(known):
            if not all(part.isidentifier() for part in text.lstrip(".").split(".")):
                continue
            level = len(text) - len(text.lstrip(".")) if has_package else 0
            module = self._reached.module(importer, text.lstrip("."), level)
            if module is None:
                found.add(Value("external", text))
                if not isinstance(name, ast.Constant) and not level:
                    found |= {Value("module", other) for other in self._beside_missing(importer, text)}
            else:
                found |= {Value("module", module)} if isinstance(name, ast.Constant) else self._with_siblings(module)
        if not known:
            for module in self._matching(importer, self._pattern(name, given.scope), has_package):
                found.add(Value("module", module))
        return found

    def _beside_missing(self, importer: Module, text: str) -> list[Module]:
        """The modules that an option could name where the one of its default is not there.

        They lie in the package of that name, or in a folder below the script that it puts on ``sys.path`` for them.
        """
        project = self._reached.project
        package, _, _ = text.rpartition(".")
        if package:
            named = project.folder(importer, package)
            return self._modules_in(named, _ANYTHING) if named is not None else []
        below = [folder for folder in project.path_entries if project.entry_path.parent in folder.parents]
        return [module for folder in below for module in self._modules_in(folder, _ANYTHING)]

    def _with_siblings(self, module: Module) -> set[Value]:
        """A module that an option names, and those that it could name as well."""
        folder = module.path.parent
        if folder == self._reached.project.entry_path.parent:
            return {Value("module", module)}
        return {Value("module", module), *(Value("module", other) for other in self._modules_in(folder, _ANYTHING))}

    def _matching(self, importer: Module, pattern: str, has_package: bool) -> list[Module]:
        package, _, last = pattern.rpartition(r"\.")
        if _ANYTHING in package:
            return []
        plain = package.replace("\\", "")
        if has_package or plain in ("<__name__>", "<__package__>"):
            names = plain.removeprefix("<__name__>").removeprefix("<__package__>")
            inner = names.lstrip(".")
            if inner and not all(part.isidentifier() for part in inner.split(".")):
                return []
            folder = importer.path.parent
            for _ in range(len(names) - len(inner) - 1):
                folder = folder.parent
            return self._modules_in(folder.joinpath(*inner.split(".")) if inner else folder, last)
        if not plain:
            return []
        named = self._reached.project.folder(importer, plain)
        return self._modules_in(named, last) if named is not None else []

    def _modules_in(self, folder: Path, pattern: str) -> list[Module]:
        """The modules of a folder whose names match."""
        project = self._reached.project
        found: list[Module] = []
        for path in project.modules_in(folder):
            if path == project.entry_path or len(found) >= _MAX_SIBLINGS:
                continue
            if path.stem != "__init__" and re.fullmatch(pattern, path.stem):
                module = project.load(path)
                if module is not None:
                    found.append(module)
                    self._reached.add_module(module)
        return found

    # ---- members -------------------------------------------------------------------------------------------

    def _evaluated(self, node: ast.expr, scope: Scope) -> set[Value]:
        """``eval("Net")``, ``eval(name)``: a class or an imported module of this file, of a text also a function."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return self._value_of_text(node.value.strip(), scope)
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            members = self._containers.members(Value("module", scope.top.module))
            return {value for value in members if value.kind in ("class", "module")}
        # ``eval("nn." + name)``, ``eval("models." + name + ".get_model")``
        pattern = self._pattern(node, scope)
        prefix, _, rest = (part.replace("\\", "") for part in pattern.partition(_ANYTHING))
        owner, dot, _ = prefix.rpartition(".")
        if not dot and pattern != _ANYTHING:
            return self._classes_like(pattern, scope)
        if not dot or not all(part.isidentifier() for part in owner.split(".")):
            return set()
        owners = self._value_of_text(owner, scope)
        found = set().union(*(self._containers.members(value) for value in owners))
        attributes = rest.removeprefix(".").split(".")
        if not rest.startswith(".") or not all(part.isidentifier() for part in attributes):
            return found
        found |= {Value("module", module) for value in owners for module in self._submodules(value)}
        for attribute in attributes:
            found = set().union(*(self._attributes.of(value, attribute) for value in found))
        return found

    def _classes_like(self, pattern: str, scope: Scope) -> set[Value]:
        """The classes of this file whose names match: ``eval(name + "Loader")``."""
        tree = scope.top.module.tree
        names = sorted(name for name in self._reached.scopes[tree].bound if re.fullmatch(pattern, name))
        held = [value for name in names for value in self._store.read((tree, name))]
        return {value for value in held if value.kind == "class"}

    def _submodules(self, value: Value) -> list[Module]:
        """The modules of a package."""
        if value.kind != "module" or value.ref.path.stem != "__init__":
            return []
        return self._modules_in(value.ref.path.parent, _ANYTHING)

    def _value_of_text(self, text: str, scope: Scope) -> set[Value]:
        """What an expression in a string holds; what it makes is the same each time it is looked at."""
        key = (text, scope.node)
        try:
            if key not in self._parsed:
                self._parsed[key] = ast.parse(text, mode="eval").body
            return self._evaluation.expressions.evaluate(self._parsed[key], scope)
        except (SyntaxError, ValueError, KeyError):
            # A lambda in a string has no scope: what it does is not known.
            return set()

    def _getattr(self, given: Invocation) -> set[Value]:
        name = given.node.args[1]
        texts = self._texts(name, given.scope, given.overlay)
        pattern = self._pattern(name, given.scope)
        found: set[Value] = set()
        for owner in given.first:
            # Only a module has more under a name from a table than the table tells: defaults are overridden.
            if texts and (isinstance(name, ast.Constant) or owner.kind == "instance"):
                for text in sorted(texts):
                    found |= self._attributes.of(owner, text)
            else:
                found |= self._containers.members(owner) | self._attributes_like(owner, pattern)
        return found

    def _setattr(self, given: Invocation) -> None:
        name = given.node.args[1]
        for owner in given.first:
            texts: set[str] = self._texts(name, given.scope, given.overlay)
            names: set[str | Mark] = {*texts}
            if not texts and self._pattern(name, given.scope) == _ANYTHING:
                names = {Mark.ANY}
            for attribute in names:
                self._store.write_attribute(owner, attribute, given.arguments[2])

    def _attributes_like(self, owner: Value, pattern: str) -> set[Value]:
        """Attributes of an object whose names match: ``getattr(self, "net" + name)``."""
        if owner.kind != "instance" or pattern == _ANYTHING:
            return set()
        found: set[Value] = set()
        for info in owner.ref.mro():
            # A name that is not there yet may come: the body is looked at again when it does.
            self._store.read((info.facts.node, Mark.NAMES))
            for name in sorted(self._store.attribute_names.get(info.facts.node, ())):
                if re.fullmatch(pattern, name):
                    found |= self._store.read((info.facts.node, name))
            for name, method in info.facts.methods.items():
                # ``"_" + mode`` is never meant to find ``__init__``.
                if re.fullmatch(pattern, name) and (not name.startswith("__") or pattern.startswith("__")):
                    found.add(Value("function", method, receiver=owner))
        return found

    def apply_to_dictionary(self, owner: Value, name: str, given: Invocation) -> set[Value]:
        """``module.__dict__.items()``, ``self.__dict__.update(values)``."""
        if name == "update":
            self._containers.update_dictionary(owner, given.first)
            return set()
        members = self._containers.members(owner)
        return self._containers.rows([(1, members)], given.node) if name == "items" else members


def _template(node: ast.expr) -> str | None:
    """The text with places to fill of ``"net%s" % name`` and ``"net{}".format(name)``."""
    found: ast.expr | None = None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        found = node.left
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        found = node.func.value
    return found.value if isinstance(found, ast.Constant) and isinstance(found.value, str) else None
