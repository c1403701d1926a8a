"""Collective operations that only some processes take part in."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.origins import functions_called
from amp_rules.checks.common.rank_branches import in_several
from amp_rules.checks.common.waiting_calls import asks_for_rank, is_collective, is_counterpart
from amp_rules.checks.common.wrapping import is_ddp
from amp_rules.lint.check import Check, LintedFile
from amp_rules.source.facts import FunctionFacts, ModuleFacts
from amp_rules.source.index import Branch
from amp_rules.source.syntax import last_name


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
            tests = [branch for branch in branches if asks_for_rank(module, *branch)]
            others = [other for other in found if other is not call]
            if len(tests) == 1 and not any(is_counterpart(module, call, tests[0], other) for other in others):
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
        if is_collective(module, call) or (name == "backward" and wraps):
            yield call, list(index.branches(call))
        elif name in index.functions or name in module.imports or isinstance(call.func, ast.Attribute):
            branches = list(index.branches(call))
            if any(asks_for_rank(module, *branch) for branch in branches):
                if any(_waits(function) for function in functions_called(module, call)):
                    yield call, branches


def _waits(function: FunctionFacts, depth: int = 2) -> bool:
    """Whether a function of the project runs a collective operation whenever there are several processes."""
    module = function.module
    for item in function.nodes:
        if not isinstance(item, ast.Call) or module.index.scope(item) is not function.node:
            continue
        if is_collective(module, item):
            waits = True
        else:
            waits = depth > 0 and any(
                called.node is not function.node and _waits(called, depth - 1)
                for called in functions_called(module, item)
            )
        if waits and all(in_several(test) is holds for test, holds in module.index.branches(item)):
            return True
    return False
