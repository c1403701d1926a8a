"""Methods of a model that look at its first parameter, in the replicas of ``nn.DataParallel``: those have none."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.file_names import more_places
from amp_rules.plan.notes import REFUSED, note
from amp_rules.plan.report import Note
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.index import argument_at
from amp_rules.source.modules import Module
from amp_rules.source.syntax import own_name, walk
from amp_rules.torch.wrappers import DATA_PARALLEL


def notes(program: Program, later: Program) -> Iterator[Note]:
    """Yield one for the first ``next(self.parameters())`` of what a forward pass runs, in a model that is spread.

    Args:
        program: the program.
        later: what a migration of its processes made of it, which may have no such wrapper any more.
    """
    if not later.calls_to(DATA_PARALLEL):
        return
    spread = [
        (argument_at(site.node, "module", 0), site.scope)
        for site in program.calls_to(DATA_PARALLEL)
        if isinstance(site.node, ast.Call) and not _is_on_one(site.node)
    ]
    models = {value for given, scope in spread if given is not None for value in program.flow.values(given, scope)}
    if not models:
        return
    passes = [
        method.node
        for value in program.with_parts(models)
        if value.kind == "instance"
        for info in value.ref.mro()
        if (method := info.facts.methods.get("forward")) is not None
    ]
    bodies = {*passes, *program.called_from([node for item in passes for node in walk(item)])}
    found = [
        (scope.module, call)
        for call, body, scope in program.calls()
        if body in bodies and _looks_at_own(call) and not _is_tried(scope.module, call)
    ]
    if found:
        found.sort(key=lambda item: (str(item[0].path), item[0].start(item[1])))
        module, first = found[0]
        text = (
            f"`{module.text(first)}` raises StopIteration where `nn.DataParallel` runs the model on several GPUs: its "
            f"replicas list no parameters since PyTorch 1.5{more_places(program, found)}; ask a weight by its name, "
            "`self.layer.weight`"
        )
        yield note(REFUSED, module, first, text)


def _is_on_one(call: ast.Call) -> bool:
    """``DataParallel(model, device_ids=[0])``, which makes no replicas."""
    given = argument_at(call, "device_ids", 1)
    return isinstance(given, ast.List) and len(given.elts) == 1


def _looks_at_own(call: ast.Call) -> bool:
    """``next(self.parameters())``, also of a part."""
    given = call.args[0] if own_name(call.func) == "next" and len(call.args) == 1 else None
    if not (isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute) and given.func.attr == "parameters"):
        return False
    path = blocks.path_of(given.func.value)
    return path is not None and path.split(".")[0] == "self"


def _is_tried(module: Module, call: ast.Call) -> bool:
    return any(isinstance(item, ast.Try) for item in blocks.enclosing(module, call))
