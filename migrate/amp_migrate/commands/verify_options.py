"""The options of ``amp-migrate verify`` that say what is run, and with what it is compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from amp_rules.plan.options import DTYPES, OPT_LEVELS

from amp_migrate.problems import UserError
from amp_migrate.verify.copies import parse_size
from amp_migrate.verify.launches import Launch, parse

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def _size(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    try:
        return None if value is None else parse_size(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is no size, such as 500M or 8G.", ctx, param) from error


def _levels(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    levels = tuple(dict.fromkeys(word.strip().upper() for word in value.split(",") if word.strip()))
    unknown = [level for level in levels if level not in OPT_LEVELS]
    if unknown or not levels:
        raise click.BadParameter(f"{value!r} is no list of levels; they are {', '.join(OPT_LEVELS)}.", ctx, param)
    return levels


def _types(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
    types = tuple(sorted(word.strip().lower() for word in (value or "").split(",") if word.strip()))
    known = [name for name in DTYPES if name != "auto"]
    if value is not None and (not types or any(name not in known for name in types)):
        raise click.BadParameter(f"{value!r} is no list of half types; they are {', '.join(known)}.", ctx, param)
    return types


def _launch(ctx: click.Context, param: click.Parameter, value: str | None) -> Launch | None:
    try:
        return None if value is None else parse(value)
    except UserError as error:
        raise click.UsageError(str(error), ctx) from error


_OPTIONS = (
    click.option(
        "--levels",
        default="O0,O1,O2",
        metavar="LEVELS",
        callback=_levels,
        help="Precision levels to compare; O0 always is. [default: O0,O1,O2]",
    ),
    click.option(
        "--steps",
        type=click.IntRange(min=1),
        metavar="N",
        help="End the original after N backward calls. [default: at its end, or after a minute]",
    ),
    click.option(
        "--full",
        is_flag=True,
        help="Run every version as far as the original. [default: some runs end earlier, and all together take at most "
        "4 times the original's time]",
    ),
    click.option(
        "--procs",
        type=click.IntRange(1, 64),
        default=2,
        metavar="N",
        help="Also compare N processes with one. Implies --ddp; 1 skips the comparison. [default: 2]",
    ),
    click.option(
        "--launch",
        metavar="COMMAND",
        callback=_launch,
        help='The command that starts several processes: "torchrun --nproc-per-node 4 train.py --epochs 1", or "python '
        'train.py ..." if the script starts them itself.',
    ),
    click.option(
        "--types",
        metavar="TYPES",
        callback=_types,
        help="Half precision types to compare: bf16, fp16 or both. [default: that of the device, and fp16]",
    ),
    click.option(
        "--tolerance",
        type=click.FloatRange(0, 1, min_open=True),
        default=0.05,
        metavar="SHARE",
        help="Largest allowed relative difference between half precision losses and the original's. [default: 0.05]",
    ),
    click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=600.0,
        metavar="SECONDS",
        help="Time limit of each run. [default: 600]",
    ),
    click.option(
        "--memory",
        metavar="SIZE",
        callback=_size,
        help="Memory limit of each run. [default: three quarters of the machine's]",
    ),
    click.option(
        "--seed", type=click.IntRange(0, 2**32 - 1), default=0, metavar="N", help="Seed of every run. [default: 0]"
    ),
    click.option(
        "--threads", type=click.IntRange(min=1), default=1, metavar="N", help="Threads of each process. [default: 1]"
    ),
    click.option("--python", metavar="PATH", help="The Python that has torch. [default: the one of amp-migrate]"),
    click.option("-m", "as_module", is_flag=True, help="Run the script as python -m does, from the working directory."),
    click.option(
        "--against",
        "--migrated",
        "against",
        type=click.Path(path_type=Path),
        metavar="PATH",
        help="Compare with this version instead, made by hand or by another tool: a script, or a folder laid out like "
        "the project.",
    ),
    click.option(
        "--base",
        metavar="REVISION",
        help="Use this git revision as the original, and the work tree as the migrated version.",
    ),
    click.option(
        "--link",
        "links",
        multiple=True,
        type=click.Path(path_type=Path),
        metavar="PATH",
        help="Link this file or folder of the project into the copies instead of copying it. May be repeated.",
    ),
    click.option(
        "--copy-limit", default="2G", metavar="SIZE", callback=_size, help="Largest size of a copy. [default: 2G]"
    ),
    click.option(
        "--keep",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="FOLDER",
        help="Keep copies and records in FOLDER.",
    ),
    click.option(
        "--format",
        "output_format",
        type=click.Choice(["text", "json"]),
        default="text",
        help="Format of standard output. [default: text]",
    ),
)


def verify_options(command: Decorated) -> Decorated:
    """Add the options."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
