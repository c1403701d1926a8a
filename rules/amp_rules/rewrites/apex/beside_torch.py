"""Take Apex out where the script has torch's mixed precision as well.

## What it does
A script that can train with `torch.amp`, and asks for Apex by a guarded import, for an old torch, or where an import
from torch fails, keeps torch's mixed precision alone. The guard or the test of the version, its flags, and what only
runs where Apex is there go. That includes branches on a variable that can no longer hold their value
(`use_amp == "apex"`, `if use_apex:`), and imports, functions and classes that only they used. Options keep their names;
a note names those of Apex (AMP484). `--apex compat` keeps both ways, with the runtime in Apex's place.

## Why
`apex.amp` and `apex.parallel` can no longer be imported, so that this is what the script does today. Its scaler stays
the only one.

## Before
    try:
        from apex import amp
        has_apex = True
    except ImportError:
        has_apex = False

    use_amp = None
    if args.amp and has_apex:
        use_amp = "apex"
    elif args.amp:
        use_amp = "native"
    if use_amp == "apex":
        model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
        loss_scaler = ApexScaler()
    elif use_amp == "native":
        loss_scaler = NativeScaler()

## After
    use_amp = None
    if args.amp:
        use_amp = "native"
    if use_amp == "native":
        loss_scaler = NativeScaler()

## When it declines
When a use of Apex would be left, and when its import is not guarded, or the guard stops the script. When a training
step is left without mixed precision. The runtime then takes Apex's place (AMP410).

## Leaving it out
No: what is left would ask for Apex, and take branches that cannot run.

## Source
https://github.com/NVIDIA/apex/releases
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from amp_rules.plan.apex.dead_choices import dead_choices
from amp_rules.plan.apex.file import ApexFile
from amp_rules.plan.apex.flag_conditions import Known, asks, condition
from amp_rules.plan.apex.guards import Guard, bound_by, flags, guards, stops, was_removed
from amp_rules.plan.apex.installed import flags_of_transformers, questions
from amp_rules.plan.apex.torch_choices import TorchChoice, torch_choices
from amp_rules.plan.context import Change
from amp_rules.plan.rule import Rule
from amp_rules.source.syntax import is_none, walk
from amp_rules.text.actions import Action, Remove, Unwrap
from amp_rules.torch import apex as api

RULE = Rule(
    "AMP414",
    "apex-beside-torch",
    "A script with torch's mixed precision does without Apex.",
    "precision",
    ways=("beside torch",),
)


def changes(file: ApexFile) -> Iterator[Change]:
    """Yield an edit for each condition on Apex, for each choice that is gone by that; at the end for the imports."""
    known: Known = {}
    guarded: list[Change] = []
    gone: list[set[ast.AST]] = []
    for choice in torch_choices(file):
        scope = file.references.scope_of(choice.node)
        known.update({(scope.owner(name), name): value for name, value in choice.flags.items()})
        guarded.append(Change(RULE, file.module, choice.node, "any present torch goes this way", _chosen(choice)))
        guarded += _set_above(file, choice.node, choice.assignments)
        gone.append({part for item in (*choice.gone, *choice.assignments) for part in walk(item)})
    chosen: set[ast.AST] = set().union(*(walk(change.node) for change in guarded))
    for guard in guards(file):
        if guard.node in chosen:
            continue
        if not was_removed(file, guard):
            continue
        if stops(guard) or guard.is_substituted:
            raise file.not_understood(guard.node, "what is done without Apex is more than a flag")
        actions, learned, assignments = _taken_out(file, guard)
        known.update(learned)
        guarded.append(Change(RULE, file.module, guard.node, "Apex cannot be imported any more", actions))
        guarded += _set_above(file, guard.node, assignments)
        gone.append(set(walk(guard.node)))
    settled = (
        _conditions(file, known)
        or _asked(file, chosen)
        or _choices(file)
        or [change for parts in gone for change in _unused_definitions(file, parts)]
    )
    if not settled:
        for parts in gone:
            _check_unused(file, parts)
    yield from settled or guarded


def _chosen(choice: TorchChoice) -> list[Action]:
    """What runs stands in the place of the whole, without the flags that only remember it."""
    suites = [suite for suite in choice.suites if getattr(choice.node, suite)]
    left = [item for suite in suites for item in getattr(choice.node, suite) if item not in choice.assignments]
    if not left:
        return [Remove(choice.node)]
    inside = set(walk(choice.node))
    return [Unwrap(choice.node, tuple(suites)), *(Remove(item) for item in choice.assignments if item in inside)]


def _set_above(file: ApexFile, node: ast.stmt, assignments: Iterable[ast.stmt]) -> list[Change]:
    """The edits for flags that have their first value above the statement which decides on them."""
    inside = set(walk(node))
    message = "no condition asks it any more"
    return [Change(RULE, file.module, item, message, [Remove(item)]) for item in assignments if item not in inside]


def _asked(file: ApexFile, chosen: set[ast.AST]) -> list[Change]:
    """The edits for what asks whether Apex is installed: its ``amp`` is not, in any version that is."""
    asked: dict[ast.expr, bool] = {node: False for node in questions(file.module) if node not in chosen}
    kept = [target for item in file.references.bindings if api.is_standalone(target := item.target)]
    for node in asked:
        if kept or not asks(file, node):
            raise file.not_understood(node, "it asks for Apex by its name")
    asked |= {node: False for node in flags_of_transformers(file.module) if asks(file, node)}
    imports = set(file.references.statements)
    importing = {node: parts for node in asked if imports & (parts := _of_its_branch(file, node))}
    if importing.keys() == asked.keys():
        for parts in importing.values():
            _check_unused(file, parts)
    else:
        asked = {node: told for node, told in asked.items() if node not in importing}
    done: set[ast.AST] = set()
    return [condition(file, RULE, node, {}, done, asked) for node in asked if node not in done]


def _of_its_branch(file: ApexFile, node: ast.expr) -> set[ast.AST]:
    """What stands in the branch that a question is right before."""
    branch = next(item for item in file.module.ancestors(node) if isinstance(item, ast.stmt))
    return {part for item in branch.body for part in walk(item)} if isinstance(branch, ast.If) else set()


def _taken_out(file: ApexFile, guard: Guard) -> tuple[list[Action], Known, list[ast.stmt]]:
    """What leaves the handler in the place of the ``try``, and what is known by that; and its flags."""
    node, scope = guard.node, file.references.scope_of(guard.node)
    known: Known = {(scope.owner(name), name): False for name in guard.names & guard.nothing}
    gone: set[ast.stmt] = {item for item in node.handlers[0].body if isinstance(item, (ast.Expr, ast.Pass))}
    for flag in flags(file, node):
        if flag.failure is not None:
            known[(scope.owner(flag.name), flag.name)] = flag.failure
            gone.update(flag.assignments)
    for item in node.handlers[0].body:
        if isinstance(item, ast.Assign) and {getattr(part, "id", None) for part in item.targets} <= guard.nothing:
            gone.add(item)
    kept = [item for item in node.handlers[0].body if item not in gone]
    if not kept:
        return [Remove(node)], known, list(gone)
    in_handler = set(node.handlers[0].body)
    return [Unwrap(node, ("handler",)), *(Remove(item) for item in gone if item in in_handler)], known, list(gone)


def _check_unused(file: ApexFile, inside: set[ast.AST]) -> None:
    """What goes gives a name, and nothing else does: it must not be read any more."""
    names = _given_alone(file, inside)
    for item in file.module.nodes:
        if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Load) and item.id in names and item not in inside:
            raise file.not_understood(item, f"`{item.id}` is used for more than a choice")


def _given_alone(file: ApexFile, inside: set[ast.AST]) -> set[str]:
    """The names that what goes gives, and nothing else does."""
    return {name for item in inside for name in bound_by(item)} - {
        name for item in file.module.nodes if item not in inside for name in bound_by(item)
    }


def _unused_definitions(file: ApexFile, inside: set[ast.AST]) -> Iterator[Change]:
    """The edits for functions and classes that need Apex and that nothing names any more: ``class ApexScaler``."""
    names = _given_alone(file, inside)
    if "*" in file.wanted_elsewhere:
        return
    for node in file.module.tree.body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef)) or node.name in file.wanted_elsewhere:
            continue
        if node.decorator_list or (isinstance(node, ast.ClassDef) and (node.bases or node.keywords)):
            continue  # it may be kept somewhere where it is defined
        own = set(walk(node))
        needs = any(isinstance(item, ast.Name) and item.id in names for item in own - inside)
        if needs and not any(_says(item, node.name) for item in file.module.nodes if item not in own):
            message = f"nothing names `{node.name}` any more, which needs Apex"
            yield Change(RULE, file.module, node, message, [Remove(node)])


def _says(node: ast.AST, name: str) -> bool:
    """Whether a node is a name, or a text that is one: in ``__all__``, or for what looks a name up."""
    return (isinstance(node, ast.Name) and node.id == name) or (isinstance(node, ast.Constant) and node.value == name)


def _conditions(file: ApexFile, known: Known) -> list[Change]:
    """The edits for what asks a flag, or a name of Apex that is None."""
    done: set[ast.AST] = set()
    found: list[Change] = []
    for node in file.module.parents:
        if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load) or node in done:
            continue
        if (file.references.scope_of(node).owner(node.id), node.id) not in known:
            continue
        if file.references.targets(node) and not asks(file, node):
            continue
        compared = _is_none(file, node)
        if compared is None:
            raise file.not_understood(node, f"`{node.id}` is compared with more than None")
        found.append(condition(file, RULE, node, known, done, compared))
    return found


def _is_none(file: ApexFile, node: ast.Name) -> dict[ast.expr, bool] | None:
    """What `amp is None` says where Apex is not there; None of another comparison, and where its name holds False."""
    parent = file.module.parents[node]
    if not isinstance(parent, ast.Compare):
        return {}
    value = parent.comparators[0]
    if parent.left is not node or len(parent.ops) != 1 or not is_none(value):
        return None
    given = [
        item.value
        for guard in guards(file)
        for item in guard.node.handlers[0].body
        if isinstance(item, ast.Assign) and any(isinstance(to, ast.Name) and to.id == node.id for to in item.targets)
    ]
    if not all(is_none(item) for item in given):
        return None
    return {parent: isinstance(parent.ops[0], ast.Is)}


def _choices(file: ApexFile) -> list[Change]:
    """The edits for what compares a variable with a value that it cannot hold any more."""
    dead = dead_choices(file)
    done: set[ast.AST] = set()
    return [condition(file, RULE, node, {}, done, dead) for node in dead if node not in done]
