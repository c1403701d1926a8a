"""Orders and splits of data that are drawn above the start: no process has the random numbers of another there."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.statements import is_main_guard, is_under_main_guard
from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.plan.file_names import name_of
from amp_rules.plan.precision import Precision
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.index import keyword
from amp_rules.source.modules import Module
from amp_rules.source.scopes import FunctionNode, Scope
from amp_rules.source.syntax import is_none
from amp_rules.torch.data import ARRAY_SPLITS, DATA_PARTS, LOADERS_OF_TORCH, SHUFFLES, SHUFFLES_IN_PLACE, SPLITS
from amp_rules.torch.replication import SEEDS


def reasons(program: Program, precision: Precision) -> Iterator[Declined]:
    """Yield draws in the own body of a file that runs before ``amp.init``, where they decide which data is trained on.

    Such a file is one that others import, or the script itself where all that is prepared stands in functions. A seed
    that is set above makes the draws of all processes the same.
    """
    for site in program.calls_to(ARRAY_SPLITS | SPLITS | SHUFFLES):
        call, module = site.node, site.module
        assert isinstance(call, ast.Call)
        if not isinstance(site.body, ast.Module) or not _is_above_the_start(module, call, precision):
            continue
        family = _family(program, call, site.scope)
        if family is None or _is_seeded(program, module, call, family):
            continue
        read = _reading(program, site)
        if read is None:
            continue
        line = f"line {read.told_line}" + ("" if read.module is module else f" of {name_of(program, read.module)}")
        yield declining.decline(
            declining.LOCAL_DECISION,
            module,
            call,
            f"`{module.text(call)}` draws above `amp.init`, with random numbers of its own on each process, and "
            f"{line} takes its data by it: each process would train on another split",
            f"set a seed above it (`{_SEEDS[family]}`), or draw in the function that trains, below `amp.init`",
        )


_BINDING = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For)
_SEEDS = {"numpy": "np.random.seed(0)", "random": "random.seed(0)", "torch": "torch.manual_seed(0)"}


def _is_above_the_start(module: Module, call: ast.Call, precision: Precision) -> bool:
    if is_under_main_guard(module, call):
        return False
    if not module.is_entry:
        return True
    starts = [home.statement for home in precision.homes if home.module is module]
    starts += [site.statement for site in precision.backwards if site.module is module]
    return all(_is_in_function_or_guard(module, statement) for statement in starts)


def _is_in_function_or_guard(module: Module, node: ast.AST) -> bool:
    return any(
        isinstance(above, FunctionNode) or (isinstance(above, ast.If) and is_main_guard(above))
        for above in module.ancestors(node)
    )


def _family(program: Program, call: ast.Call, scope: Scope) -> str | None:
    """Whose random numbers a call takes for an order or a split; None where it takes none, or has a seed of its own."""
    names = program.callee_names(call, scope)
    if names & ARRAY_SPLITS:
        given = keyword(call, "random_state")
        return "numpy" if given is None or is_none(given) else None
    if not names & (SPLITS | SHUFFLES) or keyword(call, "generator") is not None:
        return None
    return min(names).split(".")[0]


def _is_seeded(program: Program, module: Module, call: ast.Call, family: str) -> bool:
    """Whether a seed is set above: in the file, in one that it imports, or in the script above its imports."""
    entry = program.entry
    last = max((item.lineno for item in entry.tree.body if isinstance(item, (ast.Import, ast.ImportFrom))), default=0)
    seeds = [
        site
        for site in program.calls_to(frozenset(name for name in SEEDS if name.split(".")[0] == family))
        if isinstance(site.node, ast.Call) and site.node.args and not is_none(site.node.args[0])
    ]
    nodes, bodies = {site.node for site in seeds}, {site.body for site in seeds}
    for other, body, scope in program.calls() if seeds else ():
        if not isinstance(body, ast.Module):
            continue
        if scope.module is module:
            is_above = other.lineno < call.lineno
        else:
            is_above = not scope.module.is_entry or other.lineno < last
        if is_above and (other in nodes or not bodies.isdisjoint(program.called_from({other}))):
            return True
    return False


def _reading(program: Program, site: Site) -> Site | None:
    """Where what is drawn becomes data: in a dataset, in what a loader is given, or in a function that trains."""
    assert isinstance(site.node, ast.Call)
    drawn = _drawn(program, site)
    for module in program.flow.modules:
        known = drawn if module is site.module else _imported(module, site.module, drawn)
        if not known:
            continue
        for node in module.nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in known:
                body = blocks.body_of(module, node)
                scope = program.flow.scopes.get(body)
                if scope is not None and _becomes_data(program, module, node, body, scope):
                    return Site(module, scope, body, node)
    return None


def _drawn(program: Program, site: Site) -> set[str]:
    """The variables of the file that rest on a draw."""
    assert isinstance(site.node, ast.Call)
    first = site.statement
    names = {path for path in blocks.writes(first) if "." not in path}
    if program.callee_names(site.node, site.scope) & SHUFFLES_IN_PLACE:
        names |= {path for item in site.node.args[:1] if (path := blocks.path_of(item)) is not None}
    for statement in site.module.tree.body:
        if statement.lineno > first.lineno and isinstance(statement, _BINDING):
            if names & blocks.reads(statement):
                names |= {path for path in blocks.writes(statement) if "." not in path}
    return names


def _imported(module: Module, source: Module, names: set[str]) -> set[str]:
    """Those of the names that a file imports from another, under the names that they have there."""
    found: set[str] = set()
    for node in module.nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").rpartition(".")[2] == source.path.stem:
            for alias in node.names:
                if alias.name == "*":
                    found |= names
                elif alias.name in names:
                    found.add(alias.asname or alias.name)
    return found


def _becomes_data(program: Program, module: Module, node: ast.Name, body: ast.AST, scope: Scope) -> bool:
    if _is_of_dataset(program.function_of(body)) or any(site.body is body for site in program.backwards):
        return True
    for above in module.ancestors(node):
        if above is body:
            return False
        if isinstance(above, ast.Call):
            names = program.callee_names(above, scope)
            takes = names & LOADERS_OF_TORCH or any(name.rpartition(".")[2] in DATA_PARTS for name in names)
            made = (info for info in program.flow.callees(above) if info.name == "__init__")
            if takes or any(map(_is_of_dataset, made)):
                return True
    return False


def _is_of_dataset(info: FunctionFacts | None) -> bool:
    """Whether a function is a method of a dataset."""
    return info is not None and info.cls is not None and "__getitem__" in info.cls.methods
