"""The command ``amp-migrate``: its options, and the order in which the other modules are called.

Everything slow is imported inside functions, so that ``--help`` answers at once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from amp_rules.options import APEX_MODES, DTYPES, OPT_LEVELS
from click.core import ParameterSource

from amp_migrate.commands import (
    ERROR,
    color_option,
    config_option,
    listed,
    refuse_mixed_stdin,
    run_command,
    settings_folder,
    stdin_filename_option,
)
from amp_migrate.config import KEYS, Settings, load_settings, parse_loss_scale
from amp_migrate.problems import Problem, UserError

if TYPE_CHECKING:
    from amp_rules.program.source import SourceFile

    from amp_migrate.output import Summary
    from amp_migrate.runner import Run

_OK, _DUE = 0, 1

_EPILOG = """\b
Exit status:
  0  all went well, whether or not anything changes (or, with --check, nothing is due)
  1  with --check: changes are due
  2  an error: a file that cannot be read or written, a wrong option

Files with errors are left as they were, and the other files are still dealt with.
Defaults can be set under [tool.amp-migrate] in pyproject.toml, named as the options
here (opt-level = "O2"), and exclude = [...] with gitignore patterns.
"""


def _loss_scale(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
    try:
        return None if value is None else parse_loss_scale(value)
    except ValueError as error:
        message = f"{value!r} is neither 'dynamic' nor a positive number."
        raise click.BadParameter(message, ctx, param) from error


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}, epilog=_EPILOG)
@click.argument("paths", nargs=-1, metavar="PATH...", type=click.Path(path_type=Path))
@click.option(
    "--opt-level",
    type=click.Choice(OPT_LEVELS, case_sensitive=False),
    metavar="O0|O1|O2|O3",
    help="Precision level, named as in Apex. [default: O1]",
)
@click.option("--ddp/--no-ddp", default=None, help="Also migrate to several processes. [default: no]")
@click.option(
    "--sync-bn/--no-sync-bn",
    default=None,
    help="With --ddp, synchronise batch norm over the processes. [default: yes]",
)
@click.option("--fused/--no-fused", default=None, help="Use the runtime's fused optimizers. [default: yes]")
@click.option("--dtype", type=click.Choice(DTYPES, case_sensitive=False), help="Half precision type. [default: auto]")
@click.option(
    "--loss-scale",
    metavar="dynamic|N",
    callback=_loss_scale,
    help="Dynamic, or a fixed loss scale. [default: dynamic]",
)
@click.option(
    "--apex",
    type=click.Choice(APEX_MODES, case_sensitive=False),
    help="Scripts for NVIDIA Apex: idiom rewrites them like any other, compat changes their imports only, auto "
    "takes the first where the whole project is understood. [default: auto]",
)
@click.option(
    "--modernize/--no-modernize",
    default=None,
    help="Also replace what a current PyTorch no longer has: Variable, volatile, loss.data[0] and the like. "
    "[default: no]",
)
@click.option(
    "--select",
    multiple=True,
    metavar="CODES",
    callback=listed,
    help="Carry out these rewrites only: codes such as AMP105, or their beginnings.",
)
@click.option("--ignore", multiple=True, metavar="CODES", callback=listed, help="Leave these rewrites out.")
@click.option(
    "--entry",
    "entries",
    multiple=True,
    metavar="SCRIPT",
    help="Of the training scripts found in a folder, take this one; may be repeated, and may be a pattern.",
)
@click.option(
    "--vendor/--no-vendor",
    default=None,
    help="With -w or -o, copy the package amp_runtime beside each migrated script. [default: no]",
)
@click.option("-w", "--write", is_flag=True, help="Change the files in place.")
@click.option(
    "-o",
    "--output",
    metavar="PATH",
    help="Write the changed files (only those) elsewhere: to a file if PATH ends in .py, else below the "
    "folder PATH with their relative layout; '-' is standard output.",
)
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 if changes are due.")
@click.option("--allow-dirty", is_flag=True, help="With -w, also change files that hold uncommitted changes.")
@click.option("--undo", is_flag=True, help="Put back what the last -w in this project changed.")
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["diff", "json"]),
    default="diff",
    help="What to print on standard output. [default: diff]",
)
@click.option("-j", "--jobs", type=click.IntRange(min=0), default=0, help="Processes; 0 for one a core. [default: 0]")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=120.0,
    metavar="SECONDS",
    help="Give a script up after this time; 0 for never. [default: 120]",
)
@color_option
@click.option("-q", "--quiet", is_flag=True, help="Print no summary, only errors.")
@click.option("-v", "--verbose", is_flag=True, help="List every edit, and tracebacks of internal errors.")
@config_option("tool.amp-migrate")
@stdin_filename_option("diff")
@click.version_option(package_name="amp-migrate", prog_name="amp-migrate")
@click.pass_context
def main(ctx: click.Context, /, **arguments: Any) -> None:
    """Rewrite PyTorch training scripts for mixed precision and several GPUs.

    PATH is a training script, a folder of them, or '-' for standard input. The modules of your own that a
    script imports are migrated with it where that is needed. Prints a diff that `git apply` accepts; -w
    writes the files.

    \b
      amp-migrate train.py                          show what would change
      amp-migrate train.py --opt-level O2 --ddp -w  change the files
      amp-migrate src/ --check                      fail if anything is left to migrate
    """
    from amp_migrate.output import Summary

    summary = Summary(arguments["color"], arguments["quiet"], arguments["verbose"])

    def action() -> int:
        _refuse_contradictions(arguments)
        settings = _settings(arguments)
        if ctx.get_parameter_source("sync_bn") is ParameterSource.COMMANDLINE and not settings.options.ddp:
            summary.line("note: --sync-bn and --no-sync-bn say nothing without --ddp")
        return _migrate(arguments, settings, summary)

    run_command(ctx, arguments["verbose"], action)


def _refuse_contradictions(arguments: dict[str, Any]) -> None:
    """Raise for options that cannot both be followed."""
    refuse_mixed_stdin(arguments)
    if not arguments["paths"] and not arguments["undo"]:
        raise click.UsageError("Missing argument 'PATH...': a training script or a folder.")
    output = arguments["output"]
    if arguments["write"] and output is not None:
        raise click.UsageError("-w changes the files in place and -o writes elsewhere; give one of them.")
    if arguments["check"] and (arguments["write"] or output is not None):
        raise click.UsageError("--check writes nothing; it cannot be combined with -w or -o.")
    if output == "":
        raise click.UsageError("-o needs a path.")
    if _wants_text(arguments) and arguments["output_format"] == "json":
        raise click.UsageError("standard output cannot take both the migrated text and --format json.")


def _wants_text(arguments: dict[str, Any]) -> bool:
    """Tell whether the migrated text itself goes to standard output."""
    return arguments["output"] == "-" or (Path("-") in arguments["paths"] and arguments["write"])


def _settings(arguments: dict[str, Any]) -> Settings:
    folder = settings_folder(arguments["paths"], arguments["stdin_filename"])
    settings = load_settings(folder, arguments["config"])
    keys = [key for key in KEYS if key != "exclude"]
    return settings.overridden({key: arguments[key.replace("-", "_")] for key in keys})


def _migrate(arguments: dict[str, Any], settings: Settings, summary: Summary) -> int:
    from amp_migrate import discovery
    from amp_migrate.runner import run_all

    paths: tuple[Path, ...] = arguments["paths"]
    given: SourceFile | None = None
    if paths == (Path("-"),):
        given = _read_stdin(arguments["stdin_filename"])
        paths = (given.path,)
        found = discovery.Discovery([discovery.Target(given.path, named=True)])
    else:
        found = discovery.discover(paths, settings.exclude, settings.root)
    with summary.progress(len(found.targets)) as advance:
        run = run_all(found.targets, settings.options, given=given, advance=advance)
    run.problems[:0] = found.problems

    written = _deliver(arguments, settings, summary, run, paths, given)

    for folder in found.barren:
        summary.line(("warning: ", "yellow"), f"no Python files below {folder}")
    summary.reports(run.reports, {target.path for target in found.targets if target.named})
    if run.reports:
        summary.counts(run)
    if not arguments["check"] and not run.problems and not _wants_text(arguments):
        summary.next_steps(run, written, settings.vendor)
    for problem in run.problems:
        summary.problem(problem)
    if run.problems:
        return ERROR
    return _DUE if arguments["check"] and run.updates else _OK


def _deliver(
    arguments: dict[str, Any],
    settings: Settings,
    summary: Summary,
    run: Run,
    paths: tuple[Path, ...],
    given: SourceFile | None,
) -> dict[Path, Path]:
    """Print or write the result; return where each written file went."""
    from amp_migrate import jsonout, results, vendor
    from amp_migrate.problems import shown
    from amp_migrate.terminal import print_bytes

    output = arguments["output"]
    writing = arguments["write"] or output is not None
    runtime = vendor.runtime_folder() if settings.vendor and run.updates else None
    written: dict[Path, Path] = {}
    if _wants_text(arguments):
        _print_text(run, paths, given)
    elif writing:
        if output is not None:
            written, problems = results.write_elsewhere(run, output, paths, runtime)
        else:
            written, problems = results.write_in_place(run, runtime)
        run.problems += problems
    elif arguments["output_format"] == "diff" and not arguments["check"]:
        results.print_diffs(run, arguments["color"])
    if arguments["output_format"] == "json":
        texts = {
            path: lines.decode(run.updates[path].source.encoding.removesuffix("-sig"), "replace")
            for path, lines in results.diffs(run).items()
        }
        print_bytes(jsonout.render(run, texts).encode())
    for path in written.values():
        summary.line(("wrote ", "green"), shown(path))
    if arguments["check"]:
        for path in sorted(run.updates):
            summary.line("would change ", shown(path))
    if runtime is not None and not written and not run.problems:
        for folder in results.entry_folders(run, {path: path for path in run.updates}):
            summary.line(f"--vendor will copy {vendor.PACKAGE} to {shown(folder / vendor.PACKAGE)}")
    return written


def _print_text(run: Run, paths: tuple[Path, ...], given: SourceFile | None) -> None:
    """Print the one migrated text, or the text as it was where nothing changes."""
    from amp_rules.program.source import read_source

    from amp_migrate.problems import shown
    from amp_migrate.terminal import print_bytes

    if run.problems:
        return
    entry = given.path if given else paths[0].resolve()
    others = sorted(path for path in run.updates if path != entry)
    if len(paths) > 1 or others or entry.is_dir():
        names = ", ".join(shown(path) for path in others) or "several paths"
        raise UserError(f"standard output can take one file only, but there is more to write: {names}")
    if entry in run.updates:
        print_bytes(run.updates[entry].data)
    else:
        print_bytes(given.data if given else read_source(entry).data)


def _read_stdin(name: Path | None) -> SourceFile:
    """Read standard input as the file ``name``, or as one of no name in the working directory.

    Raises:
        UserError: it is no Python text.
    """
    from amp_rules.program.source import SourceError, source_from_bytes

    path = name.resolve() if name else Path.cwd() / "<stdin>"
    try:
        return source_from_bytes(sys.stdin.buffer.read(), path)
    except SourceError as error:
        raise UserError(str(Problem.from_source_error(error))) from error
