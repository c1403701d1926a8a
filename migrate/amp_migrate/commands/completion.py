"""The commands ``amp-migrate completion`` and ``amp-lint completion``: what a shell needs to complete their options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")
_HOW = {
    "bash": 'eval "$({0} completion bash)"       in ~/.bashrc',
    "zsh": 'eval "$({0} completion zsh)"        in ~/.zshrc, below compinit',
    "fish": "{0} completion fish | source        in ~/.config/fish/config.fish",
}


def completion_of(command: click.Command) -> click.Command:
    """The command that prints the completion of another one."""
    name = command.name or ""
    lines = "\n".join(f"  {how.format(name)}" for how in _HOW.values())

    @click.command(
        "completion",
        help=f"Print the code with which a shell completes {name}.\n\nThe line for the start-up file of each:\n\n"
        f"\b\n{lines}",
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    @click.argument("shell", type=click.Choice(SHELLS))
    def completion(shell: str) -> None:
        variable = f"_{name.replace('-', '_').upper()}_COMPLETE"
        known = get_completion_class(shell)
        assert known is not None
        # Not `source`: that of bash starts a bash to ask for its version, and warns on standard error.
        found = known(command, {}, name, variable)
        click.echo(found.source_template % found.source_vars())

    return completion
