"""How what a loop has filled is used behind it, as far as that matters for putting it together."""

from __future__ import annotations

import ast
import re

from amp_rules.plan.evaluation.assignments import Unclear
from amp_rules.plan.evaluation.body import Findings
from amp_rules.plan.evaluation.meters import Meter
from amp_rules.plan.training_loops import variable
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk


def check_uses(program: Program, site: Site, found: Findings) -> None:
    """Check that objects that average are asked behind the loop for what all processes have alike.

    Raises:
        Unclear: one is asked for what the last batch gave, or handed on.
    """
    inside = set(walk(site.node))
    for path, meter in found.meters.items():
        for node in program.nodes_of(site.body):
            if node in inside or not isinstance(node, (ast.Name, ast.Attribute)) or variable(node) != path:
                continue
            if not isinstance(node.ctx, ast.Load) or node.lineno <= site.line:
                continue
            if not _asks_for_all(site.module, node, path, meter):
                raise Unclear(node, f"it is not known what of `{path}` is used after the loop")


def _asks_for_all(module: Module, node: ast.Name | ast.Attribute, path: str, meter: Meter) -> bool:
    parent = module.parents[node]
    if isinstance(parent, ast.Attribute):
        return parent.attr in {*meter.shown, "reset", meter.method}
    if isinstance(parent, ast.FormattedValue):
        return False
    # ``"{top1.avg:.3f}".format(top1=top1)``
    call = module.parents[parent] if isinstance(parent, ast.keyword) else parent
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "format"):
        return False
    text = call.func.value
    if not isinstance(text, ast.Constant) or not isinstance(text.value, str):
        return False
    if isinstance(parent, ast.keyword):
        name = parent.arg or ""
    else:
        name = str(call.args.index(node)) if node in call.args else ""
    asked = re.findall(r"\{" + re.escape(name) + r"(?:\.(\w+))?", text.value)
    return bool(name) and bool(asked) and all(item in meter.shown for item in asked)
