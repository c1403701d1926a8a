"""Where a model is prepared that the script wraps itself, and one that is made under a condition."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeGuard

from amp_rules.flow.statements import is_main_guard
from amp_rules.plan.model_homes.home import Home
from amp_rules.plan.model_homes.variables import PLACING, Variables, is_function
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.scopes import arguments_of
from amp_rules.source.syntax import conjuncts, walk
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
                made = self._made_before_branch(home, statement, argument)
                made = made or self._before_choice(home, statement, call)
                if made is not None:
                    return made
                return replace(
                    home, module=scope.module, scope=scope, statement=statement, inline=argument, in_place=True
                )
        return self._in_a_function(home) or self._given_to_function(home) or self._behind_wrapping(home)

    def _in_a_function(self, home: Home) -> Home | None:
        """The same where a function wraps it and gives it back: ``model = deploy(model)``."""
        for site in self.program.calls_to(_WRAPS):
            info = self.program.function_of(site.body)
            callers = self.program.flow.callers(info) if info is not None and site.body is not home.body else []
            if len(callers) != 1 or info is None or not isinstance(site.node, ast.Call) or not site.node.args:
                continue
            caller, argument = calling(callers[0]), site.node.args[0]
            taken = blocks.statement_of(caller.module, caller.node)
            if caller.body is not home.body or not isinstance(argument, ast.Name) or not isinstance(taken, ast.Assign):
                continue
            if taken.value is not caller.node or not _gives_back(info, site, taken, home.variable):
                continue
            if blocks.loop_around(caller.module, taken) is not None:
                return None
            if any(
                isinstance(parent, ast.If) and not is_main_guard(parent)
                for parent in blocks.enclosing(caller.module, taken)
            ):
                before = self._before_branch(home, taken)
                return replace(home, statement=before, inline=None) if before is not None else None
            return replace(
                home, module=site.module, scope=site.scope, body=site.body, statement=site.statement,
                variable=argument.id, inline=argument, in_place=True,
            )  # fmt: skip
        return None

    def _given_to_function(self, home: Home) -> Home | None:
        """Where a function is given it that wraps it on some of its ways, or that wraps several models."""
        for taken in _assignments(home):
            call = taken.value
            if not isinstance(call, ast.Call):
                continue
            for info in self.program.flow.callees(call):
                given = self._wrapped_by(info, call)
                if given is None or blocks.exclude_each_other(home.module, home.statement, taken):
                    continue
                path = blocks.path_of(given)
                if path is None:
                    return replace(home, statement=taken, inline=given, in_place=True)
                return self._above(home, taken, path)
        return None

    def _wrapped_by(self, info: FunctionFacts, call: ast.Call) -> ast.expr | None:
        """The argument that a function gives back in a wrapper on some ways: ``return DDP(m) if several else m``."""
        if not isinstance(info.node, ast.FunctionDef):
            return None
        if not any(site.body is info.node for site in self.program.calls_to(_WRAPS)):
            return None
        wrapping = [site for site in self.program.calls_to(_WRAPS | DATA_PARALLEL) if site.body is info.node]
        inner = {
            part.id
            for site in wrapping
            if isinstance(site.node, ast.Call) and site.node.args
            if isinstance(part := _unplaced(site.node.args[0]), ast.Name)
        }
        if len(inner) != 1:
            return None
        name = inner.pop()
        wrapped = {site.node for site in wrapping}
        kept = {
            target.id
            for node in self.program.nodes_of(info.node)
            if isinstance(node, ast.Assign) and node.value in wrapped
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        ways = [way for value in info.returns for way in _ways(value)]
        if not ways or not all(
            way in wrapped or (isinstance(part := _unplaced(way), ast.Name) and part.id in kept | {name})
            for way in ways
        ):
            return None
        return info.argument(call, name)

    def _before_choice(self, home: Home, wrapping: ast.stmt, call: ast.Call) -> Home | None:
        """Above a line that wraps it in one of two cases alone: ``net = DDP(model) if several else model``."""
        inner: ast.AST = call
        for above in home.module.ancestors(call):
            if isinstance(above, ast.stmt):
                break
            if isinstance(above, ast.IfExp) and inner is not above.test:
                path = blocks.path_of(_unplaced(call.args[0]))
                other = above.orelse if inner is above.body else above.body
                if path is not None and blocks.path_of(_unplaced(self._unwrapped(other, home))) == path:
                    return self._above(home, wrapping, path)
            inner = above
        return None

    def _unwrapped(self, node: ast.expr, home: Home) -> ast.expr:
        """The model that an expression wraps, as ``nn.DataParallel(model)`` does, or the expression itself."""
        return node.args[0] if self._calls(node, _WRAPS | DATA_PARALLEL, home) and node.args else node

    def _above(self, home: Home, wrapping: ast.stmt, path: str) -> Home:
        """Behind the last line above that makes a model or puts it in its place, else right above the line itself."""
        where = blocks.place(home.module, wrapping)
        before = where.suite[: where.index]
        made = [item for item in before if path in blocks.writes(item) or _is_placed_by(item, path)]
        if made:
            return replace(home, statement=made[-1], variable=path, inline=None, is_optional=False)
        return replace(home, statement=wrapping, variable=path, inline=None, before=True)

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
            or (index < built and _completes(item, home.variable))
        ][-1]

    def _made_before_branch(self, home: Home, wrapping: ast.stmt, argument: ast.expr) -> Home | None:
        """A name that the model is made under before the branches, each of which keeps it in the variable.

        ``if several: self.net = DDP(net.to(gpu))``, ``else: self.net = net.to(device)``.
        """
        inner = _unplaced(argument)
        around = [parent for parent in blocks.enclosing(home.module, wrapping) if isinstance(parent, ast.If)]
        if not isinstance(inner, ast.Name) or len(around) != 1:
            return None
        others = [
            node
            for node in blocks.walk_own(around[0])
            if isinstance(node, ast.Assign) and node is not wrapping and home.variable in blocks.writes(node)
        ]
        where = blocks.place(home.module, around[0])
        made = [item for item in where.suite[: where.index] if inner.id in blocks.writes(item)]
        if not others or not made or not isinstance(made[-1], ast.Assign):
            return None
        # Each of the others has the same model, and only they run instead.
        if not all(
            inner.id in blocks.reads(node.value) and blocks.exclude_each_other(home.module, node, wrapping)
            for node in others
        ):
            return None
        placed = [item for item in where.suite[: where.index] if item is made[-1] or _is_placed_by(item, inner.id)]
        return replace(home, statement=placed[-1], variable=inner.id, inline=None, is_optional=False)

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
        if home.in_place:
            return [home, *self._unwrapped_ways(home)]
        if home.before or not isinstance(home.statement, ast.If):
            return [home]
        where = blocks.place(home.module, home.statement)
        bound = {name for item in where.suite[: where.index + 1] for name in blocks.certainly_bound(item)}
        given = {argument.arg for argument in arguments_of(home.body)} if is_function(home.body) else set()
        if not home.variable.isidentifier():
            if self._may_be_set_elsewhere(home) or _is_set_either_way(home.statement, home.variable):
                return [home]
        elif home.variable in bound | given:
            return [home]
        if any(
            isinstance(item, (ast.Expr, ast.Assign)) and home.variable in blocks.reads(item)
            for item in where.suite[: where.index]
        ):
            return [home]  # what is read there has a value
        made = [node for node in blocks.walk_own(home.statement) if _assigns(node, home.variable)]
        # What wraps for several GPUs is rewritten where it stands.
        singles = [
            node
            for node in made
            if len(node.targets) == 1
            and node.lineno == node.end_lineno
            and not self._calls(node.value, DATA_PARALLEL, home)
        ]
        made = [node for node in made if not self._is_made_again(home, node, made)]
        bound_at = [replace(home, statement=node, inline=node.value if node in singles else None) for node in made]
        return bound_at or [self._where_placed(home, home.statement)]

    def _unwrapped_ways(self, home: Home) -> Iterator[Home]:
        """Yield the homes of models that the variable holds where the script wraps none.

        ``net = DDP(Net()) if several else Net()``, and the same as branches of a condition.
        """
        made = home.inline
        if made is None or blocks.path_of(_unplaced(made)) is not None:
            return
        if not self._calls(home.module.parents.get(made), _WRAPS, home):
            return
        for way in _ways_of(home.statement):
            if made not in set(walk(way)):
                yield from self._at_way(home, home.statement, way)
        done: set[ast.stmt] = set()
        for statement in self._made_instead(home):
            around = [suite[0] for suite, _ in blocks.suites_around(home.module, statement)]
            # What a branch goes on with is prepared by then, and what it makes anew is not.
            if around[0] in done or (done & set(around) and home.variable in blocks.reads(statement.value)):
                continue
            done.add(around[0])
            last = self._last_of_branch(home, statement)
            if _assigns(last, home.variable):
                for way in _ways_of(last):
                    yield from self._at_way(home, last, way)
            else:
                yield replace(home, statement=last, inline=None, in_place=False, is_optional=False)

    def _made_instead(self, home: Home) -> list[ast.Assign]:
        """The assignments to the variable where its home does not run, and outer ones first."""
        found = [node for node in _assignments(home) if blocks.exclude_each_other(home.module, node, home.statement)]
        return sorted(found, key=lambda node: len(list(blocks.suites_around(home.module, node))))

    def _at_way(self, home: Home, statement: ast.stmt, way: ast.expr) -> Iterator[Home]:
        inner = self._unwrapped(way, home)
        if self.program.roles.modules(inner, home.scope):
            yield replace(home, statement=statement, inline=inner, is_optional=False)

    def _last_of_branch(self, home: Home, statement: ast.stmt) -> ast.stmt:
        """The last statement of a suite, from one on, that makes a model itself or puts it in its place."""
        where = blocks.place(home.module, statement)
        return [
            item
            for item in where.suite[where.index :]
            if _is_placed_by(item, home.variable) or _assigns(item, home.variable)
        ][-1]

    def _where_placed(self, home: Home, condition: ast.If) -> Home:
        """The line of a branch that moves a model, where each line that makes it stands under the same condition."""
        placing = [item for item in condition.body if self._variables.is_placing(item, home.variable)]
        made = _assignments(home)
        shape = ast.dump(condition.test)
        if placing and made and all(_stands_under(home.module, node, shape) for node in made):
            return replace(home, statement=placing[-1], inline=None)
        return home

    def _is_made_again(self, home: Home, node: ast.Assign, made: list[ast.Assign]) -> bool:
        """Whether a later line of the branch makes it anew of itself: ``net = Net()``, then ``net = net.to(gpu)``."""
        where = blocks.place(home.module, node)
        later = where.suite[where.index + 1 :]
        return any(other in later and home.variable in blocks.reads(other.value) for other in made)

    def _may_be_set_elsewhere(self, home: Home) -> bool:
        """Whether an attribute may have a value above the condition, or be something else than one of ``self``."""
        owner, _, name = home.variable.rpartition(".")
        info = self.program.function_of(home.body)
        if info is None or info.receiver != owner or info.cls is None:
            return True
        inner = set(walk(home.statement))
        return any(
            (isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Store))
            or (isinstance(node, ast.Constant) and node.value == name)
            for module in self.program.flow.modules
            for node in module.nodes
            if node not in inner and not self._wraps_itself(module, node)
        ) or any(name in blocks.writes(item) for base in _classes(self.program, info) for item in base.body)

    def _wraps_itself(self, module: Module, node: ast.AST) -> bool:
        """``self.net = DDP(self.net)``: an attribute that must be there already."""
        statement = module.parents.get(node)
        path = blocks.path_of(node)
        return isinstance(statement, ast.Assign) and path is not None and path in blocks.reads(statement.value)

    def _calls(self, node: ast.AST | None, names: frozenset[str], home: Home) -> TypeGuard[ast.Call]:
        """Whether an expression calls one of some functions or classes of libraries."""
        return isinstance(node, ast.Call) and bool(self.program.callee_names(node, home.scope) & names)


def _assignments(home: Home) -> list[ast.Assign]:
    """The assignments to the variable."""
    return [node for node in blocks.walk_body(home.body) if _assigns(node, home.variable)]


def _assigns(node: ast.AST, path: str) -> TypeGuard[ast.Assign]:
    """Whether a statement gives a variable a value, and not as one of a tuple."""
    return isinstance(node, ast.Assign) and path in map(blocks.path_of, node.targets)


def _unplaced(node: ast.expr) -> ast.expr:
    """The model of ``model.to(device)``."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in PLACING:
        node = node.func.value
    return node


def _ways(node: ast.expr) -> list[ast.expr]:
    """What an expression gives, by the case: two of ``a if several else b``."""
    return [*_ways(node.body), *_ways(node.orelse)] if isinstance(node, ast.IfExp) else [node]


def _ways_of(statement: ast.stmt) -> list[ast.expr]:
    return _ways(statement.value) if isinstance(statement, ast.Assign) else []


def _gives_back(info: FunctionFacts, site: Site, taken: ast.Assign, variable: str) -> bool:
    """Whether what a function wraps at its end, on each of its ways, is what the variable gets of it."""
    name = blocks.path_of(site.statement.targets[0]) if isinstance(site.statement, ast.Assign) else None
    body = info.node.body if isinstance(info.node, ast.FunctionDef) else []
    if site.statement not in body or len(info.returns) != 1 or len(taken.targets) != 1:
        return False
    if isinstance(site.statement, ast.Return):
        return site.statement.value is site.node and blocks.path_of(taken.targets[0]) == variable
    last = body[-1]
    if name is None or site.statement.value is not site.node or not isinstance(last, ast.Return):  # type: ignore[attr-defined]
        return False
    if any(name in blocks.writes(item) for item in body[body.index(site.statement) + 1 :]) or last.value is None:
        return False
    return any(
        blocks.path_of(target) == variable and blocks.path_of(value) == name
        for target, value in blocks.unpacked(taken.targets[0], last.value)
    )


def _stands_under(module: Module, node: ast.AST, shape: str) -> bool:
    """Whether a place runs where a condition holds alone: ``if adversarial:``, ``if adversarial and not frozen:``."""
    inner = node
    for item in blocks.enclosing(module, node):
        if isinstance(item, ast.If) and any(inner is part or inner in set(walk(part)) for part in item.body):
            if shape in map(ast.dump, conjuncts(item.test)):
                return True
        inner = item
    return False


def _classes(program: Program, info: FunctionFacts) -> list[ast.ClassDef]:
    owner = program.flow.class_of(info)
    return [item.facts.node for item in owner.mro()] if owner is not None else []


def _is_set_either_way(statement: ast.If, path: str) -> bool:
    """Whether both branches of a condition set a variable."""
    return all(any(path in blocks.writes(item) for item in branch) for branch in (statement.body, statement.orelse))


def _completes(statement: ast.stmt, variable: str) -> bool:
    """Whether a statement places a model, loads or freezes it, or sets a layer: ``net.fc.bias.data.zero_()``."""
    if not blocks.touches({variable}, blocks.reads(statement)):
        return False
    for node in blocks.walk_own(statement):
        if isinstance(node, ast.Assign) and any(path.endswith(".requires_grad") for path in blocks.writes(node)):
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_"):
            if (blocks.path_of(node.func.value) or "").startswith(f"{variable}."):
                return True
        if _is_placed_by(node, variable):
            return True
    return False


def _is_placed_by(statement: ast.AST, variable: str) -> bool:
    """``model.to(device)`` and ``model.load_state_dict(state)``, on lines of their own; what that gives may be kept."""
    call = statement.value if isinstance(statement, (ast.Expr, ast.Assign)) else None
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in PLACING
        and blocks.path_of(call.func.value) == variable
    )
