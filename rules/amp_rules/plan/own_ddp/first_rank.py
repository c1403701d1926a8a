"""How a script says "the first process alone", at a place: in its own words where it has them, else in torch's."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from amp_rules.checks.common.rank_branches import in_several
from amp_rules.plan.own_ddp.bound import is_bound
from amp_rules.plan.own_ddp.options_in_spawned import alike_in_spawned
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.rank_values import Rank, RankValues
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import keyword, literal
from amp_rules.source.modules import Module
from amp_rules.source.resolver import names_of
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import conjuncts, last_name, walk
from amp_rules.torch.distributed import SPAWNS
from amp_rules.torch.idioms import EXACT_FIRST_RANK

NO_WORD = "nothing that this file imports at its head tells the rank"
"""Why a place gets no test of the rank, where :meth:`FirstRank.at` finds none."""

_INITIALISED = "torch.distributed.is_initialized"
_GET_RANK = "torch.distributed.get_rank"
_ENVIRONMENT = "os.environ"
_LONG = 75
"""A test of the script's own that is longer, by what its processes may be started with, gives way to torch's words."""
_RANK_NAMES = ("rank", "global_rank", "local_rank")


@dataclass(frozen=True)
class Test:
    """A test that holds on one process, and where there is one alone; and its opposite."""

    text: str
    negated: str


class FirstRank:
    """Writes the test for places of a program."""

    def __init__(self, own: OwnDdp) -> None:
        self._own = own
        self._ranks = RankValues(own.program)

    def at(self, module: Module, node: ast.AST) -> Test | None:
        """The test at a place; None where the file has no name for what it takes."""
        scope = self._own.program.flow.scopes.get(blocks.body_of(module, node)) or names_of(module).scope_of(node)
        in_torch = self._in_torch(module, scope, node)
        for test in self._own_tests(module):
            if self._is_readable(test, module, scope, node):
                own = _of(test, self._own.source(module, test))
                is_long = in_torch is not None and len(own.text) > _LONG > len(in_torch.text)
                return in_torch if is_long else own
        return in_torch

    def is_told_later(self, module: Module, node: ast.AST, test: Test) -> bool:
        """Whether a test asks torch for the rank at a place above the process group, where it holds on all."""
        asks = any(name.rpartition(".")[2] in test.text for name in (_INITIALISED, _GET_RANK))
        return (asks or self._asks_by_function(module, test)) and self._own.joins_below(module, node)

    def known_at(self, module: Module, node: ast.AST) -> Test | None:
        """The test at a place, by the environment where torch is not asked yet; None where nothing tells the rank."""
        test = self.at(module, node)
        if test is not None and not self.is_told_later(module, node, test):
            return test
        environment = self._own.word(module, _ENVIRONMENT)
        if environment is None or not self._is_in_environment:
            return None
        rank = f'int({environment}.get("RANK", 0))'
        return Test(f"{rank} == 0", f"{rank} != 0")

    @cached_property
    def _is_in_environment(self) -> bool:
        """Whether each process finds its rank there: it joins by what is there, and launchers alone put it there."""
        program = self._own.program
        if program.calls_to(SPAWNS) or not all(map(_joins_by_environment, self._own.joins)):
            return False
        return not any(
            isinstance(node, ast.Constant) and node.value == "RANK" and _is_written(scope.module, node)
            for node, _, scope in program.nodes()
        )

    def _asks_by_function(self, module: Module, test: Test) -> bool:
        """Whether a test of the file calls a function of the project that asks torch: ``is_main_process()``."""
        return any(
            self._own.asks_torch(item)
            for item in self._own_tests(module)
            if self._own.source(module, item) == test.text
        )

    # ---- the script's own tests ------------------------------------------------------------------------------------

    def _own_tests(self, module: Module) -> list[ast.expr]:
        """Tests of this file that ask for the first process and nothing else, the most frequent first."""
        found: dict[str, list[ast.expr]] = {}
        for node in module.nodes:
            if isinstance(node, (ast.If, ast.IfExp)):
                for part in _parts(node.test):
                    scope = self._scope(module, part)
                    if scope is None or not self._is_first(part, scope) or not self._own.tells_apart(module, part):
                        continue
                    if self._alike and any(item in self._alike for item in walk(part)):
                        continue
                    if self._holds_alone(part, scope):
                        found.setdefault(ast.unparse(part), []).append(part)
        ordered = sorted(found.values(), key=lambda tests: (-len(tests), tests[0].lineno))
        return [test for tests in ordered for test in tests]

    @cached_property
    def _alike(self) -> frozenset[ast.AST]:
        """Comparisons that hold in every process which the script spawns."""
        return frozenset(site.node for site in alike_in_spawned(self._own))

    def _scope(self, module: Module, node: ast.AST) -> Scope | None:
        return self._own.program.flow.scopes.get(blocks.body_of(module, node))

    def _is_first(self, test: ast.expr, scope: Scope) -> bool:
        """Whether a test is about the rank alone, and holds on the first."""
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
            parts = [in_several(item) for item in test.values]
            return any(part is False for part in parts) and all(
                part is False or self._is_first(_second(item), scope)
                for item, part in zip(test.values, parts, strict=True)
            )
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            number, allowed = test.left, test.comparators[0]
            if isinstance(number, ast.BinOp) and isinstance(number.op, ast.Mod):
                number = number.left
            if self._ranks.of(number, scope) is None:
                return False
            if isinstance(test.ops[0], ast.Eq):
                return literal(allowed) == 0
            return isinstance(test.ops[0], ast.In) and _numbers(allowed) == {-1, 0}
        if isinstance(test, ast.Call):
            is_plain = not test.args and not test.keywords
            return is_plain and (bool(EXACT_FIRST_RANK.search(last_name(test.func))) or self._answers_first(test))
        if isinstance(test, (ast.Name, ast.Attribute)):
            return bool(EXACT_FIRST_RANK.search(last_name(test)))
        return False

    def _answers_first(self, call: ast.Call) -> bool:
        """Whether a call runs a function of the project that gives nothing but such a test: ``main_process()``."""
        callees = self._own.program.flow.callees(call)
        return bool(callees) and all(
            len(info.returns) == 1
            and len(getattr(info.node, "body", ())) == 1
            and isinstance(info.returns[0], (ast.BoolOp, ast.Compare))
            and self._is_first(info.returns[0], self._own.program.flow.scopes[info.node])
            for info in callees
        )

    def _holds_alone(self, test: ast.expr, scope: Scope) -> bool:
        """Whether it holds in a run of one process too."""
        if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Eq):
            return True
        rank = self._ranks.of(test.left, scope)
        return self._own.is_several_always or (rank is not None and rank.alone == {0})

    # ---- torch's words -----------------------------------------------------------------------------------------------

    def _in_torch(self, module: Module, scope: Scope, node: ast.AST) -> Test | None:
        variable = self._variable(module, scope, node)
        if variable is not None:
            return variable
        rank = self._own.word(module, _GET_RANK)
        initialised = self._own.word(module, _INITIALISED)
        if rank is None or initialised is None:
            return None
        # What stands in a file of its own may be run by other scripts, in one process.
        if module.is_entry and self._own.is_several_always and self._own.is_joined_at(module, node):
            return Test(f"{rank}() == 0", f"{rank}() != 0")
        return Test(f"not {initialised}() or {rank}() == 0", f"{initialised}() and {rank}() != 0")

    def _variable(self, module: Module, scope: Scope, node: ast.AST) -> Test | None:
        """A variable that is the rank among all, and can be read here."""
        for name in _RANK_NAMES[:2]:
            if name not in scope.owner(name).bound:
                continue
            read = ast.copy_location(ast.Name(name, ast.Load()), node)
            rank = self._ranks.of(read, scope)
            if rank is None or rank.is_local or not is_bound(scope.owner(name), name, module, node):
                continue
            test = self._test_of(name, rank)
            if test is not None:
                return test
        return None

    def _test_of(self, name: str, rank: Rank) -> Test | None:
        if rank.alone <= {0} and (rank.alone or self._own.is_several_always):
            return Test(f"{name} == 0", f"{name} != 0")
        return Test(f"{name} in (-1, 0)", f"{name} not in (-1, 0)") if rank.alone <= {0, -1} and rank.alone else None

    # ---- what can be read where ------------------------------------------------------------------------------------

    def _is_readable(self, test: ast.expr, module: Module, scope: Scope, node: ast.AST) -> bool:
        origin = self._scope(module, test)
        return origin is not None and all(
            self.is_same(name, origin, module, scope, node) for name in walk(test) if isinstance(name, ast.Name)
        )

    def is_same(self, name: ast.Name, origin: Scope, module: Module, scope: Scope, node: ast.AST) -> bool:
        """Whether a name that is read elsewhere in a file means the same at a place, and is bound there."""
        there, here = origin.owner(name.id), scope.owner(name.id)
        if name.id not in here.bound or not is_bound(here, name.id, module, node):
            return False
        if there is here:
            return True
        flow = self._own.program.flow
        mine = flow.values(ast.copy_location(ast.Name(name.id, ast.Load()), node), scope)
        return bool(mine) and mine == flow.values(name, origin)


def _joins_by_environment(site: Site) -> bool:
    """Whether a call of ``init_process_group`` takes the rank from the environment: it says nothing of it."""
    assert isinstance(site.node, ast.Call)
    method = keyword(site.node, "init_method")
    given = {item.arg for item in site.node.keywords}
    if len(site.node.args) > 1 or given & {"rank", "world_size", "store", None}:
        return False
    return method is None or literal(method) == "env://"


def _is_written(module: Module, key: ast.Constant) -> bool:
    """Whether a variable of the environment is given a value: ``os.environ["RANK"] = ...``, ``setdefault``."""
    parent = module.parents[key]
    if isinstance(parent, ast.Subscript):
        return not isinstance(parent.ctx, ast.Load)
    asks = isinstance(parent, ast.Call) and last_name(parent.func) in ("get", "getenv")
    return not asks and not isinstance(parent, ast.Compare)


def _parts(test: ast.expr) -> Iterator[ast.expr]:
    """A test, and what it asks for among other things."""
    yield test
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        yield from test.values


def _second(test: ast.expr) -> ast.expr:
    """``rank == 0`` of ``distributed and rank == 0``."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        others = [item for item in test.values if in_several(item) is not True]
        return others[0] if len(others) == 1 else test
    return test


def _numbers(node: ast.expr) -> set[object]:
    items = node.elts if isinstance(node, (ast.Tuple, ast.List, ast.Set)) else []
    return {-1 if isinstance(item, ast.UnaryOp) and literal(item.operand) == 1 else literal(item) for item in items}


def _of(test: ast.expr, text: str) -> Test:
    return Test(text, ast.unparse(_opposite(test)))


_OPPOSITES: dict[type[ast.cmpop], ast.cmpop] = {ast.Eq: ast.NotEq(), ast.In: ast.NotIn()}


def _opposite(test: ast.expr) -> ast.expr:
    """``rank != -1 and get_rank() != 0`` of ``rank == -1 or get_rank() == 0``."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and type(test.ops[0]) in _OPPOSITES:
        return ast.Compare(test.left, [_OPPOSITES[type(test.ops[0])]], test.comparators)
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
        parts: list[ast.expr] = []
        for item in test.values:
            # Of ``not several or (several and rank == 0)`` the second part asks for the rank alone.
            known = {ast.unparse(part) for part in parts}
            inner = [part for part in conjuncts(item) if ast.unparse(part) not in known]
            parts.append(_opposite(inner[0] if len(inner) == 1 else item))
        return ast.BoolOp(ast.And(), parts)
    return ast.UnaryOp(ast.Not(), test)
