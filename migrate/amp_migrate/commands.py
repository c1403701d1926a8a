"""What both commands have in common: options, contradictions among them, and how a run ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from amp_migrate.problems import UserError

ERROR, INTERRUPTED = 2, 130
"""Exit statuses: something could not be done; the user stopped it."""

color_option = click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    help="Colour; auto means on terminals, unless NO_COLOR is set. [default: auto]",
)


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


def settings_folder(paths: Sequence[Path], stdin_filename: Path | None) -> Path:
    """The folder from which the configuration is looked for upwards: that of the first path."""
    first = paths[0] if paths else Path.cwd()
    if first == Path("-"):
        first = stdin_filename or Path.cwd() / "stdin"
    # Whoever opens a link that leads in a circle says so.
    return Path(os.path.realpath(first if first.is_dir() else first.parent))


def run_command(ctx: click.Context, verbose: bool, action: Callable[[], int]) -> NoReturn:
    """Exit with what ``action`` returns, or with 2 and one line about what stopped it."""
    try:
        status = action()
    except UserError as error:
        click.echo(f"error: {error}", err=True)
        status = ERROR
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        status = INTERRUPTED
    except Exception as error:
        if verbose or isinstance(error, click.ClickException):
            raise
        click.echo(f"internal error: {type(error).__name__}: {error}; please report (-v shows where)", err=True)
        status = ERROR
    ctx.exit(status)
