"""What a file says about being run by several processes: whether it is, and which of them get to a place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from amp_rules.source.index import FileIndex, Function, keyword, literal
from amp_rules.source.syntax import last_name
from amp_rules.torch.frameworks import looks_after_processes
from amp_rules.torch.idioms import (
    EXACT_RANK,
    NAMED_COUNT,
    NAMED_DEVICE,
    NAMED_JOIN,
    NAMED_OF_SEVERAL,
    NAMED_RANK,
    NAMED_SEVERAL,
)

if TYPE_CHECKING:
    from amp_rules.source.facts import ModuleFacts

_EVIDENCE = frozenset(
    """
    init_process_group DistributedDataParallel DistributedSampler DistributedBatchSampler
    """.split()
)
_SHARDED = frozenset(
    "FullyShardedDataParallel FSDP fully_shard deepspeed DeepSpeedEngine FullyShardedStrategy fsdp xm".split()
)
_STARTS = frozenset("spawn start_processes launch Process run_distributed launch_job elastic_launch".split())
_STARTS_PROGRAMS = frozenset({"subprocess.Popen", "subprocess.run", "subprocess.call", "subprocess.check_call"})
_MAINS = frozenset("main main_worker main_process run_main cli_main".split())


def says_it_is_distributed(module: ModuleFacts) -> bool:
    """Whether the file itself joins processes or splits work among them: an import that is not used says nothing."""
    for name, calls in module.index.named.items():
        if name in _EVIDENCE or NAMED_JOIN.search(name):
            return True
        if name in module.imports and module.imports[name].rpartition(".")[2] in _EVIDENCE:
            return True
        if name == "init" and any(_joins_processes(call) for call in calls):
            return True
    return False


def _joins_processes(call: ast.Call) -> bool:
    """Whether a call of ``amp.init`` lets several processes join."""
    return literal(keyword(call, "ddp")) is True or literal(keyword(call, "parallel")) in ("ddp", "fsdp")


def is_sharded(module: ModuleFacts) -> bool:
    """Whether weights may be split among the processes, so that all of them take part in a checkpoint."""
    starts = module.index.named.get("init", ())
    return bool(module.index.words & _SHARDED) or any(literal(keyword(call, "parallel")) == "fsdp" for call in starts)


def uses_framework(module: ModuleFacts) -> bool:
    """Whether a framework that looks after processes itself is at work; not in the framework's own files."""
    for name in (*module.imports.values(), *module.stars):
        if looks_after_processes(name) and name.partition(".")[0] not in module.module.path.parts:
            return True
    return "prepare_loader" in module.index.words


def uses_accelerate(module: ModuleFacts) -> bool:
    """Whether the file makes an ``Accelerator``, which starts nothing by itself: each process runs the whole script."""
    calls = module.index.named.get("Accelerator", ())
    others = [
        name
        for name in module.imports.values()
        if looks_after_processes(name) and name.partition(".")[0] != "accelerate"
    ]
    return not others and any((module.dotted(call.func) or "").startswith("accelerate.") for call in calls)


def names_rank(node: ast.AST) -> bool:
    """Whether an expression has a name that says which process this is, or how many there are."""
    for item in ast.walk(node):
        name = last_name(item)
        if not name and isinstance(item, ast.Constant) and isinstance(item.value, str):
            name = "" if _is_no_name(item.value) else item.value
        if NAMED_RANK.search(name):
            return True
    return False


def _is_no_name(text: str) -> bool:
    """Whether a text is prose, as that of a docstring, or a word that folders are called by: ``ImageSets/Main``."""
    return text in ("Main", "main") or len(text.split()) > _MAX_WORDS


_MAX_WORDS = 4
"""Words in a text that is a name or a label, ``"rank {} of {}"``; what is longer is a sentence about something."""


def in_several(test: ast.expr) -> bool | None:
    """What a test of the number of processes is where there are several; None where it is about anything else."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        found = in_several(test.operand)
        return None if found is None else not found
    if isinstance(test, ast.BoolOp):
        parts = [in_several(item) for item in test.values]
        if isinstance(test.op, ast.And):
            return False if False in parts else None if None in parts else True
        return True if True in parts else None if None in parts else False
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _compared(test.left, test.ops[0], test.comparators[0])
    if isinstance(test, ast.Call) and last_name(test.func) == "isinstance" and len(test.args) == 2:
        return True if NAMED_OF_SEVERAL.search(last_name(test.args[1])) else None
    name = name_of_test(test)
    if NAMED_COUNT.search(name):
        return None if isinstance(test, ast.Call) else True  # ``if cfg.NUM_GPUS:``
    return True if NAMED_SEVERAL.search(name) and not counts_processes(name) else None


def name_of_test(node: ast.expr) -> str:
    """The last name of a test, or that of a setting: ``distributed`` of ``args["distributed"]``."""
    key = node.slice if isinstance(node, ast.Subscript) else None
    if isinstance(key, ast.Constant) and isinstance(key.value, str):
        return key.value
    return last_name(node.func if isinstance(node, ast.Call) else node)


def _compared(left: ast.expr, op: ast.cmpop, right: ast.expr) -> bool | None:
    name = name_of_test(left)
    if isinstance(right, ast.UnaryOp) and isinstance(right.op, ast.USub) and literal(right.operand) == 1:
        # ``local_rank == -1`` is how scripts say that there is one process; ``world_size == -1``, that it is not known.
        if counts_processes(name) or (not NAMED_RANK.search(name) and not NAMED_DEVICE.search(name)):
            return None
        return {ast.Eq: False, ast.NotEq: True, ast.Gt: True}.get(type(op))
    if NAMED_COUNT.search(name) and literal(right) == 0:
        return {ast.Eq: False, ast.NotEq: True, ast.Gt: True, ast.LtE: False}.get(type(op))
    if counts_processes(name) or NAMED_COUNT.search(name):
        if literal(right) == 1:
            return {ast.Eq: False, ast.NotEq: True, ast.Gt: True, ast.LtE: False}.get(type(op))
        if literal(right) == 2:
            return {ast.GtE: True, ast.Lt: False}.get(type(op))
    return None


def counts_processes(name: str) -> bool:
    """Whether a name is a number of processes."""
    return "size" in name or "num" in name or name.startswith("n")


_MAX_DEPTH = 3
"""How far a test is followed, through names, helpers and callers: scripts ask for the rank in a helper of a helper."""
_HELPER_LINES = 12
"""A longer function does more than to say which process this is."""


def depends_on_process(index: FileIndex, test: ast.AST, depth: int = _MAX_DEPTH) -> bool:
    """Whether a test may come out differently in different processes."""
    if names_rank(test):
        return True
    for item in ast.walk(test):
        if isinstance(item, ast.Compare) and is_first_device(item):
            return True
        if depth and isinstance(item, (ast.Name, ast.Attribute)) and isinstance(item.ctx, ast.Load):
            known = [value for value in index.values_of(item) if not _comes_later(index, value, item)]
            if any(_of_one_process(index, value, depth, _branches(index, item)) for value in known):
                return True
        if depth and isinstance(item, ast.Call):
            if any(_answers_by_rank(index, function) for function in index.callees(item)):
                return True
    return False


def _comes_later(index: FileIndex, value: ast.expr, item: ast.expr) -> bool:
    """Whether a variable gets a value only below where it is read, in the same function and no loop around both."""
    if index.scope(value) is not index.scope(item) or value.lineno <= item.lineno:
        return False
    return set(index.loops_around(item)).isdisjoint(index.loops_around(value))


def is_first_device(test: ast.Compare) -> bool:
    """Whether a test asks for a GPU by its number: ``gpu == 0``, ``args.device in (-1, 0)``."""
    name = last_name(test.left)
    return bool(NAMED_DEVICE.search(name)) and isinstance(
        test.ops[0], (ast.Eq, ast.NotEq, ast.In, ast.NotIn, ast.Gt, ast.Lt)
    )


def _branches(index: FileIndex, node: ast.AST) -> frozenset[tuple[ast.expr, bool]]:
    return frozenset((test, holds) for test, holds in index.branches(node))


def _of_one_process(
    index: FileIndex, value: ast.expr, depth: int, around: frozenset[tuple[ast.expr, bool]] = frozenset()
) -> bool:
    """Whether a value that a name is given is made by one process only, or by asking which process this is.

    Args:
        index: the file.
        value: the value.
        depth: how many names may still be followed.
        around: what stands around where the name is read: all processes that come there have passed it.
    """
    if isinstance(value, ast.Constant):
        return False
    if _is_rank_of_environment(value):
        return True
    if isinstance(value, (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.IfExp, ast.Name, ast.Attribute)):
        if depends_on_process(index, value.test if isinstance(value, ast.IfExp) else value, depth - 1):
            return True
    if not isinstance(value, ast.Call):
        return False
    if names_rank(value.func) and not is_class(value.func):
        return True
    return is_guarded(index, value, depth - 1, around)


def _is_rank_of_environment(value: ast.expr) -> bool:
    """``int(os.environ.get("RANK", 0))``, whatever the variable is called that it is given."""
    if isinstance(value, ast.Call) and last_name(value.func) == "int" and len(value.args) == 1:
        return _is_rank_of_environment(value.args[0])
    if isinstance(value, ast.Subscript):
        return last_name(value.value) == "environ" and bool(EXACT_RANK.search(str(literal(value.slice))))
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute) or not value.args:
        return False
    asks = value.func.attr == "getenv" or (value.func.attr == "get" and last_name(value.func.value) == "environ")
    return asks and bool(EXACT_RANK.search(str(literal(value.args[0]))))


def is_class(function: ast.expr) -> bool:
    """``DDP(model)``: an object is there in each process that makes one, whatever its class is called."""
    return last_name(function)[:1].isupper()


def _answers_by_rank(index: FileIndex, function: Function) -> bool:
    """Whether a small function returns something about the rank."""
    if (function.end_lineno or 0) - function.lineno > _HELPER_LINES:
        return False
    returned = [item.value for item in ast.walk(function) if isinstance(item, ast.Return) and item.value is not None]
    return any(names_rank(item) for item in returned)


def is_guarded(
    index: FileIndex,
    node: ast.AST,
    depth: int = _MAX_DEPTH,
    around: frozenset[tuple[ast.expr, bool]] = frozenset(),
) -> bool:
    """Whether it depends on the process, within its function, whether ``node`` is reached, but for tests ``around``."""
    if depth <= 0:
        return False
    # What stands under ``if distributed:``, all of several processes do.
    tests = [test for test, holds in index.branches(node) if in_several(test) is None and (test, holds) not in around]
    asked = (item for item in replaced_by(index, node) if in_several(item) is None)
    return any(depends_on_process(index, test, depth) for test in tests) or any(map(names_rank, asked))


def replaced_by(index: FileIndex, node: ast.AST) -> Iterator[ast.expr]:
    """The tests of what does the same in place of ``node``: calls what its statement calls."""
    child = node
    names = _called_apart(index.statement(node)) - _OF_ANY_CODE
    for item in index.ancestors(node):
        if isinstance(item, ast.If) and child is not item.test and not isinstance(item.test, (ast.Compare, ast.BoolOp)):
            for statement in item.orelse if child in item.body else item.body:
                inside = (inner for inner in ast.walk(statement) if isinstance(inner, ast.If))
                yield from (inner.test for inner in inside if not names.isdisjoint(_called_in(inner)))
        elif isinstance(item, Function):
            return
        child = item


_OF_ANY_CODE = frozenset({
    "append", "dict", "enumerate", "float", "format", "int", "isinstance", "item", "items", "join", "keys", "len",
    "list", "max", "min", "range", "set", "sorted", "str", "sum", "tuple", "values", "zip",
})  # fmt: skip
"""What code of any kind calls: two branches that have it in common need not do the same."""


def _called_in(node: ast.AST) -> set[str]:
    """The last names of what a node calls."""
    return {last_name(item.func) for item in ast.walk(node) if isinstance(item, ast.Call)}


def _called_apart(statement: ast.AST) -> set[str]:
    """The same of a statement, without what it keeps for one process itself: that stands in the place of nothing."""
    kept: set[ast.AST] = set()
    for item in ast.walk(statement):
        if isinstance(item, ast.If) and item is not statement and asks_for_one(item.test):
            kept.update(part for inner in item.body for part in ast.walk(inner))
    return {last_name(item.func) for item in ast.walk(statement) if isinstance(item, ast.Call) and item not in kept}


def asks_for_one(test: ast.AST) -> bool:
    """Whether a test names what tells processes apart."""
    if in_several(test) is not None:  # type: ignore[arg-type]
        return False
    return names_rank(test) or any(NAMED_DEVICE.search(last_name(item)) for item in ast.walk(test))


def spawns(index: FileIndex) -> bool:
    """Whether the file starts processes itself, so that what stands around that runs once."""
    return any(
        last_name(call.func) in _STARTS
        and any(last_name(item) in index.functions for item in [*call.args, *(part.value for part in call.keywords)])
        for call in index.calls
    )


def starts_interpreters(module: ModuleFacts, node: ast.AST) -> bool:
    """Whether the function around a node starts scripts in processes of their own, and so is none of them."""
    scope = module.index.scope(node)
    if scope is None or "executable" not in module.index.words:
        return False
    for call in module.index.calls:
        if module.dotted(call.func) in _STARTS_PROGRAMS and module.index.scope(call) is scope:
            parts = (item for given in call.args for item in ast.walk(given) if isinstance(item, ast.Attribute))
            if any(module.dotted(item) == "sys.executable" for item in parts):
                return True
    return False


def starts_of(index: FileIndex, function: Function) -> Iterator[ast.Call]:
    """The calls that start processes with a function."""
    for call in index.calls:
        if last_name(call.func) in _STARTS:
            given = [*call.args, *(item.value for item in call.keywords)]
            if any(last_name(item) == function.name for item in given):
                yield call


def is_main(index: FileIndex, function: Function) -> bool:
    """Whether a function that nothing in the file calls is what a script runs, by its name."""
    return function.name in _MAINS and index.owner(function) is None
