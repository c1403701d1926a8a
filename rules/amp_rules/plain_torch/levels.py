"""Whether a script computes in mixed precision: a constant of each file, or a variable that the start makes."""

from __future__ import annotations

import ast

from amp_rules.plain_torch.carried import Carried
from amp_rules.plain_torch.translation import Translation
from amp_rules.plain_torch.uses import Use

_LEVELS = ("O0", "O1", "O2", "O3")
_NAMES = ("use_amp", "amp_is_used")


class Level:
    """The level of a program.

    A literal one stands in a constant of each file that needs it. One that the script computes, as in
    ``args.opt_level``, is looked at where the script starts, and carried from there as the scaler is.
    """

    def __init__(self, translation: Translation) -> None:
        self._translation = translation
        start = translation.start
        self.is_constant = start is None or (_is_level(start.use) and start.use.keyword("enabled") is None)
        self.uses = [
            use
            for use in translation.uses
            if use.path == "autocast" and use.keyword("enabled") is None and not self.is_constant
        ]
        literal = start.level.strip("\"'") if start is not None and self.is_constant else ""
        if start is not None and literal in ("O2", "O3"):
            translation.cannot_keep(start.use.module, f"the level {literal}, which is O1 now")
        if start is not None and not self.is_constant:
            if start.use.keyword("opt_level") is not None or start.use.call.args:  # type: ignore[union-attr]
                translation.cannot_keep(start.use.module, "the levels O2 and O3, which are O1 now")
            self.variable = Carried(translation, self.uses, _NAMES, self._made(start.use), held_anywhere=False)

    @property
    def template(self) -> str:
        """The template of the level where the script starts."""
        return "{USE_AMP}" if self.is_constant else self.variable.at_start

    def at(self, use: Use) -> str:
        """The template of whether a region computes in mixed precision."""
        return "{USE_AMP}" if self.is_constant else self.variable.at(use)

    @property
    def line(self) -> str | None:
        """The template of the line that looks at the level where the script starts."""
        return None if self.is_constant else self.variable.line

    def _made(self, use: Use) -> str:
        level = use.keyword("opt_level")
        enabled = use.keyword("enabled")
        text = '"O1"' if level is None else ast.unparse(level)
        if enabled is not None:
            whole = ast.unparse(enabled)
            plain = isinstance(enabled, (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant))
            text = f'{text} if {whole if plain else f"({whole})"} else "O0"'
        return f'{{os}}.environ.get("AMP_OPT_LEVEL", {text}) != "O0"'


def _is_level(use: Use) -> bool:
    level = use.keyword("opt_level")
    return level is None or (isinstance(level, ast.Constant) and level.value in _LEVELS)
