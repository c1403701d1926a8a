"""Import Apex's interface from the runtime.

## What it does
`from apex import amp` becomes `from amp_runtime.apex import amp`, and so on: the imports change, and what is said
where they fail. A `try` goes whose handler does nothing but end the script with a message; where a handler does
something else, its advice to install Apex becomes one to install the runtime. The fallback for projects in which some
use of Apex is not understood, or on request (`--apex compat`).

## Why
`amp_runtime.apex` has Apex's functions with Apex's arguments and behaviour, on a current PyTorch and on every device.

## Before
    from apex import amp
    from apex.parallel import DistributedDataParallel as DDP

## After
    from amp_runtime.apex import amp
    from amp_runtime.apex.parallel import DistributedDataParallel as DDP

## When it declines
When the script needs a part of Apex that the runtime does not have: `apex.pyprof`, `apex.transformer`, some of
`apex.contrib`. In a `try` such an import stays as it is, and its handler does what it did without Apex (AMP480 names
it). When it reads what Apex's loss scaler keeps for itself and the runtime's does not (`_overflow_buf`); what stands in
a function that nothing calls does not count. When it asks for Apex by its name: `"apex" in sys.modules`. When the
handle of `amp.init` scales losses, which Apex refuses since `amp.initialize`.

## Leaving it out
No: it is the whole of what is done where it is done.

## Source
https://nvidia.github.io/apex/
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.apex.file import ApexFile
from amp_rules.plan.apex.guards import guards
from amp_rules.plan.apex.install_messages import messages, only_stops
from amp_rules.plan.apex.installed import asked_of, questions
from amp_rules.plan.apex.kept_imports import stays
from amp_rules.plan.apex.references import is_apex
from amp_rules.plan.context import Change
from amp_rules.plan.rule import Rule
from amp_rules.source import blocks
from amp_rules.source.index import keyword, literal
from amp_rules.source.resolver import Reference, imported, root_of
from amp_rules.text.actions import Action, Insert, Remove, Replace, Unwrap
from amp_rules.text.expression_edits import substitute
from amp_rules.torch import apex as api
from amp_rules.torch.apex_names import DROPIN_NAMES
from amp_rules.torch.canonical_names import canonical

_LINE = 88  # black's: an import that it would leave on one line stays there

RULE = Rule("AMP410", "apex-compat", "Apex's interface comes from the runtime.", "precision", ways=("compat",))


def changes(file: ApexFile) -> Iterator[Change]:
    """Yield an edit for each import."""
    _check_uses(file)
    for question in questions(file.module):
        raise file.not_understood(question, "it asks for Apex by its name, which no import of the runtime answers")
    guards_gone = list(_unguarded(file))
    if guards_gone:
        yield from guards_gone  # the imports are taken in the next round
        return
    statements = [*file.references.statements, *file.references.star_imports]
    there: set[str] = set()
    for statement in sorted(set(statements), key=lambda node: node.lineno):
        if stays(file, statement):
            continue
        lines = [line for line in _lines(file, statement) if line not in there]
        if file.references.is_plain(statement):
            there.update(lines)
        actions: list[Action] = [Insert(statement, line, order=order) for order, line in enumerate(lines)]
        actions.append(Remove(statement))
        message = "the runtime has the same functions with the same arguments"
        yield Change(RULE, file.module, statement, message, actions)


def _unguarded(file: ApexFile) -> Iterator[Change]:
    """Yield what is untrue once the runtime has all that a guard imports: that Apex is to be installed."""
    alone = {guard.node for guard in guards(file)}
    for guard in guards(file, alone=False):
        imports = [*file.references.statements, *file.references.star_imports]
        if any(item in guard.node.body and stays(file, item) for item in imports):
            continue
        if guard.node in alone and only_stops(guard) and not guard.node.orelse:
            message = "the import itself says what is missing"
            yield Change(RULE, file.module, guard.node, message, [Unwrap(guard.node, ("body",))])
            continue
        for node, text in messages(file, guard, file.vocabulary.drop_in("").partition(".")[0]):
            message = "it is the runtime that is missing where the import fails"
            yield Change(RULE, file.module, node, message, [Replace(node, substitute(text))])


def _check_uses(file: ApexFile) -> None:
    """``amp.lists``: the import finds its package in the runtime, and that has no such part."""
    for use in file.references.uses:
        if _asks_for_name(file, use):
            continue
        roots = file.references.targets(root_of(use.node))
        # The path as it is written too: another path to the same function may lead through a module that is not there.
        path = ast.unparse(use.node).partition(".")[2]
        named = (use.target, *(f"{root}.{path}" for root in sorted(roots) if path))
        missing = next((name for name in named if not api.has_dropin(name)), None)
        imported_whole = all(api.has_dropin(canonical(target)) for target in roots)
        # In a `try` too: its handler would hide that the name is not there.
        if missing is not None and imported_whole and not file.as_written.is_idle(file.module, use.node):
            raise file.not_understood(use.node, f"the runtime has no `{missing}`")
    _check_handles(file)
    _check_state(file)


def _check_handles(file: ApexFile) -> None:
    """``handle = amp.init()``, then ``handle.scale_loss(...)``, which Apex refuses since it has ``amp.initialize``."""
    handles = set()
    for use in file.references.uses:
        call = file.module.parents.get(use.node)
        if use.target == "apex.amp.init" and isinstance(call, ast.Call) and call.func is use.node:
            statement = file.module.parents.get(call)
            if isinstance(statement, ast.Assign) and literal(keyword(call, "enabled")) is not False:
                handles |= blocks.writes(statement)
    for node in file.module.nodes if handles else ():
        if isinstance(node, ast.Attribute) and node.attr == "scale_loss" and blocks.path_of(node.value) in handles:
            text = (
                f"`{file.module.text(node)}` is refused since Apex has `amp.initialize`, which returns what it scales"
            )
            raise file.not_understood(node, text)


def _asks_for_name(file: ApexFile, use: Reference) -> bool:
    """``"state_dict" in amp.__dict__``, of a name that the runtime's module has as Apex's has it."""
    module, asks, _ = use.target.partition(".__dict__")
    if not asks or module not in api.DROPIN_MODULES:
        return False
    around = [parent for parent in file.module.ancestors(use.node) if isinstance(parent, ast.Compare | ast.Call)]
    name = next(filter(None, (asked_of(file.references, parent) for parent in around)), None)
    if name is None:
        raise file.not_understood(use.node, f"what `{file.module.text(use.node)}` is asked for is not known")
    if name not in DROPIN_NAMES:
        raise file.not_understood(use.node, f"the script asks for `{name}`, which the runtime has not")
    return True


def _check_state(file: ApexFile) -> None:
    """``loss_scaler._overflow_buf``: what Apex keeps for itself, where no object of the file is given such a thing."""
    file.check_buffers()
    found = [node for node in file.module.nodes if isinstance(node, ast.Attribute) and node.attr in api.MISSING_STATE]
    own = {node.attr for node in found if isinstance(node.ctx, ast.Store)}
    for node in found:
        if node.attr not in own and not file.as_written.is_idle(file.module, node):
            text = file.module.text(node)
            raise file.not_understood(
                node, f"the loss scaler of the runtime has no `{node.attr}`, which `{text}` reads"
            )


def _lines(file: ApexFile, statement: ast.Import | ast.ImportFrom) -> list[str]:
    drop_in = file.vocabulary.drop_in
    if isinstance(statement, ast.ImportFrom):
        names = ", ".join(ast.unparse(alias) for alias in statement.names)
        line = f"from {drop_in(statement.module or '')} import {names}"
        if len(line) > _LINE and len(statement.names) > 1:
            rows = "".join(f"    {ast.unparse(alias)},\n" for alias in statement.names)
            line = f"from {drop_in(statement.module or '')} import (\n{rows})"
        return [line]
    lines = []
    for alias in statement.names:
        if not is_apex(imported(statement, alias)):
            lines.append(f"import {ast.unparse(alias)}")
        elif alias.asname is not None:
            lines.append(f"import {drop_in(alias.name)} as {alias.asname}")
        elif alias.name in api.EXTENSIONS:
            lines.append(f"from {drop_in('')} import {alias.name}")
        else:
            # ``import apex.parallel`` binds ``apex``, which has all its parts as attributes here.
            lines.append(f"import {drop_in('')} as apex")
    return list(dict.fromkeys(lines))
