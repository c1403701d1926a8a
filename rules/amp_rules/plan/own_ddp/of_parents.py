"""Loaders that the started processes never get: those of the process that starts them, and of classes nobody makes."""

from __future__ import annotations

import ast

from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.sites import Site
from amp_rules.roles.workers import training_workers
from amp_rules.source import blocks
from amp_rules.source.syntax import walk


def stays_with_parent(own: OwnDdp, site: Site) -> bool:
    """Whether only the process that starts the others makes a loader, trains with it, and gives it to none of them."""
    statement = site.statement
    if not isinstance(statement, ast.Assign) or statement.value is not site.node or not own.is_of_parent(site.body):
        return False
    names = {target.id for target in statement.targets if isinstance(target, ast.Name)}
    starts = {item.node for item, _ in training_workers(own.program)}
    reads = [
        node
        for node in walk(site.body)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names
    ]
    return len(names) == len(statement.targets) and all(_is_used_here(own, site, node, starts) for node in reads)


def _is_used_here(own: OwnDdp, site: Site, node: ast.Name, starts: set[ast.AST]) -> bool:
    """Whether a read iterates a loader, counts its batches, or gives it to a function that starts no process."""
    parent = site.module.parents[node]
    if isinstance(parent, ast.For):
        return parent.iter is node
    if not isinstance(parent, ast.Call) or node not in parent.args or parent in starts:
        return False
    if own.program.callee_names(parent, site.scope) & {"builtins.len", "len"}:
        return True
    callees = own.program.flow.callees(parent)
    return bool(callees) and not any(info.name == "__init__" for info in callees)


def is_for_class_never_made(own: OwnDdp, site: Site) -> bool:
    """Whether a place stands under ``isinstance(trainer, Other)``, of whose class nothing in the program makes one."""
    inner: ast.AST = site.node
    for parent in blocks.enclosing(site.module, site.node):
        if isinstance(parent, ast.If) and any(inner is item or inner in set(walk(item)) for item in parent.body):
            if _asks_for_class_never_made(own, site, parent.test):
                return True
        inner = parent
    return False


def _asks_for_class_never_made(own: OwnDdp, site: Site, test: ast.expr) -> bool:
    if not isinstance(test, ast.Call) or len(test.args) != 2:
        return False
    if not own.program.callee_names(test, site.scope) & {"builtins.isinstance", "isinstance"}:
        return False
    kinds = own.program.flow.values(test.args[1], site.scope)
    if not kinds or any(value.kind != "class" for value in kinds):
        return False
    classes = {info for value in kinds for info in (value.ref, *value.ref.derived())}
    made = [info.facts.methods.get("__init__") for info in classes]
    return all(method is not None and not own.program.flow.callers(method) for method in made)
