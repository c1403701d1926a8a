"""The scaler: where it is made, how it gets to its uses, and its calls."""

from __future__ import annotations

import ast

import libcst as cst

from amp_rules.plain_torch.beside_optimizers import Origin, origins
from amp_rules.plain_torch.carried import Carried
from amp_rules.plain_torch.levels import Level
from amp_rules.plain_torch.rounds import Rounds
from amp_rules.plain_torch.translation import Translate, Translation
from amp_rules.plain_torch.uses import Use, source_of
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.text.actions import ExpressionEdit
from amp_rules.text.expression_edits import substitute

_NAMES = ("scaler", "grad_scaler")
_SETTINGS = ("init_scale", "growth_interval")
_METHODS = ("scale", "unscale_", "step", "update", "get_scale", "state_dict", "load_state_dict")


class LossScaling:
    """The scaler of a program; there is none in bfloat16, whose gradients do not vanish.

    Attributes:
        uses: what uses it.
        is_needed: whether there is one.
        is_beside_optimizers: whether the script starts below the optimizers, as with ``apex.amp.initialize``.
        fixed: a scale that stays; None where it adapts.
    """

    def __init__(self, translation: Translation) -> None:
        self._translation = translation
        start = translation.start
        self.uses = [use for use in translation.uses if use.path.split(".")[0] == "scaler"]
        self.is_needed = bool(self.uses) and (start is None or start.dtype != "bf16")
        self.is_beside_optimizers = False
        self.fixed = _number(start.loss_scale) if start is not None else None
        if self.is_needed:
            is_constant = translation.part(Level).is_constant
            found = list(origins(translation.program, self.uses))
            self.is_beside_optimizers = start is not None and any(
                item.body is start.use.body and not self._is_later(item) for item in found
            )
            self.variable = Carried(
                translation,
                self.uses,
                _NAMES,
                self._made,
                held_anywhere=is_constant,
                origins=[item for item in found if self._can_be_made(item)],
            )
            self.merged = Rounds(translation, is_fixed=self.fixed is not None).check()
            self._write_merged()

    def _can_be_made(self, origin: Origin) -> bool:
        """Whether a place comes after the start, and has all that the scaler is made of."""
        start = self._translation.start
        if start is None or origin.statement is None:
            return False
        if origin.body is start.use.body and not self._is_later(origin):
            return False
        level = self._translation.part(Level)
        given = [start.use.keyword(name) for name in _SETTINGS] if self.fixed is None else []
        is_plain = level.is_constant and all(isinstance(item, ast.Constant | None) for item in given)
        # What the start computed is known below it in its own suite, or deeper.
        return is_plain or (origin.body is start.use.body and _is_below(start.use.module, level, origin.statement))

    def _is_later(self, origin: Origin) -> bool:
        """Whether a place of the body that starts is below the start."""
        start = self._translation.start
        assert start is not None and origin.statement is not None
        return start.use.module.start(start.use.statement) < start.use.module.start(origin.statement)

    @property
    def _made(self) -> str:
        start = self._translation.start
        level = self._translation.part(Level)
        enabled = level.template
        if start is None or start.dtype == "auto":
            enabled += " and {AMP_DTYPE} == {torch}.float16"
        more = []
        if self.fixed is not None:
            more.append(f"init_scale={self.fixed}")
        elif start is not None:
            for name in _SETTINGS:
                given = start.use.keyword(name)
                if given is not None:
                    more.append(f"{name}={ast.unparse(given)}")
        return "{torch}.amp.GradScaler({DEVICE_TYPE}, " + "".join(f"{item}, " for item in more) + f"enabled={enabled})"

    def _write_merged(self) -> None:
        """Put one ``unscale_`` above several."""
        for statement, uses in self.merged.above.items() if self.merged is not None else ():
            for use in uses:
                code = f"{self.variable.at(use)}.unscale_({source_of(use.module, use.argument)})"
                self._translation.insert(use.module, statement, code)

    def is_merged(self, use: Use) -> bool:
        """Whether another call stands for this one."""
        return self.is_needed and self.merged is not None and use in self.merged.gone

    @property
    def line(self) -> str | None:
        """The template of the line that makes it at the start."""
        return self.variable.line if self.is_needed else None


def _is_below(module: Module, level: Level, statement: ast.stmt) -> bool:
    """Whether a statement follows what looks at the level, in its suite or deeper in a statement of it."""
    if level.place is None:
        return False
    place = blocks.place(module, level.place)
    below = place.suite[place.index + 1 :]
    return any(item in below for item in (statement, *module.ancestors(statement)))


def _number(text: str | None) -> str | None:
    """A fixed scale as a number; None where it adapts."""
    if text is None:
        return None
    value = ast.literal_eval(text) if _is_literal(text) else None
    if isinstance(value, str) and value != "dynamic":
        value = float(value)
    return repr(float(value)) if isinstance(value, (int, float)) else None


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return False
    return True


def _method(translation: Translation, use: Use) -> None:
    """``amp.scaler.scale(loss)`` becomes ``scaler.scale(loss)``."""
    scaling = translation.part(LossScaling)
    if not scaling.is_needed:
        _without_scaler(translation, use)
        return
    method = use.path.partition(".")[2]
    scaler = scaling.variable.at(use)
    if scaling.is_merged(use):
        translation.take_out(use)
        return
    if use.call is not None and method == "update" and not use.call.args and scaling.fixed is not None:
        translation.replace(use.module, use.whole, substitute(f"{scaler}.update({scaling.fixed})"))
        return
    if use.call is not None and method == "update" and use.call.args:
        translation.decline(
            use.module,
            use.node,
            f"torch cannot set a scale before the first loss is scaled, as `{use.module.text(use.whole)}` may",
            "give the scale to amp.initialize as loss_scale, or leave it out",
            "precision",
        )
        return
    if use.call is not None and method == "load_state_dict":
        _load(translation, use, scaler)
        return
    if use.keyword("loss_id") is not None:
        translation.cannot_keep(use.module, "a scale of its own for each loss")
        translation.replace(use.module, use.whole, _without_keyword("loss_id"))
    translation.replace(use.module, use.node, substitute(f"{scaler}.{method}"))


def _load(translation: Translation, use: Use, scaler: str) -> None:
    """``amp.scaler.load_state_dict(state)``: a scaler that is turned off saves an empty state, which torch refuses."""
    state = source_of(use.module, use.argument) if use.call is not None and use.call.args else ""
    if use.is_statement and use.call is not None and (entry := _entry(use.module, use.argument)) is not None:
        translation.put_for(use, f'if "scale" in {state}:\n    {scaler}.load_state_dict({entry})')
        return
    is_plain = use.is_statement and state and isinstance(use.argument, (ast.Name, ast.Attribute, ast.Subscript))
    if not is_plain:
        translation.decline(
            use.module,
            use.node,
            f"`{use.module.text(use.whole)}` may be given the empty state of a scaler that was turned off",
            "load the state in a statement of its own, from a variable",
            "precision",
        )
        return
    translation.cannot_keep(use.module, "the loss scale in checkpoints that Apex wrote, which is not loaded")
    translation.put_for(use, f'if "scale" in {state}:\n    {scaler}.load_state_dict({state})')


def _entry(module: Module, given: ast.expr) -> str | None:
    """``checkpoint["scaler"]`` of ``checkpoint.get("scaler", {})``, as AMP118 writes it; Apex saved nothing there."""
    if not (isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute) and given.func.attr == "get"):
        return None
    if len(given.args) != 2 or not (isinstance(given.args[1], ast.Dict) and not given.args[1].keys):
        return None
    return f"{source_of(module, given.func.value)}[{source_of(module, given.args[0])}]"


def _without_scaler(translation: Translation, use: Use) -> None:
    """The script's own words again, as nothing is scaled."""
    method = use.path.partition(".")[2]
    if use.call is None:
        translation.decline(
            use.module,
            use.node,
            f"`{use.module.text(use.node)}` is handed on, and bfloat16 has no scaler",
            "call it there, or --dtype auto",
            "precision",
        )
    elif method == "scale":
        translation.replace(use.module, use.whole, _first_argument)
    elif method == "step":
        translation.replace(use.module, use.whole, _method_of_first("step"))
    elif use.is_statement and method in ("unscale_", "update", "load_state_dict"):
        translation.take_out(use)
    elif method == "get_scale":
        translation.replace(use.module, use.whole, substitute("1.0"))
    elif method == "state_dict":
        translation.replace(use.module, use.whole, substitute("{}"))
    else:
        translation.decline(
            use.module,
            use.node,
            f"what `{use.module.text(use.whole)}` gives is used, and bfloat16 has no scaler",
            "make it a statement of its own, or --dtype auto",
            "precision",
        )


def _first_argument(node: cst.BaseExpression) -> cst.BaseExpression:
    """``scale(loss)`` becomes ``loss``."""
    found = cst.ensure_type(node, cst.Call).args[0].value
    plain = (cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.List, cst.Tuple, cst.ListComp)
    if isinstance(found, plain) or found.lpar:
        return found
    return found.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def _method_of_first(method: str) -> ExpressionEdit:
    """``step(optimizer, more)`` becomes ``optimizer.step(more)``."""

    def edit(node: cst.BaseExpression) -> cst.BaseExpression:
        call = cst.ensure_type(node, cst.Call)
        function = cst.Attribute(_first_argument(call), cst.Name(method))
        return call.with_changes(func=function, args=call.args[1:])

    return edit


def _without_keyword(name: str) -> ExpressionEdit:
    """``f(a, name=b)`` becomes ``f(a)``."""

    def edit(node: cst.BaseExpression) -> cst.BaseExpression:
        call = cst.ensure_type(node, cst.Call)
        args = [item for item in call.args if item.keyword is None or item.keyword.value != name]
        if args:
            args[-1] = args[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return call.with_changes(args=args)

    return edit


WORDS: dict[str, Translate] = {f"scaler.{name}": _method for name in _METHODS}
