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
_PLAIN = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)
_LONG = 85
"""The length of conditions that no longer go well on one line, indented and behind a name."""


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
            _is_level(start.use)
            and self.condition is None
            and all(start.use.keyword(name) is None for name in ("enabled", "override"))
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
        level = start.use.keyword("opt_level")
        branches = [level.body, level.orelse] if isinstance(level, ast.IfExp) else []
        if branches and all(isinstance(item, ast.Constant) and item.value in ("O0", "O1") for item in branches):
            return
        if not _is_level(start.use):
            self._translation.cannot_keep(start.use.module, "the levels O2 and O3, which are O1 now")
        elif (name := start.level.strip("\"'")) in ("O2", "O3"):
            self._translation.cannot_keep(start.use.module, f"the level {name}, which is O1 now")
        elif start.use.keyword("override") is not None and self._names_half_models():
            self._translation.cannot_keep(start.use.module, "the levels O2 and O3, which are O1 now")

    def _names_half_models(self) -> bool:
        """Whether the program names a level that has a half model, as an option that takes one does."""
        nodes = (node for module in self._translation.program.flow.modules for node in module.nodes)
        return any(isinstance(node, ast.Constant) and node.value in ("O2", "O3") for node in nodes)

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
        """What the level is made of: the script's own conditions, where it has some, and what the environment says."""
        level = use.keyword("opt_level")
        override = use.keyword("override")
        if override is not None:
            return self._overridden(use, level, override)
        asked = [item for item in (self.condition, use.keyword("enabled")) if item is not None]
        if isinstance(level, ast.IfExp) and _is_o0(level.orelse):
            asked.append(level.test)
            level = level.body
        text = '"O1"' if level is None else source_of(use.module, level)
        if not asked:
            return f'{self._translation.where}{{os}}.environ.get("AMP_OPT_LEVEL", {text}) != "O0"'
        parts = [part for item in asked for part in _conditions(item)]
        rows = [_as_bool(source_of(use.module, part), part) for part in parts]
        if not (level is None or _is_name(level)):
            rows.append(f'{text if isinstance(level, _PLAIN) else f"({text})"} != "O0"')
        rows.append('{os}.environ.get("AMP_OPT_LEVEL") != "O0"')
        if self._translation.where:
            rows.insert(0, "{torch}.cuda.is_available()")
        made = _in_quotes_of(list(dict.fromkeys(rows)))
        if len(made) > 2 and sum(map(len, made)) > _LONG:
            return "(\n    " + "\n    and ".join(made) + "\n)"
        return " and ".join(made)

    def _overridden(self, use: Use, level: ast.expr | None, override: ast.expr) -> str:
        """What the level is made of where an option overrides it, and the environment."""
        if self.condition is not None or use.keyword("enabled") is not None:
            message = f"`{use.module.text(override)}` overrides the level, which a condition chooses too"
            recipe = "choose the level in one place; or keep the runtime (--target runtime)"
            self._translation.decline(use.module, use.node, message, recipe, "precision")
        text = '"O1"' if level is None or _is_name(level) else source_of(use.module, level)
        given = source_of(use.module, override)
        chosen = given if isinstance(override, _PLAIN) else f"({given})"
        return f'{self._translation.where}({chosen} or {{os}}.environ.get("AMP_OPT_LEVEL", {text})) != "O0"'


def _conditions(node: ast.expr) -> list[ast.expr]:
    """What must all hold for a condition to hold."""
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        return [part for item in node.values for part in _conditions(item)]
    return [node]


def _as_bool(text: str, node: ast.expr) -> str:
    """The source of a condition that gives True or False, which is all that torch takes."""
    if isinstance(node, ast.Compare) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)):
        return text
    return f"bool({text})"


def _in_quotes_of(rows: list[str]) -> list[str]:
    """New code with the quotes of the script's own strings beside it, unless one of these has both kinds."""
    own = "".join(rows).replace('"AMP_OPT_LEVEL"', "").replace('"O0"', "")
    return [row.replace('"', "'") for row in rows] if "'" in own and '"' not in own else rows


def _is_o0(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == "O0"


def _is_name(node: ast.expr) -> bool:
    """Whether a level is written out, and another than O0."""
    return isinstance(node, ast.Constant) and node.value in _LEVELS[1:]


def _is_level(use: Use) -> bool:
    level = use.keyword("opt_level")
    return level is None or (isinstance(level, ast.Constant) and level.value in _LEVELS)
