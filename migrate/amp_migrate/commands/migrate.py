"""The command ``amp-migrate``: its options, and the order in which the other modules are called.

Everything slow is imported inside functions, so that ``--help`` answers at once.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click
from amp_rules.plan.options import Options
from click.core import ParameterSource

from amp_migrate.commands.migration_options import HOW_IT_IS_WRITTEN, migration_options, voice_options
from amp_migrate.commands.shared import (
    CommandWithOthers,
    PathArgument,
    refuse_mixed_stdin,
    run_command,
    stdin_filename_option,
)
from amp_migrate.exit_codes import ExitCode, help_on_exit_codes
from amp_migrate.problems import Problem, UserError
from amp_migrate.report.option import report_option
from amp_migrate.settings.migration import Settings, settings_of
from amp_migrate.settings.selected_rewrites import left_out

if TYPE_CHECKING:
    from amp_rules.source.text import SourceFile

    from amp_migrate.lint.baseline import Baseline
    from amp_migrate.out.delivery import Delivery
    from amp_migrate.out.summary import Failure, Summary
    from amp_migrate.run.known_declines import Declines
    from amp_migrate.run.migration import Run

_DIFFS, _DOCUMENTS = ("diff", "cells"), ("json", "github", "sarif", "rdjson")

_EXIT_CODES = help_on_exit_codes(
    {
        ExitCode.FINE: "no errors, whether or not anything changes (with --check: nothing is due)",
        ExitCode.FOUND: "with --check: changes are due, a migrated script has a new step in FP32, or there is\n"
        "      something to undo; with --strict: a step was declined",
        ExitCode.ERROR: "an error: a file cannot be read or written, or an option is wrong",
    }
)
_EPILOG = f"""\b
Other commands:
  amp-migrate verify train.py     run a script before and after its migration, and compare
  amp-migrate completion bash     completion for bash, zsh or fish
  (each has --help; for a folder of that name, write ./verify)

{_EXIT_CODES}

A file with an error is left unchanged, and the other files are still migrated.

\b
-w writes all files of a project or none. --undo restores them from a journal of the last
10 runs. The journal is in the folder amp-migrate of the project's .git folder, or outside
git in $XDG_STATE_HOME/amp-migrate (~/.local/state/amp-migrate).

Set defaults under [tool.amp-migrate] in pyproject.toml, such as opt-level = "O2". Its keys are the options under "What
is migrated" (except --entry) and "How it is written", and strict and baseline. The key exclude = [...] takes gitignore
patterns of files to skip.
"""


def _verify() -> click.Command:
    from amp_migrate.commands.verify import verify

    return verify


class _Command(CommandWithOthers):
    """``amp-migrate``, whose first argument may be ``verify``."""

    others = MappingProxyType({"verify": _verify})
    asked_otherwise = MappingProxyType(
        {
            "--dry-run": "nothing is written without -w",
            "--fp16": "the type is --dtype fp16, and the level --opt-level",
            "--bf16": "the type is --dtype bf16, and the level --opt-level",
        }
    )
    sections = MappingProxyType(
        {
            "What is migrated": (),
            "How it is written": HOW_IT_IS_WRITTEN,
            "Output": (
                *(
                    "write",
                    "output",
                    "check",
                    "strict",
                    "baseline",
                    "write_baseline",
                    "allow_dirty",
                    "undo",
                    "output_format",
                    "reports",
                ),
                *("color", "quiet", "verbose"),
            ),
            "Limits": ("jobs", "timeout", "cache", "cache_dir"),
        }
    )


@click.command(
    "amp-migrate",
    cls=_Command,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=_EPILOG,
)
@click.argument("paths", nargs=-1, metavar="PATH...", type=PathArgument())
@migration_options
@click.option(
    "--entry",
    "entries",
    multiple=True,
    metavar="SCRIPT",
    help="In a folder, migrate only this training script. May be repeated, and may be a pattern.",
)
@click.option(
    "--vendor/--no-vendor",
    default=None,
    help="With -w or -o, copy into the script's folder the part of amp_runtime that it uses. [default: no]",
)
@click.option(
    "--launch-lines/--no-launch-lines",
    default=None,
    help="With --ddp, also rewrite to torchrun the commands that start a migrated script with a number of processes. "
    "[default: no]",
)
@click.option(
    "--install-line",
    metavar="REQUIREMENT",
    help="In notebooks, begin the first cell with a %pip line that installs this wheel or repository; auto stands for "
    "the runtime of this installation. [default: none]",
)
@click.option("-w", "--write", is_flag=True, help="Change the files in place.")
@click.option(
    "-o",
    "--output",
    metavar="PATH",
    help="Write the changed files, and only those, to PATH: a file if it ends in .py or .ipynb, else a folder with the "
    "same layout. '-' is standard output.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Write nothing; exit with 1 if changes are due, or if a migrated script has a new step in FP32.",
)
@click.option("--strict/--no-strict", default=None, help="Exit with 1 if a step was declined. [default: no]")
@click.option(
    "--baseline",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Do not report or count the declined steps that FILE lists.",
)
@click.option(
    "--write-baseline",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="List all declined steps in FILE, and change nothing else.",
)
@click.option(
    "--allow-dirty",
    is_flag=True,
    help="With -w, also change files that git cannot restore: uncommitted, untracked or ignored ones. "
    "With --undo, also restore files that were edited since.",
)
@click.option("--undo", is_flag=True, help="Restore the files that the last -w in this project changed.")
@click.option(
    "--format",
    "output_format",
    type=click.Choice([*_DIFFS, *_DOCUMENTS]),
    default="diff",
    help="Format of standard output. diff is for `git apply`; cells shows notebooks cell by cell; json has every edit "
    "and every declined step; github, sarif and rdjson are for code review. [default: diff]",
)
@report_option
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Number of parallel processes; 0 for one per core. [default: 0]",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=120.0,
    metavar="SECONDS",
    help="Skip a script whose analysis takes longer; 0 for no limit. [default: 120]",
)
@click.option("--cache/--no-cache", default=True, help="Keep results between runs. [default: yes]")
@click.option(
    "--cache-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="PATH",
    help="Where results are kept. [default: $XDG_CACHE_HOME/amp-migrate, or ~/.cache/amp-migrate]",
)
@voice_options
@stdin_filename_option("diff")
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=lambda ctx, _, asked: _show_version(ctx) if asked and not ctx.resilient_parsing else None,
    help="Show the version and exit.",
)
@click.pass_context
def main(ctx: click.Context, /, **arguments: Any) -> None:
    """Rewrite PyTorch training scripts for mixed precision and several GPUs.

    PATH is a training script, a notebook, a folder that is searched for training scripts, or '-' for standard
    input. Your own modules that a script imports are migrated with it where needed. Prints a diff for
    `git apply`; -w writes the files.

    \b
      amp-migrate train.py                          show what would change
      amp-migrate train.py --opt-level O2 --ddp -w  change the files
      amp-migrate src/ --check                      fail if anything is left to migrate
    """

    def action() -> int:
        from amp_migrate.out.summary import Summary

        summary = Summary(arguments["color"], arguments["quiet"], arguments["verbose"])
        _refuse_contradictions(arguments)
        if arguments["undo"]:
            return _undo(arguments, summary)
        settings = settings_of(arguments)
        if ctx.get_parameter_source("sync_bn") is ParameterSource.COMMANDLINE and not settings.options.ddp:
            summary.line("note: --sync-bn has no effect without --ddp")
        if ctx.get_parameter_source("shard_eval") is ParameterSource.COMMANDLINE and not settings.options.ddp:
            summary.line("note: --shard-eval has no effect without --ddp")
        if ctx.get_parameter_source("launch_lines") is ParameterSource.COMMANDLINE and not settings.options.ddp:
            summary.line("note: --launch-lines has no effect without --ddp")
        for note in left_out(settings.options):
            summary.line(f"note: {note}")
        return _migrate(arguments, settings, summary)

    run_command(ctx, arguments["verbose"], action)


def _refuse_contradictions(arguments: dict[str, Any]) -> None:
    """Raise for options that cannot both be followed."""
    refuse_mixed_stdin(arguments)
    if arguments["undo"]:
        _refuse_beside_undo(arguments)
    if not arguments["paths"] and not arguments["undo"]:
        raise click.UsageError("Missing argument 'PATH...': a training script or a folder.")
    output = arguments["output"]
    if arguments["write"] and output is not None:
        raise click.UsageError("-w changes the files in place and -o writes elsewhere; give one of them.")
    if arguments["write_baseline"] and (arguments["write"] or output is not None or arguments["check"]):
        raise click.UsageError("--write-baseline only lists what is declined; give no -w, -o or --check with it.")
    if arguments["write_baseline"] and Path("-") in arguments["paths"]:
        raise click.UsageError("--write-baseline lists files, and standard input is none.")
    if arguments["check"] and (arguments["write"] or output is not None):
        raise click.UsageError("--check writes nothing; it cannot be combined with -w or -o.")
    if output == "":
        raise click.UsageError("-o needs a path.")
    if math.isnan(arguments["timeout"]):
        raise click.UsageError("--timeout needs a number of seconds.")
    if _wants_text(arguments) and arguments["output_format"] in _DOCUMENTS:
        raise click.UsageError(
            f"standard output cannot take both the migrated text and --format {arguments['output_format']}."
        )


def _refuse_beside_undo(arguments: dict[str, Any]) -> None:
    """Raise for options that mean nothing to ``--undo``."""
    if arguments["write"] or arguments["output"] is not None:
        raise click.UsageError("--undo puts files back; it cannot be combined with -w or -o.")
    if Path("-") in arguments["paths"] or arguments["output_format"] in _DOCUMENTS:
        raise click.UsageError("--undo puts files back; it reads no standard input and prints no document.")
    if arguments["reports"]:
        raise click.UsageError("--undo puts files back; there is nothing to report.")
    if len(arguments["paths"]) > 1:
        raise click.UsageError("--undo takes one path: a file or the folder of a project.")


def _wants_text(arguments: dict[str, Any]) -> bool:
    """Tell whether the migrated text itself goes to standard output."""
    return arguments["output"] == "-" or (Path("-") in arguments["paths"] and arguments["write"])


def _is_one_file(output: str | None) -> bool:
    return output is not None and (output == "-" or Path(output).suffix in (".py", ".ipynb"))


def _migrate(arguments: dict[str, Any], settings: Settings, summary: Summary) -> int:
    from amp_migrate.installation import install_magic
    from amp_migrate.launch.launches import launches
    from amp_migrate.out.terminal import plural
    from amp_migrate.problems import shown
    from amp_migrate.projects import project_folder
    from amp_migrate.run import discovery
    from amp_migrate.run.deciding import MigrationJob
    from amp_migrate.run.decision_cache import DecisionCache
    from amp_migrate.run.known_declines import declines_of
    from amp_migrate.run.migration import run_all
    from amp_migrate.run.scripts import choose
    from amp_migrate.settings.caching import cache_folder

    paths: tuple[Path, ...] = arguments["paths"]
    given: SourceFile | None = None
    if paths == (Path("-"),):
        given = _read_stdin(arguments["stdin_filename"])
        paths = (given.path,)
        found = discovery.Discovery([discovery.Target(given.path, named=True)])
    else:
        found = discovery.discover(paths, settings.exclude, settings.root, own_only=True)
    if given is None:
        from amp_migrate.write.transaction import notice_interrupted

        for note in notice_interrupted(paths, writing=arguments["write"]):
            summary.line(("warning: ", "yellow"), note)
    for note in found.notes:
        summary.line("note: ", note)
    scripts = choose(found.targets, arguments["entries"], modernize=bool(settings.options.modernize))
    plan = MigrationJob(
        settings.options, scripts.named, {given.path: given} if given else {}, arguments["timeout"], scripts.parsed
    )
    folder = (arguments["cache_dir"] or cache_folder()) if arguments["cache"] and given is None else None
    memory = DecisionCache(folder, settings.options, project_folder(Path(os.path.realpath(paths[0]))))
    with summary.progress(len(scripts.chosen) + len(scripts.leftovers)) as advance:
        run = run_all(
            scripts.chosen,
            plan,
            leftovers=scripts.leftovers,
            jobs=arguments["jobs"],
            memory=memory,
            advance=advance,
        )
    run.problems[:0] = found.problems
    if given is None and settings.options.ddp:
        run.launches = launches(run.reports)
    if settings.launch_lines and not _is_one_file(arguments["output"]):
        run.edit_launches()
    if settings.install_line:
        run.begin_notebooks(install_magic(settings.install_line))

    # First of all: a report is of the files as they were read.
    _report(arguments["reports"], run, settings.options, summary)
    if arguments["write_baseline"]:
        return _write_baseline(arguments["write_baseline"], run, settings, summary)
    declines = declines_of(run, _baseline(settings), given, settings.options)
    done = _deliver(arguments, settings, summary, run, paths, given)
    if done.problems:
        # Before all that would read as if it had been written.
        summary.unwritten = frozenset(run.updates.keys() - done.files.keys())
        for problem in done.problems:
            summary.problem(problem)

    for folder in found.barren:
        summary.line(("warning: ", "yellow"), f"no Python files below {folder}, or all are ignored or excluded")
    summary.found(scripts, run)
    summary.reports(run.reports, scripts)
    summary.unreached(scripts, run)
    if declines.known:
        summary.line(f"{plural(declines.known, 'declined step')} in the baseline")
    if declines.stale and settings.baseline and not run.problems:
        entries = "entry has" if declines.stale == 1 else "entries have"
        name = shown(settings.baseline)
        summary.line(
            f"note: {name}: {declines.stale} {entries} no such step any more; --write-baseline {name} renews the list"
        )
    failure = _failure(arguments, settings, run, declines)
    if run.reports:
        summary.counts(run, fails=bool(failure))
    if not arguments["check"] and not _wants_text(arguments):
        summary.launches(run.launches)
        if not run.problems:
            is_patch = given is None and arguments["output_format"] == "diff"
            needs_runtime = not settings.vendor and settings.options.target == "runtime" and run.imports_runtime
            summary.next_steps(run, done.files, needs_runtime=needs_runtime, is_patch=is_patch)
    for problem in run.problems:
        if problem not in done.problems:
            summary.problem(problem)
    if run.problems:
        return ExitCode.ERROR
    if failure:
        summary.failed(failure)
    return ExitCode.FOUND if failure else ExitCode.FINE


def _failure(arguments: dict[str, Any], settings: Settings, run: Run, declines: Declines) -> Failure:
    """What makes a run fail that found no error."""
    from amp_migrate.out.summary import Failure
    from amp_migrate.problems import shown

    fails_by_added = arguments["check"] or settings.strict
    return Failure(
        len(run.updates) if arguments["check"] else 0,
        len(declines.added) if fails_by_added else 0,
        len(declines.new) - len(declines.added) if settings.strict else 0,
        f"--write-baseline {shown(settings.baseline) if settings.baseline else 'FILE'}",
    )


def _baseline(settings: Settings) -> Baseline | None:
    """Read the file of known declines, if there is to be one."""
    from amp_migrate.lint.baseline import read_baseline

    return read_baseline(settings.baseline) if settings.baseline else None


def _write_baseline(path: Path, run: Run, settings: Settings, summary: Summary) -> int:
    """List what is declined."""
    from amp_migrate.lint.baseline import render_baseline
    from amp_migrate.out.terminal import plural
    from amp_migrate.problems import shown
    from amp_migrate.run.known_declines import declines_of, mode_of
    from amp_migrate.write.replacing import Replacement, replace_all

    path = path.absolute()
    found = declines_of(run, None, None, settings.options).all
    data = render_baseline(path, mode_of(settings.options), found).encode("utf-8", "backslashreplace")
    if problem := replace_all([Replacement(path, data, None, path)]):
        raise UserError(str(problem))
    for problem in run.problems:
        summary.problem(problem)
    summary.line(f"wrote {plural(len(found), 'declined step')} to {shown(path)}")
    return ExitCode.ERROR if run.problems else ExitCode.FINE


def _deliver(
    arguments: dict[str, Any],
    settings: Settings,
    summary: Summary,
    run: Run,
    paths: tuple[Path, ...],
    given: SourceFile | None,
) -> Delivery:
    """Print or write the result; return what came of writing."""
    from amp_migrate.out import delivery
    from amp_migrate.out.terminal import plural
    from amp_migrate.problems import shown

    output = arguments["output"]
    writing = arguments["write"] or output is not None
    done = delivery.Delivery()
    if _wants_text(arguments):
        _print_text(run, paths, given)
    elif writing:
        if output is not None:
            done = delivery.write_elsewhere(run, output, paths, settings)
        else:
            vendored = delivery.vendored_beside(run, {}, settings, in_place=True)
            done = delivery.write_in_place(run, vendored, allow_dirty=arguments["allow_dirty"])
        run.problems += done.problems
    elif arguments["output_format"] in _DIFFS and not arguments["check"]:
        delivery.print_diffs(run, arguments["color"], by_cell=arguments["output_format"] == "cells")
    if arguments["output_format"] in _DOCUMENTS:
        delivery.print_document(run, arguments["output_format"], given)
    for path in done.files.values():
        summary.line(("wrote ", "green"), shown(path))
    for copy in done.copies:
        summary.line(("wrote ", "green"), f"{shown(copy.path)}, {plural(len(copy.after), 'file')} of the runtime")
    for note in done.notes:
        summary.line("note: ", note)
    if arguments["check"]:
        for path in sorted(run.updates):
            summary.line("would change ", shown(path))
    if not writing and not _wants_text(arguments) and given is None and not run.problems:
        for copy in delivery.vendored_beside(run, {}, settings, in_place=True).copies:
            if copy.changes:
                what = "will copy what is used of the runtime to" if copy.before is None else "will change"
                summary.line(f"--vendor {what} {shown(copy.path)}")
    return done


def _report(paths: Sequence[Path], run: Run, options: Options, summary: Summary) -> None:
    """Write what ``--report`` asks for."""
    if not paths:
        return
    from amp_migrate.problems import shown
    from amp_migrate.report.option import write_reports
    from amp_migrate.report.pages import Migration

    write_reports(paths, Migration(run, options))
    for path in paths:
        summary.line(("wrote ", "green"), shown(path))


def _undo(arguments: dict[str, Any], summary: Summary) -> int:
    """Put back the last run, or with ``--check`` say what that would do."""
    from amp_migrate.out.terminal import plural
    from amp_migrate.problems import shown
    from amp_migrate.write.undo import undo

    dry = arguments["check"]
    path = arguments["paths"][0] if arguments["paths"] else None
    undone = undo(path, overwrite=arguments["allow_dirty"], dry=dry)
    for problem in undone.problems:
        summary.problem(problem)
    if undone.problems:
        return ExitCode.ERROR
    for file in undone.restored:
        summary.line(("would put back " if dry else "put back ", "green"), shown(file))
    for file in undone.removed:
        summary.line(("would remove " if dry else "removed ", "green"), shown(file))
    for note in undone.notes:
        summary.line("note: ", note)
    if dry and not undone.restored and not undone.removed:
        summary.line(f"would forget the run of {undone.record.when}: its files have their original text already")
    if not dry:
        how = ", which was cut off," if undone.interrupted else ""
        earlier = f"; {plural(undone.earlier, 'earlier run')} can be undone" if undone.earlier else ""
        summary.line(f"the run of {undone.record.when}{how} is undone{earlier}")
    return ExitCode.FOUND if dry else ExitCode.FINE


def _print_text(run: Run, paths: tuple[Path, ...], given: SourceFile | None) -> None:
    """Print the one migrated text, or the text as it was where nothing changes."""
    from amp_migrate.notebook.source import load
    from amp_migrate.out.terminal import print_bytes
    from amp_migrate.problems import shown

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
        print_bytes(given.data if given else load(entry).data)


def _read_stdin(name: Path | None) -> SourceFile:
    """Read standard input as the file ``name``, or as one of no name in the working directory.

    Raises:
        UserError: it is no Python text.
    """
    from amp_rules.source.text import SourceError

    from amp_migrate.notebook.source import source_of

    path = name.resolve() if name else Path.cwd() / "<stdin>"
    try:
        return source_of(sys.stdin.buffer.read(), path)
    except SourceError as error:
        raise UserError(str(Problem.from_source_error(error))) from error


def _show_version(ctx: click.Context) -> None:
    """Print the version; where scripts import a runtime of another one, that too."""
    from importlib.metadata import version

    from amp_migrate.runtimes import other_runtime

    click.echo(f"amp-migrate, version {version('amp-migrate')}")
    if other := other_runtime():
        click.echo(f"note: {other}", err=True)
    ctx.exit()
