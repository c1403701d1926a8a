"""What has no counterpart in a current PyTorch, and what changed its meaning: told, and left."""

from __future__ import annotations

import ast

from amp_rules.plan import declining
from amp_rules.plan.old_torch.old import OldProgram
from amp_rules.roles.kinds import is_scheduler
from amp_rules.source import blocks
from amp_rules.source.index import keyword
from amp_rules.source.modules import Module
from amp_rules.source.resolver import imported
from amp_rules.torch import old_torch as old_names
from amp_rules.torch.distributed import SPAWNS

_RULE = declining.OLD_PLACE


def report(old: OldProgram) -> None:
    """Notes every such place."""
    _uses(old)
    _imports(old)
    _functions(old)
    _schedulers(old)
    _scattered(old)
    _classes_as_modules(old)
    _started_without_tuple(old)


def _uses(old: OldProgram) -> None:
    for use in old.uses:
        found = _gone(use.target)
        if found is not None and use.target not in old_names.REWRITTEN:
            what, recipe = found
            old.refuse(_RULE, use.module, use.node, f"`{use.target}` {what}", recipe)


def _gone(target: str) -> tuple[str, str] | None:
    name = target
    while name:
        if name in old_names.GONE:
            return old_names.GONE[name]
        name = name.rpartition(".")[0]
    return None


def _imports(old: OldProgram) -> None:
    """Modules that are gone, imported without being used."""
    told = {(item.path, item.span.start.line) for _, item in old.left if item.span is not None}
    for module in old.modules:
        for statement in old.tensors.names[module].import_statements:
            for alias in statement.names:
                base = statement.module if isinstance(statement, ast.ImportFrom) and not statement.level else None
                target = imported(statement, alias) if alias.name != "*" else base
                whole = alias.name if isinstance(statement, ast.Import) else target
                found = _gone(whole or "")
                if found is not None and (module.path, statement.lineno) not in told:
                    told.add((module.path, statement.lineno))
                    old.refuse(_RULE, module, statement, f"`{whole}` {found[0]}", found[1])


def _functions(old: OldProgram) -> None:
    """Functions with a gradient of their own whose ``forward`` is no static method: they cannot be called any more."""
    for use in old.uses_of("torch.autograd.Function", "torch.autograd.function.Function"):
        node = use.parent
        if not isinstance(node, ast.ClassDef) or use.node not in node.bases:
            continue
        for item in node.body:
            if isinstance(item, ast.FunctionDef) and item.name == "forward" and not item.decorator_list:
                called = _called(old, item)
                what = f"`{node.name}` has a `forward` that is no static method, which PyTorch no longer runs"
                recipe = "make forward and backward static methods with a context, and call them by apply()"
                if called is None:
                    old.leave(_RULE, use.module, item, what, recipe)
                else:
                    module, call = called
                    old.refuse(_RULE, module, call, f"{what}: `{module.text(call)}` raises RuntimeError", recipe)


def _called(old: OldProgram, forward: ast.FunctionDef) -> tuple[Module, ast.Call] | None:
    """Where a function is called as a whole, and not its ``forward`` by name."""
    info = old.program.function_of(forward)
    for caller in old.program.flow.callers(info) if info is not None else ():
        if not (isinstance(caller.call.func, ast.Attribute) and caller.call.func.attr == "forward"):
            return caller.scope.module, caller.call
    return None


def _schedulers(old: OldProgram) -> None:
    """``scheduler.step()`` at the head of an epoch: the first learning rate is skipped since PyTorch 1.1."""
    for module, node in old.nodes():
        if not isinstance(node, ast.Expr) or not _steps_scheduler(old, module, node.value):
            continue
        where = blocks.place(module, node)
        if not isinstance(where.parent, (ast.For, ast.While)):
            continue
        before, after = where.suite[: where.index], where.suite[where.index + 1 :]
        if any(map(old.program.runs_step, after)) and not any(map(old.program.runs_step, before)):
            old.leave(
                _RULE,
                module,
                node,
                f"`{module.text(node)}` stands before the optimizer's steps, so that the first learning rate is "
                "skipped since PyTorch 1.1",
                "if the schedule was made for an older PyTorch, move it to the end of the loop: the rates change",
            )


def _scattered(old: OldProgram) -> None:
    """``x.scatter_add(dim=1, index=places, source=values)``: the argument is called ``src``."""
    for module, node in old.nodes():
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        method = node.func.attr
        if method not in old_names.SCATTERING or all(item.arg != "source" for item in node.keywords):
            continue
        names = old.program.callee_names(node, old.tensors.names[module].scope_of(node))
        if old.program.flow.callees(node) or not names <= {f"torch.{method}"}:
            continue
        old.refuse(_RULE, module, node, f"`{method}` takes no `source`, and raises TypeError", "write `src=` there")


def _classes_as_modules(old: OldProgram) -> None:
    """``import torch.nn.parallel.DistributedDataParallel``: torch's modules have names in small letters."""
    for module in old.modules:
        for statement in old.tensors.names[module].import_statements:
            for alias in statement.names if isinstance(statement, ast.Import) else ():
                package, _, name = alias.name.rpartition(".")
                if package.startswith("torch.") and old_names.NAMED_AS_CLASS.match(name):
                    what = f"`import {alias.name}` imports a class as a module, and raises ModuleNotFoundError"
                    renamed = f" as {alias.asname}" if alias.asname else ""
                    old.refuse(_RULE, module, statement, what, f"write `from {package} import {name}{renamed}`")


def _started_without_tuple(old: OldProgram) -> None:
    """``mp.spawn(work, args=(args))``: what a parser gives is no tuple, and each process fails as it starts."""
    for site in old.program.calls_to(SPAWNS):
        call, module = site.node, site.module
        assert isinstance(call, ast.Call)
        given = keyword(call, "args")
        if given is None or module not in old.modules:
            continue
        refs = {value.ref for value in old.program.flow.values(given, site.scope)}
        if refs and refs <= old_names.PARSED_OPTIONS:
            text = module.text(given)
            what = f"`args=({text})` of `{module.text(call.func)}` is no tuple: the processes raise TypeError"
            old.refuse(_RULE, module, call, what, f"write `args=({text},)`")


def _steps_scheduler(old: OldProgram, module: Module, node: ast.expr) -> bool:
    if not isinstance(node, ast.Call) or node.args or node.keywords:
        return False
    if not isinstance(node.func, ast.Attribute) or node.func.attr != "step":
        return False
    scope = old.tensors.names[module].scope_of(node)
    values = old.program.flow.values(node.func.value, scope)
    return bool(values) and all(is_scheduler(value) and _is_of_torch(value.ref) for value in values)


def _is_of_torch(ref: object) -> bool:
    return isinstance(ref, str) and ref.startswith(old_names.SCHEDULERS)
