"""Options that joining the processes reads, and that the parser of the command line does not have."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.program import Program
from amp_rules.source.modules import Module
from amp_rules.source.syntax import last_name

_PARSER = "argparse."
_FILLS = frozenset({"setattr", "set_defaults", "parse_known_args", "Namespace"})
"""Calls by which parsed arguments get what no option gives."""


def options_never_made(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first such read: ``init_process_group(init_method=args.dist_url)`` where nothing makes ``dist_url``."""
    if not own.joins or _is_filled_otherwise(own.program):
        return
    for site in own.joins:
        assert isinstance(site.node, ast.Call)
        for given in [*site.node.args, *(item.value for item in site.node.keywords)]:
            if not isinstance(given, ast.Attribute) or site.module not in own.modules:
                continue
            owners = own.program.flow.values(given.value, site.scope)
            if not owners or not all(value.is_result and str(value.ref).startswith(_PARSER) for value in owners):
                continue
            if not _is_named(own.program, given):
                text = site.module.text(given)
                what = f"no option of the parser is called `{given.attr}`, and nothing else sets it"
                yield site.module, given, f"`{text}` raises AttributeError in every process: {what}"
                return


def _is_named(program: Program, read: ast.Attribute) -> bool:
    """Whether anything in the program may make the option, by its name in any spelling."""
    for module in program.flow.modules:
        for node in module.nodes:
            if isinstance(node, ast.Attribute) and node.attr == read.attr and not isinstance(node.ctx, ast.Load):
                return True
            if isinstance(node, ast.keyword) and node.arg == read.attr:
                return True
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if node.value.lstrip("-").replace("-", "_") == read.attr:
                    return True
    return False


def _is_filled_otherwise(program: Program) -> bool:
    """Whether parsed arguments may get more than the options that are written out."""
    for call, _, scope in program.calls():
        name = last_name(call.func)
        if name in _FILLS or _updates_attributes(call) or any(item.arg == "parents" for item in call.keywords):
            return True
        if name == "add_argument" and not all(isinstance(item, ast.Constant) for item in call.args):
            return True
        if program.flow.callees(call):
            continue
        # A library that is given the parser may add options of its own.
        for item in call.args:
            if isinstance(item, ast.Name) and any(
                str(value.ref) == "argparse.ArgumentParser" for value in program.flow.values(item, scope)
            ):
                return True
    return any(
        isinstance(node, ast.Attribute) and node.attr == "__dict__" and not isinstance(node.ctx, ast.Load)
        for module in program.flow.modules
        for node in module.nodes
    )


def _updates_attributes(call: ast.Call) -> bool:
    """``vars(args).update(settings)``, ``args.__dict__.update(settings)``."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr == "update" else None
    if isinstance(owner, ast.Call):
        return last_name(owner.func) == "vars"
    return isinstance(owner, ast.Attribute) and owner.attr == "__dict__"
