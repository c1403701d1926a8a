"""One line a finding: ``train.py:12:5: AMP601 [const-overflow-fill] message``."""

from __future__ import annotations

from collections.abc import Iterator

from amp_migrate.lint.diagnostics import Diagnostic
from amp_migrate.lint.lint_run import LintRun
from amp_migrate.out.lint import RenderOptions
from amp_migrate.out.terminal import visible

_BOLD, _CYAN, _RESET = "\x1b[1m", "\x1b[36m", "\x1b[m"
COLOURS = {"error": "\x1b[31m", "warning": "\x1b[33m", "performance": "\x1b[35m", "info": "\x1b[34m"}


def render(run: LintRun, options: RenderOptions) -> Iterator[str]:
    """Yield one line a finding."""
    for item in run.diagnostics:
        yield headline(item, options) + "\n"


def headline(item: Diagnostic, options: RenderOptions) -> str:
    """Return place, rule and message of a finding; ``[*]`` where --fix would fix it."""
    finding = item.finding
    star = "[*] " if is_fixable(item, options) else ""
    where, message = visible(item.where), visible(finding.message)
    if not options.colour:
        return f"{where}: {finding.code} [{finding.name}] {star}{message}"
    code = f"{COLOURS[finding.severity]}{_BOLD}{finding.code}{_RESET}"
    return f"{_BOLD}{where}{_RESET}: {code} [{finding.name}] {_CYAN}{star}{_RESET}{message}"


def is_fixable(item: Diagnostic, options: RenderOptions) -> bool:
    """Whether ``--fix``, with the other options of this run, mends the finding."""
    fix = item.finding.fix
    return fix is not None and (fix.safety == "safe" or options.unsafe_fixes)
