"""What is known so far: the cells, who read them, and the bodies that are to be looked at again."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterable

from amp_rules.flow.cells import Mark, SlotKey, attribute_key, element_key, keys_key
from amp_rules.flow.values import Cell, Value
from amp_rules.source.scopes import Scope

_MAX_VALUES = 40
"""Values that a cell can hold. Variables hold one to three, tables of classes up to some dozen; what comes after that
is left out. It ends what would grow for ever: ``x = x.next`` is another name of the library in each round."""


class Store:
    """Cells that only grow; what grows puts the bodies that read it on the queue.

    Attributes:
        cells: what each variable, attribute and element can hold.
        attribute_names: the attributes that the objects of a class have, by the node of the class.
        bodies: the bodies that the program can reach, with their scopes.
        frozen: whether the fixed point is reached; reading and writing change nothing then.
    """

    def __init__(self) -> None:
        self.cells: dict[SlotKey, Cell] = {}
        self.attribute_names: dict[object, set[str]] = {}
        self.bodies: dict[ast.AST, Scope] = {}
        self.frozen = False
        # What all elements of a container hold together, by its cell of keys: who iterates asks for that alone.
        self._elements: dict[SlotKey, Cell] = {}
        self._queue: deque[ast.AST] = deque()
        self._queued: set[ast.AST] = set()
        self._current: ast.AST | None = None

    # ---- cells -------------------------------------------------------------------------------------------------

    def read(self, key: SlotKey) -> set[Value]:
        """What a cell holds; the body that is being looked at is looked at again when that grows.

        The set is the cell's own: callers copy it before they change it, or write while they go through it.
        """
        return self._read(self.cells, key)

    def read_elements(self, owner: Value) -> set[Value]:
        """What the elements of a container hold, whatever their keys; read as a cell is."""
        return self._read(self._elements, keys_key(owner))

    def _read(self, cells: dict[SlotKey, Cell], key: SlotKey) -> set[Value]:
        cell = cells.get(key)
        if cell is None:
            if self.frozen:
                return set()
            cell = cells[key] = Cell()
        if self._current is not None:
            cell.readers.add(self._current)
        return cell.values

    def write(self, key: SlotKey, values: Iterable[Value]) -> set[Value]:
        """Add to what a cell holds; returns what is new in it."""
        if self.frozen:
            return set()
        cell = self.cells.get(key)
        if cell is None:
            cell = self.cells[key] = Cell()
        fresh = set(values) - cell.values
        if not fresh or len(cell.values) >= _MAX_VALUES:
            return set()
        if not cell.values and key[0].__class__ is ast.ClassDef:
            self._name_attribute(key)
        self._grow(cell, fresh)
        return fresh

    def _grow(self, cell: Cell, values: set[Value]) -> None:
        """Put values into a cell; who read it is looked at again where that makes a difference."""
        size = len(cell.values)
        cell.values |= values
        if len(cell.values) > size:
            for reader in cell.readers:
                self._enqueue(reader)

    def write_attribute(self, owner: Value, name: str | Mark, values: Iterable[Value]) -> None:
        """Add to what an attribute of a value holds."""
        self.write(attribute_key(owner, name), values)

    def write_element(self, owner: Value, index: object, values: Iterable[Value]) -> None:
        """Add to what an element of a container holds."""
        keys, key = keys_key(owner), Value("constant", index)
        self.write(keys, {key})
        held = self.write(element_key(owner, index), values)
        if held and key in self.cells[keys].values:
            self._grow(self._elements.setdefault(keys, Cell()), held)

    def _name_attribute(self, key: SlotKey) -> None:
        """Remember that objects of a class have an attribute, for those who look for it by a part of its name."""
        names = self.attribute_names.setdefault(key[0], set())
        if isinstance(key[1], str) and key[1] not in names:
            names.add(key[1])
            self.write((key[0], Mark.NAMES), {Value("constant", len(names))})

    # ---- bodies ------------------------------------------------------------------------------------------------

    def add_body(self, body: ast.AST, scope: Scope) -> None:
        """Have a body looked at, after those that wait already."""
        self.bodies[body] = scope
        self._enqueue(body)

    def add_first(self, body: ast.AST, scope: Scope) -> None:
        """Have a body looked at before all others."""
        self.bodies[body] = scope
        self._queued.add(body)
        self._queue.appendleft(body)

    def _enqueue(self, body: ast.AST) -> None:
        if not self.frozen and body in self.bodies and body not in self._queued:
            self._queued.add(body)
            self._queue.append(body)

    def take(self) -> tuple[ast.AST, Scope] | None:
        """The next body to look at, which is noted as the reader from now on; None when nothing is left to do."""
        if not self._queue:
            self._current = None
            return None
        body = self._current = self._queue.popleft()
        self._queued.discard(body)
        return body, self.bodies[body]

    def freeze(self) -> None:
        """Keep everything as it is."""
        self._current = None
        self.frozen = True
