"""What a script says of Apex in passing: in comments, in the help of its options, and in what it prints."""

from __future__ import annotations

import ast
import io
import itertools
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence

from amp_rules.source.modules import Module
from amp_rules.source.spans import Position, Span
from amp_rules.source.syntax import own_name
from amp_rules.torch.apex import NAMES_APEX

# The arguments of a call are none: `#amp.register_half_function(apex.normalization, "forward")`.
_ASIDE = re.compile(r"(?:[ \t]+|(?<!\w))\([^()\n]*\bapex\b[^()\n]*\)", re.IGNORECASE)
# `Using apex to perform SyncBN`, `use NVIDIA apex for mixed precision training`.
_TO_USE = (
    r"(?:(?<=\buse )|(?<=\busing ))(?:NVIDIA(?:'s)? )?Apex (?:for|to (?:do|perform|run)) "
    r"(?=(?:16.?bit|AMP|distributed|fp16|half|mixed|multi\W?gpu|sync\w*)\b)"
)
# In the help of an option: `Use NVIDIA Apex AMP`, `enabling apex sync BN.`, `mixed precision through Apex`.
_IN_HELP = re.compile(
    r"\b(?:NVIDIA(?:'s)? )?Apex (?=(?:AMP|DDP|distributed\w*|fp16|half|mixed|opt\w*|sync\w*)\b)"
    r"|(?:(?<=fp16)|(?<=precision)|(?<=training)) (?:by|through|using|via|with) (?:NVIDIA(?:'s)? )?Apex(?= ?[.,;'\"])"
    r"|(?<=parameter) used by (?:the )?Apex(?: library)?(?= ?[.,;'\"])"
    rf"|{_TO_USE}",
    re.IGNORECASE,
)
# In what is printed: `Using NVIDIA APEX AMP.`, `Using apex.parallel.DistributedDataParallel`, `FP16 training with
# apex`.
_IN_PRINT = re.compile(
    r"\b(?:NVIDIA(?:'s)? )?Apex (?=(?:AMP|DDP|\w*DataParallel|distributed|fp16|half|mixed|sync\w*)\b)"
    r"|\bapex\.(?:parallel\.)?(?=amp\b|DistributedDataParallel\b)"
    r"|(?<=\w) (?:through|using|via|with) (?:NVIDIA(?:'s)? )?Apex(?= ?(?:[.,;!]+(?:\s|['\"]|$)|['\"]|$))"
    rf"|{_TO_USE}",
    re.IGNORECASE,
)
_WITH_APEX = re.compile(r"(?<=\w) (?:through|using|via|with) (?:NVIDIA(?:'s)? )?Apex(?=\.?\s*$)", re.IGNORECASE)
# A sentence with one of these says more than what is turned on.
_SAYS_MORE = re.compile(
    r"\b(?:no|not|cannot|never|without|trained|tested|install\w*|issues?|bugs?|problems?|instead|compat\w*|support\w*)\b"
    r"|n't\b|://",
    re.IGNORECASE,
)
_PRINTS = re.compile(r"_?(?:print|log)\w*|info|warn|warning|debug|error|critical|msg|write|cprint|echo")
# In what an assertion says that no longer asks for it: `APEX and CUDA required`.
_IN_ASSERTION = re.compile(r"\b(?:NVIDIA(?:'s)? )?Apex (?:and|&) (?=\w)", re.IGNORECASE)
_BEFORE_PRECISION = re.compile(r"\b(?:NVIDIA(?:'s)? )?Apex (?=AMP\b|fp16\b|half\b|mixed\b)", re.IGNORECASE)
# What is left of such a line says nothing: `# add apex`, `# Apex initialization`, with who did it: `# ab add apex`.
_ALONE = re.compile(
    r"#+\s*(?:(?!(?:no|not|never|without)\b)\w+ (?=add\b))?"
    r"(?:(?:add|enable|for|import|init|initiali[sz]ation|initiali[sz]e|load|nvidia|set|setup|start|the|use|using|with)\W+)*"
    r"(?:(?:使用|用|加载|导入|引入|初始化|添加)\s*)?"
    r"apex(?:\W+(?:init|initiali[sz]ation|initiali[sz]e|setup|part|stuff|here))*"
    r"(?:\s*(?:初始化|加速|部分|混合精度|训练))*\W*",
    re.IGNORECASE | re.ASCII,
)
# Functions of which nothing is left by their names.
_REPLACED = re.compile(r"\bto_python_float\b|\bamp\.(?:initialize|scale_loss|master_params)\b|\bconvert_syncbn_model\b")
_NATIVE = re.compile(r"\b(?:native|torch)\b", re.IGNORECASE)

# What tells an editor that an import may not be found; the runtime's is.
_NOT_FOUND = re.compile(r"#\s*noinspection (?:Py(?:PackageRequirements|UnresolvedReferences)[, ]*)+", re.IGNORECASE)

_OF_APEX = re.compile(r"#+\s*apex\.")
_IMPORT = re.compile(r"(import|from)\s+apex\b")
# A longer comment speaks of more than one thing.
_LONGEST = 3

# What Apex's wrapper does, and torch's has in other words; its examples say so in four lines, one of them code.
_OF_WRAPPER = re.compile(r"\bapex\.parallel\.DistributedDataParallel\b|\bdelay_allreduce\b")
_WRAPS = re.compile(r"\b\w*(?:DDP|DistributedDataParallel)\(")
_LONGEST_OF_WRAPPER = 5

# The text of an f-string is a token of its own since Python 3.12.
_TEXT = (tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING))

_Range = tuple[tuple[int, int], tuple[int, int]]


def remarks(module: Module, *, in_help: bool = True) -> list[Span]:
    """Where words can go without any other in their place: asides in brackets, and Apex's name before that of ``AMP``.

    Lines of a comment go too that say no more than that Apex is used there.

    An aside with an address, such as that of an issue, says where something was found, which stays true.

    Args:
        module: the file.
        in_help: whether the help of options counts: not where torch's mixed precision is what is left, for an option of
            Apex then turns nothing on.
    """
    if not NAMES_APEX.search(module.source.text):
        return []
    helps = list(_helps(module)) if in_help else []
    printed = list(_printed(module)) if in_help else []
    asserted = list(_asserted(module))
    found = list(_in_docstrings(module))
    for token in tokenize.generate_tokens(io.StringIO(module.source.text).readline):
        if token.type == tokenize.COMMENT:
            line, column = token.start
            if _ALONE.fullmatch(token.string) and not module.lines[line - 1][:column].strip():
                found.append(Span(Position(line, column + 1), Position(line, token.end[1] + 1)))
                continue
            asides = list(_asides(token))
            words = [*_spans(token, _BEFORE_PRECISION), *_with_apex(token)]
            found += asides
            found += [span for span in words if not any(item.start <= span.start < item.end for item in asides)]
        elif token.type not in _TEXT or token.start[0] != token.end[0] or "\\" in token.string:
            continue
        elif any(start <= token.start < end for start, end in asserted):
            found.extend(_spans(token, _IN_ASSERTION))
        elif any(start <= token.start < end for start, end in printed):
            if not _SAYS_MORE.search(token.string):
                found.extend(_spans(token, _IN_PRINT))
        elif any(start <= token.start < end for start, end in helps):
            found.extend(_asides(token))
            if not _NATIVE.search(token.string):
                found.extend(_spans(token, _IN_HELP))
    return found


def outdated(before: Module, module: Module, origins: Sequence[int]) -> list[Span]:
    """Comments on Apex directly above code that is no longer what it was, unless :func:`remarks` puts them right.

    Args:
        before: the file as it was.
        module: the file without Apex.
        origins: for each of its lines the line that it stands for.
    """
    found = [*_above_imports(before, module), *_above_conditions(before, module)]
    found += _above_replaced(before, module, origins)
    found += _calls_above_imports(before, module)
    found += _above_wrappers(before, module, origins)
    found += _beside_replaced(before, module)
    if not NAMES_APEX.search(module.source.text):
        return found
    rows = list(module.lines)
    for span in sorted(remarks(module), reverse=True):
        row = rows[span.start.line - 1]
        rows[span.start.line - 1] = row[: span.start.column - 1] + row[span.end.column - 1 :]
    for block in _blocks(module):
        below = block.stop
        said = module.lines[block.start : below]
        code = module.lines[below] if below < len(module.lines) else ""
        left = " ".join(rows[block.start : below])
        was = origins[below - 1]  # from 1: the line below the last of the comment, from 0
        old = before.lines[was].strip() if was < len(before.lines) else ""
        is_new = code.strip() and old not in ("", code.strip())
        is_gone = bool(_IMPORT.match(old)) and not any(row.strip() == old for row in module.lines)
        if (
            not (is_new or is_gone)
            or len(block) > _LONGEST
            or not NAMES_APEX.search(left)
            or "://" in left
            or any(map(_is_code, said))
        ):
            continue
        if before.lines[was - 1] == said[-1]:
            found += [Span(Position(line + 1, 1), Position(line + 1, len(module.lines[line]) + 1)) for line in block]
    return found


def _above_imports(before: Module, module: Module) -> Iterator[Span]:
    """What an editor was told of an import of Apex, above what stands there now."""
    pairs = itertools.pairwise(before.lines)
    told = {row.strip() for row, below in pairs if _NOT_FOUND.fullmatch(row.strip()) and NAMES_APEX.search(below)}
    kept = {row.strip() for row in before.lines} if told else set()
    for index, (row, below) in enumerate(itertools.pairwise(module.lines) if told else (), start=1):
        if row.strip() in told and below.strip() not in kept:
            yield Span(Position(index, 1), Position(index, len(row) + 1))


def _calls_above_imports(before: Module, module: Module) -> Iterator[Span]:
    """Calls of Apex that were taken out, directly above an import of it that is another one now."""
    pairs = itertools.pairwise(row.strip() for row in before.lines)
    told = {row: below for row, below in pairs if _OF_APEX.match(row) and _IMPORT.match(below) and _is_code(row)}
    for block in _blocks(module) if told else ():
        said = [module.lines[row].strip() for row in block]
        below = module.lines[block.stop].strip() if block.stop < len(module.lines) else ""
        if told.get(said[-1], below) != below and all(_OF_APEX.match(row) and _is_code(row) for row in said):
            yield from _rows_of(module, block)


def _above_conditions(before: Module, module: Module) -> Iterator[Span]:
    """What is said of Apex above a condition that had a branch for it, and has none any more."""
    spoke = {tuple(said): "apex" in code.casefold() for said, code in _conditions(before)}
    for rows, (said, code) in zip(_commented(module), _conditions(module), strict=True):
        if spoke.get(tuple(said)) and "apex" not in code.casefold():
            yield from _rows_of(module, rows)


def _above_replaced(before: Module, module: Module, origins: Sequence[int]) -> Iterator[Span]:
    """What is said of a function of Apex, by its name, directly above the line that called it and does not any more."""
    for block in _blocks(module) if _REPLACED.search(before.source.text) else ():
        said = module.lines[block.start : block.stop]
        was = origins[block.stop - 1]
        named = set(_REPLACED.findall(" ".join(said)))
        if not named or len(block) > _LONGEST or not was < len(before.lines) or any(map(_is_code, said)):
            continue
        called, below = before.lines[was], "".join(module.lines[block.stop : block.stop + 1])
        if before.lines[was - 1] == said[-1] and all(name in called and name not in below for name in named):
            yield from _rows_of(module, block)


def _above_wrappers(before: Module, module: Module, origins: Sequence[int]) -> Iterator[Span]:
    """What is said of Apex's wrapper, and of how it exchanges gradients, directly above a model that torch's wraps."""
    for block in _blocks(module) if _OF_WRAPPER.search(before.source.text) else ():
        said = module.lines[block.start : block.stop]
        text, was = " ".join(said), origins[block.stop - 1]
        if not _OF_WRAPPER.search(text) or len(block) > _LONGEST_OF_WRAPPER or "://" in text:
            continue
        places = [row for row, line in enumerate(before.lines) if line.strip() == said[-1].strip()]
        if len(places) == 1:
            was = places[0] + 1  # it may stand further left, where the condition around it is gone
        below = module.lines[block.stop] if block.stop < len(module.lines) else ""
        old = before.lines[was] if was < len(before.lines) else ""
        if old == below and below.lstrip().startswith("if "):
            # The wrapper is the first thing under a condition of its own.
            below = next((row for row in module.lines[block.stop + 1 :] if not row.lstrip().startswith("#")), "")
            old = below if below in before.lines else next(filter(_WRAPS.search, before.lines[was + 1 : was + 7]), "")
        is_same = before.lines[was - 1].strip() == said[-1].strip()
        is_new = _WRAPS.search(old) and old.strip() != below.strip() and is_same
        if is_new and not _OF_WRAPPER.search(below) and all(_WRAPS.search(row) for row in said if _is_code(row)):
            yield from _rows_of(module, block)


def _beside_replaced(before: Module, module: Module) -> Iterator[Span]:
    """What is said of Apex on the row of a call of it that is another one now: ``# the batch norm of apex``."""
    beside = [(said, code) for _, said, code in _beside(before)]
    for start, said, code in _beside(module) if beside else ():
        old = [was for text, was in beside if text == said]
        if len(old) == 1 and old[0] != code:
            yield Span(start, Position(start.line, start.column + len(said)))


def _beside(module: Module) -> Iterator[tuple[Position, str, str]]:
    """The comments on Apex that stand behind code, with the space before them, and that code."""
    if not NAMES_APEX.search(module.source.text):
        return
    for token in tokenize.generate_tokens(io.StringIO(module.source.text).readline):
        line, column = token.start
        if token.type != tokenize.COMMENT or not NAMES_APEX.search(token.string) or "://" in token.string:
            continue
        row = module.lines[line - 1]
        code = row[:column].rstrip()
        if code:
            yield Position(line, len(code) + 1), row[len(code) : token.end[1]], code.strip()


def _conditions(module: Module) -> Iterator[tuple[list[str], str]]:
    """The comments on Apex above conditions, without what is said aside, and the code of these."""
    branches = {node.lineno: node for node in module.nodes if isinstance(node, ast.If)}
    for rows in _commented(module):
        said = [_ASIDE.sub("", module.lines[row]).strip() for row in rows]
        yield said, module.code(branches[rows.stop + 1]).replace("amp_runtime.apex", "amp_runtime")


def _commented(module: Module) -> Iterator[range]:
    lines = {node.lineno for node in module.nodes if isinstance(node, ast.If)}
    for rows in _blocks(module):
        said = "".join(module.lines[rows.start : rows.stop])
        if rows.stop + 1 in lines and len(rows) <= _LONGEST and NAMES_APEX.search(said) and "://" not in said:
            yield rows


def _blocks(module: Module) -> Iterator[range]:
    """The comments that have lines of their own, line by line below each other; lines from 0."""
    lines = [
        token.start[0] - 1
        for token in tokenize.generate_tokens(io.StringIO(module.source.text).readline)
        if token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip()
    ]
    while lines:
        length = next((index for index in range(1, len(lines)) if lines[index] != lines[0] + index), len(lines))
        yield range(lines[0], lines[0] + length)
        lines = lines[length:]


def _is_code(row: str) -> bool:
    """Whether a comment is code that was taken out."""
    try:
        body = ast.parse(row.strip().lstrip("#").strip()).body
    except SyntaxError:
        return False
    return any(not isinstance(item, ast.Expr) or isinstance(item.value, ast.Call) for item in body)


def without(module: Module, found: list[Span]) -> str:
    """The text of a file without some words."""
    rows = io.StringIO(module.source.text, newline="").readlines()
    gone: list[int] = []
    for span in sorted(found, reverse=True):
        row = rows[span.start.line - 1]
        rest = row[: span.start.column - 1] + row[span.end.column - 1 :]
        rows[span.start.line - 1] = rest if rest.strip() else ""
        if not rest.strip():
            gone.insert(0, span.start.line - 1)
    for index in gone:
        _close(rows, index, gone)
    return "".join(rows)


def _close(rows: list[str], index: int, gone: list[int]) -> None:
    """Leave one of the two gaps around the last of some lines that went."""
    first = index
    while first - 1 in gone:
        first -= 1
    above = list(itertools.takewhile(lambda row: not row.strip(), reversed(rows[:first])))
    below = list(itertools.takewhile(lambda row: not row.strip(), rows[index + 1 :]))
    if index + 1 not in gone:
        for offset in range(min(len(above), len(below))):
            rows[index + 1 + offset] = ""


def _asserted(module: Module) -> Iterator[_Range]:
    """Where the messages of assertions stand that do not ask for Apex."""
    for node in module.nodes:
        if isinstance(node, ast.Assert) and isinstance(node.msg, ast.Constant):
            if "apex" not in ast.unparse(node.test).lower():
                yield module.start(node.msg), module.end(node.msg)


def _printed(module: Module) -> Iterator[_Range]:
    """Where what is printed or logged stands."""
    for node in module.nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            if _PRINTS.fullmatch(own_name(node.value.func)):
                yield module.start(node), module.end(node)


def _helps(module: Module) -> Iterator[_Range]:
    """Where the help of options stands."""
    adding = {"add_argument"}  # and ``arg = parser.add_argument``
    for node in module.nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute) and node.value.attr == "add_argument":
            adding |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    for node in module.nodes:
        if isinstance(node, ast.Call) and own_name(node.func) in adding:
            for item in node.keywords:
                if item.arg == "help" and isinstance(item.value, ast.Constant):
                    yield module.start(item.value), module.end(item.value)


def _in_docstrings(module: Module) -> Iterator[Span]:
    """Apex's name before that of what is turned on, and ``with apex`` at the end of a line, line by line."""
    for node in module.nodes:
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
            continue
        if not isinstance(node.value.value, str) or not NAMES_APEX.search(node.value.value):
            continue
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
            row = module.lines[line - 1]
            for words in () if _SAYS_MORE.search(row) else (_BEFORE_PRECISION, _WITH_APEX):
                for match in words.finditer(row):
                    yield Span(Position(line, match.start() + 1), Position(line, match.end() + 1))


def _with_apex(token: tokenize.TokenInfo) -> Iterator[Span]:
    """``with apex`` at the end of a comment that says no more of it."""
    return _spans(token, _WITH_APEX) if not _SAYS_MORE.search(token.string) else iter(())


def _asides(token: tokenize.TokenInfo) -> Iterator[Span]:
    for span in _spans(token, _ASIDE):
        aside = token.string[span.start.column - 1 - token.start[1] : span.end.column - 1 - token.start[1]]
        rest = token.string.replace(aside, "").strip("#'\" \t")
        if rest and "://" not in aside and "#" not in aside:
            yield span


def _spans(token: tokenize.TokenInfo, words: re.Pattern[str]) -> Iterator[Span]:
    line, column = token.start
    for match in words.finditer(token.string):
        yield Span(Position(line, column + match.start() + 1), Position(line, column + match.end() + 1))


def _rows_of(module: Module, rows: Iterable[int]) -> Iterator[Span]:
    """The whole lines of some rows, from 0."""
    return (Span(Position(row + 1, 1), Position(row + 1, len(module.lines[row]) + 1)) for row in rows)
