"""Whether a script computes in mixed precision: a constant of each file, or a variable that the start makes."""

from __future__ import annotations

import ast

from amp_rules.flow.statements import is_main_guard
from amp_rules.plain_torch.carried import Carried
from amp_rules.plain_torch.translation import Start, Translation
from amp_rules.plain_torch.uses import Use, source_of
from amp_rules.source import blocks

_LEVELS = ("O0", "O1", "O2", "O3")
_NAMES = ("use_amp", "amp_is_used")


class Level:
    """The level of a program.

    A literal one stands in a constant of each file that needs it. One that the script computes, as in
    ``args.opt_level``, is looked at where the script starts, and carried from there as the scaler is.

    Attributes:
        place: the statement above which the script starts.
        condition: under what condition it starts: without, it computes as it always did.
    """

    def __init__(self, translation: Translation) -> None:
        self._translation = translation
        start = translation.start
        self.place: ast.stmt | None = start.use.statement if start is not None else None
        self.condition: ast.expr | None = None
        if start is not None:
            self._find_place(start)
        self.is_constant = start is None or (
            _is_level(start.use) and start.use.keyword("enabled") is None and self.condition is None
        )
        self.uses = [
            use
            for use in translation.uses
            if use.path == "autocast" and use.keyword("enabled") is None and not self.is_constant
        ]
        if start is not None:
            self._tell(start)
            if not self.is_constant:
                self.variable = Carried(translation, self.uses, _NAMES, self._made(start.use), held_anywhere=False)

    def _tell(self, start: Start) -> None:
        """Say which levels there are no more."""
        if not _is_level(start.use):
            self._translation.cannot_keep(start.use.module, "the levels O2 and O3, which are O1 now")
        elif (level := start.level.strip("\"'")) in ("O2", "O3"):
            self._translation.cannot_keep(start.use.module, f"the level {level}, which is O1 now")

    def _find_place(self, start: Start) -> None:
        """Find the statement, under no condition, above which the script can start, and what the condition was."""
        use = start.use
        for parent in blocks.enclosing(use.module, use.statement):
            if parent is use.body:
                break
            if isinstance(parent, ast.With) or (isinstance(parent, ast.If) and is_main_guard(parent)):
                continue
            inside = isinstance(parent, ast.If) and self.condition is None and use.statement in parent.body
            if not inside or blocks.writes(parent) & self._read_by(use):
                self._translation.decline(
                    use.module,
                    use.node,
                    "the script starts here in mixed precision under a condition",
                    "make it a level or `enabled=` of one call that always runs",
                    "precision",
                )
                return
            assert isinstance(parent, ast.If)
            self.condition, self.place = parent.test, parent

    def _read_by(self, use: Use) -> set[str]:
        given = [item.value for item in use.call.keywords] if use.call is not None else []
        return {path for value in given for path in blocks.reads(value)}

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
        text = '"O1"' if level is None else source_of(use.module, level)
        conditions = [item for item in (self.condition, use.keyword("enabled")) if item is not None]
        if conditions:
            asked = " and ".join(self._plain(use, item, alone=len(conditions) == 1) for item in conditions)
            text = f'{text} if {asked} else "O0"'
        return f'{self._translation.where}{{os}}.environ.get("AMP_OPT_LEVEL", {text}) != "O0"'

    def _plain(self, use: Use, node: ast.expr, *, alone: bool) -> str:
        text = source_of(use.module, node)
        plain = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant, ast.Compare, ast.UnaryOp)
        return text if isinstance(node, plain) or (alone and isinstance(node, ast.BoolOp)) else f"({text})"


def _is_level(use: Use) -> bool:
    level = use.keyword("opt_level")
    return level is None or (isinstance(level, ast.Constant) and level.value in _LEVELS)
