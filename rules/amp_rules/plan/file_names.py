"""What a file of a program is called within a sentence."""

from __future__ import annotations

from amp_rules.roles.program import Program
from amp_rules.source.modules import Module


def name_of(program: Program, module: Module) -> str:
    """The path of a file from the script's folder on, or from the project's: several files have one base name."""
    for folder in (program.entry.path.parent, program.project.root):
        if module.path.is_relative_to(folder):
            return module.path.relative_to(folder).as_posix()
    return module.path.name
