"""Switches of the command line that are off unless they are given, and that the program sets nowhere itself."""

from __future__ import annotations

import ast

from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.source.index import keyword, literal
from amp_rules.source.syntax import last_name


def off_unless_given(own: OwnDdp) -> dict[str, str]:
    """The options by the names that they have in the program."""
    found: dict[str, str] = {}
    stored: set[str] = set()
    for module in own.program.flow.modules:
        for node in module.nodes:
            if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
                stored.add(node.attr)
            if not isinstance(node, ast.Call):
                continue
            if last_name(node.func) == "set_defaults":
                stored |= {item.arg for item in node.keywords if item.arg is not None}
            options = [literal(item) for item in node.args] if last_name(node.func) == "add_argument" else []
            default = keyword(node, "default")
            if literal(keyword(node, "action")) == "store_true" and (default is None or literal(default) is False):
                for option in options:
                    if isinstance(option, str) and option.startswith("--"):
                        dest = literal(keyword(node, "dest"))
                        found[dest if isinstance(dest, str) else option[2:].replace("-", "_")] = option
    return {name: option for name, option in found.items() if name not in stored}
