"""Import what is left of Apex from where it lives now.

## What it does
Takes the imports of Apex out, with a condition around them when nothing else is in there. `import amp_runtime as amp`
stands where `amp` was imported. Layers and kernels, which know no loss scale, come from PyTorch (`LayerNorm`) or from
the runtime's drop-in (`amp_runtime.apex`). Asides such as `(should be after apex fp16 initialization)` go from comments
and from the help of options, and Apex's name there before what is turned on (`apex sync BN`); the rest of the help is
kept: its options still do what they did. So it is with what is printed (`Using apex.parallel.DistributedDataParallel`,
`FP16 training with apex`) and with docstrings; sentences that say more of Apex stay. Imports of Python's own modules
that only what is gone used, as `import warnings` for a guard, go too; so do functions that only arguments of Apex's
used, out of a file of the project that does nothing but define some. `ApexDDP` for PyTorch's wrapper becomes `DDP`
where nothing else is called so.

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
from collections.abc import Iterator, Mapping

from amp_rules.plan.apex.file import ApexFile, HelperOfHalf
from amp_rules.plan.apex.flag_conditions import emptied
from amp_rules.plan.apex.references import is_apex
from amp_rules.plan.apex.wrapping import WRAPPER, delays_exchange
from amp_rules.plan.context import Change
from amp_rules.plan.rule import Rule
from amp_rules.source.head import import_place
from amp_rules.source.resolver import Binding, bound_name, imported, root_of
from amp_rules.source.syntax import walk
from amp_rules.text.actions import Action, Insert, Remove, Replace, Unwrap
from amp_rules.text.expression_edits import substitute
from amp_rules.torch import apex as api
from amp_rules.torch.canonical_names import canonical
from amp_rules.torch.own_half import is_helper_of_apex

RULE = Rule("AMP408", "apex-imports", "Nothing is imported from Apex.", "precision", ways=("idiom",), after=("AMP404",))

_MOVED = {
    "apex.parallel.DistributedDataParallel": ("torch.nn.parallel", "DistributedDataParallel"),
    "apex.parallel.ReduceOp": ("torch.distributed", "ReduceOp"),
    "apex.normalization.FusedLayerNorm": ("torch.nn", "LayerNorm"),
    "apex.contrib.clip_grad.clip_grad_norm_": ("torch.nn.utils", "clip_grad_norm_"),
    "apex.fp16_utils.clip_grad_norm": ("torch.nn.utils", "clip_grad_norm_"),
}


def changes(file: ApexFile) -> Iterator[Change]:
    """Yield an edit for each import, and for what is still called by its path."""
    references = file.references
    unknown = [node for node in references.star_imports if node.module not in api.EXPORTS]
    if unknown:
        raise file.not_understood(unknown[0], "what `import *` brings is not known")
    _check_other_functions(file)
    moved = {name: where for name, where in _MOVED.items() if name != WRAPPER or not delays_exchange(file)}
    left: set[tuple[str, int]] = set()
    renamed = _renamed(file, moved)
    for use in references.uses:
        target, rest = _moved_object(use.target)
        if target not in _MOVED and not (api.is_standalone(target) and api.has_dropin(target)):
            text = file.module.text(use.node)
            if is_helper_of_apex(target):
                raise HelperOfHalf(
                    file.module,
                    use.node,
                    f"`{text}` goes with the half model that it serves (AMP420), and no model was found that the "
                    "script makes half and trains",
                )
            raise file.not_understood(use.node, f"`{text}` has no counterpart in the idiom")
        called_by_path = isinstance(use.node, ast.Attribute) and not _begins_with_its_name(file, use.node, target)
        if called_by_path and target in moved and _imports_torch(file):
            code = ".".join(moved[target]) + rest
            yield Change(RULE, file.module, use.node, "PyTorch has it", [Replace(use.node, substitute(code))])
        else:
            left |= {(item.name, id(item.statement)) for item in _bindings(file, use.node)}
            if isinstance(use.node, ast.Name) and use.node.id in renamed:
                to_new = [Replace(use.node, substitute(renamed[use.node.id]))]
                yield Change(RULE, file.module, use.node, "it is PyTorch's, and Apex's no more", to_new)
    line = file.vocabulary.import_line(file.module) if file.vocabulary.is_used(file.module) else None
    kept: dict[ast.stmt, list[str]] = {}
    for statement in (*references.statements, *references.star_imports):
        names = _names(file, statement)
        lines = [item for alias in names for item in _line(file, statement, alias, left, moved, renamed)]
        others = [alias for alias in statement.names if not is_apex(imported(statement, alias)) and alias.name != "*"]
        if others:
            lines.append(f"import {', '.join(ast.unparse(item) for item in others)}")
        if line is not None and references.is_plain(statement):
            lines.insert(0, line)
            line = None
        kept[statement] = lines
    gone = {item for item, lines in kept.items() if not lines}
    done: set[ast.stmt] = set()
    for item, lines in kept.items():
        where = item if lines else emptied(file, item, gone)
        if where not in done:  # a condition around several of them goes once
            done.add(where)
            inserted = [Insert(item, text, order=order) for order, text in enumerate(dict.fromkeys(lines))]
            actions: list[Action] = [*inserted, Remove(where, keep_comments=True)]
            yield Change(RULE, file.module, where, "Apex is not needed any more", actions)
    if line is not None:
        where, after = import_place(file.module.tree)
        edit = Insert(where, line, after=after, gap=True)
        yield Change(RULE, file.module, where, "the runtime's names", [edit])
    yield from _globals(file)
    yield from _same_imports(file)


def _renamed(file: ApexFile, moved: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """New names for what comes from PyTorch now and is called after Apex, as ``ApexDDP``, where they are free."""
    references = file.references
    aliases = {item.name for item in references.bindings if "apex" in item.name.casefold()} - file.wanted_elsewhere
    taken = set(_words(file)) if aliases else set()
    found: dict[str, str] = {}
    for name in sorted(aliases):
        uses = [use for use in references.uses if isinstance(use.node, ast.Name) and use.node.id == name]
        targets = {canonical(item.target) for item in references.bindings if item.name == name}
        others = [node for node in file.module.nodes if isinstance(node, ast.Name) and node.id == name]
        if len(targets) != 1 or not targets <= moved.keys() or len(uses) != len(others):
            continue
        last = moved[targets.pop()][1]
        short = "".join(letter for letter in last if letter.isupper())
        new = short if short in name.upper() and len(short) > 1 else last
        if new not in taken:
            taken.add(new)
            found[name] = new
    return found


def _words(file: ApexFile) -> Iterator[str]:
    """What the file calls anything; imports of Apex go."""
    for node in file.module.nodes:
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (bound_name(alias) for alias in node.names if not is_apex(imported(node, alias)))


def _check_other_functions(file: ApexFile) -> None:
    """Refuse a name that one function imports and another reads, where an ``import *`` may give it to that one too."""
    references = file.references
    known = {id(use.node) for use in references.uses}
    local = {item.name: item.scope for item in references.bindings if item.scope.is_function}
    for node in file.module.nodes:
        if isinstance(node, ast.Name) and node.id in local and id(node) not in known:
            owner = references.scope_of(node).owner(node.id)
            if owner is not local[node.id] and node.id not in owner.bound:
                raise file.not_understood(node, f"`{node.id}` is imported in another function alone")


def _moved_object(target: str) -> tuple[str, str]:
    """What PyTorch has of ``apex.parallel.ReduceOp.SUM``, and what is asked of it; the whole where it has nothing."""
    owner, _, member = target.rpartition(".")
    return (owner, f".{member}") if owner in _MOVED else (target, "")


def _begins_with_its_name(file: ApexFile, node: ast.Attribute, target: str) -> bool:
    """``ReduceOp.SUM``: an imported name, which stays, and its member."""
    return any(item.target == target for item in _bindings(file, node))


def _names(file: ApexFile, statement: ast.Import | ast.ImportFrom) -> list[ast.alias]:
    """The names of an import; those that ``*`` brings and the file uses."""
    if statement not in file.references.star_imports:
        return list(statement.names)
    return [ast.alias(item.name) for item in file.references.bindings if item.statement is statement]


def _globals(file: ApexFile) -> Iterator[Change]:
    """``global amp`` before an import in a function: the import stands at the head of the file now."""
    names = {item.name for item in file.references.bindings}
    for node in file.module.parents:
        if isinstance(node, ast.Global) and set(node.names) <= names:
            yield Change(RULE, file.module, node, "the file imports it", [Remove(node)])


def _same_imports(file: ApexFile) -> Iterator[Change]:
    """A condition that imports the same in both of its branches."""
    for node in file.module.parents:
        if not isinstance(node, ast.If) or any(isinstance(item, ast.Call) for item in walk(node.test)):
            continue
        branches = [[ast.dump(item) for item in suite] for suite in (node.body, node.orelse)]
        imports = all(isinstance(item, (ast.Import, ast.ImportFrom)) for item in (*node.body, *node.orelse))
        if imports and branches[0] == branches[1]:
            message = "both branches import the same"
            yield Change(RULE, file.module, node, message, [Unwrap(node, ("body",))])


def _imports_torch(file: ApexFile) -> bool:
    return any(
        isinstance(node, ast.Import)
        and any((alias.asname or alias.name.split(".")[0]) == "torch" for alias in node.names)
        for node in file.module.tree.body
    )


def _bindings(file: ApexFile, node: ast.expr) -> list[Binding]:
    """The imports that give a chain of attributes its first name."""
    root = root_of(node)
    assert isinstance(root, ast.Name)
    owner = file.references.scope_of(root).owner(root.id)
    return [item for item in file.references.bindings if item.name == root.id and item.scope is owner]


def _line(
    file: ApexFile,
    statement: ast.Import | ast.ImportFrom,
    alias: ast.alias,
    left: set[tuple[str, int]],
    moved: Mapping[str, tuple[str, str]],
    renamed: Mapping[str, str],
) -> Iterator[str]:
    """The import that takes the place of one name's, if the name is still in use."""
    target = imported(statement, alias)
    name = alias.asname or alias.name.split(".")[0]
    if target is None or not is_apex(target) or (name, id(statement)) not in left:
        return
    target = canonical(target)
    if target == "apex":
        yield f"import {file.vocabulary.drop_in('')} as {name}"
        return
    package, _, last = target.rpartition(".")
    package, last = moved.get(target, (file.vocabulary.drop_in(package), last))
    name = renamed.get(name, name)
    yield f"from {package} import {last}" + (f" as {name}" if name != last else "")
