"""Scripts that put all batch norm into evaluation mode wherever they train: it takes no statistics of a batch then."""

from __future__ import annotations

import ast

from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts

_NORM = "BatchNorm"


def are_frozen(program: Program) -> bool:
    """Whether a function that puts each batch norm into evaluation mode runs, whatever the options are.

    ``model.freeze_bn()``, ``model.apply(freeze)``, or the model's own ``train``.
    """
    return any(
        _evaluates_norms(info) and (info.name == "train" or _always_runs(program, info))
        for info in program.flow.functions.values()
    )


def _evaluates_norms(info: FunctionFacts) -> bool:
    """``for m in self.modules(): if isinstance(m, nn.BatchNorm2d): m.eval()``."""
    for node in info.nodes:
        if not isinstance(node, ast.If) or _NORM not in (asked := ast.unparse(node.test)):
            continue
        for item in node.body:
            call = item.value if isinstance(item, ast.Expr) else None
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "eval":
                of = blocks.path_of(call.func.value)
                return of is not None and (of in asked or "__name__" in ast.unparse(info.node))
    return False


def _always_runs(program: Program, info: FunctionFacts) -> bool:
    sites = [calling(item) for item in program.flow.callers(info)]
    for call, body, scope in program.calls():
        if isinstance(call.func, ast.Attribute) and call.func.attr == "apply":
            if any(isinstance(item, ast.Name) and item.id == info.name for item in call.args):
                sites.append(Site(scope.module, scope, body, call))
    return any(
        not any(isinstance(parent, ast.If) for parent in blocks.enclosing(site.module, site.node)) for site in sites
    )
