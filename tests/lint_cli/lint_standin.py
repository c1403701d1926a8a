"""A stand-in for the analysis: it finds calls by their names, so that tests of the command line need no real rules.

``fill(x, 1e9)`` and the like are findings; the names in capitals make it misbehave.
"""

from __future__ import annotations

import ast
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from amp_rules.lint.finding import Finding, Fix, TextEdit
from amp_rules.lint.linter import LintResult
from amp_rules.source.digest import digest_of
from amp_rules.source.modules import parse

STANDIN_PATH = Path(__file__)


@dataclass
class StandinCheck:
    code: str
    name: str
    severity: str = "warning"
    message: str = "A message."
    advice: str = ""
    fix_title: str = ""
    fix_safety: str | None = None
    preview: bool = False
    only: str = ""

    @property
    def page(self) -> str:
        return f"Page of {self.code}.\n\n## What it does\n`{self.name}`"

    def applies(self, mode):
        return not self.only or self.only in str(mode).split()


CHECKS = (
    StandinCheck("AMP601", "const-overflow-fill", "error", fix_title="use finfo", fix_safety="safe"),
    StandinCheck("AMP602", "log-of-zero", fix_title="add eps", fix_safety="unsafe", advice="Add an eps."),
    StandinCheck("AMP650", "in-preview", preview=True),
    StandinCheck("AMP701", "needless-half", "info", fix_title="remove it", fix_safety="safe"),
    StandinCheck("AMP801", "undecorated", fix_title="decorate it", fix_safety="safe"),
    StandinCheck("AMP901", "slow-reduce", "performance", only="ddp"),
    StandinCheck("AMP902", "unfused", "performance", only="O3"),
)
BY_CALL = {
    "fill": "AMP601",
    "log": "AMP602",
    "preview": "AMP650",
    "half": "AMP701",
    "reduce": "AMP901",
    "step": "AMP902",
    "broken": "AMP601",
}


class StandinLinter:
    """Has what the command line uses of :class:`amp_rules.lint.Linter`."""

    def __init__(self, mode, checks, codes=None):
        self.mode = mode
        chosen = [check for check in CHECKS if (check.code in codes if codes is not None else not check.preview)]
        self.checks = [check for check in chosen if check.applies(mode)]

    def lint(self, source):
        if "CALLS" in os.environ:
            with open(os.environ["CALLS"], "a") as file:
                file.write(f"{source.path.name}\n")
        module = parse(source)
        checks = {check.code: check for check in self.checks}
        findings = []
        dependencies = {}
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Import):
                paths = [source.path.parent / f"{alias.name}.py" for alias in node.names]
                dependencies |= {path: digest_of(path.read_bytes()) if path.exists() else None for path in paths}
            if isinstance(node, ast.Name):
                misbehave(node.id)
            found = judged(node, module)
            if found and found[0] in checks:
                check = checks[found[0]]
                findings.append(
                    Finding(
                        source.path,
                        module.span(node),
                        check.code,
                        check.name,
                        check.severity,
                        f"`{ast.unparse(node)[:40]}` is wrong",
                        str(self.mode),
                        found[1],
                        check.advice,
                    )
                )
        return LintResult(tuple(findings), dependencies)


def judged(node, module):
    """Return code and fix of a finding at ``node``."""
    if isinstance(node, ast.FunctionDef) and node.name.startswith("bare") and not node.decorator_list:
        edits = (
            TextEdit("decorate", module.span(node), "keep"),
            TextEdit("import", module.span(node), "from t import keep"),
        )
        return "AMP801", Fix("decorate it", "safe", edits)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and name_of(node.value) == "half":
        return "AMP701", Fix("remove it", "safe", (TextEdit("remove", module.span(node)),))
    if not isinstance(node, ast.Call) or name_of(node) == "half":
        return None
    name = name_of(node)
    code = BY_CALL.get(name)
    fix = None
    if name == "fill" and len(node.args) == 2:
        fix = Fix(
            "use finfo", "safe", (TextEdit("replace", module.span(node), f"full({segment(node.args[0], module)})"),)
        )
    elif name == "log" and len(node.args) == 1 and isinstance(node.args[0], ast.Name):
        fix = Fix("add eps", "unsafe", (TextEdit("replace", module.span(node.args[0]), f"{node.args[0].id} + eps"),))
        return (code, fix)
    elif name == "log":
        return None
    elif name == "broken":
        fix = Fix("break it", "safe", (TextEdit("insert before", module.span(statement_of(node, module)), "y = ("),))
    return (code, fix) if code else None


def segment(node, module):
    (line, start), (_, end) = module.start(node), module.end(node)
    return module.lines[line - 1][start:end]


def statement_of(node, module):
    return next(item for item in module.ancestors(node) if isinstance(item, ast.stmt))


def name_of(call):
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def misbehave(name):
    if name == "BOOM":
        raise KeyError("no such role")
    if name == "SLOW":
        Path("slow.started").touch()
        while True:
            pass
    if name == "CRASH":
        os._exit(3)
    if name == "HANG":
        for number in (signal.SIGALRM, signal.SIGPROF):
            signal.signal(number, signal.SIG_IGN)
        time.sleep(60)


def install(patch):
    """Put the stand-in in place of the analysis with ``patch(owner, name, value)``."""
    import amp_migrate.run.judging
    import amp_rules.checks

    patch(amp_migrate.run.judging, "Linter", StandinLinter)
    patch(amp_migrate.run.judging, "all_checks", lambda: CHECKS)
    patch(amp_rules.checks, "all_checks", lambda: CHECKS)


if __name__ == "__main__":
    install(setattr)
    from amp_migrate.commands.lint import main

    sys.exit(main(prog_name="amp-lint"))
