"""What an assignment changes."""

from __future__ import annotations

import ast

from amp_rules.ranks.elements import Elements, is_group
from amp_rules.ranks.frames import Frame
from amp_rules.ranks.memory import ELEMENTS, LENGTH, attribute, element, evaluated, is_mapping
from amp_rules.ranks.values import UNKNOWN, RankValue
from amp_rules.ranks.world import World
from amp_rules.torch.optimizers import SETTINGS_OF_GROUPS


class Targets:
    """Assigns values to targets: variables anew, attributes and elements besides what they hold."""

    def __init__(self, world: World, elements: Elements) -> None:
        self._world = world
        self._memory = world.memory
        self._elements = elements

    def assign(self, target: ast.expr, value: RankValue, frame: Frame) -> None:
        """Give a target a value, where the frame is."""
        self._assign(target, value.with_origins(frame.control_origins), frame)

    def _assign(self, target: ast.expr, value: RankValue, frame: Frame) -> None:
        if isinstance(target, ast.Name):
            self._world.note(target, value)
            owner = frame.scope.owner(target.id)
            if owner is frame.scope:
                frame.give(target.id, value)
            self._memory.assign(owner.node, target.id, value)
        elif isinstance(target, ast.Attribute):
            self._world.note(target, value)
            path = self._world.lasting.path(target, frame)
            if path is not None:
                frame.variables[path] = value
            for ref in self._world.evaluate(target.value, frame).refs:
                self._memory.write(ref, attribute(target.attr), value)
                if not frame.state.training and self._world.keeps.is_model(ref):
                    self._memory.write(ref, evaluated(target.attr), value)
            for owner_value in self._world.flow.values(target.value, frame.scope):
                if owner_value.kind == "module":
                    self._memory.assign(owner_value.ref.tree, target.attr, value)
                elif owner_value.kind == "class":
                    self._memory.assign(owner_value.ref.facts.node, target.attr, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target, value, frame)
        elif isinstance(target, ast.Subscript):
            self._put(target, value, frame)

    def _unpack(self, target: ast.Tuple | ast.List, value: RankValue, frame: Frame) -> None:
        after_star = False
        for index, item in enumerate(target.elts):
            if isinstance(item, ast.Starred):
                after_star = True
                self._assign(item.value, self._rest(item, value, index, frame), frame)
            else:
                key: object = UNKNOWN if after_star else index
                self._assign(item, self._elements.at(value, key, item, frame), frame)

    def _rest(self, target: ast.Starred, value: RankValue, first: int, frame: Frame) -> RankValue:
        """The list that a starred target gets: what stands behind those before it."""
        ref = self._world.new(target, frame)
        others = set(value.refs)
        for other in value.refs:
            keys = [key for key in self._memory.keys(other) if isinstance(key, int)]
            held = self._memory.read(other, ELEMENTS)
            if not keys and held is None:
                continue  # its parts are not known: the list stands for it
            others.discard(other)
            for key in keys:
                part = self._memory.read(other, element(key)) if key >= first else None
                if part is not None:
                    self._memory.write(ref, element(key - first), part)
            if held is not None:
                self._memory.write(ref, ELEMENTS, held)
        self._memory.write(ref, LENGTH, RankValue(self._memory.length(value)))
        return RankValue(value.content, value.size, frozenset(others | {ref}))

    def _put(self, target: ast.Subscript, value: RankValue, frame: Frame) -> None:
        owner = self._world.evaluate(target.value, frame)
        self._world.note(target, value)
        key = self._world.evaluate(target.slice, frame)
        chosen = self._memory.deep(key)
        if key.constant in SETTINGS_OF_GROUPS and is_group(target.value, frame):
            # A number out of a file of settings, and no part of what an optimizer steps.
            value = value._replace(refs=frozenset(ref for ref in value.refs if not self._elements.is_of_file(ref)))
        slot = element(key.constant) if key.constant is not UNKNOWN else ELEMENTS
        for ref in owner.refs:
            self._memory.write(ref, slot, value.with_origins(chosen))
            may_add = chosen | frame.control_origins
            if may_add and is_mapping(ref.site):
                self._memory.write(ref, LENGTH, RankValue(may_add))
        if not owner.refs and isinstance(target.value, (ast.Name, ast.Attribute)):
            # What is not known as an object, such as a tensor that a parameter holds.
            self._assign(target.value, RankValue(owner.content | value.own | chosen, owner.size), frame)
