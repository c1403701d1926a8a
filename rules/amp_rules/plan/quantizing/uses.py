"""What a script does with a model that becomes an exported graph: it must ask for nothing that a graph has not."""

from __future__ import annotations

import ast
from functools import cached_property

from amp_rules.flow.values import ClassInfo, Value
from amp_rules.plan.model_homes.home import Home
from amp_rules.plan.model_parts import has_parameters
from amp_rules.plan.quantizing.why_not import NotQuantized
from amp_rules.roles.kinds import is_optimizer
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.scopes import FunctionNode, Scope
from amp_rules.source.syntax import walk

_KEPT = frozenset({"parameters", "state_dict", "load_state_dict", "train", "eval", "zero_grad"})
"""Methods that give of a prepared model what they give of the one that it was made from."""

_OWN = _KEPT | {"__call__", "named_parameters", "modules", "_load_from_state_dict", "_save_to_state_dict"}
"""Methods that, written by the script for a class of its own, an exported graph would not run."""


class Uses:
    """Checks them.

    Args:
        program: the program.
        home: the variable that becomes a graph.
        start: the statement behind which it does.
        models: what it may hold.
    """

    def __init__(self, program: Program, home: Home, start: ast.stmt, models: set[Value]) -> None:
        self._program = program
        self._home = home
        self._start = start
        self._models = models
        self._parts = {value for value in program.with_parts(models) - models if has_parameters(value)}
        self._shapes: dict[tuple[int, tuple[str, ...]], ast.Call] = {}

    def check(self) -> None:
        """Raises the first problem.

        Raises:
            NotQuantized: a use of the model, or its class, does not go with an exported graph.
        """
        for info in self._classes:
            self._check_class(info)
        self._check_made()
        for node, body, scope in self._program.nodes():
            is_own = body in self._own
            if is_own or self._is_before(node, body):
                if isinstance(node, ast.Call):
                    self._check_optimizer(node, scope)
                if not is_own and (problem := self._kept_before(node, scope)) is not None:
                    raise NotQuantized(scope.module, node, problem)
            elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
                self._check_use(node, scope)

    # ---- the classes ---------------------------------------------------------------------------------------------

    @cached_property
    def _classes(self) -> list[ClassInfo]:
        instances = [value.ref for value in self._program.with_parts(self._models) if value.kind == "instance"]
        return list(dict.fromkeys(info for ref in instances for info in ref.mro()))

    @cached_property
    def _own(self) -> set[ast.AST]:
        """The bodies of the model's own classes: they run while it is exported."""
        return {node for info in self._classes for node in ast.walk(info.facts.node) if isinstance(node, FunctionNode)}

    def _check_class(self, info: ClassInfo) -> None:
        facts = info.facts
        for name, known in facts.methods.items():
            method, module = known.node, known.module.module
            if name in _OWN:
                text = f"`{facts.node.name}.{name}` is the script's own, which an exported model does not run"
                raise NotQuantized(module, method, text)
            for node in walk(method):
                if isinstance(node, ast.Attribute) and node.attr == "training" and isinstance(node.ctx, ast.Load):
                    if not _is_told(module.parents, node):
                        text = (
                            f"`{module.text(node)}` decides in `{facts.node.name}`, and an exported model is that of "
                            "training"
                        )
                        raise NotQuantized(module, node, text, "use `--quantize static`")

    # ---- the order -----------------------------------------------------------------------------------------------

    @cached_property
    def _earlier(self) -> set[ast.AST]:
        """Functions that run before the model is prepared, and not after."""
        home, program = self._home, self._program
        nodes = program.nodes_of(home.body)
        before = [node for node in nodes if self._stands_before(node)]
        earlier = program.called_from(before)
        later: list[ast.AST] = [node for node in nodes if not self._stands_before(node)]
        for body, _ in program.bodies:
            if body is not home.body and body not in earlier:
                later += program.nodes_of(body)
        return earlier - program.called_from(later, apart={home.body})

    def _is_before(self, node: ast.AST, body: ast.AST) -> bool:
        return body in self._earlier or (body is self._home.body and self._stands_before(node))

    def _stands_before(self, node: ast.AST) -> bool:
        end = (self._start.end_lineno or self._start.lineno, self._start.end_col_offset or 0)
        return (getattr(node, "lineno", 0), getattr(node, "col_offset", 0)) <= end

    def _check_made(self) -> None:
        """It must be made where it is prepared: whoever made it elsewhere goes on with what was made."""
        for value in self._models:
            located = self._program.locate(value.site) if isinstance(value.site, ast.Call) else None
            if located is None or value.site is None or not self._is_before(value.site, located[0]):
                text = f"`{self._home.variable}` is made in another place, which goes on with what it made there"
                raise NotQuantized(
                    self._home.module, self._home.statement, text, "prepare it where it is made, by hand"
                )

    def _kept_before(self, node: ast.AST, scope: Scope) -> str | None:
        """Who else would keep the model that the graph is made of, and go on with it."""
        if not (isinstance(node, (ast.Name, ast.Attribute, ast.Call)) and scope.module.parents.get(node) is not None):
            return None
        module, parent = scope.module, scope.module.parents[node]
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            if self._is_model(node, scope) and not self._is_own_variable(node, scope):
                return f"`{module.text(node)}` keeps the model from before it is prepared for int8"
            return None
        if isinstance(parent, ast.keyword):
            parent = module.parents[parent]
        if isinstance(parent, (ast.List, ast.Set, ast.Dict)) and self._is_model(node, scope):
            return f"`{module.text(parent)}` keeps the model from before it is prepared for int8"
        if isinstance(parent, ast.Call) and parent.func is not node and self._is_model(node, scope):
            statement = blocks.statement_of(module, parent)
            is_left = isinstance(statement, ast.Expr) or self._home.variable in blocks.writes(statement)
            if not is_left and not self._program.flow.callees(parent):
                return f"`{module.text(parent.func)}` may keep the model from before it is prepared for int8"
        return None

    def _is_model(self, node: ast.expr, scope: Scope) -> bool:
        return not self._models.isdisjoint(self._program.flow.values(node, scope))

    def _is_own_variable(self, node: ast.Name | ast.Attribute, scope: Scope) -> bool:
        """Whether it is the variable that is prepared, or one that ends with a function that made the model."""
        if self._program.flow.key(blocks.reading(node), scope) == self._home.key:
            return True
        is_local = isinstance(node, ast.Name) and scope.owner(node.id) is scope
        return is_local and isinstance(scope.node, FunctionNode) and scope.node is not self._home.body

    def _check_optimizer(self, call: ast.Call, scope: Scope) -> None:
        if makes_optimizer(self._program, call, scope, self._models | self._parts):
            text = "the optimizer is made before the model is prepared for int8, and would train other weights than its"
            raise NotQuantized(scope.module, call, text, "make it below the model")

    # ---- the uses ------------------------------------------------------------------------------------------------

    def _check_use(self, node: ast.Name | ast.Attribute, scope: Scope) -> None:
        values = self._program.flow.values(node, scope)
        module = scope.module
        if self._models.isdisjoint(values):
            base = node.value if isinstance(node, ast.Attribute) else None
            is_asked = isinstance(base, (ast.Name, ast.Attribute)) and self._models & self._program.flow.values(
                base, scope
            )
            if self._parts & values and not is_asked:
                text = f"`{module.text(node)}` is a part of the model, used by itself: an exported one has it no more"
                raise NotQuantized(module, node, text)
            return
        problem = self._problem(node, scope)
        if problem is not None:
            raise NotQuantized(module, node, problem)

    def _problem(self, node: ast.Name | ast.Attribute, scope: Scope) -> str | None:
        module = scope.module
        parent = module.parents[node]
        if isinstance(parent, ast.Attribute):
            called = module.parents[parent]
            is_called = isinstance(called, ast.Call) and called.func is parent
            if parent.attr == "training" or (parent.attr in _KEPT and is_called):
                return None
            return f"`{module.text(parent)}` is asked of the model, which becomes an exported graph without its class"
        if isinstance(parent, ast.keyword):
            parent = module.parents[parent]
        if isinstance(parent, ast.Call):
            return self._of_call(parent, scope) if parent.func is node else self._of_argument(parent, scope)
        if isinstance(parent, ast.Tuple):
            parent = module.parents[parent]
        if isinstance(parent, (ast.Assign, ast.AnnAssign, ast.Return, ast.Expr)):
            return None
        if isinstance(parent, ast.Compare) and all(isinstance(item, (ast.Is, ast.IsNot)) for item in parent.ops):
            return None
        return f"it is not known what `{module.text(parent)}` does with the model"

    def _of_argument(self, call: ast.Call, scope: Scope) -> str | None:
        if self._program.flow.callees(call) or blocks.path_of(call.func) == "print":
            return None
        text = scope.module.text(call.func)
        return f"it is not known what `{text}` does with the model, which becomes an exported graph"

    def _of_call(self, call: ast.Call, scope: Scope) -> str | None:
        """An exported graph takes arguments of one form, that of its first batch."""
        text = f"`{scope.module.text(call)}`"
        if any(isinstance(item, ast.Starred) for item in call.args) or any(item.arg is None for item in call.keywords):
            return f"it is not known what {text} gives the model, and an exported one takes arguments of one form"
        given = [*call.args, *(item.value for item in call.keywords)]
        if any(isinstance(item, (ast.Constant, ast.UnaryOp)) for item in given):
            return f"{text} gives the model a constant, which an exported one does not take"
        self._shapes[len(call.args), tuple(sorted(item.arg or "" for item in call.keywords))] = call
        if len(self._shapes) > 1:
            return f"{text} gives the model other arguments than another call, and an exported one takes those of one"
        return None


def makes_optimizer(program: Program, call: ast.Call, scope: Scope, models: set[Value]) -> bool:
    """Whether a call makes an optimizer of one of the models."""
    made = program.flow.values(call, scope)
    return any(is_optimizer(value) and value.site is call for value in made) and bool(
        program.models_of_optimizer(call) & models
    )


def _is_told(parents: dict[ast.AST, ast.AST], node: ast.AST) -> bool:
    """Whether ``self.training`` is only handed on: ``F.dropout(x, training=self.training)``."""
    parent = parents[node]
    return isinstance(parent, ast.Call) or (isinstance(parent, ast.keyword) and parent.arg in ("training", "train"))
