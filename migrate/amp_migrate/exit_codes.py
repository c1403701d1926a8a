"""The exit codes of all commands: one table, so that a job can ask any of them the same question."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum


class ExitCode(IntEnum):
    """How a command ended."""

    FINE = 0
    """All is well: nothing is due, nothing was found, or the migration is proved."""
    FOUND = 1
    """What was asked about is there: changes that are due, findings, or a migration that is disproved."""
    ERROR = 2
    """A wrong option, a file that cannot be read or written, or an internal error. Click uses it for wrong options."""
    NOTHING_SHOWN = 3
    """Not proved: a check is open, the script does not run, or there is nothing to compare."""
    INTERRUPTED = 130
    """The user stopped it. Shells give 128 and the number of the signal, which is 2 for Ctrl-C."""


def help_on_exit_codes(meanings: Mapping[ExitCode, str]) -> str:
    """Return the paragraph of ``--help`` that says what each exit code means for a command.

    Args:
        meanings: the codes that the command can end with; more lines than one are separated by line ends.
    """
    meanings = {**meanings, ExitCode.INTERRUPTED: "interrupted (Ctrl-C)"}
    lines = [f"  {code:<3} {text}" for code, text in sorted(meanings.items())]
    # Click joins the lines of a paragraph unless it begins with this character.
    return "\n".join(["\b", "Exit status:", *lines])
