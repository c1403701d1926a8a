"""The files of a copy of the runtime that serves what some scripts use."""

from __future__ import annotations

import ast
import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from amp_migrate.runtimes import PACKAGE
from amp_migrate.vendoring.definitions import Module, Target, read_package
from amp_migrate.vendoring.reach import Reached
from amp_migrate.vendoring.rendering import rendered
from amp_migrate.vendoring.uses import HALF_MODELS, Uses

_STAND_INS = f"{PACKAGE}._without"
_REFUSING = f"{PACKAGE}._core.left_out"
_SUBPACKAGES = ("optim",)


@dataclass(frozen=True)
class Source:
    """The installed runtime.

    Attributes:
        modules: its modules by name, without what stands in for them.
        stand_ins: what stands in a copy for modules that it does without.
        wanted_by: the names and words that want each of these modules itself.
        stand_ins_as_they_lie: the modules of that folder, at their own places.
        others: its other files, by path.
    """

    modules: Mapping[str, Module]
    stand_ins: Mapping[str, Module]
    wanted_by: Mapping[str, frozenset[str]]
    stand_ins_as_they_lie: tuple[Module, ...]
    others: Mapping[str, bytes]


def read_source(folder: Path) -> Source:
    """Read the runtime that lies in ``folder``, without importing it."""
    package = read_package(folder)
    modules, stand_ins, lying = {}, {}, []
    wanted_by: dict[str, frozenset[str]] = {}
    for name, module in package.items():
        if name == _STAND_INS or name.startswith(_STAND_INS + "."):
            lying.append(module)
        if name == _STAND_INS:
            wanted_by = _wanted_by(module)
        elif name.startswith(_STAND_INS + "."):
            own = PACKAGE + name.removeprefix(_STAND_INS)
            if own not in package or not package[own].path.endswith("__init__.py"):
                stand_ins[own] = replace(module, name=own, path=module.path.partition("/")[2])
        else:
            modules[name] = module
    others = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".py", ".pyc", ".pyo")
    }
    return Source(modules, stand_ins, wanted_by, tuple(lying), others)


def _wanted_by(module: Module) -> dict[str, frozenset[str]]:
    (table,) = (s.node for s in module.binding("WANTED_BY"))
    assert isinstance(table, ast.AnnAssign) and table.value is not None
    found: dict[str, tuple[str, ...]] = ast.literal_eval(table.value)
    return {f"{PACKAGE}.{name}": frozenset(words) for name, words in found.items()}


def relevant(uses: Uses, source: Source) -> Uses:
    """``uses`` without the words that change nothing."""
    known = frozenset().union(*source.wanted_by.values()) | {"**"}
    return replace(uses, words=uses.words & known)


def files_for(uses: Uses, source: Source, command: str) -> dict[str, bytes]:
    """The files of a copy, by path, for what ``uses`` says; ``command`` makes it grow."""
    if uses.everything:
        found = {module.path: module.text for module in source.modules.values()}
    else:
        found = _reached(uses, source)
    path = source.modules[_REFUSING].path if _REFUSING in source.modules else ""
    if path in found:
        found[path] = _filled_in(found[path], uses, command)
    return {**source.others, **{path: text.encode() for path, text in sorted(found.items())}}


def _reached(uses: Uses, source: Source) -> dict[str, str]:
    left_out = _left_out(uses, source)
    while True:
        package = {**source.modules, **{name: source.stand_ins[name] for name in left_out}}
        reached = Reached(package)
        _follow(reached, uses, package)
        # What a stand-in does not have has to come from the module itself.
        lacking = reached.lacking & left_out
        if not lacking:
            break
        left_out -= lacking
    found = {}
    for name in reached.statements:
        module = package[name]
        text = rendered(module, reached.statements[name], reached.imports[name])
        text += _refusals(module, reached) if module.path.endswith("__init__.py") else ""
        found[module.path] = text
    return found


def _left_out(uses: Uses, source: Source) -> set[str]:
    given = {*uses.names, *uses.words, *(HALF_MODELS if uses.half_models else ())}
    if {"scaler.*", "Scaler"} & given:
        given |= {word for words in source.wanted_by.values() for word in words if word.startswith("scaler.")}
    if "**" in given:  # any keyword
        given |= {word for words in source.wanted_by.values() for word in words if word not in HALF_MODELS}
    return {name for name, words in source.wanted_by.items() if name in source.stand_ins and not words & given}


def _follow(reached: Reached, uses: Uses, package: Mapping[str, Module]) -> None:
    reached.load(PACKAGE)
    if _REFUSING in package:
        reached.follow([Target(_REFUSING)])
    for name in sorted(uses.names):
        first, _, attribute = name.partition(".")
        # What a script reads of a name of its own, or one that is no more, fails there as it does with the package.
        if package[PACKAGE].binding(first):
            reached.read(PACKAGE, first, attribute if first in _SUBPACKAGES and attribute != "*" else None)


def _refusals(module: Module, reached: Reached) -> str:
    """What is said of public names of a package that are left out."""
    named = [statement.node for statement in module.binding("__all__")]
    public = ast.literal_eval(named[0].value) if named and isinstance(named[0], ast.Assign) else []
    left_out = sorted(set(public) - reached.imports[module.name])
    if not left_out:
        return ""
    name = "amp" + module.name.removeprefix(PACKAGE)
    if module.binding("__getattr__"):
        return _REFUSED_AMONG_OTHERS.format(name=name, left_out=_listed(left_out))
    return _REFUSED.format(name=name)


_REFUSED = """

def __getattr__(name: str) -> object:
    if name.startswith("_"):
        raise AttributeError(name)
    from amp_runtime._core.left_out import told

    raise AttributeError(told(f"{name}.{{name}}"))
"""
_REFUSED_AMONG_OTHERS = '''
_others = __getattr__
_LEFT_OUT = """
{left_out}
"""


def __getattr__(name: str) -> Any:  # type: ignore[no-redef]
    if name in _LEFT_OUT.split():
        from amp_runtime._core.left_out import told

        raise AttributeError(told(f"{name}.{{name}}"))
    return _others(name)
'''


def _listed(names: Sequence[str]) -> str:
    return "\n".join(textwrap.wrap(" ".join(names), 100))


def _filled_in(text: str, uses: Uses, command: str) -> str:
    levels = "O0 to O3" if uses.everything or uses.half_models else "O0 and O1"
    for name, value in (("LEVELS", levels), ("COMMAND", command)):
        text = re.sub(rf"(?<=^{name} = ).*$", json.dumps(value).replace("\\", r"\\"), text, flags=re.MULTILINE)
    return text
