"""What an assignment changes."""

from __future__ import annotations

import ast

from amp_rules.ranks.elements import Elements
from amp_rules.ranks.frames import Frame
from amp_rules.ranks.memory import ELEMENTS, LENGTH, attribute, element, is_mapping
from amp_rules.ranks.values import UNKNOWN, RankValue
from amp_rules.ranks.world import World


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
                frame.variables[target.id] = value
            self._memory.assign(owner.node, target.id, value)
        elif isinstance(target, ast.Attribute):
            self._world.note(target, value)
            for ref in self._world.evaluate(target.value, frame).refs:
                self._memory.write(ref, attribute(target.attr), value)
            for owner_value in self._world.flow.values(target.value, frame.scope):
                if owner_value.kind == "module":
                    self._memory.assign(owner_value.ref.tree, target.attr, value)
                elif owner_value.kind == "class":
                    self._memory.assign(owner_value.ref.facts.node, target.attr, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target, value, frame)
        elif isinstance(target, ast.Subscript):
            self._put(target, value, frame)
        elif isinstance(target, ast.Starred):
            self._assign(target.value, RankValue(value.content, value.size, value.refs), frame)

    def _unpack(self, target: ast.Tuple | ast.List, value: RankValue, frame: Frame) -> None:
        starred = any(isinstance(item, ast.Starred) for item in target.elts)
        for index, item in enumerate(target.elts):
            key: object = UNKNOWN if starred else index
            given = value if isinstance(item, ast.Starred) else self._elements.at(value, key, item, frame)
            self._assign(item, given, frame)

    def _put(self, target: ast.Subscript, value: RankValue, frame: Frame) -> None:
        owner = self._world.evaluate(target.value, frame)
        self._world.note(target, value)
        key = self._world.evaluate(target.slice, frame)
        chosen = self._memory.deep(key)
        slot = element(key.constant) if key.constant is not UNKNOWN else ELEMENTS
        for ref in owner.refs:
            self._memory.write(ref, slot, value.with_origins(chosen))
            may_add = chosen | frame.control_origins
            if may_add and is_mapping(ref.site):
                self._memory.write(ref, LENGTH, RankValue(may_add))
        if not owner.refs and isinstance(target.value, ast.Name):
            # What is not known as an object, such as a tensor that a parameter holds.
            self._assign(target.value, RankValue(owner.content | value.own | chosen, owner.size), frame)
