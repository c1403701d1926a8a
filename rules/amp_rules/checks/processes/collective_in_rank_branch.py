"""Collective operations that only some processes take part in."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.origins import functions_called, origins
from amp_rules.checks.common.rank_paths import in_several
from amp_rules.checks.common.wrapping import is_ddp
from amp_rules.lint.check import Check, LintedFile
from amp_rules.source.facts import FunctionFacts, ModuleFacts
from amp_rules.source.index import Branch, keyword
from amp_rules.source.syntax import last_name
from amp_rules.torch.idioms import EXACT_FIRST_RANK, EXACT_RANK

_COLLECTIVES = frozenset(
    """
    barrier all_reduce all_gather all_gather_object all_gather_into_tensor reduce_scatter reduce_scatter_tensor
    all_to_all all_to_all_single broadcast broadcast_object_list reduce gather gather_object scatter
    scatter_object_list monitored_barrier
    """.split()
)
_POSITION_OF_GROUP = {"barrier": 0, "all_reduce": 2, "broadcast": 2, "reduce": 3, "all_gather": 2}


class CollectiveInRankBranch(Check):
    """Collective operations that only some processes take part in.

    ## What it does

    Finds `barrier`, `all_reduce`, `broadcast` and other collective operations of `torch.distributed` on the default
    group, functions of the project that run one, and `backward()` of a file that wraps its model in
    DistributedDataParallel, in a branch that one rank enters and the others do not, where no other branch has its
    counterpart.

    ## Why

    A collective operation returns when all processes of the group have called it. The others never do: the run hangs
    until the timeout, which is 10 minutes with NCCL and 30 with Gloo, or the call is paired with a later one of
    theirs, and data of two operations are mixed. With 2 processes and a timeout of 2 s, `if rank == 0: barrier()`
    raises on rank 0.

    ## Example

        if dist.get_rank() == 0:
            dist.all_reduce(loss)
            print(loss)

    ## Use instead

        dist.all_reduce(loss)
        if dist.get_rank() == 0:
            print(loss)

    ## When it is silent

    When the operation has a group of its own, when the branches of other ranks have a collective operation too (as
    in waiting before and after rank 0 prepares the data), when the test is about the number of processes, and when
    the rank is not compared with a constant.

    ## Source

    https://pytorch.org/docs/stable/distributed.html#collective-functions
    """

    code = "AMP910"
    name = "collective-in-rank-branch"
    severity = "error"
    message = "Only some processes take part in a collective operation."
    advice = "Let every process run the collective operation, and check the rank only around the use of its result."
    triggers = (
        "barrier(", "all_reduce(", "all_gather", "broadcast(", "broadcast_object_list(", "reduce_scatter", "all_to_all",
        "dist.reduce(", "dist.gather(", "dist.scatter(", "distributed.reduce(", "distributed.gather(",
        "rank == 0", "rank != 0", "rank() == 0", "rank() != 0", "is_main", "is_master",
    )  # fmt: skip

    def visit_module(self, file: LintedFile) -> None:
        """Judge each collective operation."""
        module = file.module
        text = module.module.source.text
        if "rank" not in text.lower() and "is_ma" not in text:
            return
        found = dict(_waiting(module))
        for call, branches in found.items():
            tests = [branch for branch in branches if _asks_for_rank(module, *branch)]
            others = [other for other in found if other is not call]
            if len(tests) == 1 and not any(_is_counterpart(module, call, tests[0], other) for other in others):
                name = module.module.text(call.func)
                where = module.module.text(tests[0][0])
                message = f"`{name}` waits for all processes, but `{where}` lets only some of them get here"
                self.report_in(file, call, message)


def _waiting(module: ModuleFacts) -> Iterator[tuple[ast.Call, list[Branch]]]:
    """The calls that wait for all processes, with the tests that decide about each."""
    index = module.index
    wraps = any(is_ddp(module, call) for call in index.calls)
    for call in index.calls:
        name = last_name(call.func)
        if _is_collective(module, call) or (name == "backward" and wraps):
            yield call, list(index.branches(call))
        elif name in index.functions or name in module.imports or isinstance(call.func, ast.Attribute):
            branches = list(index.branches(call))
            if any(_asks_for_rank(module, *branch) for branch in branches):
                if any(_waits(function) for function in functions_called(module, call)):
                    yield call, branches


def _waits(function: FunctionFacts, depth: int = 2) -> bool:
    """Whether a function of the project runs a collective operation whenever there are several processes."""
    module = function.module
    for item in function.nodes:
        if not isinstance(item, ast.Call) or module.index.scope(item) is not function.node:
            continue
        if _is_collective(module, item):
            waits = True
        else:
            waits = depth > 0 and any(
                called.node is not function.node and _waits(called, depth - 1)
                for called in functions_called(module, item)
            )
        if waits and all(in_several(test) is holds for test, holds in module.index.branches(item)):
            return True
    return False


def _is_collective(module: ModuleFacts, call: ast.Call) -> bool:
    name = module.dotted(call.func) or ""
    package, _, last = name.rpartition(".")
    return last in _COLLECTIVES and package.startswith("torch.distributed") and not _has_group(call)


def _has_group(call: ast.Call) -> bool:
    place = _POSITION_OF_GROUP.get(last_name(call.func), 3)
    return (
        keyword(call, "group") is not None
        or len(call.args) > place
        or bool(call.keywords and call.keywords[-1].arg is None)
    )


def _asks_for_rank(module: ModuleFacts, test: ast.expr, holds: bool, depth: int = 2) -> bool:
    """Whether a test that comes out like this says something of the rank: ``rank == 0``, ``several and rank == 0``."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And if holds else ast.Or):
        return any(_asks_for_rank(module, item, holds, depth) for item in test.values)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _asks_for_rank(module, test.operand, not holds, depth)
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (ast.Eq, ast.NotEq, ast.Gt)):
        return _is_rank(test.left) and _is_plain(test.comparators[0]) is True
    name = last_name(test.func if isinstance(test, ast.Call) else test)
    if EXACT_FIRST_RANK.search(name) or (EXACT_RANK.search(name) and not isinstance(test, ast.Compare)):
        return True
    if depth and isinstance(test, (ast.Name, ast.Attribute)):
        # ``first = rank == 0``
        values = [item for item in origins(module, test) if item.node is not test]
        return bool(values) and all(
            isinstance(item.node, (ast.Compare, ast.BoolOp))
            and _asks_for_rank(item.module, item.node, holds, depth - 1)
            for item in values
        )
    return False


def _is_rank(node: ast.expr) -> bool:
    name = last_name(node.func) if isinstance(node, ast.Call) else last_name(node)
    return bool(name and EXACT_RANK.search(name))


def _is_plain(node: ast.expr) -> bool:
    """Whether a rank is compared with a number that is the rank of a process."""
    return isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value >= 0


def _is_counterpart(module: ModuleFacts, call: ast.Call, branch: Branch, other: ast.Call) -> bool:
    """Whether processes that do not get to ``call`` get to ``other`` instead."""
    index = module.index
    if index.scope(other) is not index.scope(call):
        return False
    test, holds = branch
    for item, comes_out in index.branches(other):
        if item is test or ast.unparse(item) == ast.unparse(test):
            return comes_out is not holds
        if _asks_for_rank(module, item, comes_out) or "rank" in ast.unparse(item):
            # Another question about the rank: whether the two belong together is not ours to say.
            return True
    return False
