"""Which processes get to a place: the rank as a fact of the path from the start of the script."""

from __future__ import annotations

import ast
import enum
from collections.abc import Callable, Collection
from functools import cached_property
from typing import NamedTuple

from amp_rules.checks.common.file_writes import access_of
from amp_rules.checks.common.files_beside import files_beside
from amp_rules.checks.common.origins import functions_called, origins
from amp_rules.checks.common.rank_branches import (
    asks_for_one,
    counts_processes,
    depends_on_process,
    in_several,
    is_class,
    is_main,
    name_of_test,
    names_rank,
    replaced_by,
    spawns,
    starts_of,
)
from amp_rules.source.facts import FunctionFacts, ModuleFacts
from amp_rules.source.index import Function, Loop, literal
from amp_rules.source.syntax import called_name, is_none, last_name, walk
from amp_rules.torch.idioms import (
    EXACT_FIRST_RANK,
    EXACT_RANK,
    NAMED_COUNT,
    NAMED_EPOCH,
    NAMED_LOCAL_RANK,
    NAMED_ONE_RANK,
    NAMED_RANK,
    NAMED_SEVERAL,
)  # fmt: skip


class Reach(enum.IntEnum):
    """How many processes get to a place."""

    UNKNOWN = 0
    """Nobody in sight calls the function."""
    ONE = 1
    """A test on every way asks for the process."""
    EACH_NODE = 2
    """The tests ask for the local rank only: one process of each machine."""
    EVERY = 3


class _Asked(NamedTuple):
    """What a test says of the process."""

    reach: Reach
    test: ast.expr | None


_MAX_CALLERS = 6
"""Callers of callers that are asked: ``main``, ``fit``, ``train_epoch``, ``validate``, ``log``, ``save``."""
_MAX_ASKED = 300
"""Callers that are asked for one place. Methods that share a name call each other by many ways, which double with each
name: a larger tangle tells of nothing."""


_OF_ALL = (
    "torch.distributed.barrier", "torch.distributed.all_", "torch.distributed.broadcast",
    "torch.distributed.init_process_group", "torch.distributed.reduce", "torch.nn.parallel.DistributedDataParallel",
)  # fmt: skip
"""Beginnings of the names of what every process has to call."""


def _counts_epochs(loop: Loop) -> bool:
    about = loop.test if isinstance(loop, ast.While) else ast.Tuple([loop.target, loop.iter], ast.Load())
    return any(NAMED_EPOCH.search(last_name(item)) for item in walk(about))


def runs_on_one(function: ast.AST) -> bool:
    """Whether a decorator runs a function on one rank, by its name: ``@click.option("--local_rank")`` does not."""
    return any(NAMED_ONE_RANK.search(called_name(item)) for item in getattr(function, "decorator_list", ()))


class RankPaths:
    """Answers for the places of one file.

    Args:
        module: the file.
        ddp: whether it is known to be run by several processes.
        asks: whether a test that comes out like this lets one process on, by what the whole program says.
        started: functions that the program starts processes with, by way of other files too.
    """

    def __init__(
        self,
        module: ModuleFacts,
        ddp: bool = False,
        asks: Callable[[ast.expr, bool], bool] | None = None,
        started: Collection[ast.AST] = (),
    ) -> None:
        self.module = module
        self.ddp = ddp
        self._started = started
        self._asks = asks
        self.index = module.index
        self._spawns = spawns(module.index)
        self._known: dict[ast.AST, Reach] = {}
        self._tests: dict[ast.AST, _Asked] = {}
        self._all_take_part: dict[tuple[ast.AST, int], bool] = {}
        self._left = 0  # callers that may still be asked for the place in question

    def reach(self, node: ast.AST) -> Reach:
        """Which processes get to ``node``."""
        return self._reach_by(node, ())

    def _reach_by(self, node: ast.AST, seen: tuple[ast.AST, ...]) -> Reach:
        self._left = _MAX_ASKED
        return self._reach(node, seen)

    def deciding(self, node: ast.AST) -> tuple[ast.AST, ast.expr] | None:
        """What stands behind a test of the process, and the test: ``node`` itself or a call that leads to it."""
        seen: set[ast.AST] = set()
        pending = [node]
        for place in pending:
            asked = self._asked(place)
            if asked.test is not None:
                return place, asked.test
            function = self.index.scope(place)
            if isinstance(function, Function) and function not in seen:
                seen.add(function)
                pending += [call for call in self.index.callers(function) if self._is_call_of(call, function)]
        return None

    def unguarded_callers(self, node: ast.AST) -> list[ast.Call]:
        """The calls of the function around ``node`` that every process makes, where others ask for the process."""
        function = self.index.scope(node)
        if not isinstance(function, Function):
            return []
        callers = [call for call in self.index.callers(function) if self._is_call_of(call, function)]
        if not any(self._asked(call).reach is Reach.ONE for call in callers):
            return []
        return [call for call in callers if self._reach_by(call, (function,)) is Reach.EVERY]

    def decides(self, node: ast.AST) -> Reach:
        """Which processes the tests in its function let get to ``node``."""
        return self._asked(node).reach

    def decides_nothing(self, node: ast.AST) -> bool:
        """Whether no test in its function keeps processes from ``node``."""
        return self._asked(node).reach is Reach.EVERY

    def _reach(self, node: ast.AST, seen: tuple[ast.AST, ...]) -> Reach:
        asked = self._asked(node).reach
        if asked is Reach.ONE:
            return Reach.ONE
        return min(asked, self._reach_of(self.index.scope(node), node, seen))

    def _reach_of(self, function: ast.AST | None, node: ast.AST, seen: tuple[ast.AST, ...]) -> Reach:
        if function is None:
            # What starts the processes runs once itself.
            in_class = any(isinstance(item, ast.ClassDef) for item in self.index.ancestors(node))
            return Reach.UNKNOWN if self._spawns or in_class else Reach.EVERY
        if function in seen or len(seen) > _MAX_CALLERS or isinstance(function, ast.Lambda):
            return Reach.UNKNOWN
        if function not in self._known:
            found = self._called(function, (*seen, function))
            if seen:
                return found
            self._known[function] = found
        return self._known[function]

    def _called(self, function: ast.AST, seen: tuple[ast.AST, ...]) -> Reach:
        assert isinstance(function, Function)
        if runs_on_one(function):
            return Reach.ONE
        callers = [call for call in self.index.callers(function) if self._is_call_of(call, function)]
        found = self._most(callers, seen)
        if found is Reach.ONE and self._is_start(function, is_called=True):
            return Reach.EVERY  # called where there is one process, and started by several elsewhere
        if found is Reach.UNKNOWN and (
            self._is_start(function, bool(callers))
            or self.all_take_part(function)
            or (self.ddp and not callers and self._asks_in_others(function))
        ):
            return Reach.EVERY
        return found

    def _most(self, callers: list[ast.Call], seen: tuple[ast.AST, ...]) -> Reach:
        """How many processes get to the call that most of them get to."""
        found = Reach.UNKNOWN
        for call in callers:
            if self._left <= 0:
                return Reach.UNKNOWN
            self._left -= 1
            found = max(found, self._reach(call, seen))
            if found is Reach.EVERY:
                break
        return found if found is Reach.EVERY else max(found, self._either_way(callers, seen))

    def _either_way(self, callers: list[ast.Call], seen: tuple[ast.AST, ...]) -> Reach:
        """How many processes get to a test that asks for one where both branches call: all that do call."""
        sides: dict[ast.expr, set[bool]] = {}
        for call in callers:
            asking = [row for row in self.index.branches(call) if self.says(*row) is not Reach.EVERY]
            if len(asking) == 1:
                sides.setdefault(asking[0][0], set()).add(asking[0][1])
        forks = (test for test, found in sides.items() if len(found) == 2)
        return max((self._reach(test, seen) for test in forks), default=Reach.UNKNOWN)

    def _is_start(self, function: Function, is_called: bool) -> bool:
        """Whether processes start with a function; under ``if several:`` they do where there are several."""
        for call in starts_of(self.index, function):
            # What starts processes is one itself: a test around it says whether there are to be several.
            return all(in_several(test) in (None, holds) for test, holds in self.index.branches(call))
        if function in self._started:
            return True
        return not is_called and is_main(self.index, function)

    def _asks_in_others(self, function: Function) -> bool:
        """Whether another method of the class asks for the process around what it does itself."""
        owner = self.index.owner(function)
        if owner is None or function.name.startswith("_"):
            return False
        return any(
            (last_name(item.func).startswith("save") or access_of(self.module, item) is not None)
            and self._asks_itself(item)
            for method in owner.body
            if isinstance(method, Function) and method is not function
            for item in walk(method)
            if isinstance(item, ast.Call)
        )

    def _asks_itself(self, node: ast.AST) -> bool:
        """Whether a test around a place is about the process by its own words, and not by what the callers have."""
        reach, test = self._asked(node)
        is_held = (
            test is not None and self._asks is not None and any(self._asks(test, holds) for holds in (True, False))
        )
        return reach is Reach.ONE and not is_held

    def _is_call_of(self, call: ast.Call, function: Function) -> bool:
        """Whether a call runs a method of this class, as ``model.train()`` does not run ``Trainer.train``."""
        owner = self.index.owner(function)
        if owner is None or not isinstance(call.func, ast.Attribute):
            return True
        held = call.func.value
        if isinstance(held, ast.Name) and held.id in ("self", "cls"):
            return True
        if isinstance(held, ast.Call) and last_name(held.func) in (owner.name, "super"):
            return True
        return any(
            isinstance(item.node, ast.Call) and last_name(item.node.func) == owner.name
            for item in origins(self.module, held)
        )

    # ---- what all take part in -----------------------------------------------------------------------------------

    def all_take_part(self, function: Function, depth: int = 2) -> bool:
        """Whether a function runs what waits for every process: backward passes, collective operations, wrapping."""
        key = (function, depth)
        if key not in self._all_take_part:
            self._all_take_part[key] = self._waits_for_all(function, depth)
        return self._all_take_part[key]

    def _waits_for_all(self, function: Function, depth: int) -> bool:
        for item in walk(function):
            if not isinstance(item, ast.Call) or self.index.scope(item) is not function:
                continue
            if self._joins(item) or (self._needs_all(item, depth) and self._asked(item).reach is Reach.EVERY):
                return True
        return False

    def _joins(self, call: ast.Call) -> bool:
        """Whether a call joins the processes: whatever is asked above it, all of several get there."""
        return self.module.dotted(call.func) == "torch.distributed.init_process_group"

    def _needs_all(self, call: ast.Call, depth: int) -> bool:
        name = last_name(call.func)
        if name == "backward" or (self.module.dotted(call.func) or "").startswith(_OF_ALL):
            return True
        if name.startswith("train") and any(_counts_epochs(loop) for loop in self.index.loops_around(call)):
            return True
        if not depth:
            return False
        for called in functions_called(self.module, call):
            if called.module is not self.module:
                if _goes_back(called):
                    return True
            elif isinstance(called.node, Function) and called.node is not self.index.scope(call):
                if any(True for _ in starts_of(self.index, called.node)):
                    continue  # what starts processes with it calls it where there is one
                if self.all_take_part(called.node, depth - 1):
                    return True
        return False

    # ---- tests ---------------------------------------------------------------------------------------------------

    def _asked(self, node: ast.AST) -> _Asked:
        """What the tests around ``node``, within its function, say of the process."""
        if node not in self._tests:
            self._tests[node] = self._asked_now(node)
        return self._tests[node]

    def _asked_now(self, node: ast.AST) -> _Asked:
        found = _Asked(Reach.EVERY, None)
        for test, holds in self.index.branches(node):
            asked = self.says(test, holds)
            if asked is Reach.ONE:
                return _Asked(Reach.ONE, test)
            if asked is Reach.EACH_NODE:
                found = _Asked(asked, test)
        # ``if several: if rank == 0: save() else: save()``; what asks for the process itself is not replaced.
        if not (isinstance(node, ast.If) and asks_for_one(node.test)) and any(
            asks_for_one(item) for item in replaced_by(self.index, node)
        ):
            return _Asked(Reach.ONE, None)
        return found

    def says(self, test: ast.expr, holds: bool) -> Reach:
        """Which processes go on where a test comes out like this."""
        several = self._in_several(test)
        if several is not None:
            return Reach.EVERY if several is holds else Reach.ONE
        if holds and _asks_for_one_process(test):
            return Reach.ONE
        if self._asks is not None and self._asks(test, holds):
            return Reach.ONE
        if not (
            depends_on_process(self.index, test)
            or self._asks_helper(test)
            or self._is_flag(test)
            or self._is_set_elsewhere(test)
        ):
            return Reach.EVERY
        if _is_of_number(test) or _is_of_launcher(test) or (not holds and _leaves_by_mistake(test)):
            return Reach.EVERY
        if _are_given(test, holds):
            return Reach.EVERY
        return Reach.EACH_NODE if self._is_local(test) else Reach.ONE

    def _in_several(self, test: ast.expr) -> bool | None:
        """What a test is where there are several processes; a name stands for ``args.resume or distributed``."""
        found = in_several(test)
        if found is not None or not isinstance(test, ast.Name):
            return found
        values = self.index.values_of(test)
        return in_several(values[0]) if len(values) == 1 and isinstance(values[0], ast.BoolOp) else None

    def _asks_helper(self, test: ast.expr) -> bool:
        """Whether a short function of another file, which has no telling name, asks for the process."""
        return any(
            _answers_by_rank(function)
            for item in walk(test)
            if isinstance(item, ast.Call)
            for function in functions_called(self.module, item)
        )

    def _is_flag(self, test: ast.expr) -> bool:
        """Whether a test reads a switch that is set by the process: ``if rank == 0: saves = True``.

        Tests that stand around the reading too have let all processes by that come there.
        """
        return any(
            self._is_switched(value, frozenset(self.index.branches(item)))
            for item in walk(test)
            if isinstance(item, (ast.Name, ast.Attribute)) and isinstance(item.ctx, ast.Load)
            for value in self.index.values_of(item)
        )

    def _is_set_elsewhere(self, test: ast.expr) -> bool:
        """Whether a test reads a setting that another file sets by the process: ``if rank == 0: args.log = True``."""
        if self._asks is not None:
            return False  # The whole program says so.
        for item in walk(test):
            if isinstance(item, ast.Attribute) and isinstance(item.value, (ast.Name, ast.Attribute)):
                if not self.index.values_of(item) and self._others_set_by_rank(item):
                    return True
        return False

    def _others_set_by_rank(self, setting: ast.Attribute) -> bool:
        """Whether a file beside this one gives an attribute, of an object of the same name, a value by the process."""
        holder = last_name(setting.value)
        text = f"{holder}.{setting.attr}"
        return any(
            RankPaths(module).is_told_by_rank(value)
            for module in self._beside
            if text in module.module.source.text
            for target, value, _ in module.index.assignments
            if isinstance(target, ast.Attribute) and target.attr == setting.attr and last_name(target.value) == holder
        )

    @cached_property
    def _beside(self) -> list[ModuleFacts]:
        return list(files_beside(self.module))

    def is_told_by_rank(self, value: ast.expr) -> bool:
        """Whether a switch is set by asking which process this is, or behind a test that does."""
        asks = value.func if isinstance(value, ast.Call) else value
        is_answer = isinstance(value, (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Call))
        return self._is_switched(value) or (is_answer and not is_class(asks) and _tells_which(asks))

    def _is_switched(self, value: ast.expr, around: frozenset[tuple[ast.expr, bool]] = frozenset()) -> bool:
        """Whether a value is a flag that stands behind a test of the process, beside those ``around``."""
        return isinstance(value, ast.Constant) and isinstance(value.value, bool) and self._is_by_rank(value, around)

    def _is_by_rank(self, node: ast.expr, around: frozenset[tuple[ast.expr, bool]] = frozenset()) -> bool:
        """Whether a test around says which process this is by a rank; how many there are is alike on all."""
        return any(
            _tells_which(test) or self._is_narrowed(test)
            for test, holds in self.index.branches(node)
            if (test, holds) not in around
        )

    def _is_narrowed(self, test: ast.expr) -> bool:
        """Whether a test is a switch that the process narrows: ``shows = shows and rank == 0``."""
        return isinstance(test, (ast.Name, ast.Attribute)) and any(
            isinstance(value, ast.BoolOp) and isinstance(value.op, ast.And) and _tells_which(value)
            for value in self.index.values_of(test)
        )

    def _is_local(self, test: ast.expr) -> bool:
        """Whether a test asks for the local rank and for nothing else."""
        asked = [item for item in walk(test) if isinstance(item, (ast.Name, ast.Attribute, ast.Constant))]
        named = [item for item in asked if _tells_rank(_text_of(item))]
        return bool(named) and all(self._is_local_rank(item) for item in named)

    def _is_local_rank(self, node: ast.expr) -> bool:
        named = bool(NAMED_LOCAL_RANK.search(_text_of(node)))
        if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(node.ctx, ast.Load):
            return named
        values = [item.node for item in origins(self.module, node) if item.node is not node]
        values = [item for item in values if not isinstance(item, ast.Constant)]
        if named:
            # Some call the rank so that torch.distributed gives.
            return not any(_comes_of_global(item) for item in values)
        return bool(values) and all(_comes_of_local(item) for item in values)


def _asks_for_one_process(test: ast.expr) -> bool:
    """``command == "export" or world <= 1``: whoever wrote it has several processes in mind."""
    return isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or) and False in map(in_several, test.values)


def _tells_which(test: ast.expr) -> bool:
    """Whether a test says which process this is, in one of its parts; ``local_rank == -1 or no_cuda`` does not."""
    if isinstance(test, ast.BoolOp):
        return not _is_of_number(test) and any(map(_tells_which, test.values))
    return names_rank(test) and in_several(test) is None and not _is_of_number(test)


def _text_of(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return last_name(node)


def _tells_rank(text: str) -> bool:
    """Whether a name is about which process this is, not how many there are."""
    return bool(NAMED_RANK.search(text)) and not NAMED_SEVERAL.search(text)


def _comes_of_local(node: ast.expr) -> bool:
    """``int(os.environ["LOCAL_RANK"])``, ``args.local_rank``, ``local_rank == 0``."""
    names = [_text_of(item) for item in walk(node)]
    return any(NAMED_LOCAL_RANK.search(item) for item in names) and not any(
        _tells_rank(item) and not NAMED_LOCAL_RANK.search(item) for item in names
    )


def _comes_of_global(node: ast.expr) -> bool:
    """``dist.get_rank()``, ``int(os.environ["RANK"])``."""
    names = [_text_of(item) for item in walk(node)]
    return any(_tells_rank(item) and not NAMED_LOCAL_RANK.search(item) for item in names)


def _is_of_number(test: ast.expr) -> bool:
    """Whether a test has the number of processes in it and no rank: ``distributed and epoch > 3``."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        parts = [in_several(item) for item in test.values]
        others = [item for item, part in zip(test.values, parts, strict=True) if part is None]
        return True in parts and False not in parts and not any(asks_for_one(item) for item in others)
    return False


def _is_of_launcher(test: ast.expr) -> bool:
    """Whether a test asks what a launcher has said, and not which process this is: ``"WORLD_SIZE" in os.environ``."""
    if isinstance(test, ast.BoolOp):
        about = [item for item in test.values if names_rank(item)]
        return bool(about) and all(map(_is_of_launcher, about))
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _is_of_launcher(test.operand)
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return False
    right = test.comparators[0]
    if isinstance(test.ops[0], (ast.In, ast.NotIn)) and last_name(right) == "environ":
        return True
    # ``world_size == -1``: it is not known yet.
    is_unknown = isinstance(right, ast.UnaryOp) and isinstance(right.op, ast.USub) and literal(right.operand) == 1
    return is_unknown and counts_processes(name_of_test(test.left))


def _are_given(test: ast.expr, holds: bool) -> bool:
    """Whether a test that comes out like this says only that there is a rank: ``rank is not None``, however it is put.

    One process gives none, and each of several its own.
    """
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _are_given(test.operand, not holds)
    if isinstance(test, ast.BoolOp):
        about = [item for item in test.values if names_rank(item)]
        return isinstance(test.op, ast.And) is holds and bool(about) and all(_are_given(item, holds) for item in about)
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not is_none(test.comparators[0]):
        return False
    name = last_name(test.left)
    is_rank = bool(EXACT_RANK.search(name) or NAMED_COUNT.search(name))
    return is_rank and isinstance(test.ops[0], ast.IsNot if holds else ast.Is)


def _leaves_by_mistake(test: ast.expr) -> bool:
    """``wrong and rank == 0``: the first process says what is wrong, and whoever goes on is not asked for the rank."""
    if not isinstance(test, ast.BoolOp) or not isinstance(test.op, ast.And):
        return False
    asking = [item for item in test.values if asks_for_one(item)]
    others = [item for item in test.values if item not in asking and in_several(item) is None]
    return bool(others) and all(_is_first(item) for item in asking)


def _is_first(test: ast.expr) -> bool:
    """``rank == 0``, ``is_main_process()``."""
    if isinstance(test, ast.Compare):
        return isinstance(test.ops[0], ast.Eq) and literal(test.comparators[0]) == 0
    return not isinstance(test, ast.UnaryOp)


_HELPER_LINES = 12


def _answers_by_rank(function: FunctionFacts) -> bool:
    node = function.node
    if (node.end_lineno or 0) - node.lineno > _HELPER_LINES:
        return False
    return any(
        EXACT_RANK.search(_text_of(item)) or EXACT_FIRST_RANK.search(_text_of(item))
        for result in function.returns
        for item in walk(result)
    )


def _goes_back(function: FunctionFacts) -> bool:
    """Whether a function of another file runs backward passes."""
    return "backward" in function.module.index.words and any(
        isinstance(item, ast.Call) and last_name(item.func) == "backward" for item in function.nodes
    )


def method_called(module: ModuleFacts, call: ast.Call) -> FunctionFacts | None:
    """The method of a class of the project that a call of an object runs, by where the object is made."""
    if not isinstance(call.func, ast.Attribute):
        return None
    for item in origins(module, call.func.value):
        cls = item.module.class_named(item.node.func) if isinstance(item.node, ast.Call) else None
        method = cls.method(call.func.attr) if cls is not None else None
        if method is not None:
            return method
    return None
