"""Use the fused kernel of the optimizer.

## What it does
`torch.optim.Adam(...)`, `AdamW`, `SGD` and `Adagrad` become those of `amp.optim`: same name, same
arguments, same state. At O0 they are exactly torch's default; else the fused kernel runs where the device
has it. An import that nothing else reads goes, also in a file that the script alone imports: `import torch.optim as
optim`.

## Why
One kernel for all parameters: two to ten times the speed of the step on a CPU, 10 to 15 % of the whole on a GPU.

## Before
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

## After
    optimizer = amp.optim.AdamW(model.parameters(), lr=1e-3)

## When it declines
With `--no-fused`, for optimizers without a fused kernel, and where the class is chosen at run time.

## Leaving it out
Yes: PyTorch's own optimizer takes the same steps, more slowly. `--no-fused` says the same for all of them.

## Source
https://pytorch.org/docs/stable/optim.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change, Context
from amp_rules.plan.rule import Rule
from amp_rules.source.modules import Module
from amp_rules.source.resolver import is_variable
from amp_rules.source.sole_importer import SoleImporter
from amp_rules.source.syntax import walk
from amp_rules.text.actions import EditNames, Remove
from amp_rules.torch.optimizers import FUSED_OPTIMIZERS

RULE = Rule("AMP301", "fused-optimizer", "The optimizer uses its fused kernel.", "precision", optional=True)


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each optimizer that has a fused kernel."""
    if not context.options.fused:
        return
    replaced: dict[Module, set[ast.expr]] = {}
    for call, module in _constructors(context):
        name = _fused_name(context, call)
        if name is not None:
            written = context.vocabulary.fused_optimizer(module, call, name)
            yield Change.written(RULE, module, call, f"`{name}` uses its fused kernel, except at O0", written)
            replaced.setdefault(module, set()).add(call.func)
    importers = SoleImporter(context.program.project)
    for module, functions in replaced.items():
        yield from _idle_imports(module, functions, importers)


def _idle_imports(module: Module, replaced: set[ast.expr], importers: SoleImporter) -> Iterator[Change]:
    """The imports that nothing reads any more, for what is replaced in the same file: ``import torch.optim``.

    A file that the script imports may hand on what it imports, unless the script alone reads it.
    """
    gone = {part for node in replaced for part in walk(node) if isinstance(part, ast.Name)}
    was = {node.id for node in gone}
    read = {node.id for node in module.nodes if isinstance(node, ast.Name) and node not in gone}
    texts = list(_read_texts(module))
    for statement in module.tree.body:
        if not isinstance(statement, (ast.Import, ast.ImportFrom)):
            continue
        named = {item.asname or item.name: item.name for item in statement.names}
        head = f"{statement.module}." if isinstance(statement, ast.ImportFrom) and not statement.level else ""
        idle = [
            name
            for name, full in named.items()
            if name in was - read
            and f"{head}{full}".startswith("torch.optim")
            and not any(name in item for item in texts)
            and (module.is_entry or importers.alone_reads(module, name))
        ]
        if not idle:
            continue
        message = f"`{', '.join(idle)}` is not used any more"
        if len(idle) == len(named):
            yield Change(RULE, module, statement, message, [Remove(statement, keep_comments=True)])
        elif isinstance(statement, ast.ImportFrom):
            taken: dict[str, str | None] = {named[name]: None for name in idle}
            yield Change(RULE, module, statement, message, [EditNames(statement, taken)])


def _read_texts(module: Module) -> Iterator[str]:
    """The texts that may be read as code or as names, as ``__all__`` is; one that is a statement is a comment."""
    for node in module.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if not isinstance(module.parents.get(node), ast.Expr):
                yield node.value


def _constructors(context: Context) -> list[tuple[ast.Call, Module]]:
    found: dict[ast.Call, Module] = {}
    for step in context.precision.steps:
        for value in context.program.flow.values(step.optimizer, step.scope):
            module = context.program.module_of(value.site) if value.site is not None else None
            if isinstance(value.site, ast.Call) and module is not None:
                found[value.site] = module
    return sorted(found.items(), key=lambda item: (str(item[1].path), item[0].lineno))


def _fused_name(context: Context, call: ast.Call) -> str | None:
    located = context.program.locate(call)
    if located is None or not isinstance(call.func, (ast.Name, ast.Attribute)):
        return None
    names = context.program.names(call.func, located[1])
    # What a variable holds may have arguments already (``partial(Adam, lr=0.1)``), or come from elsewhere, too.
    if (
        len(names) != 1
        or is_variable(call.func, located[1])
        or any(item.arg in ("fused", "foreach", "capturable") for item in call.keywords)
    ):
        return None
    head, _, last = names.pop().rpartition(".")
    return last if head.startswith("torch.optim") and last in FUSED_OPTIMIZERS else None
