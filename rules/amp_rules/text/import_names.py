"""Carrying out edits of the names in an import."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import libcst as cst

from amp_rules.text.actions import Action, EditNames
from amp_rules.text.places import Place, Places


class ImportNames:
    """Takes names out of imports, or asks for them by other names."""

    def __init__(self, actions: Sequence[Action], places: Places, done: set[int]) -> None:
        self._places = places
        self._done = done
        self._edits: defaultdict[Place, list[EditNames]] = defaultdict(list)
        for action in actions:
            if isinstance(action, EditNames):
                self._edits[places.of_statement(action.statement)].append(action)

    def names_left(
        self, original: cst.ImportFrom | cst.Import, names: Sequence[cst.ImportAlias] | cst.ImportStar
    ) -> list[cst.ImportAlias] | None:
        """The names of an import as they are wanted; None when all stay."""
        where = self._places.start(original)
        actions = self._edits.get(where, ()) if where is not None else ()
        if not actions or isinstance(names, cst.ImportStar):
            return None
        self._done.update(id(action) for action in actions)
        wanted = {old: new for action in actions for old, new in action.names.items()}
        kept = []
        for item in names:
            new = wanted.get(item.evaluated_name, item.evaluated_name)
            if new is not None:
                kept.append(item if new == item.evaluated_name else item.with_changes(name=cst.Name(new)))
        kept[-1] = kept[-1].with_changes(comma=_closing(kept[-1].comma, names[-1].comma))
        return kept


def _closing(own: cst.Comma | cst.MaybeSentinel, last: cst.Comma | cst.MaybeSentinel) -> cst.Comma | cst.MaybeSentinel:
    """The comma after what is the last name now: as after the one that was, with the comment that stands beside it."""
    if not (isinstance(own, cst.Comma) and isinstance(last, cst.Comma)):
        return last
    before, after = own.whitespace_after, last.whitespace_after
    if not (isinstance(before, cst.ParenthesizedWhitespace) and isinstance(after, cst.ParenthesizedWhitespace)):
        return last
    return last.with_changes(whitespace_after=after.with_changes(first_line=before.first_line))
