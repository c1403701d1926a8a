"""Abstract values: what is known of an expression without running it.

A value knows the operation that made it and that operation's arguments, so the values of a function form the graph of
its data flow: a rule that looks for ``log(softmax(x))`` finds it under whatever names.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

LOW, F32, F64, INT, BOOL, NUM, OTHER = 1, 2, 4, 8, 16, 32, 64
"""The types that a value may have, as bits of ``Value.dtypes``: the half type, float32, float64, integers and booleans
are those of tensors; ``NUM`` is a number of Python, ``OTHER`` is neither tensor nor number."""
FLOATS = LOW | F32 | F64
TENSORS = FLOATS | INT | BOOL

POSITION, PROBABILITY, SIGMOID, MAX_SUBTRACTED, GUARDED, ZERO_DIM, ASSUMED, CAST, PARAMETER, INTEGRAL, LOOP = (
    1 << bit for bit in range(11)
)
"""What else is known, as bits of ``Value.bits``.

``POSITION``: counts places (arange, cumsum of a mask). ``PROBABILITY``: made by softmax; ``SIGMOID``: by sigmoid.
``MAX_SUBTRACTED``: its maximum was subtracted. ``GUARDED``: an epsilon was added, or it was clamped from below.
``ZERO_DIM``: has no dimensions, so it does not decide the type of a result. ``ASSUMED``: its type follows from the mode
alone. ``CAST``: the author converted it on purpose. ``PARAMETER``: a weight. ``INTEGRAL``: whole numbers.
``LOOP``: changes from one turn of a loop to the next.
"""
ELEMENTWISE_BITS = POSITION | ASSUMED | PARAMETER | LOOP
"""Bits that survive arithmetic with other values."""

INF = math.inf

IN_AN_OPERAND, IN_ONE_EXPRESSION, IN_ONE_FORMULA, IN_A_FEW_LINES, IN_A_FUNCTION = 3, 4, 6, 8, 12
"""How many operations back something is looked for: in an operand that is converted or scaled where it is used, in an
expression (no softmax or norm by hand has more operations between an operand and the result), in a formula of a line or
two, in the few lines above, where authors convert, shift and bound what they compute with, or in most of a function.
What lies farther back was mostly made by another layer, and says nothing of the value any more.
"""
_ALTERNATIVES = 8
"""How many values a join remembers: a name that is assigned in more branches is a setting and no arithmetic."""


class Value:
    """What an expression may be.

    Attributes:
        op: canonical name of the operation that made it (``exp``, ``add``, ``getitem``, ...), or where it comes from:
            ``param``, ``const``, ``attr``, ``name``, ``join``, ``call``, ``module``, ``tuple``, ``function``, ...
        args: the values it was made of, the receiver of a method first.
        kwargs: the keyword arguments.
        node: the expression.
        dtypes: the types it may have.
        tensor: 2 when it is a tensor, 1 when it may be one, 0 when it is none.
        lo: no element is smaller.
        hi: no element is larger.
        bits: provenance.
        const: the Python number, string, bool or None that it is, where ``is_const``.
        is_const: whether ``const`` is known; a const of None means None.
        sym: the dotted name it stands for (``torch.nn.functional``), of functions, classes and modules.
        anchor: the value whose type it has by construction, itself where there is none.
        inplace: whether the operation changed its receiver.
        data: what the machine keeps with functions and modules.
    """

    __slots__ = (
        "anchor", "args", "bits", "const", "data", "dtypes", "hi", "inplace", "is_const", "kwargs", "lo", "node", "op",
        "sym", "tensor",
    )  # fmt: skip

    def __init__(
        self,
        op: str,
        node: ast.AST | None,
        args: tuple[Value, ...] = (),
        dtypes: int = OTHER,
        tensor: int = 0,
        bits: int = 0,
        kwargs: dict[str, Value] | None = None,
    ) -> None:
        self.op = op
        self.node = node
        self.args = args
        self.kwargs = kwargs
        self.dtypes = dtypes
        self.tensor = tensor
        self.lo = -INF
        self.hi = INF
        self.bits = bits
        self.const: Any = None
        self.is_const = False
        self.sym: str | None = None
        self.anchor: Value | None = None
        self.inplace = False
        self.data: Any = None

    def __repr__(self) -> str:
        return f"<{self.op} {self.sym or ''}{self.const if self.is_const else ''} {names_of(self.dtypes)}>"

    # ---- types ---------------------------------------------------------------------------------------------------

    @property
    def low(self) -> bool:
        """Whether it is a half tensor for certain."""
        return self.dtypes == LOW and self.tensor > 0

    @property
    def maybe_low(self) -> bool:
        """Whether it may be a half tensor."""
        return bool(self.dtypes & LOW) and self.tensor > 0

    @property
    def float32(self) -> bool:
        """Whether it is a tensor of at least float32 for certain."""
        return self.tensor > 0 and self.dtypes & ~(F32 | F64) == 0

    @property
    def number(self) -> float | None:
        """The Python number that it is, if known."""
        const = self.const
        if self.is_const and (const.__class__ is float or const.__class__ is int):
            return float(const) if -1e308 < const < 1e308 else INF if const > 0 else -INF
        return None

    @property
    def root(self) -> Value:
        """The value whose type it has by construction."""
        value = self
        while value.anchor is not None:
            value = value.anchor
        return value

    # ---- the graph -----------------------------------------------------------------------------------------------

    def arg(self, position: int, name: str = "") -> Value | None:
        """The argument at ``position`` (the receiver is 0) or of that name."""
        if self.kwargs and name in self.kwargs:
            return self.kwargs[name]
        return self.args[position] if position < len(self.args) else None

    def behind(self, depth: int = IN_A_FUNCTION) -> Iterator[Value]:
        """Yield this value and those it was made of, the nearest first."""
        level, seen = [self], {id(self)}
        for _ in range(depth):
            following: list[Value] = []
            for value in level:
                yield value
                for argument in value.args:
                    if id(argument) not in seen:
                        seen.add(id(argument))
                        following.append(argument)
            level = following
            if not level:
                return

    def through(self, ops: frozenset[str]) -> Value:
        """The value behind operations of ``ops``, followed along their first argument."""
        value = self
        while value.op in ops and value.args:
            value = value.args[0]
        return value


PASSING = frozenset(
    """
    view reshape flatten unflatten squeeze unsqueeze expand expand_as permute transpose t contiguous clone detach
    view_as repeat repeat_interleave getitem to type_as data alias dropout requires_grad_ float double half bfloat16
    type cpu cuda chunk split unbind narrow swapaxes movedim tile roll flip index_select gather broadcast_to
    masked_select rearrange
    """.split()
)
"""Operations that keep the elements and change shape, place or type."""
KEEPING_TYPE = PASSING | frozenset(
    """
    add sub rsub mul div neg abs cat stack pad tuple list join where clamp clamp_min maximum minimum mean std var
    """.split()
)
"""Operations whose result has the type of the tensors that they are given."""


def source_of(value: Value) -> Value:
    """The value that held the same elements first."""
    return value.through(PASSING)


_OPAQUE = frozenset(
    """
    param join call method name element result setattr rand randn randint randperm normal bernoulli multinomial
    rand_like randn_like randint_like dropout gumbel_softmax item
    """.split()
)
"""Operations that say nothing of what they give, or chance: two of them are alike only where they are one."""


_OF_ELEMENTS = POSITION | PROBABILITY | SIGMOID | MAX_SUBTRACTED | GUARDED | INTEGRAL


def overwritten(held: Value, by: Value | None) -> None:
    """Note that elements of ``held``, and of the tensor that it is a part of, may now be those of ``by``."""
    while not held.is_const and held.tensor:
        held.lo = min(held.lo, by.lo) if by is not None else -INF
        held.hi = max(held.hi, by.hi) if by is not None else INF
        held.bits &= ~_OF_ELEMENTS | (by.bits if by is not None else 0)
        if held.op not in PASSING or not held.args:
            return
        held = held.args[0]


LEFT_OUT = "left out"
"""The ``data`` of ``None`` for an optional parameter that the call in line does not give."""


def is_true(value: Value | None) -> bool:
    """Whether an argument is given and is ``True`` itself."""
    return value is not None and value.is_const and value.const is True


def same(a: Value, b: Value, depth: int = IN_A_FEW_LINES) -> bool:
    """Whether two values are computed alike from the same things."""
    if a is b:
        return True
    if depth == 0 or a.op != b.op or len(a.args) != len(b.args) or a.op in _OPAQUE:
        return False
    if a.is_const or b.is_const:
        return a.is_const and b.is_const and a.const == b.const
    if a.sym != b.sym or (a.data != b.data and isinstance(a.data, str)) or _of_other_layer(a, b):
        return False
    if not a.args and a.op not in ("attr",):
        return a.sym is not None
    if (a.kwargs or b.kwargs) and not _same_keywords(a.kwargs or {}, b.kwargs or {}, depth - 1):
        return False
    return all(same(left, right, depth - 1) for left, right in zip(a.args, b.args, strict=True))


def _of_other_layer(a: Value, b: Value) -> bool:
    """Whether two operations are calls of layers that were made at different places, each with its own weights."""
    layers = [item.data for item in (a, b) if isinstance(item.data, Value) and item.data.op == "layer"]
    return len(layers) == 2 and layers[0].node is not layers[1].node


def _same_keywords(a: dict[str, Value], b: dict[str, Value], depth: int) -> bool:
    return a.keys() == b.keys() and all(same(value, b[name], depth) for name, value in a.items())


def constant(value: Any, node: ast.AST | None) -> Value:
    """The value of a literal."""
    made = Value("const", node)
    made.const = value
    made.is_const = True
    kind = value.__class__
    if kind is float or kind is int or kind is bool:
        made.dtypes = NUM
        try:
            made.lo = made.hi = float(value)
        except OverflowError:
            made.lo = made.hi = INF if value > 0 else -INF
        if made.lo != made.lo:
            made.lo, made.hi = -INF, INF
        if kind is not float or made.lo.is_integer():
            made.bits = INTEGRAL
    return made


def join(a: Value, b: Value) -> Value:
    """What is known where either may be meant."""
    if a is b:
        return a
    if a.is_const and b.is_const and a.const == b.const and type(a.const) is type(b.const):
        return a
    if a.op == "join" and any(b is argument for argument in a.args):
        return a
    args = (*(a.args if a.op == "join" else (a,)), *(b.args if b.op == "join" else (b,)))
    joined = Value(
        "join",
        b.node,
        args[:_ALTERNATIVES],
        a.dtypes | b.dtypes,
        min(a.tensor, b.tensor) or min(1, a.tensor + b.tensor),
    )
    joined.lo, joined.hi = min(a.lo, b.lo), max(a.hi, b.hi)
    joined.bits = (a.bits & b.bits) | ((a.bits | b.bits) & (ASSUMED | POSITION | LOOP))
    root = a.root
    if root is b.root:
        joined.anchor = root
    if a.sym == b.sym and a.op != "layer":
        joined.sym = a.sym
    return joined


def alternatives(value: Value) -> tuple[Value, ...]:
    """The values that a join may be; a plain value alone."""
    return value.args if value.op == "join" else (value,)


_NAMES = ((LOW, "half"), (F32, "f32"), (F64, "f64"), (INT, "int"), (BOOL, "bool"), (NUM, "number"), (OTHER, "other"))


def names_of(dtypes: int) -> str:
    """The types of a mask, for people."""
    return "|".join(name for bit, name in _NAMES if dtypes & bit) or "nothing"


_RANKS = {BOOL: 0, INT: 1, LOW: 2, F32: 3, F64: 4}


@lru_cache(maxsize=8192)
def promote(a: int, b: int) -> int:
    """The types that arithmetic between values of types ``a`` and ``b`` may give, by torch's rules of promotion."""
    result = 0
    for left in _each(a):
        for right in _each(b):
            result |= _promoted(left, right)
    return result or OTHER


def _each(mask: int) -> list[int]:
    return [bit for bit, _ in _NAMES if mask & bit]


def _promoted(a: int, b: int) -> int:
    if a == b:
        return a
    if OTHER in (a, b):
        return a | b if not (a | b) & TENSORS else (a | b) & ~OTHER
    if NUM in (a, b):
        other = b if a == NUM else a
        # A Python float makes integers float32; a Python int does not.
        return other | F32 if other in (INT, BOOL) else other
    return a if _RANKS[a] > _RANKS[b] else b
