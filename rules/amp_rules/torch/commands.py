"""Libraries that choose, by the command line, which function of a script runs."""

from __future__ import annotations

RUNS_COMMANDS = frozenset(
    {
        "argh.dispatch_command",
        "argh.dispatch_commands",
        "click.CommandCollection",
        "click.Group",
        "click.group",
        "clize.run",
        "defopt.run",
        "fire.Fire",
        "fire.core.Fire",
        "jsonargparse.CLI",
        "jsonargparse.auto_cli",
        "plac.call",
        "plac.Interpreter.call",
        "typer.run",
        "tyro.cli",
        "tyro.extras.subcommand_cli_from_dict",
    }
)
"""They run what they are given: a function, a method of a class, one of a table or list of commands, or of a module.

Source: https://github.com/google/python-fire/blob/master/docs/using-cli.md, and the documentation of each.
"""
