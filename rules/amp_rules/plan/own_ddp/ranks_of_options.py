"""Ranks that an option of the command line gives, as a launcher of the project passes it: torchrun gives none."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from amp_rules.checks.common.rank_branches import in_several
from amp_rules.plan.file_names import place_of
from amp_rules.plan.own_ddp.launchers import Starts
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.rank_values import RankValues
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.index import argument_at, keyword, literal
from amp_rules.source.modules import Module
from amp_rules.source.syntax import last_name
from amp_rules.torch.distributed import OPTION_OF_LAUNCHERS, RANK_OF_JOIN

_MAX_CALLERS = 3
"""Functions between the start of a script and where it joins: ``main``, ``run``, ``init_distributed``."""

_STARTS = re.compile(r"\b(?:subprocess|Popen|os\.system|os\.spawn\w+)\b")


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
            defaults = defaults_of(own.program, option)
            if option in OPTION_OF_LAUNCHERS or len(defaults) != 1:
                continue
            default = defaults[0]
            text = f"`{site.module.text(rank)}` is what the option `{option}` says, and torchrun gives no such option:"
            if default is None and not _is_asked(own, site, rank):
                text += " what it starts gets None there, which raises an error; start the processes with that option"
                text += f"{_as_started(own.program, option)}, "
                yield site.module, site.node, f'{text}or let its default be `int(os.environ["RANK"])`'
                return
            if isinstance(default, int) and not isinstance(default, bool) and default >= 0:
                tests = [*_tests_of_several(own, site)]
                count = next((count for test in tests if (count := _option_of_one(own, test)) is not None), None)
                if count is not None:
                    text = f"{text[:-1]}, nor `{count}`, without which no process that it starts joins: each trains "
                    text += "alone; start them with both options, or let their defaults be "
                    text += f'`int(os.environ.get("RANK", {default}))` and `int(os.environ.get("WORLD_SIZE", 1))`'
                    yield site.module, site.node, text
                    return
                who = "whichever process that it starts joins, joins" if tests else "each process that it starts joins"
                text += f" {who} as {default}, the default; start them with that option"
                text += f"{_as_started(own.program, option)}, "
                yield site.module, site.node, f'{text}or let its default be `int(os.environ.get("RANK", {default}))`'
                return


def _as_started(program: Program, option: str) -> str:
    """Where the project starts processes with an option itself: ``cmd.append("--rank={}".format(i))``."""
    for module in program.flow.modules:
        for node in module.nodes if _STARTS.search(module.source.text) else ():
            value = node.value if isinstance(node, ast.Constant) else None
            if isinstance(value, str) and re.match(rf"\s*{re.escape(option)}(?![\w-])", value):
                call = module.parents[node]
                if not (isinstance(call, ast.Call) and last_name(call.func) == "add_argument"):
                    return f", as `{place_of(program, module, node)}` does"
    return ""


def _is_asked(own: OwnDdp, site: Site, rank: ast.expr) -> bool:
    """Whether a test around a call asks for what it joins under: ``if args.rank is not None:``."""
    return any(
        blocks.touches(blocks.reads(test), blocks.reads(rank)) for test, _ in own.branches(site.module, site.node)
    )


def _tests_of_several(own: OwnDdp, site: Site) -> Iterator[ast.expr]:
    """Yield the tests on the ways to a place that ask for several processes, those of the callers, too."""
    pending, seen = [(site, 0)], {site.body}
    for place, depth in pending:
        for test, holds in own.branches(place.module, place.node):
            if in_several(test) is holds:
                yield test
        info = own.program.function_of(place.body)
        for caller in own.program.flow.callers(info) if info is not None and depth < _MAX_CALLERS else ():
            above = calling(caller)
            if above.body not in seen:
                seen.add(above.body)
                pending.append((above, depth + 1))


def _option_of_one(own: OwnDdp, test: ast.expr) -> str | None:
    """The option of a test that does not hold unless the command line says it: ``args.world_size > 1``, of 1."""
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.left, ast.Attribute)):
        return None
    compared, option = literal(test.comparators[0]), f"--{test.left.attr.replace('_', '-')}"
    defaults = defaults_of(own.program, option)
    if len(defaults) != 1 or type(defaults[0]) is not int or type(compared) is not int:
        return None
    default = defaults[0]
    holds = {ast.Gt: default > compared, ast.GtE: default >= compared, ast.NotEq: default != compared}
    is_written = any(
        isinstance(node, ast.Attribute) and node.attr == test.left.attr and isinstance(node.ctx, ast.Store)
        for node, _, _ in own.program.nodes()
    )
    return option if holds.get(type(test.ops[0])) is False and not is_written else None


def defaults_of(program: Program, option: str) -> list[object]:
    """What an option is where the command line does not say it, unless it has to; a text for what is no literal."""
    return [
        given.value if isinstance(given, ast.Constant) else given and ast.unparse(given)
        for module in program.flow.modules
        for node in module.nodes
        if isinstance(node, ast.Call) and last_name(node.func) == "add_argument"
        if literal(keyword(node, "required")) is not True
        if any(
            str(literal(item)).replace("-", "_").strip("_") == option.replace("-", "_").strip("_") for item in node.args
        )
        for given in (keyword(node, "default"),)
    ]
