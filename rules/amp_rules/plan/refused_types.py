"""Functions of the project that raise for a type that they do not know, where a region would give them a half tensor.

``if x.dtype == torch.float32: ... elif x.dtype == torch.float64: ... else: raise``: an author who had no half tensors
wrote down all types that there were. Such a function gets float32, as does one that hands the type of its own argument
on to it. Old code asks for a class, ``assert isinstance(x, torch.cuda.FloatTensor)``, or for a text, ``x.type() ==
"torch.cuda.FloatTensor"``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from amp_rules.roles.in_regions import bodies_in
from amp_rules.roles.program import Program
from amp_rules.roles.statement_runs import StatementRun
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import conjuncts
from amp_rules.torch.dtypes import FLOAT32_TENSORS, FLOAT32_TYPES, HALF_TENSORS, HALF_TYPES

_HANDED_ON = 4
"""Functions that hand a type on to the one that raises; more than two have not been seen."""


_KNOWN_HALF = HALF_TYPES | HALF_TENSORS
_KNOWN_FLOAT32 = FLOAT32_TYPES | FLOAT32_TENSORS
_ANY_TYPE = frozenset({"torch.Tensor", "torch.autograd.Variable"})
"""Classes that tensors of every type are of."""


@dataclass(frozen=True)
class Refusing:
    """A function that is to get float32.

    Attributes:
        info: the function.
        where: the test that would raise, in this function or in one that it calls.
    """

    info: FunctionFacts
    where: str


def refusing(program: Program, runs: list[StatementRun], full_precision: list[StatementRun]) -> list[Refusing]:
    """The functions within regions that raise for a half tensor, by file and line.

    Left alone are those that compute with layers: what they are given decides the type of the network behind.
    """
    inside = bodies_in(program, runs)
    found: dict[FunctionFacts, Refusing] = {}
    for body in inside - bodies_in(program, full_precision):
        info = program.function_of(body)
        for test, asked in _tests(program, info) if info is not None else ():
            assert info is not None
            for owner in _owners(program, info, asked, _HANDED_ON):
                if owner.node in inside and _takes_float32(program, owner):
                    where = program.flow.scopes[info.node].module.text(test)
                    found.setdefault(owner, Refusing(owner, where))
    needed = [item for item in found.values() if _is_reached(program, runs, item, found.values())]
    return sorted(needed, key=lambda item: item.info.place)


def _is_reached(program: Program, runs: list[StatementRun], item: Refusing, found: Iterable[Refusing]) -> bool:
    """Whether a function runs elsewhere than within another one that gets float32."""
    others = {other.info.node for other in found if other is not item}
    return item.info.node in bodies_in(program, runs, others)


def _takes_float32(program: Program, info: FunctionFacts) -> bool:
    """Whether a function may be given float32 in place of half, and autocast be off in it."""
    node = info.node
    if isinstance(node, (ast.Lambda, ast.AsyncFunctionDef)) or info.is_generator or info.is_property:
        return False
    plain = all(
        isinstance(item, ast.Name) and item.id in ("staticmethod", "classmethod") for item in info.decorator_list
    )
    return plain and not any(program.runs_forward(item) for item in node.body)


def _tests(program: Program, info: FunctionFacts) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield what raises for a half type in a function, and the expression whose type it asks for."""
    scope = program.flow.scopes.get(info.node)
    if scope is None or isinstance(info.node, ast.Lambda):
        return
    for node in blocks.walk_body(info.node):
        test: ast.expr | None = None
        asked: ast.expr | None = None
        if isinstance(node, ast.If) and not blocks.is_elif(scope.module, node):
            test, asked = node.test, _refused_by_chain(program, node, scope)
        elif isinstance(node, ast.Assert):
            for part in conjuncts(node.test):
                asked = _asked(program, part, scope, ast.Eq, ast.In)
                if asked is not None:
                    yield part, asked
            continue
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Dict):
            known = [key for key in node.value.keys if key is not None]
            if len(known) == len(node.value.keys) and _are_without_half(program, known, scope):
                test, asked = node, node.slice
        if test is not None and asked is not None:
            yield test, asked


def _refused_by_chain(program: Program, branch: ast.If, scope: Scope) -> ast.expr | None:
    """What is asked for its type by tests that leave half to a ``raise``."""
    asked = _asked(program, branch.test, scope, ast.NotEq, ast.NotIn)
    if asked is not None:
        return asked if _raises(branch.body) else None
    types: list[ast.expr] = []
    subject: ast.expr | None = None
    link: ast.If = branch
    while True:
        compared = _compared(link.test, ast.Eq, ast.In, ast.Is)
        if compared is None or (subject is not None and ast.dump(subject) != ast.dump(compared[0])):
            return None
        subject = compared[0]
        types += compared[1]
        if len(link.orelse) == 1 and isinstance(link.orelse[0], ast.If):
            link = link.orelse[0]
            continue
        break
    otherwise = link.orelse or _following(scope, branch)
    if not _raises(otherwise) or (not link.orelse and not _all_leave(branch)):
        return None
    return subject if _are_without_half(program, types, scope) else None


def _following(scope: Scope, branch: ast.If) -> list[ast.stmt]:
    place = blocks.place(scope.module, branch)
    return list(place.suite[place.index + 1 :])


def _all_leave(branch: ast.If) -> bool:
    """Whether each branch of a chain returns, so that what follows is for other types."""
    link: ast.If | None = branch
    while link is not None:
        if not isinstance(link.body[-1], (ast.Return, ast.Raise)):
            return False
        link = link.orelse[0] if link.orelse and isinstance(link.orelse[0], ast.If) else None
    return True


def _raises(statements: list[ast.stmt]) -> bool:
    """Whether statements do nothing but raise."""
    told = [item for item in statements if not isinstance(item, ast.Expr)]  # a line is printed first
    return bool(told) and isinstance(told[0], ast.Raise)


def _asked(program: Program, test: ast.expr, scope: Scope, *operators: type[ast.cmpop]) -> ast.expr | None:
    """``x.dtype`` of a test that tells FP32, and no half type, from the others."""
    compared = _compared(test, *operators)
    if compared is None or not _are_without_half(program, compared[1], scope):
        return None
    return compared[0]


def _compared(test: ast.expr, *operators: type[ast.cmpop]) -> tuple[ast.expr, list[ast.expr]] | None:
    """What is compared, and with which types."""
    by_class = _asked_by_class(test, *operators)
    if by_class is not None:
        return by_class
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], operators)):
        return None
    return test.left, _each(test.comparators[0])


def _asked_by_class(test: ast.expr, *operators: type[ast.cmpop]) -> tuple[ast.expr, list[ast.expr]] | None:
    """The type of what ``isinstance`` is given, and the classes; with ``not``, where what is not equal is asked for."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        wanted: type[ast.cmpop] = ast.NotIn
        test = test.operand
    else:
        wanted = ast.In
    is_asked = isinstance(test, ast.Call) and isinstance(test.func, ast.Name) and test.func.id == "isinstance"
    if wanted not in operators or not is_asked:
        return None
    assert isinstance(test, ast.Call)
    if len(test.args) != 2:
        return None
    return ast.Attribute(value=test.args[0], attr="dtype", ctx=ast.Load()), _each(test.args[1])


def _each(types: ast.expr) -> list[ast.expr]:
    return list(types.elts) if isinstance(types, (ast.Tuple, ast.List, ast.Set)) else [types]


def _are_without_half(program: Program, types: list[ast.expr], scope: Scope) -> bool:
    """Whether these are types of torch, FP32 among them, and not both half types."""
    known: set[str] = set()
    for item in types:
        if isinstance(item, ast.Constant) and isinstance(item.value, str):
            names = {item.value}
        else:
            names = program.names(item, scope) if isinstance(item, (ast.Name, ast.Attribute)) else set()
        if not names or names & _ANY_TYPE or not all(name.startswith("torch.") for name in names):
            return False
        known |= names
    halves = {_KNOWN_HALF[name] for name in known & set(_KNOWN_HALF)}
    return bool(known & _KNOWN_FLOAT32) and halves != set(_KNOWN_HALF.values())


def _tensor_of(asked: ast.expr) -> ast.expr | None:
    """The tensor whose type an expression is: ``x.dtype``, or ``x.type()``."""
    if isinstance(asked, ast.Call) and not asked.args and not asked.keywords:
        asked = asked.func
        return asked.value if isinstance(asked, ast.Attribute) and asked.attr == "type" else None
    return asked.value if isinstance(asked, ast.Attribute) and asked.attr == "dtype" else None


def _owners(program: Program, info: FunctionFacts, asked: ast.expr, depth: int) -> Iterator[FunctionFacts]:
    """Yield the functions that are given the tensor whose type an expression of a function is."""
    tensor = _tensor_of(asked)
    if isinstance(tensor, ast.Name):
        if tensor.id in info.parameters:
            yield info
        return
    if not isinstance(asked, ast.Name) or depth == 0:
        return
    written = [
        node
        for node in blocks.walk_body(info.node)
        if isinstance(node, ast.Name) and node.id == asked.id and isinstance(node.ctx, ast.Store)
    ]
    scope = program.flow.scopes[info.node]
    if asked.id in info.parameters and not written:
        for caller in program.flow.callers(info):
            outer = program.function_of(caller.scope.node)
            given = info.argument_or_default(caller.call, asked.id)
            if outer is not None and given is not None:
                yield from _owners(program, outer, given, depth - 1)
    elif len(written) == 1 and asked.id not in info.parameters:
        parent = scope.module.parents.get(written[0])
        if isinstance(parent, ast.Assign) and parent.targets == [written[0]]:
            yield from _owners(program, info, parent.value, depth - 1)
