"""Simplifying conditions in which some names are known to be true or false."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping

from amp_rules.plan.apex.file import ApexFile
from amp_rules.plan.apex.installed import answer, answer_of_member
from amp_rules.plan.context import Change
from amp_rules.plan.rule import Rule
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import is_none, own_name, walk
from amp_rules.text.actions import Action, Remove, Replace, Unwrap
from amp_rules.text.expression_edits import substitute, without_argument
from amp_rules.torch.apex import NAMES_APEX
from amp_rules.torch.mixed_precision import AUTOCASTS, SCALERS

Known = dict[tuple[Scope, str], bool]
Compared = Mapping[ast.expr, bool]
"""Comparisons of which the outcome is known."""


def condition(
    file: ApexFile, rule: Rule, node: ast.expr, known: Known, done: set[ast.AST], compared: Compared | None = None
) -> Change:
    """The edit for the condition that an expression with a known value is in; what it covers goes into ``done``."""
    asked = node.id if isinstance(node, ast.Name) else file.source(node)
    message = f"`{asked}` is always {str(simplified(file, node, known, compared)).lower()} now"
    top: ast.expr = node
    for parent in file.module.ancestors(node):
        if isinstance(parent, (ast.BoolOp, ast.UnaryOp, ast.Compare)):
            top = parent
            continue
        break
    done.update(item for item in walk(top) if isinstance(item, (ast.Name, ast.Attribute, ast.Compare, ast.Call)))
    holder = file.module.parents[top]
    result = simplified(file, top, known, compared)
    actions: list[Action]
    if isinstance(holder, ast.If) and holder.test is top and isinstance(result, bool):
        if result:
            actions = [Unwrap(holder, ("body",))]
        else:
            kept = [item for item in holder.orelse if not _says_apex(item)]
            actions = [Unwrap(holder, ("orelse",))] if kept else [Remove(emptied(file, holder))]
            actions += [Remove(item) for item in holder.orelse if kept and item not in kept]
    elif isinstance(holder, ast.IfExp) and holder.test is top and isinstance(result, bool):
        kept_value = holder.body if result else holder.orelse
        actions = _without_sentence(file, holder) or [Replace(holder, substitute(file.source(kept_value)))]
    elif isinstance(holder, ast.Assert) and result is True:
        actions = [Remove(emptied(file, holder))]
    elif isinstance(holder, ast.keyword) and holder.arg == "enabled" and result is True and _mixes(file, holder):
        call = file.module.parents[holder]
        assert isinstance(call, ast.Call)  # ``autocast(enabled=True)`` says what it does without
        actions = [Replace(call, without_argument(len(call.args) + call.keywords.index(holder)))]
    else:
        actions = [Replace(top, substitute(str(result)))]
        if isinstance(holder, ast.If) and holder.test is top and (same := _asks_again(file, holder, str(result))):
            actions.append(Remove(same))
            done.update(walk(same))
    return Change(rule, file.module, holder, message, actions)


def _asks_again(file: ApexFile, holder: ast.If, test: str) -> ast.If | None:
    """The ``elif`` that asks just what is left of the condition above it, where nothing stands behind it."""
    other = holder.orelse[0] if len(holder.orelse) == 1 else None
    if not isinstance(other, ast.If) or other.orelse or not blocks.is_elif(file.module, other):
        return None
    return other if file.source(other.test) == test and blocks.path_of(other.test) is not None else None


def _without_sentence(file: ApexFile, choice: ast.IfExp) -> list[Action]:
    """What takes the sentence on Apex out of ``"Apex {}. Level {}.".format("there" if has_apex else "", level)``."""
    call = file.module.parents[choice]
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and choice in call.args):
        return []
    text = call.func.value
    if (
        call.func.attr != "format"
        or call.keywords
        or not (isinstance(text, ast.Constant) and isinstance(text.value, str))
    ):
        return []
    fixed = all(isinstance(item, ast.Constant) for item in (choice.body, choice.orelse))
    source = file.source(text)
    sentences = re.findall(r"[^.]*(?:\.\s*|$)", source[1:-1])
    places = [len(re.findall(r"\{[^{}]*\}", item)) for item in sentences]
    if not fixed or sum(places) != len(call.args) or text.value != source[1:-1] or source.count("{}") != len(call.args):
        return []
    index = call.args.index(choice)
    for number, sentence in enumerate(sentences):
        if sum(places[:number]) == index and places[number] == 1 and NAMES_APEX.search(sentence):
            left = "".join([*sentences[:number], *sentences[number + 1 :]])
            if not left.strip():
                return []
            new = f"{source[0]}{left.rstrip() if number == len(sentences) - 1 else left}{source[-1]}"
            return [Replace(text, substitute(new)), Replace(call, without_argument(index))]
    return []


def _says_apex(statement: ast.stmt) -> bool:
    """Whether a statement only logs a fixed text about Apex: that it is not there, as is the case from now on."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or own_name(call.func) not in _LOGS or call.keywords:
        return False
    texts = [item.value for item in call.args if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    return bool(texts) and len(texts) == len(call.args) and any(map(NAMES_APEX.search, texts))


_LOGS = frozenset({"print", "info", "warning", "warn", "debug", "log"})


def _mixes(file: ApexFile, argument: ast.keyword) -> bool:
    """Whether torch's autocast, or its scaler, is given an argument."""
    call = file.module.parents[argument]
    if not isinstance(call, ast.Call) or any(isinstance(item, ast.Starred) for item in call.args):
        return False
    return file.names.target(call.func) in AUTOCASTS | SCALERS


def asks(file: ApexFile, node: ast.expr) -> bool:
    """Whether a module's name, or what finds it, stands where a truth value is wanted, or is compared with None."""
    parent = file.module.parents[node]
    if isinstance(parent, ast.Compare):
        return all(isinstance(op, (ast.Is, ast.IsNot)) for op in parent.ops)
    if isinstance(parent, (ast.BoolOp, ast.UnaryOp)):
        return True
    return isinstance(parent, (ast.If, ast.IfExp, ast.Assert)) and parent.test is node


def simplified(file: ApexFile, node: ast.expr, known: Known, compared: Compared | None = None) -> bool | str:
    """The value of a condition where it is settled, else the source of what is left of it."""
    if compared is not None and node in compared:
        return compared[node]
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return node.value
    if isinstance(node, ast.Name):
        value = known.get((file.references.scope_of(node).owner(node.id), node.id))
        return node.id if value is None else value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = simplified(file, node.operand, known, compared)
        if isinstance(inner, bool):
            return not inner
        return f"not {_grouped(inner, node.operand)}"
    told = answer(file.names, node)
    if told is None:
        told = answer_of_member(file.references, node)
    if told is not None:
        return told
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and is_none(node.comparators[0]):
        if isinstance(node.left, (ast.Name, ast.Call)) and simplified(file, node.left, known, compared) is True:
            return isinstance(node.ops[0], ast.IsNot)
    if isinstance(node, ast.BoolOp):
        return _bool_op(file, node, known, compared)
    return file.source(node)


def emptied(file: ApexFile, statement: ast.stmt, gone: Collection[ast.stmt] = ()) -> ast.stmt:
    """The statement to take out: a condition that holds nothing else, or else only what goes as well, goes too."""
    while True:
        where = blocks.place(file.module, statement)
        if (
            any(item is not statement and item not in gone for item in where.suite)
            or not isinstance(where.parent, ast.If)
            or where.parent.orelse
        ):
            return statement
        if any(isinstance(item, ast.Call) for item in walk(where.parent.test)):
            return statement
        holder = file.module.parents[where.parent]
        if isinstance(holder, ast.If) and where.parent in holder.orelse:
            return statement
        statement = where.parent


def _bool_op(file: ApexFile, node: ast.BoolOp, known: Known, compared: Compared | None) -> bool | str:
    decisive = isinstance(node.op, ast.Or)
    rest: list[str] = []
    settled = False
    for value in node.values:
        part = simplified(file, value, known, compared)
        if part is decisive:
            # What stands before it would still run; a condition without calls does nothing else.
            return decisive
        settled = settled or part != file.source(value)
        if isinstance(part, str):
            rest.append(_grouped(part, value))
    if settled and _excludes(rest):
        return decisive
    if len(rest) > 1:
        return (" or " if decisive else " and ").join(rest)
    return rest[0] if rest else not decisive


def _excludes(parts: list[str]) -> bool:
    """Whether one part is the opposite of another: ``not fp16 or fp16`` holds, whatever the name holds."""
    return any(_is_path(part) and f"not {part}" in parts for part in parts)


def _grouped(text: str, node: ast.expr) -> str:
    if _is_path(text) or text.startswith("("):
        return text
    return f"({text})" if isinstance(node, (ast.BoolOp, ast.IfExp, ast.Lambda)) else text


def _is_path(text: str) -> bool:
    """``fp16``, ``self.args.fp16``."""
    return all(part.isidentifier() for part in text.split("."))
