"""Steps without a backward pass: ``torch.autograd.grad`` gives the gradients, and the script puts them in place."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.plan.file_names import name_of
from amp_rules.plan.library_uses import Spared, first_use
from amp_rules.plan.own_ddp.averaging import may_average
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.syntax import is_none
from amp_rules.torch.gradients import GRADIENT, GRADIENT_FUNCTIONS
from amp_rules.torch.mixed_precision import TORCH_AMP
from amp_rules.torch.wrappers import DISTRIBUTED_DATA_PARALLEL


def reasons(program: Program, mixes_nothing: Spared) -> Iterator[Declined]:
    """Yield why the precision of such a script stays as it is.

    Args:
        program: the program.
        mixes_nothing: uses of torch's mixed precision that leave the precision to others.
    """
    found = _taken(program)
    if found is None:
        return
    taken, put = found
    where = f"line {put.told_line}" if put.module is taken.module else f"{name_of(program, put.module)}:{put.told_line}"
    text = (
        f"`{taken.module.text(taken.node)}` gives the gradients, and `{put.module.text(put.node)}` ({where}) sets "
        "them by hand, without a backward pass"
    )
    own = first_use(program, TORCH_AMP, mixes_nothing)
    if own is not None:
        yield declining.decline(
            declining.ALREADY_MIXED,
            taken.module,
            taken.node,
            f"the script has its own mixed precision (`{own[2]}`); {text}",
            declining.NO_SECOND_SCALER,
            already=True,
        )
        return
    yield declining.decline(
        declining.GRADIENT_ACCESS,
        taken.module,
        taken.node,
        f"{text}: nothing scales them, and an overflow would skip no step",
        "compute them by `loss.backward()`, then migrate again; or keep the script in FP32",
    )


def not_averaged(program: Program) -> Declined | None:
    """Why wrapped models of such a script part from each other; None where they do not, for all that is known."""
    found = _taken(program)
    if found is None or not program.calls_to(DISTRIBUTED_DATA_PARALLEL) or may_average(program):
        return None
    site = found[0]
    return declining.decline(
        declining.OWN_DISTRIBUTION,
        site.module,
        site.node,
        "DistributedDataParallel averages what `backward()` computes, and not what "
        f"`{site.module.text(site.node)}` gives: each process goes on with gradients of its own",
        "call `loss.backward()` instead, or average these gradients by hand with `torch.distributed.all_reduce`",
    )


def _taken(program: Program) -> tuple[Site, Site] | None:
    """The first call that takes gradients, and the statement that puts some where an optimizer finds them."""
    if program.backwards or not program.steps:
        return None
    calls = program.calls_to(GRADIENT_FUNCTIONS)
    put = next(_puts(program), None) if calls else None
    return (calls[0], put) if put is not None else None


def _puts(program: Program) -> Iterator[Site]:
    for node, body, scope in program.nodes():
        if not (isinstance(node, ast.Attribute) and node.attr == GRADIENT and isinstance(node.ctx, ast.Store)):
            continue
        statement = blocks.statement_of(scope.module, node)
        value = statement.value if isinstance(statement, ast.Assign) else None
        if value is not None and not is_none(value):
            yield Site(scope.module, scope, body, statement)
