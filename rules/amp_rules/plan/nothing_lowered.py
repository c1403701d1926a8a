"""Scripts of which autocast lowers nothing: all matrix products and convolutions stay in FP32, and no time is saved."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from amp_rules.checks.common.mixed_types import LAYERS, MATRIX_PRODUCTS
from amp_rules.flow.values import Value
from amp_rules.lattice.operation_names import KNOWN_OPERATIONS
from amp_rules.plan import double_precision
from amp_rules.plan.context import Context
from amp_rules.plan.notes import IN_FULL_PRECISION, note
from amp_rules.plan.report import Note
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.torch.models import CHAINS, is_layer_without_products

_LOWERED = MATRIX_PRODUCTS | LAYERS | {"multi_head_attention_forward", "scaled_dot_product_attention", "baddbmm"}
_IN_FLOAT32 = frozenset({"AMP107", "AMP113", "AMP115", "AMP116"})
"""Rewrites that take what they change out of half precision."""
_WITHOUT = ("torch.", "builtins.", "math.", "numpy.", "random.", "time.", "einops.", "tqdm.", "logging.")
"""Libraries of which all functions are known that autocast lowers."""
_OF_VALUES = frozenset(
    """
    item tolist numpy cpu cuda to size dim numel items keys values append update format join split get zero_grad train
    eval modules named_modules children parameters named_parameters fill zero copy requires_grad_ register_buffer
    rsample sample log_prob
    """.split()
)
"""Methods of values that are no operations of the linter's, and compute no product."""


def notes(context: Context) -> Iterator[Note]:
    """Yield one at the first backward pass, where all that regions hold is known and nothing of it is lowered."""
    program, precision = context.program, context.precision
    if context.options.opt_level != "O1" or precision.given or not precision.backwards:
        return
    if next(double_precision.places(program), None) is not None:
        return
    kept = frozenset(
        node for change in context.made if change.rule.code in _IN_FLOAT32 for node in _kept_by(change.node)
    )
    for site in precision.nodes(program):
        if site.node not in kept and _may_be_lowered(program, site, kept):
            return
    first = precision.backwards[0]
    text = (
        f"`{first.module.text(first.node)}`: no matrix product and no convolution on the way to it runs under "
        "autocast: at O1 this computes in full precision, and is no faster"
    )
    yield note(IN_FULL_PRECISION, first.module, first.node, text)


def _kept_by(node: ast.AST) -> Iterator[ast.AST]:
    """What does not run in half once a node is rewritten: of a call what is called, and not what it is given."""
    yield node
    if not isinstance(node, ast.BinOp):  # its operands are what a function of products is given
        yield from ast.walk(node.func if isinstance(node, ast.Call) else node)


def _may_be_lowered(program: Program, site: Site, kept: frozenset[ast.AST]) -> bool:
    """Whether a node is a product that autocast lowers, or something of which that is not known."""
    node, scope = site.node, site.scope
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.MatMult)
    if not isinstance(node, ast.Call):
        return False
    models = program.called_models(node, scope)
    if models:
        return _any_lowers(program, models, kept, frozenset())
    names = program.callee_names(node, scope)
    if names:
        return not all(map(_is_without, names))
    if program.found_by_name.callees(node):
        return False  # what it runs is among the nodes itself
    return not isinstance(node.func, ast.Attribute) or _may_lower(node.func)


def _may_lower(function: ast.Attribute) -> bool:
    """Whether a method of a value that is not known may be a product, or a part of a model."""
    if function.attr.removesuffix("_") in _LOWERED or function.attr in ("conv", "forward", "__call__"):
        return True
    names = {function.attr, function.attr.removesuffix("_")}  # ``x.fill_(0)`` computes what ``x.fill(0)`` would
    return names.isdisjoint(KNOWN_OPERATIONS) and names.isdisjoint(_OF_VALUES)


def _any_lowers(program: Program, models: Iterable[Value], kept: frozenset[ast.AST], seen: frozenset[Value]) -> bool:
    for value in models:
        if value in seen or value.site in kept:
            continue
        if value.kind == "instance":
            if value.ref.find_method("forward") is None:
                return True
            continue  # its forward pass is among the nodes
        name = value.name
        if value.kind == "sequence" or name in CHAINS:
            parts = program.flow.elements({value})
            if not parts or _any_lowers(program, parts, kept, seen | {value}):
                return True
        elif not isinstance(name, str) or not is_layer_without_products(name):  # what a method gives is not known
            return True
    return False


def _is_without(name: str) -> bool:
    """Whether a function is one that autocast does not lower."""
    return name.startswith(_WITHOUT) and name.rpartition(".")[2] not in _LOWERED
