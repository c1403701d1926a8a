"""Functions of the project: each is run once for each way in which it is called.

What tells ways apart is what an analysis of ranks can see: where it is called, which parameters differ between ranks,
which are known constants, of which object the method is, and the state of the program. A validation loop is so told
from the training loop that has the same helper. Ways of one kind are joined; of a function that is called in very many
ways, those remain apart in which something differs between ranks, and of a method those of different objects.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from amp_rules.ranks.frames import Frame, Raised, State
from amp_rules.ranks.memory import ELEMENTS
from amp_rules.ranks.origins import UNDECIDED, Decisions
from amp_rules.ranks.records import Record
from amp_rules.ranks.statements import Statements
from amp_rules.ranks.values import REPLICATED, UNKNOWN, RankValue, Ref, join
from amp_rules.ranks.world import Given, World
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.scopes import Scope

_MAX_WAYS = 8
"""Ways of calling one function that are told apart. Helpers of scripts have two or three; of the rest only those that
differ in whether anything that they are given does."""
_MAX_OBJECTS = 40
"""Ways of calling one method up to which objects are told apart by where they are made. Scripts make a dozen meters."""
_MAX_TIMES = 2
"""Evaluations of one way in one round. More come of calls from many places, whose arguments are joined one by one."""
_MAX_EVALUATIONS = 2_000
"""Evaluations of functions in all. Scripts need some hundred; of a program of a hundred thousand lines, what is known
by then counts."""
_MAX_CALLS = 60
"""Calls within calls. Code of people stays below twenty; what lies deeper is taken as known so far."""

_OUTER = "^"
"""Before the names of variables that are those of the function around."""

Key = tuple[object, ...]


@dataclass(eq=False)
class Way:
    """One way in which a function is called, all calls of this kind together; or the body of a module.

    Attributes:
        number: the context of what it makes.
        bound: what its parameters hold.
        round: the round of the last evaluation, in which there were ``times``.
        version: how often what it gives has changed.
        record: what the last evaluation rests on; None before the first.
        has_grown: whether more was given since the last evaluation began.
        checked: the time at which everything was last found as it was.
    """

    number: int
    bound: dict[str, RankValue]
    state: State
    control: Decisions = UNDECIDED
    result: RankValue = REPLICATED
    raised: Raised = frozenset()
    left: State = field(default_factory=State)
    round: int = -1
    times: int = 0
    running: bool = False
    version: int = 0
    record: Record | None = None
    has_grown: bool = False
    checked: int = -1


class Functions:
    """Runs functions, and remembers what they gave.

    Attributes:
        round: the number of the present round over the program; in each, every way is run at least once.
        reached: the functions that were run.
    """

    def __init__(self, world: World, statements: Statements) -> None:
        self.round = 0
        self.reached: set[ast.AST] = set()
        self._world = world
        self._memory = world.memory
        self._statements = statements
        self._ways: defaultdict[ast.AST, dict[Key, Way]] = defaultdict(dict)
        self._modules: dict[ast.AST, Way] = {}
        self._free: dict[ast.AST, frozenset[str]] = {}
        self._count = 0
        self._left = _MAX_EVALUATIONS
        self._depth = 0

    def run(self, given: Given) -> RankValue:
        """What a call of a function gives."""
        info = given.info
        bound = self._complete(info, given)
        way = self._way(info, given, bound)
        grown = self._grow(way, bound, given)
        if way.round != self.round:
            way.times = 0
        record = self._memory.record
        if (grown or way.round != self.round) and not way.running:
            if self._depth >= _MAX_CALLS:
                record.is_partial = True
            elif way.times >= _MAX_TIMES or not self._left:
                # What came to it since is seen in the next round.
                self._memory.changed = True
                record.is_partial = True
            elif not self._holds(way):
                self._evaluate(info, way)
        record.calls.setdefault(way, way.version)
        frame = given.frame
        if way.raised:
            frame.raised[-1] |= way.raised
        if way.round == self.round and not info.is_forward:
            frame.state = way.left.copy()
        return way.result

    def run_module(self, tree: ast.Module, scope: Scope) -> None:
        """Run what a file does by itself."""
        way = self._modules.setdefault(tree, Way(0, {}, State()))
        way.round = self.round
        if not self._holds(way):
            with self._recorded(way):
                self._statements.run(tree.body, Frame(tree, scope, 0))

    @contextmanager
    def _recorded(self, way: Way) -> Iterator[None]:
        """Note what an evaluation rests on."""
        before = self._memory.record
        record = self._memory.record = Record()
        way.has_grown = False
        try:
            yield
        finally:
            self._memory.record = before
            way.record = record

    def _holds(self, way: Way) -> bool:
        """Whether an evaluation would give what it gave, and count it as one for all ways that are known to be so."""
        seen = {way}
        pending = [way]
        while pending:
            current = pending.pop()
            record = current.record
            if record is None or current.has_grown:
                return False
            if current.checked != self._memory.clock and not self._memory.holds(record):
                return False
            for callee, version in record.calls.items():
                if callee.version != version:
                    return False
                if callee not in seen and not callee.running:
                    seen.add(callee)
                    pending.append(callee)
        for current in seen:
            current.checked = self._memory.clock
            if current.round != self.round:
                current.round, current.times = self.round, 1
                self._left = max(0, self._left - 1)
        return True

    def _note_new(self, way: Way) -> None:
        """Note that a way gives more than it did."""
        way.version += 1
        self._memory.clock += 1

    def _complete(self, info: FunctionFacts, given: Given) -> dict[str, RankValue]:
        """What each parameter holds, defaults and the receiver included."""
        bound = dict(given.bound)
        scope = self._world.flow.scopes.get(info.node)
        for name, default in info.defaults.items():
            if name not in bound and scope is not None and scope.parent is not None:
                bound[name] = self._world.evaluate(default, Frame(scope.parent.node, scope.parent, 0))
        if info.receiver is not None:
            bound[info.receiver] = RankValue(refs=given.receiver)
        held = given.frame.variables
        return bound | {_OUTER + name: held[name] for name in self._read_of(info, given.frame) if name in held}

    def _read_of(self, info: FunctionFacts, frame: Frame) -> frozenset[str]:
        """The variables of the function that calls it which a function within it reads, and does not assign."""
        scope = self._world.flow.scopes.get(info.node)
        if scope is None or scope.parent is not frame.scope or not frame.scope.is_function:
            return frozenset()
        if info.node not in self._free:
            names = {node.id for node in blocks.walk_body(info.node) if isinstance(node, ast.Name)}
            self._free[info.node] = frozenset(
                name for name in names - scope.nonlocal_names if scope.owner(name) is scope.parent
            )
        return self._free[info.node]

    def _way(self, info: FunctionFacts, given: Given, bound: dict[str, RankValue]) -> Way:
        frame = given.frame
        differs: Key = (bool(self._world.deep(bound.values())), bool(frame.control_origins))
        if info.is_forward:
            # What a model keeps of its last pass is no input of the next.
            inputs = [value for name, value in bound.items() if name != info.receiver]
            told: Key = (bool(self._world.deep(inputs)), *_modes(bound))
        else:
            told = self._told_apart(info, given, bound)
        key = (*told, *frame.state.key())
        ways = self._ways[info.node]
        if key not in ways and len(ways) >= _MAX_WAYS:
            # What is given a rank's own is still not what others are given, and what one object holds not another's.
            known = (frozenset(ref.site for ref in given.receiver), *differs, *frame.state.key())
            key = known if known in ways or len(ways) < _MAX_OBJECTS else (*differs, *frame.state.key())
        way = ways.get(key)
        if way is None:
            self._count += 1
            way = ways[key] = Way(self._count, bound, frame.state.copy())
        return way

    def _told_apart(self, info: FunctionFacts, given: Given, bound: dict[str, RankValue]) -> Key:
        """What tells a way of calling from others, besides the state of the program."""
        return (
            given.site,
            given.receiver,
            bool(given.frame.control_origins),
            *(
                (name, bool(self._memory.deep(value)), bool(value.size), _constant(value))
                for name, value in sorted(bound.items())
                if name != info.receiver
            ),
        )

    def _grow(self, way: Way, bound: dict[str, RankValue], given: Given) -> bool:
        """Add a call to its way; whether anything is new."""
        grown = False
        for name, value in bound.items():
            known = way.bound.get(name)
            joined = value if known is None else join(known, value)
            if joined != known:
                way.bound[name] = joined
                grown = True
        deciding = given.frame.deciding
        if not deciding <= way.control:
            way.control |= deciding
            grown = True
        before = way.state.key()
        way.state.merge(given.frame.state)
        if not grown and way.state.key() == before:
            return False
        way.has_grown = True
        self._memory.clock += 1
        return True

    def _evaluate(self, info: FunctionFacts, way: Way) -> None:
        scope = self._world.flow.scopes.get(info.node)
        if scope is None:
            return
        self.reached.add(info.node)
        own = {name: value for name, value in way.bound.items() if not name.startswith(_OUTER)}
        frame = Frame(info.node, scope, way.number, own, way.control, way.state.copy())
        frame.closed = {name.removeprefix(_OUTER): way.bound[name] for name in way.bound.keys() - own.keys()}
        for name, value in own.items():
            # Functions within it read its parameters too.
            self._memory.assign(info.node, name, value)
        way.running = True
        way.times += 1
        self._left -= 1
        way.round = self.round
        self._depth += 1
        try:
            with self._recorded(way):
                if isinstance(info.node, ast.Lambda):
                    frame.give_back(self._world.evaluate(info.node.body, frame))
                else:
                    self._statements.run(info.node.body, frame)
        finally:
            self._depth -= 1
            way.running = False
        found = frame.returned if frame.returned is not None else RankValue(constant=None)
        if info.is_generator:
            ref = self._memory.made(Ref(info.node, way.number))
            if self._memory.read(ref, ELEMENTS) is None:
                self._memory.write(ref, ELEMENTS, REPLICATED)
            found = RankValue(refs=frozenset((ref,)))
        joined = join(way.result, found) if way.result is not REPLICATED else found
        if joined != way.result or frame.raised[0] != way.raised:
            self._memory.changed = True
            self._note_new(way)
        elif frame.state.key() != way.left.key():
            self._note_new(way)
        way.result = joined
        way.raised = frame.raised[0]
        way.left = frame.state


def _modes(bound: dict[str, RankValue]) -> Key:
    """The texts that say what a forward pass is to do: ``model(users, items, mode="predict")``."""
    return tuple((name, value.constant) for name, value in sorted(bound.items()) if isinstance(value.constant, str))


def _constant(value: RankValue) -> object:
    """The constant that tells one way of calling from another: flags and names, not numbers."""
    if value.constant is None or isinstance(value.constant, (bool, str)):
        return value.constant
    return UNKNOWN
