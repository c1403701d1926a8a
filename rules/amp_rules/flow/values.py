"""The abstract values that the names of a program can hold."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, NamedTuple, get_args
from weakref import WeakValueDictionary
from zlib import crc32

from amp_rules.source.facts import ClassFacts, FunctionFacts
from amp_rules.source.scopes import Scope
from amp_rules.torch.wrappers import DATA_PARALLEL, STEPS_OF_DATA_PARALLEL

Kind = Literal[
    "external",  # a name of a library: ref is its qualified name
    "object",  # what calling something of a library gave: ref is the qualified name called
    "attribute",  # an attribute or method of what is not known from inside: ref is a Member, receiver its owner
    "module",  # a module of the project: ref is a Module
    "class",  # a class of the project: ref is a ClassInfo
    "function",  # a function of the project: ref is its FunctionFacts
    "instance",  # an object of a class of the project: ref is its ClassInfo
    "sequence",  # a list, tuple, dict or generator: ref is a Form; its elements are kept by form and site
    "batch",  # what iterating a loader gives: ref is the loader's value
    "parameters",  # some of a model's or an optimizer's parameters: ref is the value of that
    "partial",  # what functools.partial made of a function, class or object of the project: ref is its value
    "constant",  # a literal: ref is the constant
]


UNKNOWN_MEMBER = "?"
"""Stands for the last part of a qualified name where a library's member is found by a name made at run time."""


GIVEN_MODEL = "torch.nn.Module"
"""What a model is known to be that a caller gives who is not part of the program; its site is the parameter."""


class Form(Enum):
    """What kind of container a sequence is; one call can make several, ``zip`` a row of pairs and each pair."""

    PLAIN = "a literal, a comprehension, a generator, or what gathers starred arguments"
    PAIR = "one row of ``zip``, ``enumerate`` or ``items``"
    ROWS = "all of these rows"
    RECORD = "a named tuple"
    MAPPED = "what ``map`` gave"
    LOADED = "what a file of settings holds, nested to any depth"
    COMPOSED = "a place of a configuration that hydra composes"
    DEFAULT = "what a ``defaultdict`` makes for a new key"
    COPY = "a copy of a mapping"
    VALUES = "the values of a mapping"

    # Members are unlike each other by identity; the hash of Enum costs a call for each look at a cell.
    __hash__ = object.__hash__


class MemberOf(Enum):
    """What an attribute that is not known from inside was asked of."""

    RECEIVER = "the value's receiver itself"
    DICTIONARY = "its ``__dict__``"
    RESULT = "what a method or attribute of the receiver gave"

    __hash__ = object.__hash__


class Member(NamedTuple):
    """The name of an attribute, and what it was asked of."""

    of: MemberOf
    name: str


@dataclass(frozen=True, init=False, eq=False)
class Value:
    """One abstract value; ``site`` tells values of one kind apart by where they were made.

    Attributes:
        kind: see :data:`Kind`.
        ref: what it is, by kind.
        site: where it was made.
        receiver: the object that a method or an attribute is bound to; of a result, the model whose method gave it.
        is_result: of an object of a library: a method of what ``ref`` names made it, or calling what it names.
    """

    kind: Kind
    ref: Any
    site: ast.AST | None = None
    receiver: Value | None = None
    is_result: bool = False
    _hash: int = field(init=False, repr=False, compare=False)

    def __new__(
        cls,
        kind: Kind,
        ref: Any,
        site: ast.AST | None = None,
        receiver: Value | None = None,
        is_result: bool = False,
    ) -> Value:
        """The value of this kind: what there is already, mostly.

        Nothing is made as often. As there is one object of each, they are compared by identity, and sets of them are
        joined without a look at what they are.
        """
        of = ref.__class__
        # A class holds values itself: a key that held it would keep it for good.
        key = (kind, of, ref if of in _BY_CONTENT else id(ref), site, id(receiver), is_result)
        value = _made.get(key)
        if value is None:
            value = object.__new__(_Constant if kind == "constant" else cls)
            put = object.__setattr__
            put(value, "kind", kind)
            put(value, "ref", ref)
            put(value, "site", site)
            put(value, "receiver", receiver)
            put(value, "is_result", is_result)
            # Values are looked up more often than anything else. The receiver counts: a container can hold the
            # attribute of one name of each of its elements, and each look would compare them one by one.
            of_receiver = 0 if receiver is None else receiver._hash
            put(value, "_hash", hash((_KINDS[kind], _number(ref), _place(site), of_receiver)))
            _made[key] = value
        return value

    def __hash__(self) -> int:
        return self._hash

    @property
    def name(self) -> str:
        """The qualified name of what a library gave, else an empty string."""
        return self.ref if self.kind in ("external", "object") else ""

    @property
    def is_dictionary(self) -> bool:
        """Whether it is the ``__dict__`` of its receiver."""
        return self.kind == "attribute" and self.ref.name == "__dict__"

    @property
    def is_given_model(self) -> bool:
        """Whether it is a model that a caller gives who is not part of the program."""
        return self.ref == GIVEN_MODEL and isinstance(self.site, ast.arg)

    def at(self, site: ast.AST) -> Value:
        """The same as made elsewhere."""
        return Value(self.kind, self.ref, site, self.receiver, self.is_result)


class _Constant(Value):
    """A literal: ``1`` and ``True`` are two, and equal, as everywhere in Python."""

    __hash__ = Value.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, _Constant)
            and self.ref == other.ref
            and self.site is other.site
            and self.receiver is other.receiver
            and self.is_result == other.is_result
        )


_made: WeakValueDictionary[tuple[object, ...], Value] = WeakValueDictionary()
"""The values that there are, by what they are; a value holds what its key names by ``id``."""
_BY_CONTENT = frozenset({str, int, bool, float, complex, bytes, tuple, Member})
"""The classes of what a value can be that is the same where it is equal."""


def dictionary_of(owner: Value) -> Value:
    """The ``__dict__`` of a value."""
    return Value("attribute", Member(MemberOf.RECEIVER, "__dict__"), receiver=owner)


_KINDS = {kind: number for number, kind in enumerate(get_args(Kind))}
_FORMS = {form: number for number, form in enumerate((*MemberOf, *Form))}
_numbers: dict[str, int] = {}


def _number(ref: Any) -> int:
    """A hash of what a value is that is the same in every process: the order of a set of values goes by it.

    Python's own hash of a text goes by a seed, and that of most objects by where they lie in memory.
    """
    of = ref.__class__
    if of is str:
        known = _numbers.get(ref)
        if known is None:
            known = _numbers[ref] = crc32(ref.encode())
        return known
    if isinstance(ref, Value):
        return ref._hash
    if of is Member:
        return _number(ref.name) + _FORMS[ref.of]
    if of is Form:
        return _FORMS[ref]
    if of is FunctionFacts:
        return _place(ref.node)
    if of is ClassInfo:
        return _place(ref.facts.node)
    if of is int or of is float or of is bool:
        return hash(ref)
    return 0


def _place(node: ast.AST | None) -> int:
    """A hash of a node by where it stands in its file."""
    if node is None:
        return 0
    line: int = getattr(node, "lineno", 0)
    return (line << 8) + getattr(node, "col_offset", 0)


class ClassInfo:
    """A class of the project, and what the analysis finds out about it.

    Attributes:
        facts: what its text says.
    """

    def __init__(self, facts: ClassFacts) -> None:
        self.facts = facts
        self._bases: list[Value] = []
        self._family: list[ClassInfo] = []
        self._external: frozenset[str] | None = None
        self._derived: list[ClassInfo] = []

    def __repr__(self) -> str:
        return f"class {self.facts.name}"

    @property
    def bases(self) -> list[Value]:
        """What its bases may be, as far as that is a class; not the caller's to change."""
        return self._bases

    @bases.setter
    def bases(self, bases: list[Value]) -> None:
        self._bases = bases
        for info in self._derived:
            info._family, info._external = [], None
        self._derived = []

    def derived(self) -> list[ClassInfo]:
        """The classes that have been asked for their bases and have this one among them, itself included."""
        return list(dict.fromkeys(self._derived))

    def mro(self) -> list[ClassInfo]:
        """This class and its bases within the project, the nearest first; the list is not the caller's to change."""
        if not self._family:
            self._family = self._found_family()
            for info in self._family:
                info._derived.append(self)
        return self._family

    def _found_family(self) -> list[ClassInfo]:
        found: list[ClassInfo] = []
        pending = [self]
        while pending:
            info = pending.pop(0)
            if info in found:
                continue
            found.append(info)
            pending.extend(base.ref for base in info.bases if base.kind == "class")
        return found

    def external_bases(self) -> frozenset[str]:
        """Qualified names of the bases that come from libraries."""
        family = self.mro()
        if self._external is None:
            self._external = frozenset(base.ref for info in family for base in info.bases if base.kind == "external")
        return self._external

    @property
    def spreads_as(self) -> frozenset[str]:
        """``DataParallel``, for a class that only spreads batches in another way: vendored synchronised batch norm's.

        Its constructor takes the model first, and gives it on.
        """
        spreading = self.external_bases() & DATA_PARALLEL
        if not spreading:
            return frozenset()
        own = {name for info in self.mro() for name in info.facts.methods}
        made = self.find_method("__init__")
        takes_model = made is None or made.parameters[1:2] in (("module",), ("model",))
        return spreading if takes_model and own <= STEPS_OF_DATA_PARALLEL | {"__init__"} else frozenset()

    def find_method(self, name: str) -> FunctionFacts | None:
        """The method that attribute access would find."""
        for info in self.mro():
            if name in info.facts.methods:
                return info.facts.methods[name]
        return None


@dataclass(frozen=True)
class CallSite:
    """A call and the body it stands in."""

    call: ast.Call
    scope: Scope


@dataclass
class Cell:
    """What one variable, attribute or element can hold, and the statements that read it, in their order.

    ``kinds`` counts the values of a full one by their kinds; None where that is to be counted again.
    """

    values: set[Value] = field(default_factory=set)
    readers: dict[ast.AST, None] = field(default_factory=dict)
    kinds: Counter[str] | None = None


def without_missing(targets: set[Value]) -> set[Value]:
    """What a call may run, without methods that a class of the project lacks, where something else has that function.

    Below ``log = log.make_logger()`` the module's name holds an object, too, of which nobody asks for ``make_logger``;
    so it is with what else stands in the module from which a model is chosen by its name.
    """
    if not any(value.kind == "function" and _is_plain(value.receiver) for value in targets):
        return targets
    return {value for value in targets if not _is_missing(value)}


def _is_plain(owner: Value | None) -> bool:
    return owner is None or owner.kind == "instance"


def _is_missing(value: Value) -> bool:
    owner = value.receiver
    if value.kind != "attribute" or value.ref.of is not MemberOf.RECEIVER or owner is None or owner.kind != "instance":
        return False
    info = owner.ref
    return info.external_bases() <= {"builtins.object", "object"} and info.find_method("__getattr__") is None
