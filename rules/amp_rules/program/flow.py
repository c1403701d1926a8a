"""Which values reach which name, attribute and call.

A points-to analysis: every variable, attribute of a class and element of a container is a *cell*, every
body (a module's or a function's) is evaluated again whenever a cell that it read has grown, until nothing
changes. It knows no order of statements and one context per function; what a helper returns is evaluated
once more for each call with that call's own arguments, which keeps ``make(kind)`` factories apart."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from amp_rules.program.blocks import suites
from amp_rules.program.calls import Calls
from amp_rules.program.cells import CellKey
from amp_rules.program.modules import Module
from amp_rules.program.project import Project
from amp_rules.program.scopes import Scope, arguments_of
from amp_rules.program.syntax import children
from amp_rules.program.values import ClassInfo, FunctionInfo, Value

_MAX_VISITS = 20_000


class Flow(Calls):
    """The fixed point over one program: the entry and what it imports.

    Use :meth:`values` for what an expression can hold and :meth:`callees` for the functions of the project that a call
    can reach.
    """

    def __init__(self, project: Project) -> None:
        super().__init__(project)
        for info in list(self.functions.values()):
            if info.module is project.entry and isinstance(info.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._reach(info)
        self._run()
        self._frozen = True

    # ---- questions -----------------------------------------------------------------------------------------

    def values(self, node: ast.expr, scope: Scope) -> set[Value]:
        """What the expression can hold; empty when nothing is known."""
        return self._eval(node, scope)

    def callees(self, call: ast.Call) -> set[FunctionInfo]:
        """Functions of the project that the call can run, methods' ``forward`` of called models included."""
        return self._call_callees.get(call, set())

    def bodies(self) -> Iterable[tuple[ast.AST, Scope]]:
        """Every body that the program can reach: modules and functions."""
        return [(body, scope) for body, scope in self._bodies.items() if body not in self._copied]

    def key(self, node: ast.expr, scope: Scope) -> CellKey | None:
        """The cell that a name or an attribute of ``self`` stands for."""
        if isinstance(node, ast.Name):
            return (scope.owner(node.id).node, node.id)
        if isinstance(node, ast.Attribute):
            for value in self._eval(node.value, scope):
                if value.kind == "instance":
                    return (value.ref.mro()[-1].node, node.attr)
        return None

    def field_of(self, call: ast.Call, field: object, scope: Scope) -> ast.expr | None:
        """What the constructor of a record is given for a field: ``net`` of ``Parts(net, loss)`` for ``"net"``."""
        for item in call.keywords:
            if item.arg == field:
                return item.value
        for target in self._eval(call.func, scope):
            fields: list[str] = []
            if target.kind == "class" and target.ref.find_method("__init__") is None:
                fields = self._fields(target.ref)
            elif target.kind == "object":
                fields = self._named_tuple(target) or []
            index = field if isinstance(field, int) else fields.index(str(field)) if field in fields else None
            if fields and index is not None and 0 <= index < len(call.args):
                return call.args[index]
        return None

    # ---- the fixed point -----------------------------------------------------------------------------------

    def _run(self) -> None:
        visits = 0
        while self._queue and visits < _MAX_VISITS:
            body = self._queue.popleft()
            self._queued.discard(body)
            self._current = body
            self._process(body, self._bodies[body])
            visits += 1
        self._current = None

    # ---- statements ----------------------------------------------------------------------------------------

    def _process(self, body: ast.AST, scope: Scope) -> None:
        if isinstance(body, ast.Lambda):
            self._write((body, "<return>"), self._eval(body.body, scope))
            return
        if isinstance(body, (ast.FunctionDef, ast.AsyncFunctionDef)):
            defaults = body.args.defaults
            positional = [*body.args.posonlyargs, *body.args.args]
            for argument, default in zip(positional[len(positional) - len(defaults) :], defaults, strict=True):
                self._write((body, argument.arg), self._eval(default, scope.parent or scope))
            for argument, keyword_default in zip(body.args.kwonlyargs, body.args.kw_defaults, strict=True):
                if keyword_default is not None:
                    self._write((body, argument.arg), self._eval(keyword_default, scope.parent or scope))
        for statement in getattr(body, "body", []):
            self._statement(statement, scope)

    def _block(self, statements: Iterable[ast.stmt], scope: Scope) -> None:
        for statement in statements:
            self._statement(statement, scope)

    def _statement(self, node: ast.stmt, scope: Scope) -> None:
        if isinstance(node, ast.Assign):
            values = self._eval(node.value, scope)
            for target in node.targets:
                self._assign(target, values, scope)
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self._assign(node.target, self._eval(node.value, scope), scope)
        elif isinstance(node, ast.AugAssign):
            values = self._eval(node.value, scope)
            if isinstance(node.op, ast.Add):
                self._assign(node.target, {v for v in values if v.kind in ("sequence", "parameters")}, scope)
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            self._assign(node.target, self.elements(self._eval(node.iter, scope)), scope)
            self._block([*node.body, *node.orelse], scope)
        elif isinstance(node, ast.While):
            self._eval(node.test, scope)
            self._block([*node.body, *node.orelse], scope)
        elif isinstance(node, ast.If):
            if is_main_guard(node) and not scope.module.is_entry:
                self._block(node.orelse, scope)
                return
            self._eval(node.test, scope)
            self._block([*node.body, *node.orelse], scope)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                values = self._eval(item.context_expr, scope)
                if item.optional_vars is not None:
                    self._assign(item.optional_vars, values, scope)
            self._block(node.body, scope)
        elif type(node).__name__ in ("Try", "TryStar"):
            for suite in suites(node):
                self._block(suite, scope)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            info = self.functions.get(node)
            for decorator in node.decorator_list:
                self._decorate(decorator, {Value("function", info)} if info is not None else set(), scope)
            if info is not None and not scope.is_class:
                self._write((scope.owner(node.name).node, node.name), {Value("function", info)})
        elif isinstance(node, ast.ClassDef):
            self._class(node, scope)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            self._import(node, scope)
        elif isinstance(node, ast.Return):
            if node.value is not None and scope.is_function:
                self._write((scope.node, "<return>"), self._eval(node.value, scope))
        elif isinstance(node, ast.Expr):
            self._eval(node.value, scope)
        elif isinstance(node, ast.Match):
            self._eval(node.subject, scope)
            for case in node.cases:
                self._block(case.body, scope)
        else:
            for child in children(node):
                if isinstance(child, ast.expr):
                    self._eval(child, scope)

    def _class(self, node: ast.ClassDef, scope: Scope) -> None:
        info = self.classes.get(node)
        if info is None:
            return
        self._fill_class(info, scope)
        for base in info.mro()[1:]:
            hook = base.methods.get("__init_subclass__")
            first = next(arguments_of(hook.node), None) if hook is not None else None
            if hook is not None and first is not None:
                self._reach(hook)
                self._write((hook.node, first.arg), {Value("class", info)})
        for decorator in node.decorator_list:
            self._decorate(decorator, {Value("class", info)}, scope)
        self._write((scope.owner(node.name).node, node.name), {Value("class", info)})

    def _fill_class(self, info: ClassInfo, scope: Scope) -> None:
        """Evaluate the bases and the body of a class."""
        node = info.node
        for base in node.bases:
            for value in self._eval(base, scope):
                if value.kind in ("class", "external") and value not in info.bases and value.ref is not info:
                    info.bases.append(value)
        inner = self.scopes[node]
        for statement in node.body:
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                for decorator in statement.decorator_list:
                    self._eval(decorator, scope)
            elif isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
                values = self._eval(statement.value, inner)
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        self._write((node, target.id), values)
                        self._write((inner.node, target.id), values)
            else:
                self._statement(statement, inner)

    def _import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    values = self._imported_module(scope.module, alias.name)
                    self._write((scope.owner(alias.asname).node, alias.asname), values)
                    continue
                parts = alias.name.split(".")
                for length in range(2, len(parts) + 1):
                    self._imported_module(scope.module, ".".join(parts[:length]))
                self._write((scope.owner(parts[0]).node, parts[0]), self._imported_module(scope.module, parts[0]))
            return
        base = node.module or ""
        found = self._project_module(scope.module, base, node.level)
        for alias in node.names:
            if alias.name == "*":
                self._star(found, base, scope)
                continue
            name = alias.asname or alias.name
            target = (scope.owner(name).node, name)
            submodule = self._project_module(scope.module, f"{base}.{alias.name}" if base else alias.name, node.level)
            if found is not None:
                self._write(target, self._read((found.tree, alias.name)))
                # ``from . import models`` in the package's own file binds the name to the submodule.
                is_own = found is scope.module and name == alias.name
                if submodule is not None and (is_own or alias.name not in self.scopes[found.tree].bound):
                    self._write(target, {Value("module", submodule)})
            elif submodule is not None:
                self._write(target, {Value("module", submodule)})
            elif not node.level:
                self.imported.add(f"{base}.{alias.name}")
                self._write(target, {Value("external", f"{base}.{alias.name}")})

    def _star(self, found: Module | None, base: str, scope: Scope) -> None:
        if found is None:
            self.imported.add(f"{base}.*")
            if base == "torch.nn":
                scope.top.bound.add("*torch.nn")
            self._write((scope.top.node, "<star>"), {Value("external", base)})
            return
        for name in sorted(self.scopes[found.tree].bound):
            if not name.startswith("_"):
                scope.top.bound.add(name)
                self._write((scope.top.node, name), self._read((found.tree, name)))
        # A package's own star imports bind names only once its body was evaluated.
        self._write((scope.top.node, "<star>"), self._read((found.tree, "<star>")))
        self._read((found.tree, "<bound>"))
        self._write((scope.top.node, "<bound>"), {Value("constant", len(scope.top.bound))})


def is_main_guard(node: ast.If) -> bool:
    """Whether this is ``if __name__ == "__main__":``."""
    test = node.test
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.left, ast.Name)
        and test.left.id == "__name__"
        and len(test.comparators) == 1
        and isinstance(test.comparators[0], ast.Constant)
        and test.comparators[0].value == "__main__"
    )
