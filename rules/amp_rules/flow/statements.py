"""What the statements of a body bind."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence

from amp_rules.flow.calls import CallEvaluator
from amp_rules.flow.cells import Mark
from amp_rules.flow.containers import Containers
from amp_rules.flow.expressions import ExpressionEvaluator
from amp_rules.flow.imports import Imports
from amp_rules.flow.reached import Reached
from amp_rules.flow.store import Store
from amp_rules.flow.values import ClassInfo, Value
from amp_rules.source.blocks import enclosing, own_parts, suites, walk_own
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import children

_Evaluate = Callable[..., Sequence[ast.stmt] | None]
_TRIES = tuple(getattr(ast, name) for name in ("Try", "TryStar") if hasattr(ast, name))


class Statements:
    """Evaluates bodies, statement by statement, in no order that matters."""

    def __init__(
        self,
        store: Store,
        reached: Reached,
        containers: Containers,
        expressions: ExpressionEvaluator,
        calls: CallEvaluator,
        imports: Imports,
    ) -> None:
        self._store = store
        self._reached = reached
        self._containers = containers
        self._expressions = expressions
        self._calls = calls
        self._imports = imports
        self._parts: dict[ast.AST, list[tuple[ast.stmt, _Evaluate]]] = {}
        self._by_class: dict[type[ast.AST], _Evaluate] = {
            ast.Assign: self._assign,
            ast.AnnAssign: self._annotated,
            ast.AugAssign: self._augmented,
            ast.For: self._for,
            ast.AsyncFor: self._for,
            ast.While: self._while,
            ast.If: self._if,
            ast.With: self._with,
            ast.AsyncWith: self._with,
            ast.FunctionDef: self._function,
            ast.AsyncFunctionDef: self._function,
            ast.ClassDef: self._class,
            ast.Import: imports.plain,
            ast.ImportFrom: imports.from_module,
            ast.Return: self._return,
            ast.Expr: self._expression,
            ast.Match: self._match,
            **dict.fromkeys(_TRIES, self._try),
        }

    def body(self, body: ast.AST, scope: Scope) -> None:
        """Evaluate a module, function or lambda; of one that was evaluated before, what has become due."""
        if isinstance(body, ast.Lambda):
            self._store.begin(body.body, body)
            self._store.write((body, Mark.RETURN), self._expressions.evaluate(body.body, scope))
            return
        if isinstance(body, (ast.FunctionDef, ast.AsyncFunctionDef)) and self._is_due(body.args, body):
            self._store.begin(body.args, body)
            self._defaults(body, scope)
        parts = self._parts.get(body)
        if parts is None:
            self._parts[body] = list(self._evaluated(body, scope))
            return
        for node, evaluate in parts:
            if self._store.is_due(node):
                self._store.begin(node, body)
                evaluate(node, scope)

    def _is_due(self, part: ast.AST, body: ast.AST) -> bool:
        return body not in self._parts or self._store.is_due(part)

    def _evaluated(self, body: ast.AST, scope: Scope) -> Iterator[tuple[ast.stmt, _Evaluate]]:
        """Evaluate the statements of a body, those below others included, and yield each."""
        pending = [*getattr(body, "body", [])][::-1]
        while pending:
            node = pending.pop()
            evaluate = self._by_class.get(node.__class__, self._other)
            self._store.begin(node, body)
            pending.extend(reversed(evaluate(node, scope) or ()))
            yield node, evaluate

    def _defaults(self, body: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> None:
        for name, default in self._reached.functions[body].defaults.items():
            self._store.write((body, name), self._expressions.evaluate(default, scope.parent or scope))

    def _run(self, statements: Iterable[ast.stmt], scope: Scope) -> None:
        """Evaluate statements and those below them; a chain of ``elif`` nests each test in the one before."""
        pending = [*statements][::-1]
        while pending:
            node = pending.pop()
            evaluate = self._by_class.get(node.__class__, self._other)
            pending.extend(reversed(evaluate(node, scope) or ()))

    # ---- statements ----------------------------------------------------------------------------------------------
    # Each evaluates its own expressions and hands back the statements below it.

    def _assign(self, node: ast.Assign, scope: Scope) -> None:
        values = self._expressions.evaluate(node.value, scope)
        for target in node.targets:
            self._expressions.assign(target, values, scope)

    def _annotated(self, node: ast.AnnAssign, scope: Scope) -> None:
        if node.value is not None:
            self._expressions.assign(node.target, self._expressions.evaluate(node.value, scope), scope)

    def _augmented(self, node: ast.AugAssign, scope: Scope) -> None:
        values = self._expressions.evaluate(node.value, scope)
        if isinstance(node.op, ast.Add):
            kept = {value for value in values if value.kind in ("sequence", "parameters")}
            self._expressions.assign(node.target, kept, scope)

    def _for(self, node: ast.For | ast.AsyncFor, scope: Scope) -> Sequence[ast.stmt]:
        given = self._containers.elements(self._expressions.evaluate(node.iter, scope))
        self._expressions.assign(node.target, given, scope)
        return [*node.body, *node.orelse]

    def _while(self, node: ast.While, scope: Scope) -> Sequence[ast.stmt]:
        self._expressions.evaluate(node.test, scope)
        return [*node.body, *node.orelse]

    def _if(self, node: ast.If, scope: Scope) -> Sequence[ast.stmt]:
        if is_main_guard(node) and not scope.module.is_entry:
            return node.orelse
        self._expressions.evaluate(node.test, scope)
        return [*node.body, *node.orelse]

    def _with(self, node: ast.With | ast.AsyncWith, scope: Scope) -> Sequence[ast.stmt]:
        for item in node.items:
            values = self._expressions.evaluate(item.context_expr, scope)
            if item.optional_vars is not None:
                self._expressions.assign(item.optional_vars, values, scope)
        return node.body

    def _try(self, node: ast.stmt, scope: Scope) -> Sequence[ast.stmt]:
        return [statement for suite in suites(node) for statement in suite]

    def _match(self, node: ast.Match, scope: Scope) -> Sequence[ast.stmt]:
        self._expressions.evaluate(node.subject, scope)
        return [statement for case in node.cases for statement in case.body]

    def _return(self, node: ast.Return, scope: Scope) -> None:
        if node.value is not None and scope.is_function:
            self._store.write((scope.node, Mark.RETURN), self._expressions.evaluate(node.value, scope))

    def _expression(self, node: ast.Expr, scope: Scope) -> None:
        self._expressions.evaluate(node.value, scope)

    def _other(self, node: ast.stmt, scope: Scope) -> None:
        for child in children(node):
            if isinstance(child, ast.expr):
                self._expressions.evaluate(child, scope)

    # ---- definitions ---------------------------------------------------------------------------------------------

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> None:
        info = self._reached.functions.get(node)
        values = {Value("function", info)} if info is not None else set()
        for decorator in node.decorator_list:
            self._calls.decorate(decorator, values, scope)
        if not scope.is_class:
            self._store.write((scope.owner(node.name).node, node.name), values)

    def _class(self, node: ast.ClassDef, scope: Scope) -> None:
        info = self._reached.classes.get(node)
        if info is None:
            return
        self.fill_class(info, scope)
        for base in info.mro()[1:]:
            hook = base.facts.methods.get("__init_subclass__")
            if hook is not None:
                self._reached.reach(hook)
                self._reached.give_receiver(hook, Value("class", info))
        for decorator in node.decorator_list:
            self._calls.decorate(decorator, {Value("class", info)}, scope)
        self._store.write((scope.owner(node.name).node, node.name), {Value("class", info)})

    def fill_class(self, info: ClassInfo, scope: Scope) -> None:
        """Evaluate the bases and the body of a class."""
        node = info.facts.node
        for base in node.bases:
            for value in self._expressions.evaluate(base, scope):
                if value.kind in ("class", "external") and value not in info.bases and value.ref is not info:
                    derived = info.derived()
                    info.bases = [*info.bases, value]
                    self._store.all_due()
                    # The file that defines the base may come after the first objects of the class.
                    for item in derived:
                        self._store.look_again(item.facts.node)
                        self._reached.reach_new_bases(item)
        inner = self._reached.scopes[node]
        for statement in node.body:
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                for decorator in statement.decorator_list:
                    self._expressions.evaluate(decorator, scope)
            elif isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
                self._class_variable(statement, inner)
            else:
                self._run([statement], inner)

    def _class_variable(self, statement: ast.Assign | ast.AnnAssign, inner: Scope) -> None:
        assert statement.value is not None
        values = self._expressions.evaluate(statement.value, inner)
        for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
            if isinstance(target, ast.Name):
                self._store.write((inner.node, target.id), values)


def nodes_run(body: ast.AST, scope: Scope) -> Iterator[ast.AST]:
    """Yield the nodes that run when a body runs; what stands below the main guard of an imported file does not."""
    is_imported = isinstance(body, ast.Module) and not scope.module.is_entry
    for part in own_parts(body):
        is_left_out = is_imported and isinstance(part, ast.If) and is_main_guard(part)
        for item in getattr(part, "orelse", ()) if is_left_out else (part,):
            yield from walk_own(item)


def is_under_main_guard(module: Module, node: ast.AST) -> bool:
    """Whether a node stands under ``if __name__ == "__main__":`` within its own body."""
    return any(isinstance(item, ast.If) and is_main_guard(item) for item in enclosing(module, node))


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
