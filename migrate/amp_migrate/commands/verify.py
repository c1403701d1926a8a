"""The command ``amp-migrate verify``: its options, and the order in which the other modules are called."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from amp_migrate.commands.migration_options import HOW_IT_IS_WRITTEN, migration_options, voice_options
from amp_migrate.commands.sections import SectionedCommand
from amp_migrate.commands.shared import PathArgument, run_command
from amp_migrate.commands.verify_options import verify_options
from amp_migrate.exit_codes import ExitCode, help_on_exit_codes
from amp_migrate.report.option import report_option

if TYPE_CHECKING:
    from amp_migrate.verify.by_hand import ByHand
    from amp_migrate.verify.copies import CopiedProject
    from amp_migrate.verify.evidence import Evidence
    from amp_migrate.verify.launches import Launch
    from amp_migrate.verify.output import Progress
    from amp_migrate.verify.plan import Asked
    from amp_migrate.verify.runs import Maker
    from amp_migrate.verify.versions import Versions

_OF_VERDICT: dict[str, ExitCode] = {
    "proved": ExitCode.FINE,
    "disproved": ExitCode.FOUND,
    "unproved": ExitCode.NOTHING_SHOWN,
}

_OF_TABLES = ("O0", "O1")
"""The levels that ``amp.shard_embedding`` allows."""
_SEPARATED = "amp_migrate.separated"
_EXIT_CODES = help_on_exit_codes(
    {
        ExitCode.FINE: "proved: every check that applies ran to its end and holds",
        ExitCode.FOUND: "disproved: a check failed; the result says which, and where",
        ExitCode.ERROR: "an error: a wrong option, a file that cannot be read, a Python without torch",
        ExitCode.NOTHING_SHOWN: "not proved: a check is open, the script does not run, or nothing was migrated",
    }
)
_EPILOG = f"""{_EXIT_CODES}

No file is changed: each run gets a temporary copy of the project. docs/verify.md says what is compared, how far a
verdict reaches, and what it cannot see.
"""


class _Verify(SectionedCommand):
    """Says where a script's own options go."""

    sections = MappingProxyType(
        {
            "What is migrated": (),
            "How it is written": HOW_IT_IS_WRITTEN,
            "What is compared": (
                *("levels", "steps", "full", "procs", "launch", "types", "tolerance", "seed", "python", "as_module"),
                *("against", "base"),
            ),
            "Output": ("keep", "output_format", "reports", "color", "quiet", "verbose"),
            "Limits": ("timeout", "memory", "threads", "links", "copy_limit"),
        }
    )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line, and note whether the script's own arguments are told, be it that there are none."""
        ctx.meta[_SEPARATED] = "--" in args
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            message = f"No such option: {error.option_name} (options of the script itself follow after --)."
            raise click.NoSuchOption(error.option_name, message, error.possibilities, ctx) from error


_SAID_OTHERWISE = {
    "ddp": "Also migrate to distributed data parallel training, by several processes. "
    "[default: yes, unless --procs is 1]",
    "quiet": "Print the result alone, without progress.",
    "verbose": "Show tracebacks of internal errors.",
}
"""Of options that the commands share, what they mean here."""


def _in_words_of_its_own(command: click.Command) -> click.Command:
    for param in command.params:
        if isinstance(param, click.Option) and param.name in _SAID_OTHERWISE:
            param.help = _SAID_OTHERWISE[param.name]
    return command


@_in_words_of_its_own
@click.command(
    "verify",
    cls=_Verify,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=_EPILOG,
)
@click.argument("script", type=PathArgument())
@click.argument("arguments", nargs=-1, metavar="[-- ARGUMENTS...]", type=click.UNPROCESSED)
@verify_options
@report_option
@migration_options
@voice_options
@click.pass_context
def verify(ctx: click.Context, /, **arguments: Any) -> None:
    """Run a training script before and after its migration, and compare what it computes.

    The original and the migrated script run with the same seeds, in temporary copies of the project: in float32 (O0),
    at the half precision levels, and in several processes. In float32 the losses must be equal to the last bit.

    \b
      amp-migrate verify train.py                              migrate in memory, run, compare
      amp-migrate verify train.py --steps 200 -- --epochs 1    with arguments for the script
      amp-migrate verify train.py --target torch               the version in plain PyTorch
      amp-migrate verify train.py --quantize static            and how near its int8 model is
      amp-migrate verify train.py --base main                  what a branch migrated
      amp-migrate verify train.py --against train_ddp.py       what a person, another tool or an AI model migrated
    """

    procs_given = ctx.get_parameter_source("procs") is not ParameterSource.DEFAULT

    def action() -> int:
        from amp_migrate.verify.processes import interruptible

        with interruptible():
            return _verify(_launched(arguments, procs_given=procs_given, separated=ctx.meta[_SEPARATED]))

    run_command(ctx, arguments["verbose"], action)


def _verify(arguments: dict[str, Any]) -> int:
    from amp_migrate.run.discovery import meant
    from amp_migrate.verify.copies import project_of, workplace
    from amp_migrate.verify.environment import interpreter_environment
    from amp_migrate.verify.making import make_all
    from amp_migrate.verify.output import Progress
    from amp_migrate.verify.verdict import judge
    from amp_migrate.verify.warm import starter

    if arguments["against"] is not None and arguments["base"] is not None:
        raise click.UsageError("--against and --base both say what is compared; give one of them.")
    if math.isnan(arguments["timeout"]) or math.isnan(arguments["tolerance"]):
        raise click.UsageError("--timeout and --tolerance need numbers.")
    began = time.monotonic()
    progress = Progress(arguments["color"], arguments["quiet"], arguments["verbose"])
    script: Path = arguments["script"]
    if not script.is_file():
        raise click.UsageError(f"{script}: there is no such script{meant(script)}")
    find = partial(project_of, script, Path.cwd(), as_module=arguments["as_module"])
    versions = _versions(arguments, find())
    project = find(arguments["links"], modules=versions.modules)
    asked = _asked(arguments, versions)
    with workplace(arguments["keep"]) as folder:
        maker = _maker(arguments, project, versions, folder, progress)
        command, threads = maker.settings.interpreter.command, maker.settings.threads
        with progress.shown(), starter(command, interpreter_environment(threads), asked.processes) as maker.starter:
            maker.budget.besides = time.monotonic() - began
            traces = make_all(maker, asked, progress)
        notes = (*asked.notes, *maker.notes(), *_notes_of_runtime(arguments, versions))
        asked = replace(asked, steps=maker.budget.original_steps, notes=notes)
        evidence = judge(asked, traces)
        _deliver(evidence, versions, arguments)
    return _OF_VERDICT[evidence.verdict]


def _notes_of_runtime(arguments: dict[str, Any], versions: Versions) -> Iterator[str]:
    """What is to know of the runtime: what is left out of it, and whether another one is installed than is imported."""
    from amp_migrate.runtimes import other_runtime

    if versions.tables and set(arguments["levels"]) - set(_OF_TABLES):
        yield "Rows of tables that are shared out are float32: O2 and O3, which refuse them, are left out."
    if arguments["python"] is None and not versions.native and (other := other_runtime()):
        yield f"The runs import the runtime of amp-migrate itself; {other}."


def _launched(arguments: dict[str, Any], *, procs_given: bool, separated: bool) -> dict[str, Any]:
    """The arguments with what ``--launch`` says in them; those after ``--`` are for the runs in one process."""
    launch: Launch | None = arguments["launch"]
    if launch is None:
        return arguments
    count = launch.processes or arguments["procs"]
    if count == 1 or (procs_given and count != arguments["procs"]):
        raise click.UsageError(f"--launch starts {count} processes, and --procs says {arguments['procs']}.")
    return {**arguments, "procs": count, "arguments": arguments["arguments"] if separated else launch.arguments}


def _versions(arguments: dict[str, Any], project: CopiedProject) -> Versions:
    from amp_migrate.settings.migration import settings_of
    from amp_migrate.verify import versions

    script = arguments["script"]
    if arguments["against"] is not None:
        return versions.given(script, arguments["against"], project)
    if arguments["base"] is not None:
        return versions.since(script, arguments["base"])
    given = {
        **arguments,
        "paths": (script,),
        "stdin_filename": None,
        "vendor": False,
        "launch_lines": False,
        "install_line": None,
        "strict": None,
        "baseline": None,
    }
    if arguments["ddp"] is None and arguments["procs"] > 1:
        given["ddp"] = True  # which --shard-embeddings asks for
    options = settings_of(given).options
    if arguments["ddp"] is None:
        options = replace(options, ddp=arguments["procs"] > 1)
    return versions.migrated_now(script, options)


def _asked(arguments: dict[str, Any], versions: Versions) -> Asked:
    from importlib.metadata import version

    from amp_migrate.verify.plan import Asked

    several = versions.distribution in ("migrated", "already", "unknown") or arguments["launch"] is not None
    levels = ("O1",) if versions.native else _OF_TABLES if versions.tables else arguments["levels"]
    return Asked(
        script=str(arguments["script"]),
        arguments=arguments["arguments"],
        steps=arguments["steps"] or 0,
        processes=arguments["procs"] if several else 1,
        tolerance=arguments["tolerance"],
        levels=("O0", *(level for level in levels if level != "O0" and level in arguments["levels"])),
        precision=versions.precision,
        distribution=versions.distribution,
        sync_bn=versions.options.sync_bn and versions.target != "",
        notes=versions.notes,
        versions=(("amp-migrate", version("amp-migrate")),),
        native=versions.native,
        half_types=arguments["types"],
        target=versions.target,
        int8=versions.int8,
        quantize=(versions.options.quantize or "") if versions.int8 else "",
        types=versions.plain.types if versions.plain is not None else None,
    )


def _maker(
    arguments: dict[str, Any], project: CopiedProject, versions: Versions, folder: Path, progress: Progress
) -> Maker:
    from amp_migrate.verify.budget import Budget
    from amp_migrate.verify.environment import clean_environment
    from amp_migrate.verify.interpreter import find_interpreter
    from amp_migrate.verify.process_table import physical_memory
    from amp_migrate.verify.runs import Maker, Settings

    interpreter = find_interpreter(arguments["python"], project.cwd, clean_environment())
    settings = Settings(
        arguments=arguments["arguments"],
        interpreter=interpreter,
        timeout=arguments["timeout"],
        memory=arguments["memory"] or physical_memory() * 3 // 4,
        seed=arguments["seed"],
        threads=arguments["threads"],
        copy_limit=arguments["copy_limit"],
        keep=arguments["keep"] is not None,
        module=_module(project, project.script) if arguments["as_module"] else None,
    )
    return Maker(
        project,
        versions.migrated,
        versions.original,
        settings,
        folder,
        stand_in=versions.uses_apex and not interpreter.has_apex,
        tick=progress.tick,
        budget=Budget(arguments["steps"], full=arguments["full"]),
        by_hand=_by_hand(arguments, project, versions),
        quantizing=versions.quantizing,
        int8=versions.int8,
    )


def _by_hand(arguments: dict[str, Any], project: CopiedProject, versions: Versions) -> ByHand:
    from amp_migrate.verify.by_hand import ByHand
    from amp_migrate.verify.launches import local_rank_option

    script = versions.script or project.script
    launch: Launch | None = arguments["launch"]
    module = _module(project, script) if arguments["as_module"] else ""
    if launch is not None and launch.is_module and not arguments["as_module"]:
        raise click.UsageError("--launch starts a module; give -m too, so that the runs in one process do.")
    names = [path for path in (script, arguments["against"]) if path is not None]
    if launch is not None and not any(launch.starts(name, module) for name in names):
        raise click.UsageError(f"--launch starts {launch.script}, and what is compared is {script.name}.")
    own = versions.distribution == "already" and launch is None and arguments["procs"] > 1
    return ByHand(
        native=versions.native and versions.plain is None,
        plain=versions.plain,
        on_runtime_before=versions.on_runtime_before,
        native_before=versions.native_before,
        half_type=arguments["types"][0] if arguments["types"] else None,
        script=versions.script,
        module=module or None,
        launch=launch,
        local_rank=local_rank_option(path.read_bytes() for path in (script, *versions.modules)) if own else "",
    )


def _module(project: CopiedProject, script: Path) -> str:
    """The dotted name under which ``python -m`` finds a script."""
    if not script.is_relative_to(project.cwd):
        raise click.UsageError(f"-m: {script.name} does not lie below the working directory.")
    parts = script.relative_to(project.cwd).with_suffix("").parts
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
