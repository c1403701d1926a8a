"""What is known so far: the cells, who read them, and what is to be looked at again.

Bodies wait in the queue; of a body that is looked at again, only the statements count that read what has grown.
"""

from __future__ import annotations

import ast
from collections import Counter, deque
from collections.abc import Iterable, Iterator

from amp_rules.flow.cells import Mark, SlotKey, attribute_key, element_key, keys_key
from amp_rules.flow.values import Cell, Value
from amp_rules.source.scopes import Scope

_MAX_VALUES = 40
"""Values that a cell can hold. Variables hold one to three, tables of classes up to some dozen; what comes after that
is left out. It ends what would grow for ever: ``x = x.next`` is another name of the library in each round. A full cell
has room for as many of another kind: ``net = nets.__dict__[name]`` can be any function, and ``net = net()`` a model."""


class Store:
    """Cells that only grow; what grows puts the bodies that read it on the queue.

    Attributes:
        cells: what each variable, attribute and element can hold.
        attribute_names: the attributes that the objects of a class have, by the node of the class.
        bodies: the bodies that the program can reach, with their scopes.
        evaluations: how many parts of bodies were evaluated, those included that were evaluated again.
        frozen: whether the fixed point is reached; reading and writing change nothing then.
    """

    def __init__(self) -> None:
        self.cells: dict[SlotKey, Cell] = {}
        self.attribute_names: dict[object, set[str]] = {}
        self.bodies: dict[ast.AST, Scope] = {}
        self.evaluations = 0
        self.frozen = False
        # The cells of attributes, by class: who has read one asks again when the class gets another base.
        self._of_classes: dict[object, list[Cell]] = {}
        # What all elements of a container hold together, by its cell of keys: who iterates asks for that alone.
        self._elements: dict[SlotKey, Cell] = {}
        self._queue: deque[ast.AST] = deque()
        self._queued: set[ast.AST] = set()
        # The statement, or other part of a body, that is being evaluated: it reads.
        self._current: ast.AST | None = None
        self._bodies_of: dict[ast.AST, ast.AST] = {}
        self._due: set[ast.AST] = set()
        self._round = 0
        self._evaluated: dict[ast.AST, int] = {}

    # ---- cells -------------------------------------------------------------------------------------------------

    def read(self, key: SlotKey) -> set[Value]:
        """What a cell holds; the statement that is being evaluated is evaluated again when that grows.

        The set is the cell's own: callers copy it before they change it, or write while they go through it.
        """
        cell = self.cells.get(key)
        if cell is None:
            return self._read(self.cells, key)
        if self._current is not None:
            cell.readers[self._current] = None
        return cell.values

    def cell(self, key: SlotKey) -> Cell | None:
        """The cell itself, for those who read it often by :meth:`read_all`; None where it will never hold anything."""
        cell = self.cells.get(key)
        if cell is None and not self.frozen:
            cell = self.cells[key] = self._made(key)
        return cell

    def read_all(self, cells: Iterable[Cell]) -> set[Value]:
        """What some cells hold together, read as :meth:`read` does; a set of the caller's own."""
        found: set[Value] = set()
        current = self._current
        for cell in cells:
            if current is not None:
                cell.readers[current] = None
            if cell.values:
                found |= cell.values
        return found

    def read_elements(self, owner: Value) -> set[Value]:
        """What the elements of a container hold, whatever their keys; read as a cell is."""
        return self._read(self._elements, keys_key(owner))

    def _read(self, cells: dict[SlotKey, Cell], key: SlotKey) -> set[Value]:
        cell = cells.get(key)
        if cell is None:
            if self.frozen:
                return set()
            cell = cells[key] = self._made(key)
        if self._current is not None:
            cell.readers[self._current] = None
        return cell.values

    def _made(self, key: SlotKey) -> Cell:
        cell = Cell()
        if key[0].__class__ is ast.ClassDef:
            self._of_classes.setdefault(key[0], []).append(cell)
        return cell

    def write(self, key: SlotKey, values: Iterable[Value]) -> set[Value]:
        """Add to what a cell holds; returns what is new in it."""
        if self.frozen:
            return set()
        cell = self.cells.get(key)
        if cell is None:
            cell = self.cells[key] = self._made(key)
        fresh = (values if isinstance(values, set) else set(values)) - cell.values
        if fresh and len(cell.values) >= _MAX_VALUES:
            fresh = _fitting(cell, fresh)
        if not fresh:
            return set()
        if not cell.values and key[0].__class__ is ast.ClassDef:
            self._name_attribute(key)
        self._grow(cell, fresh)
        return fresh

    def _grow(self, cell: Cell, values: set[Value]) -> None:
        """Put values into a cell; who read it is evaluated again where that makes a difference."""
        size = len(cell.values)
        cell.values |= values
        if len(cell.values) > size:
            cell.kinds = None
            self._due.update(cell.readers)
            for reader in cell.readers:
                self._enqueue(self._bodies_of[reader])

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
        """The next body to look at; None when nothing is left to do."""
        self._current = None
        if not self._queue:
            return None
        body = self._queue.popleft()
        self._queued.discard(body)
        return body, self.bodies[body]

    # ---- parts of bodies ---------------------------------------------------------------------------------------

    def begin(self, part: ast.AST, body: ast.AST) -> None:
        """Note that a part of a body is evaluated from now on: what is read is read by it."""
        self._current = part
        self.evaluations += 1
        self._bodies_of[part] = body
        self._due.discard(part)
        self._evaluated[part] = self._round

    def is_due(self, part: ast.AST) -> bool:
        """Whether evaluating a part once more can make a difference."""
        return part in self._due or self._evaluated[part] != self._round

    def stay_due(self) -> None:
        """Have what is being evaluated evaluated each time that its body is looked at: it reads more than cells."""
        if self._current is not None:
            self._due.add(self._current)

    def all_due(self) -> None:
        """Note a change of what is no cell: everything is evaluated again, once its body is looked at."""
        self._round += 1

    def look_again(self, cls: ast.ClassDef) -> None:
        """Have everything evaluated again that has asked for an attribute of a class: it has more of them now."""
        for cell in self._of_classes.get(cls, ()):
            for reader in cell.readers:
                self._enqueue(self._bodies_of[reader])

    def held_by(self, cls: ast.ClassDef) -> Iterator[set[Value]]:
        """Yield what each attribute of a class's own objects holds, as :meth:`read` gives it."""
        for cell in self._of_classes.get(cls, ()):
            yield cell.values

    def freeze(self) -> None:
        """Keep everything as it is."""
        self._current = None
        self.evaluations += 1
        self.frozen = True


def _fitting(cell: Cell, values: set[Value]) -> set[Value]:
    """Those of new values that a full cell has room for."""
    if cell.kinds is None:
        cell.kinds = Counter([value.kind for value in cell.values])
    held = cell.kinds
    return {value for value in values if held[value.kind] < _MAX_VALUES}
