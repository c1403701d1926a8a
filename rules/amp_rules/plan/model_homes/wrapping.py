"""Where a model is prepared that the script wraps itself, and one that is made under a condition."""

from __future__ import annotations

import ast
from dataclasses import replace

from amp_rules.flow.statements import is_main_guard
from amp_rules.plan.model_homes.home import Home
from amp_rules.plan.model_homes.variables import PLACING, Variables, is_function
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.scopes import arguments_of
from amp_rules.source.syntax import walk
from amp_rules.torch.apex import ALL_WRAPPERS
from amp_rules.torch.wrappers import DATA_PARALLEL, DISTRIBUTED_DATA_PARALLEL

_WRAPS = DISTRIBUTED_DATA_PARALLEL | ALL_WRAPPERS


class Wrapping:
    """Moves the home of a model to where the script wraps it."""

    def __init__(self, program: Program, variables: Variables) -> None:
        self.program = program
        self._variables = variables

    def inside_parallel(self, home: Home) -> Home:
        """The argument of the script's own DDP, if it has one: a model gets its precision before it is wrapped."""
        for call, body, scope in self.program.calls():
            if not isinstance(call.func, (ast.Name, ast.Attribute)) or not call.args:
                continue
            if not self.program.names(call.func, scope) & _WRAPS:
                continue
            argument = call.args[0]
            statement = blocks.statement_of(scope.module, call)
            held = {blocks.path_of(argument)}
            if isinstance(statement, ast.Assign):
                held |= {blocks.path_of(target) for target in statement.targets}
            if body is home.body and blocks.exclude_each_other(home.module, home.statement, statement):
                continue
            if body is home.body and home.variable in held:
                before = self._before_branch(home, statement)
                if before is not None:
                    return replace(home, statement=before, inline=None)
                return replace(
                    home, module=scope.module, scope=scope, statement=statement, inline=argument, in_place=True
                )
        return self._behind_wrapping(home)

    def _behind_wrapping(self, home: Home) -> Home:
        """Behind the condition under which the script spreads a model that it was given: other paths have it too."""
        statement = home.statement
        call = statement.value if isinstance(statement, ast.Assign) else None
        if not (is_function(home.body) and isinstance(call, ast.Call) and call.args):
            return home
        own = home.variable == blocks.path_of(call.args[0])
        if not own or not self.program.callee_names(call, home.scope) & DATA_PARALLEL:
            return home
        around = [parent for parent in blocks.enclosing(home.module, statement) if isinstance(parent, ast.If)]
        given = {argument.arg for argument in arguments_of(home.body)}
        if not around or home.variable not in given:
            return home
        others = [
            node
            for node in walk(around[-1])
            if isinstance(node, (ast.Name, ast.Attribute)) and blocks.path_of(node) == home.variable
        ]
        # Once assigned and once given to the wrapper: anything else there would use the model before it is prepared.
        return replace(home, statement=around[-1], inline=None) if len(others) == 2 else home

    def _before_branch(self, home: Home, wrapping: ast.stmt) -> ast.stmt | None:
        """The statement before the condition under which the script wraps its model, where other paths do not."""
        around = [
            parent
            for parent in blocks.enclosing(home.module, wrapping)
            if isinstance(parent, ast.If) and not is_main_guard(parent)
        ]
        if not around:
            return None
        outermost = around[-1]
        where = blocks.place(home.module, outermost)
        before = [item for item in where.suite[: where.index] if not self._runs_instead(home, item, wrapping)]
        if not any(home.variable in blocks.writes(item) for item in before):
            return None
        # Weights that are loaded under a condition come before it, too, unless an optimizer has the parameters by then.
        built = next((index for index, item in enumerate(before) if self._builds_optimizer(item, home)), len(before))
        return [
            item
            for index, item in enumerate(before)
            if home.variable in blocks.writes(item)
            or _is_placed_by(item, home.variable)
            or (index < built and any(_is_placed_by(node, home.variable) for node in blocks.walk_own(item)))
        ][-1]

    def _runs_instead(self, home: Home, statement: ast.stmt, other: ast.stmt) -> bool:
        """Whether all that a statement does with the variable is done where another statement does not run."""
        return all(
            blocks.exclude_each_other(home.module, node, other)
            for node in blocks.walk_own(statement)
            if blocks.path_of(node) == home.variable
        )

    def _builds_optimizer(self, statement: ast.stmt, home: Home) -> bool:
        return any(
            isinstance(node, ast.Call) and self._variables.makes_optimizer(node, home.scope)
            for node in blocks.walk_own(statement)
        )

    def where_bound(self, home: Home) -> list[Home]:
        """The home; or one at each assignment, where other branches make no model: ``if a: x = A()``, no ``else``."""
        where = blocks.place(home.module, home.statement)
        bound = (name for item in where.suite[: where.index + 1] for name in blocks.certainly_bound(item))
        if home.in_place or home.before or not isinstance(home.statement, ast.If) or not home.variable.isidentifier():
            return [home]
        given = arguments_of(home.body) if is_function(home.body) else ()
        if home.variable in {*bound, *(argument.arg for argument in given)}:
            return [home]
        if any(
            isinstance(item, (ast.Expr, ast.Assign)) and home.variable in blocks.reads(item)
            for item in where.suite[: where.index]
        ):
            return [home]  # what is read there has a value
        made = [
            node
            for node in blocks.walk_own(home.statement)
            if isinstance(node, ast.Assign) and home.variable in {blocks.path_of(target) for target in node.targets}
        ]
        singles = [
            node
            for node in made
            if len(node.targets) == 1 and node.lineno == node.end_lineno and not self._spreads(node.value, home)
        ]
        bound_at = [replace(home, statement=node, inline=node.value if node in singles else None) for node in made]
        return bound_at or [home]

    def _spreads(self, node: ast.expr, home: Home) -> bool:
        """Whether a call wraps for several GPUs, which is rewritten where it stands."""
        return isinstance(node, ast.Call) and bool(self.program.callee_names(node, home.scope) & DATA_PARALLEL)


def _is_placed_by(statement: ast.AST, variable: str) -> bool:
    """``model.to(device)`` and ``model.load_state_dict(state)``, on lines of their own."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in PLACING
        and blocks.path_of(call.func.value) == variable
    )
