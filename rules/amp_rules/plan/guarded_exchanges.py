"""What a program that creates no process group does once one exists: helpers that average what is logged, and others.

Reference code is shared between scripts of one process and of several, and asks whether there is a group:
``if not is_dist_avail_and_initialized(): return``. The runtime creates one, and then all that stands behind such a test
runs. It may, where what it computes is right: processes that wait for each other, means over the processes of what
carries no gradient, counts and totals that are added up together and divided by each other, and what is gathered and
kept once.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from amp_rules.plan.batch_losses import is_of_loss
from amp_rules.plan.unique_gathers import counts_gathered, is_kept_once
from amp_rules.roles.path_objects import assigned
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.index import literal
from amp_rules.source.modules import Module
from amp_rules.source.scopes import FunctionNode, Scope, arguments_of
from amp_rules.source.syntax import walk
from amp_rules.torch.data import DISTRIBUTED_SAMPLERS
from amp_rules.torch.distributed import ASKS_RANK, AVERAGES, BARRIERS, GATHERS, SUMS

_WORLD_SIZE = frozenset({"torch.distributed.get_world_size"})
_ALL_REDUCE = frozenset({"torch.distributed.all_reduce"})
_MAX_DEPTH = 4
"""Names and callers through which a tensor comes to where it is averaged; helpers have two."""

_DETACHED = frozenset({"detach", "item", "tolist"})
_MADE_NEW = frozenset({"torch.tensor", "torch.FloatTensor", "torch.zeros", "torch.ones"})
_MADE_OF_LISTS = frozenset({"torch.as_tensor"})
"""What makes a tensor anew of a list of numbers, and gives a tensor back as it is."""
_SAME = frozenset({"clone", "to", "cuda", "float", "double"})


class Use(NamedTuple):
    """A place where a program uses a process group."""

    module: Module
    node: ast.AST
    name: str


class Against(NamedTuple):
    """A use that several processes do not allow, why, and what to do."""

    use: Use
    message: str
    recipe: str


def against(program: Program, uses: list[Use]) -> Against | None:
    """The first use that is not known to be right once a group exists; None where all are.

    Args:
        program: a program that creates no process group.
        uses: where it uses one in what can run, each behind a test for it.
    """
    exchanges = _Exchanges(program)
    reasons = (exchanges.reason(use) for use in uses if use.name not in ASKS_RANK)
    return next((reason for reason in reasons if reason is not None), None)


def meeting(uses: list[Use]) -> frozenset[ast.AST]:
    """The calls in which all processes meet."""
    names = _ALL_REDUCE | BARRIERS | GATHERS
    return frozenset(
        call for use in uses if use.name in names and isinstance(call := use.module.parents.get(use.node), ast.Call)
    )


class _Exchanges:
    """Judges single uses, each of which stands behind a test for a group."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def reason(self, use: Use) -> Against | None:
        """Why a use is not known to be right; None where it is."""
        text = f"`{use.name}` is run once a process group exists"
        if use.name in DISTRIBUTED_SAMPLERS:
            return Against(
                use,
                f"{text}, and would share out what the migration shares out: nothing in the script creates a group",
                "take the sampler out, and give the loader `shuffle=True` if it shuffled; the migration shares the "
                "data out",
            )
        located = self._program.locate(use.node)
        call = use.module.parents.get(use.node)
        if located is not None and isinstance(call, ast.Call) and call.func is use.node:
            site = Site(use.module, located[1], located[0], call)
            if use.name in BARRIERS:
                return None
            if use.name in _WORLD_SIZE and self._only_divides(call, site, 0):
                return None
            if use.name in GATHERS and is_kept_once(self._program, site):
                return None
            if use.name in _ALL_REDUCE and (self._is_mean(site) or self._is_pair(site)):
                return None
        if use.name in SUMS | AVERAGES and self._is_operation(use):
            return None
        return Against(
            use,
            f"{text}, which nothing in the script creates: it is not known that what it computes is right there",
            "average over the processes what each of them has, or write what one process does in its place",
        )

    def _is_operation(self, use: Use) -> bool:
        """``op=dist.ReduceOp.SUM`` of a call that is judged itself."""
        around = use.module.parents.get(use.node)
        call = use.module.parents.get(around) if isinstance(around, ast.keyword) else around
        located = self._program.locate(call) if isinstance(call, ast.Call) else None
        return (
            located is not None
            and isinstance(call, ast.Call)
            and bool(self._program.callee_names(call, located[1]) & _ALL_REDUCE)
        )

    # ---- the number of processes -----------------------------------------------------------------------------------

    def _only_divides(self, node: ast.expr, site: Site, depth: int) -> bool:
        """Whether a number of processes is only asked for, and divides only what was added up over them."""
        parent = site.module.parents.get(node)
        if isinstance(parent, ast.Compare) or (parent is not None and counts_gathered(self._program, parent, site)):
            return True
        if isinstance(parent, ast.BinOp) and parent.right is node and isinstance(parent.op, ast.Div):
            return self._divides_sum(parent.left, site)
        if isinstance(parent, ast.AugAssign) and isinstance(parent.op, ast.Div):
            return self._divides_sum(parent.target, site)
        if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Attribute) and parent.func.attr == "div_":
            return self._divides_sum(parent.func.value, site)
        if isinstance(parent, ast.IfExp) and parent.test is not node:
            return self._only_divides(parent, site, depth)
        if depth > _MAX_DEPTH:
            return False
        if isinstance(parent, ast.Return):
            info = self._program.function_of(site.body)
            callers = self._program.flow.callers(info) if info is not None else []
            return bool(callers) and all(self._only_divides(item.call, calling(item), depth + 1) for item in callers)
        if isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name):
            name = parent.targets[0].id
            if isinstance(site.body, ast.Module) or site.scope.owner(name).node is not site.body:
                return False
            return all(
                self._only_divides(item, site, depth + 1)
                for item in ast.walk(site.body)
                if isinstance(item, ast.Name) and item.id == name and isinstance(item.ctx, ast.Load)
            )
        return False

    def _divides_sum(self, node: ast.expr, site: Site) -> bool:
        return isinstance(node, ast.Name) and any(
            isinstance(item, ast.Call)
            and bool(self._program.callee_names(item, site.scope) & _ALL_REDUCE)
            and bool(item.args)
            and blocks.path_of(item.args[0]) == node.id
            for item in blocks.walk_body(site.body)
        )

    # ---- means -----------------------------------------------------------------------------------------------------

    def _reduced(self, site: Site) -> str | None:
        """The variable that a call of ``all_reduce`` changes; None where it is told anything else than to add up."""
        call = site.node
        assert isinstance(call, ast.Call)
        if not call.args or not isinstance(call.args[0], ast.Name) or not isinstance(site.statement, ast.Expr):
            return None
        others = [*call.args[1:], *(item.value for item in call.keywords if item.arg == "op")]
        if any(item.arg not in ("op", None) for item in call.keywords) or len(others) > 1:
            return None
        if site.statement.value is not call or _is_of_network(self._program, site.body):
            return None
        names = self._program.names(others[0], site.scope) if others and _is_name(others[0]) else SUMS
        return call.args[0].id if names and names <= SUMS | AVERAGES else None

    def _averages(self, site: Site) -> bool:
        call = site.node
        assert isinstance(call, ast.Call)
        others = [*call.args[1:], *(item.value for item in call.keywords if item.arg == "op")]
        return bool(others) and _is_name(others[0]) and self._program.names(others[0], site.scope) <= AVERAGES

    def _is_mean(self, site: Site) -> bool:
        """Whether a tensor without a gradient is added up, and next divided by the number of processes."""
        name = self._reduced(site)
        if name is None:
            return False
        given = _last_given(site, name) or site.node.args[0]  # type: ignore[attr-defined]
        if not self._carries_no_gradient(given, site, 0):
            return False
        return self._averages(site) or self._is_divided_next(site, name)

    def _is_divided_next(self, site: Site, name: str) -> bool:
        for item in self._following(site):
            if not any(isinstance(node, ast.Name) and node.id == name for node in walk(item)):
                continue
            if isinstance(item, ast.If) and not item.orelse and len(item.body) == 1:
                return self._is_always_asked(item.test, site) and self._is_division(item.body[0], name, site)
            return self._is_division(item, name, site)
        return False

    def _following(self, site: Site) -> Iterator[ast.stmt]:
        """The statements below, and where a test for a group is all around it, those below that."""
        place = blocks.place(site.module, site.statement)
        yield from place.suite[place.index + 1 :]
        around = site.module.parents[site.statement]
        if isinstance(around, ast.If) and not around.orelse and len(place.suite) == 1:
            outer = blocks.place(site.module, around)
            yield from outer.suite[outer.index + 1 :]

    def _is_division(self, item: ast.stmt, name: str, site: Site) -> bool:
        """``t /= world_size``, ``t = t / world_size``, ``t.div_(world_size)``, ``return t / world_size``."""
        if isinstance(item, ast.AugAssign):
            return (
                isinstance(item.op, ast.Div)
                and blocks.path_of(item.target) == name
                and self._is_world_size(item.value, site, 0)
            )
        value = getattr(item, "value", None)
        if isinstance(item, ast.Assign) and [blocks.path_of(target) for target in item.targets] != [name]:
            return False
        value = _bounded(value)
        if isinstance(value, ast.Call) and isinstance(item, ast.Expr) and isinstance(value.func, ast.Attribute):
            divides = value.func.attr == "div_" and blocks.path_of(value.func.value) == name
            return divides and len(value.args) == 1 and self._is_world_size(value.args[0], site, 0)
        return (
            isinstance(item, (ast.Assign, ast.Return))
            and isinstance(value, ast.BinOp)
            and isinstance(value.op, ast.Div)
            and blocks.path_of(value.left) == name
            and self._is_world_size(value.right, site, 0)
        )

    def _is_world_size(self, node: ast.expr, site: Site, depth: int) -> bool:
        if depth > _MAX_DEPTH:
            return False
        if isinstance(node, ast.Call):
            if self._program.callee_names(node, site.scope) & _WORLD_SIZE:
                return True
            callees = self._program.flow.callees(node)
            return bool(callees) and all(
                any(
                    self._is_world_size(item, Site(info.module.module, inner, info.node, item), depth + 1)
                    for item in info.returns
                )
                and all(
                    literal(item) == 1
                    or self._is_world_size(item, Site(info.module.module, inner, info.node, item), depth + 1)
                    for item in info.returns
                )
                for info in callees
                for inner in [self._program.flow.scopes[info.node]]
            )
        if isinstance(node, ast.IfExp):
            chosen = [item for item in (node.body, node.orelse) if literal(item) != 1]
            return len(chosen) == 1 and self._is_world_size(chosen[0], site, depth + 1)
        values = assigned(self._program, node, site.scope) if isinstance(node, ast.Name) else []
        return len(values) == 1 and self._is_world_size(values[0], site, depth + 1)

    def _is_always_asked(self, test: ast.expr, site: Site) -> bool:
        """``if average:`` of a parameter that is true by default, and that no call gives anything else."""
        info = self._program.function_of(site.body)
        if info is None or not isinstance(test, ast.Name):
            return False
        given = [info.argument_or_default(item.call, test.id) for item in self._program.flow.callers(info)]
        return bool(given) and all(isinstance(item, ast.Constant) and item.value is True for item in given)

    def _carries_no_gradient(self, node: ast.expr, site: Site, depth: int) -> bool:
        """Whether what is averaged leads back to no weights: the gradients of a loss would be averaged twice."""
        if depth > _MAX_DEPTH:
            return False
        if self._program.without_gradients(site.module, node, site.body):
            return True
        if isinstance(node, ast.Attribute) and node.attr == "data":
            return True
        if isinstance(node, ast.Call):
            names = self._program.callee_names(node, site.scope)
            if names & _MADE_NEW or (names & _MADE_OF_LISTS and node.args and isinstance(node.args[0], ast.List)):
                return True
            if not isinstance(node.func, ast.Attribute):
                return False
            if node.func.attr in _DETACHED:
                return True
            return node.func.attr in _SAME and self._carries_no_gradient(node.func.value, site, depth + 1)
        if not isinstance(node, ast.Name):
            return False
        owner = site.scope.owner(node.id)
        values = assigned(self._program, node, site.scope)
        if not all(self._carries_no_gradient(item, site, depth + 1) for item in values):
            return False
        is_given = isinstance(owner.node, FunctionNode) and node.id in {item.arg for item in arguments_of(owner.node)}
        return self._given_without(node.id, owner, depth) if is_given else bool(values)

    def _given_without(self, name: str, owner: Scope, depth: int) -> bool:
        info = self._program.flow.functions.get(owner.node)
        callers = self._program.flow.callers(info) if info is not None else []
        given = [(info.argument(item.call, name), calling(item)) for item in callers] if info is not None else []
        return bool(given) and all(
            node is not None and self._carries_no_gradient(node, site, depth + 1) for node, site in given
        )

    # ---- counts and totals -----------------------------------------------------------------------------------------

    def _is_pair(self, site: Site) -> bool:
        """Whether a count and a total are added up together, and all that is read of them is one by the other."""
        name = self._reduced(site)
        info = self._program.function_of(site.body)
        owner = self._program.flow.class_of(info) if info is not None else None
        if name is None or owner is None or self._averages(site):
            return False
        made = assigned(self._program, ast.Name(name, ast.Load()), site.scope)
        listed = [item.args[0] for item in made if isinstance(item, ast.Call) and item.args]
        lists = [item for item in listed if isinstance(item, (ast.List, ast.Tuple))]
        if len(lists) != 1:
            return False
        paths = [blocks.path_of(item) or "" for item in lists[0].elts]
        if len(paths) != 2 or not all(path.startswith("self.") for path in paths):
            return False
        attributes = frozenset(path.removeprefix("self.") for path in paths)
        return self._is_put_back(site, name, paths) and all(
            self._is_of_pair(scope.module, node, attributes)
            for node, body, scope in self._program.nodes()
            if isinstance(node, ast.Attribute)
            and node.attr in attributes
            and isinstance(node.ctx, ast.Load)
            and node not in lists[0].elts
            and self._may_be_of(node, owner, scope)
        )

    @staticmethod
    def _is_put_back(site: Site, name: str, paths: list[str]) -> bool:
        """Whether what is added up only goes back to where it came from, in the same order."""
        call = site.node
        for node in blocks.walk_body(site.body):
            if not (isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)):
                continue
            parent = site.module.parents[node]
            statement = blocks.statement_of(site.module, node)
            if parent is call or not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
                if parent is not call:
                    return False
                continue
            target = blocks.path_of(statement.targets[0])
            index = literal(parent.slice) if isinstance(parent, ast.Subscript) else None
            if target != name and not (isinstance(index, int) and index in (0, 1) and target == paths[index]):
                return False
        return True

    def _may_be_of(self, node: ast.Attribute, owner: object, scope: Scope) -> bool:
        values = self._program.flow.values(node.value, scope)
        return not values or any(value.kind == "instance" and owner in value.ref.mro() for value in values)

    @staticmethod
    def _is_of_pair(module: Module, node: ast.Attribute, attributes: frozenset[str]) -> bool:
        """``self.total / self.count``, ``self.total / max(self.count, 1)``; a method of that name is another thing."""
        child: ast.AST = node
        parent = module.parents.get(node)
        if isinstance(parent, ast.Call) and parent.func is node:
            return True
        if isinstance(parent, ast.Call) and blocks.path_of(parent.func) == "max":
            child, parent = parent, module.parents.get(parent)
        if not (isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Div)):
            return False
        other = parent.right if parent.left is child else parent.left
        found = {item.attr for item in ast.walk(other) if isinstance(item, ast.Attribute)}
        return found == attributes - {node.attr}


def _is_of_network(program: Program, body: ast.AST) -> bool:
    """Whether a body belongs to a class of models that are trained, or are a part of one; a criterion is neither."""
    return program.is_model_code(body) and not is_of_loss(program, body)


def _last_given(site: Site, name: str) -> ast.expr | None:
    """What a statement above gives a variable, in the suite of the exchange or around the test for a group."""
    around = site.module.parents[site.statement]
    for inner in (site.statement, around) if isinstance(around, ast.If) else (site.statement,):
        place = blocks.place(site.module, inner)
        for item in reversed(place.suite[: place.index]):
            if name in blocks.writes(item):
                is_whole = isinstance(item, ast.Assign) and [blocks.path_of(part) for part in item.targets] == [name]
                return item.value if is_whole and isinstance(item, ast.Assign) else None
    return None


def _bounded(node: ast.expr | None) -> ast.expr | None:
    """``total / world_size`` of ``torch.clamp(total / world_size, min=1).item()``."""
    while isinstance(node, ast.Call) and isinstance(function := node.func, ast.Attribute):
        if function.attr == "item" and not node.args:
            node = function.value
        elif function.attr == "clamp" and node.args and isinstance(node.args[0], ast.BinOp):
            node = node.args[0]
        elif function.attr in ("clamp", "clamp_min") and isinstance(function.value, ast.BinOp):
            node = function.value
        else:
            return node
    return node


def _is_name(node: ast.expr) -> bool:
    return isinstance(node, (ast.Name, ast.Attribute))
