"""Matrix products of the training step that autocast would round to half where their digits are needed.

The linter's analysis of types says which products are half, and what they are made of and become; the points-to
analysis says what runs within the regions.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Literal

from amp_rules.checks.common.arithmetic import squared, terms
from amp_rules.checks.common.mixed_types import MATRIX_PRODUCTS, operands
from amp_rules.lattice.abstract_values import F64, INT, POSITION, Value, same
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode
from amp_rules.lint.check import Check
from amp_rules.lint.linter import Linter
from amp_rules.plan import geometry
from amp_rules.plan.arrays import is_of_tensors
from amp_rules.plan.coefficient_tables import in_tables
from amp_rules.plan.given_transforms import GivenTransforms
from amp_rules.plan.half_places import HalfPlace, HalfPlaces, lowered_by, made_by_product, parameters_of, raw_parameters
from amp_rules.plan.made_of import (
    ARITHMETIC,
    GUARDING,
    SHAPING,
    cosines_behind,
    exact_parts,
    factors_of,
    has_flat_rows,
    has_square,
    is_decomposition,
    is_doubled,
    is_made_of_decomposition,
    is_normalised,
    is_of_coordinates,
    is_of_weights,
    is_scaled,
    is_sum_by_element,
    is_sum_of_squares,
    is_transform,
    made_by,
    products_behind,
    products_with_itself,
    squares_behind,
    sums_rows_of_kinds,
)
from amp_rules.plan.made_of_data import is_made_of_data
from amp_rules.plan.options import HALVED, Options
from amp_rules.plan.places_elsewhere import MADE, MadePlaces, products_elsewhere
from amp_rules.plan.poses import moves_points
from amp_rules.plan.precision import Precision
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.spans import Span
from amp_rules.source.text import SourceError
from amp_rules.torch.half_precision import DECOMPOSITIONS

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
    "rest",
    "encoded",
    "sum",
    "index",
    "exact",
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
coefficients: the script asks for float32, or differences of neighbours are taken. ``rest`` is a local mean that is
subtracted from the tensor itself, as in a pyramid; ``encoded`` is a number that a model is given, of which a layer
makes the argument of a sine. A ``sum`` is none of layers: of all elements, or of the rows of each kind. An ``index`` is
made a whole number. An ``exact`` operand is neither a weight nor made by a layer, and float32 as it is."""
_WEAK: frozenset[Need] = frozenset({"itself", "gram", "loss", "data", "exact"})
"""Those that say less than the others do of the same product."""

_CERTAIN: HalfPlace[Need] = HalfPlace("place", True, frozenset())
_CHOOSING = ARITHMETIC | frozenset({"max", "min", "amax", "amin", "mean", "result", "element", "diagonal", "diag"})
"""Operations between a product and the loss that keep its type."""
_OF_KERNELS = MADE | frozenset({"exp", "norm", "vector_norm", "pow", "square", "sqrt"})
"""What makes a matrix of kernels, which is solved for: ``torch.exp(-torch.norm(weights * (x - y), dim=1))``."""
_SPECTRA = frozenset({"stft", "rfft", "fft"})
_LOGARITHMS = frozenset({"log", "log2", "log10"})
_LIMITING = SHAPING | frozenset({"clamp", "clamp_min", "maximum", "max", "where", "getitem", "result", "mul", "div"})
"""What people do with a spectrum before its logarithm: they keep it from zero, and scale it."""
_POWERS = SHAPING | frozenset(
    "abs pow square sqrt add clamp clamp_min sum view_as_real real imag getitem result magnitude slice join".split()
)
"""What makes magnitudes and powers of a spectrum's complex numbers."""
_SOFTMAX = frozenset({"softmax", "log_softmax", "logsumexp", "cross_entropy", "nll_loss"})
_SCORES = SHAPING | frozenset({"add", "sub", "mul", "div", "masked_fill", "where", "neg", "clamp", "dropout"})
_ADDING = frozenset({"addmm", "baddbmm"})
_SUMS = ("sum", "mean", "norm", "vector_norm")
_PADDING = SHAPING | {"pad"}
_MOVING = SHAPING | frozenset({"add", "sub", "getitem"})
"""What moves places besides a product, or takes some of them."""
_MEANS = frozenset({"mean", "sum"})
_SCALING_BY_HAND = SHAPING | {"div", "mul"}
_TO_INTEGERS = frozenset({"long", "int", "to"})
_ROUNDING = frozenset({"floor", "ceil", "round", "trunc"})
_COUNTED = frozenset({"arange", "linspace", "meshgrid"})
_OF_GRIDS = ARITHMETIC | frozenset({"buffer", "attr", "result", "element"})
_CONVOLUTIONS = frozenset({"conv1d", "conv2d", "conv3d"})
_MULTIPLYING = SHAPING | frozenset({"mul", "pow", "square"})


def exact_products(program: Program, precision: Precision, options: Options) -> Iterator[tuple[Site, Need]]:
    """Yield the products that need FP32, each with the reason."""
    places = HalfPlaces(program, precision, inputs=options.opt_level in HALVED)
    judged: dict[Module, _Products] = {}
    found = list(_found(program, precision, places, judged))
    known = {site.node for site, _, _ in found}
    tables: list[tuple[Site, Need]] = [
        (site, why) for site, why in in_tables(program, places) if site.node not in known
    ]
    sites = [*(site for site, _, _ in found), *(site for site, _ in tables)]
    exact = {(site.module, site.module.span(site.node)) for site in sites}
    for site, need, lowered in found:
        # What is made of exact products alone is exact itself.
        if not lowered or any((site.module, place) not in exact for place in lowered):
            yield site, need
    yield from tables
    known_places = [(module, check.places) for module, check in judged.items()]
    elsewhere = products_elsewhere(program, known_places, lambda module: _judged(module, judged).places)
    for site, _ in places.places(lambda module: dict.fromkeys(elsewhere.get(module, ()), _CERTAIN)):
        place = site.module.span(site.node)
        if (site.module, place) not in exact:
            exact.add((site.module, place))
            yield site, "place"
    given = GivenTransforms(program, lambda info: _gives_transform(info, judged))
    for site in places.sites:
        low = judged[site.module].low if site.module in judged else set()
        if not low or not isinstance(site.node, (ast.Call, ast.BinOp)):
            continue
        place = site.module.span(site.node)
        if place in low and (site.module, place) not in exact and given.are_multiplied(site):
            exact.add((site.module, place))
            yield site, "place"


def _gives_transform(info: FunctionFacts, judged: dict[Module, _Products]) -> bool:
    """Whether a function gives a matrix back that turns or moves places, as far as its own text tells."""
    module = info.module.module
    return module.span(info.node) in _judged(module, judged).giving


def _found(
    program: Program, precision: Precision, places: HalfPlaces, judged: dict[Module, _Products]
) -> Iterator[tuple[Site, Need, frozenset[Span]]]:
    of_places = geometry.beside_models(program, precision.runs)
    for site, item in places.places(lambda module: _judged(module, judged).needed):
        need = item.what
        if need in _WEAK and site.body in of_places and is_of_tensors(program, site):
            yield site, "place", item.lowered
            continue
        if need == "data" and _is_of_inputs(places, judged[site.module], site):
            yield site, "exact", item.lowered
            continue
        if need == "rest" and not _is_function(program, site):
            continue  # a layer learns what it is subtracted from
        # What a model computes it may lose digits of; its output, of which a loss is made, is float32.
        if need in ("loss", "data") and not places.is_of_loss(site):
            continue
        if need != "data" or (is_of_tensors(program, site) and is_made_of_data(program, site)):
            yield site, need, item.lowered


def _is_of_inputs(places: HalfPlaces, check: _Products, site: Site) -> bool:
    """Whether an operand is made of what no region computed, and the product is not what a softmax is taken of."""
    place = site.module.span(site.node)
    given = check.of_inputs.get(place, ())
    return not check.is_of_scores(place, "exact") and any(places.are_given(site, raw) for raw in given)


def _is_function(program: Program, site: Site) -> bool:
    """Whether a call is of a function of torch, and not of a layer."""
    return isinstance(site.node, ast.Call) and bool(program.callee_names(site.node, site.scope))


def _judged(module: Module, judged: dict[Module, _Products]) -> _Products:
    """What the linter's analysis finds in one file."""
    if module not in judged:
        check = _Products(module)
        try:
            Linter(Mode("O1", "bf16"), [check], in_regions=True).lint(module.source)
            check.add_lowered()
        except (SourceError, RecursionError):
            check = _Products(module)
        judged[module] = check
    return judged[module]


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
        "grid_sample(",
        "sum(",
        "mean(",
        "backward(",
        re.compile(r"\bconv[123]d\("),
        re.compile(r"\blog(2|10)?\("),
        re.compile(r"\.(long|int|int64|int32)\b"),
        re.compile(r"\b(sin|cos|r?sqrt)\("),
    )
    operations = (
        *sorted(MATRIX_PRODUCTS | DECOMPOSITIONS | _SOFTMAX | _LOGARITHMS),
        *(
            "sin",
            "cos",
            "acos",
            "asin",
            "sqrt",
            "rsqrt",
            "long",
            "int",
            "to",
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
        self.low: set[Span | None] = set()
        """The half products, needed or not."""
        self.giving: set[Span] = set()
        """The functions that give a transform back."""
        self.places = MadePlaces()
        """What of the places that images are sampled at is made by functions of other files."""
        self.of_inputs: dict[Span, list[frozenset[Span]]] = {}
        """The products with what a function is given, each with the parameters that an operand is made of."""
        self.scores: set[Span] = set()
        self._over_pixels: set[Span] = set()
        """The products of a matrix with itself that sum over all places of an image or a sequence."""
        self._module = module
        self._run: dict[int, tuple[Value, Frame]] = {}
        """The half products of each run of a function, by identity."""
        self._whole: set[int] = set()
        """Those that a matrix of a decomposition was multiplied in, by identity."""
        self._of_gram: dict[int, Span | None] = {}
        """The products of a matrix with itself, and those of them, by identity, each with the first one's place."""
        self._grams: dict[Span, Span | None] = {}
        """Where these stand, each with the first one's place."""
        self._by_element: dict[Span, tuple[Value, Frame]] = {}
        """What is found and no product of matrices, by its place."""

    @property
    def needed(self) -> dict[Span, HalfPlace[Need]]:
        """The places of the products that need FP32, with the reasons and whether they are half for certain."""
        return {place: item for place, item in self.found.items() if not self.is_of_scores(place, item.what)}

    def visit(self, op: Value, frame: Frame) -> None:
        """Look at one operation."""
        if not op.args or not frame.mode.autocast:
            return
        if op.op in MATRIX_PRODUCTS:
            self._product(op, frame)
        elif op.op in _SOFTMAX:
            places = [self._place(item, frame) for item in products_behind(op.args[0], _SCORES)]
            self.scores.update(filter(None, places))
        elif op.op in _LOGARITHMS:
            self._logarithm(op, frame)
        elif op.op in ("sin", "cos"):
            self._need("angle", products_behind(op.args[0], MADE), frame)
            self._encoded(op.args[0], frame)
        elif op.op in ("acos", "asin", "sqrt", "rsqrt"):
            self._cosine(op, frame)
        elif op.op == "grid_sample":
            grid = op.arg(1, "grid")
            self._need("place", products_behind(grid, MADE, deeper=True) if grid is not None else (), frame)
            if grid is not None:
                self.places.sample(grid, partial(self._place, frame=frame))
        elif op.op == "affine_grid":
            self._need("place", products_behind(op.args[0], MADE, deeper=True), frame)
            if op.args[0].low and op.node is not None:
                self._note("theta", op, frame)
        elif op.op in _TO_INTEGERS:
            if op.dtypes == INT:
                self._need("index", products_behind(op.args[0], MADE | _ROUNDING), frame)
                self._need("index", _scaled_places(op.args[0]), frame)
        elif is_decomposition(op):
            self._need("matrix", products_behind(op.args[0], _OF_KERNELS, deeper=True), frame)
        elif op.op in ("div", "reciprocal"):
            self._need("divisor", products_behind(op.args[-1], GUARDING), frame)
            self._areas(op, frame)
        elif op.op in ("add", "sub"):
            self._distance(op, frame)
        elif op.op in _SUMS:
            self._need("square", squares_behind(op.args[0]), frame)
            if op.op == "mean" and op.low:
                self._need("loss", products_behind(op.args[0], _CHOOSING), frame)
        elif op.op == "backward":
            self._need("loss", products_behind(op.args[0], _CHOOSING), frame)

    def visit_function(self, function: FunctionFacts | None, frame: Frame) -> None:
        """Look at what a function gives back: a transform, or a logarithm that a helper of it may have taken unseen."""
        if function is not None and function.module.module.path == self._module.path:
            self.places.give(self._module.span(function.node), frame.returned, partial(self._place, frame=frame))
            if frame.returned and all(item.tensor and is_transform(item) for item in frame.returned):
                self.giving.add(self._module.span(function.node))
        for returned in frame.returned:
            value = returned.through(SHAPING | {"result"})
            if value.op in _LOGARITHMS and value.args and frame.mode.autocast:
                self._logarithm(value, frame)

    def is_of_scores(self, place: Span, need: Need) -> bool:
        """Whether a product of a matrix with itself, or one of that, is what a softmax is taken of.

        Attention over channels sums as many squares as an image has pixels, so its scores keep their digits.
        """
        if need == "itself" and place in self._over_pixels:
            return False
        return need in ("itself", "gram", "exact") and bool({place, self._grams.get(place)} & self.scores)

    def _product(self, op: Value, frame: Frame) -> None:
        if not op.low or any(item.dtypes == F64 for item in operands(op)):
            return  # autocast leaves float64 as it is
        self.low.add(self._place(op, frame))
        if op.op in _ADDING and any(is_sum_of_squares(item) for _, item in terms(op.args[0])):
            self._note("distance", op, frame)
        tensors = [item for item in operands(op) if item.tensor]
        given = [item.through(SHAPING) for item in tensors]
        if op.op == "einsum" and is_sum_by_element(op):
            self._note("sum", op, frame)
            return
        if len(given) != 2:
            return
        self._run[id(op)] = op, frame
        # What the author converted to half is not needed exactly.
        exact = [item for item, whole in zip(given, tensors, strict=True) if not whole.low]
        kept = [item for item in self._in_this_run(tensors, frame) if id(item) in self._whole]
        if kept or any(map(is_made_of_decomposition, exact)):
            self._keep_whole(op, frame)
        elif any(map(is_transform, tensors)) or any(map(_is_of_places, tensors)):
            # What a transform moves are places, which another moved before: ``second @ (first @ places)``.
            moved = self._in_this_run(tensors, frame, _MOVING) if any(map(is_transform, tensors)) else []
            self._need("place", [op, *moved], frame)
        elif moves_points(tensors[0], tensors[1], frame.module):
            self._note("place", op, frame)
        elif op.op in ("matmul", "mm") and sums_rows_of_kinds(*tensors[:2]):
            self._note("sum", op, frame)
        elif any(any(made_by(item, _SPECTRA, _POWERS)) for item in exact):
            self._note("spectrum", op, frame)
        elif same(given[0], given[1]) and not any(map(is_normalised, given)):
            self._of_gram[id(op)] = place = self._place(op, frame)
            if place is not None and has_flat_rows(tensors[0]):
                self._over_pixels.add(place)
            self._note("itself", op, frame)
        elif squares := [part for item in tensors for part in products_with_itself(item, given)]:
            self._need("orthogonal", [*squares, op], frame)
        elif is_scaled(given[0], given[1]) or is_scaled(given[1], given[0]):
            self._note("scaled", op, frame)
        elif grams := [item for item in self._in_this_run(tensors, frame) if id(item) in self._of_gram]:
            self._of_gram[id(op)] = self._of_gram[id(grams[0])]
            if (place := self._place(op, frame)) is not None:
                self._grams[place] = self._of_gram[id(op)]
            self._note("gram", op, frame)
        elif self._place(op, frame) not in self.found:
            self._note("data", op, frame)  # what else is needed of it comes later, and says more
            self._of_exact(op, tensors, frame)

    def _of_exact(self, op: Value, tensors: list[Value], frame: Frame) -> None:
        """``torch.exp(rates) @ state``: what no layer made half, and no weight, keeps its digits in a product, too."""
        if any(map(is_of_weights, tensors)):
            return
        if any(any(exact_parts(item)) for item in tensors):
            self._note("exact", op, frame)
        elif (place := self._place(op, frame)) is not None:
            self.of_inputs[place] = [raw for item in tensors if (raw := raw_parameters(item, frame.module))]

    def _keep_whole(self, op: Value, frame: Frame) -> None:
        """``a @ b @ inverse``: what is rounded before or after is multiplied by what is large in the inverse."""
        self._whole.add(id(op))
        self._need("matrix", [*self._in_this_run(operands(op), frame, deeper=True), op], frame)

    def _in_this_run(
        self, tensors: Iterable[Value], frame: Frame, through: frozenset[str] = ARITHMETIC, *, deeper: bool = False
    ) -> list[Value]:
        """The products of the same run of a function that some tensors are made of, by some operations."""
        found = [item for tensor in tensors for item in products_behind(tensor, through, deeper=deeper)]
        return [item for item in found if id(item) in self._run and self._run[id(item)][1] is frame]

    def _distance(self, op: Value, frame: Frame) -> None:
        """``a ** 2 + b ** 2 - 2 * a @ b``, in one sum or in several steps."""
        parts = list(terms(op))
        products = [item for sign, item in parts if item.low and item.op in MATRIX_PRODUCTS and is_doubled(sign, item)]
        if any(is_sum_of_squares(item) for _, item in parts):
            self._need("distance", products, frame)
        else:
            squares = [square for _, item in parts if (square := squared(item.through(SHAPING))) is not None]
            beside = [item for item in products if is_of_coordinates(item, squares)]
            beside += [item for item in products if self._stands_beside_squares(item, frame)]
            self._need("distance", beside, frame)
        if op.op == "sub":
            self._variance(op, frame)

    def _stands_beside_squares(self, product: Value, frame: Frame) -> bool:
        """Whether a function multiplies an operand by itself, too: the squares are the diagonal of that."""
        given = factors_of(product)
        squares = [factors_of(other) for other, where in self._run.values() if where is frame and other is not product]
        return any(
            len(pair) == 2 and same(pair[0], pair[1]) and any(same(pair[0], item) for item in given) for pair in squares
        )

    def _variance(self, op: Value, frame: Frame) -> None:
        """``conv(a * b) - conv(a) * conv(b)``: what is left of a local mean of products, as SSIM compares images by."""
        mean, taken = (item.through(SHAPING) for item in op.args[:2]) if len(op.args) == 2 else (None, None)
        if mean is None or taken is None:
            return
        if squared(taken) is not None:
            self._of_moments(mean, taken, frame)
        if taken.op in _CONVOLUTIONS and taken.low and taken.args and same(mean, taken.args[0].through(_PADDING)):
            self._need("rest", [taken], frame)
        if mean.op not in _CONVOLUTIONS or not mean.args:
            return
        factors_of_mean = mean.args[0].through(SHAPING)
        if factors_of_mean.op not in ("mul", "pow", "square"):
            return
        means = [item for item in made_by(taken, _CONVOLUTIONS, _MULTIPLYING) if item.low]
        if means and mean.low:
            self._need("variance", [mean, *means], frame)

    def _of_moments(self, mean: Value, taken: Value, frame: Frame) -> None:
        """``(x * x).mean() - x.mean() ** 2``, the sums of both divided by hand or not."""
        means = list(made_by(mean, _MEANS, _SCALING_BY_HAND))
        taken_means = list(made_by(taken, _MEANS, _SCALING_BY_HAND | _MULTIPLYING))
        if taken_means and any(any(has_square(item.args[0])) for item in means if item.args):
            for item in means:
                self._need("variance", squares_behind(item.args[0]), frame)
            self._need("variance", (item for item in (*means, *taken_means) if item.low), frame)

    def _logarithm(self, op: Value, frame: Frame) -> None:
        """``log(clamp(filters @ spectrum))``: below 6e-5 fp16 loses digits, and 1 / x of small x overflows backward."""
        for sign, item in terms(op.args[0].through(SHAPING)):
            if sign > 0:
                self._need("logarithm", products_behind(item, _LIMITING), frame)

    def _encoded(self, angle: Value, frame: Frame) -> None:
        """``sin(layer(time))``: of a time or a place, and not of features, a layer makes an angle of many turns."""
        for layer in made_by(angle, frozenset({"linear"}), ARITHMETIC):
            place = self._place(layer, frame)
            raw = raw_parameters(layer.args[0], frame.module) if layer.args else frozenset()
            if layer.low and place is not None and raw:
                self.found.setdefault(place, HalfPlace("encoded", True, frozenset(), raw))

    def _cosine(self, op: Value, frame: Frame) -> None:
        """``acos(cosine)``, ``sqrt(1 - cosine ** 2)``: near one, a small change of it is a large one of the angle."""
        given = op.args[0].through(GUARDING - {"add"})
        if op.op in ("acos", "asin"):
            self._need("cosine", cosines_behind(given), frame)
            return
        parts = list(terms(given))
        for sign, item in parts:
            if sign > 0:
                self._need("square", squares_behind(item), frame)
        if any(sign == 1.0 and item.number == 1.0 for sign, item in parts):
            for sign, item in parts:
                cosine = squared(item) if sign == -1.0 else None
                if cosine is not None:
                    self._need("cosine", cosines_behind(cosine), frame)

    def _areas(self, op: Value, frame: Frame) -> None:
        """``overlap / (area + area - overlap)``: the sides of boxes are some hundreds of pixels long."""
        parts = list(terms(op.args[-1])) if len(op.args) == 2 else []
        overlap = op.args[0].through(SHAPING)
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
        if known is None or known.what in ("data", "exact") or need not in _WEAK:
            is_certain = op.op in MATRIX_PRODUCTS | _CONVOLUTIONS or made_by_product(op)
            self.found[place] = HalfPlace(need, is_certain, parameters_of(op, frame.module))
            if op.op not in MATRIX_PRODUCTS | _CONVOLUTIONS:
                self._by_element[place] = op, frame

    def add_lowered(self) -> None:
        """Say of what autocast leaves as it is which operations make it half."""
        for place, (op, frame) in self._by_element.items():
            found = [self._place(item, frame) for item in lowered_by(op, partial(self._is_found, frame))]
            if None not in found:
                lowered = frozenset(item for item in found if item is not None)
                self.found[place] = replace(self.found[place], lowered=lowered)

    def _is_found(self, frame: Frame, op: Value) -> bool:
        return op.op == "mul" and self._place(op, frame) in self._by_element

    def _place(self, op: Value, frame: Frame) -> Span | None:
        """Where an operation stands, if that is in the file that is judged."""
        around: Frame | None = frame
        while around is not None:
            module = around.module
            if op.node is not None and module.module.path == self._module.path and module.holds(op.node):
                return self._module.span(op.node)
            around = around.caller
        return None


def _is_of_places(value: Value) -> bool:
    """Whether a matrix holds counted places, as a grid of pixels does, and no angle or weight is made of them."""
    return bool(value.bits & POSITION) and any(made_by(value, _COUNTED, _OF_GRIDS))


def _scaled_places(value: Value) -> Iterator[Value]:
    """Yield ``y * width`` of ``(y * width + x).long()``, beyond 2048 of which fp16 has every second number at most."""
    for total in made_by(value, frozenset({"add"}), SHAPING | _ROUNDING):
        for item in made_by(total, frozenset({"mul"}), frozenset({"add"}) | SHAPING):
            if item.low and isinstance(item.node, ast.BinOp):
                yield item
