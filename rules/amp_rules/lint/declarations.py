"""A rule that is declared wrongly is refused when it is loaded, with a message for its author."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from amp_rules.lattice.operation_names import KNOWN_OPERATIONS
from amp_rules.lint.check import Check
from amp_rules.lint.finding import SEVERITIES

FAMILIES = {"6": "numbers", "7": "types", "8": "step", "9": "processes"}
"""The folder of the rules whose code begins with each digit."""

_CODE = re.compile(r"AMP[6-9][0-8]\d")
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_VISITS = ("visit", "visit_function", "visit_class", "visit_module")


class WrongDeclarationError(Exception):
    """A rule cannot be used as its file declares it.

    The message names the file and says, for each thing that is wrong, what to write instead.
    """


def refuse_if_wrong(check: type[Check], file: Path) -> None:
    """Look at how a rule is declared.

    Args:
        check: the rule.
        file: where it stands, below the folder of its family.

    Raises:
        WrongDeclarationError: something is missing or does not fit together.
    """
    problems = list(_problems(check, file))
    if problems:
        raise WrongDeclarationError("\n".join(f"{file}: {check.__name__}: {problem}" for problem in problems))


def refuse_if_elsewhere(names: Iterable[str], folder: Path) -> None:
    """Look for what lies beside the folders of the families, where no rule is found.

    Args:
        names: the files and packages in the folder of the rules.
        folder: that folder.

    Raises:
        WrongDeclarationError: there is something else than families and what rules share.
    """
    known = {*FAMILIES.values(), "common"}
    for name in sorted(set(names) - known):
        raise WrongDeclarationError(
            f"{folder / name}: no rule is found there; move it to the folder of its family: "
            f"{', '.join(FAMILIES.values())}, or to common if rules share it"
        )


def refuse_if_twice(checks: Iterable[Check]) -> None:
    """Look for rules of one code or one name.

    Raises:
        WrongDeclarationError: there are two.
    """
    known: dict[str, Check] = {}
    for check in checks:
        for text in (check.code, check.name):
            other = known.setdefault(text, check)
            if other is not check:
                one, two = (f"{type(item).__module__}.{type(item).__name__}" for item in (other, check))
                raise WrongDeclarationError(f"{two}: `{text}` is taken by {one}; write one that is free")


def _problems(check: type[Check], file: Path) -> Iterator[str]:
    yield from _of_identity(check, file)
    yield from _of_text(check)
    yield from _of_triggers(check)
    yield from _of_operations(check)
    yield from _of_order(check)


def _of_identity(check: type[Check], file: Path) -> Iterator[str]:
    code, name = getattr(check, "code", ""), getattr(check, "name", "")
    if not _CODE.fullmatch(code):
        yield f'the code is {code!r}; write `code = "AMP601"`, a free one from AMP600 to AMP989'
    elif file.parent.name != FAMILIES[code[3]]:
        family = FAMILIES[code[3]]
        yield f"{code} stands in the folder {file.parent.name}; move the file to checks/{family}, or change the code"
    if not _NAME.fullmatch(name):
        yield f'the name is {name!r}; write words in small letters, as in `name = "const-overflow-fill"`'
    elif file.stem != name.replace("-", "_"):
        yield f"`{name}` stands in {file.name}; call the file {name.replace('-', '_')}.py"


def _of_text(check: type[Check]) -> Iterator[str]:
    if not check.__dict__.get("__doc__"):
        yield "it has no docstring; write its page there, as the other rules of its folder do"
    message = getattr(check, "message", "")
    if not (message[:1].isupper() and message.endswith(".") and "\n" not in message):
        yield f"the message is {message!r}; write one sentence that says what the rule finds"
    if check.severity not in SEVERITIES:
        yield f"the severity is {check.severity!r}; write one of {', '.join(SEVERITIES)}"
    if check.fix_safety is not None and not check.fix_title:
        yield 'it has `fix_safety` and no `fix_title`; write what the fix does, as in `fix_title = "use finfo"`'
    if check.fix_title and check.fix_safety not in ("safe", "unsafe"):
        yield (
            'it has `fix_title` and no `fix_safety`; write "safe" where float32 results change by no more than '
            'rounding, else "unsafe"'
        )
    if not isinstance(check.preview, str):
        yield f"`preview = {check.preview}` gives no reason; write why the rule has to be asked for"


def _of_triggers(check: type[Check]) -> Iterator[str]:
    for field in ("triggers", "file_triggers"):
        given = getattr(check, field, ())
        if not isinstance(given, tuple) or not all(isinstance(item, (str, re.Pattern)) and item for item in given):
            yield f'`{field}` is {given!r}; write a tuple of texts and compiled patterns, as in `("softmax",)`'
    if not getattr(check, "triggers", ()):
        yield (
            "it has no `triggers`; write texts of which one occurs wherever it finds something, as in "
            '`triggers = ("softmax", "Softmax")`: without them it is never asked'
        )


def _of_operations(check: type[Check]) -> Iterator[str]:
    own = [name for name in _VISITS if getattr(check, name) is not getattr(Check, name)]
    if not own:
        yield f"it looks at nothing; write one of {', '.join(f'`{name}`' for name in _VISITS)}"
    if check.operations and "visit" not in own:
        yield "it has `operations` and no `visit`, which is shown them; write it, or leave them out"
    if "visit" in own and not check.operations:
        yield 'its `visit` is shown nothing; write the operations that it is about, as in `operations = ("div",)`'
    for name in sorted(set(check.operations) - KNOWN_OPERATIONS):
        near = difflib.get_close_matches(name, KNOWN_OPERATIONS, n=1)
        instead = f"write `{near[0]}`" if near else "write a name"
        table = "`KNOWN_OPERATIONS` in lattice/operation_names.py"
        yield f"no operation is called `{name}`; {instead} from {table}, or add it there"


def _of_order(check: type[Check]) -> Iterator[str]:
    if check.in_order and not check.states:
        yield 'it is `in_order` and has no `states`; write where it keeps them, as in `states = ("$clip",)`'
    if check.states and not check.in_order:
        yield "it has `states` and is not `in_order`, so that they are lost; write `in_order = True`"
    for name in check.states:
        if not name.startswith("$"):
            yield f"the state `{name}` would hide a variable; write `${name}`"
