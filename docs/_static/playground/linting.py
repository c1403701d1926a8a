"""The linter for one text, as the playground's worker calls it: what ``amp-lint`` finds, as JSON."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from amp_migrate.lint.catalogue import load_rules
from amp_migrate.run.judging import Judge, LintJob
from amp_rules.lattice.mode import Mode

_FILE = Path("train.py")


@lru_cache(maxsize=4)
def _judge(level: str, dtype: str, device: str, ddp: bool) -> Judge:
    rules = load_rules()
    codes = frozenset(rule.code for rule in rules if not rule.preview)
    mode = Mode(level, dtype, device, ddp)  # type: ignore[arg-type]
    return Judge(LintJob(mode, codes, {rule.code: rule.name for rule in rules}, timeout=0))


def lint(text: str, level: str, dtype: str, device: str, ddp: bool) -> str:
    """Return the findings of a text by place, and what prevented that it was judged."""
    result = _judge(level, dtype, device, ddp).judge(_FILE, text.encode())
    found: list[dict[str, Any]] = []
    for item in result.diagnostics:
        finding = item.finding
        start, end = finding.span.start, finding.span.end
        found.append(
            {
                "code": finding.code,
                "name": finding.name,
                "severity": finding.severity,
                "message": finding.message,
                "advice": finding.advice,
                "from": [start.line, start.column],
                "to": [end.line, end.column],
            }
        )
    problem = result.problem
    return json.dumps(
        {"findings": found, "problem": {"message": problem.message, "line": problem.line} if problem else None}
    )
