"""Which rules are asked: selectors such as ``AMP601``, ``const-overflow-fill``, ``AMP6`` and ``ALL``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from amp_migrate.lint.catalogue import RuleInfo
from amp_migrate.problems import UserError

# A selector that names one rule outright beats any prefix.
_EXACT = 100


@dataclass(frozen=True)
class Layer:
    """The selectors of one source of settings: the file or the command line.

    ``select`` starts anew (None: what the layer below left); ``extend`` adds, ``ignore`` takes away, and of two that
    match a rule the longer one holds. ``origin`` is how messages name the source.
    """

    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    extend: tuple[str, ...] = ()
    origin: str = ""


@dataclass(frozen=True)
class Selector:
    """Resolves selectors against the rules that there are."""

    rules: Sequence[RuleInfo]
    _known: dict[str, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for rule in self.rules:
            self._known[rule.code.lower()] = rule.code
            self._known[rule.name.lower()] = rule.code

    def codes(self, layers: Iterable[Layer], preview: bool) -> frozenset[str]:
        """Return the codes of the rules to ask.

        Raises:
            UserError: a selector matches no rule.
        """
        asked = frozenset(rule.code for rule in self.rules if preview or not rule.preview)
        for layer in layers:
            wanted = self._strengths((*(layer.select or ()), *layer.extend), layer.origin)
            refused = self._strengths(layer.ignore, layer.origin)
            kept: set[str] = set() if layer.select is not None else set(asked - refused.keys())
            for rule in self.rules:
                strength = wanted.get(rule.code, -1)
                available = preview or not rule.preview or strength == _EXACT
                if available and strength > refused.get(rule.code, -1):
                    kept.add(rule.code)
            asked = frozenset(kept)
        return asked

    def matching(self, selector: str) -> frozenset[str]:
        """Return the codes that one selector stands for; none where it is not known."""
        key = selector.strip().lower()
        if key in self._known:
            return frozenset({self._known[key]})
        if key == "all":
            return frozenset(rule.code for rule in self.rules)
        if not key.startswith("amp"):
            return frozenset()
        return frozenset(rule.code for rule in self.rules if rule.code.lower().startswith(key))

    def unknown(self, selector: str, where: str) -> UserError:
        """Return the complaint about a selector that matches nothing, with the nearest that does."""
        import difflib

        candidates = [word for rule in self.rules for word in (rule.code, rule.name)]
        close = difflib.get_close_matches(selector, candidates, n=1, cutoff=0.5)
        close = close or difflib.get_close_matches(selector.upper(), candidates, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}?" if close else "--list-rules shows all rules"
        return UserError(f"unknown rule {selector!r}{where}; {hint}")

    def _strengths(self, selectors: Iterable[str], origin: str) -> dict[str, int]:
        """Return, for each rule that is matched, how specific its best selector is."""
        found: dict[str, int] = {}
        for selector in selectors:
            codes = self.matching(selector)
            if not codes:
                raise self.unknown(selector, f" in {origin}" if origin else "")
            key = selector.strip().lower()
            strength = _EXACT if key in self._known else 0 if key == "all" else len(key)
            for code in codes:
                found[code] = max(strength, found.get(code, -1))
        return found


def per_file(selector: Selector, table: Mapping[str, Sequence[str]], origin: str) -> list[tuple[str, frozenset[str]]]:
    """Resolve ``per-file-ignores``: gitignore patterns and the codes that are not reported in such files.

    Raises:
        UserError: a selector matches no rule.
    """
    found = []
    for pattern, selectors in table.items():
        for item in selectors:
            if not selector.matching(item):
                raise selector.unknown(item, f" in {origin}")
        found.append((pattern, frozenset().union(*(selector.matching(item) for item in selectors))))
    return found
