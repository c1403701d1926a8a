"""Where the scaler is made, how it gets to where it is used, and its calls."""

from __future__ import annotations

from amp_rules.plain_torch.translation import Translate, Translation
from amp_rules.plain_torch.uses import Use
from amp_rules.source.modules import Module
from amp_rules.text.expression_edits import substitute

_MADE = "{torch}.amp.GradScaler({DEVICE_TYPE}, enabled={USE_AMP} and {AMP_DTYPE} == {torch}.float16)"


class LossScaling:
    """The scaler of a program."""

    def __init__(self, translation: Translation) -> None:
        self._translation = translation
        self.uses = [use for use in translation.uses if use.path.split(".")[0] == "scaler"]

    def made_at_start(self, module: Module) -> list[str]:
        """The line that makes the scaler where the script starts."""
        return [f"scaler = {_MADE}"] if self.uses else []

    def name_at(self, use: Use) -> str:
        """The expression for the scaler at a place."""
        return "scaler"


def _method(translation: Translation, use: Use) -> None:
    """``amp.scaler.scale(loss)`` becomes ``scaler.scale(loss)``."""
    scaler = translation.part(LossScaling).name_at(use)
    method = use.path.partition(".")[2]
    translation.replace(use.module, use.node, substitute(f"{scaler}.{method}"))


WORDS: dict[str, Translate] = {
    f"scaler.{name}": _method
    for name in ("scale", "unscale_", "step", "update", "get_scale", "state_dict", "load_state_dict")
}
