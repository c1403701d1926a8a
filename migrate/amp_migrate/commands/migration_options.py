"""Options that say what is migrated, which every command that migrates has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
from amp_rules.plan.options import APEX_MODES, DTYPES, OPT_LEVELS, QUANTIZATIONS, TARGETS

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
    click.option(
        "--ddp/--no-ddp",
        default=None,
        help="Also migrate to distributed data parallel training, by several processes. [default: no]",
    ),
    click.option(
        "--sync-bn/--no-sync-bn",
        default=None,
        help="With --ddp, compute batch norm statistics over all processes. [default: yes]",
    ),
    click.option(
        "--shard/--no-shard",
        default=None,
        help="Shard parameters, gradients and optimizer states over the processes (FSDP2). Implies --ddp. "
        "[default: no]",
    ),
    click.option(
        "--shard-eval/--no-shard-eval",
        default=None,
        help="With --ddp, split evaluation across the processes if the results equal those of one process. "
        "[default: no]",
    ),
    click.option(
        "--shard-embeddings",
        type=click.IntRange(min=1),
        metavar="ROWS",
        help="With --ddp, shard embedding tables with at least this many rows over the processes, by rows. [default: "
        "none]",
    ),
    click.option(
        "--quantize",
        type=Words(QUANTIZATIONS),
        help="Also make an int8 model when the training has ended, evaluate it beside the float one, and save it; with "
        "qat, the model trains for it. [default: none]",
    ),
    click.option("--fused/--no-fused", default=None, help="Use fused optimizer kernels. [default: yes]"),
    click.option("--dtype", type=Words(DTYPES), help="Half precision type. [default: auto]"),
    click.option(
        "--loss-scale",
        metavar="dynamic|N",
        callback=_loss_scale,
        help="Dynamic loss scaling, or a fixed loss scale. [default: dynamic]",
    ),
    click.option(
        "--target",
        type=Words(TARGETS),
        help="What migrated scripts import: the package amp_runtime, or only PyTorch (O0 and O1). [default: runtime]",
    ),
    click.option(
        "--apex",
        type=Words(APEX_MODES),
        help="How to migrate scripts for NVIDIA Apex. idiom rewrites them like other scripts, compat changes only "
        "their imports, auto is idiom if the whole project is understood, and otherwise compat. [default: auto]",
    ),
    click.option(
        "--modernize/--no-modernize",
        default=None,
        help="Also replace what PyTorch has removed: Variable, volatile, loss.data[0] and others. "
        "[default: for scripts that use Apex]",
    ),
    click.option(
        "--switch/--no-switch",
        default=None,
        help="Add an option --amp, which chooses the level, to the script's own argument parser. [default: no]",
    ),
    click.option(
        "--select",
        multiple=True,
        metavar="CODES",
        callback=listed,
        help="Apply only these rewrites: codes such as AMP105, prefixes of codes, or names, separated by commas.",
    ),
    click.option("--ignore", multiple=True, metavar="CODES", callback=listed, help="Do not apply these rewrites."),
)
HOW_IT_IS_WRITTEN = (
    *("fused", "dtype", "loss_scale", "target", "apex", "switch"),
    *("vendor", "launch_lines", "install_line"),
)
"""The parameters that change how new code is written, and not what is migrated: a section of ``--help``."""

_VOICE = (
    color_option,
    click.option("-q", "--quiet", is_flag=True, help="Print only errors, no summary."),
    click.option("-v", "--verbose", is_flag=True, help="Also list every edit, and show tracebacks of internal errors."),
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
