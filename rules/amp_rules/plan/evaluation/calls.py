"""What calls leave behind: whether an evaluation may make them in each process for its own batches only."""

from __future__ import annotations

import ast

from amp_rules.plan.evaluation.making import made_in, root_of
from amp_rules.roles.file_effects import file_effects
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.scopes import FunctionNode, Scope
from amp_rules.source.syntax import conjuncts, is_super
from amp_rules.torch import evaluating
from amp_rules.torch.replication import CLOCKS, DRAWING_METHODS, DRAWS, DROPOUT, NOT_DRAWN, PROCESS

_STEPS = frozenset({"backward", "step", "zero_grad", "train", "load_state_dict"})
"""Methods that train."""


_CHANGING = frozenset(
    "append extend insert add update pop remove clear setdefault write send put register_buffer".split()
)
"""Methods that change what they are asked of."""


class Calls:
    """Questions about the calls of one program."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._bodies: dict[FunctionFacts, str | None] = {}
        self._writing = {effect.call for effect in file_effects(program)}

    # ---- what is computed ----------------------------------------------------------------------------------

    def obstacle(self, call: ast.Call, scope: Scope, fresh: set[str]) -> str | None:
        """What a call does besides computing what it gives; None where that is nothing.

        Args:
            call: the call.
            scope: where it stands.
            fresh: variables that hold what was made for this batch alone.
        """
        text = f"`{scope.module.text(call.func)}`"
        names = self._program.callee_names(call, scope)
        callees = self._program.flow.callees(call)
        if callees:
            left = map(self.leaves, sorted(callees, key=lambda item: item.place))
            return next((why for why in left if why is not None), None)
        if self._draws(call, names):
            return f"{text} draws random numbers"
        if call in self._writing:
            return f"{text} writes a file"
        if names & CLOCKS or names & PROCESS or names & evaluating.IDLE:
            return None
        if names:
            computes = all(name.startswith(evaluating.COMPUTING) for name in names)
            if computes and not any(name.startswith(evaluating.NOT_COMPUTING) for name in names):
                return None
        if isinstance(call.func, ast.Attribute) and call.func.attr in _STEPS:
            if not (call.func.attr == "train" and _is_false(call)):
                return f"{text} trains"
        if self._program.called_models(call, scope):
            return None
        if isinstance(call.func, ast.Attribute):
            return self._method_obstacle(call, call.func, scope, fresh, text)
        values = self._program.flow.values(call.func, scope)
        if values and all(value.kind == "class" for value in values):
            return None
        return f"it is not known what {text} does"

    def _method_obstacle(
        self, call: ast.Call, function: ast.Attribute, scope: Scope, fresh: set[str], text: str
    ) -> str | None:
        attr, owner = function.attr, function.value
        if attr in DRAWING_METHODS or attr in ("generate", "sample"):
            return f"{text} draws random numbers"
        if attr in evaluating.READING_METHODS:
            return None
        if attr == "eval" and not call.args:
            return None
        root = root_of(owner)
        if root is None or root in fresh:
            return None
        if attr in evaluating.MODEL_METHODS and self._program.roles.modules(owner, scope):
            return None
        return f"it is not known what {text} does"

    @staticmethod
    def _draws(call: ast.Call, names: set[str]) -> bool:
        if any(name.startswith(DROPOUT) for name in names):
            return not any(item.arg == "training" for item in call.keywords) and len(call.args) < 3
        return any(name.startswith(DRAWS) for name in names - NOT_DRAWN)

    # ---- functions of the project --------------------------------------------------------------------------

    def leaves(self, info: FunctionFacts, *, shows: bool = False) -> str | None:
        """What a function leaves behind besides what it gives back; with ``shows``, besides lines that it shows."""
        if shows:
            return self._leaves(info, shows=True)
        if info not in self._bodies:
            self._bodies[info] = None  # one that calls itself leaves nothing more than itself
            self._bodies[info] = self._leaves(info, shows=False)
        return self._bodies[info]

    def _leaves(self, info: FunctionFacts, *, shows: bool) -> str | None:
        scope = self._program.flow.scopes.get(info.node)
        where = f"`{info.name}`"
        if scope is None or info.is_generator:
            return f"it is not known what {where} does"
        own = _Own(info)
        for node in blocks.walk_body(info.node):
            if _only_in_training(info, node):
                continue
            if isinstance(node, (ast.Global, ast.Nonlocal)):
                if not all(self._is_private(name, info, scope) for name in node.names):
                    return f"{where} writes the variable `{node.names[0]}` of the file"
            elif isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, (ast.Store, ast.Del)):
                if not own.holds(node):
                    return f"{where} writes `{scope.module.text(node)}`"
            elif isinstance(node, (ast.Yield, ast.YieldFrom, ast.Await)):
                return f"it is not known what {where} does"
            elif isinstance(node, ast.Call):
                why = self._call_in(node, scope, own, shows=shows)
                if why is not None:
                    return f"{why}, in {where}" if not why.endswith(where) and ", in `" not in why else why
        return None

    def _call_in(self, call: ast.Call, scope: Scope, own: _Own, *, shows: bool) -> str | None:
        if shows and self.shows(call, scope) is not None:
            return None
        if self._program.is_model_code(scope.node) and (self._is_part(call) or own.fills(call)):
            return None
        if is_super(call):
            return None
        return self.obstacle(call, scope, own.fresh)

    def _is_part(self, call: ast.Call) -> bool:
        """Whether a model's code calls what nothing is known of: a part that it has from a list or a dictionary."""
        if self._program.flow.callees(call) or not isinstance(call.func, (ast.Name, ast.Attribute, ast.Subscript)):
            return False
        located = self._program.locate(call)
        if located is None or self._program.flow.values(call.func, located[1]):
            return False
        if self._program.callee_names(call, located[1]):
            return False
        if isinstance(call.func, ast.Name):
            return True
        last = _last(call.func)
        return root_of(call.func) == "self" and last not in _CHANGING and not last.endswith("_")

    def _is_private(self, name: str, info: FunctionFacts, scope: Scope) -> bool:
        """Whether no other function reads a variable of the file."""
        return not any(
            isinstance(node, ast.Name)
            and node.id == name
            and isinstance(node.ctx, ast.Load)
            and body is not info.node
            and isinstance(body, FunctionNode)
            for node, body, where in self._program.nodes()
            if where.module is scope.module
        )

    # ---- what is shown -------------------------------------------------------------------------------------

    def shows(self, call: ast.Call, scope: Scope) -> str | None:
        """How a call shows something and does nothing else: ``"bar"`` in place, ``"line"`` by lines; else None."""
        names = self._program.callee_names(call, scope)
        if names & evaluating.STREAM_METHODS or names & evaluating.IDLE:
            return "bar"
        if names & evaluating.SHOWING_FUNCTIONS or any(name.startswith(("logging.", "loguru.")) for name in names):
            return "line"
        callees = self._program.flow.callees(call)
        if callees:
            if any(self.leaves(info, shows=True) is not None for info in callees):
                return None
            return "bar" if all(map(self._is_bar, callees)) else "line"
        if not isinstance(call.func, ast.Attribute):
            return None
        owners = self._program.flow.values(call.func.value, scope)
        if owners and all(value.kind == "object" and str(value.ref).startswith("tqdm.") for value in owners):
            return "bar" if call.func.attr in evaluating.BAR_METHODS else None
        if owners and all(value.name.startswith(("logging.", "loguru.")) for value in owners):
            return "line" if call.func.attr in evaluating.LOG_METHODS else None
        return None

    def _is_bar(self, info: FunctionFacts) -> bool:
        """Whether a function draws a progress bar: it writes to the terminal without ``print``."""
        scope = self._program.flow.scopes[info.node]
        called = [
            self._program.callee_names(node, scope)
            for node in blocks.walk_body(info.node)
            if isinstance(node, ast.Call)
        ]
        return any(names & evaluating.STREAM_METHODS for names in called) and not any(
            names & evaluating.SHOWING_FUNCTIONS for names in called
        )


class _Own:
    """The variables of a function that hold what it has made itself."""

    def __init__(self, info: FunctionFacts) -> None:
        self._info = info
        self.fresh = made_in(list(blocks.walk_body(info.node)), set()) - set(info.parameters)

    def fills(self, call: ast.Call) -> bool:
        """Whether a tensor is changed in place that a model is given for this batch: ``scores.masked_fill_(...)``."""
        if not isinstance(call.func, ast.Attribute) or call.func.attr in DRAWING_METHODS:
            return False
        if not call.func.attr.endswith("_") or call.func.attr.endswith("__"):
            return False
        return root_of(call.func.value) in set(self._info.parameters) - {self._info.receiver}

    def holds(self, node: ast.Attribute | ast.Subscript) -> bool:
        """Whether what is written into is the function's own, or an object that is being made."""
        root = root_of(node)
        if root in self.fresh:
            return True
        return self._info.name == "__init__" and root == self._info.receiver


def _only_in_training(info: FunctionFacts, node: ast.AST) -> bool:
    """Whether a node runs in training mode alone: ``if self.training:``."""
    child = node
    for parent in info.module.module.ancestors(node):
        if parent is info.node:
            return False
        if isinstance(parent, ast.If) and child in parent.body:
            parts = conjuncts(parent.test)
            if any(isinstance(part, ast.Attribute) and part.attr == "training" for part in parts):
                return True
        child = parent
    return False


def _last(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else ""


def _is_false(call: ast.Call) -> bool:
    return len(call.args) == 1 and isinstance(call.args[0], ast.Constant) and call.args[0].value is False
