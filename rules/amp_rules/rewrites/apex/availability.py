"""Take out the questions whether Apex is installed.

## What it does
`try: from apex import amp` with an `except ImportError` becomes the import alone, and the flag that remembers the
outcome (`APEX_AVAILABLE`, `amp = None`) goes: conditions on it are simplified. Where the `except` offers a substitute
of its own for every name, such as a layer norm, the substitute stays: it is what runs today. Where it has none for some
of them, all come from the runtime. `"apex" in sys.modules` and `find_spec("apex")` are the same question.

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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from amp_rules.plan.apex.file import ApexFile
from amp_rules.plan.apex.flag_conditions import Known, emptied, simplified
from amp_rules.plan.apex.installed import questions
from amp_rules.plan.apex.references import is_apex
from amp_rules.plan.context import Change
from amp_rules.plan.rule import Rule
from amp_rules.source import blocks
from amp_rules.source.resolver import bound_name, imported
from amp_rules.source.syntax import walk
from amp_rules.text.actions import Action, Remove, Replace, Unwrap
from amp_rules.text.expression_edits import substitute

RULE = Rule(
    "AMP401",
    "apex-availability",
    "Nothing asks whether Apex is installed.",
    "precision",
    ways=("idiom",),
    after=("AMP413",),
)

_IMPORT_ERRORS = frozenset({"ImportError", "ModuleNotFoundError"})
_ANY_ERRORS = frozenset({*_IMPORT_ERRORS, "Exception", "AttributeError"})


def changes(file: ApexFile) -> Iterator[Change]:
    """Yield an edit for each condition on what came of a guarded import; where none is left, for the imports."""
    known: Known = {}
    guarded: list[Change] = []
    for guard in _guards(file):
        actions, learned = _unguarded(file, guard)
        if actions:
            known.update(learned)
            message = "the import is not a question any more"
            guarded.append(Change(RULE, file.module, guard.node, message, actions))
    conditions = [*_asked_by_name(file, known), *(_conditions(file, known) if known else ())]
    if not conditions:
        for guard in _guards(file):
            _check_names(file, guard)
    yield from conditions or guarded


@dataclass(frozen=True)
class _Guard:
    """A ``try`` around imports of Apex, the names of Apex in it, and what its handlers define."""

    node: ast.Try
    names: frozenset[str]
    defined: frozenset[str]
    nothing: frozenset[str]

    @property
    def is_substituted(self) -> bool:
        """Whether the handler has a substitute for every name; with fewer, the script did without the others."""
        return bool(self.names) and self.names <= self.defined


def _guards(file: ApexFile) -> Iterator[_Guard]:
    for node in file.module.parents:
        if not isinstance(node, ast.Try) or node.finalbody or len(node.handlers) != 1:
            continue
        imports = [item for item in node.body if isinstance(item, (ast.Import, ast.ImportFrom))]
        apex = {*file.references.statements, *file.references.star_imports}
        ours = [item for item in imports if item in apex]
        names = {
            alias.asname or alias.name.split(".")[0]
            for item in imports
            for alias in item.names
            if is_apex(imported(item, alias))
        }
        if not ours or len(ours) < len(imports) or not _catches_imports(node):
            continue
        defined, nothing = _definitions(node.handlers[0].body)
        yield _Guard(node, frozenset(names), frozenset(defined), frozenset(nothing))


def _catches_imports(node: ast.Try) -> bool:
    """Whether the handler is there for a failing import alone, by its kind or because nothing else can fail."""
    handler = node.handlers[0]
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    named = [kind.id for kind in kinds if isinstance(kind, ast.Name)]
    if len(named) == len(kinds) and all(name in _IMPORT_ERRORS for name in named):
        return True
    anything = all(kind is None or (isinstance(kind, ast.Name) and kind.id in _ANY_ERRORS) for kind in kinds)
    return anything and all(_cannot_fail(item) for item in node.body)


def _cannot_fail(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assign):
        return isinstance(statement.value, ast.Constant)
    return isinstance(statement, (ast.Import, ast.ImportFrom, ast.Pass))


def _definitions(suite: Iterable[ast.stmt]) -> tuple[set[str], set[str]]:
    """Names that a handler gives a substitute, and names that it gives nothing: None or False."""
    defined: set[str] = set()
    nothing: set[str] = set()
    for item in suite:
        if isinstance(item, (ast.ClassDef, ast.FunctionDef)):
            defined.add(item.name)
        elif isinstance(item, (ast.Import, ast.ImportFrom)):
            defined |= {alias.asname or alias.name.split(".")[0] for alias in item.names}
        elif isinstance(item, ast.Assign):
            empty = isinstance(item.value, ast.Constant) and item.value.value in (None, False)
            for target in item.targets:
                if isinstance(target, ast.Name):
                    (nothing if empty else defined).add(target.id)
    return defined, nothing


def _unguarded(file: ApexFile, guard: _Guard) -> tuple[list[Action], Known]:
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
    for name, value, assignments in _flags(file, node):
        known[(scope.owner(name), name)] = value
        inside = set(walk(node.handlers[0]))
        actions.extend(Remove(item) for item in assignments if item not in inside)
    for item in [*node.body, *node.orelse]:
        if isinstance(item, ast.Pass):
            actions.append(Remove(item))
    return actions, known


def _check_names(file: ApexFile, guard: _Guard) -> None:
    """A name that the handler alone binds goes with it; what still reads it would find nothing."""
    if guard.is_substituted:
        return
    handler = guard.node.handlers[0]
    inside = set(walk(handler))
    gone = {handler.name, *(name for item in inside for name in _bound_by(item))} - {None, *guard.names}
    owner = file.references.scope_of(guard.node)
    bound = {name for item in file.module.nodes if item not in inside for name in _bound_by(item)}
    for item in file.module.nodes:
        if item in inside or not isinstance(item, ast.Name) or item.id not in gone - bound:
            continue
        if file.references.scope_of(item).owner(item.id) is owner.owner(item.id):
            raise file.not_understood(item, f"`{item.id}` is bound by the `except` of an import of Apex alone")


def _bound_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, (ast.ClassDef, ast.FunctionDef)):
        yield node.name
    elif isinstance(node, ast.alias):
        yield bound_name(node)


def _flags(file: ApexFile, node: ast.Try) -> Iterator[tuple[str, bool, list[ast.stmt]]]:
    """Variables that hold nothing but the outcome of the ``try``: name, value when it succeeds, assignments."""
    scope = file.references.scope_of(node)
    here = set(walk(node))
    before = blocks.place(file.module, node)
    earlier = set(before.suite[: before.index])
    success = {item for part in (*node.body, *node.orelse) for item in walk(part)}
    names = {
        target.id
        for item in here
        if isinstance(item, ast.Assign) and isinstance(item.value, ast.Constant) and isinstance(item.value.value, bool)
        for target in item.targets
        if isinstance(target, ast.Name)
    }
    for name in sorted(names - file.wanted_elsewhere):
        stores = [
            item
            for item in file.module.parents
            if isinstance(item, ast.Name) and item.id == name and isinstance(item.ctx, (ast.Store, ast.Del))
        ]
        owners = [blocks.statement_of(file.module, item) for item in stores]
        if any(file.references.scope_of(item).owner(name) is not scope.owner(name) for item in stores):
            continue
        simple = all(
            isinstance(item, ast.Assign)
            and len(item.targets) == 1
            and isinstance(item.value, ast.Constant)
            and isinstance(item.value.value, bool)
            and (item in here or item in earlier)
            for item in owners
        )
        if simple:
            deciding = [item for item in owners if item in success] or [item for item in owners if item in earlier]
            if deciding:
                yield name, _value(deciding[-1]), owners


def _value(assignment: ast.stmt) -> bool:
    assert isinstance(assignment, ast.Assign) and isinstance(assignment.value, ast.Constant)
    return bool(assignment.value.value)


def _asked_by_name(file: ApexFile, known: Known) -> Iterator[Change]:
    """Simplify what asks for Apex by a string with its name."""
    done: set[ast.AST] = set()
    for node in questions(file.module):
        parent = file.module.parents[node]
        if isinstance(node, ast.Call) and not _asks(file, node):
            if not (isinstance(parent, ast.Call) and blocks.path_of(parent.func) == "bool"):
                raise file.not_understood(node, "what it finds of Apex is used for more than a condition")
        if node not in done:
            yield from _condition(file, node, known, done)


def _conditions(file: ApexFile, known: Known) -> Iterator[Change]:
    """Simplify what asks for a flag."""
    done: set[ast.AST] = set()
    for node in file.module.parents:
        if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load) or node in done:
            continue
        key = (file.references.scope_of(node).owner(node.id), node.id)
        if key not in known:
            continue
        if file.references.targets(node) and not _asks(file, node):
            continue
        yield from _condition(file, node, known, done)


def _asks(file: ApexFile, node: ast.expr) -> bool:
    """Whether a module's name, or what finds it, stands where a truth value is wanted, or is compared with None."""
    parent = file.module.parents[node]
    if isinstance(parent, ast.Compare):
        return all(isinstance(op, (ast.Is, ast.IsNot)) for op in parent.ops)
    if isinstance(parent, (ast.BoolOp, ast.UnaryOp)):
        return True
    return isinstance(parent, (ast.If, ast.IfExp, ast.Assert)) and parent.test is node


def _condition(file: ApexFile, node: ast.expr, known: Known, done: set[ast.AST]) -> Iterator[Change]:
    asked = node.id if isinstance(node, ast.Name) else file.source(node)
    message = f"`{asked}` is always {str(simplified(file, node, known)).lower()} now"
    top: ast.expr = node
    for parent in file.module.ancestors(node):
        if isinstance(parent, (ast.BoolOp, ast.UnaryOp, ast.Compare)):
            top = parent
            continue
        break
    done.update(item for item in walk(top) if isinstance(item, (ast.Name, ast.Compare, ast.Call)))
    holder = file.module.parents[top]
    result = simplified(file, top, known)
    actions: list[Action]
    if isinstance(holder, ast.If) and holder.test is top and isinstance(result, bool):
        if result:
            actions = [Unwrap(holder, ("body",))]
        else:
            actions = [Unwrap(holder, ("orelse",))] if holder.orelse else [Remove(emptied(file, holder))]
    elif isinstance(holder, ast.IfExp) and holder.test is top and isinstance(result, bool):
        actions = [Replace(holder, substitute(file.source(holder.body if result else holder.orelse)))]
    elif isinstance(holder, ast.Assert) and result is True:
        actions = [Remove(emptied(file, holder))]
    else:
        actions = [Replace(top, substitute(str(result)))]
    yield Change(RULE, file.module, holder, message, actions)
