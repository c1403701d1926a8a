"""Calls of what is not the project's own: sources, reductions, containers, and joins of what others are given."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

from amp_rules.ranks.elements import Elements, is_container
from amp_rules.ranks.frames import Frame
from amp_rules.ranks.memory import ELEMENTS, LENGTH, STATE, attribute, element, is_mapping, nothing
from amp_rules.ranks.origins import NOWHERE, Kind, Origins
from amp_rules.ranks.sources import GIVE_CONTENTS, Sources, names_temporary
from amp_rules.ranks.values import REPLICATED, UNKNOWN, RankValue, Ref, join, join_all
from amp_rules.ranks.world import Given, World
from amp_rules.roles.kinds import is_module
from amp_rules.source.index import argument_at
from amp_rules.source.syntax import last_name
from amp_rules.torch.distributed import GIVES_ALIKE, INTO_ANOTHER, MADE_ALIKE, REDUCING_NAME
from amp_rules.torch.gradients import SHAPED_BY_ANOTHER
from amp_rules.torch.models import RETURNS_RECEIVER
from amp_rules.torch.replication import (
    KIND_METHODS,
    MADE_IN_A_SHAPE,
    MADE_OF_ROWS,
    PADDING,
    SAME_ROWS,
    SIZE_METHODS,
    SIZED_BY_CONTENT,
    SIZED_BY_REST,
    STACKING,
)
from amp_rules.torch.wrappers import RETURNS_FIRST_ARGUMENT, SHOWN_BY_BARS
from amp_rules.torch.writers import PATH_WRITERS, WRITERS

_ADDING = frozenset({"append", "add", "appendleft", "insert", "put", "push", "put_nowait"})
_TAKING = frozenset({"pop", "popleft", "get", "get_nowait", "popitem"})
_READING = frozenset({"index", "count", "keys", "values", "items", "copy", "format", "join", "get_last_lr", "find"})
_ORDERED = frozenset(f"builtins.{name}" for name in ("sum", "min", "max", "any", "all"))
_NO_LOADERS = (
    "numpy.",
    "torch.Tensor",
    "builtins.list",
    "builtins.tuple",
    "builtins.dict",
    "builtins.str",
    "builtins.int",
    "builtins.float",
)
"""How the names of classes begin of which no loader is."""
_IDENTITY = frozenset(f"builtins.{name}" for name in ("isinstance", "hasattr", "type", "id", "callable", "issubclass"))
_TYPES = frozenset({"torch.is_tensor", "torch.is_floating_point", "torch.is_complex"})
_COPIES = frozenset({"builtins.list", "builtins.tuple", "builtins.sorted", "builtins.reversed", "collections.deque"})
_WHILE = frozenset({"itertools.takewhile", "itertools.dropwhile", "builtins.filter", "itertools.filterfalse"})
_SHAPED_BY_ANOTHER = SHAPED_BY_ANOTHER - RETURNS_RECEIVER - {"resize_as_"}
_OF_TENSORS = ("torch", "numpy", "builtins", "math", "einops", "tqdm", "itertools")
_OF_PARTS = frozenset({"dim", "split_size", "split_size_or_sections", "repeats"})
"""Arguments by name that tell a tensor how to take itself apart, or how often to repeat what is in it."""
_LOGGERS = ("logging.", "loguru.")


@dataclass(frozen=True)
class Arguments:
    """A call and what it is given.

    Attributes:
        node: the call.
        receiver: the object whose method it is, or what is called.
        values: the arguments by place, the elements of a starred one in its place.
        keywords: those by name, None for ``**``.
    """

    node: ast.Call
    receiver: RankValue
    values: list[RankValue]
    keywords: dict[str | None, RankValue]

    @property
    def all(self) -> list[RankValue]:
        """All arguments."""
        return [*self.values, *self.keywords.values()]


class Libraries:
    """Evaluates calls of libraries."""

    def __init__(self, world: World, elements: Elements) -> None:
        self._world = world
        self._memory = world.memory
        self._elements = elements
        self._sources = Sources(world)
        self._functions: dict[str, Callable[[Arguments, Frame], RankValue]] = {
            "builtins.len": lambda given, frame: RankValue(frozenset().union(*map(self._memory.rows, given.values))),
            "builtins.range": lambda given, frame: RankValue(NOWHERE, world.deep(given.values)),
            "builtins.next": self._next,
            "builtins.enumerate": self._enumerate,
            "builtins.zip": self._zip,
            "builtins.map": self._map,
            "builtins.set": self._set,
            "builtins.frozenset": self._set,
            "builtins.dict": self._dict,
            "builtins.getattr": self._getattr,
            "builtins.setattr": self._setattr,
        }

    def call(self, given: Arguments, frame: Frame) -> RankValue:
        """What a call of a library gives."""
        names = self._world.names(given.node.func, frame.scope)
        source = self._sources.of(names, given.node, frame, self._world.deep(given.all))
        if source is not None:
            made = RankValue(source, NOWHERE, frozenset((self._world.new(given.node, frame),)))
            return join(made, self._joined(given, names, frame))
        for name in sorted(names):
            found = self._by_name(name, given, frame)
            if found is not None:
                return found
        if REDUCING_NAME.search(last_name(given.node.func)) and not any(name.startswith(_OF_TENSORS) for name in names):
            return REPLICATED
        if names & GIVE_CONTENTS and any(map(names_temporary, self._world.deep(given.all))):
            return self._of_file(given, frame)
        if isinstance(given.node.func, ast.Attribute) and not names:
            return self._method(given.node.func, given, frame)
        return self._joined(given, names, frame)

    def _by_name(self, name: str, given: Arguments, frame: Frame) -> RankValue | None:
        function = self._functions.get(name)
        if function is not None:
            return function(given, frame)
        if name in GIVES_ALIKE:
            return REPLICATED
        if name in MADE_ALIKE:
            for item in exchanged(given.node, name):
                make_alike(item, frame)
            return REPLICATED
        if name in _TYPES:
            return REPLICATED
        if name == "builtins.isinstance" and self._is_other_than_loader(given, frame):
            return RankValue(constant=False)
        if name in _IDENTITY:
            return RankValue(frozenset().union(*(value.size for value in given.values)))
        if name in _COPIES:
            return self._copied(name, given, frame)
        if name in _WHILE:
            return self._taken_while(given, frame)
        if name in _ORDERED:
            # What `key` says of them chooses, too: `min(places, key=lambda place: losses[place])`.
            return RankValue(_in_order(self._world.deep([*given.all, *self._called_back(given, frame)])))
        if name in RETURNS_FIRST_ARGUMENT and (given.values or "iterable" in given.keywords):
            first = given.values[0] if given.values else given.keywords["iterable"]
            if name == "builtins.iter" and self._memory.is_pass(first):
                # A pass that no loop ends is under way for as long as the iterator lives.
                frame.state.apart = True
            return first
        return None

    def _is_other_than_loader(self, given: Arguments, frame: Frame) -> bool:
        """Whether a loader is asked for a class that none is of: ``isinstance(train_loader, np.ndarray)``."""
        refs = given.values[0].refs if len(given.values) == 2 else ()
        if not refs or not all(map(self._elements.is_loader, refs)):
            return False
        kinds = given.node.args[1:]
        names = set().union(*(self._world.names(kind, frame.scope) for kind in kinds))
        return bool(names) and all(name.startswith(_NO_LOADERS) for name in names)

    # ---- everything else -----------------------------------------------------------------------------------------

    def _joined(self, given: Arguments, names: set[str], frame: Frame) -> RankValue:
        """What a function gives of which nothing is known: the join of its receiver and its arguments."""
        functions = self._called_back(given, frame)
        values = [*given.all, *functions]
        if not names:
            values.append(RankValue(given.receiver.content, given.receiver.size, given.receiver.refs))
        content: Origins = frozenset().union(*(value.content for value in values))
        # An array is as long as the list that it is made of.
        sizes: Origins = frozenset().union(*map(self._memory.length, values))
        if not all(name.startswith(_OF_TENSORS) for name in names):
            sizes = sizes | content
        for last in {name.rpartition(".")[2] for name in names} & SIZED_BY_CONTENT:
            sizes = sizes.union(*(value.content for value in _sizing(last, given, values)))
        deep = self._world.deep(values)
        ref = self._world.new(given.node, frame)
        if deep - content:
            self._memory.write(ref, ELEMENTS, RankValue(deep))
        if not names and isinstance(self._world_parent(given.node, frame), ast.Expr):
            self._take_up(given, frame)
        return RankValue(content, sizes, frozenset((ref,)), rows=self._first_dimension(given, names, frame))

    def _first_dimension(self, given: Arguments, names: set[str], frame: Frame) -> Origins | None:
        """Why the number of rows differs of a tensor that is made of a list, or in a given shape."""
        first = given.node.args[0] if given.node.args else None
        if first is None or isinstance(first, ast.Starred) or not names:
            return None
        value = given.values[0]
        if names <= MADE_IN_A_SHAPE:
            if isinstance(first, (ast.Tuple, ast.List)) and first.elts and not isinstance(first.elts[0], ast.Starred):
                value = self._elements.at(value, 0, first, frame)
            return self._world.deep([value])
        is_list = bool(value.refs) and all(map(is_container, value.refs))
        if not is_list or not (names <= MADE_OF_ROWS or names <= PADDING):
            return None
        told = [given.keywords[name] for name in ("dim", "axis", "batch_first") if name in given.keywords]
        told += given.values[1:2] if names <= STACKING | PADDING else []
        is_told = [item.constant for item in told] == [True] if names <= PADDING else all(map(_is_zero, told))
        return self._memory.length(value) | value.content if is_told else None

    def _of_file(self, given: Arguments, frame: Frame) -> RankValue:
        """What a program or an opened file gives: what was written to a temporary file, whatever that is called."""
        origins = frozenset(origin for origin in self._world.deep(given.all) if not names_temporary(origin))
        ref = self._world.new(given.node, frame)
        if origins:
            self._memory.write(ref, ELEMENTS, RankValue(origins))
        return RankValue(origins, origins, frozenset((ref,)))

    def _called_back(self, given: Arguments, frame: Frame) -> list[RankValue]:
        """What functions of the project give that a library is handed, called with whatever else it is given."""
        found: list[RankValue] = []
        expressions = [*given.node.args, *(item.value for item in given.node.keywords)]
        handed = RankValue(self._world.deep(given.all))
        for item in expressions:
            for value in self._world.flow.values(self._chosen(item), frame.scope):
                if value.kind == "function":
                    bound = {name: handed for name in value.ref.positional}
                    found.append(self._world.run(Given(value.ref, bound, frame)))
        return found

    def _chosen(self, node: ast.expr) -> ast.expr:
        """``reduced`` of ``reduced if world_size > 1 else plain``, where it is known that there are several."""
        setting = self._world.setting
        while isinstance(node, ast.IfExp) and (node.test in setting.holding or node.test in setting.excluded):
            node = node.body if node.test in setting.holding else node.orelse
        return node

    def _world_parent(self, node: ast.AST, frame: Frame) -> ast.AST | None:
        return frame.scope.module.parents.get(node)

    def _take_up(self, given: Arguments, frame: Frame) -> None:
        """A call whose result is dropped is made for what it does to its receiver: ``meter.update(loss)``."""
        taken = self._world.deep(given.all) | frame.control_origins
        if taken and not self._only_logs(given, frame):
            for ref in given.receiver.refs:
                self._memory.write(ref, STATE, RankValue(taken))

    def _only_logs(self, given: Arguments, frame: Frame) -> bool:
        """Whether a method is one of a logger, a logging client or a bar, or writes its object to a file.

        What it is given never comes back.
        """
        function = given.node.func
        if isinstance(function, ast.Attribute) and (function.attr in SHOWN_BY_BARS or function.attr in PATH_WRITERS):
            return True
        held = self._world.flow.values(function.value, frame.scope) if isinstance(function, ast.Attribute) else ()
        # What the program's own objects do with it is run.
        objects = [value for value in held if value.kind != "instance"]
        return bool(objects) and all(
            value.kind == "object" and (value.name in WRITERS or value.name.startswith(_LOGGERS)) for value in objects
        )

    # ---- methods -------------------------------------------------------------------------------------------------

    def _method(self, function: ast.Attribute, given: Arguments, frame: Frame) -> RankValue:
        name, receiver = function.attr, given.receiver
        if name in KIND_METHODS or (name == "type" and not given.all):
            return REPLICATED
        if name in _SHAPED_BY_ANOTHER:
            return self._shaped_by_another(given, frame)
        # What a module gave, as `criterion(output, target)`, may be a rank's own.
        values = self._world.flow.values(function.value, frame.scope)
        if any(is_module(value) and not value.is_result for value in values):
            return self._of_module(name, given, frame)
        if name in SIZE_METHODS:
            is_first = name == "__len__" or (name == "size" and len(given.all) == 1 and _is_zero(given.all[0]))
            return RankValue((self._memory.rows if is_first else self._memory.length)(receiver))
        if name in _ADDING and given.values:
            return self._add(name, given, frame)
        if name in ("extend", "update", "extendleft"):
            return self._extend(given, frame)
        if name in (*_TAKING, "setdefault") and receiver.refs:
            return self._take(name, given, frame)
        if name in ("items", "values") and receiver.refs:
            return self._items(name, given, frame)
        if name == "sort" and receiver.refs and all(map(is_container, receiver.refs)):
            return self._sort(given, frame)
        if name in ("__next__", "next"):
            return self._elements.of(receiver, function.value, frame)
        if name in RETURNS_RECEIVER:
            return receiver
        if name in ("parse_args", "parse_known_args"):
            return self._parsed(given, frame)
        if name == "add_argument":
            return self._declare(given)
        deep = self._world.deep([receiver, *given.all, *self._called_back(given, frame)])
        origins = deep | self._sources.of_method(function, given.node, frame)
        in_place = name.endswith("_") and not name.startswith("_")
        if in_place:
            self._change(function.value, given, origins, frame)
        elif name not in _READING and isinstance(self._world_parent(given.node, frame), ast.Expr):
            self._take_up(given, frame)
        sizes: Origins = frozenset().union(*(value.size for value in [receiver, *given.all]))
        refs = frozenset((self._world.new(given.node, frame),)) | (receiver.refs if in_place else frozenset())
        if name in SIZED_BY_REST and self._is_told_by_numbers(given, frame):
            sizes |= self._world.deep(given.all)
        elif name in SIZED_BY_CONTENT:
            sizes |= origins
        return RankValue(origins, sizes, refs, rows=receiver.rows if _keeps_rows(name, given) else None)

    def _is_told_by_numbers(self, given: Arguments, frame: Frame) -> bool:
        """Whether a method is one of a tensor, which is told how large its parts are: ``images.split(8, dim=0)``.

        A text is split where another one stands in it.
        """
        if given.keywords.keys() & _OF_PARTS:
            return True
        if not given.values or not given.node.args:
            return False
        values = self._world.flow.values(given.node.args[0], frame.scope)
        known = [value.ref for value in values if value.kind == "constant"]
        return type(given.values[0].constant) is int or (bool(known) and all(type(item) is int for item in known))

    def _shaped_by_another(self, given: Arguments, frame: Frame) -> RankValue:
        """``window.type_as(images)``: the numbers of the receiver alone."""
        refs, receiver = frozenset((self._world.new(given.node, frame),)), given.receiver
        held = receiver.content | self._world.deep([RankValue(refs=receiver.refs)])
        sizes: Origins = frozenset().union(*map(self._memory.length, given.all))
        sized = isinstance(given.node.func, ast.Attribute) and given.node.func.attr != "type_as"
        return RankValue(held, receiver.size | sizes if sized else receiver.size, refs)

    def _declare(self, given: Arguments) -> RankValue:
        """``parser.add_argument("--save", default=name)``: the namespace's attribute has the default."""
        default = given.keywords.get("default")
        told = [given.keywords["dest"]] if "dest" in given.keywords else []
        names = [value.constant for value in [*given.values, *told]]
        for ref in given.receiver.refs if default is not None else ():
            for name in names:
                if default is not None and isinstance(name, str):
                    self._memory.write(ref, attribute(name.lstrip("-").replace("-", "_")), default.unknown())
        return REPLICATED

    def _parsed(self, given: Arguments, frame: Frame) -> RankValue:
        """The options: the parser declares what each is; what the script sets beside them stands here alone."""
        ref = self._world.new(given.node, frame)
        for parser in given.receiver.refs:
            for slot, value in self._memory.attributes(parser).items():
                self._memory.write(ref, slot, value)
        return RankValue(given.receiver.content, given.receiver.size, frozenset((ref,)))

    def _of_module(self, name: str, given: Arguments, frame: Frame) -> RankValue:
        """A method of a model: its parameters and buffers are the same on all ranks, whatever it computes is not."""
        if name in RETURNS_RECEIVER:
            return given.receiver
        source = self._sources.dropout(given.node, frame)
        held = self._world.deep(given.all) | source
        return RankValue(held, frozenset().union(*(value.size for value in given.all)))

    def _change(self, owner: ast.expr, given: Arguments, origins: Origins, frame: Frame) -> None:
        """A method that works in place, as ``add_``."""
        taken = origins | frame.control_origins
        if not taken:
            return
        for ref in given.receiver.refs:
            self._memory.write(ref, STATE if ref.cls is not None else ELEMENTS, RankValue(taken))
        owner = _changed(owner)
        if isinstance(owner, ast.Attribute):
            # ``self.images.resize_(size).copy_(batch)``
            frame.variables.pop(self._world.lasting.path(owner, frame) or "", None)
            for ref in self._world.evaluate(owner.value, frame).refs:
                self._memory.write(ref, attribute(owner.attr), RankValue(taken))
        name = frame.own_variable(owner)
        if name is not None:
            known = frame.variables[name]
            frame.variables[name] = RankValue(known.content | taken, known.size, known.refs)

    def _add(self, name: str, given: Arguments, frame: Frame) -> RankValue:
        value = given.values[-1].with_origins(frame.control_origins)
        for ref in given.receiver.refs:
            self._memory.write(ref, ELEMENTS, value.unknown())
            length = frame.control_origins | (self._memory.deep(value) if name == "add" else NOWHERE)
            if length:
                self._memory.write(ref, LENGTH, RankValue(length))
        return REPLICATED

    def _extend(self, given: Arguments, frame: Frame) -> RankValue:
        control = frame.control_origins
        for ref in given.receiver.refs:
            for value in given.values:
                self._elements.copy(ref, value)
                taken = value.size | control | (self._memory.members(value) if is_mapping(ref.site) else NOWHERE)
                if taken:
                    self._memory.write(ref, LENGTH, RankValue(taken))
            for key, value in given.keywords.items():
                if key is None:
                    self._elements.copy(ref, value.with_origins(control))
                    self._memory.write(ref, LENGTH, RankValue(self._memory.members(value) | control))
                else:
                    self._memory.write(ref, element(key), value.with_origins(control))
        return REPLICATED

    def _take(self, name: str, given: Arguments, frame: Frame) -> RankValue:
        key = given.values[0].constant if given.values and name in ("get", "setdefault", "pop") else UNKNOWN
        default = given.values[1] if len(given.values) > 1 else REPLICATED
        if name == "setdefault":
            for ref in given.receiver.refs:
                self._memory.write(ref, element(key) if key is not UNKNOWN else ELEMENTS, default.unknown())
                self._memory.write(ref, LENGTH, RankValue(self._world.deep(given.values[:1]) | frame.control_origins))
        if name.startswith("pop") and frame.control_origins:
            for ref in given.receiver.refs:
                self._memory.write(ref, LENGTH, RankValue(frame.control_origins))
        found = self._elements.at(given.receiver, key, given.node, frame)
        chosen = self._world.deep(given.values[:1])
        return join(found, default).unknown().with_origins(chosen)

    def _sort(self, given: Arguments, frame: Frame) -> RankValue:
        """``rows.sort(key=...)``: which element stands where."""
        assert isinstance(given.node.func, ast.Attribute)
        held = self._elements.of(given.receiver, given.node.func.value, frame).unknown()
        order = self._order(held, given, frame) | frame.control_origins
        for ref in given.receiver.refs if order else ():
            self._memory.write(ref, ELEMENTS, RankValue(order))
        return REPLICATED

    def _items(self, name: str, given: Arguments, frame: Frame) -> RankValue:
        assert isinstance(given.node.func, ast.Attribute)
        orders = [self._keys_in_order(ref) for ref in given.receiver.refs] if name == "values" else []
        if orders and all(orders) and not given.receiver.own:
            return self._values_in_order(orders, given, frame)
        held = self._elements.of(given.receiver, given.node.func.value, frame, keys=False)
        return self._rows([held] if name == "values" else [REPLICATED, held], given, frame, name != "values")

    def _keys_in_order(self, ref: Ref) -> list[tuple[Ref, object]]:
        """The keys of a dictionary that is written out and that nothing else is put into, each with the dictionary."""
        keys = ref.site.keys if isinstance(ref.site, ast.Dict) and not ref.view else []
        names = [key.value for key in keys if isinstance(key, ast.Constant)]
        is_whole = len(names) == len(keys) == len(set(names)) and self._memory.keys(ref) <= set(names)
        return [(ref, name) for name in names] if is_whole else []

    def _values_in_order(self, orders: list[list[tuple[Ref, object]]], given: Arguments, frame: Frame) -> RankValue:
        """``a, b = settings.values()``: each value at its place."""
        outer = self._world.new(given.node, frame)
        for order in orders:
            for index, (ref, key) in enumerate(order):
                self._memory.write(outer, element(index), nothing(self._memory.read(ref, element(key))).unknown())
        return RankValue(NOWHERE, NOWHERE, frozenset((outer,)))

    # ---- functions -----------------------------------------------------------------------------------------------

    def _rows(self, parts: list[RankValue], given: Arguments, frame: Frame, are_tuples: bool = True) -> RankValue:
        """What ``zip``, ``enumerate`` and ``items`` give."""
        outer = self._world.new(given.node, frame)
        sizes: Origins = frozenset().union(*map(self._memory.length, [given.receiver, *given.values]))
        if not are_tuples:
            self._memory.write(outer, ELEMENTS, parts[0].unknown())
            return RankValue(NOWHERE, sizes, frozenset((outer,)))
        row = self._memory.made(Ref(given.node.func, frame.context))
        for index, part in enumerate(parts):
            self._memory.write(row, element(index), part.unknown())
        self._memory.write(outer, ELEMENTS, RankValue(refs=frozenset((row,))))
        if any(map(self._memory.is_pass, given.values)):
            self._memory.note_pass(outer)
        return RankValue(NOWHERE, sizes, frozenset((outer,)))

    def _enumerate(self, given: Arguments, frame: Frame) -> RankValue:
        if not given.node.args:
            return REPLICATED
        return self._rows([REPLICATED, self._elements.of(given.values[0], given.node.args[0], frame)], given, frame)

    def _zip(self, given: Arguments, frame: Frame) -> RankValue:
        (only,) = given.node.args if len(given.node.args) == 1 else (None,)
        if isinstance(only, ast.Starred) and not any(map(self._memory.is_pass, given.values)):
            return self._columns(only, given, frame)
        parts = [
            value if isinstance(item, ast.Starred) else self._elements.of(value, item, frame)
            for item, value in zip(given.node.args, given.values, strict=False)
        ]
        return self._rows(parts, given, frame)

    def _columns(self, rows: ast.Starred, given: Arguments, frame: Frame) -> RankValue:
        """``zip(*samples)``: tuples, each with something of every sample; as many as a sample has parts."""
        held = self._world.evaluate(rows.value, frame)
        outer = self._world.new(given.node, frame)
        column = self._memory.made(Ref(rows, frame.context))
        self._memory.write(column, ELEMENTS, self._elements.of(given.values[0], rows.value, frame).unknown())
        if self._memory.length(held):
            self._memory.write(column, LENGTH, RankValue(self._memory.length(held)))
        self._memory.write(outer, ELEMENTS, RankValue(refs=frozenset((column,))))
        if self._memory.length(given.values[0]):
            self._memory.write(outer, LENGTH, RankValue(self._memory.length(given.values[0])))
        return RankValue(NOWHERE, NOWHERE, frozenset((outer,)))

    def _next(self, given: Arguments, frame: Frame) -> RankValue:
        if not given.node.args:
            return REPLICATED
        if self._memory.is_pass(given.values[0]):
            # The pass that gives it is under way: a generator's loop over a loader, too.
            frame.state.apart = True
        found = self._elements.of(given.values[0], given.node.args[0], frame)
        # Which element comes next rests on how many were taken before.
        return join_all([found, *given.values[1:]]).unknown()

    def _map(self, given: Arguments, frame: Frame) -> RankValue:
        parts = [
            self._elements.of(value, item, frame)
            for item, value in zip(given.node.args[1:], given.values[1:], strict=False)
        ]
        ref = self._world.new(given.node, frame)
        held = RankValue(self._world.deep(parts), frozenset().union(*(part.size for part in parts)))
        functions = self._world.flow.values(self._chosen(given.node.args[0]), frame.scope) if given.node.args else set()
        is_own = bool(functions) and all(value.kind == "function" for value in functions)
        made = [*([] if is_own else [held]), *self._called_back(given, frame)]
        self._memory.write(ref, ELEMENTS, join_all(made).unknown())
        return RankValue(NOWHERE, frozenset().union(*map(self._memory.length, given.values[1:])), frozenset((ref,)))

    def _taken_while(self, given: Arguments, frame: Frame) -> RankValue:
        """``takewhile(pred, batches)``: how many there are rests on what the function says of them."""
        if len(given.node.args) < 2:
            return self._joined(given, set(), frame)
        held = self._elements.of(given.values[1], given.node.args[1], frame)
        said = self._world.deep(
            [
                self._world.run(Given(value.ref, {name: held for name in value.ref.positional[:1]}, frame))
                for value in self._world.flow.values(given.node.args[0], frame.scope)
                if value.kind == "function"
            ]
            or [held]
        )
        ref = self._world.new(given.node, frame)
        self._memory.write(ref, ELEMENTS, held.unknown())
        return RankValue(NOWHERE, self._memory.length(given.values[1]) | said, frozenset((ref,)))

    def _copied(self, name: str, given: Arguments, frame: Frame) -> RankValue:
        ref = self._world.new(given.node, frame)
        if not given.node.args:
            return RankValue(refs=frozenset((ref,)))
        held = self._elements.of(given.values[0], given.node.args[0], frame).unknown()
        if name == "builtins.sorted":
            order = self._order(held, given, frame)
            held = RankValue(_in_order(held.content) | order, _in_order(held.size), held.refs)
        self._memory.write(ref, ELEMENTS, held)
        return RankValue(NOWHERE, self._memory.length(given.values[0]), frozenset((ref,)))

    def _order(self, held: RankValue, given: Arguments, frame: Frame) -> Origins:
        """Why the order differs that a sort puts elements into: by what `key` says of them, or by what comes first."""
        key = next((item.value for item in given.node.keywords if item.arg == "key"), None)
        if key is None:
            rows = bool(held.refs) and all(map(is_container, held.refs))
            said = [self._elements.at(held, 0, given.node, frame)] if rows else [RankValue(held.content)]
        else:
            said = [
                self._world.run(Given(value.ref, {name: held for name in value.ref.positional[:1]}, frame))
                for value in self._world.flow.values(key, frame.scope)
                if value.kind == "function"
            ]
        return _in_order(self._world.deep(said))

    def _set(self, given: Arguments, frame: Frame) -> RankValue:
        ref = self._world.new(given.node, frame)
        if given.node.args:
            held = self._elements.of(given.values[0], given.node.args[0], frame)
            order = self._world.order(frame.scope.module, given.node)
            self._memory.write(ref, ELEMENTS, RankValue(held.content | order, held.size, held.refs))
            if self._memory.deep(held):
                self._memory.write(ref, LENGTH, RankValue(self._memory.deep(held)))
        return RankValue(refs=frozenset((ref,)))

    def _dict(self, given: Arguments, frame: Frame) -> RankValue:
        ref = self._world.new(given.node, frame)
        for value in given.values:
            self._elements.copy(ref, value)
        for key, value in given.keywords.items():
            self._memory.write(ref, element(key) if key is not None else ELEMENTS, value.unknown())
        return RankValue(refs=frozenset((ref,)))

    def _getattr(self, given: Arguments, frame: Frame) -> RankValue:
        if len(given.values) < 2:
            return REPLICATED
        found = [
            held
            for ref in given.values[0].refs
            if (held := self._memory.read(ref, attribute(str(given.values[1].constant)))) is not None
        ]
        return join_all([*found, *given.values[2:]]).unknown().with_origins(given.values[0].own)

    def _setattr(self, given: Arguments, frame: Frame) -> RankValue:
        if len(given.values) == 3:
            for ref in given.values[0].refs:
                slot = attribute(str(given.values[1].constant)) if given.values[1].constant is not UNKNOWN else STATE
                self._memory.write(ref, slot, given.values[2].with_origins(frame.control_origins))
        return REPLICATED


def _is_zero(value: RankValue) -> bool:
    """Whether an argument names the first dimension."""
    return type(value.constant) is int and value.constant == 0


def _keeps_rows(name: str, given: Arguments) -> bool:
    """Whether a method leaves the first dimension as it is: ``x.unsqueeze(1)``, and of one that has some, ``-1``."""
    if name in SAME_ROWS:
        return True
    places = [value.constant for value in given.all]
    return name == "unsqueeze" and len(places) == 1 and type(places[0]) is int and (places[0] == -1 or places[0] > 0)


def exchanged(call: ast.Call, name: str) -> list[ast.expr]:
    """What an exchange writes the numbers of all to: its first argument, or each of the tensors in a list of them."""
    into = argument_at(call, *INTO_ANOTHER.get(name, ("tensor", 0)))
    if into is None:
        return []
    return into.elts if isinstance(into, (ast.List, ast.Tuple)) else [into]


def make_alike(node: ast.expr, frame: Frame) -> None:
    """Let a local variable hold the same on all ranks from here on: an exchange put that into its tensor.

    What attributes and elements hold only ever grows: they stay what they are.
    """
    name = frame.own_variable(node)
    if name is not None:
        frame.variables[name] = REPLICATED


def _sizing(function: str, given: Arguments, values: list[RankValue]) -> list[RankValue]:
    """The values whose content says how large the result of a function is: of ``np.split(data, 5)`` not the data."""
    if function in SIZED_BY_REST:
        return [*given.values[1:], *given.keywords.values()]
    if function == "where" and len(given.all) > 1:
        return []  # it chooses for each element
    return values


def _in_order(origins: Origins) -> Origins:
    """What differs still when the order of elements does not count."""
    return frozenset(origin for origin in origins if origin.kind is not Kind.ORDER)


def _changed(owner: ast.expr) -> ast.expr:
    """The variable that a method works on in place: ``x`` of ``x.data`` and of ``x.resize_(size)``."""
    while True:
        if isinstance(owner, ast.Attribute) and owner.attr == "data":
            owner = owner.value
        elif isinstance(owner, ast.Call) and isinstance(owner.func, ast.Attribute) and owner.func.attr.endswith("_"):
            owner = owner.func.value
        else:
            return owner
