"""Which calls unpack an archive into the folder where the process runs: nothing says what names they give there."""

from __future__ import annotations

import ast
import re

from amp_rules.roles.file_effects import FileEffect
from amp_rules.roles.file_paths import Paths
from amp_rules.roles.program import Program
from amp_rules.source.index import argument_at
from amp_rules.source.syntax import last_name, walk
from amp_rules.torch.file_access import COMMANDS, UNPACKING, UNPACKING_COMMANDS, WORKING_FOLDER

_HERE = frozenset({"", ".", "./"})
_BETWEEN_COMMANDS = re.compile(r"&&|\|\||[;|\n]")
_RELATIVE = re.compile(r"(?:\./)?\w")


def unpacks_here(program: Program, paths: Paths, effect: FileEffect) -> bool:
    """Whether a call unpacks an archive where the process runs: ``archive.extractall()``, ``unzip data.zip``."""
    call, names = effect.call, program.callee_names(effect.call, effect.scope)
    if names & COMMANDS:
        return any(map(_unpacks_here, _BETWEEN_COMMANDS.split(_words(call))))
    for own in names & UNPACKING.keys() or {last_name(call.func)} & UNPACKING.keys():
        position, name = UNPACKING[own]
        to = argument_at(call, name, position)
        is_here = isinstance(to, ast.Call) and not WORKING_FOLDER.isdisjoint(program.callee_names(to, effect.scope))
        return to is None or is_here or not _HERE.isdisjoint(paths.of(to, effect.scope))
    return False


def is_relative(text: str) -> bool:
    """Whether the text of a path says that it begins where the process runs."""
    return _RELATIVE.match(text) is not None


def _words(call: ast.Call) -> str:
    texts = [node.value for given in call.args[:1] for node in walk(given) if isinstance(node, ast.Constant)]
    return " ".join(text for text in texts if isinstance(text, str))


def _unpacks_here(command: str) -> bool:
    """Whether a command unpacks an archive, and no word of it says where to."""
    program, _, words = command.strip().partition(" ")
    known = UNPACKING_COMMANDS.get(program)
    if known is None:
        return False
    asks, elsewhere = known
    return asks in words.strip().partition(" ")[0] and elsewhere not in words
