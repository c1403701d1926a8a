"""What both commands have in common: options, contradictions among them, and how a run ends."""

from __future__ import annotations

import atexit
import difflib
import gc
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.shell_completion import CompletionItem

from amp_migrate.commands.sections import SectionedCommand
from amp_migrate.exit_codes import ExitCode
from amp_migrate.problems import UserError

COMPLETION = "completion"

color_option = click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    help="When to print colours; auto is on terminals, unless NO_COLOR is set. [default: auto]",
)


if TYPE_CHECKING:
    Choice = click.Choice[str]
else:
    Choice = click.Choice  # generic since click 8.2


class Words(Choice):
    """Words in any case; an error shows them as they are written in the manual, levels in upper case."""

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__(words, case_sensitive=False)

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None = None) -> str:
        """Say what the words are, and which is near."""
        near = difflib.get_close_matches(str(value).lower(), [str(word).lower() for word in self.choices], 1)
        meant = next((f" Did you mean {word}?" for word in self.choices if near and str(word).lower() == near[0]), "")
        return f"{value!r} is not one of {', '.join(map(str, self.choices))}.{meant}"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Have the shell complete the words as they are written in the manual."""
        words = (str(word) for word in self.choices)
        return [CompletionItem(word) for word in words if word.lower().startswith(incomplete.lower())]


class CommandWithOthers(SectionedCommand):
    """A command whose first argument may be another command; a file or folder of that name is ``./verify``.

    Attributes:
        others: by the word that names each, what loads it.
        asked_otherwise: by an option that other tools have, what to do here.
    """

    others: Mapping[str, Callable[[], click.Command]] = {}
    asked_otherwise: Mapping[str, str] = {}

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **more: Any
    ) -> Any:
        """Run the command, or the one that the first word names."""
        words = sys.argv[1:] if args is None else list(args)
        if other := self._other(words):
            return other.main(words[1:], f"{prog_name or self.name} {words[0]}", **more)
        if args is None:
            # The process ends with this command. Loading the rules and reading scripts makes hardly any garbage, and
            # who goes on reading for long looks for it by himself; on the way out there is no use in that.
            gc.disable()
            atexit.register(gc.freeze)
        return super().main(words, prog_name, **more)

    def _other(self, words: Sequence[str]) -> click.Command | None:
        """The command that the first word names."""
        if words and words[0] == COMPLETION:
            from amp_migrate.commands.completion import completion_of

            return completion_of(self)
        return self.others[words[0]]() if words and words[0] in self.others else None

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Make the context; while a shell completes words, that of the command that the first of them names."""
        if extra.get("resilient_parsing") and (other := self._other(args)):
            return other.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the options; of those that an unknown one may mean, the nearest is named alone.

        A first word that is nearly that of another command, or an option without its dashes, and no path, is an error:
        nothing is done with the rest.
        """
        first = args[0] if args else ""
        if first.isalpha() and not ctx.resilient_parsing and not os.path.lexists(first):
            for name in difflib.get_close_matches(first, [*self.others, COMPLETION], n=1, cutoff=0.75):
                raise click.UsageError(f"{first}: no such file or directory. Did you mean {ctx.info_name} {name}?", ctx)
            if any(f"--{first}" in param.opts for param in self.params):
                meant = f"{ctx.info_name} --{first}"
                raise click.UsageError(f"{first}: no such file or directory. Did you mean {meant}?", ctx)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if instead := self.asked_otherwise.get(error.option_name):
                message = f"No such option: {error.option_name}; {instead}."
                raise click.NoSuchOption(error.option_name, message, ctx=ctx) from None
            # Click lists all that are alike by the alphabet.
            nearest = list(error.possibilities or ())[:1]
            raise click.NoSuchOption(error.option_name, possibilities=nearest, ctx=ctx) from None


class PathArgument(click.Path):
    """A path that is named; whether it can be read is said file by file, and no path is not the working directory."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, readable=False)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Have the shell complete paths, and as the first word also the names of other commands."""
        items = super().shell_complete(ctx, param, incomplete)
        if isinstance(ctx.command, CommandWithOthers) and not ctx.params.get(param.name or ""):
            names = (*ctx.command.others, COMPLETION)
            items += [CompletionItem(name) for name in names if incomplete and name.startswith(incomplete)]
        return items

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
        help=f"Read [{section}] from FILE instead of the nearest pyproject.toml.",
    )


def stdin_filename_option(results: str) -> Callable[[Any], Any]:
    """``--stdin-filename``, for a tool that gives ``results``."""
    return click.option(
        "--stdin-filename",
        type=click.Path(path_type=Path),
        metavar="PATH",
        help=f"With '-': the path of the text, for its imports and the {results}.",
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
