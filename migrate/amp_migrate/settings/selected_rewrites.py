"""Which rewrites ``--select`` and ``--ignore`` mean."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from amp_migrate.problems import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amp_rules.plan.options import Options
    from amp_rules.plan.rule import Rule

_OF_RUNTIME = "AMP410"
"""The rewrite that takes Apex's interface from the runtime."""

_SWITCH = "AMP115"
"""The rewrite that adds an option for the level."""

_QUANTIZE = "AMP119"
"""The rewrite that makes a trained model int8."""


def known_codes(options: Options, origin: str) -> Options:
    """The options with codes of rewrites in ``select`` and ``ignore``, which may hold names too.

    Raises:
        UserError: one of them is no rewrite; ``origin`` says where it stands.
    """
    if not (options.select or options.ignore):
        return options
    # The rewrites are imported only to name them.
    from amp_rules.rewrites import all_rules

    rules = all_rules()
    select = tuple(_code(word, rules, f"{origin}select") for word in options.select)
    ignore = tuple(_code(word, rules, f"{origin}ignore") for word in options.ignore)
    return replace(options, select=select, ignore=ignore)


def left_out(options: Options) -> list[str]:
    """What to say of switches that are on, and of which nothing is left."""
    from amp_rules.plan.wanted import APEX, DISTRIBUTION, OLD_TORCH, PRECISION, wants, wants_any

    found = []
    for on, family, switch in ((options.ddp, DISTRIBUTION, "--ddp"), (options.modernize, OLD_TORCH, "--modernize")):
        if on and not wants_any(options, family):
            by_ignore = any(family.startswith(item) for item in options.ignore)
            how = "--ignore leaves all of its rewrites out" if by_ignore else "--select names none of its rewrites"
            found.append(f"{switch} has no effect: {how} ({family})")
    if options.switch and not wants(options, _SWITCH):
        found.append(f"--switch has no effect: its rewrite, {_SWITCH}, is not selected")
    if options.quantize is not None and not wants(options, _QUANTIZE, shared=True):
        found.append(f"--quantize has no effect: its rewrite, {_QUANTIZE}, is not selected")
    if options.target == "torch" and _OF_RUNTIME in options.select:
        found.append(f"{_OF_RUNTIME} has no effect with --target torch, which keeps no interface of Apex")
    modern = bool(options.modernize) or any(item.startswith(OLD_TORCH) for item in options.select)
    always = (PRECISION, APEX, OLD_TORCH) if modern else (PRECISION, APEX)
    if not any(wants_any(options, family) for family in always):
        if not options.ddp:
            found.append("nothing is left to do: no rewrite of AMP1, AMP4 and AMP5 is selected, and AMP2 needs --ddp")
        elif not wants_any(options, DISTRIBUTION):
            found.append("nothing is left to do: no rewrite of AMP1, AMP2, AMP4 and AMP5 is selected")
    return found


def _code(word: str, rules: Sequence[Rule], origin: str) -> str:
    key = word.strip().upper()
    by_name = {rule.name.upper(): rule.code for rule in rules}
    if key in by_name:
        return by_name[key]
    if key in ("ALL", "AMP"):
        return "AMP"
    if key.startswith("AMP") and any(rule.code.startswith(key) for rule in rules):
        return key
    raise UserError(f"{origin}: no rewrite is called {word!r}; {_hint(key, rules)}")


def _hint(key: str, rules: Iterable[Rule]) -> str:
    import difflib

    from amp_migrate.lint.catalogue import load_rules

    if key.startswith(("AMP6", "AMP7", "AMP8", "AMP9")) and any(rule.code.startswith(key) for rule in load_rules()):
        return "that is a rule of amp-lint"
    words = {word.upper(): word for rule in rules for word in (rule.code, rule.name)}
    close = [words[item] for item in difflib.get_close_matches(key, words, n=3, cutoff=0.5)]
    if close:
        return f"did you mean {' or '.join(close)}?"
    families = sorted({rule.code[:4] for rule in rules})
    return f"codes begin with {', '.join(families[:-1])} or {families[-1]}"
