"""What the machine found out about files that it meets again: kept between the functions and files of a run."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from amp_rules.lattice.abstract_values import Value
from amp_rules.lattice.variable_uses import Uses
from amp_rules.source.facts import ModuleFacts


@dataclass
class KnownOfFile:
    """What is known of one file.

    Attributes:
        variables: the values of its module variables, by name.
        attributes: what ``__init__`` leaves in ``self``, by class.
        uses: how functions use their variables.
    """

    variables: dict[str, Value] = field(default_factory=dict)
    attributes: dict[ast.ClassDef, dict[str, Value]] = field(default_factory=dict)
    uses: dict[ast.AST, Uses] = field(default_factory=dict)


class KnownValues:
    """What is known of the files of a run in one mode."""

    def __init__(self) -> None:
        self._files: dict[ModuleFacts, KnownOfFile] = {}

    def of(self, module: ModuleFacts) -> KnownOfFile:
        """What is known of a file, to be read and added to."""
        known = self._files.get(module)
        if known is None:
            known = self._files[module] = KnownOfFile()
        return known

    def forget(self, module: ModuleFacts) -> None:
        """Let go of a file whose tree is not kept any longer: values hold on to its nodes."""
        self._files.pop(module, None)
