"""Helper functions of a file, of which there are few."""

from __future__ import annotations

from amp_rules.plain_torch.file_head import Helper
from amp_rules.plain_torch.translation import Translation
from amp_rules.plain_torch.uses import Use
from amp_rules.plan.report import Unit
from amp_rules.source.modules import Module

MAX_HELPERS = 2
"""Helper functions in one file; with more of them a reader would rather have a library."""


def helper(translation: Translation, use: Use, module: Module, wanted: Helper, unit: Unit) -> str | None:
    """The name of a helper function in a file, for a use; None, with the reason given, where it is one too many."""
    head = translation.head(module)
    if wanted not in head.helpers and len(head.helpers) >= MAX_HELPERS:
        names = " and ".join(f"`{item.name}`" for item in head.helpers)
        translation.decline(
            use.module,
            use.node,
            f"`{use.module.text(use.whole)}` would need a third helper function in the file, besides {names}",
            "keep the runtime (--target runtime), which has such functions",
            unit,
        )
        return None
    return head.helper(wanted)
