"""What only the first process does, of which all compute the arguments: files, and the objects that log."""

from __future__ import annotations

import ast
from functools import cached_property

import libcst as cst

from amp_rules.plain_torch.guards import Guards
from amp_rules.plain_torch.hoisting import Hoisting
from amp_rules.plain_torch.translation import Translate, Translation
from amp_rules.plain_torch.uses import Use
from amp_rules.roles.skippable import Skippable
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import conjuncts, walk
from amp_rules.text.actions import Replace
from amp_rules.text.expression_edits import first_argument
from amp_rules.text.runtime_vocabulary import RUNTIME

_FILES = frozenset(
    {
        "builtins.open", "io.open", "codecs.open", "gzip.open", "bz2.open", "lzma.open", "logging.FileHandler",
        "logging.handlers.RotatingFileHandler", "logging.handlers.TimedRotatingFileHandler",
        "logging.handlers.WatchedFileHandler",
    }
)  # fmt: skip
"""What opens the file that it is told first, and takes :data:`os.devnull` for one."""

_NAMES = {"torch.save": "state", "json.dump": "content", "pickle.dump": "content"}
"""What the first argument of a function is called in a variable of its own."""


def _on_main(translation: Translation, use: Use) -> None:
    """``amp.on_main(f)(a)``: by where it stands, ``f`` under a condition, ``f`` or None, or another path."""
    outer = use.module.parents[use.call] if use.call is not None else None
    if use.call is None or not (isinstance(outer, ast.Call) and outer.func is use.call):
        _decline(translation, use.module, use.node, f"`{use.module.text(use.whole)}` is handed on")
        return
    translation.do(use.module, _replaced(use))
    names = translation.program.names(use.argument, use.scope)
    if isinstance(use.module.parents[outer], ast.Expr):
        _statement(translation, use, outer, names)
    elif names & _FILES:
        _file(translation, use, outer)
    else:
        _object(translation, use, outer)


def _statement(translation: Translation, use: Use, call: ast.Call, names: set[str]) -> None:
    """``f(a)`` stands under a condition; what all processes compute stands above it."""
    compute_above(translation, use.module, call, names)
    translation.part(Guards).add(use.module, use.statement)


def compute_above(translation: Translation, module: Module, call: ast.Call, names: set[str]) -> None:
    """Give variables to the arguments that one process cannot leave out, and to those before them."""
    is_missed = Skippable(translation.program).is_missed
    given = [(item, None) for item in call.args] + [(item.value, item.arg) for item in call.keywords]
    needed = [index for index, (value, _) in enumerate(given) if is_missed(value)]
    if any(isinstance(value, ast.Starred) for value, _ in given[: max(needed, default=-1) + 1]):
        _decline(translation, module, call, f"`{module.text(call)}` takes its arguments from a list that all compute")
        return
    known = next((name for function, name in _NAMES.items() if function in names), "value")
    for index in range(max(needed, default=-1) + 1):
        value, keyword = given[index]
        stays = _is_model(translation, value) or _stays(value, [given[other][0] for other in needed])
        if index in needed or not stays:
            name = keyword or ("path" if _is_path(names, index) else known if index == 0 else "value")
            translation.part(Hoisting).hoist(module, value, name)


def _is_model(translation: Translation, value: ast.expr) -> bool:
    """Whether an argument is ``amp.unwrap(model)``, which computes nothing and becomes the model itself."""
    located = translation.program.locate(value)
    return (
        isinstance(value, ast.Call)
        and located is not None
        and f"{RUNTIME}.unwrap" in translation.program.callee_names(value, located[1])
    )


def _stays(value: ast.expr, needed: list[ast.expr]) -> bool:
    """Whether what all compute leaves an argument as it is: a text of variables."""
    if any(isinstance(node, ast.NamedExpr) for other in needed for node in walk(other)):
        return isinstance(value, ast.Constant)
    plain = (ast.Name, ast.Constant, ast.JoinedStr, ast.FormattedValue, ast.BinOp, ast.operator, ast.expr_context)
    return all(isinstance(node, plain) for node in walk(value))


def _is_path(names: set[str], index: int) -> bool:
    return any(name.startswith(("os.", "shutil.")) for name in names) or ("torch.save" in names and index == 1)


def _file(translation: Translation, use: Use, call: ast.Call) -> None:
    """``open(path if RANK == 0 else os.devnull, "w")``: the others' lines go nowhere."""
    path = call.args[0] if call.args else None
    modes = [item for item in [*call.args[1:2], *(item.value for item in call.keywords if item.arg == "mode")]]
    makes = any(not isinstance(item, ast.Constant) or "x" in str(item.value) for item in modes)
    if path is None or isinstance(path, ast.Starred) or makes:
        _decline(
            translation, use.module, use.node, f"`{use.module.text(call)}` opens a file that only one process may open"
        )
        return
    if Skippable(translation.program).is_missed(path):
        translation.part(Hoisting).hoist(use.module, path, "path")
    test = cst.parse_expression(translation.code(use.module, "{RANK} == 0"))
    nowhere = cst.parse_expression(translation.code(use.module, "{os}.devnull"))
    translation.replace(use.module, path, lambda node: cst.IfExp(test, node, nowhere))


def _object(translation: Translation, use: Use, call: ast.Call) -> None:
    """``SummaryWriter(folder) if RANK == 0 else None``; what is asked of it stands under a condition."""
    module = use.module
    parent = module.parents[call]
    message = _Uses(translation, call).guarded()
    if message is not None:
        _decline(translation, use.module, use.node, message)
        return
    compute_above(translation, module, call, set())
    is_block = isinstance(parent, ast.withitem)
    nothing = translation.code(module, "{contextlib}.nullcontext()" if is_block else "None")
    is_plain = is_block or isinstance(parent, (ast.Assign, ast.AnnAssign, ast.Return, ast.keyword, ast.Call, ast.Dict))
    translation.do(module, _either(call, translation.code(module, "{RANK} == 0"), nothing, is_plain))


def _either(call: ast.Call, test: str, otherwise: str, is_plain: bool) -> Replace:
    """``call`` becomes ``call if test else otherwise``."""

    def edit(node: cst.BaseExpression) -> cst.BaseExpression:
        chosen = cst.IfExp(cst.parse_expression(test), node, cst.parse_expression(otherwise))
        return chosen if is_plain else chosen.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])

    return Replace(call, edit)


def _replaced(use: Use) -> Replace:
    """``amp.on_main(f)`` becomes ``f``."""
    return Replace(use.whole, first_argument)


class _Uses:
    """The uses of an object that only the first process has."""

    def __init__(self, translation: Translation, made: ast.Call) -> None:
        self._translation = translation
        self._program = translation.program
        self._made = made
        self._skippable = Skippable(translation.program)
        self._statements: dict[ast.stmt, tuple[Module, ast.Call]] = {}

    def guarded(self) -> str | None:
        """Leave what is asked of it to the first process; or say what is in the way."""
        for node, _, scope in self._program.nodes():
            if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(node.ctx, ast.Load):
                continue
            values = self._program.flow.values(node, scope)
            if any(value.site is self._made for value in values):
                if not self._use(node, scope):
                    return f"line {node.lineno} needs the object that only the first process has"
            elif isinstance(node, ast.Attribute) and not values and node.attr in self._attributes:
                return (
                    f"`{scope.module.text(node)}`, line {node.lineno}, may be an object that only the first process has"
                )
        guards = self._translation.part(Guards)
        for statement, (module, call) in self._statements.items():
            if not _is_guarded(module, statement):
                if not self._alone(module, statement):
                    compute_above(self._translation, module, call, set())
                guards.add(module, statement, lifts=True)
        return None

    def _alone(self, module: Module, statement: ast.stmt) -> bool:
        scope = self._program.flow.scopes[blocks.body_of(module, statement)]
        return self._skippable.alone(module, scope, [statement])

    @cached_property
    def _attributes(self) -> set[str]:
        """The attributes that it is assigned to."""
        found = set()
        for node, _, scope in self._program.nodes():
            if isinstance(node, ast.Assign) and any(
                value.site is self._made for value in self._program.flow.values(node.value, scope)
            ):
                found |= {target.attr for target in node.targets if isinstance(target, ast.Attribute)}
        return found

    def _use(self, node: ast.expr, scope: Scope) -> bool:
        """Whether a use can be left to the first process, or does without the object."""
        module = scope.module
        parent = module.parents[node]
        if self._is_written_into(module, node, scope):
            return True
        if isinstance(parent, ast.Attribute) and isinstance(parent.ctx, ast.Load):
            call = module.parents[parent]
            if isinstance(call, ast.Call) and call.func is parent:
                statement = blocks.statement_of(module, call)
                if isinstance(statement, ast.Expr) and statement.value is call:
                    self._statements[statement] = module, call
                    return True
            statement = blocks.statement_of(module, node)
            return _is_guarded(module, statement) or statement in self._statements
        if isinstance(parent, ast.keyword):
            parent = module.parents[parent]
        if isinstance(parent, ast.Call):
            return parent.func is not node and bool(self._program.flow.callees(parent))
        return isinstance(parent, (ast.Assign, ast.AnnAssign, ast.Return)) or _is_test(module, node)

    def _is_written_into(self, module: Module, node: ast.expr, scope: Scope) -> bool:
        """Leave a statement that gives the object an attribute to the first process: ``bar.suffix = ...``."""
        statement = blocks.statement_of(module, node)
        if not (isinstance(statement, ast.Assign) and len(statement.targets) == 1):
            return False
        target = statement.targets[0]
        if not isinstance(target, ast.Attribute) or not any(
            value.site is self._made for value in self._program.flow.values(target.value, scope)
        ):
            return False
        if not _is_guarded(module, statement):
            if self._skippable.is_missed(statement.value):
                return False
            self._translation.part(Guards).add(module, statement, lifts=True)
        return True


def _is_test(module: Module, node: ast.expr) -> bool:
    """Whether the object is looked for, in a condition that does nothing but what is asked of it."""
    parent = module.parents[node]
    if isinstance(parent, ast.Compare):
        is_there = [type(item) for item in parent.ops] == [ast.IsNot]
        node, parent = parent, module.parents[parent]
        if not is_there:
            return False
    if not isinstance(parent, ast.If) or parent.test is not node or parent.orelse:
        return False
    return all(isinstance(item, ast.Expr) and isinstance(item.value, ast.Call) for item in parent.body)


def _is_guarded(module: Module, node: ast.AST) -> bool:
    """Whether only the first process comes to a node."""
    return any(
        isinstance(parent, ast.If)
        and any(_asks_for_main(test) for test in conjuncts(parent.test))
        and any(node in walk(item) for item in parent.body)
        for parent in blocks.enclosing(module, node)
    )


def _asks_for_main(test: ast.expr) -> bool:
    return isinstance(test, ast.Call) and isinstance(test.func, ast.Attribute) and test.func.attr == "is_main_process"


def _decline(translation: Translation, module: Module, node: ast.AST, message: str) -> None:
    translation.decline(
        module,
        node,
        message,
        "write it under `if amp.is_main_process():` in the migrated script, or keep the runtime (--target runtime)",
        "distribution",
    )


WORDS: dict[str, Translate] = {"on_main": _on_main}
