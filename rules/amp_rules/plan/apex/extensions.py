"""Compiled modules of Apex that a program loads by themselves, and the runtime has not: ``fused_adam_cuda``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan import notes
from amp_rules.plan.apex.stages import is_part_of_apex
from amp_rules.plan.report import Note
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.index import ends_process
from amp_rules.source.modules import Module
from amp_rules.source.resolver import names_of
from amp_rules.source.syntax import walk
from amp_rules.torch import apex as api

_LOADERS = frozenset({"importlib.import_module", "__import__"})


def extension_notes(program: Program) -> Iterator[Note]:
    """Yield a note on the first place of each file that loads an extension and cannot go on without it."""
    for module in program.flow.modules:
        if is_part_of_apex(program, module):
            continue  # a copy of Apex in the project, which nothing imports any more
        told: set[str] = set()
        for node, name in _loads(module):
            if name in told or program.project.find(module, name) is not None or _goes_on(module, node):
                continue
            told.add(name)
            yield notes.note(notes.APEX_KEPT, module, node, _text(name))


def _text(name: str) -> str:
    text = (
        f"`{name}` is compiled by Apex's build, and the runtime does not have it: code that loads it still needs Apex"
    )
    instead = api.COMPILED_ALONE[name]
    return f"{text}; `amp_runtime.{instead}` does without" if instead else text


def _loads(module: Module) -> Iterator[tuple[ast.stmt | ast.Call, str]]:
    """What loads an extension, with its name, in the order of the file."""
    if not any(name in module.source.text for name in api.COMPILED_ALONE):
        return
    for node in module.nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module] if node.module and not node.level else []
        elif isinstance(node, ast.Call) and node.args and names_of(module).dotted(node.func) in _LOADERS:
            given = node.args[0]
            names = [given.value] if isinstance(given, ast.Constant) and isinstance(given.value, str) else []
        else:
            continue
        yield from ((node, name) for name in names if name in api.COMPILED_ALONE)


def _goes_on(module: Module, node: ast.AST) -> bool:
    """Whether a handler around it goes on where the extension is not there."""
    for parent in blocks.enclosing(module, node):
        if isinstance(parent, ast.Try) and parent.handlers and any(node in set(walk(item)) for item in parent.body):
            return not any(_ends(part) for handler in parent.handlers for part in walk(handler))
    return False


def _ends(part: ast.AST) -> bool:
    return isinstance(part, ast.Raise) or (isinstance(part, ast.Call) and ends_process(part))
