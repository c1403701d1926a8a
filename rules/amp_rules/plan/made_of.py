"""What matrix products, squares and quotients a tensor is made of, as the linter's analysis of types has it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.arithmetic import factors, squared
from amp_rules.checks.common.mixed_types import MATRIX_PRODUCTS, operands
from amp_rules.lattice.abstract_values import IN_A_FUNCTION, Value, alternatives, same
from amp_rules.torch.gradients import NORMS
from amp_rules.torch.half_precision import DECOMPOSITIONS, FUNCTIONS_OF_LINALG

SHAPING = frozenset(
    """
    view reshape flatten unflatten permute transpose t mT T H adjoint swapaxes swapdims movedim moveaxis contiguous
    detach alias clone data squeeze unsqueeze float double to cuda cpu type type_as expand expand_as
    """.split()
)
"""Operations after which a matrix has the same elements, whatever their order."""
ARITHMETIC = SHAPING | frozenset(
    """
    add sub rsub mul div neg cat stack tuple list join getitem split chunk unbind clamp clamp_min clamp_max repeat tile
    repeat_interleave narrow select setitem where sum masked_fill addcmul addcdiv lerp
    """.split()
)
"""Operations through which a rounded number stays as wrong as it is."""
GUARDING = SHAPING | frozenset({"add", "clamp", "clamp_min", "maximum", "max", "where", "masked_fill", "getitem"})
"""What people do with a divisor before they divide by it."""
_ADDITIONS = frozenset({"add", "sub"})
_SCALING = SHAPING | frozenset({"getitem", "select", "diag", "diag_embed", "join", "mul"})
"""What makes a matrix of the factors of its rows or columns."""
_SHAPED = frozenset({"view", "reshape", "unflatten"})
_DIMENSIONS = (2, 3, 4)
_JOINING = SHAPING | frozenset({"cat", "stack", "tuple", "list"})
_TURNED = frozenset({"t", "T", "mT", "transpose", "permute"})
_NORMALISED = frozenset(
    {"normalize", "softmax", "sigmoid", "tanh", "layer_norm", "group_norm", "instance_norm", "rms_norm"}
)
_BOUNDING = frozenset({"dropout", "relu", "leaky_relu", "elu", "gelu", "silu", "sigmoid", "tanh", "result", "element"})
"""Functions between layers."""
_KEPT = frozenset({"buffer", "grad"})
"""Float32 for all that autocast does: buffers, and gradients of what the model is given."""
_WEIGHTS = frozenset({"parameter", "embedding", "embedding_bag", "softmax"})


def products_behind(value: Value, through: frozenset[str], *, deeper: bool = False) -> Iterator[Value]:
    """Yield the half products that a value is made of by some operations; ``deeper``: and those in their operands."""
    level, seen = [value], {id(value)}
    for _ in range(IN_A_FUNCTION):
        following: list[Value] = []
        for item in level:
            if item.op in MATRIX_PRODUCTS:
                if item.low:
                    yield item
                if not deeper:
                    continue
            elif item.op not in through:
                continue
            for part in item.args:
                if id(part) not in seen:
                    seen.add(id(part))
                    following.append(part)
        level = following


def has_square(value: Value) -> Iterator[bool]:
    """Yield for each factor of a value that is a square, however it is written."""
    for item in made_by(value, frozenset({"mul", "pow", "square"}), SHAPING):
        if squared(item) is not None:
            yield True
        elif item.op == "mul":
            for part in item.args:
                yield from has_square(part)


def squares_behind(value: Value) -> Iterator[Value]:
    """Yield the half products ``x * x`` that some factors of a value are; autocast runs ``x ** 2`` in FP32."""
    for item in made_by(value, frozenset({"mul"}), SHAPING):
        if item.low and isinstance(item.node, ast.BinOp) and squared(item) is not None:
            yield item
        else:
            for part in item.args:
                yield from squares_behind(part)


def cosines_behind(value: Value) -> Iterator[Value]:
    """Yield the products that a cosine is made of; ``F.linear(features, weights)`` of rows and classes is one, too."""
    yield from products_behind(value, ARITHMETIC)
    for item in made_by(value, frozenset({"linear"}), ARITHMETIC):
        if item.low and isinstance(item.node, ast.Call) and len(item.node.args) > 1:
            yield item


def products_with_itself(value: Value, matrices: list[Value]) -> Iterator[Value]:
    """Yield the products of one of some matrices with itself that a sum is made of: ``(eye - a.t() @ a) / 2``."""
    if not any(made_by(value, _ADDITIONS, ARITHMETIC | SHAPING)):
        return  # ``a @ a.t() @ a`` is attention without a softmax
    for item in products_behind(value, ARITHMETIC):
        given = factors_of(item)
        if len(given) == 2 and same(given[0], given[1]) and any(same(given[0], matrix) for matrix in matrices):
            yield item


def made_by(value: Value, wanted: frozenset[str], through: frozenset[str]) -> Iterator[Value]:
    """Yield the operations of some kinds that a value is made of by others."""
    pending, seen = [value], {id(value)}
    while pending:
        item = pending.pop()
        if item.op in wanted:
            yield item
        elif item.op in through:
            # The device and the shape that a tensor is given, `angles.to(h.device)`, make no part of it.
            given = item.args[:1] if item.op in SHAPING else item.args
            fresh = [part for part in given if id(part) not in seen]
            seen.update(map(id, fresh))
            pending += fresh


def is_scaled(factors_of_rows: Value, matrix: Value) -> bool:
    """``diag(a) @ k`` after ``a = rows / (k @ b)``; ``k`` may be scaled on its other side already."""
    scaled = matrix
    if matrix.op in MATRIX_PRODUCTS:
        scaled = next((item for item in factors_of(matrix) if not any(_quotients(item))), matrix)
    return any(
        same(scaled, item)
        for quotient in _quotients(factors_of_rows)
        for product in products_behind(quotient.args[1], GUARDING)
        for item in factors_of(product)
    )


def _quotients(value: Value) -> Iterator[Value]:
    return (item for item in made_by(value, frozenset({"div"}), _SCALING) if len(item.args) == 2)


def factors_of(product: Value) -> list[Value]:
    """The tensors that a product multiplies, whatever their shape."""
    return [item.through(SHAPING) for item in operands(product) if item.tensor]


def is_of_coordinates(product: Value, squares: list[Value]) -> bool:
    """``x * x - 2 * x @ y + y * y``, where the vectors of a distance have one coordinate."""
    return any(same(item, square.through(SHAPING)) for item in factors_of(product) for square in squares)


def is_doubled(sign: float, product: Value) -> bool:
    """``2 * a @ b``, whichever of them is doubled first."""
    return abs(sign) == 2.0 or any(item.number in (2.0, -2.0) for part in product.args for item in factors(part))


def is_decomposition(value: Value) -> bool:
    """Whether it is torch's: ``inv`` and others are no methods of tensors, so a method of that name is another one."""
    if value.op not in DECOMPOSITIONS:
        return False
    call = value.node
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and len(value.args) > len(call.args)):
        return True
    return call.func.attr not in FUNCTIONS_OF_LINALG


def is_part_of_decomposition(value: Value) -> bool:
    """One of several matrices that a decomposition gave."""
    return (
        value.op in ("getitem", "element", "result", "attr")
        and bool(value.args)
        and (value.args[0].op in DECOMPOSITIONS)
    )


def is_made_of_decomposition(value: Value) -> bool:
    """Whether sums and multiples of a decomposition's result are in a value: ``eye - torch.linalg.solve(a, b)``."""
    if is_part_of_decomposition(value):
        return True
    return any(map(is_decomposition, made_by(value, DECOMPOSITIONS, ARITHMETIC)))


def is_sum_by_element(product: Value) -> bool:
    """``einsum("bhw,bhw->b", p, t)``: all operands have the same axes, of which some are summed over."""
    equation = product.args[0].const if product.args else None
    if not isinstance(equation, str) or "->" not in equation or "." in equation:
        return False
    given, made = equation.replace(" ", "").split("->")
    axes = {frozenset(item) for item in given.split(",")}
    return len(axes) == 1 and set(made) < next(iter(axes))


def is_transform(value: Value) -> bool:
    """Whether a matrix turns or moves places, or is a product of such ones.

    It is of two, three or four dimensions, as ``r.view(-1, 3, 3)``, or put together of an angle's sine and cosine.
    """
    whole = value.through(SHAPING | {"result"})
    if whole.op in MATRIX_PRODUCTS:
        multiplied = [item for item in operands(whole) if item.tensor]
        return len(multiplied) == 2 and all(map(is_transform, multiplied))
    for item in made_by(value, _SHAPED | {"eye"}, (ARITHMETIC | {"result"}) - _SHAPED):
        sizes = [part.const for part in (item.args if item.op == "eye" else item.args[1:])]
        if item.op == "eye" and sizes and sizes[0] in _DIMENSIONS:
            return True
        # One more is the batch; what has more axes are patches or heads.
        if item.op in _SHAPED and len(sizes) in (2, 3) and sizes[-1] == sizes[-2] and sizes[-1] in _DIMENSIONS:
            return True
    return _is_of_an_angle(whole)


def _is_of_an_angle(value: Value) -> bool:
    """``stack([stack([cos, -sin]), stack([sin, cos])])``: what codes a place has no negative sine."""
    if value.op not in ("cat", "stack"):
        return False
    parts = list(made_by(value, frozenset({"sin", "cos", "neg"}), _JOINING))
    turned = [item.args[0].through(SHAPING) for item in parts if item.op == "neg" and item.args]
    return {"sin", "cos"} <= {item.op for item in parts} and any(item.op == "sin" for item in turned)


def sums_rows_of_kinds(first: Value, second: Value) -> bool:
    """``one_hot(kinds).t() @ rows``, the sum of the rows of each kind, and ``rows.t() @ one_hot(kinds)``."""
    if not any(made_by(first, _TURNED, SHAPING - _TURNED)):
        return False
    kinds = frozenset({"one_hot"})
    return any(made_by(first, kinds, SHAPING)) or any(made_by(second, kinds, SHAPING - _TURNED))


def is_of_weights(value: Value) -> bool:
    """Whether a weight, or a weight of attention, is in a value, also in sums: a product with it is a layer by hand."""
    return any(made_by(value, _WEIGHTS, ARITHMETIC | _BOUNDING))


def exact_parts(value: Value) -> Iterator[Value]:
    """Yield what makes a tensor float32 under autocast, and is none of what stands between layers, such as a norm."""
    pending, seen = [value], {id(value)}
    while pending:
        item = pending.pop()
        if item.low or not item.tensor or is_normalised(item):
            continue
        if item.op in ARITHMETIC | _BOUNDING and item.args:
            fresh = [part for part in item.args if id(part) not in seen]
            seen.update(map(id, fresh))
            pending += fresh
        elif (item.float32 or item.op in _KEPT) and item.op not in _WEIGHTS:
            yield item


def has_flat_rows(value: Value) -> bool:
    """Whether each row holds all places of an image: ``x.view(batch, channels, -1)``, ``x.flatten(2)``."""
    whole = value.through(frozenset({"contiguous", "detach", "clone", "float"}))
    if whole.op == "flatten":
        return True
    sizes = whole.args[1:] if whole.op in ("view", "reshape") else ()
    if len(sizes) == 1 and sizes[0].op in ("tuple", "list"):
        sizes = sizes[0].args
    return len(sizes) > 2 and (sizes[-1].const == -1 or sizes[-1].op == "mul")


def is_normalised(value: Value) -> bool:
    """Whether elements are small: rows were divided by their length, or bounded."""
    for item in alternatives(value):
        if item.op in _NORMALISED:
            return True
        if item.op == "div" and len(item.args) == 2:
            divisor = item.args[1].through(GUARDING)
            if divisor.op in NORMS or (divisor.op in ("sqrt", "pow") and divisor.args):
                return True
    return False


def is_sum_of_squares(value: Value) -> bool:
    """``(x ** 2).sum(1)``, or the norm itself."""
    if value.op in NORMS:
        return True
    return value.op == "sum" and bool(value.args) and squared(value.args[0]) is not None
