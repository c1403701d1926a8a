"""Where a script puts numbers of all processes together itself."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cached_property

from amp_rules.plan.joint_metrics import names_joint_metrics
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.training_loops import TrainingLoop
from amp_rules.roles.path_objects import assigned
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.index import argument_at
from amp_rules.source.modules import Module
from amp_rules.source.resolver import Names, names_of
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import last_name, walk
from amp_rules.torch.distributed import (
    BROADCASTS,
    EXCHANGES,
    GATHERING_NAME,
    INTO_ANOTHER,
    NAMED_COMMUNICATION,
    REDUCING_NAME,
    REDUCTIONS,
    SPAWNS,
)
from amp_rules.torch.evaluating import SYNCHRONISED_METRICS

_MAX_CALLERS = 6
"""Callers that may reduce what a function gives back: ``train_epoch``, ``fit``, ``main``."""

_COUNTS = frozenset({"get_world_size", "num_processes", "num_replicas", "world_size"})
_COPYING = frozenset({"clone", "deepcopy", "tensor", "stack", "cat", "Tensor", "FloatTensor", "new_tensor"})
_READS = frozenset({"load", "open", "read_csv", "read_json", "read_pickle"})


class Exchanges:
    """Answers for the functions of a program.

    Args:
        own: the program.
        loops: its loops over loaders that are shared out.
        followed: exchanges that do not count, as their results are known otherwise.
        known: exchanges that write to variables of their function alone, so that others made of the same batches stay
            those of the process.
    """

    def __init__(
        self,
        own: OwnDdp,
        loops: Iterable[TrainingLoop],
        *,
        followed: frozenset[ast.AST] = frozenset(),
        known: frozenset[ast.AST] = frozenset(),
    ) -> None:
        self._own = own
        self._followed = followed
        self._known = known
        loop_nodes = {loop.loop for loop in loops}
        self._loops_in = own.program.closure(lambda node: node in loop_nodes)

    def may_be_of_all(self, body: ast.AST) -> bool:
        """Whether a number of a function may be that of all processes already, or become it in a caller.

        What one process tells the others, a seed or the name of a run, is not put together.
        """
        return any(map(self.puts_together, _calls(body))) or self.becomes_of_all(body)

    def may_tell_of(self, body: ast.AST, path: str, apart: Collection[ast.AST] = ()) -> bool:
        """Whether an exchange in a function may be about one of its variables, or one in a caller about any of them.

        ``score = evaluate(model)`` puts together what it counts itself, and not what the training above has summed up.

        Args:
            body: the function.
            path: the variable.
            apart: calls in it that are about another number, whatever its variable is.
        """
        calls = [call for call in _calls(body) if call not in apart and self.puts_together(call)]
        if not calls:
            return self.becomes_of_all(body)
        nodes = list(blocks.walk_body(body))
        rows = [row for node in nodes if (row := _row(node)) is not None]
        behind = _closed({path}, rows)
        # Settings that go into a sum are no numbers of batches.
        of_rounds = {
            item
            for loop in nodes
            if isinstance(loop, blocks.LOOPS)
            for node in walk(loop)
            for item in _written_by(node)
        }
        added = {
            item for written, read in rows if path in written for item in read if blocks.touches({item}, of_rounds)
        }
        forward = [(read, written) for written, read in rows]
        made, of_sum = _closed({path} | added, forward), _closed({path}, forward)
        for call in calls:
            if self._is_of_others(call, behind):
                continue
            gathered = self._gathered_into(call)
            if gathered is not None:
                # What is gathered goes to another variable, and what it was taken from stays that of the process.
                if blocks.touches(behind, gathered) or blocks.touches(of_sum, blocks.reads(call)):
                    return True
            elif self._is_about(call, behind, of_sum if call in self._known else made):
                return True
        return self.becomes_of_all(body)

    def _is_of_others(self, call: ast.Call, behind: set[str]) -> bool:
        """Whether a call leaves its arguments as they are, and gives what it makes to none of some variables.

        ``told = mean_of_all(loss)`` and ``sampler.update_with(losses)``, but not what the object keeps of them.
        """
        located = self._own.program.locate(call)
        statement = blocks.statement_of(located[1].module, call) if located is not None else None
        if not isinstance(statement, (ast.Expr, ast.Assign)) or statement.value is not call:
            return False
        if blocks.touches(behind, blocks.writes_itself(statement) | blocks.reads(call.func)):
            return False
        return self.leaves_its_own(call)

    def _gathered_into(self, call: ast.Call) -> set[str] | None:
        """The variables that one of torch's calls puts what all have into, beside what it is given; None for others."""
        located = self._own.program.locate(call) if self.is_of_torch(call) else None
        names = self._own.program.callee_names(call, located[1]) if located is not None else set()
        found: set[str] = set()
        for name in names:
            if name not in INTO_ANOTHER:
                return None
            into = argument_at(call, *INTO_ANOTHER[name])
            found |= blocks.reads(into) if into is not None else set()
        return found if names else None

    def _is_about(self, call: ast.Call, behind: set[str], made: set[str]) -> bool:
        """Whether a call that exchanges numbers may take what is made of a variable, or give what it is made of."""
        located = self._own.program.locate(call)
        if located is None:
            return True
        scope = located[1]
        given = {path for item in (*call.args, *call.keywords) for path in blocks.reads(item)}
        given |= blocks.reads(call.func.value) if isinstance(call.func, ast.Attribute) else set()
        written = blocks.writes_itself(blocks.statement_of(scope.module, call))
        if blocks.touches(behind, written) or (blocks.touches(made, given) and self._takes(call, made, 0)):
            return True
        if self.is_of_torch(call) and blocks.touches(behind, given):
            return True
        roots = {path.partition(".")[0] for path in made}
        for info in self._own.program.flow.callees(call):
            inner = self._own.program.flow.scopes[info.node]
            used = {node.id for node in blocks.walk_body(info.node) if isinstance(node, ast.Name)}
            if any(inner.owner(name) is scope.owner(name) for name in used & roots):
                return True
        return False

    def _takes(self, call: ast.Call, made: set[str], depth: int) -> bool:
        """Whether a call that exchanges numbers, in what it runs, may exchange those of variables that it is given."""
        callees = self._own.program.flow.callees(call)
        if self.is_of_torch(call) or not callees or depth >= _MAX_CALLERS:
            return True
        return any(self._takes_within(info, call, made, depth) for info in callees)

    def _takes_within(self, info: FunctionFacts, call: ast.Call, made: set[str], depth: int) -> bool:
        given = [(name, info.argument(call, name)) for name in info.parameters]
        names = {name for name, value in given if value is not None and blocks.touches(made, blocks.reads(value))}
        if info.receiver is not None or not names:
            return True  # an object, or ``*numbers``
        rows = [row for node in blocks.walk_body(info.node) if (row := _row(node)) is not None]
        below = _closed(names, [(read, written) for written, read in rows])
        for inner in filter(self.puts_together, _calls(info.node)):
            handed = {path for item in (*inner.args, *inner.keywords) for path in blocks.reads(item)}
            handed |= blocks.reads(inner.func.value) if isinstance(inner.func, ast.Attribute) else set()
            if blocks.touches(below, handed) and self._takes(inner, below, depth + 1):
                return True
        return False

    def becomes_of_all(self, body: ast.AST) -> bool:
        """Whether a caller may make a number of a function that of all processes."""
        return self._in_callers(body, frozenset())

    def is_of_torch(self, call: ast.Call) -> bool:
        """Whether a call is one of torch's exchanges."""
        return call in self._calls_of_torch

    @cached_property
    def adds_up(self) -> Callable[[ast.AST], bool]:
        """Whether a call reaches one of torch's exchanges that adds up, not one that only gathers."""
        calls = {site.node for site in self._own.program.calls_to(REDUCTIONS)}
        return self._own.program.closure(lambda node: node in calls)

    def leaves_its_own(self, call: ast.Call) -> bool:
        """Whether a function exchanges copies of what it is given: the variable stays that of the process."""
        callees = self._own.program.flow.callees(call)
        return bool(callees) and all(map(self._exchanges_copies, callees))

    def _exchanges_copies(self, info: FunctionFacts) -> bool:
        calls = _calls(info.node)
        exchanging = [item for item in calls if item in self._calls_of_torch]
        if not exchanging or any(self.puts_together(item) for item in calls if item not in self._calls_of_torch):
            return False
        copied = {
            path
            for node in blocks.walk_body(info.node)
            if isinstance(node, ast.Assign)
            and any(isinstance(part, ast.Call) and last_name(part.func) in _COPYING for part in walk(node.value))
            for path in blocks.writes(node)
        }
        gathered = [self._gathered_into(item) for item in exchanging]
        given = {
            path
            for item, into in zip(exchanging, gathered, strict=True)
            for path in ({path for value in item.args for path in blocks.reads(value)} if into is None else into)
        }
        # What is gathered goes to another variable: no copy is needed of what it was taken from.
        is_apart = bool(given & copied) or None not in gathered
        return given.isdisjoint(set(info.parameters) - copied) and is_apart

    def _in_callers(self, body: ast.AST, seen: frozenset[ast.AST]) -> bool:
        info = self._own.program.function_of(body)
        if info is None or body in seen or len(seen) > _MAX_CALLERS:
            return False
        for caller in self._own.program.flow.callers(info):
            located = self._own.program.locate(caller.call)
            if located is None:
                return True
            # What another loop reduces are numbers of its own; of what the function itself exchanges is asked above.
            calls = [call for call in _calls(located[0]) if call is not caller.call and self.puts_together(call)]
            reducing = [call for call in calls if call not in self._starts and not self._evaluates(call)]
            is_plain = bool(info.returns) and info.receiver is None
            given = _names_given(located[1].module, located[0], caller.call, info) if is_plain else None
            for call in reducing:
                is_given = given is None or caller.call in set(walk(call)) or blocks.touches(given, blocks.reads(call))
                if (
                    (info.returns and is_given)
                    or _meet_in_object(info, call)
                    or self._meet_around(info, call)
                    or self._is_given(call, caller.call)
                ):
                    return True
            if self._in_callers(located[0], seen | {body}):
                return True
        return False

    @cached_property
    def _starts(self) -> frozenset[ast.AST]:
        """The calls that start processes: what those exchange among them, no caller has."""
        return frozenset(site.node for site in self._own.program.calls_to(SPAWNS))

    def _evaluates(self, call: ast.Call) -> bool:
        """Whether what a call of the project runs, not what makes its arguments, goes through such a loader."""
        callees = self._own.program.flow.callees(call)
        if not callees:
            return self._loops_in(call)
        return any(self._loops_in(node) for info in callees for node in blocks.walk_body(info.node))

    def _meet_around(self, info: FunctionFacts, call: ast.Call) -> bool:
        """Whether a call may be about a variable of the function around one, which that fills: ``meter.update(x)``."""
        scope = self._own.program.flow.scopes[info.node]
        if scope.parent is None or not scope.parent.is_function:
            return False
        used = {path for item in blocks.own_parts(info.node) for path in (*blocks.reads(item), *blocks.writes(item))}
        return any(scope.owner(path) is scope.parent for path in used & blocks.reads(call) if "." not in path)

    def _is_given(self, reducing: ast.Call, call: ast.Call) -> bool:
        """Whether what one call reduces is an argument of the other: ``schedule.step(all_reduce(loss) / steps)``."""
        located = self._own.program.locate(call)
        if located is None:
            return False
        body, scope = located
        read = {path for item in (*call.args, *call.keywords) for path in blocks.reads(item)}
        parts = [node for node in blocks.walk_body(body) if isinstance(node, (ast.Assign, ast.AugAssign))]
        pending = True
        while pending:
            more = {path for node in parts if blocks.writes(node) & read for path in blocks.reads(node.value)} - read
            read |= more
            pending = bool(more)
        return not read.isdisjoint(blocks.writes(blocks.statement_of(scope.module, reducing)))

    def puts_together(self, call: ast.Call) -> bool:
        """Whether a call may put numbers of all processes together."""
        if self._reaches(call) or self._applies(call) or self._is_given_exchange(call):
            return True
        if self._own.program.flow.callees(call):
            return False
        # A method of something unknown: it may be the one of this name that does.
        is_method = isinstance(call.func, ast.Attribute) and call.func.attr in self._names and not self._is_mode(call)
        return is_method or self._is_of_library(call)

    def _is_of_library(self, call: ast.Call) -> bool:
        """Whether a function that no file of the project defines says by its name that it does: ``reduce_tensor``."""
        name = last_name(call.func)
        if not REDUCING_NAME.search(name) and not GATHERING_NAME.search(name):
            return False
        located = self._own.program.locate(call)
        names = self._own.program.callee_names(call, located[1]) if located is not None else set()
        if not REDUCING_NAME.search(name):
            return any(NAMED_COMMUNICATION.search(item.rpartition(".")[0]) for item in names)
        return not any(name.startswith(("torch.", "numpy.")) for name in names)

    def _applies(self, call: ast.Call) -> bool:
        """``gather(x)``, where ``gather = Gather.apply`` is a function of torch's autograd that exchanges in it."""
        located = self._own.program.locate(call)
        if located is None or not isinstance(call.func, (ast.Name, ast.Attribute)):
            return False
        for function in (call.func, *assigned(self._own.program, call.func, located[1])):
            if isinstance(function, ast.Attribute) and function.attr == "apply":
                for value in self._own.program.flow.values(function.value, located[1]):
                    forward = value.ref.find_method("forward") if value.kind == "class" else None
                    if forward is not None and _calls_exchange(forward):
                        return True
        return False

    def _is_given_exchange(self, call: ast.Call) -> bool:
        """Whether a call gets a function that exchanges numbers: ``map(reduce if several else plain, meters)``."""
        located = self._own.program.locate(call)
        return located is not None and any(
            value.kind == "function" and any(map(self._reaches, _calls(value.ref.node)))
            for item in (*call.args, *(given.value for given in call.keywords))
            if isinstance(item, (ast.Name, ast.IfExp))
            for value in self._own.program.flow.values(item, located[1])
        )

    def _is_mode(self, call: ast.Call) -> bool:
        """``model.train()`` of what the same function calls as a model: ``model(x)``."""
        located = self._own.program.locate(call) if last_name(call.func) in ("train", "eval") else None
        if located is None or not isinstance(call.func, ast.Attribute):
            return False
        path = blocks.path_of(call.func.value)
        return path is not None and any(blocks.path_of(other.func) == path for other in _calls(located[0]))

    @cached_property
    def _calls_of_torch(self) -> set[ast.AST]:
        return {site.node for site in self._own.program.calls_to(EXCHANGES - BROADCASTS)} - self._followed

    @cached_property
    def _of_metrics(self) -> set[ast.AST]:
        """The calls that ask a metric of torchmetrics, or what may be one, for its number: it is that of all processes.

        What calling a metric gives is that of the batch, unless it is made with ``dist_sync_on_step``.
        """
        if not names_joint_metrics(self._own.program):
            return set()
        return {
            call
            for call, _, scope in self._own.program.calls()
            if last_name(call.func) == "compute" or self._calls_metric(call, scope)
        }

    def _calls_metric(self, call: ast.Call, scope: Scope) -> bool:
        values = self._own.program.flow.values(call.func, scope) if _is_path(call.func) else ()
        return any(value.kind == "object" and value.name.startswith(SYNCHRONISED_METRICS) for value in values)

    @cached_property
    def _read_together(self) -> set[ast.AST]:
        """The calls that read what each process has written: ``for rank in range(size): open(f"{rank}.json")``."""
        return {
            call
            for node, _, _ in self._own.program.nodes()
            if isinstance(node, ast.For) and any(map(_counts_processes, walk(node.iter)))
            for call in walk(node)
            if isinstance(call, ast.Call) and last_name(call.func) in _READS
        }

    @cached_property
    def _reaches(self) -> Callable[[ast.AST], bool]:
        # Nothing that is followed runs the ``forward`` of ``Gather.apply(x)``.
        applied = {
            call
            for call, _, _ in self._own.program.calls()
            if last_name(call.func) == "apply" or isinstance(call.func, ast.Name)
            if not self._own.program.flow.callees(call) and self._applies(call)
        }
        calls = self._calls_of_torch | self._read_together | applied | self._of_metrics
        return self._own.program.closure(lambda node: node in calls)

    @cached_property
    def _names(self) -> set[str]:
        """The names of methods that exchange numbers."""
        return {
            info.name
            for info in self._own.program.flow.functions.values()
            if info.receiver is not None and any(map(self._reaches, _calls(info.node)))
        }


def _is_path(node: ast.expr) -> bool:
    return isinstance(node, (ast.Name, ast.Attribute, ast.Subscript))


def _calls_exchange(forward: FunctionFacts) -> bool:
    """Whether a function calls one of torch's exchanges itself: nothing that is followed runs it."""
    names = names_of(forward.module.module)
    return any(names.dotted(call.func) in EXCHANGES - BROADCASTS for call in _calls(forward.node))


def _row(node: ast.AST) -> tuple[set[str], set[str]] | None:
    """What a statement writes, and what it reads for that."""
    if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr)):
        return blocks.writes(node), blocks.reads(node.value) if node.value is not None else set()
    if isinstance(node, (ast.For, ast.AsyncFor)):
        return blocks.writes_target(node), blocks.reads(node.iter)
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _FILLING):
        return None
    path = blocks.path_of(node.func.value)
    if path is not None and isinstance(node.func.value, ast.Subscript):
        # One of several lists: ``history["loss"].append(loss)`` puts nothing into the others.
        return {path, ast.unparse(node.func.value)}, _read_by_arguments(node)
    return ({path}, blocks.reads(node)) if path is not None else None


def _read_by_arguments(call: ast.Call) -> set[str]:
    return {name for item in (*call.args, *call.keywords) for name in blocks.reads(item)}


def _written_by(node: ast.AST) -> set[str]:
    row = _row(node)
    return row[0] if row is not None else set()


_FILLING = frozenset({"add", "append", "extend", "update"})
"""Methods that put what they are given into their object: ``meter.update(loss.item())``."""


def _closed(paths: set[str], rows: list[tuple[set[str], set[str]]]) -> set[str]:
    """Paths, and what they lead to by way of rows: what a row's first set has part in leads to its second."""
    found = set(paths)
    while True:
        more = {path for one, other in rows if blocks.touches(one, found) for path in other} - found
        if not more:
            return found
        found |= more


def _names_given(module: Module, body: ast.AST, call: ast.Call, info: FunctionFacts) -> set[str] | None:
    """The variables of a function that may hold what a call gives, or something made of it; None for any."""
    statement = blocks.statement_of(module, call)
    if not isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr)):
        return None
    written = {path for item in blocks.own_parts(info.node) for path in blocks.writes(item)}
    filled = [info.argument(call, name) for name in info.parameters if blocks.touches({name}, written)]
    found = {*blocks.writes(statement), *(path for item in filled if item is not None for path in blocks.reads(item))}
    if isinstance(statement, ast.Expr) and statement.value is not call:
        return None  # ``history.append(train(...))``
    while True:
        more = {
            path
            for node in blocks.walk_body(body)
            if isinstance(node, ast.stmt) and blocks.touches(found, _read_by(node))
            for path in (*blocks.writes(node), *_receivers(node, found, names_of(module)))
        }
        if more <= found:
            return found
        found |= more


def _read_by(node: ast.stmt) -> set[str]:
    """What a simple statement reads, or the head of a loop."""
    if isinstance(node, (ast.For, ast.AsyncFor)):
        return blocks.reads(node.iter)
    return set() if hasattr(node, "body") else blocks.reads(node)


def _receivers(node: ast.stmt, given: set[str], names: Names) -> Iterator[str]:
    """Yield what a call may put some of its arguments into: ``history`` of ``history.append(loss)``, no module."""
    for part in walk(node) if isinstance(node, ast.Expr) else ():
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute):
            path, imported = blocks.path_of(part.func.value), names.dotted(part.func.value)
            is_module = imported is not None and "." not in imported  # ``torch.save(model, f"{loss}.pt")``
            if path is not None and not is_module and blocks.touches(given, _read_by_arguments(part)):
                yield path


def _counts_processes(node: ast.AST) -> bool:
    return isinstance(node, (ast.Name, ast.Attribute)) and last_name(node).lower() in _COUNTS


def _meet_in_object(info: FunctionFacts, call: ast.Call) -> bool:
    """Whether a call may be about what a function leaves in an object: ``self.metric``.

    One that gives its numbers back leaves them where it writes alone.
    """
    paths = {path for item in blocks.own_parts(info.node) for path in blocks.writes(item)}
    if not info.returns:
        paths |= {path for item in blocks.own_parts(info.node) for path in blocks.reads(item)}
    return blocks.touches({path for path in paths if "." in path}, blocks.reads(call))


def _calls(body: ast.AST) -> list[ast.Call]:
    return [node for node in blocks.walk_body(body) if isinstance(node, ast.Call)]
