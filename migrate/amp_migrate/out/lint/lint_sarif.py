"""SARIF 2.1.0, which code scanning services read, with the rules' pages."""

from __future__ import annotations

from collections.abc import Iterator

from amp_migrate.lint.catalogue import RuleInfo
from amp_migrate.lint.lint_run import LintRun
from amp_migrate.out.lint import RenderOptions
from amp_migrate.out.lint.lint_remarks import LEVELS, remarks
from amp_migrate.out.review import sarif
from amp_migrate.out.review.remark import RulePage


def render(run: LintRun, options: RenderOptions) -> Iterator[str]:
    """Yield the log, one finding at a time."""
    return sarif.log(
        "amp-lint",
        list(remarks(run)),
        rules=map(_page, run.rules),
        problems=run.problems,
        mode=str(run.mode).replace(" ", "-"),
        fingerprint="ampLint/v1",
    )


def _page(rule: RuleInfo) -> RulePage:
    return RulePage(
        rule.code,
        rule.name,
        rule.message,
        f"{rule.message} {rule.advice}".strip(),
        rule.page or rule.message,
        LEVELS[rule.severity],
        ("mixed-precision", rule.severity),
        # In the words that GitHub has.
        {"error": "error", "info": "recommendation"}.get(rule.severity, "warning"),
    )
