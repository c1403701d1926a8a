"""Which rewrites are asked for by their codes, with ``select`` and ``ignore``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from amp_rules.plan.options import Options

PRECISION, DISTRIBUTION, OPTIMIZERS, APEX, OLD_TORCH = "AMP1", "AMP2", "AMP3", "AMP4", "AMP5"


def wants(options: Options, code: str, *, shared: bool = False) -> bool:
    """Whether a rewrite is asked for; of several codes that fit it the longest decides.

    One that both units share is asked for together with either.
    """
    selected = _strength(code, options.select) if options.select else 0
    if selected < 0 and shared and any(item.startswith((PRECISION, DISTRIBUTION)) for item in options.select):
        selected = 0
    return selected > _strength(code, options.ignore)


def wants_any(options: Options, family: str) -> bool:
    """Whether any rewrite of a family is asked for."""
    return any(wants(options, code) for code in (family, *(item for item in options.select if item[:4] == family)))


def effective(options: Options) -> Options:
    """The options without several processes where their rewrites are left out, and with the modern ones selected."""
    modernize = True if any(item.startswith(OLD_TORCH) for item in options.select) else options.modernize
    return replace(
        options,
        ddp=options.ddp and wants_any(options, DISTRIBUTION),
        modernize=modernize if wants_any(options, OLD_TORCH) else False,
    )


def _strength(code: str, wanted: Iterable[str]) -> int:
    return max((len(item) for item in wanted if code.startswith(item)), default=-1)
