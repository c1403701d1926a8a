"""What every file of this package works on: the program, what it holds so far, and what was noted on the way."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from amp_rules.flow.flow import Flow
from amp_rules.ranks.frames import Frame
from amp_rules.ranks.kept_by_models import KeptByModels
from amp_rules.ranks.lasting_attributes import LastingAttributes
from amp_rules.ranks.memory import Memory
from amp_rules.ranks.origins import Decisions, Kind, Origin, Origins
from amp_rules.ranks.values import RankValue, Ref, join
from amp_rules.roles.program import Program
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope

_FIRST_ROUND = -10
"""The numbers of evaluations of functions are positive; those of rounds go down from here."""


@dataclass(frozen=True)
class Setting:
    """What the rewrites make of the program, as far as it says what ranks share.

    Attributes:
        prepared: expressions whose loader is shared out.
        by_sampler: those of them that a sampler shares out, where one is given.
        unknown: those of them that may be a part of an object of which nothing is known, as others are.
        rebound: variables that are given a loader that is shared out, with the statement before which they are.
        rebound_after: the same, with the statement after which they are.
        seeded: statements before which the ranks' random numbers are made to differ.
        alike: statements and expressions within which they are the same on all ranks.
        ordered: whether the order of sets is the same on all ranks.
        reduced: expressions whose value is reduced over the ranks.
        reduced_before: variables whose value is reduced before a statement.
        has_dropout: whether a library's model may draw dropout masks.
        failing: calls of which some ranks' may fail where others' do not.
        ending: handlers that raise what they catch once more where there are several processes.
        stays_apart: whether the ranks' random numbers differ for good once a rank has had a batch.
        holding: tests that hold wherever there are several processes.
        excluded: tests that do not.
        together: loops in each round of which the processes wait for each other, so that they count alike.
    """

    prepared: frozenset[ast.AST] = frozenset()
    by_sampler: frozenset[ast.AST] = frozenset()
    unknown: frozenset[ast.AST] = frozenset()
    rebound: tuple[tuple[ast.stmt, str], ...] = ()
    rebound_after: tuple[tuple[ast.stmt, str], ...] = ()
    seeded: frozenset[ast.AST] = frozenset()
    alike: frozenset[ast.AST] = frozenset()
    ordered: bool = False
    reduced: frozenset[ast.AST] = frozenset()
    reduced_before: tuple[tuple[ast.stmt, str], ...] = ()
    has_dropout: bool = True
    failing: frozenset[ast.AST] = frozenset()
    ending: frozenset[ast.AST] = frozenset()
    stays_apart: bool = False
    holding: frozenset[ast.AST] = frozenset()
    excluded: frozenset[ast.AST] = frozenset()
    together: frozenset[ast.AST] = frozenset()


Evaluate = Callable[[ast.expr, Frame], RankValue]
Run = Callable[["Given"], RankValue]


@dataclass
class Given:
    """A call of a function of the project.

    Attributes:
        info: the function.
        bound: what its parameters are given.
        frame: the evaluation that calls it.
        receiver: the object, of a method.
        site: the call.
    """

    info: FunctionFacts
    bound: dict[str, RankValue]
    frame: Frame
    receiver: frozenset[Ref] = frozenset()
    site: ast.AST | None = None


@dataclass
class World:
    """Everything about one program.

    Attributes:
        program: the program.
        setting: what the rewrites make of it.
        memory: what objects and shared variables hold.
        lasting: the attributes that hold what a method gave them last.
        keeps: what models keep in attributes.
        seen: what each expression was, in all evaluations together.
        truths: why each test may be true on one rank and false on another.
        decided: what decides whether a node runs, in all evaluations together.
        evaluate: evaluates an expression.
        run: runs a function of the project.
    """

    program: Program
    setting: Setting
    memory: Memory = field(default_factory=Memory)
    seen: dict[ast.AST, RankValue] = field(default_factory=dict)
    truths: dict[ast.AST, Origins] = field(default_factory=dict)
    decided: dict[ast.AST, Decisions] = field(default_factory=dict)
    evaluate: Evaluate = field(init=False)
    run: Run = field(init=False)
    lasting: LastingAttributes = field(init=False)
    keeps: KeptByModels = field(init=False)
    _rounds: dict[tuple[int, ast.AST], int] = field(default_factory=dict)
    _origins: dict[tuple[Kind, ast.AST], Origin] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lasting = LastingAttributes(self.program)
        self.keeps = KeptByModels(self.program, self.memory)

    @property
    def flow(self) -> Flow:
        """What names may hold."""
        return self.program.flow

    def origin(self, kind: Kind, module: Module, node: ast.AST, name: str = "") -> Origins:
        """An origin at a place, alone."""
        key = (kind, node)
        known = self._origins.get(key)
        if known is None:
            known = self._origins[key] = Origin(kind, module, node, name)
        return frozenset((known,))

    def round_of(self, context: int, node: ast.AST) -> int:
        """The number of one round of a loop over constants, within an evaluation."""
        return self._rounds.setdefault((context, node), _FIRST_ROUND - len(self._rounds))

    def order(self, module: Module, node: ast.AST) -> Origins:
        """Why the elements of a set come in another order."""
        return frozenset() if self.setting.ordered else self.origin(Kind.ORDER, module, node)

    def new(self, node: ast.AST, frame: Frame) -> Ref:
        """A reference to what a node makes."""
        return self.memory.made(Ref(node, frame.context))

    def note(self, node: ast.AST, value: RankValue) -> None:
        """Remember what an expression was."""
        known = self.seen.get(node)
        if known is not value:
            self.seen[node] = value if known is None else join(known, value)

    def note_decided(self, node: ast.AST, frame: Frame) -> None:
        """Remember what decides whether a node runs."""
        deciding = frame.deciding
        if deciding:
            known = self.decided.get(node)
            if known is None or not deciding <= known:
                self.decided[node] = deciding if known is None else known | deciding

    def deep(self, values: Iterable[RankValue]) -> Origins:
        """Why anything differs that can be read from one of the values."""
        found: Origins = frozenset()
        for value in values:
            more = self.memory.deep(value)
            if more:
                found = found | more if found else more
        return found

    def names(self, node: ast.expr, scope: Scope) -> set[str]:
        """Qualified names of the library objects that an expression can be."""
        return self.program.names(node, scope) if isinstance(node, (ast.Name, ast.Attribute)) else set()
