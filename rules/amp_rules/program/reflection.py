"""Modules, classes and attributes that are found by a name made at run time."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from amp_rules.program.cells import CellKey, Overlay
from amp_rules.program.expressions import Expressions
from amp_rules.program.modules import Module
from amp_rules.program.scopes import Scope
from amp_rules.program.values import Value

_MAX_SIBLINGS = 60
_PARSER = "argparse."
_PLACEHOLDER = re.compile(r"%[sd]|\{[^{}]*\}")


class Reflection(Expressions):
    """``importlib.import_module``, ``globals()[name]``, ``getattr(self, "net" + name)`` and the like.

    What a name can be is over-estimated: every module of the folder, every class and function of the module, every
    attribute that begins and ends in the same way.
    """

    def _reflected(
        self, name: str, node: ast.Call, arguments: list[set[Value]], scope: Scope, overlay: Overlay | None
    ) -> set[Value] | None:
        """What a built-in function of this kind gives; None for other functions."""
        if name in ("importlib.import_module", "builtins.__import__") and node.args:
            return self._import_by_name(node, scope, overlay)
        if name == "builtins.globals":
            return {_dictionary(Value("module", scope.top.module))}
        if name == "builtins.vars" and arguments:
            return {_dictionary(value) for value in arguments[0] if value.kind in ("module", "external", "instance")}
        if name == "builtins.eval" and node.args:
            return self._evaluated(node.args[0], scope)
        if name == "builtins.setattr" and len(arguments) == 3:
            for owner in arguments[0]:
                texts = self._texts(node.args[1], scope, overlay)
                if not texts and self._pattern(node.args[1], scope, overlay) == ".+":
                    texts = {"*"}
                for attribute in texts:
                    self._write_attribute(owner, attribute, arguments[2])
            return set()
        return None

    # ---- names ---------------------------------------------------------------------------------------------

    def _texts(self, node: ast.expr, scope: Scope, overlay: Overlay | None) -> set[str]:
        """The strings that the expression can be, where all of them are known."""
        if isinstance(node, ast.Constant):
            return {node.value} if isinstance(node.value, str) else set()
        if not isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            return set()
        values = self._eval(node, scope, overlay)
        found = {value.ref for value in values if value.kind == "constant" and isinstance(value.ref, str)}
        return found if len(found) == len(values) else set()

    def _pattern(self, node: ast.expr, scope: Scope, overlay: Overlay | None) -> str:
        """A regular expression for a string that is put together; ``.+`` where a part is not known."""
        if isinstance(node, ast.JoinedStr):
            return "".join(self._pattern(part, scope, overlay) for part in node.values)
        if isinstance(node, ast.FormattedValue):
            return self._pattern(node.value, scope, overlay)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self._pattern(node.left, scope, overlay) + self._pattern(node.right, scope, overlay)
        template: ast.expr | None = None
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            template = node.left
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
            template = node.func.value
        if isinstance(template, ast.Constant) and isinstance(template.value, str):
            return ".+".join(re.escape(part) for part in _PLACEHOLDER.split(template.value))
        if isinstance(node, ast.Name) and node.id in ("__name__", "__package__"):
            return re.escape(f"<{node.id}>")
        if isinstance(node, ast.Name):
            given = self._definitions(scope.node).get(node.id, [])
            is_plain = len(given) == 1 and not isinstance(given[0], ast.Name)
            return self._pattern(given[0], scope, overlay) if is_plain else ".+"
        if isinstance(node, ast.Constant):
            return re.escape(str(node.value))
        return ".+"

    # ---- modules -------------------------------------------------------------------------------------------

    def _import_by_name(self, node: ast.Call, scope: Scope, overlay: Overlay | None) -> set[Value]:
        name = node.args[0]
        importer = scope.module
        has_package = len(node.args) > 1 or any(item.arg == "package" for item in node.keywords)
        values = self._eval(name, scope, overlay)
        known = {value.ref for value in values if value.kind == "constant" and isinstance(value.ref, str)}
        found: set[Value] = set()
        for text in sorted(known):
            if not all(part.isidentifier() for part in text.lstrip(".").split(".")):
                continue
            level = len(text) - len(text.lstrip(".")) if has_package else 0
            module = self._project_module(importer, text.lstrip("."), level)
            if module is None:
                found.add(Value("external", text))
            else:
                found |= {Value("module", module)} if isinstance(name, ast.Constant) else self._with_siblings(module)
        if not known:
            for module in self._matching(importer, self._pattern(name, scope, overlay), has_package):
                found.add(Value("module", module))
        return found

    def _with_siblings(self, module: Module) -> set[Value]:
        """A module that an option names, and those that it could name as well."""
        folder = module.path.parent
        if folder == self.project.entry_path.parent:
            return {Value("module", module)}
        return {Value("module", module), *(Value("module", other) for other in self._modules_in(folder, ".+"))}

    def _matching(self, importer: Module, pattern: str, has_package: bool) -> list[Module]:
        package, _, last = pattern.rpartition(r"\.")
        if ".+" in package:
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
        named = self.project.folder(importer, plain)
        return self._modules_in(named, last) if named is not None else []

    def _modules_in(self, folder: Path, pattern: str) -> list[Module]:
        """The modules of a folder whose names match."""
        found: list[Module] = []
        for path in self.project.modules_in(folder):
            if path == self.project.entry_path or len(found) >= _MAX_SIBLINGS:
                continue
            if path.stem != "__init__" and re.fullmatch(pattern, path.stem):
                module = self.project.load(path)
                if module is not None:
                    found.append(module)
                    if not self._frozen:
                        self._add_module(module)
        return found

    # ---- members -------------------------------------------------------------------------------------------

    def _evaluated(self, node: ast.expr, scope: Scope) -> set[Value]:
        """``eval("Net")``, ``eval(name)``: a class or function of this file."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                return self._eval(ast.parse(node.value.strip(), mode="eval").body, scope)
            except (SyntaxError, KeyError):
                return set()
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            return {value for value in self._members(Value("module", scope.top.module)) if value.kind == "class"}
        # ``eval("nn." + name)``
        prefix = self._pattern(node, scope, None).partition(".+")[0].replace("\\", "")
        owner, dot, _ = prefix.rpartition(".")
        if not dot or not all(part.isidentifier() for part in owner.split(".")):
            return set()
        owners = self._eval(ast.parse(owner, mode="eval").body, scope)
        return set().union(*(self._members(value) for value in owners))

    def _attributes_like(self, owner: Value, pattern: str) -> set[Value]:
        """Attributes of an object whose names match: ``getattr(self, "net" + name)``."""
        if owner.kind != "instance" or pattern == ".+":
            return set()
        found: set[Value] = set()
        for info in owner.ref.mro():
            self._read((info.node, "<names>"))
            for name in sorted(self.attribute_names.get(info.node, ())):
                if re.fullmatch(pattern, name):
                    found |= self._read((info.node, name))
            for name, method in info.methods.items():
                if re.fullmatch(pattern, name):
                    found.add(Value("function", method, receiver=owner))
        return found

    def _dictionary_method(self, owner: Value, name: str, node: ast.Call, arguments: list[set[Value]]) -> set[Value]:
        """``module.__dict__.items()``, ``self.__dict__.update(values)``."""
        if name == "update":
            for value in arguments[0] if arguments else ():
                for index in list(self._read(self._keys(value))):
                    if isinstance(index.ref, str):
                        self._write_attribute(owner, index.ref, self._element({value}, index.ref))
            return set()
        if name == "items":
            pair = Value("sequence", "pair", node)
            self._write_element(pair, 1, self._members(owner))
            return self._rows(pair, node)
        return self._members(owner)

    # ---- the command line ----------------------------------------------------------------------------------

    def _declare_option(self, node: ast.Call) -> None:
        """``parser.add_argument("--model", default="small")``: remember what the option can be."""
        keywords = {item.arg: item.value for item in node.keywords}
        flags = [item.value for item in node.args if isinstance(item, ast.Constant) and isinstance(item.value, str)]
        named = keywords.get("dest")
        if isinstance(named, ast.Constant):
            flags = [str(named.value)]
        default = keywords.get("default")
        if flags and isinstance(default, ast.Constant) and isinstance(default.value, str):
            flag = next((item for item in flags if item.startswith("--")), flags[0])
            self._write(_option(flag.lstrip("-").replace("-", "_")), {Value("constant", default.value)})

    def _options(self, owner: Value, name: str) -> set[Value]:
        """What an attribute of parsed arguments can be."""
        is_parsed = str(owner.ref).startswith(_PARSER) and str(owner.ref).endswith("#")
        return self._read(_option(name)) if is_parsed else set()


def _option(name: str) -> CellKey:
    return ("<options>", name)


def _dictionary(owner: Value) -> Value:
    return Value("attribute", ("", "__dict__"), receiver=owner)
