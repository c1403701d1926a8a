"""A wrong migration, as an edit of a right one, and what has to be said of it."""

from __future__ import annotations

from dataclasses import dataclass

PLAIN, ACCUMULATION, DISTRIBUTED = "plain/train.py", "accumulation/train.py", "distributed/main.py"
GAN, EVALUATION, SAMPLING = "gan/train.py", "evaluation/train.py", "sampling/train.py"
AVERAGING, ALIKE, LAUNCHED = "averaging/train.py", "alike/train.py", "launched/main.py"
RECURRENT, SHUFFLED = "recurrent/train.py", "shuffled/train.py"

ALONE = ("--procs", "1", "--levels", "O0")
HALF = ("--procs", "1", "--levels", "O1")
TOGETHER = ("--procs", "2", "--levels", "O0")


@dataclass(frozen=True)
class Wrong:
    """A wrong migration.

    Attributes:
        script: what was migrated.
        edits: what is replaced in the migrated script.
        by: the check that says so.
        words: a part of what it says.
        line: the text of a line of the wrong script that it has to name by its number; empty where there is none.
        options: more of ``amp-migrate verify``.
        verdict: ``"unproved"`` where the check can only say that it stays open.
        missed: why it is not found yet; empty where it is.
    """

    script: str
    edits: tuple[tuple[str, str], ...]
    by: str
    words: str
    line: str = ""
    options: tuple[str, ...] = ALONE
    verdict: str = "disproved"
    missed: str = ""

    @property
    def file(self) -> str:
        """The name of the script's file."""
        return self.script.partition("/")[2]
