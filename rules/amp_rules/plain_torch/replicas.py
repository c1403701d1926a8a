"""DataParallel that stays around a model: its threads compute in float16, whatever dtype the region has."""

from __future__ import annotations

import ast

from amp_rules.plain_torch.translation import Translation
from amp_rules.torch.wrappers import DATA_PARALLEL, SPREAD_BY_HAND


def decline(translation: Translation) -> None:
    """Decline models that several GPUs of one process compute, where the half type is bfloat16.

    In float16, which is the half type of GPUs unless another is asked for, the threads compute in the same type.
    """
    dtype = translation.start.dtype if translation.start is not None else translation.options.dtype
    if dtype != "bf16" or next(translation.uses_of("autocast"), None) is None:
        return
    program = translation.program
    found = [(site.module, site.node) for site in program.calls_to(DATA_PARALLEL | SPREAD_BY_HAND)]
    found += [(use.module, use.whole) for use in translation.uses_of("keep_module_prefix")]
    for module, node in found:
        if not (isinstance(node, ast.Call) and _has_one_device(node)):
            translation.decline(
                module,
                node,
                f"`{module.text(node)}` computes in threads, which torch's autocast has compute in float16 where the "
                "region is bfloat16, and nothing would scale the loss",
                "choose float16 (--dtype fp16), or the runtime (--target runtime)",
                "precision",
            )


def _has_one_device(call: ast.Call) -> bool:
    """Whether ``device_ids`` is written as a list of one, for which there is no thread."""
    given = next((item.value for item in call.keywords if item.arg == "device_ids"), None)
    if given is None and len(call.args) > 1:
        given = call.args[1]
    return (
        isinstance(given, (ast.List, ast.Tuple)) and len(given.elts) == 1 and not isinstance(given.elts[0], ast.Starred)
    )
