"""The command ``amp-lint``: its options, and the order in which the other modules are called.

Everything slow is imported inside functions, so that ``--help`` answers at once.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click
from amp_rules.lattice.mode import DEVICES, HALF_TYPES, LEVELS
from amp_rules.lint.finding import SEVERITIES

from amp_migrate.commands.shared import (
    CommandWithOthers,
    PathArgument,
    Words,
    color_option,
    config_option,
    listed,
    refuse_mixed_stdin,
    run_command,
    stdin_filename_option,
)
from amp_migrate.exit_codes import ExitCode, help_on_exit_codes
from amp_migrate.out.lint import FORMATS
from amp_migrate.settings.linting import DEFAULT_TIMEOUT, LintSettings, load_settings, parse_jobs
from amp_migrate.settings.pyproject import settings_folder

if TYPE_CHECKING:
    from amp_migrate.lint.command import Request


_EXIT_CODES = help_on_exit_codes(
    {
        ExitCode.FINE: "nothing was found (or --exit-zero was given)",
        ExitCode.FOUND: "something was found, at least as severe as --severity asks",
        ExitCode.ERROR: "an error: a file that cannot be read, a wrong option",
    }
)
_EPILOG = f"""\b
Other commands:
  amp-lint server                 findings as you type, for editors
  amp-lint completion bash        completion for bash, zsh or fish
  (each has --help; for a folder of that name, write ./server)

{_EXIT_CODES}

A file with an error is named, and the other files are still checked. Defaults can be
set under [tool.amp-lint] in pyproject.toml, named as the options here.
"""


def _jobs(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    try:
        return None if value is None else parse_jobs(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is neither 'auto' nor a whole number from 0.", ctx, param) from error


def _server() -> click.Command:
    from amp_migrate.commands.server import server

    return server


class _Command(CommandWithOthers):
    """``amp-lint``, whose first argument may be ``server``."""

    others = MappingProxyType({"server": _server})
    sections = MappingProxyType(
        {
            "What is checked": (),
            "Fixes": ("fix", "unsafe_fixes", "diff"),
            "Output": (
                *("min_severity", "baseline", "write_baseline", "output_format", "output_file", "statistics"),
                *("exit_zero", "exit_non_zero_on_fix", "explain", "list_rules", "color", "quiet", "verbose"),
            ),
            "Limits": ("jobs", "timeout", "cache", "cache_dir"),
        }
    )


@click.command(
    "amp-lint",
    cls=_Command,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=_EPILOG,
)
@click.argument("paths", nargs=-1, metavar="PATH...", type=PathArgument())
@click.option(
    "--opt-level", type=Words(LEVELS), metavar="O1|O2|O3", help="Precision level, named as in Apex. [default: O1]"
)
@click.option("--dtype", type=Words(HALF_TYPES), help="Half precision type. [default: fp16]")
@click.option("--device", type=Words(DEVICES), help="Device that the code runs on. [default: cuda]")
@click.option(
    "--ddp/--no-ddp", default=None, help="Check the code as run distributed, by several processes. [default: no]"
)
@click.option(
    "--select",
    multiple=True,
    metavar="RULES",
    callback=listed,
    help="Check only these rules: codes, names, prefixes or ALL, separated by commas.",
)
@click.option("--ignore", multiple=True, metavar="RULES", callback=listed, help="Do not check these rules.")
@click.option("--extend-select", multiple=True, metavar="RULES", callback=listed, help="Also check these rules.")
@click.option("--preview/--no-preview", default=None, help="Also check rules in preview. [default: no]")
@click.option(
    "--severity",
    "--min-severity",
    "min_severity",
    type=Words(SEVERITIES),
    help="Report findings of this severity or higher; others do not count for the exit status. [default: info]",
)
@click.option(
    "--exclude",
    multiple=True,
    metavar="PATTERNS",
    callback=listed,
    help="Skip files in folders that match these gitignore patterns, separated by commas, in place of those in "
    "pyproject.toml.",
)
@click.option("-w", "--fix", is_flag=True, help="Apply safe fixes to the files.")
@click.option(
    "--unsafe-fixes/--no-unsafe-fixes",
    default=None,
    help="With --fix or --diff, also apply fixes that need a review. [default: no]",
)
@click.option("--diff", is_flag=True, help="Print what --fix would change, and change nothing.")
@click.option(
    "--baseline",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Do not report or count the findings that FILE lists.",
)
@click.option(
    "--write-baseline", type=click.Path(path_type=Path), metavar="FILE", help="List all findings in FILE and exit."
)
@click.option(
    "--format",
    "--output-format",
    "output_format",
    type=Words(FORMATS),
    help="Format of the findings. [default: full]",
)
@click.option(
    "-o",
    "--output",
    "--output-file",
    "output_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Print to FILE, not to standard output.",
)
@click.option("--statistics", is_flag=True, help="Print the number of findings of each rule.")
@click.option("--exit-zero", is_flag=True, help="Exit with 0 whatever is found.")
@click.option("--exit-non-zero-on-fix", is_flag=True, help="With --fix, exit with 1 if a file was changed.")
@click.option("--explain", multiple=True, metavar="RULES", callback=listed, help="Print the pages of these rules.")
@click.option("--list-rules", is_flag=True, help="List all rules; with --format json, as data.")
@color_option
@click.option("-q", "--quiet", is_flag=True, help="Print no summary, only findings and errors.")
@click.option("-v", "--verbose", is_flag=True, help="Say what is done, with tracebacks of internal errors.")
@click.option(
    "-j",
    "--jobs",
    metavar="N",
    callback=_jobs,
    help="Number of parallel processes; 0 or auto for one per core. [default: auto]",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help=f"Skip a file whose analysis takes longer; 0 for no limit. [default: {DEFAULT_TIMEOUT:g}]",
)
@click.option(
    "--cache-dir",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Where results are kept between runs. [default: $XDG_CACHE_HOME/amp-migrate, or ~/.cache/amp-migrate]",
)
@click.option("--cache/--no-cache", default=None, help="Keep results between runs. [default: yes]")
@config_option("tool.amp-lint")
@stdin_filename_option("findings")
@click.version_option(package_name="amp-migrate", prog_name="amp-lint")
@click.pass_context
def main(ctx: click.Context, /, **arguments: Any) -> None:
    """Find what goes wrong in mixed precision or distributed training in PyTorch code.

    PATH is a file, a folder, a notebook, or '-' for standard input. The code is read and never run.

    \b
      amp-lint src/                                 check it as run with autocast in fp16
      amp-lint src/ --opt-level O3 --dtype bf16     ... entirely in bfloat16
      amp-lint src/ --fix                           apply safe fixes
      amp-lint --explain AMP601                     the page of a rule
    """
    from amp_migrate.lint import command
    from amp_migrate.out.terminal import Messages

    messages = Messages(arguments["color"], arguments["quiet"], arguments["verbose"])

    def action() -> int:
        _refuse_contradictions(arguments)
        return command.run(_request(arguments), _settings(arguments), messages)

    run_command(ctx, arguments["verbose"], action)


def _refuse_contradictions(arguments: dict[str, Any]) -> None:
    """Raise for options that cannot both be followed."""
    if not arguments["paths"] and not (arguments["explain"] or arguments["list_rules"]):
        raise click.UsageError("Missing argument 'PATH...': a file or a folder.")
    refuse_mixed_stdin(arguments)
    if arguments["fix"] and arguments["diff"]:
        raise click.UsageError("--fix changes the files and --diff only prints what it would change; give one of them.")
    if arguments["exit_zero"] and arguments["exit_non_zero_on_fix"]:
        raise click.UsageError("--exit-zero and --exit-non-zero-on-fix contradict each other; give one of them.")
    if arguments["write_baseline"] and (arguments["fix"] or arguments["diff"]):
        raise click.UsageError("--write-baseline lists the findings as they are; give no --fix or --diff with it.")


_KEYS = (
    "opt-level",
    "dtype",
    "device",
    "ddp",
    "select",
    "ignore",
    "extend-select",
    "preview",
    "min-severity",
    "exclude",
    "unsafe-fixes",
    "jobs",
    "timeout",
    "cache",
)
_PATH_KEYS = ("baseline", "cache-dir")


def _settings(arguments: dict[str, Any]) -> LintSettings:
    folder = settings_folder(arguments["paths"], arguments["stdin_filename"])
    settings = load_settings(folder, arguments["config"])
    values = {key: arguments[key.replace("-", "_")] for key in _KEYS}
    for key in _PATH_KEYS:
        given = arguments[key.replace("-", "_")]
        values[key] = given and given.absolute()
    values["format"] = arguments["output_format"]
    return settings.overridden(values, "the command line")


def _request(arguments: dict[str, Any]) -> Request:
    from amp_migrate.lint.command import Request

    return Request(**{item.name: arguments[item.name] for item in fields(Request)})
