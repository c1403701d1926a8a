"""Writes a page for each rule and each reason for declining, from its docstring and its fixtures.

The pages are made anew by every build, below ``docs/rules``, and are not committed. The rules are those that
``amp-lint --explain`` knows, from the same loaders.
"""

from __future__ import annotations

import difflib
import json
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from amp_migrate.lint.catalogue import RuleInfo, load_rules
from amp_rules import migrate
from amp_rules.plan.note_pages import all_noted
from amp_rules.plan.options import Options
from amp_rules.plan.refusal_pages import all_reasons
from amp_rules.plan.report import Refusal
from amp_rules.plan.rule import Rule
from amp_rules.rewrites import all_rules
from amp_rules.source.text import SourceError
from sphinx.application import Sphinx

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

AnyRule = Rule | RuleInfo

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "fixtures"
FIGURES = ROOT / "benchmarks" / "lint_figures.json"

FAMILIES = {
    "AMP1": ("Precision", "What makes a training step run in mixed precision."),
    "AMP2": ("Several processes", "What gives each process its share, and lets one of them write."),
    "AMP3": ("Optimizers", "What makes the step itself faster."),
    "AMP4": ("Apex and `torch.cuda.amp`", "What takes an older interface out."),
    "AMP5": ("Old PyTorch", "With `--modernize`: what a current PyTorch no longer has."),
    "AMP6": ("Numbers", "Constants, epsilons and limits that half precision does not hold."),
    "AMP7": ("Arithmetic and types", "What overflows, is rounded away, or mixes types."),
    "AMP8": ("The training step and autograd", "What goes wrong between `backward()` and `step()`, and with Apex."),
    "AMP9": ("Processes, performance, hardware", "What differs between ranks, and what costs speed."),
}
_TABS = (("Before", "After"), ("Example", "Use instead"))


@dataclass(frozen=True)
class Section:
    """A heading of a page and the Markdown below it."""

    title: str
    text: str


def pages() -> dict[str, str]:
    """Return the Markdown of every generated page by its name, ``index`` included."""
    rewrites, lint, reasons = all_rules(), load_rules(), all_reasons()
    made = {rule.code: rewrite_page(rule) for rule in rewrites}
    made |= {rule.code: lint_page(rule) for rule in lint}
    made |= {rule.code: reason_page(rule) for rule in reasons}
    noted = all_noted()
    made |= {rule.code: note_page(rule) for rule in noted}
    every = sorted([*rewrites, *lint, *reasons, *noted], key=lambda rule: rule.code)
    apart = {rule.code: "What is declined:" for rule in reasons} | {rule.code: "What is noted:" for rule in noted}
    made |= {f"{family}xx": family_page(family, every, apart) for family in FAMILIES}
    made["index"] = index_page(every, apart)
    return made


# ---- rewrites ----------------------------------------------------------------------------------------------


def rewrite_page(rule: Rule) -> str:
    """Return the page of a rewrite: its documentation, then what it makes of its fixtures."""
    part = "optional" if rule.optional else "part of the whole: without it the unit is declined"
    parts = [
        *_head(rule.code, rule.name),
        f"*Rewrite of amp-migrate, {rule.unit}, {part}.*",
        *_documentation(rule.page),
    ]
    cases = sorted(path for path in (FIXTURES / rule.code).iterdir() if path.is_dir())
    changed = [case for case in cases if not case.name.startswith("noop")]
    left = [case for case in cases if case.name.startswith("noop")]
    parts += ["## What it makes of its test cases", *(_dropdown(_title(case), _case_diff(case)) for case in changed)]
    parts += ["## What it leaves alone", *(_dropdown(_title(case), _case_files(case)) for case in left)]
    return _joined(parts)


def _case_diff(case: Path) -> str:
    before, after = _versions(case, "before"), _versions(case, "after")
    changes = [_diff(name, text, after.get(name, text)) for name, text in before.items()]
    return _options_of(case) + _fenced("diff", "".join(changes))


def _case_files(case: Path) -> str:
    files = _versions(case, "before")
    return _options_of(case) + "\n\n".join(_code(text, name if len(files) > 1 else "") for name, text in files.items())


def _versions(case: Path, which: str) -> dict[str, str]:
    """The files of a case before or after, by their names."""
    single, folder = case / f"{which}.py", case / which
    if single.exists():
        return {"train.py": single.read_text(encoding="utf-8")}
    return {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))}


def _options_of(case: Path) -> str:
    given = {"ddp": True, **_toml(case / "options.toml")}
    options = [_option(name, value) for name, value in given.items()]
    return f"`{' '.join(['amp-migrate train.py', *filter(None, options)])}`\n\n"


def _option(name: str, value: object) -> str:
    """An option of amp-migrate as it is written on the command line."""
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        default = getattr(Options(), name)
        return "" if value is default else f"--{flag}" if value else f"--no-{flag}"
    return f"--{flag} {','.join(value) if isinstance(value, (list, tuple)) else value}"


# ---- lint rules --------------------------------------------------------------------------------------------


def lint_page(rule: RuleInfo) -> str:
    """Return the page of a lint rule: its documentation, then where its fixtures are reported and where not."""
    facts = [f"severity {rule.severity}", f"modes: {rule.modes_text}"]
    if rule.fix_safety:
        facts.append(f"{rule.fix_safety} fix")
    if rule.preview:
        facts.append("in preview: ask for it with `--preview` or `--select`")
    parts = [*_head(rule.code, rule.name), f"*Rule of amp-lint, {', '.join(facts)}.*", *_documentation(rule.page)]
    if rule.advice:
        parts.append(f"**What to do:** {rule.advice}")
    if rule.fix_title:
        parts.append(f"**Fix ({rule.fix_safety}):** {rule.fix_title.rstrip('.')}.")
    folder = FIXTURES / "checks" / rule.code
    if folder.is_dir():
        parts += ["## What it reports", "The lines that are reported end in `# expect`."]
        parts += [_dropdown(_title(path, "fires_"), _fires(path)) for path in sorted(folder.glob("fires_*.py"))]
        parts += ["## What it does not report"]
        parts += [
            _dropdown(_title(path, "silent_"), _code(path.read_text(encoding="utf-8")))
            for path in sorted(folder.glob("silent_*.py"))
        ]
    parts += _measured(rule.code)
    fact = folder / "fact.py"
    if fact.exists():
        parts += ["## The claim, checked", "A test runs this with torch:", _code(fact.read_text(encoding="utf-8"))]
    return _joined(parts)


def _measured(code: str) -> list[str]:
    """What was measured of a rule, with the date; nothing where nothing was."""
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    said = []
    recall, precision = figures.get("recall", {}), figures.get("precision", {})
    if code in recall.get("rules", {}):
        found, of = recall["rules"][code]
        said.append(f"Of {of} real bugs of its kind in public histories it finds {found} ({recall['date']}).")
    if code in precision.get("rules", {}):
        right, read = precision["rules"][code]
        said.append(
            f"Of {read} of its alarms over public packages, {right} were bugs or real hazards ({precision['date']})."
        )
    return ["## Measured", " ".join(said)] if said else []


def _fires(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    fixed = path.parent / "fixed" / path.name
    if not fixed.exists():
        return _code(text)
    diff = _diff(path.name, text, fixed.read_text(encoding="utf-8"))
    return f"{_code(text)}\n\nThe fix makes of it:\n\n{_fenced('diff', diff)}"


# ---- reasons for declining ---------------------------------------------------------------------------------


def reason_page(rule: Rule) -> str:
    """Return the page of a reason: what is refused, why, what to do by hand, and what the tool says of its fixtures."""
    parts = [*_head(rule.code, rule.name), f"*Reason for declining, {rule.unit}.*", *_documentation(rule.page)]
    folder = FIXTURES / "declines" / rule.code
    if folder.is_dir():
        parts += ["## What the tool says", "Scripts of the tests, and what is reported of each:"]
        parts += [_declined(path, rule) for path in sorted(folder.iterdir())]
    return _joined(parts)


def _declined(path: Path, rule: Rule) -> str:
    entry = path / "train.py" if path.is_dir() else path
    said = [_said(item, entry.parent) for item in refusals(entry) if item.code == rule.code]
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    texts = [_code(item.read_text(encoding="utf-8"), item.name if len(files) > 1 else "") for item in files]
    return _dropdown(_title(path), "\n\n".join([*said, *texts]))


def refusals(entry: Path) -> tuple[Refusal, ...]:
    """What amp-migrate declines of a fixture."""
    try:
        asked = Options(
            ddp=True,
            modernize="AMP5" in str(entry),
            apex="idiom" if "AMP4" in str(entry) else "auto",
            target="torch" if "AMP392" in str(entry) else "runtime",
            shard="AMP295" in str(entry),
            shard_embeddings=1000 if "AMP298" in str(entry) else None,
        )
        return migrate(entry, asked).refusals
    except SourceError:
        return ()


def _said(item: Refusal, folder: Path) -> str:
    place = item.path.relative_to(folder.resolve()).as_posix()
    if item.span is not None:
        place += f":{item.span.start.line}"
    return f"**{place}:** {item.message}\n\n*By hand:* {item.recipe}"


# ---- notes -------------------------------------------------------------------------------------------------


def note_page(rule: Rule) -> str:
    """Return the page of a note: what is noted, why, what may be done, and what the tool says of its fixtures."""
    parts = [*_head(rule.code, rule.name), f"*Note of amp-migrate, {rule.unit}.*", *_documentation(rule.page)]
    folder = FIXTURES / "notes" / rule.code
    if folder.is_dir():
        parts += ["## What the tool says", "Scripts of the tests, and what is noted of each:"]
        parts += [_noted(path, rule) for path in sorted(folder.iterdir())]
    return _joined(parts)


def _noted(path: Path, rule: Rule) -> str:
    # Notes about what was asked for besides several processes.
    asked = Options(
        ddp=True,
        shard=rule.code == "AMP285",
        shard_eval=rule.code == "AMP286",
        shard_embeddings=1000 if rule.code == "AMP287" else None,
        switch=rule.code == "AMP185",
        quantize="static" if rule.code == "AMP181" else None,
    )
    said = [
        f"**{item.path.name}{'' if item.line is None else f':{item.line}'}:** {item.text}"
        for item in migrate(path, asked).notes
        if item.code == rule.code
    ]
    return _dropdown(_title(path), "\n\n".join([*said, _code(path.read_text(encoding="utf-8"))]))


# ---- the index ---------------------------------------------------------------------------------------------


def index_page(rules: Iterable[AnyRule], apart: Mapping[str, str]) -> str:
    """Return the table of all rules by code, with the table of contents of the families.

    ``apart`` names, for each code that is not of a rewrite or a lint rule, the table below in which it stands.
    """
    parts = [
        "# Rules: every code and its page",
        "Every rewrite of `amp-migrate`, every reason for which it declines, every note, and every rule of `amp-lint` "
        "has a code, a name and a page. On the command line: `amp-lint --explain AMP605`, or `amp-lint --explain "
        "eps-underflow`.",
        '```{raw} html\n<input id="rule-filter" type="search" placeholder="Filter by code, name or words" '
        'aria-label="Filter the rules" hidden>\n```',
    ]
    for family, (title, words) in FAMILIES.items():
        parts += [f"## {family}xx: {title}", words, *_tables(_of(family, rules), apart)]
    parts.append(_toctree(f"{family}xx" for family in FAMILIES))
    return _joined(parts)


def family_page(family: str, rules: Iterable[AnyRule], apart: Mapping[str, str]) -> str:
    """Return the table of a family, with the table of contents of its pages."""
    title, words = FAMILIES[family]
    own = _of(family, rules)
    return _joined([f"# {family}xx: {title}", words, *_tables(own, apart), _toctree(rule.code for rule in own)])


def _of(family: str, rules: Iterable[AnyRule]) -> list[AnyRule]:
    return [rule for rule in rules if rule.code.startswith(family)]


def _tables(rules: Iterable[AnyRule], apart: Mapping[str, str]) -> Iterator[str]:
    yield _table([rule for rule in rules if rule.code not in apart])
    for title in dict.fromkeys(apart.values()):
        own = [rule for rule in rules if apart.get(rule.code) == title]
        if own:
            yield title
            yield _table(own)


def _toctree(names: Iterable[str]) -> str:
    return "\n".join(["```{toctree}", ":hidden:", "", *names, "```"])


def _table(rules: Iterable[AnyRule]) -> str:
    rows = [f"| [{rule.code}]({rule.code}.md) | {rule.name} | {rule.message} | {_kind(rule)} |" for rule in rules]
    return "\n".join(["| code | name | what it is about | |", "| --- | --- | --- | --- |", *rows])


def _kind(rule: AnyRule) -> str:
    if isinstance(rule, Rule):
        return "optional" if rule.optional else ""
    fix = f", {rule.fix_safety} fix" if rule.fix_safety else ""
    return f"{rule.severity}{fix}{', preview' if rule.preview else ''}"


# ---- Markdown ----------------------------------------------------------------------------------------------


def _head(code: str, name: str) -> list[str]:
    return [f"({code})=", f"# {code} {name}"]


def _documentation(page: str) -> list[str]:
    """A docstring as Markdown of the site: its code fenced, two versions of it in tabs."""
    first, *rest = sections(page)
    found = [first.text] if first.text else []
    names = [section.title for section in rest]
    for section in rest:
        pair = next((pair for pair in _TABS if section.title in pair and set(pair) <= set(names)), None)
        if pair is None:
            found += [f"## {section.title}", _fence_code(section.text)]
        elif section.title == pair[0]:
            other = next(item for item in rest if item.title == pair[1])
            found += [f"## {pair[0]} and {pair[1][0].lower() + pair[1][1:]}", _tabs([section, other])]
    return found


def sections(page: str) -> list[Section]:
    """Split a docstring at its headings; what stands above the first has no title."""
    head, *rest = re.split(r"^## ", textwrap.dedent(page).strip(), flags=re.MULTILINE)
    found = [Section("", head.strip())]
    for part in rest:
        title, _, text = part.partition("\n")
        found.append(Section(title.strip(), text.strip("\n")))
    return found


def _tabs(items: Iterable[Section]) -> str:
    tabs = [f":::{{tab-item}} {item.title}\n{_fence_code(item.text)}\n:::" for item in items]
    return "\n".join(["::::{tab-set}", *tabs, "::::"])


def _fence_code(text: str) -> str:
    """Text in which every indented block is a fenced one of Python, and every bare address a link."""
    found: list[str] = []
    for is_code, lines in _blocks(text):
        block = "\n".join(lines)
        found.append(_code(textwrap.dedent(block)) if is_code else re.sub(r"(?<![(<])(https?://\S+)", r"<\1>", block))
    return "\n\n".join(block for block in found if block.strip())


def _blocks(text: str) -> Iterator[tuple[bool, list[str]]]:
    """Runs of lines that are all indented by four, or all not; blank lines stay with what is above."""
    run: list[str] = []
    is_code = False
    for line in text.splitlines():
        if line.strip() and line.startswith("    ") is not is_code:
            yield is_code, run
            run, is_code = [], not is_code
        run.append(line)
    yield is_code, run


def _code(text: str, caption: str = "") -> str:
    return _fenced("python", text, caption)


def _fenced(language: str, text: str, caption: str = "") -> str:
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall(r"`+", text)), 3)
    if caption:
        return f"{fence}{{code-block}} {language}\n:caption: {caption}\n\n{text.strip(chr(10))}\n{fence}"
    return f"{fence}{language}\n{text.strip(chr(10))}\n{fence}"


def _dropdown(title: str, body: str) -> str:
    return f"::::{{dropdown}} {title}\n\n{body}\n\n::::"


def _diff(name: str, before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def _title(path: Path, prefix: str = "noop_") -> str:
    words = path.stem.removeprefix(prefix).replace("_", " ")
    return words[:1].upper() + words[1:]


def _toml(path: Path) -> dict[str, object]:
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _joined(parts: Iterable[str]) -> str:
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


# ---- Sphinx ------------------------------------------------------------------------------------------------


def write_pages(folder: Path) -> None:
    """Write all pages into a folder, touch none that is as it was, and remove those of rules that are gone."""
    folder.mkdir(exist_ok=True)
    made = {folder / f"{name}.md": text for name, text in pages().items()}
    for path in set(folder.glob("*.md")) - set(made):
        path.unlink()
    for path, text in made.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Have the pages written before Sphinx looks for sources."""
    app.connect("builder-inited", lambda app: write_pages(Path(app.srcdir) / "rules"))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
