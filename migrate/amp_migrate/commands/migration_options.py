"""Options that say what is migrated, which every command that migrates has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
from amp_rules.plan.options import APEX_MODES, DTYPES, OPT_LEVELS, TARGETS

from amp_migrate.commands.shared import Words, color_option, config_option, listed
from amp_migrate.settings.migration import parse_loss_scale

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def _loss_scale(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
    try:
        return None if value is None else parse_loss_scale(value)
    except ValueError as error:
        message = f"{value!r} is neither 'dynamic' nor a positive number."
        raise click.BadParameter(message, ctx, param) from error


_MIGRATION = (
    click.option(
        "--opt-level",
        type=Words(OPT_LEVELS),
        metavar="O0|O1|O2|O3",
        help="Precision level, named as in Apex. [default: O1]",
    ),
    click.option("--ddp/--no-ddp", default=None, help="Also migrate to several processes. [default: no]"),
    click.option(
        "--sync-bn/--no-sync-bn",
        default=None,
        help="With --ddp, synchronise batch norm over the processes. [default: yes]",
    ),
    click.option(
        "--shard/--no-shard",
        default=None,
        help="Share parameters, gradients and optimizer states out over the processes too (FSDP2); includes --ddp. "
        "[default: no]",
    ),
    click.option(
        "--shard-eval/--no-shard-eval",
        default=None,
        help="With --ddp, share evaluations out where that gives the numbers of one process. [default: no]",
    ),
    click.option("--fused/--no-fused", default=None, help="Use fused kernels of optimizers. [default: yes]"),
    click.option("--dtype", type=Words(DTYPES), help="Half precision type. [default: auto]"),
    click.option(
        "--loss-scale",
        metavar="dynamic|N",
        callback=_loss_scale,
        help="Dynamic, or a fixed loss scale. [default: dynamic]",
    ),
    click.option(
        "--target",
        type=Words(TARGETS),
        help="What migrated scripts use: the package amp_runtime, or plain PyTorch alone (O0 and O1). "
        "[default: runtime]",
    ),
    click.option(
        "--apex",
        type=Words(APEX_MODES),
        help="Scripts for NVIDIA Apex: idiom rewrites them like any other, compat changes their imports only, auto "
        "takes the first where the whole project is understood. [default: auto]",
    ),
    click.option(
        "--modernize/--no-modernize",
        default=None,
        help="Also replace what a current PyTorch no longer has: Variable, volatile, loss.data[0] and the like. "
        "[default: for scripts that use Apex]",
    ),
    click.option(
        "--switch/--no-switch",
        default=None,
        help="Where the script has an argument parser, give it an option --amp that chooses the level. [default: no]",
    ),
    click.option(
        "--select",
        multiple=True,
        metavar="CODES",
        callback=listed,
        help="Carry out these rewrites only: codes such as AMP105, or their beginnings.",
    ),
    click.option("--ignore", multiple=True, metavar="CODES", callback=listed, help="Leave these rewrites out."),
)
HOW_IT_IS_WRITTEN = (
    *("fused", "dtype", "loss_scale", "target", "apex", "switch"),
    *("vendor", "launch_lines", "install_line"),
)
"""The parameters that change how new code is written, and not what is migrated: a section of ``--help``."""

_VOICE = (
    color_option,
    click.option("-q", "--quiet", is_flag=True, help="Print no summary, only errors."),
    click.option("-v", "--verbose", is_flag=True, help="List every edit, and tracebacks of internal errors."),
    config_option("tool.amp-migrate"),
)


def migration_options(command: Decorated) -> Decorated:
    """Add the options that say what is migrated."""
    return _with(command, _MIGRATION)


def voice_options(command: Decorated) -> Decorated:
    """Add the options that say how much is told and in which colours, and where the settings stand."""
    return _with(command, _VOICE)


def _with(command: Decorated, options: Sequence[Callable[[Any], Any]]) -> Decorated:
    # As decorators stand above each other: the last one is the first to be applied.
    for option in reversed(options):
        command = option(command)
    return command
