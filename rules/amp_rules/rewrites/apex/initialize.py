"""Start the runtime where Apex was initialised.

## What it does
`amp.initialize(model, optimizer, opt_level=...)` becomes `amp.init(opt_level=...)` and `amp.prepare_model(model)`. A
condition around it becomes part of the level: without it, the script trains at O0. The other arguments keep their
values; where one is looked up or computed, which may fail without the condition, the condition stays. Where the level
may be O2 or O3 and the script makes something float16 itself (`mel.half()`), or a model tests for
it (`x.type() == "torch.cuda.HalfTensor"`), the half type is Apex's, `dtype="fp16"`. Where another branch goes on with
the same models, they are prepared before the condition if its body begins with `amp.initialize`; with `--ddp`, other
models that are trained without the condition too are prepared behind it. A model that the script wraps for several
processes just above, which Apex refuses, is prepared above the wrapper.

## Why
The optimizer needs no preparing: the scaler steps it, and finds the FP32 master weights of O2 by itself.

## Before
    if args.fp16:
        model, optimizer = amp.initialize(model, optimizer, opt_level=args.fp16_opt_level)

## After
    amp.init(opt_level=args.fp16_opt_level if args.fp16 else "O0")
    model = amp.prepare_model(model)

## When it declines
When the models or the arguments cannot be read off the call: `**kwargs` that are not a dictionary made for this call
just before it, of constants and variables, under conditions too; a tuple made elsewhere, types of its own for the
weights; when the model is wrapped for several processes before, and more than that stands between; and when the
result is used in another way than as models and optimizers.

## Leaving it out
No: what it prepares is what the rest of the step relies on.

## Source
https://nvidia.github.io/apex/amp.html#apex.amp.initialize
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from amp_rules.plan.apex.file import ApexFile
from amp_rules.plan.apex.keywords import code_of, written_out
from amp_rules.plan.apex.model_lists import prepared_list
from amp_rules.plan.apex.start_conditions import condition_alone, condition_begun, condition_beside_others
from amp_rules.plan.apex.starts import MODELS, Start, is_first, is_started, other_branch, repeats
from amp_rules.plan.apex.wrapped_before import above_wrapper
from amp_rules.plan.context import Change
from amp_rules.plan.rule import Rule
from amp_rules.source import blocks
from amp_rules.source.syntax import is_none, walk
from amp_rules.text.actions import Action, Insert, Remove
from amp_rules.text.vocabulary import InitArguments
from amp_rules.torch import apex as api

RULE = Rule(
    "AMP404",
    "apex-initialize",
    "The runtime starts where Apex was initialised.",
    "precision",
    ways=("idiom",),
    after=("AMP405", "AMP406", "AMP407"),
)

_INITIALIZE = "apex.amp.initialize"
_CALLS_APEX = re.compile(r"\bFP16_Optimizer\(|\bamp\.\w+\(")
# A call that ends behind this column is written on several lines.
_WIDTH = 110


def changes(file: ApexFile) -> Iterator[Change]:
    """Yield an edit for each call of ``initialize``."""
    calls = {blocks.statement_of(file.module, call): call for call in file.references.calls(_INITIALIZE)}
    again = {item: statement for statement in calls for item in repeats(file, statement)}
    starts = [_start(file, call) for statement, call in calls.items() if statement not in again]
    starts = [above_wrapper(file, start, len(starts) == 1) for start in starts]
    for statement in again:
        if not any(statement in start.condition.body for start in starts if start.condition is not None):
            yield Change(RULE, file.module, statement, "the models are prepared already", [Remove(statement)])
    for start in starts:
        earlier = starts[: starts.index(start)]
        yield _before(file, start, earlier) if start.beside is not None else _in_place(file, start, starts, earlier)
        for dead in _left_dead(file, start):
            yield Change(RULE, file.module, dead, "what it gives is there already", [Remove(dead)])
        for made in _only_for(file, start.call) if start.beside is None else ():
            yield Change(RULE, file.module, made, "its values are arguments of the start now", [Remove(made)])


def _start(file: ApexFile, call: ast.Call) -> Start:
    statement = blocks.statement_of(file.module, call)
    arguments = _arguments(file, call)
    lines, handed = _prepared(file, statement, call, arguments)
    condition = beside = begun = None
    if not _asked_under_condition(arguments):
        condition = condition_alone(file, statement)
        if condition is None:
            others = condition_beside_others(file, statement, arguments)
            begun = condition_begun(file, statement, arguments, handed) if others is None else None
            beside = others or begun
    asked = level = _level(file, arguments)
    for around in (condition, beside):
        if around is not None and not _says_not_o0(file, around.test, level):
            level = _under(file, around.test, level)
    if begun is None:
        lines, handed = [*lines, *handed], []
    return Start(call, statement, arguments, asked, level, condition, beside, lines, handed)


def _in_place(file: ApexFile, start: Start, starts: list[Start], earlier: list[Start]) -> Change:
    where = start.place
    comments = _comments(file, start)
    other = other_branch(file, start, starts)
    loop = _loop(file, where, [value for name, value in start.arguments.items() if name not in MODELS])
    before = other[0] if other is not None else loop
    actions: list[Action] = [Remove(where)]
    lines = [*comments, *start.prepared]
    if start.above is not None:
        actions.append(Insert(start.above, "\n".join([_init(file, start, start.above), *lines]), commented=True))
        lines = []
    elif is_started(file, start, earlier):
        pass
    elif before is None:
        lines.insert(0, _init(file, start, where))
    elif other is None:
        actions.append(Insert(before, _init(file, start, before)))
    else:
        branch, twin = other
        alike = start.prepared == twin.prepared and not comments and not _comments(file, twin)
        is_whole = alike and all(is_first(file, item, branch) for item in (start, twin))
        if twin not in earlier:
            actions.append(Insert(branch, "\n".join([_init(file, start, branch), *(lines if is_whole else ())])))
        if is_whole:
            lines = []
    if lines:
        actions.append(Insert(where, "\n".join(lines)))
    return Change(RULE, file.module, where, "the level is an argument; AMP_OPT_LEVEL overrides it", actions)


def _before(file: ApexFile, start: Start, earlier: list[Start]) -> Change:
    """The edit for one statement of several under a condition: what it prepares is prepared before the condition."""
    assert start.beside is not None
    lines = list(start.prepared)
    if not is_started(file, start, earlier):
        lines.insert(0, _init(file, start, start.beside))
    actions: list[Action] = [Insert(start.beside, "\n".join(lines), commented=True)]
    if start.handed:
        actions.append(Insert(start.statement, "\n".join(start.handed)))
    actions.append(Remove(start.statement, keep_comments=True))
    return Change(RULE, file.module, start.statement, "the level is an argument; AMP_OPT_LEVEL overrides it", actions)


def _arguments(file: ApexFile, call: ast.Call) -> dict[str, ast.expr]:
    keywords = {item.arg: item.value for item in call.keywords if item.arg is not None}
    for item in call.keywords:
        if item.arg is None:
            made = written_out(file, call, item.value)
            if made is None or keywords.keys() & made.values.keys():
                raise file.not_understood(call, "the arguments of `initialize` are made elsewhere")
            keywords.update(made.values)
    if any(isinstance(item, ast.Starred) for item in call.args):
        raise file.not_understood(call, "the arguments of `initialize` are made elsewhere")
    if len(call.args) > len(api.INITIALIZE_PARAMETERS) - 2:
        # Ascend's variant has four more before the last two.
        raise file.not_understood(
            call, "what the last positional arguments of `initialize` mean depends on its version"
        )
    found = dict(zip(api.INITIALIZE_PARAMETERS, call.args, strict=False))
    found.update(keywords)
    for name, value in found.items():
        if name in ("models", "optimizers", "opt_level", *api.INIT_ARGUMENTS, *api.IGNORED_ARGUMENTS):
            continue
        if not is_none(value):
            raise file.not_understood(value, f"`{name}=` of `initialize` has no counterpart")
    if "models" not in found:
        raise file.not_understood(call, "`initialize` is given no model")
    if _is_true(found.get("enabled")):
        del found["enabled"]
    return found


def _only_for(file: ApexFile, call: ast.Call) -> Iterator[ast.stmt]:
    """The statements that make arguments for the call, and nothing else."""
    for item in call.keywords:
        made = written_out(file, call, item.value) if item.arg is None else None
        if made is not None:
            yield from made.made_by


def _is_true(node: ast.expr | None) -> bool:
    """Whether a value is true; also a level that took the place of ``enabled``, and which Apex never saw."""
    return isinstance(node, ast.Constant) and bool(node.value)


def _level(file: ApexFile, arguments: dict[str, ast.expr]) -> str:
    level = arguments.get("opt_level")
    if level is None:
        return '"O1"'
    if isinstance(level, (ast.IfExp, ast.BoolOp, ast.Lambda)):
        return f"({code_of(file, level)})"
    source = file.source(level)
    if isinstance(level, ast.Constant) and isinstance(level.value, str) and source[0] not in "'\"":
        return f'"{level.value}"'
    return source


def _under(file: ApexFile, test: ast.expr, level: str) -> str:
    """The level under a condition, without which the script trains at O0."""
    condition = file.source(test)
    if condition == level:  # ``--fp16 O1``
        return f'{condition} or "O0"'
    quote = level[0] if level[0] in "'\"" else '"'
    return f"{level} if {condition} else {quote}O0{quote}"


def _comments(file: ApexFile, start: Start) -> list[str]:
    """What is said beside the statement, in the condition that goes; not what once called Apex there."""
    if start.condition is None:
        return []
    lines = file.module.lines
    kept: list[str] = []
    call: list[str] = []
    last = max(item.end_lineno or 0 for item in start.condition.body)
    code = {line for item in start.condition.body for line in range(item.lineno, (item.end_lineno or 0) + 1)}
    for number, line in enumerate(lines[start.condition.lineno : last], start.condition.lineno + 1):
        row = line.strip() if number not in code else ""
        if row.startswith("#") and (call or _CALLS_APEX.search(row)):
            call.append(row)
            if "".join(call).count("(") <= "".join(call).count(")"):
                call = []
        elif row.startswith("#"):
            kept.append(row)
    kept += call  # the rest of it stands below
    for line in lines[last:]:
        row = line.strip()
        if row and not (row.startswith("#") and len(line) - len(line.lstrip()) >= start.statement.col_offset):
            break
        kept += [row] if row else []
    return kept


def _loop(file: ApexFile, where: ast.stmt, given: list[ast.expr]) -> ast.stmt | None:
    """The loop that does nothing but prepare several models, with one level: the runtime starts before it."""
    loop = blocks.place(file.module, where).parent
    if not isinstance(loop, ast.For) or not all(item is where or isinstance(item, ast.Assign) for item in loop.body):
        return None
    conditions = [where.test] if isinstance(where, ast.If) else []
    written = blocks.writes(loop)
    return None if any(blocks.touches(blocks.reads(item), written) for item in (*given, *conditions)) else loop


def _says_not_o0(file: ApexFile, test: ast.expr, level: str) -> bool:
    """Whether a condition asks only for another level than O0: ``args.opt_level != "O0"``."""
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.ops[0], ast.NotEq)
        and len(test.ops) == 1
        and isinstance(test.comparators[0], ast.Constant)
        and test.comparators[0].value == "O0"
        and file.source(test.left) == level
    )


def _init(file: ApexFile, start: Start, before: ast.stmt) -> str:
    more = tuple(
        (name, code_of(file, value))
        for name, value in start.arguments.items()
        if name in api.INIT_ARGUMENTS and not is_none(value)
    )
    asked = file.options.loss_scale
    said = InitArguments(
        start.level,
        _half_type(file, start),
        # The script's own scale stays, as its level does.
        None if asked == "dynamic" or any(name == "loss_scale" for name, _ in more) else asked,
        more=more,
    )
    return file.vocabulary.start(file.module, said, _WIDTH - file.module.start(before)[1])


def _half_type(file: ApexFile, start: Start) -> str | None:
    """The half type that was asked for; Apex's own where half weights meet what the script makes so or asks for."""
    if file.options.dtype != "auto":
        return file.options.dtype
    level = start.arguments.get("opt_level")
    keeps_weights = level is None or (isinstance(level, ast.Constant) and level.value in ("O0", "O1"))
    meets_float16 = not keeps_weights and (file.as_written.makes_float16 or file.as_written.asks_for_float16)
    return "fp16" if meets_float16 else None


def _asked_under_condition(arguments: dict[str, ast.expr]) -> bool:
    """Whether a setting besides the level may not be there where a condition does not hold: ``params["amp"]["scale"]``.

    The level alone is asked for under the condition, wherever that goes.
    """
    settings = (value for name, value in arguments.items() if name in api.INIT_ARGUMENTS)
    return any(isinstance(part, (ast.Subscript, ast.Call)) for value in settings for part in walk(value))


@dataclass(frozen=True)
class _Pair:
    target: ast.expr
    given: ast.expr


def _prepared(
    file: ApexFile, statement: ast.stmt, call: ast.Call, arguments: dict[str, ast.expr]
) -> tuple[list[str], list[str]]:
    """The statements that prepare the models, and those that hand the optimizers on where they get other names."""
    models, optimizers = arguments["models"], arguments.get("optimizers")
    if is_none(optimizers):
        optimizers = None
    if isinstance(statement, ast.Return) and statement.value is call:
        prepared = _prepare(file, models)
        return [f"return {prepared}" if optimizers is None else f"return {prepared}, {file.source(optimizers)}"], []
    if isinstance(statement, ast.Expr) and statement.value is call:
        targets = [models]
    elif isinstance(statement, ast.Assign) and statement.value is call and len(statement.targets) == 1:
        target = statement.targets[0]
        if optimizers is None:
            targets = [target]
        elif isinstance(target, (ast.Tuple, ast.List)) and len(target.elts) == 2:
            targets = list(target.elts)
        elif (unpacked := _unpacked(file, statement, arguments)) is not None:
            targets = list(unpacked[1])
        else:
            raise file.not_understood(statement, "the result of `initialize` is kept in one variable")
    else:
        raise file.not_understood(statement, "the result of `initialize` is used in place")
    lines = [f"{file.source(pair.target)} = {_prepare(file, pair.given)}" for pair in _pairs(file, targets[0], models)]
    handed: list[str] = []
    if optimizers is not None and len(targets) == 2:
        for pair in _pairs(file, targets[1], optimizers):
            same = blocks.path_of(pair.target) is not None and blocks.path_of(pair.target) == blocks.path_of(pair.given)
            if not same and not _is_unread(file, pair.target, _given_back(file, statement, pair)):
                handed.append(f"{file.source(pair.target)} = {file.source(pair.given)}")
    return lines, handed


def _unpacked(
    file: ApexFile, statement: ast.stmt, arguments: dict[str, ast.expr]
) -> tuple[ast.Assign, list[ast.expr]] | None:
    """``model, optimizer = prepared`` just after the call, and to what it gives its two values.

    ``prepared if optimizer is not None else (prepared, None)`` is the same: without optimizers Apex returns the model.
    """
    where = blocks.place(file.module, statement)
    after = where.suite[where.index + 1] if where.index + 1 < len(where.suite) else None
    name = statement.targets[0] if isinstance(statement, ast.Assign) else None
    if not isinstance(name, ast.Name) or not isinstance(after, ast.Assign) or len(after.targets) != 1:
        return None
    target, value = after.targets[0], after.value
    if not isinstance(target, (ast.Tuple, ast.List)) or len(target.elts) != 2:
        return None
    if isinstance(value, ast.IfExp):
        given = [arguments["models"], arguments["optimizers"]]
        alone = ast.unparse(ast.Tuple([name, ast.Constant(None)], ast.Load()))
        sides = {ast.unparse(value.body), ast.unparse(value.orelse)}
        if sides != {name.id, alone} or [ast.unparse(item) for item in target.elts] != list(map(ast.unparse, given)):
            return None
    elif not (isinstance(value, ast.Name) and value.id == name.id):
        return None
    inside = set(walk(after))
    scope = file.references.scope_of(name).owner(name.id)
    others = (
        node
        for node in file.module.parents
        if isinstance(node, ast.Name) and node.id == name.id and node is not name and node not in inside
    )
    if any(file.references.scope_of(node).owner(node.id) is scope for node in others):
        return None
    return after, list(target.elts)


def _given_back(file: ApexFile, statement: ast.stmt, pair: _Pair) -> ast.Assign | None:
    """``wrapper.optimizer = optimizer`` just after the call, where the optimizer is that of ``wrapper``."""
    where = blocks.place(file.module, statement)
    after = where.suite[where.index + 1] if where.index + 1 < len(where.suite) else None
    path = blocks.path_of(pair.given)
    if path is None or not isinstance(after, ast.Assign) or len(after.targets) != 1:
        return None
    paths = (blocks.path_of(after.targets[0]), blocks.path_of(after.value))
    return after if paths == (path, blocks.path_of(pair.target)) else None


def _is_unread(file: ApexFile, target: ast.expr, but: ast.stmt | None = None) -> bool:
    """Whether a function gives a value to a variable of its own that nothing reads, one statement left out."""
    if not isinstance(target, ast.Name):
        return False
    scope = file.references.scope_of(target)
    left_out = set(walk(but)) if but is not None else set()
    return (
        scope.is_function
        and scope.owner(target.id) is scope
        and not any(
            isinstance(node, ast.Name)
            and node.id == target.id
            and isinstance(node.ctx, ast.Load)
            and node not in left_out
            and file.references.scope_of(node).owner(node.id) is scope
            for node in file.module.parents
        )
    )


def _left_dead(file: ApexFile, start: Start) -> list[ast.Assign]:
    """What only gave the optimizer back to where it was taken from, or took the result apart."""
    unpacked = _unpacked(file, start.statement, start.arguments) if "optimizers" in start.arguments else None
    if unpacked is not None:
        return [unpacked[0]]
    targets = start.statement.targets[0] if isinstance(start.statement, ast.Assign) else None
    optimizers = start.arguments.get("optimizers")
    if optimizers is None or not isinstance(targets, (ast.Tuple, ast.List)) or len(targets.elts) != 2:
        return []
    found = [_given_back(file, start.statement, pair) for pair in _pairs(file, targets.elts[1], optimizers)]
    return [item for item in found if item is not None]


def _prepare(file: ApexFile, model: ast.expr) -> str:
    if isinstance(model, (ast.List, ast.Tuple)):
        return "[" + ", ".join(_prepare(file, item) for item in model.elts) + "]"
    return prepared_list(file, model) or file.vocabulary.prepared(file.module, file.source(model))


def _pairs(file: ApexFile, target: ast.expr, given: ast.expr) -> list[_Pair]:
    if isinstance(target, (ast.List, ast.Tuple)):
        if not isinstance(given, (ast.List, ast.Tuple)) or len(given.elts) != len(target.elts):
            raise file.not_understood(given, "the list of `initialize` is made elsewhere")
        return [pair for one, other in zip(target.elts, given.elts, strict=True) for pair in _pairs(file, one, other)]
    return [_Pair(target, given)]
