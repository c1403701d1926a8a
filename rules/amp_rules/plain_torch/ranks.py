"""Processes: how they join and part, and what only one of them does."""

from __future__ import annotations

from amp_rules.plain_torch.translation import Translate, Translation
from amp_rules.plain_torch.uses import Use
from amp_rules.source.modules import Module

_JOIN = """\
if {WORLD_SIZE} > 1:
    if {torch}.cuda.is_available():
        {torch}.cuda.set_device({LOCAL_RANK})
    {dist}.init_process_group("nccl" if {torch}.cuda.is_available() else "gloo")"""


def join(translation: Translation, module: Module) -> list[str]:
    """The lines with which a process joins those that torchrun started."""
    return translation.code(module, _JOIN).splitlines()


def _is_main_process(translation: Translation, use: Use) -> None:
    """``amp.is_main_process()`` becomes ``RANK == 0``."""
    translation.replace(use.module, use.whole, "{RANK} == 0")


WORDS: dict[str, Translate] = {"is_main_process": _is_main_process}
