"""Take out the questions whether Apex is installed.

## What it does
`try: from apex import amp` with an `except ImportError` becomes the import alone, and the flag that remembers the
outcome (`APEX_AVAILABLE`, `amp = None`) goes: conditions on it are simplified. Where the `except` offers a substitute
of its own for every name, such as a layer norm, the substitute stays: it is what runs today. Where it has none for some
of them, all come from the runtime. `"apex" in sys.modules` and `find_spec("apex")` are the same question, and so is
`"state_dict" in amp.__dict__`, which asks for an Apex that is recent enough, and `is_apex_available()` of transformers.
A layer norm of Apex that is tried above `return torch.nn.LayerNorm(...)` of the same arguments goes, and so do its
conditions.

## Why
The runtime is a package that the script needs; there is nothing left to ask.

## Before
    try:
        from apex import amp
        APEX_AVAILABLE = True
    except ImportError:
        APEX_AVAILABLE = False

    if args.fp16 and not APEX_AVAILABLE:
        raise RuntimeError("install apex")

## After
    import amp_runtime as amp

## When it declines
When something else than imports can fail there; the file then keeps its `try`. When something reads a name that only
the handler binds (`except ImportError as error`), and when what `find_spec("apex")` found is used for more than the
question.

## Leaving it out
No: what asks for Apex would then decide that there is no mixed precision. With any part of Apex kept, the rewriting
of Apex is declined (AMP499), and with `--apex auto` its imports alone are changed (AMP410).

## Source
https://docs.python.org/3/library/exceptions.html#ImportError
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.apex.file import ApexFile
from amp_rules.plan.apex.flag_conditions import Known, asks, condition
from amp_rules.plan.apex.guards import Guard, bound_by, flags, guards
from amp_rules.plan.apex.installed import answer_of_member, is_question_of_transformers, questions
from amp_rules.plan.apex.same_layers import tried_above_the_same
from amp_rules.plan.context import Change
from amp_rules.plan.rule import Rule
from amp_rules.source import blocks
from amp_rules.source.syntax import walk
from amp_rules.text.actions import Action, EditNames, Remove, Unwrap
from amp_rules.torch.apex import ASKED_OF_TRANSFORMERS

RULE = Rule(
    "AMP401",
    "apex-availability",
    "Nothing asks whether Apex is installed.",
    "precision",
    ways=("idiom",),
    after=("AMP413",),
)


def changes(file: ApexFile) -> Iterator[Change]:
    """Yield an edit for each condition on what came of a guarded import; where none is left, for the imports."""
    known: Known = {}
    guarded: list[Change] = []
    for guard in guards(file):
        same = tried_above_the_same(file, guard)
        if same is not None:
            message = "PyTorch's own layer of the same arguments stands below"
            guarded.append(Change(RULE, file.module, same, message, [Remove(same)]))
            continue
        actions, learned = _unguarded(file, guard)
        if actions:
            known.update(learned)
            message = "the import is not a question any more"
            guarded.append(Change(RULE, file.module, guard.node, message, actions))
    conditions = [*_asked_by_name(file, known), *(_conditions(file, known) if known else ())]
    if not conditions:
        for guard in guards(file):
            _check_names(file, guard)
    yield from conditions or guarded or _idle_imports(file)


def _idle_imports(file: ApexFile) -> Iterator[Change]:
    """The import of transformers' ``is_apex_available``, which nothing asks any more."""
    read = {node.id for node in file.module.nodes if isinstance(node, ast.Name)} | file.wanted_elsewhere
    for item in file.names.bindings if file.references.statements else ():
        statement = item.statement
        if not is_question_of_transformers(item.target) or item.name in read:
            continue
        alone = len(statement.names) == 1
        action = Remove(statement) if alone else EditNames(statement, {ASKED_OF_TRANSFORMERS: None})
        yield Change(RULE, file.module, statement, f"nothing asks `{item.name}` any more", [action])


def _unguarded(file: ApexFile, guard: Guard) -> tuple[list[Action], Known]:
    node = guard.node
    if guard.is_substituted:
        noise = [item for item in node.handlers[0].body if isinstance(item, (ast.Expr, ast.Pass))]
        if len(noise) == len(node.handlers[0].body):
            return [], {}
        return [Unwrap(node, ("handler",)), *(Remove(item) for item in noise)], {}
    actions: list[Action] = [Unwrap(node, ("body", "orelse"))]
    known: Known = {}
    scope = file.references.scope_of(node)
    for name in guard.names & guard.nothing:
        known[(scope.owner(name), name)] = True
    for flag in flags(file, node):
        if flag.success is None:
            continue
        known[(scope.owner(flag.name), flag.name)] = flag.success
        inside = set(walk(node.handlers[0]))
        actions.extend(Remove(item) for item in flag.assignments if item not in inside)
    for item in [*node.body, *node.orelse]:
        if isinstance(item, ast.Pass):
            actions.append(Remove(item))
    return actions, known


def _check_names(file: ApexFile, guard: Guard) -> None:
    """A name that the handler alone binds goes with it; what still reads it would find nothing."""
    if guard.is_substituted:
        return
    handler = guard.node.handlers[0]
    inside = set(walk(handler))
    gone = {handler.name, *(name for item in inside for name in bound_by(item))} - {None, *guard.names}
    owner = file.references.scope_of(guard.node)
    bound = {name for item in file.module.nodes if item not in inside for name in bound_by(item)}
    for item in file.module.nodes:
        if item in inside or not isinstance(item, ast.Name) or item.id not in gone - bound:
            continue
        if file.references.scope_of(item).owner(item.id) is owner.owner(item.id):
            raise file.not_understood(item, f"`{item.id}` is bound by the `except` of an import of Apex alone")


def _asked_by_name(file: ApexFile, known: Known) -> Iterator[Change]:
    """Simplify what asks for Apex by a string with its name."""
    done: set[ast.AST] = set()
    for node in questions(file.module):
        parent = file.module.parents[node]
        if isinstance(node, ast.Call) and not asks(file, node):
            if not (isinstance(parent, ast.Call) and blocks.path_of(parent.func) == "bool"):
                raise file.not_understood(node, "what it finds of Apex is used for more than a condition")
        if node not in done:
            yield condition(file, RULE, node, known, done)
    for asked in file.module.nodes:
        if isinstance(asked, ast.Compare | ast.Call) and answer_of_member(file.references, asked) is not None:
            if asked not in done:
                yield condition(file, RULE, asked, known, done)


def _conditions(file: ApexFile, known: Known) -> Iterator[Change]:
    """Simplify what asks for a flag."""
    done: set[ast.AST] = set()
    for node in file.module.parents:
        if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load) or node in done:
            continue
        key = (file.references.scope_of(node).owner(node.id), node.id)
        if key not in known:
            continue
        if file.references.targets(node) and not asks(file, node):
            continue
        yield condition(file, RULE, node, known, done)
