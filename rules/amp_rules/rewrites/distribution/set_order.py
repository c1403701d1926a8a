"""Take the elements of sets in one order on all processes.

## What it does
A set whose elements are taken one by one, to number labels for example, goes through `amp.same_order(...)`;
`hash(word)` becomes `amp.same_hash(word)`. Parameters that an optimizer is given out of `list(set(...))` are told apart
by `dict.fromkeys(...)`, which keeps the order of the model.

## Why
Python hashes strings with a seed that each process draws for itself. A list made of a set of them has another order in
each: the same label then has another number on each rank, and the ranks train against each other. Alone the order
stays what it was; in several processes it is a sorted one.

## Before
    classes = list(set(labels))

## After
    classes = list(amp.same_order(set(labels)))

## When it declines
When an optimizer is given a set of parameters that was made of sets, or that a variable holds (AMP293): no other order
is theirs in all processes, and gradients are averaged and states kept by it. Sets of numbers (of
`[int(name[:4]) for name in names]`) and of modules are left alone, and so is what is sorted or only counted.

## Leaving it out
No: labels, vocabularies and features would differ between the processes.

## Source
https://docs.python.org/3/using/cmdline.html#envvar-PYTHONHASHSEED
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan import declining
from amp_rules.plan.context import Change, Context
from amp_rules.plan.declining import Declined
from amp_rules.plan.rule import Rule
from amp_rules.roles.program import Program
from amp_rules.roles.sets import Sets
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.syntax import values_given
from amp_rules.text.actions import Replace
from amp_rules.text.expression_edits import substitute
from amp_rules.torch.containers import SETS

RULE = Rule("AMP216", "same-set-order", "All processes take the elements of a set in one order.", "distribution")

_LISTS = frozenset({"builtins.list", "builtins.tuple"})


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each set that gives its elements in order, and for each hash."""
    for site in Sets(context.program).ordered():
        assert isinstance(site.node, ast.expr)
        message = f"`{site.module.text(site.node)}` has a different order in each process"
        written = context.vocabulary.same_order(site.module, site.node)
        yield Change.written(RULE, site.module, site.node, message, written)
    for site in _parameters(context.program):
        if (call := _taken_at_once(context.program, site)) is not None:
            message = f"`{site.module.text(call)}` has its parameters in another order in each process"
            yield Change(RULE, site.module, call, message, [Replace(call.func, substitute("dict.fromkeys"))])
    for site in _hashes(context.program):
        assert isinstance(site.node, ast.Call)
        message = f"`{site.module.text(site.node)}` is a different number in each process"
        written = context.vocabulary.same_hash(site.module, site.node.func)
        yield Change.written(RULE, site.module, site.node, message, written)


def reasons(context: Context) -> Iterator[Declined]:
    """Yield the sets of parameters that an optimizer is given, where they are not written in another order."""
    for found in _parameters(context.program):
        if _taken_at_once(context.program, found) is None:
            yield declining.decline(
                declining.GRADIENTS_OUTSIDE,
                found.module,
                found.node,
                f"`{found.module.text(found.node)}` has its parameters in another order in each process, and by their "
                "order the optimizer's gradients are averaged and its state would be loaded",
                "keep each parameter once in the order of the model: `list(dict.fromkeys(parameters))`",
            )


def _parameters(program: Program) -> Iterator[Site]:
    """The sets of parameters that the optimizers which step are given."""
    sets = Sets(program)
    made = {value.site for step in program.steps for value in program.flow.values(step.optimizer, step.scope)}
    met: set[ast.AST] = set()
    for call in sorted((item for item in made if isinstance(item, ast.Call)), key=lambda item: item.lineno):
        located = program.locate(call)
        if located is None:
            continue
        site = Site(located[1].module, located[1], located[0], call)
        for found in (item for given in values_given(call) for item in sets.parameters_in(given, site)):
            if found.node not in met:
                met.add(found.node)
                yield found


def _taken_at_once(program: Program, site: Site) -> ast.Call | None:
    """``set(model.parameters())`` whose elements are taken where it stands, so that it may be a dictionary as well."""
    call, parent = site.node, site.module.parents.get(site.node)
    if not isinstance(call, ast.Call) or call.keywords or len(call.args) != 1 or isinstance(call.args[0], ast.Starred):
        return None
    if not program.callee_names(call, site.scope) & SETS or "dict" in site.scope.owner("dict").bound:
        return None
    if isinstance(parent, ast.Call):
        is_taken = call in parent.args and bool(program.callee_names(parent, site.scope) & _LISTS)
    else:
        is_taken = isinstance(parent, ast.comprehension) and parent.iter is call
    # A set that is made of another has its order.
    made_of_sets = is_taken and any(True for _ in Sets(program).parameters_in(call.args[0], site))
    return call if is_taken and not made_of_sets else None


def _hashes(program: Program) -> list[Site]:
    """Calls of ``hash`` whose number is used: not those by which objects say themselves how they are hashed."""
    found = []
    for site in program.calls_to(frozenset({"builtins.hash"})):
        info = program.function_of(site.body)
        looked_up = isinstance(site.module.parents.get(site.node), (ast.Subscript, ast.Compare))
        if not (info is not None and info.name in ("__hash__", "__eq__")) and not looked_up and _is_call(site):
            found.append(site)
    return found


def _is_call(site: Site) -> bool:
    """Whether it stands for more than its effect: ``hash(key)`` alone asks whether the key can be hashed."""
    return not isinstance(blocks.statement_of(site.module, site.node), ast.Expr)
