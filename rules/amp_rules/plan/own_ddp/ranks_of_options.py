"""Ranks that an option of the command line gives, as a launcher of the project passes it: torchrun gives none."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.launchers import Starts
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.rank_values import RankValues
from amp_rules.roles.program import Program
from amp_rules.source.index import argument_at, keyword, literal
from amp_rules.source.modules import Module
from amp_rules.source.syntax import last_name
from amp_rules.torch.distributed import OPTION_OF_LAUNCHERS, RANK_OF_JOIN


def ranks_of_options(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first call that joins under the number of an option whose default is a rank, too."""
    starts = Starts(own.program, own.joins)
    if not own.joins or starts.by_script:
        return
    ranks = RankValues(own.program, joins_tell=False)
    for site in own.joins:
        assert isinstance(site.node, ast.Call)
        rank = argument_at(site.node, "rank", RANK_OF_JOIN)
        if rank is None or site.module not in own.modules or not starts.is_direct(site):
            continue
        for name in ranks.options(rank, site.scope):
            option = f"--{name}"
            default = _default(own.program, option)
            if option in OPTION_OF_LAUNCHERS or default is None:
                continue
            text = f"`{site.module.text(rank)}` is what the option `{option}` says, and torchrun gives no such option:"
            text += f" each process that it starts joins as {default}, the default; start them with that option, or let"
            yield site.module, site.node, f'{text} its default be `int(os.environ.get("RANK", {default}))`'
            return


def _default(program: Program, option: str) -> int | None:
    """The number that an option is where the command line does not say it; None for anything else."""
    found = [
        literal(keyword(node, "default"))
        for module in program.flow.modules
        for node in module.nodes
        if isinstance(node, ast.Call) and last_name(node.func) == "add_argument"
        if any(
            str(literal(item)).replace("-", "_").strip("_") == option.replace("-", "_").strip("_") for item in node.args
        )
    ]
    given = found[0] if len(found) == 1 else None
    return given if isinstance(given, int) and not isinstance(given, bool) and given >= 0 else None
