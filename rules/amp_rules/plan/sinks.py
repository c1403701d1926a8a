"""Places where all ranks need the same: decisions over training, learning rates, and writes to parameters."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from amp_rules.plan.data_paths import is_of_data
from amp_rules.plan.reached_by_all import ReachedByAll
from amp_rules.plan.weight_writes import WeightWrites, Write
from amp_rules.ranks.analysis import Ranks
from amp_rules.ranks.origins import Decision, Kind, Origin, Origins
from amp_rules.roles.file_effects import given_paths, opens_to_write
from amp_rules.roles.file_paths import Paths
from amp_rules.roles.kinds import is_module, is_optimizer, is_scheduler
from amp_rules.roles.loaders import is_loader
from amp_rules.roles.path_objects import is_path
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.resolver import names_of
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import values_given
from amp_rules.torch.failures import ENDS_PROCESS
from amp_rules.torch.file_access import LISTS_FOLDERS, LOOKS, LOOKS_OF_PATHS, TEMPORARY
from amp_rules.torch.functions import READS_FILE
from amp_rules.torch.optimizers import GROUP_SETTINGS
from amp_rules.torch.replication import DRAWN_IDENTIFIERS

_RATE = 1
"""The place of the rate among the arguments of an optimizer."""


class Need(Enum):
    """What the ranks need the same value for."""

    DECISION = "it decides what is trained"
    ROUNDS = "it says how often a step is taken"
    RATE = "it sets the learning rate"
    WEIGHTS = "it is written to the model's weights"
    PATH = "it names a file that all ranks read"
    MODEL = "a model that is trained is made with it"


@dataclass(frozen=True)
class Sink:
    """A place where all ranks need the same value.

    Attributes:
        need: what for.
        module: the file.
        scope: the scope of its names.
        node: the expression that has to be the same on all ranks.
        what: the call or statement that it decides over, or that takes it.
        origins: why it is not.
        is_look: whether it is the path of a file that is looked for, with a time in it that all ranks ask for.
    """

    need: Need
    module: Module
    scope: Scope
    node: ast.expr
    what: ast.AST
    origins: Origins
    is_look: bool = False


class Sinks:
    """Finds the sinks of a program that are given what differs between ranks.

    What the program alone says of its places is found once, however often it is asked what differs.
    """

    def __init__(
        self,
        program: Program,
        *,
        forwards: bool,
        left_out: Collection[ast.AST] = frozenset(),
        own_reads: Collection[ast.AST] = frozenset(),
    ) -> None:
        self._program = program
        self._own_reads = own_reads
        self._forwards = forwards
        self._left_out = left_out

    def find(self, ranks: Ranks, collectives: frozenset[ast.AST]) -> list[Sink]:
        """All of them, in the order of the text; each expression once.

        Args:
            ranks: what differs.
            collectives: where ranks wait for each other besides.
        """
        self._ranks = ranks
        self._collectives = collectives
        found: dict[ast.AST, Sink] = {}
        decisions = [*self._decisions()]
        # A rate that follows from a decision, which lowers it, is the same once the decision is.
        steering: Origins = frozenset().union(*(sink.origins for sink in decisions))
        for sink in [*self._values(), *decisions]:
            if not (self._is_first_rate(sink) and sink.origins & steering):
                found.setdefault(sink.node, sink)
        return sorted(found.values(), key=lambda sink: (str(sink.module.path), sink.node.lineno, sink.node.col_offset))

    # ---- decisions -----------------------------------------------------------------------------------------------

    def _decisions(self) -> Iterator[Sink]:
        """Yield tests that let one rank go on where another does not."""
        for node, _, _ in self._program.nodes():
            if node not in self._meetings and node not in self._collectives:
                continue
            for decision in self._ranks.decisions(node):
                yield self._sink(decision, node)

    def _sink(self, decision: Decision, node: ast.AST) -> Sink:
        body = blocks.body_of(decision.module, decision.node)
        assert isinstance(decision.node, ast.expr)  # a test, what is iterated, or a call that may fail
        need = Need.ROUNDS if decision.counts else Need.DECISION
        scope = self._program.flow.scopes[body]
        return Sink(need, decision.module, scope, decision.node, node, decision.origins)

    @cached_property
    def _meetings(self) -> set[ast.AST]:
        """Where ranks wait for each other, or would train differently after it."""
        return {node for node, _, scope in self._program.nodes() if self._meets_others(node, scope)}

    def _meets_others(self, node: ast.AST, scope: Scope) -> bool:
        if node in self._backwards or node in self._exits or node in self._weight_writes:
            return True
        if isinstance(node, ast.Call):
            return self._steers(node, scope) or (self._forwards and self._is_pass(node, scope))
        return False

    def _steers(self, call: ast.Call, scope: Scope) -> bool:
        """Whether a call changes an optimizer, a schedule or the weights of a trained model."""
        if call in self._steps:
            return True
        if self._makes_optimizer(call, scope):
            return True  # made anew, with another rate
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in (
            "step",
            "add_param_group",
            "load_state_dict",
        ):
            return False
        values = self._program.flow.values(call.func.value, scope)
        if any(is_optimizer(value) or is_scheduler(value) for value in values):
            return True
        return call.func.attr == "load_state_dict" and any(map(self._program.is_trained, values))

    def _is_pass(self, call: ast.Call, scope: Scope) -> bool:
        """Whether the script itself runs a trained model with gradients."""
        body = blocks.body_of(scope.module, call)
        if self._program.is_model_code(body) or self._program.is_without_gradients(call):
            return False
        return any(self._program.is_trained(value) for value in self._program.called_models(call, scope))

    @cached_property
    def _backwards(self) -> set[ast.AST]:
        return {site.node for site in self._program.backwards}

    @cached_property
    def _exits(self) -> set[ast.AST]:
        """What leaves a loop over a generator that trains: no step follows in it then.

        And what ends the process in a loop that trains, as if it had done all: no launcher ends the others then.
        """
        loops = [node for node, _, _ in self._program.nodes() if isinstance(node, (ast.For, ast.AsyncFor))]
        left = {
            inner
            for loop in loops
            if self._program.runs_backward(loop.iter)
            for item in loop.body
            for inner in blocks.walk_own(item)
            if isinstance(inner, (ast.Break, ast.Return))
        }
        return left | {
            call
            for call, _, scope in self._program.calls()
            if _ends_well(call) and self._program.callee_names(call, scope) & ENDS_PROCESS
            for loop in blocks.enclosing(scope.module, call)
            if isinstance(loop, blocks.LOOPS) and self._program.runs_backward(loop)
        }

    @cached_property
    def _steps(self) -> set[ast.AST]:
        return {site.node for site in [*self._program.steps, *self._program.unknown_steps]}

    # ---- values --------------------------------------------------------------------------------------------------

    def _values(self) -> Iterator[Sink]:
        """Yield local values that become a learning rate, weights, or the size of a model."""
        for node, scope in self._takers:
            if isinstance(node, ast.Call):
                yield from self._given_to_schedule(node, scope)
                yield from self._given_to_optimizer(node, scope)
                yield from self._given_to_model(node, scope)
                yield from self._looked_for(node, scope) if self._looks(node, scope) else self._read_paths(node, scope)
            else:
                yield from self._rates(node, scope)
        for write, scope in self._weight_writes.items():
            for given in WeightWrites.given(write):
                yield from self._if_local(Need.WEIGHTS, given, write, scope)
            if not isinstance(write, ast.Call):
                continue
            drawn = frozenset(origin for origin in self._ranks.origins(write) if origin.node is write)
            if drawn:  # ``p.normal_()`` itself
                yield Sink(Need.WEIGHTS, scope.module, scope, write, write, drawn)

    @cached_property
    def _takers(self) -> list[tuple[ast.Call | ast.Assign | ast.AugAssign, Scope]]:
        """Calls and assignments that may take a rate, the size of a model or the path of a file."""
        found: list[tuple[ast.Call | ast.Assign | ast.AugAssign, Scope]] = []
        for node, _, scope in self._program.nodes():
            if isinstance(node, ast.Call):
                takes_rate = self._steps_schedule(node, scope) or self._makes_optimizer(node, scope)
                takes_rate = takes_rate or self._makes_trained(node, scope)
                if takes_rate or self._reads_file(node, scope) or self._looks(node, scope):
                    found.append((node, scope))
            elif isinstance(node, (ast.Assign, ast.AugAssign)):
                found.append((node, scope))
        return found

    def _if_local(self, need: Need, node: ast.expr, what: ast.AST, scope: Scope) -> Iterator[Sink]:
        origins = self._ranks.origins(node)
        if origins:
            yield Sink(need, scope.module, scope, node, what, origins)

    def _given_to_schedule(self, call: ast.Call, scope: Scope) -> Iterator[Sink]:
        """Yield what ``scheduler.step(loss)`` is given, and schedules whose functions read what is local."""
        if not self._steps_schedule(call, scope) or not isinstance(call.func, ast.Attribute):
            return
        given = [item for item in values_given(call) if self._ranks.origins(item)]
        for item in given:
            yield from self._if_local(Need.RATE, item, call, scope)
        if not given and not any(ref.cls is not None for ref in self._ranks.objects(call.func.value)):
            yield from self._if_local(Need.RATE, call.func.value, call, scope)

    def _steps_schedule(self, call: ast.Call, scope: Scope) -> bool:
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "step":
            return False
        values = self._program.flow.values(call.func.value, scope)
        return any(is_scheduler(value) for value in values) and not self._program.flow.callees(call)

    def _makes_optimizer(self, call: ast.Call, scope: Scope) -> bool:
        return any(is_optimizer(value) and value.site is call for value in self._program.flow.values(call, scope))

    def _given_to_optimizer(self, call: ast.Call, scope: Scope) -> Iterator[Sink]:
        """Yield what an optimizer is made with: the rate that a search has found on the batches of one process."""
        if self._makes_optimizer(call, scope):
            for item in call.keywords:
                if item.arg in GROUP_SETTINGS:
                    yield from self._if_local(Need.RATE, item.value, call, scope)
            for given in call.args[_RATE : _RATE + 1]:
                yield from self._if_local(Need.RATE, given, call, scope)

    def _makes_trained(self, call: ast.Call, scope: Scope) -> bool:
        """Whether a call makes a model that is trained; one that may run a model, ``self.layers(x)``, makes none."""
        values = self._program.flow.values(call, scope)
        if not any(value.site is call and self._program.is_trained(value) for value in values):
            return False
        return not any(map(is_module, self._program.flow.values(call.func, scope)))

    def _given_to_model(self, call: ast.Call, scope: Scope) -> Iterator[Sink]:
        """Yield what a model is made with that the batches of one process have chosen: its width, as of a search."""
        if not self._makes_trained(call, scope):
            return
        pending = values_given(call)
        while pending:
            given = pending.pop(0)
            values = self._program.flow.values(given, scope)
            if any(map(is_module, values)):
                # A layer, ``nn.Linear(5, width)``; what a network that was made elsewhere holds is no size.
                if isinstance(given, ast.Call) and any(value.site is given for value in values):
                    pending += values_given(given)
                continue
            origins = self._ranks.own_origins(given)
            if not any(map(is_loader, values)) and any(origin.kind is Kind.BATCH for origin in origins):
                yield Sink(Need.MODEL, scope.module, scope, given, call, origins)

    def _is_first_rate(self, sink: Sink) -> bool:
        return (
            sink.need is Need.RATE and isinstance(sink.what, ast.Call) and self._makes_optimizer(sink.what, sink.scope)
        )

    def _read_paths(self, call: ast.Call, scope: Scope) -> Iterator[Sink]:
        """Yield the paths of files that are read, which one process has written."""
        # What lies in a folder of ``tempfile`` each rank has written itself.
        is_read = call not in self._own_reads and self._reads_file(call, scope)
        paths = given_paths(call)[:1] if is_read else ()
        if not Paths(self._program).is_own(paths, scope):
            for path in paths:
                if self._is_temporary(path):
                    is_of_main = False
                elif self._lists(call, scope):
                    is_of_main = self._is_of_this_moment(path)
                else:
                    is_of_main = not (self._is_drawn(path) or is_of_data(self._program, self._ranks, path, scope))
                if is_of_main:
                    yield from self._if_local(Need.PATH, path, call, scope)

    def _reads_file(self, call: ast.Call, scope: Scope) -> bool:
        if self._lists(call, scope):
            # What runs on the main process only it lists itself.
            return bool(given_paths(call)) and call not in self._left_out
        names = self._program.callee_names(call, scope) & READS_FILE
        return bool(names and given_paths(call)) and not opens_to_write(call)

    def _lists(self, call: ast.Call, scope: Scope) -> bool:
        return bool(self._program.callee_names(call, scope) & LISTS_FOLDERS)

    def _looks(self, call: ast.Call, scope: Scope) -> bool:
        names = self._program.callee_names(call, scope)
        return (bool(names & LOOKS) and not names & LISTS_FOLDERS) or self._path_looked_for(call, scope) is not None

    def _path_looked_for(self, call: ast.Call, scope: Scope) -> ast.expr | None:
        """The path of ``path.is_dir()``, where it is one of ``pathlib``."""
        func = call.func
        if not isinstance(func, ast.Attribute) or func.attr not in LOOKS_OF_PATHS or values_given(call):
            return None
        return func.value if is_path(self._program, func.value, scope) else None

    def _looked_for(self, call: ast.Call, scope: Scope) -> Iterator[Sink]:
        """Yield the path of a file with the time in its name that all ranks look for: the main process has made one."""
        own = self._path_looked_for(call, scope)
        for path in given_paths(call)[:1] if own is None else (own,):
            origins = self._ranks.origins(path)
            if not origins or not self._names_a_run(origins):
                continue
            if self._all_reach(call):
                is_look = all(self._all_reach(origin.node) for origin in origins)
                yield Sink(Need.PATH, scope.module, scope, path, call, origins, is_look=is_look)

    def _names_a_run(self, origins: Collection[Origin]) -> bool:
        """Whether a path differs by times, and by identifiers that are drawn beside them: ``{time}_{uuid4()}``."""
        located = [self._program.locate(origin.node) for origin in origins if origin.kind is Kind.CLOCK]
        bodies = {place[0] for place in located if place is not None}
        return all(origin.kind is Kind.CLOCK or self._is_beside(origin, bodies) for origin in origins)

    def _is_beside(self, origin: Origin, bodies: set[ast.AST]) -> bool:
        """Whether an identifier is drawn in one of the bodies."""
        located = self._program.locate(origin.node)
        if located is None or located[0] not in bodies or not isinstance(origin.node, ast.Call):
            return False
        return bool(self._program.callee_names(origin.node, located[1]) & DRAWN_IDENTIFIERS)

    def _all_reach(self, node: ast.AST) -> bool:
        located = self._program.locate(node)
        if located is None:
            return False
        body, scope = located
        return not self._reached.is_alone(Site(scope.module, scope, body, node))

    @cached_property
    def _reached(self) -> ReachedByAll:
        return ReachedByAll(self._program, set(self._left_out))

    def _is_temporary(self, path: ast.expr) -> bool:
        """Whether a path differs by a folder of ``tempfile`` alone, where it is not in one that all share."""
        nodes = [(origin.module, origin.node) for origin in self._ranks.origins(path)]
        return bool(nodes) and all(
            isinstance(node, ast.Call) and names_of(module).dotted(node.func) in TEMPORARY for module, node in nodes
        )

    def _is_of_this_moment(self, path: ast.expr) -> bool:
        """Whether a path differs by the clock or the process alone, as that of a folder which one process made."""
        return all(origin.kind in (Kind.CLOCK, Kind.PROCESS) for origin in self._ranks.origins(path))

    def _is_drawn(self, path: ast.expr) -> bool:
        """Whether a path differs by what each rank draws for its own batches alone: a file of the data."""
        origins = self._ranks.origins(path)
        return bool(origins) and all(origin.kind is Kind.DRAW for origin in origins)

    def _rates(self, node: ast.Assign | ast.AugAssign, scope: Scope) -> Iterator[Sink]:
        """Yield what is assigned to a setting of a parameter group: ``group["lr"] = rate``."""
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            if not isinstance(target, ast.Subscript) or not isinstance(target.slice, ast.Constant):
                continue
            if target.slice.value in GROUP_SETTINGS and self._is_group(target.value):
                origins = self._ranks.origins(node.value) | self._ranks.control_origins(node)
                if origins:
                    decisions = self._ranks.decisions(node)
                    local = self._ranks.origins(node.value)
                    if local:
                        yield Sink(Need.RATE, scope.module, scope, node.value, node, local)
                    for decision in decisions:
                        yield self._sink(decision, node)

    def _is_group(self, owner: ast.expr) -> bool:
        """Whether the expression is a parameter group of an optimizer."""
        for ref in self._ranks.objects(owner):
            located = self._program.locate(ref.site) if isinstance(ref.site, ast.Call) else None
            if located is None or not isinstance(ref.site, ast.Call):
                continue
            if any(is_optimizer(value) for value in self._program.flow.values(ref.site, located[1])):
                return True
        return False

    @cached_property
    def _weight_writes(self) -> dict[Write, Scope]:
        """Calls and assignments that change parameters in place, outside of optimizers."""
        return WeightWrites(self._program).found


def _ends_well(call: ast.Call) -> bool:
    """Whether a process that is ended so says that nothing failed: ``sys.exit()``, ``exit(0)``."""
    return not call.keywords and all(isinstance(item, ast.Constant) and not item.value for item in call.args)
