"""Calls that ask whoever started the program, and wait for the answer."""

from __future__ import annotations

ASKS = frozenset(
    {
        "builtins.input", "builtins.raw_input", "six.moves.input", "getpass.getpass", "click.confirm", "click.prompt",
        "click.getchar", "click.pause", "typer.confirm", "typer.prompt", "sys.stdin.readline",
        "sys.stdin.read",
    }
)  # fmt: skip
"""They read from the terminal, or from what is sent to the standard input."""

INPUT_ERRORS = frozenset({"EOFError", "OSError", "IOError", "EnvironmentError", "KeyboardInterrupt", "Abort",
                          "Exception", "BaseException"})  # fmt: skip
"""Own names of what catches that there is no answer; ``click.Abort`` is one."""
