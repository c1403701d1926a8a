"""Collective operations that only some processes take part in."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.lint.check import Check, LintedFile
from amp_rules.source.facts import ModuleFacts
from amp_rules.source.index import Branch, FileIndex, keyword
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
    group, in a branch that one rank enters and the others do not, where no other branch has its counterpart.

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
    advice = "Let every process run the collective operation, and ask for the rank around what is done with the result."
    triggers = (
        "barrier(", "all_reduce(", "all_gather", "broadcast(", "broadcast_object_list(", "reduce_scatter", "all_to_all",
        "dist.reduce(", "dist.gather(", "dist.scatter(", "distributed.reduce(", "distributed.gather(",
    )  # fmt: skip

    def visit_module(self, file: LintedFile) -> None:
        """Judge each collective operation."""
        module = file.module
        text = module.module.source.text
        if not any(f"{name}(" in text for name in _COLLECTIVES) or ("rank" not in text.lower() and "is_ma" not in text):
            return
        index = module.index
        found = [call for call in _collectives(module) if not _has_group(call)]
        for call in found:
            tests = [branch for branch in index.branches(call) if _asks_for_rank(*branch)]
            if len(tests) == 1 and not any(_is_counterpart(index, call, tests[0], other) for other in found):
                name = module.module.text(call.func)
                where = module.module.text(tests[0][0])
                message = f"`{name}` waits for all processes, but `{where}` lets only some of them get here"
                self.report_in(file, call, message)


def _collectives(module: ModuleFacts) -> Iterator[ast.Call]:
    for name in _COLLECTIVES & module.index.named.keys():
        for call in module.index.named[name]:
            dotted = module.dotted(call.func) or ""
            if dotted.startswith("torch.distributed."):
                yield call


def _has_group(call: ast.Call) -> bool:
    place = _POSITION_OF_GROUP.get(last_name(call.func), 3)
    return (
        keyword(call, "group") is not None
        or len(call.args) > place
        or bool(call.keywords and call.keywords[-1].arg is None)
    )


def _asks_for_rank(test: ast.expr, holds: bool) -> bool:
    """Whether a test that comes out like this says something of the rank: ``rank == 0``, ``several and rank == 0``."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And if holds else ast.Or):
        return any(_asks_for_rank(item, holds) for item in test.values)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _asks_for_rank(test.operand, not holds)
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (ast.Eq, ast.NotEq, ast.Gt)):
        return _is_rank(test.left) and _is_plain(test.comparators[0]) is True
    name = test.func if isinstance(test, ast.Call) else test
    return bool(EXACT_FIRST_RANK.search(last_name(name)))


def _is_rank(node: ast.expr) -> bool:
    name = last_name(node.func) if isinstance(node, ast.Call) else last_name(node)
    return bool(name and EXACT_RANK.search(name))


def _is_plain(node: ast.expr) -> bool:
    """Whether a rank is compared with a number that is the rank of a process."""
    return isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value >= 0


def _is_counterpart(index: FileIndex, call: ast.Call, branch: Branch, other: ast.Call) -> bool:
    """Whether processes that do not get to ``call`` get to ``other`` instead."""
    if other is call or index.scope(other) is not index.scope(call):
        return False
    test, holds = branch
    for item, comes_out in index.branches(other):
        if item is test:
            return comes_out is not holds
        if _asks_for_rank(item, comes_out) or "rank" in ast.unparse(item):
            # Another question about the rank: whether the two belong together is not ours to say.
            return True
    return False
