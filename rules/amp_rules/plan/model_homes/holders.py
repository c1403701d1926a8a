"""Which models keep a model as a part."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cached_property

from amp_rules.flow.cells import SlotKey
from amp_rules.flow.values import ClassInfo, Value
from amp_rules.plan.evaluation.modes import is_evaluating
from amp_rules.plan.model_homes.saved_chains import chains
from amp_rules.plan.model_parts import makes_parameters
from amp_rules.roles.kinds import is_module
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks


class Holders:
    """Says which models of a program hold which others."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.flow = program.flow
        self._above: dict[Value, set[Value]] = {}
        self._holders_of: dict[Value, set[Value]] = {}
        self._run_by: dict[ast.Call, set[ast.AST]] = {}

    def outermost(self, value: Value) -> set[Value]:
        """Instances of project models that keep ``value``, directly or through others, and are parts of nothing else.

        Names hold values regardless of the order of statements, so after ``net = Scale(net)`` and ``net = Shift(net)``
        each of the two wrappers seems to hold the other: models that hold each other are outermost together.
        """
        above = self.all_of(value)
        found = {item for item in above if all(item in self.all_of(other) for other in self.all_of(item))}
        # What a factory made and another model keeps is a part, though the factory's own variable is none.
        found = {item for item in found if not any(self._hands_out(other, item) for other in above)}
        return {
            item
            for item in found
            if not (self._only_evaluates(item, value) or self._is_dropped(item, value) or self._is_loss_of(item, value))
        }

    def _is_loss_of(self, holder: Value, value: Value) -> bool:
        """Whether a loss runs a model again that the script runs itself: ``cycle(real, net(real))`` of ``Cycle(net)``.

        What the script gets of a prepared model is float32; of a part of one it may be half, which a loss may refuse.
        """
        if holder.kind != "instance" or not {value, holder} <= self._called or makes_parameters(holder):
            return False
        located = self.program.locate(holder.site) if isinstance(holder.site, ast.Call) else None
        return located is not None and not self.program.is_model_code(located[0])

    def _is_dropped(self, holder: Value, value: Value) -> bool:
        """Whether a function that trains nothing makes a model around another one, runs it, and drops it.

        The other one lives longer: ``Features(self.net, layer).forward(x)``.
        """
        located = self.program.locate(holder.site) if isinstance(holder.site, ast.Call) else None
        if located is None or holder.kind != "instance" or holder in self.program.trained:
            return False
        body, scope = located
        info = self.program.function_of(body)
        if info is None or self.program.is_model_code(body) or any(map(self.program.runs_backward, info.body)):
            return False
        keys = {(owner, name) for owner, name in self._variables_with[holder] if not self._is_own(owner, holder)}
        if not keys or any(owner is not body or not isinstance(name, str) for owner, name in keys):
            return False
        names = {name for _, name in keys}
        reads = [
            node
            for node in self.program.nodes_of(body)
            if isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load)
        ]
        parents = [scope.module.parents[node] for node in reads]
        return all(
            isinstance(parent, ast.Attribute) or (isinstance(parent, ast.Call) and parent.func is node)
            for node, parent in zip(reads, parents, strict=True)
        ) and any(owner is not body and not self._is_own(owner, holder) for owner, _ in self._variables_with[value])

    @cached_property
    def _variables_with(self) -> defaultdict[Value, list[SlotKey]]:
        """Each value with the variables that may hold it."""
        found: defaultdict[Value, list[SlotKey]] = defaultdict(list)
        for key, cell in self.flow.cells.items():
            for value in cell.values:
                found[value].append(key)
        return found

    def _is_own(self, owner: object, holder: Value) -> bool:
        """Whether a variable is one of the model's own class: its attributes, and those of its methods."""
        family = {info.facts.node for info in holder.ref.mro()}
        info = self.program.function_of(owner) if isinstance(owner, ast.AST) else None
        return owner in family or (info is not None and info.cls is not None and info.cls.node in family)

    def _only_evaluates(self, holder: Value, value: Value) -> bool:
        """Whether a model is made around a trained one, or a copy of it, only to evaluate it.

        The script calls the trained one itself where it trains, and never the other.
        """
        if value not in self._called or holder in self._called or holder in self.program.trained:
            return False
        located = self.program.locate(value.site) if isinstance(value.site, ast.Call) else None
        return located is not None and not self.program.is_model_code(located[0])

    def all_of(self, value: Value) -> set[Value]:
        """What keeps ``value``, what keeps that, and so on; ``value`` itself among it where it comes round."""
        known = self._above.get(value)
        if known is None:
            known = set()
            pending = [value]
            while pending:
                fresh = self._holders(pending.pop()) - known
                known |= fresh
                pending.extend(fresh)
            self._above[value] = known
        return known

    def _holders(self, value: Value) -> set[Value]:
        """Instances of project models that keep ``value`` as an attribute."""
        if value not in self._holders_of:
            self._holders_of[value] = {
                made
                for info in self._classes_with(value)
                for made in self.instances
                if info in made.ref.mro() and made != value
            } | {item for item, parts in self._parts_of_chains if item != value and value in parts}
        return self._holders_of[value]

    def _classes_with(self, value: Value) -> set[ClassInfo]:
        """Classes of models one of whose attributes is ``value``, or a container of it."""
        return {
            info
            for info, kept in self._kept.items()
            if value in kept and not (value.kind == "instance" and value.ref is info)
        }

    @cached_property
    def _kept(self) -> dict[ClassInfo, set[Value]]:
        """What the attributes of each class of models hold, and the elements of it."""
        found: defaultdict[ClassInfo, set[Value]] = defaultdict(set)
        for info in self.flow.classes.values():
            for values in self.flow.held_by(info.facts.node) if is_module(Value("instance", info)) else ():
                found[info] |= values | self.flow.elements(values)
        return found

    @cached_property
    def _parts_of_chains(self) -> list[tuple[Value, set[Value]]]:
        """Each chain with what it holds."""
        return [(item, self.flow.elements([item])) for item in self._chains]

    def _hands_out(self, one: Value, other: Value) -> bool:
        """Whether one is the other again, as the caller of a factory has it."""
        if one == other or one.ref is not other.ref or not isinstance(one.site, ast.Call):
            return False
        module = self.program.module_of(other.site) if other.site is not None else None
        if module is None or other.site is None:
            return False
        if one.site not in self._run_by:
            self._run_by[one.site] = self.program.called_from({one.site})
        return blocks.body_of(module, other.site) in self._run_by[one.site]

    @cached_property
    def instances(self) -> set[Value]:
        """Objects of classes of the project that are made at a known place."""
        return {
            value
            for cell in self.flow.cells.values()
            for value in cell.values
            if value.kind == "instance" and value.site is not None
        }

    @cached_property
    def _chains(self) -> set[Value]:
        """Chains that the program makes of its layers: ``nn.Sequential(...)``; but not those made only to be saved."""
        return chains(self.program)[0]

    @cached_property
    def _called(self) -> set[Value]:
        """Models that the script itself calls with gradients, outside of evaluations."""
        found: set[Value] = set()
        for node, body, scope in self.program.nodes():
            if not isinstance(node, ast.Call) or self.program.is_model_code(body):
                continue
            models = self.program.called_models(node, scope)
            if models and not models <= found and not self.program.is_without_gradients(node):
                if not is_evaluating(self.program, Site(scope.module, scope, body, node), models):
                    found |= models
        return found
