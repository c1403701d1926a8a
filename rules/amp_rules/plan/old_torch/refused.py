"""Places that a current PyTorch, NumPy or Python refuses, in a script that is migrated and not modernized: told."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator

from amp_rules import rewrites
from amp_rules.plan.context import Change
from amp_rules.plan.file_names import more_places
from amp_rules.plan.notes import REFUSED, note
from amp_rules.plan.old_torch import removed
from amp_rules.plan.old_torch.old import OldProgram
from amp_rules.plan.report import Note
from amp_rules.roles.program import Program
from amp_rules.roles.uncalled import uncalled
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import own_name, walk
from amp_rules.torch import old_torch as old_names

_VERSIONS = frozenset({"__version__", "version_info", "version"})


def _any_of(*names: str) -> str:
    return rf"\b(?:{'|'.join(sorted({name.rpartition('.')[2] for name in names}))})\b"


_GONE = "gone"
"""What has no counterpart, and therefore no code."""

# What a file must have in it for a rewrite to find anything there: few files do, and others are not looked through.
_WORDS = {
    code: re.compile(words)
    for code, words in {
        "AMP505": r"\.data\s*\[\s*0\s*\]",
        "AMP507": _any_of(*old_names.GONE_TRANSFORMS),
        "AMP509": r"\bretain_variables\b",
        "AMP511": r"\b(?:torch|th)\.(?:load|save)\b|from torch import",
        "AMP513": r"\b1\s*-\s*\S",
        "AMP514": _any_of(*old_names.NUMPY),
        "AMP515": r"\bcollections\b",
        "AMP516": r"\bverbose\b",
        "AMP518": _any_of("symeig", "matrix_rank", *old_names.SOLVERS),
        "AMP519": _any_of(*old_names.MASKED),
        "AMP521": r"\b_six\b",
        "AMP523": r"\.view\(",
        "AMP524": r"\bfull\(",
        _GONE: "|".join(
            [
                _any_of(*old_names.GONE.keys() - old_names.GONE_MODULES),
                *map(re.escape, sorted(old_names.GONE_MODULES)),
                r"\bscatter(?:_add)?_?\(",
                r"\bimport torch\.[\w.]*\.[A-Z]",
                r"\bargs=\(\w+\)",
                r"\bFunction\b",
            ]
        ),
    }.items()
}


def _shown(module: Module, change: Change) -> str:
    return module.text(change.node)


def _function(change: Change) -> str:
    return change.message.partition("`")[2].partition("`")[0]


def _of_numpy(module: Module, change: Change) -> str:
    text = module.text(change.node)
    # NumPy 2 has these two again, of other types.
    return "" if text.endswith((".bool", ".long")) else f"`{text}` raises AttributeError with a current NumPy"


def _of_linear_algebra(module: Module, change: Change) -> str:
    name = _function(change)
    return f"`{name}` raises RuntimeError, as PyTorch has taken it out" if name not in old_names.STILL_THERE else ""


def _renamed(module: Module, change: Change) -> str:
    name = _function(change)
    is_gone = name in old_names.GONE_TRANSFORMS
    return f"torchvision has no `{name}` any more" if is_gone else ""


_OF_A_NAME = frozenset({"AMP507", "AMP514", "AMP518"})
"""Rewrites of names: each name is told by itself, with the places where it stands."""

# What happens at a place of each rewrite; nothing where a current PyTorch takes it.
_WHY: dict[str, Callable[[Module, Change], str]] = {
    "AMP505": lambda module, found: (
        f"`{_shown(module, found)}` raises IndexError where the tensor has no dimension, as losses of torch have none "
        "since PyTorch 0.4"
    ),
    "AMP507": _renamed,
    "AMP509": lambda module, found: "`backward` takes no `retain_variables` any more, and raises TypeError",
    "AMP511": lambda module, found: (
        f"`{_shown(module, found)}` raises UnpicklingError since PyTorch 2.6, as {found.message.partition(';')[0]}"
    ),
    "AMP513": lambda module, found: f"{found.message}: `{_shown(module, found)}` raises RuntimeError",
    "AMP514": _of_numpy,
    "AMP515": lambda module, found: f"{found.message} alone since Python 3.10, and raises an error where it is read",
    "AMP516": lambda module, found: "schedulers of a current PyTorch take no `verbose`, and raise TypeError",
    "AMP518": _of_linear_algebra,
    "AMP519": lambda module, found: f"{found.message} alone, and raises RuntimeError",
    "AMP521": lambda module, found: "`torch._six` is gone since PyTorch 2.0: the line raises an error",
    "AMP523": lambda module, found: f"{found.message}: it raises RuntimeError where there are several rows",
    "AMP524": lambda module, found: f"{found.message}: it raises RuntimeError",
}


def notes(program: Program) -> Iterator[Note]:
    """Yield one for the first place of each kind that the program can come to, with the number of the others."""
    modules = {module: _codes(module) for module in program.flow.modules}
    wanted = frozenset[str]().union(*modules.values())
    if not wanted:
        return
    old = OldProgram(program, [module for module, codes in modules.items() if codes])
    found: defaultdict[tuple[str, str], list[tuple[Module, ast.AST, str]]] = defaultdict(list)
    for rewrite in rewrites.of_old_torch():
        code = rewrite.rule.code
        for change in rewrite.changes(old) if code in wanted else ():
            why = _WHY[code](change.module, change)
            kind = why if code in _OF_A_NAME else ""
            found[f"`--modernize` mends it ({code})", kind].append((change.module, change.node, why))
    if _GONE in wanted:
        removed.report(old)
    for module, node, what, recipe in old.refused:
        found[recipe, ""].append((module, node, what))
    for (recipe, _), several in found.items():
        places = [item for item in several if item[2] and _is_met(program, *item[:2])]
        if places:
            places.sort(key=lambda item: (str(item[0].path), item[0].start(item[1])))
            module, node, why = places[0]
            others = more_places(program, [item[:2] for item in places])
            yield note(REFUSED, module, node, f"{why}{others}; {recipe}")


def _codes(module: Module) -> frozenset[str]:
    known: frozenset[str] | None = module.kept.get("refused")
    if known is None:
        text = "\n".join(module.lines)
        known = module.kept["refused"] = frozenset(code for code, words in _WORDS.items() if words.search(text))
    return known


def _is_met(program: Program, module: Module, node: ast.AST) -> bool:
    """Whether the program may run a place, and has no answer of its own to what an old or a new version lacks."""
    body = blocks.body_of(module, node)
    if not program.runs(body) or body in uncalled(program):
        return False
    for above in module.ancestors(node):
        if isinstance(above, ast.Try):
            return False
        if isinstance(above, (ast.If, ast.IfExp)) and any(map(_asks_version, walk(above.test))):
            return False
    return True


def _asks_version(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return own_name(node.func) == "hasattr"
    return isinstance(node, ast.Attribute) and node.attr in _VERSIONS
