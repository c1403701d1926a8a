"""Libraries' data sets that are worked up on their first use, and kept in a folder that all processes share."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.values import ClassInfo
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk
from amp_rules.torch.data import (
    CACHE_KEYWORDS,
    CACHED_BASES,
    CACHED_BASES_RUN,
    CACHED_DATASETS,
    FETCHING_FAMILIES,
    LAZY_SPLITTERS,
    TAKES_TURNS_ITSELF,
)


def builds_cache(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether a call fills a folder of data where it finds none."""
    # ``getattr(datasets, name)(...)`` says it without a name.
    names = program.names(call.func, scope)
    if any(name.startswith(FETCHING_FAMILIES) or _is_cached(name) for name in names):
        return True
    if any(_runs_on_first_use(info) for info in _classes(program, call, scope)):
        return True
    if asks_for_folds(program, call, scope):
        return True
    is_of_library = bool(names) and not program.flow.callees(call)
    return is_of_library and not any(_writes_nothing_yet(name) for name in names) and _names_a_cache(call)


def asks_for_folds(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether a call gives the folds of a split, which is written when the first of them is asked for."""
    if not (isinstance(call.func, ast.Attribute) and call.func.attr == "split"):
        return False
    return any(value.name.startswith(LAZY_SPLITTERS) for value in program.flow.values(call.func.value, scope))


def folds_of_training(program: Program) -> Iterator[tuple[Site, ast.stmt]]:
    """Calls that give a training loop its folds, with the loop: that cannot run on one process after the other."""
    for call, body, scope in program.calls():
        site = Site(scope.module, scope, body, call)
        loop = site.statement
        if isinstance(loop, ast.For) and asks_for_folds(program, call, scope) and program.runs_backward(loop):
            if any(node is call for node in walk(loop.iter)):
                yield site, loop


def run_by_constructors(program: Program, call: ast.Call, scope: Scope) -> Iterator[ast.AST]:
    """The bodies of a data set's methods that the library runs when one is made and its files are missing."""
    for info in _classes(program, call, scope):
        if _is_of_cached_base(info):
            found = (info.find_method(name) for name in CACHED_BASES_RUN)
            yield from (method.node for method in found if method is not None)


def _classes(program: Program, call: ast.Call, scope: Scope) -> Iterator[ClassInfo]:
    yield from (value.ref for value in program.flow.values(call.func, scope) if value.kind == "class")


def _runs_on_first_use(info: ClassInfo) -> bool:
    return _is_of_cached_base(info) and any(info.find_method(name) is not None for name in CACHED_BASES_RUN)


def _is_of_cached_base(info: ClassInfo) -> bool:
    bases = info.external_bases()
    return any(base in CACHED_BASES or _is_cached(base) for base in bases)


def _is_cached(name: str) -> bool:
    """Whether it is a class of a package whose data sets all keep what they have made."""
    package, _, own = name.rpartition(".")
    return own[:1].isupper() and f"{package}.".startswith(CACHED_DATASETS)


def _writes_nothing_yet(name: str) -> bool:
    is_lazy = name.startswith(LAZY_SPLITTERS) and name.rpartition(".")[2][:1].isupper()
    return is_lazy or name.partition(".")[0] in TAKES_TURNS_ITSELF


def _names_a_cache(call: ast.Call) -> bool:
    return any(
        item.arg in CACHE_KEYWORDS and not (isinstance(item.value, ast.Constant) and not item.value.value)
        for item in call.keywords
    )
