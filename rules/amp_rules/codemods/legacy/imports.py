"""Import what is left of Apex from where it lives now.

## What it does
Takes the imports of Apex out, with a condition around them when nothing else is in there. `import amp_runtime as amp`
stands where `amp` was imported. Layers and kernels, which know no loss scale, come from PyTorch (`LayerNorm`) or from
the runtime's drop-in (`amp_runtime.apex`).

## Why
`from apex import amp` raises ImportError: the package has removed it.

## Before
    from apex import amp
    from apex.normalization import FusedLayerNorm

## After
    import amp_runtime as amp
    from torch.nn import LayerNorm as FusedLayerNorm

## When it declines
When something of `apex.amp`, `apex.parallel` or `apex.fp16_utils` is left that the other rewrites did not know.

## Leaving it out
No: the import fails.

## Source
https://github.com/NVIDIA/apex/releases
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.context import Change, imported_runtime
from amp_rules.legacy.conditions import emptied
from amp_rules.legacy.file import RUNTIME, LegacyFile, dropin
from amp_rules.legacy.references import Binding, imported, is_apex, root_of
from amp_rules.program.head import import_place
from amp_rules.program.syntax import walk
from amp_rules.rewrite import Action, Insert, Remove, Replace, Unwrap, substitute
from amp_rules.rule import Rule
from amp_rules.tables import apex_api as api

RULE = Rule("AMP408", "apex-imports", "Nothing is imported from Apex.", "precision")

_MOVED = {
    "apex.parallel.DistributedDataParallel": ("torch.nn.parallel", "DistributedDataParallel"),
    "apex.normalization.FusedLayerNorm": ("torch.nn", "LayerNorm"),
    "apex.contrib.clip_grad.clip_grad_norm_": ("torch.nn.utils", "clip_grad_norm_"),
    "apex.fp16_utils.clip_grad_norm": ("torch.nn.utils", "clip_grad_norm_"),
}


def changes(file: LegacyFile) -> Iterator[Change]:
    """Yield an edit for each import, and for what is still called by its path."""
    references = file.references
    unknown = [node for node in references.stars if node.module not in api.EXPORTS]
    if unknown:
        raise file.not_understood(unknown[0], "what `import *` brings is not known")
    left: set[tuple[str, int]] = set()
    for use in references.uses:
        if use.target not in _MOVED and not (api.is_standalone(use.target) and api.has_dropin(use.target)):
            raise file.not_understood(use.node, f"`{file.module.text(use.node)}` has no counterpart in the idiom")
        if isinstance(use.node, ast.Attribute) and use.target in _MOVED and _imports_torch(file):
            code = ".".join(_MOVED[use.target])
            yield Change(RULE, file.module, use.node, "PyTorch has it", [Replace(use.node, substitute(code))])
        else:
            left |= {(item.name, id(item.statement)) for item in _bindings(file, use.node)}
    placed = imported_runtime(file.module) is not None or not _names_runtime(file)
    for statement in [*references.statements, *references.stars]:
        lines = [line for alias in _names(file, statement) for line in _line(statement, alias, left)]
        others = [alias for alias in statement.names if not is_apex(imported(statement, alias)) and alias.name != "*"]
        if others:
            lines.append(f"import {', '.join(ast.unparse(item) for item in others)}")
        if not placed and references.is_plain(statement):
            lines.insert(0, f"import {RUNTIME} as {file.amp}")
            placed = True
        where = statement if lines else emptied(file, statement)
        inserted = [Insert(statement, line, order=order) for order, line in enumerate(dict.fromkeys(lines))]
        actions: list[Action] = [*inserted, Remove(where, keep_comments=True)]
        yield Change(RULE, file.module, where, "Apex is not needed any more", actions, uses_runtime=False)
    if not placed:
        where, after = import_place(file.module.tree)
        edit = Insert(where, f"import {RUNTIME} as {file.amp}", after=after, gap=True)
        yield Change(RULE, file.module, where, "the runtime's names", [edit], uses_runtime=False)
    yield from _globals(file)
    yield from _same_imports(file)


def _names(file: LegacyFile, statement: ast.Import | ast.ImportFrom) -> list[ast.alias]:
    """The names of an import; those that ``*`` brings and the file uses."""
    if statement not in file.references.stars:
        return list(statement.names)
    return [ast.alias(item.name) for item in file.references.bindings if item.statement is statement]


def _globals(file: LegacyFile) -> Iterator[Change]:
    """``global amp`` before an import in a function: the import stands at the head of the file now."""
    names = {item.name for item in file.references.bindings}
    for node in file.module.parents:
        if isinstance(node, ast.Global) and set(node.names) <= names:
            yield Change(RULE, file.module, node, "the file imports it", [Remove(node)], uses_runtime=False)


def _same_imports(file: LegacyFile) -> Iterator[Change]:
    """A condition that imports the same in both of its branches."""
    for node in file.module.parents:
        if not isinstance(node, ast.If) or any(isinstance(item, ast.Call) for item in walk(node.test)):
            continue
        branches = [[ast.dump(item) for item in suite] for suite in (node.body, node.orelse)]
        imports = all(isinstance(item, (ast.Import, ast.ImportFrom)) for item in (*node.body, *node.orelse))
        if imports and branches[0] == branches[1]:
            message = "both branches import the same"
            yield Change(RULE, file.module, node, message, [Unwrap(node, ("body",))], uses_runtime=False)


def _imports_torch(file: LegacyFile) -> bool:
    return any(
        isinstance(node, ast.Import)
        and any((alias.asname or alias.name.split(".")[0]) == "torch" for alias in node.names)
        for node in file.module.tree.body
    )


def _bindings(file: LegacyFile, node: ast.expr) -> list[Binding]:
    """The imports that give a chain of attributes its first name."""
    root = root_of(node)
    assert isinstance(root, ast.Name)
    owner = file.references.scope_of(root).owner(root.id)
    return [item for item in file.references.bindings if item.name == root.id and item.scope is owner]


def _line(statement: ast.Import | ast.ImportFrom, alias: ast.alias, left: set[tuple[str, int]]) -> Iterator[str]:
    """The import that takes the place of one name's, if the name is still in use."""
    target = imported(statement, alias)
    name = alias.asname or alias.name.split(".")[0]
    if target is None or not is_apex(target) or (name, id(statement)) not in left:
        return
    target = api.canonical(target)
    if target == "apex":
        yield f"import {RUNTIME}.apex as {name}"
        return
    package, _, last = target.rpartition(".")
    package, last = _MOVED.get(target, (dropin(package), last))
    yield f"from {package} import {last}" + (f" as {name}" if name != last else "")


def _names_runtime(file: LegacyFile) -> bool:
    """Whether the file calls something of the runtime by now."""
    return any(isinstance(node, ast.Name) and node.id == file.amp for node in file.module.parents)
