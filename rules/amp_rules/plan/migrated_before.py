"""Scripts that use the runtime already, since an earlier migration."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from amp_rules.plan import (
    declining,
    own_processes,
)
from amp_rules.plan.added_since import added
from amp_rules.plan.options import Options
from amp_rules.plan.report import Note, Outcome, Refusal, Report
from amp_rules.roles.program import Program
from amp_rules.source.modules import Module


def migrated_before(program: Program, options: Options) -> Report | None:
    """The report for a script that uses the runtime already."""
    if not any(_starts_runtime(module) for module in program.flow.modules):
        return None
    is_distributed = any(item.arg in ("ddp", "parallel") for _, call in _init_calls(program) for item in call.keywords)
    refusals: list[Refusal] = []
    outcome: Outcome = "not requested"
    if options.ddp:
        own = own_processes.own_distribution(program)
        outcome = "already" if is_distributed or (own is not None and own.already) else "declined"
        if outcome == "declined" and own is not None:
            refusals.append(own.refusal)
        elif outcome == "declined":
            rule = declining.NEEDS_PRECISION
            refusals.append(
                Refusal(
                    program.entry.path,
                    None,
                    rule.code,
                    rule.name,
                    "distribution",
                    "the script was migrated without several processes",
                    "migrate the original script with --ddp; the summary says why if it declines",
                )
            )
    return Report(program.entry.path, "already", outcome, refusals=tuple(refusals), notes=tuple(_added_since(program)))


def without_runtime(program: Program, options: Options, report: Report) -> Report:
    """The report for a script that uses the runtime already, and is to use torch alone."""
    for module in program.flow.modules:
        if _imports_parts_of_runtime(module):
            rule = declining.NOT_IN_TORCH
            reason = Refusal(
                module.path,
                None,
                rule.code,
                rule.name,
                rule.unit,
                "the script has Apex's interface from the runtime, which torch does not have",
                "take the script as it was for Apex, which amp-migrate --undo or git gives back, and migrate that with "
                "--target torch",
            )
            return replace(report, precision="declined", refusals=(*report.refusals, reason))
    from amp_rules.plain_torch.stage import from_runtime

    return from_runtime(report, program, options)


def _added_since(program: Program) -> Iterator[Note]:
    """What to say of steps that came after the migration to the runtime."""
    if any(_imports_parts_of_runtime(module) for module in program.flow.modules):
        # Apex's interface scales in ways of its own.
        return
    levels = [item.value for _, call in _init_calls(program) for item in call.keywords if item.arg == "opt_level"]
    if levels and all(isinstance(level, ast.Constant) and level.value == "O0" for level in levels):
        return  # full precision is meant
    yield from added(program, "amp.scaler", "amp.autocast()")


def _init_calls(program: Program) -> list[tuple[Module, ast.Call]]:
    """Calls that look like those of the runtime's ``init``."""
    return [
        (module, node)
        for module in program.flow.modules
        for node in module.nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "init"
    ]


def _starts_runtime(module: Module) -> bool:
    """Whether the file calls the runtime's ``init``, or has Apex's interface from it."""
    if _imports_parts_of_runtime(module):
        return True
    names = {
        alias.asname or alias.name
        for node in module.nodes
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "amp_runtime"
    }
    return bool(names) and any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "init"
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in names
        for node in module.nodes
    )


def _imports_parts_of_runtime(module: Module) -> bool:
    """Whether the file imports from the runtime, as scripts with Apex's interface do."""
    return any(
        (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("amp_runtime"))
        or (isinstance(node, ast.Import) and any(alias.name.startswith("amp_runtime.") for alias in node.names))
        for node in module.nodes
    )
