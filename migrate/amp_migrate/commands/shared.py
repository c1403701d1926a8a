"""What both commands have in common: options, contradictions among them, and how a run ends."""

from __future__ import annotations

import atexit
import gc
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from amp_migrate.exit_codes import ExitCode
from amp_migrate.problems import UserError

color_option = click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    help="Colour; auto means on terminals, unless NO_COLOR is set. [default: auto]",
)


class CommandWithOthers(click.Command):
    """A command whose first argument may be another command; a file or folder of that name is ``./verify``.

    Attributes:
        others: by the word that names each, what loads it.
    """

    others: Mapping[str, Callable[[], click.Command]] = {}

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **more: Any
    ) -> Any:
        """Run the command, or the one that the first word names."""
        words = sys.argv[1:] if args is None else list(args)
        if words and words[0] in self.others:
            other = self.others[words[0]]()
            return other.main(words[1:], f"{prog_name or self.name} {words[0]}", **more)
        if args is None:
            # The process ends with this command. Loading the rules and reading scripts makes hardly any garbage, and
            # who goes on reading for long looks for it by himself; on the way out there is no use in that.
            gc.disable()
            atexit.register(gc.freeze)
        return super().main(words, prog_name, **more)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the options; of those that an unknown one may mean, the nearest is named alone."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            # Click lists all that are alike by the alphabet.
            nearest = list(error.possibilities or ())[:1]
            raise click.NoSuchOption(error.option_name, possibilities=nearest, ctx=ctx) from None


class PathArgument(click.Path):
    """A path that is named; whether it can be read is said file by file, and no path is not the working directory."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, readable=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        if value == "":
            self.fail("a path is empty; '.' is the working directory.", param, ctx)
        return super().convert(value, param, ctx)


def config_option(section: str) -> Callable[[Any], Any]:
    """``--config``, for a tool whose settings stand in ``[section]``."""
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help=f"Read [{section}] from FILE, not from the nearest pyproject.toml.",
    )


def stdin_filename_option(results: str) -> Callable[[Any], Any]:
    """``--stdin-filename``, for a tool that gives ``results``."""
    return click.option(
        "--stdin-filename",
        type=click.Path(path_type=Path),
        metavar="PATH",
        help=f"With '-': where the text belongs, for its imports and the {results}.",
    )


def listed(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...] | None:
    """Split comma separated values; None where the option was not given."""
    found = tuple(item.strip() for value in values for item in value.split(",") if item.strip())
    return found if values else None


def refuse_mixed_stdin(arguments: dict[str, Any]) -> None:
    """Raise where standard input is given beside files, or a name for it without it."""
    from_stdin = Path("-") in arguments["paths"]
    if from_stdin and len(arguments["paths"]) > 1:
        raise click.UsageError("'-' stands for standard input and cannot be combined with other paths.")
    if arguments["stdin_filename"] and not from_stdin:
        raise click.UsageError("--stdin-filename goes with '-' only.")


def run_command(ctx: click.Context, verbose: bool, action: Callable[[], int]) -> NoReturn:
    """Exit with what ``action`` returns, or with the error's exit code and one line about what stopped it."""
    try:
        status = action()
    except UserError as error:
        click.echo(f"error: {error}", err=True)
        status = error.exit_code
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        status = ExitCode.INTERRUPTED
    except click.ClickException:
        raise
    except Exception as error:
        if verbose:
            traceback.print_exc()
        where = "" if verbose else " (-v shows where)"
        click.echo(f"internal error: {type(error).__name__}: {error}; please report{where}", err=True)
        # Left to Python it would end with 1, which says that something was found.
        status = ExitCode.ERROR
    ctx.exit(int(status))
