"""What the linter knows to raise under torch's own autocast: it would end a run that the original completes."""

from __future__ import annotations

from collections.abc import Iterator

from amp_rules.checks.types.bce_under_autocast import BceUnderAutocast
from amp_rules.checks.types.inplace_bypasses_autocast import InplaceBypassesAutocast
from amp_rules.checks.types.lowp_unsupported_op import LowpUnsupportedOp
from amp_rules.lint.check import Check
from amp_rules.lint.finding import Finding
from amp_rules.lint.linter import Linter
from amp_rules.plain_torch.regions import modes, sites_in_regions
from amp_rules.plain_torch.translation import Translation
from amp_rules.source.modules import Module
from amp_rules.source.text import SourceError


def decline(translation: Translation) -> None:
    """Decline each operation of the regions that raises there."""
    found: dict[Module, dict[object, Finding]] = {}
    for site in sites_in_regions(translation):
        if site.module not in found:
            found[site.module] = {item.span: item for item in _findings(translation, site.module)}
        finding = found[site.module].pop(site.module.span(site.node), None) if found[site.module] else None
        if finding is not None:
            message = f"{finding.message} ({finding.code})"
            translation.decline(site.module, site.node, message, finding.advice, "precision")


def _findings(translation: Translation, module: Module) -> Iterator[Finding]:
    checks: list[Check] = [BceUnderAutocast(), InplaceBypassesAutocast(), LowpUnsupportedOp()]
    for mode in modes(translation):
        try:
            found = Linter(mode, checks).lint(module.source).findings
        except (SourceError, RecursionError):
            continue
        yield from (item for item in found if item.severity == "error")
