"""Matrix products of the training step that autocast would round to half where their digits are needed.

The linter's analysis of types says which products are half, and what they are made of and become; the points-to
analysis says what runs within the regions.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import Literal

from amp_rules.checks.common.arithmetic import factors, squared, terms
from amp_rules.checks.common.mixed_types import MATRIX_PRODUCTS, operands
from amp_rules.lattice.abstract_values import F64, IN_A_FUNCTION, Value, alternatives, same
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode
from amp_rules.lint.check import Check
from amp_rules.lint.linter import Linter
from amp_rules.plan import geometry
from amp_rules.plan.arrays import is_of_tensors
from amp_rules.plan.coefficient_tables import in_tables
from amp_rules.plan.half_places import HalfPlace, HalfPlaces, made_by_product, parameters_of
from amp_rules.plan.made_of_data import is_made_of_data
from amp_rules.plan.options import HALVED, Options
from amp_rules.plan.precision import Precision
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.spans import Span
from amp_rules.source.text import SourceError
from amp_rules.torch.gradients import NORMS
from amp_rules.torch.half_precision import DECOMPOSITIONS, FUNCTIONS_OF_LINALG

Need = Literal[
    "itself",
    "gram",
    "distance",
    "angle",
    "cosine",
    "place",
    "matrix",
    "divisor",
    "square",
    "area",
    "theta",
    "variance",
    "logarithm",
    "spectrum",
    "loss",
    "data",
    "orthogonal",
    "scaled",
    "asked",
    "stencil",
]
"""Why a product needs its digits: it is of a matrix with itself, it multiplies such a ``gram`` by another, it becomes a
squared distance, the argument of a sine
or cosine, a cosine of which the angle or the sine is taken, a place that an image is sampled at, a matrix that is
decomposed, or what is divided by; ``square`` is of elements, and is summed; ``area`` is of boxes, whose overlap is
divided by their union. ``theta`` is no product: the transform that ``affine_grid`` multiplies its grid by; a
``variance`` is the difference between a convolution of squares and the square of a convolution; the ``logarithm`` of a
product is taken, or it is of a ``spectrum``, of which one is taken as a rule; the mean of a ``loss`` is what is trained
on. ``data`` has met no model yet, and was exact without a region. ``orthogonal`` is a step towards an orthogonal
matrix: a matrix is multiplied by what its product with itself was made to. A ``scaled`` matrix is multiplied by what
was divided by its own product, as Sinkhorn's iteration does. ``asked`` and ``stencil`` multiply by a fixed table of
coefficients: the script asks for float32, or a loss takes differences of neighbours."""
_WEAK: frozenset[Need] = frozenset({"itself", "gram", "loss", "data"})
"""Those that say less than the others do of the same product."""

_SHAPING = frozenset(
    """
    view reshape flatten unflatten permute transpose t mT T H adjoint swapaxes swapdims movedim moveaxis contiguous
    detach alias clone data squeeze unsqueeze float double to type type_as expand expand_as
    """.split()
)
"""Operations after which a matrix has the same elements, whatever their order."""
_ARITHMETIC = _SHAPING | frozenset(
    """
    add sub rsub mul div neg cat stack tuple list join getitem split chunk unbind clamp clamp_min clamp_max repeat tile
    repeat_interleave narrow select setitem where sum masked_fill addcmul addcdiv lerp
    """.split()
)
"""Operations through which a rounded number stays as wrong as it is."""
_CHOOSING = _ARITHMETIC | frozenset({"max", "min", "amax", "amin", "mean", "result", "element", "diagonal", "diag"})
"""Operations between a product and the loss that keep its type."""
_GUARDING = _SHAPING | frozenset({"add", "clamp", "clamp_min", "maximum", "max", "where", "masked_fill", "getitem"})
"""What people do with a divisor before they divide by it."""
_ADDITIONS = frozenset({"add", "sub"})
_SCALING = _SHAPING | frozenset({"getitem", "select", "diag", "diag_embed", "join", "mul"})
"""What makes a matrix of the factors of its rows or columns."""
_SPECTRA = frozenset({"stft", "rfft", "fft"})
_LOGARITHMS = frozenset({"log", "log2", "log10"})
_LIMITING = _SHAPING | frozenset({"clamp", "clamp_min", "maximum", "max", "where", "getitem", "result", "mul", "div"})
"""What people do with a spectrum before its logarithm: they keep it from zero, and scale it."""
_POWERS = _SHAPING | frozenset(
    "abs pow square sqrt add clamp clamp_min sum view_as_real real imag getitem result magnitude slice join".split()
)
"""What makes magnitudes and powers of a spectrum's complex numbers."""
_SOFTMAX = frozenset({"softmax", "log_softmax", "logsumexp", "cross_entropy", "nll_loss"})
_SCORES = _SHAPING | frozenset({"add", "sub", "mul", "div", "masked_fill", "where", "neg", "clamp"})
_NORMALISED = frozenset({"normalize", "softmax", "sigmoid", "tanh", "layer_norm"})
_ADDING = frozenset({"addmm", "baddbmm"})
_SUMS = ("sum", "mean", "norm", "vector_norm")
_CONVOLUTIONS = frozenset({"conv1d", "conv2d", "conv3d"})
_MULTIPLYING = _SHAPING | frozenset({"mul", "pow", "square"})


def exact_products(program: Program, precision: Precision, options: Options) -> Iterator[tuple[Site, Need]]:
    """Yield the products that need FP32, each with the reason."""
    places = HalfPlaces(program, precision, inputs=options.opt_level in HALVED)
    found = list(_found(program, precision, places))
    known = {site.node for site, _ in found}
    yield from found
    yield from ((site, why) for site, why in in_tables(program, places) if site.node not in known)


def _found(program: Program, precision: Precision, places: HalfPlaces) -> Iterator[tuple[Site, Need]]:
    of_places = geometry.beside_models(program, precision.runs)
    for site, need in places.found(_judged):
        if need in _WEAK and site.body in of_places and is_of_tensors(program, site):
            yield site, "place"
            continue
        # What a model computes it may lose digits of; its output, of which a loss is made, is float32.
        if need in ("loss", "data") and not places.is_of_loss(site):
            continue
        if need != "data" or (is_of_tensors(program, site) and is_made_of_data(program, site)):
            yield site, need


def _judged(module: Module) -> dict[Span, HalfPlace[Need]]:
    """The places of one file's products that need FP32, with the reasons and whether they are half for certain."""
    check = _Products(module)
    try:
        Linter(Mode("O1", "bf16"), [check], in_regions=True).lint(module.source)
    except (SourceError, RecursionError):
        return {}
    return {place: item for place, item in check.found.items() if not check.is_of_scores(place, item.what)}


class _Products(Check):
    """Collects products that are half, and what is made of them."""

    code, name, message = "", "exact-products", ""
    triggers = (
        re.compile(r"[\w)\]] ?@ ?[\w(]"),
        "matmul(",
        "mm(",
        "mv(",
        "einsum(",
        "linear(",
        "affine_grid(",
        "sum(",
        "mean(",
        "backward(",
        re.compile(r"\bconv[123]d\("),
        re.compile(r"\blog(2|10)?\("),
    )
    operations = (
        *sorted(MATRIX_PRODUCTS | DECOMPOSITIONS | _SOFTMAX | _LOGARITHMS),
        *(
            "sin",
            "cos",
            "acos",
            "asin",
            "sqrt",
            "grid_sample",
            "affine_grid",
            "div",
            "reciprocal",
            "add",
            "sub",
            *_SUMS,
            "backward",
        ),
    )

    def __init__(self, module: Module) -> None:
        self.found: dict[Span, HalfPlace[Need]] = {}
        self.scores: set[Span] = set()
        self._module = module
        self._run: dict[int, tuple[Value, Frame]] = {}
        """The half products of each run of a function, by identity."""
        self._whole: set[int] = set()
        """Those that a matrix of a decomposition was multiplied in, by identity."""
        self._of_gram: dict[int, Span | None] = {}
        """The products of a matrix with itself, and those of them, by identity, each with the first one's place."""
        self._grams: dict[Span, Span | None] = {}
        """Where these stand, each with the first one's place."""

    def visit(self, op: Value, frame: Frame) -> None:
        """Look at one operation."""
        if not op.args or not frame.mode.autocast:
            return
        if op.op in MATRIX_PRODUCTS:
            self._product(op, frame)
        elif op.op in _SOFTMAX:
            places = [self._place(item, frame) for item in _products_behind(op.args[0], _SCORES)]
            self.scores.update(filter(None, places))
        elif op.op in _LOGARITHMS:
            self._logarithm(op, frame)
        elif op.op in ("sin", "cos"):
            self._need("angle", _products_behind(op.args[0], _ARITHMETIC), frame)
        elif op.op in ("acos", "asin", "sqrt"):
            self._cosine(op, frame)
        elif op.op == "grid_sample":
            grid = op.arg(1, "grid")
            self._need("place", _products_behind(grid, _ARITHMETIC, deeper=True) if grid is not None else (), frame)
        elif op.op == "affine_grid":
            self._need("place", _products_behind(op.args[0], _ARITHMETIC, deeper=True), frame)
            if op.args[0].low and op.node is not None:
                self._note("theta", op, frame)
        elif _is_decomposition(op):
            self._need("matrix", _products_behind(op.args[0], _ARITHMETIC, deeper=True), frame)
        elif op.op in ("div", "reciprocal"):
            self._need("divisor", _products_behind(op.args[-1], _GUARDING), frame)
            self._areas(op, frame)
        elif op.op in ("add", "sub"):
            self._distance(op, frame)
        elif op.op in _SUMS:
            self._summed(op.args[0].through(_SHAPING), frame)
            if op.op == "mean" and op.low:
                self._need("loss", _products_behind(op.args[0], _CHOOSING), frame)
        elif op.op == "backward":
            self._need("loss", _products_behind(op.args[0], _CHOOSING), frame)

    def visit_function(self, function: FunctionFacts | None, frame: Frame) -> None:
        """Look at a logarithm that a function gives back, which a helper of it may have taken unseen."""
        for returned in frame.returned:
            value = returned.through(_SHAPING | {"result"})
            if value.op in _LOGARITHMS and value.args and frame.mode.autocast:
                self._logarithm(value, frame)

    def is_of_scores(self, place: Span, need: Need) -> bool:
        """Whether a product of a matrix with itself, or one of that, is what a softmax is taken of."""
        return need in ("itself", "gram") and bool({place, self._grams.get(place)} & self.scores)

    def _product(self, op: Value, frame: Frame) -> None:
        if not op.low or any(item.dtypes == F64 for item in operands(op)):
            return  # autocast leaves float64 as it is
        if op.op in _ADDING and any(_is_sum_of_squares(item) for _, item in terms(op.args[0])):
            self._note("distance", op, frame)
        tensors = [item for item in operands(op) if item.tensor]
        given = [item.through(_SHAPING) for item in tensors]
        if len(given) != 2:
            return
        self._run[id(op)] = op, frame
        # What the author converted to half is not needed exactly.
        exact = [item for item, whole in zip(given, tensors, strict=True) if not whole.low]
        kept = [item for item in self._in_this_run(tensors, frame) if id(item) in self._whole]
        if kept or any(_is_decomposition(item) or _is_part_of_decomposition(item) for item in exact):
            self._keep_whole(op, frame)
        elif any(any(_made_by(item, _SPECTRA, _POWERS)) for item in exact):
            self._note("spectrum", op, frame)
        elif same(given[0], given[1]) and not any(map(_is_normalised, given)):
            self._of_gram[id(op)] = self._place(op, frame)
            self._note("itself", op, frame)
        elif squares := [part for item in tensors for part in _products_with_itself(item, given)]:
            self._need("orthogonal", [*squares, op], frame)
        elif _is_scaled(given[0], given[1]) or _is_scaled(given[1], given[0]):
            self._note("scaled", op, frame)
        elif grams := [item for item in given if id(item) in self._of_gram and self._run[id(item)][1] is frame]:
            self._of_gram[id(op)] = self._of_gram[id(grams[0])]
            if (place := self._place(op, frame)) is not None:
                self._grams[place] = self._of_gram[id(op)]
            self._note("gram", op, frame)
        elif self._place(op, frame) not in self.found:
            self._note("data", op, frame)  # what else is needed of it comes later, and says more

    def _keep_whole(self, op: Value, frame: Frame) -> None:
        """``a @ b @ inverse``: what is rounded before or after is multiplied by what is large in the inverse."""
        self._whole.add(id(op))
        self._need("matrix", [*self._in_this_run(operands(op), frame, deeper=True), op], frame)

    def _in_this_run(self, tensors: Iterable[Value], frame: Frame, *, deeper: bool = False) -> list[Value]:
        """The products of the same run of a function that some tensors are made of."""
        found = [item for tensor in tensors for item in _products_behind(tensor, _ARITHMETIC, deeper=deeper)]
        return [item for item in found if id(item) in self._run and self._run[id(item)][1] is frame]

    def _distance(self, op: Value, frame: Frame) -> None:
        """``a ** 2 + b ** 2 - 2 * a @ b``, in one sum or in several steps."""
        parts = list(terms(op))
        products = [item for sign, item in parts if item.low and item.op in MATRIX_PRODUCTS and _is_doubled(sign, item)]
        if any(_is_sum_of_squares(item) for _, item in parts):
            self._need("distance", products, frame)
        else:
            squares = [square for _, item in parts if (square := squared(item.through(_SHAPING))) is not None]
            beside = [item for item in products if _is_of_coordinates(item, squares)]
            beside += [item for item in products if self._stands_beside_squares(item, frame)]
            self._need("distance", beside, frame)
        if op.op == "sub":
            self._variance(op, frame)

    def _stands_beside_squares(self, product: Value, frame: Frame) -> bool:
        """Whether a function multiplies an operand by itself, too: the squares are the diagonal of that."""
        given = [item.through(_SHAPING) for item in operands(product) if item.tensor]
        squares = [
            [item.through(_SHAPING) for item in operands(other) if item.tensor]
            for other, where in self._run.values()
            if where is frame and other is not product
        ]
        return any(
            len(pair) == 2 and same(pair[0], pair[1]) and any(same(pair[0], item) for item in given) for pair in squares
        )

    def _variance(self, op: Value, frame: Frame) -> None:
        """``conv(a * b) - conv(a) * conv(b)``: what is left of a local mean of products, as SSIM compares images by."""
        mean, taken = (item.through(_SHAPING) for item in op.args[:2]) if len(op.args) == 2 else (None, None)
        if mean is None or taken is None or mean.op not in _CONVOLUTIONS or not mean.args:
            return
        factors_of_mean = mean.args[0].through(_SHAPING)
        if factors_of_mean.op not in ("mul", "pow", "square"):
            return
        means = [item for item in _made_by(taken, _CONVOLUTIONS, _MULTIPLYING) if item.low]
        if means and mean.low:
            self._need("variance", [mean, *means], frame)

    def _logarithm(self, op: Value, frame: Frame) -> None:
        """``log(clamp(filters @ spectrum))``: below 6e-5 fp16 loses digits, and 1 / x of small x overflows backward."""
        for sign, item in terms(op.args[0].through(_SHAPING)):
            if sign > 0:
                self._need("logarithm", _products_behind(item, _LIMITING), frame)

    def _cosine(self, op: Value, frame: Frame) -> None:
        """``acos(cosine)``, ``sqrt(1 - cosine ** 2)``: near one, a small change of it is a large one of the angle."""
        given = op.args[0].through(_GUARDING - {"add"})
        if op.op != "sqrt":
            self._need("cosine", _cosines_behind(given), frame)
            return
        parts = list(terms(given))
        if any(sign == 1.0 and item.number == 1.0 for sign, item in parts):
            for sign, item in parts:
                cosine = squared(item) if sign == -1.0 else None
                if cosine is not None:
                    self._need("cosine", _cosines_behind(cosine), frame)

    def _summed(self, square: Value, frame: Frame) -> None:
        """``(x * x).sum()``, which overflows above 255; autocast runs ``x ** 2`` in FP32."""
        if square.op == "mul" and square.low and isinstance(square.node, ast.BinOp) and squared(square) is not None:
            self._note("square", square, frame)

    def _areas(self, op: Value, frame: Frame) -> None:
        """``overlap / (area + area - overlap)``: the sides of boxes are some hundreds of pixels long."""
        parts = list(terms(op.args[-1])) if len(op.args) == 2 else []
        overlap = op.args[0].through(_SHAPING)
        if any(sign < 0 and same(item, overlap) for sign, item in parts):
            areas = [item for _, item in parts if item.op == "mul" and item.low and isinstance(item.node, ast.BinOp)]
            self._need("area", areas, frame)

    def _need(self, need: Need, products: list[Value] | tuple[Value, ...] | Iterator[Value], frame: Frame) -> None:
        for item in products:
            self._note(need, item, frame)

    def _note(self, need: Need, op: Value, frame: Frame) -> None:
        place = self._place(op, frame)
        if place is None:
            return
        known = self.found.get(place)
        if known is None or known.what == "data" or need not in _WEAK:
            is_certain = op.op in MATRIX_PRODUCTS | _CONVOLUTIONS or made_by_product(op)
            self.found[place] = HalfPlace(need, is_certain, parameters_of(op, frame.module))

    def _place(self, op: Value, frame: Frame) -> Span | None:
        """Where an operation stands, if that is in the file that is judged."""
        around: Frame | None = frame
        while around is not None:
            module = around.module
            if op.node is not None and module.module.path == self._module.path and module.holds(op.node):
                return self._module.span(op.node)
            around = around.caller
        return None


def _products_behind(value: Value, through: frozenset[str], *, deeper: bool = False) -> Iterator[Value]:
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


def _cosines_behind(value: Value) -> Iterator[Value]:
    """Yield the products that a cosine is made of; ``F.linear(features, weights)`` of rows and classes is one, too."""
    yield from _products_behind(value, _ARITHMETIC)
    for item in _made_by(value, frozenset({"linear"}), _ARITHMETIC):
        if item.low and isinstance(item.node, ast.Call) and len(item.node.args) > 1:
            yield item


def _products_with_itself(value: Value, matrices: list[Value]) -> Iterator[Value]:
    """Yield the products of one of some matrices with itself that a sum is made of: ``(eye - a.t() @ a) / 2``."""
    if not any(_made_by(value, _ADDITIONS, _ARITHMETIC | _SHAPING)):
        return  # ``a @ a.t() @ a`` is attention without a softmax
    for item in _products_behind(value, _ARITHMETIC):
        given = [part.through(_SHAPING) for part in operands(item) if part.tensor]
        if len(given) == 2 and same(given[0], given[1]) and any(same(given[0], matrix) for matrix in matrices):
            yield item


def _made_by(value: Value, wanted: frozenset[str], through: frozenset[str]) -> Iterator[Value]:
    """Yield the operations of some kinds that a value is made of by others."""
    pending, seen = [value], {id(value)}
    while pending:
        item = pending.pop()
        if item.op in wanted:
            yield item
        elif item.op in through:
            fresh = [part for part in item.args if id(part) not in seen]
            seen.update(map(id, fresh))
            pending += fresh


def _is_scaled(factors_of_rows: Value, matrix: Value) -> bool:
    """``diag(a) @ k`` after ``a = rows / (k @ b)``; ``k`` may be scaled on its other side already."""
    scaled = matrix
    if matrix.op in MATRIX_PRODUCTS:
        scaled = next((item for item in _factors_of(matrix) if not any(_quotients(item))), matrix)
    return any(
        same(scaled, item)
        for quotient in _quotients(factors_of_rows)
        for product in _products_behind(quotient.args[1], _GUARDING)
        for item in _factors_of(product)
    )


def _quotients(value: Value) -> Iterator[Value]:
    return (item for item in _made_by(value, frozenset({"div"}), _SCALING) if len(item.args) == 2)


def _factors_of(product: Value) -> list[Value]:
    return [item.through(_SHAPING) for item in operands(product) if item.tensor]


def _is_of_coordinates(product: Value, squares: list[Value]) -> bool:
    """``x * x - 2 * x @ y + y * y``, where the vectors of a distance have one coordinate."""
    given = [item.through(_SHAPING) for item in operands(product) if item.tensor]
    return any(same(item, square.through(_SHAPING)) for item in given for square in squares)


def _is_doubled(sign: float, product: Value) -> bool:
    """``2 * a @ b``, whichever of them is doubled first."""
    return abs(sign) == 2.0 or any(item.number in (2.0, -2.0) for part in product.args for item in factors(part))


def _is_decomposition(value: Value) -> bool:
    """Whether it is torch's: ``inv`` and others are no methods of tensors, so a method of that name is another one."""
    if value.op not in DECOMPOSITIONS:
        return False
    call = value.node
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and len(value.args) > len(call.args)):
        return True
    return call.func.attr not in FUNCTIONS_OF_LINALG


def _is_part_of_decomposition(value: Value) -> bool:
    """One of several matrices that a decomposition gave."""
    return (
        value.op in ("getitem", "element", "result", "attr")
        and bool(value.args)
        and (value.args[0].op in DECOMPOSITIONS)
    )


def _is_normalised(value: Value) -> bool:
    """Whether elements are small: rows were divided by their length, or bounded."""
    for item in alternatives(value):
        if item.op in _NORMALISED:
            return True
        if item.op == "div" and len(item.args) == 2:
            divisor = item.args[1].through(_GUARDING)
            if divisor.op in NORMS or (divisor.op in ("sqrt", "pow") and divisor.args):
                return True
    return False


def _is_sum_of_squares(value: Value) -> bool:
    if value.op in NORMS:
        return True
    return value.op == "sum" and bool(value.args) and squared(value.args[0]) is not None
