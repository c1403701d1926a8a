"""The command ``amp-lint server``: its options, and what must be installed for it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import click

from amp_migrate.commands.shared import config_option, run_command
from amp_migrate.exit_codes import ExitCode, help_on_exit_codes
from amp_migrate.problems import UserError

_EXIT_CODES = help_on_exit_codes(
    {ExitCode.FINE: "the editor ended it", ExitCode.ERROR: "an error: a wrong option, or pygls is missing"}
)
_EPILOG = f"""Settings are those of the command line: [tool.amp-lint] in the pyproject.toml nearest to each file.
A folder of that name is judged by `amp-lint ./server`.

{_EXIT_CODES}
"""


@click.command(
    "server", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}, epilog=_EPILOG
)
@click.option("--stdio", is_flag=True, help="Speak over standard input and output; there is no other way.")
@config_option("tool.amp-lint")
@click.option("-v", "--verbose", is_flag=True, help="Log the conversation to standard error.")
@click.pass_context
def server(ctx: click.Context, stdio: bool, config: Path | None, verbose: bool) -> None:
    """Serve an editor: findings as you type, fixes and the rules' pages.

    The editor starts it and speaks the language server protocol with it.
    """

    def action() -> int:
        if find_spec("pygls") is None:
            from amp_migrate.installation import install_line

            raise UserError(
                f"pygls, which `amp-lint server` needs, is not installed: {install_line('server', here=True)}"
            )
        from amp_migrate.server.serving import serve

        return serve(config.absolute() if config else None, verbose)

    run_command(ctx, verbose, action)
