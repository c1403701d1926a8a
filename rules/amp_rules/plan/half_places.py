"""Where the training step certainly computes in half: within its models, and with what a product of matrices made.

What losses and the script compute of the outputs of prepared models is FP32, which their text does not tell.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

from amp_rules.checks.common.mixed_types import LAYERS, MATRIX_PRODUCTS
from amp_rules.lattice.abstract_values import IN_A_FUNCTION, KEEPING_TYPE, PASSING, Value
from amp_rules.plan.arrays import Arrays
from amp_rules.plan.precision import Precision
from amp_rules.plan.region_inputs import RegionInputs
from amp_rules.roles.in_regions import bodies_in
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source.facts import ModuleFacts
from amp_rules.source.modules import Module
from amp_rules.source.spans import Span
from amp_rules.source.syntax import walk

_HOLDING = frozenset({"list", "tuple"})

What = TypeVar("What")


@dataclass(frozen=True)
class HalfPlace(Generic[What]):
    """A place of a file that computes in half, as the linter's analysis of types has it.

    Attributes:
        what: what there is to say of it.
        is_certain: whether it is half because of what stands in the same function.
        parameters: the parameters that its tensor is made of, where it is made of nothing else.
        raw: the parameters that have to hold what no region computed, for it to matter.
        lowered: where the operations stand that alone make it half.
    """

    what: What
    is_certain: bool
    parameters: frozenset[Span]
    raw: frozenset[Span] = frozenset()
    lowered: frozenset[Span] = frozenset()


def made_by_product(value: Value) -> bool:
    """Whether a tensor is half because it is made of what autocast lowered in the same function."""
    return value.low and any(item.low and item.op in MATRIX_PRODUCTS | LAYERS for item in value.behind(IN_A_FUNCTION))


def parameters_of(value: Value, module: ModuleFacts) -> frozenset[Span]:
    """The parameters of a file's function that a half tensor is made of; none where something else made it half."""
    found = set()
    for item in _halves_behind(value):
        if item.op == "param" and item.node is not None and module.holds(item.node):
            found.add(module.module.span(item.node))
        elif item.op not in KEEPING_TYPE or not (item.args or item.op in _HOLDING):
            return frozenset()
    return frozenset(found)


def lowered_by(value: Value, is_known: Callable[[Value], bool]) -> list[Value]:
    """The operations that alone make a tensor half: what autocast lowers, or what is known; none where others may."""
    found, pending, seen = [], list(value.args), {id(value)}
    while pending:
        item = pending.pop()
        if id(item) in seen or not (item.maybe_low or item.op in _HOLDING):
            continue
        seen.add(id(item))
        if item.op in MATRIX_PRODUCTS | LAYERS or is_known(item):
            found.append(item)
        elif (item.op in KEEPING_TYPE or item.op == "sqrt") and item.args:
            pending += item.args
        elif item.number is None:
            return []
    return found


def raw_parameters(value: Value, module: ModuleFacts) -> frozenset[Span]:
    """The parameters of a file's function that a tensor is made of with numbers; none where something else is in it."""
    found, pending = set(), [value]
    while pending:
        item = pending.pop()
        if item.op == "param" and item.node is not None and module.holds(item.node):
            found.add(module.module.span(item.node))
        elif item.op in KEEPING_TYPE and item.args:
            pending += item.args[:1] if item.op in PASSING else item.args
        elif item.number is None:
            return frozenset()
    return frozenset(found)


def _halves_behind(value: Value) -> Iterator[Value]:
    pending, seen = [value], {id(value)}
    while pending:
        item = pending.pop()
        yield item
        for part in item.args:
            if (part.maybe_low or part.op in _HOLDING) and id(part) not in seen:
                seen.add(id(part))
                pending.append(part)


class HalfPlaces:
    """The functions that run within a model's forward pass.

    Args:
        program: the program.
        precision: what is planned for it.
        outputs: whether what is computed of the outputs of models counts too: in plain PyTorch nothing casts them.
        inputs: whether models get their inputs in half, as at O2 and O3.
    """

    def __init__(self, program: Program, precision: Precision, *, outputs: bool = False, inputs: bool = False) -> None:
        self._program, self._precision = program, precision
        self._outputs = outputs
        self._arrays = Arrays(program)
        self._inputs = None if inputs else RegionInputs(program, precision)

    def found(self, judge: Callable[[Module], Mapping[Span, HalfPlace[What]]]) -> Iterator[tuple[Site, What]]:
        """Yield what the linter's analysis says of calls and operators of the step that are half, by file and line."""
        yield from ((site, item.what) for site, item in self.places(judge))

    def places(
        self, judge: Callable[[Module], Mapping[Span, HalfPlace[What]]]
    ) -> Iterator[tuple[Site, HalfPlace[What]]]:
        """Yield the places themselves, by file and line."""
        judged: dict[Module, Mapping[Span, HalfPlace[What]]] = {}
        seen: set[tuple[Module, Span]] = set()
        for site in self.sites:
            if not isinstance(site.node, (ast.Call, ast.BinOp)):
                continue
            if site.module not in judged:
                judged[site.module] = judge(site.module)
            place = site.module.span(site.node)
            item = judged[site.module].get(place)
            if item is None or (site.module, place) in seen:
                continue
            if self._arrays.may_be_of(site) or (item.raw and not self.are_given(site, item.raw)):
                continue
            if item.is_certain or (self.holds(site) and not self.are_given(site, item.parameters)):
                seen.add((site.module, place))
                yield site, item

    def are_given(self, site: Site, parameters: frozenset[Span]) -> bool:
        """Whether parameters of the function around a place hold nothing but what no region computed."""
        return self._inputs is not None and self._inputs.are_given(site, parameters)

    def holds(self, site: Site) -> bool:
        """Whether what a place computes with may be half for no other reason than autocast in a model."""
        return self._outputs or site.body in self._bodies

    def is_of_loss(self, site: Site) -> bool:
        """Whether a place is of the training step, and not within a model's forward pass."""
        return site.body not in self._bodies and (site.body in self._bodies_in_training or site.node in self._training)

    @cached_property
    def _bodies_in_training(self) -> set[ast.AST]:
        return bodies_in(self._program, self._precision.training)

    @cached_property
    def _training(self) -> set[ast.AST]:
        return {node for run in self._precision.training for item in run.statements() for node in walk(item)}

    @cached_property
    def sites(self) -> list[Site]:
        """Every node that runs within the regions."""
        return self._precision.nodes(self._program)

    @cached_property
    def _bodies(self) -> set[ast.AST]:
        calls = [site.node for site in self.sites if isinstance(site.node, ast.Call) and self._runs_trained(site)]
        return self._program.called_from(calls)

    def _runs_trained(self, site: Site) -> bool:
        """Whether a call is of a model that is trained, or of one of its methods."""
        call = site.node
        assert isinstance(call, ast.Call)
        called = set(self._program.called_models(call, site.scope))
        if isinstance(call.func, ast.Attribute):
            called |= self._program.roles.modules(call.func.value, site.scope)
        return any(map(self._program.is_trained, called))
