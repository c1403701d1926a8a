"""Imports of Apex that stay where its interface comes from the runtime: of a part that the runtime does not have."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from amp_rules.plan import notes
from amp_rules.plan.apex.file import ApexFile
from amp_rules.plan.apex.references import is_apex
from amp_rules.plan.apex.stages import uses_apex
from amp_rules.plan.options import Options
from amp_rules.plan.report import Note
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.torch import apex as api
from amp_rules.torch.canonical_names import canonical


def stays(file: ApexFile, statement: ast.Import | ast.ImportFrom) -> bool:
    """Whether an import is left as it is: nothing of it is in the runtime, and the script goes on without it.

    Raises:
        NotUnderstood: the runtime does not have all of it, and the script needs it.
    """
    names = [item.target for item in file.references.bindings if item.statement is statement]
    if isinstance(statement, ast.Import):  # ``import apex.pyprof`` binds ``apex`` alone
        names += [alias.name for alias in statement.names if is_apex(alias.name)]
    else:
        names.append(statement.module or "")
    missing = [name for name in names if not api.has_dropin(canonical(name))]
    if not missing:
        return False
    guarded = any(isinstance(parent, ast.Try) for parent in blocks.enclosing(file.module, statement))
    bound = [name for name in names if not isinstance(statement, ast.ImportFrom) or name != statement.module]
    if isinstance(statement, ast.ImportFrom) and guarded and set(bound) <= set(missing):
        return True
    raise file.not_understood(statement, f"the runtime has no `{missing[0]}`")


def kept_notes(program: Program, options: Options) -> Iterator[Note]:
    """Yield a note on the first import of each file that stays."""
    for module in uses_apex(program):
        file = ApexFile(module, options)
        imports = {*file.references.statements, *file.references.star_imports}
        kept = [item for item in sorted(imports, key=lambda node: node.lineno) if stays(file, item)]
        if kept:
            text = (
                f"`{module.text(kept[0])}` stays Apex's, for the runtime does not have it: the `try` around it decides "
                f"what the script does without Apex{_others(kept[1:])}"
            )
            yield notes.note(notes.APEX_KEPT, module, kept[0], text)


def _others(statements: Sequence[ast.stmt]) -> str:
    """Where the further imports stand."""
    if not statements:
        return ""
    *first, last = (str(item.lineno) for item in statements)
    if not first:
        return f"; so does the import below it in line {last}"
    return f"; so do the imports of Apex below it in lines {', '.join(first)} and {last}"
