"""Carrying out new parameters of functions, and those that go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import libcst as cst

from amp_rules.text.actions import Action, AddParameter, RemoveParameter
from amp_rules.text.places import Place, Places


class Parameters:
    """Adds parameters to the heads of functions, and takes some out."""

    def __init__(self, actions: Sequence[Action], places: Places, done: set[int]) -> None:
        self._places = places
        self._done = done
        self._added: defaultdict[Place, list[AddParameter]] = defaultdict(list)
        self._gone: defaultdict[Place, list[RemoveParameter]] = defaultdict(list)
        for action in actions:
            if isinstance(action, AddParameter):
                self._added[places.of_definition(action.definition)].append(action)
            elif isinstance(action, RemoveParameter):
                self._gone[places.of_definition(action.definition)].append(action)

    def extended(self, original: cst.FunctionDef, updated: cst.FunctionDef) -> cst.FunctionDef:
        """The function with its new parameters, and without those that go."""
        for gone in self._gone.get(self._places.start(original) or (0, 0), ()):
            self._done.add(id(gone))
            updated = updated.with_changes(params=_without(updated.params, gone.name))
        for action in self._added.get(self._places.start(original) or (0, 0), ()):
            self._done.add(id(action))
            has_place = action.before_defaults and not any(item.default for item in updated.params.posonly_params)
            add = _before_defaults if has_place else _with
            updated = updated.with_changes(params=add(updated.params, action.name))
        return updated


def _without(given: cst.Parameters, name: str) -> cst.Parameters:
    rows = [item for item in given.params if item.name.value != name]
    if rows and given.params[-1].name.value == name:
        rows[-1] = rows[-1].with_changes(comma=given.params[-1].comma)
    return given.with_changes(params=rows)


def _with(given: cst.Parameters, name: str) -> cst.Parameters:
    added = cst.Param(cst.Name(name))
    if given.kwonly_params:
        return given.with_changes(kwonly_params=_appended(given.kwonly_params, added, given.star_kwarg is not None))
    if isinstance(given.star_arg, cst.Param):
        star = given.star_arg
        follows = given.star_kwarg is not None
        if not isinstance(star.comma, cst.Comma) or not follows:
            star, added = _moved_comma(star, added, follows)
        else:
            added = added.with_changes(comma=star.comma)
        return given.with_changes(star_arg=star, kwonly_params=[added])
    by_place = given.params or given.posonly_params
    if any(item.default is not None for item in by_place):
        return _for_keywords(given, added)
    if given.params:
        return given.with_changes(params=_appended(given.params, added, given.star_kwarg is not None))
    return given.with_changes(params=[_before(added, given.star_kwarg is not None)])


def _before_defaults(given: cst.Parameters, name: str) -> cst.Parameters:
    """``a, b=1`` becomes ``a, name, b=1``."""
    rows = list(given.params)
    index = next((index for index, item in enumerate(rows) if item.default is not None), None)
    if index is None:
        return _with(given, name)
    added = cst.Param(cst.Name(name), comma=_COMMA)
    if index:
        last = rows[index - 1]
        comma = _separator(rows[:index]) if index > 1 else _COMMA
        if isinstance(last.comma, cst.Comma) and _breaks(last.comma) and not _breaks(comma):
            added = added.with_changes(comma=last.comma)  # the row ends behind the new one
        else:
            behind = last.comma.whitespace_after if isinstance(last.comma, cst.Comma) else None
            if isinstance(behind, cst.ParenthesizedWhitespace):
                added = added.with_changes(comma=_COMMA.with_changes(whitespace_after=_without_comment(behind)))
                comma = cst.ensure_type(last.comma, cst.Comma)
        rows[index - 1] = last.with_changes(comma=comma)
    return given.with_changes(params=[*rows[:index], added, *rows[index:]])


def _breaks(comma: cst.Comma) -> bool:
    """Whether a new row follows."""
    return isinstance(comma.whitespace_after, cst.ParenthesizedWhitespace)


def _for_keywords(given: cst.Parameters, added: cst.Param) -> cst.Parameters:
    """``a=1`` becomes ``a=1, *, added``."""
    field = "params" if given.params else "posonly_params"
    rows = list(getattr(given, field))
    last = rows[-1]
    follows = given.star_kwarg is not None
    separator = _separator(rows)
    if field == "params":
        end = last.comma if isinstance(last.comma, cst.Comma) else cst.MaybeSentinel.DEFAULT
        rows[-1] = last.with_changes(comma=separator, whitespace_after_param=cst.SimpleWhitespace(""))
        added = added.with_changes(comma=_COMMA if follows else end, whitespace_after_param=last.whitespace_after_param)
    else:
        added = _before(added, follows)
    star = cst.ParamStar(comma=_COMMA)
    return given.with_changes(**{field: rows}, star_arg=star, kwonly_params=[added])


def _appended(rows: Sequence[cst.Param], added: cst.Param, follows: bool) -> list[cst.Param]:
    """The parameters with one more, which is laid out like the last."""
    last = rows[-1]
    ends = isinstance(last.comma, cst.Comma) and not follows  # with a comma at the end, a row of its own
    added = added.with_changes(comma=last.comma if ends or follows else cst.MaybeSentinel.DEFAULT)
    added = added.with_changes(whitespace_after_param=last.whitespace_after_param)
    separated = last.with_changes(comma=_separator(rows), whitespace_after_param=cst.SimpleWhitespace(""))
    if ends and "#" in cst.Module([]).code_for_node(last):
        separated, added = _with_own_comment(last, separated, added)
    return [*rows[:-1], separated, added]


def _with_own_comment(last: cst.Param, separated: cst.Param, added: cst.Param) -> tuple[cst.Param, cst.Param]:
    """The two with the comment that stands behind the first of them."""
    comma = cst.ensure_type(last.comma, cst.Comma)
    behind = comma.whitespace_after
    before = cst.ensure_type(separated.comma, cst.Comma).whitespace_after
    if not isinstance(behind, cst.ParenthesizedWhitespace):
        return separated, added
    row = before.last_line if isinstance(before, cst.ParenthesizedWhitespace) else cst.SimpleWhitespace("    ")
    indent = before.indent if isinstance(before, cst.ParenthesizedWhitespace) else True
    between = behind.with_changes(last_line=row, indent=indent)
    return (
        separated.with_changes(comma=comma.with_changes(whitespace_after=between)),
        added.with_changes(comma=comma.with_changes(whitespace_after=_without_comment(behind))),
    )


def _moved_comma(star: cst.Param, added: cst.Param, follows: bool) -> tuple[cst.Param, cst.Param]:
    end = star.comma if isinstance(star.comma, cst.Comma) and not follows else cst.MaybeSentinel.DEFAULT
    added = added.with_changes(comma=_COMMA if follows else end, whitespace_after_param=star.whitespace_after_param)
    return star.with_changes(comma=_COMMA, whitespace_after_param=cst.SimpleWhitespace("")), added


def _separator(rows: Sequence[cst.Param]) -> cst.Comma:
    """The comma between the last two parameters: what sets off the next as they are set off."""
    commas = [item.comma for item in rows[:-1] if isinstance(item.comma, cst.Comma)]
    if not commas:
        return _COMMA
    behind = commas[-1].whitespace_after
    if isinstance(behind, cst.ParenthesizedWhitespace):
        return commas[-1].with_changes(whitespace_after=_without_comment(behind))
    return commas[-1]


def _without_comment(space: cst.ParenthesizedWhitespace) -> cst.ParenthesizedWhitespace:
    line = space.first_line.with_changes(comment=None, whitespace=cst.SimpleWhitespace(""))
    return space.with_changes(first_line=line, empty_lines=[])


def _before(added: cst.Param, follows: bool) -> cst.Param:
    return added.with_changes(comma=_COMMA) if follows else added


_COMMA = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
