"""The command ``amp-migrate verify``: its options, and the order in which the other modules are called."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from amp_rules.plan.options import OPT_LEVELS

from amp_migrate.commands.migration_options import migration_options, voice_options
from amp_migrate.commands.shared import PathArgument, run_command
from amp_migrate.exit_codes import ExitCode, help_on_exit_codes
from amp_migrate.report.option import report_option
from amp_migrate.verify.copies import parse_size

if TYPE_CHECKING:
    from amp_migrate.verify.copies import CopiedProject
    from amp_migrate.verify.evidence import Evidence
    from amp_migrate.verify.output import Progress
    from amp_migrate.verify.plan import Asked
    from amp_migrate.verify.runs import Maker
    from amp_migrate.verify.versions import Versions

_OF_VERDICT: dict[str, ExitCode] = {
    "proved": ExitCode.FINE,
    "disproved": ExitCode.FOUND,
    "unproved": ExitCode.NOTHING_SHOWN,
}

_EXIT_CODES = help_on_exit_codes(
    {
        ExitCode.FINE: "proved: every check that applies ran to its end and holds",
        ExitCode.FOUND: "disproved: a check does not hold; the result says which, and where",
        ExitCode.ERROR: "an error: a wrong option, a file that cannot be read, a Python without torch",
        ExitCode.NOTHING_SHOWN: "not proved: a check is open, the script does not run, or nothing was migrated",
    }
)
_EPILOG = f"""{_EXIT_CODES}

No file is changed: each run gets a temporary copy of the project. docs/verify.md says what is compared, how far a
verdict reaches, and what it cannot see.
"""


class _Verify(click.Command):
    """Says where a script's own options go."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            message = f"No such option: {error.option_name} (options of the script itself follow after --)."
            raise click.NoSuchOption(error.option_name, message, error.possibilities, ctx) from error


def _size(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    try:
        return None if value is None else parse_size(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is no size, such as 500M or 8G.", ctx, param) from error


def _levels(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    levels = tuple(dict.fromkeys(word.strip().upper() for word in value.split(",") if word.strip()))
    unknown = [level for level in levels if level not in OPT_LEVELS]
    if unknown or not levels:
        raise click.BadParameter(f"{value!r} are not some of {', '.join(OPT_LEVELS)}.", ctx, param)
    return levels


@click.command(
    "verify",
    cls=_Verify,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=_EPILOG,
)
@click.argument("script", type=PathArgument())
@click.argument("arguments", nargs=-1, metavar="[-- ARGUMENTS...]", type=click.UNPROCESSED)
@click.option(
    "--levels",
    default="O0,O1,O2",
    metavar="LEVELS",
    callback=_levels,
    help="Precision levels to compare; O0 always is. [default: O0,O1,O2]",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=50,
    metavar="N",
    help="End each run after N backward calls. [default: 50]",
)
@click.option(
    "--procs",
    type=click.IntRange(1, 64),
    default=2,
    metavar="N",
    help="Also compare N processes with one; implies --ddp, and 1 leaves it out. [default: 2]",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.05,
    metavar="SHARE",
    help="How far losses in half may be from the original's, relative. [default: 0.05]",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    metavar="SECONDS",
    help="Bound on each run. [default: 600]",
)
@click.option(
    "--memory", metavar="SIZE", callback=_size, help="Bound on each run. [default: three quarters of the machine's]"
)
@click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), default=0, metavar="N", help="Seed of every run. [default: 0]"
)
@click.option(
    "--threads", type=click.IntRange(min=1), default=1, metavar="N", help="Threads of each process. [default: 1]"
)
@click.option("--python", metavar="PATH", help="The Python that has torch. [default: the one of amp-migrate]")
@click.option("-m", "as_module", is_flag=True, help="Run the script as python -m does, from the working directory.")
@click.option(
    "--migrated",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Compare with this version: a file, or a folder laid out as the project.",
)
@click.option(
    "--base", metavar="REVISION", help="Compare the work tree with a revision of git, which is the original then."
)
@click.option(
    "--link",
    "links",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Link this file or folder of the project into the copies instead of copying it; may be repeated.",
)
@click.option(
    "--copy-limit", default="2G", metavar="SIZE", callback=_size, help="Bound on the size of a copy. [default: 2G]"
)
@click.option(
    "--keep", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER", help="Keep copies and records there."
)
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["text", "json"]),
    default="text",
    help="What to print on standard output. [default: text]",
)
@report_option
@migration_options
@voice_options
@click.pass_context
def verify(ctx: click.Context, /, **arguments: Any) -> None:
    """Run a training script before and after its migration, and compare what it computes.

    The original and the migrated script run in temporary copies of the project, with the same seeds: in float32 (O0),
    where the losses have to be the same to the last bit, at the levels that compute in half, and in several processes.

    \b
      amp-migrate verify train.py                              migrate in memory, run, compare
      amp-migrate verify train.py --steps 200 -- --epochs 1    with arguments for the script
      amp-migrate verify train.py --base main                  what a branch migrated
    """

    def action() -> int:
        from amp_migrate.verify.processes import interruptible

        with interruptible():
            return _verify(arguments)

    run_command(ctx, arguments["verbose"], action)


def _verify(arguments: dict[str, Any]) -> int:
    from amp_migrate.verify.copies import project_of, workplace
    from amp_migrate.verify.environment import interpreter_environment
    from amp_migrate.verify.making import make_all
    from amp_migrate.verify.output import Progress
    from amp_migrate.verify.verdict import judge
    from amp_migrate.verify.warm import starter

    if arguments["migrated"] is not None and arguments["base"] is not None:
        raise click.UsageError("--migrated and --base both say what is compared; give one of them.")
    if math.isnan(arguments["timeout"]) or math.isnan(arguments["tolerance"]):
        raise click.UsageError("--timeout and --tolerance need numbers.")
    progress = Progress(arguments["color"], arguments["quiet"], arguments["verbose"])
    script: Path = arguments["script"]
    if not script.is_file():
        raise click.UsageError(f"{script}: there is no such script.")
    find = partial(project_of, script, Path.cwd(), as_module=arguments["as_module"])
    versions = _versions(arguments, find())
    project = find(arguments["links"], modules=versions.modules)
    asked = _asked(arguments, versions)
    with workplace(arguments["keep"]) as folder:
        maker = _maker(arguments, project, versions, folder, progress)
        command, threads = maker.settings.interpreter.command, maker.settings.threads
        with progress.shown(), starter(command, interpreter_environment(threads), asked.processes) as maker.starter:
            traces = make_all(maker, asked, progress)
        if maker.launched:
            note = "The script asks for what torchrun sets: its runs in one process are launches of one process."
            asked = replace(asked, notes=(*asked.notes, note))
        evidence = judge(asked, traces)
        _deliver(evidence, versions, arguments)
    return _OF_VERDICT[evidence.verdict]


def _versions(arguments: dict[str, Any], project: CopiedProject) -> Versions:
    from amp_migrate.settings.migration import settings_of
    from amp_migrate.verify import versions

    script = arguments["script"]
    if arguments["migrated"] is not None:
        return versions.given(script, arguments["migrated"], project)
    if arguments["base"] is not None:
        return versions.since(script, arguments["base"])
    given = {**arguments, "paths": (script,), "stdin_filename": None, "vendor": None}
    options = settings_of(given).options
    if arguments["ddp"] is None:
        options = replace(options, ddp=arguments["procs"] > 1)
    return versions.migrated_now(script, options)


def _asked(arguments: dict[str, Any], versions: Versions) -> Asked:
    from importlib.metadata import version

    from amp_migrate.verify.plan import Asked

    several = versions.distribution in ("migrated", "already", "unknown")
    return Asked(
        script=str(arguments["script"]),
        arguments=arguments["arguments"],
        steps=arguments["steps"],
        processes=arguments["procs"] if several else 1,
        tolerance=arguments["tolerance"],
        levels=("O0", *(level for level in arguments["levels"] if level != "O0")),
        precision=versions.precision,
        distribution=versions.distribution,
        sync_bn=versions.options.sync_bn,
        notes=versions.notes,
        versions=(("amp-migrate", version("amp-migrate")),),
    )


def _maker(
    arguments: dict[str, Any], project: CopiedProject, versions: Versions, folder: Path, progress: Progress
) -> Maker:
    from amp_migrate.verify.environment import clean_environment
    from amp_migrate.verify.interpreter import find_interpreter
    from amp_migrate.verify.process_table import physical_memory
    from amp_migrate.verify.runs import Maker, Settings

    interpreter = find_interpreter(arguments["python"], project.cwd, clean_environment())
    settings = Settings(
        arguments=arguments["arguments"],
        interpreter=interpreter,
        steps=arguments["steps"],
        timeout=arguments["timeout"],
        memory=arguments["memory"] or physical_memory() * 3 // 4,
        seed=arguments["seed"],
        threads=arguments["threads"],
        copy_limit=arguments["copy_limit"],
        keep=arguments["keep"] is not None,
        module=_module(project) if arguments["as_module"] else None,
    )
    return Maker(
        project,
        versions.migrated,
        versions.original,
        settings,
        folder,
        stand_in=versions.uses_apex and not interpreter.has_apex,
        tick=progress.tick,
    )


def _module(project: CopiedProject) -> str:
    """The dotted name under which ``python -m`` finds the script."""
    if not project.script.is_relative_to(project.cwd):
        raise click.UsageError("-m: the script does not lie below the working directory.")
    parts = project.script.relative_to(project.cwd).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__main__" and len(parts) > 1 else parts)


def _deliver(evidence: Evidence, versions: Versions, arguments: dict[str, Any]) -> None:
    """Print the evidence; ``versions.run`` is the migration that it is about, where one was made."""
    from amp_migrate.out.terminal import print_bytes
    from amp_migrate.verify.output import render

    if arguments["output_format"] == "json":
        print_bytes(evidence.to_json().encode())
    else:
        print_bytes(render(evidence, arguments["color"]).encode("utf-8", "replace"))
    if arguments["reports"]:
        from amp_migrate.report.given import migration_of
        from amp_migrate.report.option import write_reports

        write_reports(arguments["reports"], migration_of(versions), evidence)
