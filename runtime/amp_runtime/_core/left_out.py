"""What a copy of this package beside a script does without. The package itself has everything."""

from __future__ import annotations

from typing import NoReturn

# ``amp-migrate --vendor`` writes both into its copies.
LEVELS = "O0 to O3"
COMMAND = "amp-migrate --vendor -w SCRIPT"


class LeftOutError(ImportError):
    """Something was asked for that this copy of the package does without."""


def told(what: str, option: str = "") -> str:
    """What is said of something that is left out, and how to have it.

    Args:
        what: the thing, as the script spells it.
        option: what the command needs besides the scripts.
    """
    command = COMMAND.replace("--vendor", f"--vendor {option}") if option else COMMAND
    return f"{what} is left out of this copy of amp_runtime, which is for {LEVELS}; `{command}` adds it"


def refuse_for_good(what: str) -> NoReturn:
    """Raises for something that only the package itself has.

    Args:
        what: see :func:`told`.

    Raises:
        LeftOutError: always.
    """
    raise LeftOutError(f"{what} is left out of copies of amp_runtime; the package that is installed with pip has it")


def refuse(what: str, option: str = "") -> NoReturn:
    """Raises for something that is left out.

    Args:
        what: see :func:`told`, and so is ``option``.
        option: see there.

    Raises:
        LeftOutError: always.
    """
    raise LeftOutError(told(what, option))
