"""Where the training step certainly computes in half: within its models, and with what a product of matrices made.

What losses and the script compute of the outputs of prepared models is FP32, which their text does not tell.
"""

from __future__ import annotations

import ast
from functools import cached_property

from amp_rules.checks.common.mixed_types import LAYERS, MATRIX_PRODUCTS
from amp_rules.lattice.abstract_values import IN_A_FUNCTION, Value
from amp_rules.plan.precision import Precision
from amp_rules.roles.in_regions import nodes_in
from amp_rules.roles.steps import Program, Site


def made_by_product(value: Value) -> bool:
    """Whether a tensor is half because it is made of what autocast lowered in the same function."""
    return value.low and any(item.low and item.op in MATRIX_PRODUCTS | LAYERS for item in value.behind(IN_A_FUNCTION))


class HalfPlaces:
    """The functions that run within a model's forward pass.

    Args:
        program: the program.
        precision: what is planned for it.
        outputs: whether what is computed of the outputs of models counts too: in plain PyTorch nothing casts them.
    """

    def __init__(self, program: Program, precision: Precision, *, outputs: bool = False) -> None:
        self._program, self._precision = program, precision
        self._outputs = outputs

    def holds(self, site: Site) -> bool:
        """Whether what a place computes with may be half for no other reason than autocast in a model."""
        return self._outputs or site.body in self._bodies

    @cached_property
    def _bodies(self) -> set[ast.AST]:
        sites = nodes_in(self._program, self._precision.runs, self._precision.full_precision)
        calls = [site.node for site in sites if isinstance(site.node, ast.Call) and self._runs_trained(site)]
        return self._program.called_from(calls)

    def _runs_trained(self, site: Site) -> bool:
        """Whether a call is of a model that is trained, or of one of its methods."""
        call = site.node
        assert isinstance(call, ast.Call)
        called = set(self._program.called_models(call, site.scope))
        if isinstance(call.func, ast.Attribute):
            called |= self._program.roles.modules(call.func.value, site.scope)
        return any(map(self._program.is_trained, called))
