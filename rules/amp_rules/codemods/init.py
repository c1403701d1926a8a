"""Start the runtime.

## What it does
Imports the runtime as `amp` and calls `amp.init(opt_level=..., ddp=...)` at the start of the script's main
path, after the command line is parsed.

## Why
The level is one argument, so the same script serves O0 to O3, and `AMP_OPT_LEVEL` overrides it. Under
torchrun, `init` joins the other processes; it is never called at import, where workers of a loader would
call it too.

## Before
    args = parser.parse_args()

## After
    args = parser.parse_args()
    amp.init(opt_level="O1", ddp=True)

## When it declines
Never by itself.

## Leaving it out
No: without the start of the runtime its other calls do nothing at all. The whole unit is declined instead (AMP199).

## Source
https://nvidia.github.io/apex/amp.html for the levels.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from amp_rules.context import Change, Context, imported_runtime
from amp_rules.planning.main_path import anchor
from amp_rules.program import blocks
from amp_rules.program.head import import_place, import_place_in_notebook
from amp_rules.program.modules import Module
from amp_rules.rewrite import Insert
from amp_rules.rule import Rule

RULE = Rule("AMP101", "init", "The runtime starts at the head of the main path.", "precision")


def changes(context: Context) -> Iterator[Change]:
    """Nothing by itself: the call goes above what the other rewrites use, see :func:`start`."""
    return iter(())


def start(context: Context, made: Sequence[Change]) -> list[Change]:
    """The call of ``init``, unless the script has one, and an import for every file that the other changes touch."""
    entry = context.program.entry
    users = [change for change in made if change.uses_runtime]
    used = [(change.module, _statement(change.module, change.node)) for change in users]
    if context.initialised and context.distribution is None:
        return imports(context, [change.module for change in users], used)
    earlier = [statement for module, statement in _visible_devices(context) if module is entry]
    statement, after = anchor(context.program, _running(users), earlier)
    code = context.code(entry, "{amp}.init") + f"({_arguments(context)})"
    if entry.cells:
        used = [*used, *((entry, item) for item in _not_before(entry, statement, after))]
        if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or not after:
            code = f"\n{code}"  # apart from the imports above
    message = "the level is an argument; AMP_OPT_LEVEL overrides it"
    if context.initialised:
        message = "the processes join before the data are shared out; the level is chosen where it was before"
    found = [Change(RULE, entry, statement, message, [Insert(statement, code, after=after, order=-1, gap=True)])]
    return [*found, *imports(context, [entry, *(change.module for change in users)], used)]


def _running(users: Sequence[Change]) -> list[tuple[Module, ast.stmt]]:
    """The statements that use the runtime when they run; a lambda's body runs later."""
    return [
        (change.module, _statement(change.module, change.node))
        for change in users
        if not isinstance(blocks.body_of(change.module, change.node), ast.Lambda)
    ]


def _not_before(module: Module, statement: ast.stmt, after: bool) -> list[ast.stmt]:
    """The statement of the file that ``init`` stands above, which the import must not follow."""
    body = module.tree.body
    index = body.index(statement) + after if statement in body else len(body)
    return body[index : index + 1]


def imports(context: Context, modules: Sequence[Module], used: Sequence[tuple[Module, ast.stmt]]) -> list[Change]:
    """The import of the runtime for each of the files that has none."""
    found = []
    for module in dict.fromkeys(modules):
        if imported_runtime(module) is None:
            found.append(_import(context, module, [item for where, item in used if where is module]))
    return found


def _visible_devices(context: Context) -> list[tuple[Module, ast.stmt]]:
    return context.distribution.visible_devices if context.distribution is not None else []


def _statement(module: Module, node: ast.AST) -> ast.stmt:
    return blocks.statement_of(module, node)


def _arguments(context: Context) -> str:
    options = context.options
    elsewhere = context.keeps_precision or context.initialised
    parts = [f'opt_level="{"O0" if elsewhere else options.opt_level}"']
    if elsewhere:
        return ", ".join([*parts, "ddp=True", *([] if options.sync_bn else ["sync_bn=False"])])
    if options.dtype != "auto":
        parts.append(f'dtype="{options.dtype}"')
    if options.loss_scale != "dynamic":
        parts.append(f"loss_scale={options.loss_scale!r}")
    if context.distribution is not None:
        parts.append("ddp=True")
        if not options.sync_bn:
            parts.append("sync_bn=False")
    return ", ".join(parts)


def _import(context: Context, module: Module, used: list[ast.stmt]) -> Change:
    code = "import amp_runtime as amp" if context.alias(module) == "amp" else "import amp_runtime"
    top = {_top_level(module, item) for item in used}
    if module.cells:
        statement, after = import_place_in_notebook(module, top)
    else:
        statement, after = import_place(module.tree, [item for item in module.tree.body if item in top])
    return Change(
        RULE, module, statement, "the runtime's names", [Insert(statement, code, after=after, order=-2, gap=True)]
    )


def _top_level(module: Module, statement: ast.stmt) -> ast.stmt:
    """The statement of the file's own suite that holds ``statement``."""
    found = statement
    for parent in module.ancestors(statement):
        if isinstance(parent, ast.stmt):
            found = parent
    return found
