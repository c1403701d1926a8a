"""Call Apex's functions by the name of the module, not by an attribute.

## What it does
Where a script keeps the module in an attribute of another object, `args.amp = amp`, and calls it there,
`args.amp.scale_loss(...)`, the calls name the module, and the attribute goes. Where a variable is the module under a
condition and `None` otherwise, what asks the variable asks the condition. Functions of the file that are
given the module lose that parameter. An attribute that is also asked whether it holds anything, or handed to what loads
and saves checkpoints, keeps the scaler, and `None` where it had that (`self.amp = amp if args.fp16 else None`). The
other rewrites then do the rest.

## Why
Scripts import Apex only where it is asked for, and hand it on to functions of other files. The runtime is imported by
every file that uses it.

## Before
    args.amp = amp
    ...
    with args.amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()

## After
    amp.scaler.scale(loss).backward()

## When it declines
When something else, None aside, is put into an attribute of this name anywhere in the program, when the attribute is
used for something else than that, and when the file has another use for the name `amp`. A module
that is handed on as an argument is followed within the file, to functions that call it by the same name and, where it
may be None, ask for the same condition by the same names.

## Leaving it out
No: the attribute would hold a module that does not have these functions.

## Source
https://nvidia.github.io/apex/amp.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.apex.amp_or_none import Receiver, amp_given, amp_or_none
from amp_rules.plan.apex.file import ApexFile
from amp_rules.plan.apex.flag_conditions import emptied
from amp_rules.plan.apex.handed_on import AMP, amp_of
from amp_rules.plan.context import Change
from amp_rules.plan.rule import Rule
from amp_rules.source.head import import_place
from amp_rules.source.syntax import walk
from amp_rules.text.actions import Action, Insert, Remove, RemoveParameter, Replace
from amp_rules.text.expression_edits import substitute, without_argument

RULE = Rule(
    "AMP413", "apex-handed-on", "Apex's functions are called by the module's name.", "precision", ways=("idiom",)
)

_NAME = "amp"


def changes(file: ApexFile) -> Iterator[Change]:
    """Yield an edit for each attribute that keeps the module, and each place that reads it."""
    kept = file.handed_on
    reads = [node for node in file.module.parents if node in kept.reads]
    for statement in file.module.parents:
        if isinstance(statement, ast.Assign) and statement in kept.writes | kept.empty:
            actions: list[Action] = [Remove(emptied(file, statement))]
            yield Change(RULE, file.module, statement, "every file imports what it uses", actions)
        elif isinstance(statement, ast.Assign) and statement in kept.scalers:
            code = file.vocabulary.counterpart(file.module, "apex.amp.state_dict")
            if code is None:
                raise file.not_understood(statement, f"`{file.module.text(statement)}` has no counterpart in the idiom")
            code = code.removesuffix(".state_dict")
            message = f"`{code}` is asked for in its place: it has the state that is loaded and saved"
            yield Change(RULE, file.module, statement, message, [Replace(amp_of(statement.value), substitute(code))])
    yield from _conditions(file)
    if not reads:
        return
    bound = [item for item in file.references.bindings if item.name == _NAME]
    others = file.names.bindings + file.references.bindings
    if any(item.name == _NAME and item.target != AMP for item in others) or not (bound or _is_free(file)):
        raise file.not_understood(reads[0], f"`{_NAME}` means something else in this file")
    owners = {item.scope for item in bound} | {file.references.scopes[file.module.tree]}
    for node in reads:
        if file.references.scope_of(node).owner(_NAME) not in owners:
            raise file.not_understood(node, f"`{_NAME}` means something else in this function")
        message = f"`{file.module.text(node)}` is the module `{_NAME}`"
        yield Change(RULE, file.module, node, message, [Replace(node, substitute(_NAME))])
    yield from _import(file)


def _conditions(file: ApexFile) -> Iterator[Change]:
    """Yield the edits for variables that are the module or None."""
    is_given = False
    for found in amp_or_none(file):
        actions: list[Action] = [Remove(found.nothing)]
        tests = [*found.tests, *(item for receiver in found.receivers for item in receiver.tests)]
        actions += [Replace(node, substitute(text)) for node, text in tests]
        places: list[ast.AST] = [node for node, _ in tests]
        for receiver in found.receivers:
            is_given = True
            actions += _without_parameter(receiver)
            places += _places(receiver)
        message = f"`{_NAME}` is there always; the condition decides"
        # One edit does it all: a part of it alone would be wrong. The others name its places.
        yield Change(RULE, file.module, found.condition, message, actions)
        inside = set(walk(found.condition))
        yield from (Change(RULE, file.module, node, message, []) for node in places if node not in inside)
    for receiver in amp_given(file):
        is_given = True
        message = f"`{receiver.definition.name}` names the module itself"
        yield Change(RULE, file.module, _places(receiver)[0], message, _without_parameter(receiver))
        yield from (Change(RULE, file.module, node, message, []) for node in _places(receiver)[1:])
    if is_given:
        yield from _import(file)


def _without_parameter(receiver: Receiver) -> list[Action]:
    removed: list[Action] = [RemoveParameter(receiver.definition, _NAME)]
    return [*removed, *(Replace(call, without_argument(place)) for call, place in receiver.calls)]


def _places(receiver: Receiver) -> list[ast.AST]:
    """The parameter, and the calls that give it."""
    parameter = [item for item in receiver.definition.args.args if item.arg == _NAME]
    return [*parameter, *(call for call, _ in receiver.calls)]


def _import(file: ApexFile) -> Iterator[Change]:
    """The import at the head of the file, unless there is one."""
    bound = [item for item in file.references.bindings if item.name == _NAME]
    if not any(file.references.is_plain(item.statement) for item in bound):
        where, after = import_place(file.module.tree)
        edit = Insert(where, f"from apex import {_NAME}", after=after, gap=True)
        yield Change(RULE, file.module, where, "for its functions", [edit])


def _is_free(file: ApexFile) -> bool:
    """Whether nothing in the file is called so, attributes aside."""
    return not any(
        (isinstance(node, ast.Name) and node.id == _NAME) or (isinstance(node, ast.arg) and node.arg == _NAME)
        for node in file.module.parents
    )
