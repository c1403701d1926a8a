"""Preparing a model behind the condition under which the script gave it to Apex: it is trained without that, too."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from amp_rules.plan.context import Change
from amp_rules.plan.drafts import Draft, drafted
from amp_rules.plan.prepared_always import Gap, earlier, gaps
from amp_rules.plan.step_conditions import may_be_none
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.scopes import FunctionNode
from amp_rules.source.syntax import is_none, walk
from amp_rules.text.actions import Action, Insert, Remove, Unwrap
from amp_rules.torch.models import TELLS_OF_MODEL

_MAX_CONDITIONS = 4
"""Conditions around one place; more of them were not seen, and each one asks for the program anew."""
_LEAVES = (ast.Return, ast.Raise, ast.Break, ast.Continue)


def prepared_beyond(
    program: Program, drafts: Mapping[Path, Draft], preparing: frozenset[str]
) -> tuple[Program, dict[Path, Draft]] | None:
    """The program whose models are prepared on each way to a training step, and its drafts.

    None where they are prepared so already, or cannot be.

    Args:
        program: the program without Apex.
        drafts: its files, by their paths.
        preparing: the names of what prepares a model.
    """
    found = {path: replace(draft, edits=list(draft.edits)) for path, draft in drafts.items()}
    for turn in range(_MAX_CONDITIONS + 1):
        missing = list(gaps(program, preparing))
        if not missing:
            return (program, found) if turn else None
        by_condition: dict[ast.AST, list[Gap]] = {}
        for gap in missing:
            by_condition.setdefault(gap.condition.node, []).append(gap)
        for together in by_condition.values():
            change = _moved(program, together)
            if change is None:
                return None
            draft = found[change.module.path]
            draft.module = change.module  # the same text, as the program has read it
            draft.make([change])
        program = drafted(program, found)
    return None


def _moved(program: Program, together: list[Gap]) -> Change | None:
    """The edit that prepares models behind an ``if``, and not in one of its branches."""
    from amp_rules.rewrites.apex.initialize import RULE

    site, branch = together[0].site, together[0].condition.node
    module = site.module
    statements = [gap.site.statement for gap in together]
    assert isinstance(branch, ast.If)
    suite = next((items for items in (branch.body, branch.orelse) if set(statements) <= set(items)), None)
    loops = [item for item in blocks.enclosing(module, branch) if isinstance(item, blocks.LOOPS)]
    if suite is None or loops or blocks.is_elif(module, branch):
        return None
    copies = {copy: name for item in statements for copy, name in _put_back(site, item, suite)}
    statements += copies
    first = min(map(suite.index, statements))
    after = [item for item in suite[first:] if item not in statements]
    other = branch.orelse if suite is branch.body else branch.body
    held = {path for item in statements for path in blocks.writes(item)}
    if not all(isinstance(item, ast.Assign) and blocks.reads(item.value) & held for item in statements):
        return None  # another name holds what is prepared
    kept = held - set(copies.values())
    if not all(_holds_model(program, path, together[0].condition, site) for path in kept):
        return None
    if not all(_leaves_alone(program, item, held, site) for item in (*after, *other)):
        return None
    if any(isinstance(node, _LEAVES) for item in after for node in walk(item)):
        return None
    actions: list[Action]
    if len(statements) == len(branch.body) and not branch.orelse:
        if any(isinstance(node, (ast.Call, ast.NamedExpr, ast.Await)) for node in walk(branch.test)):
            return None
        actions = [Unwrap(branch)]
    else:
        lines = [module.code(item) for item in sorted(set(statements), key=suite.index)]
        actions = [Insert(branch, "\n".join(lines), after=True), *map(Remove, dict.fromkeys(statements))]
    message = f"without `{module.text(branch.test)}` it is trained too: its gradients are averaged there as well"
    return Change(RULE, module, branch, message, actions)


def _put_back(site: Site, statement: ast.stmt, suite: Sequence[ast.stmt]) -> Iterator[tuple[ast.stmt, str]]:
    """The statement that puts what is prepared where it was, with the name that it has between, which nothing else has.

    ``model = amp.prepare_model(self.network)``, and ``self.network = model`` below that.
    """
    target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
    if not isinstance(target, ast.Name) or not isinstance(site.body, FunctionNode):
        return
    assert isinstance(statement, ast.Assign)
    for item in suite[suite.index(statement) + 1 :]:
        if not (isinstance(item, ast.Assign) and len(item.targets) == 1 and isinstance(item.value, ast.Name)):
            continue
        path = blocks.path_of(item.targets[0])
        if item.value.id != target.id or path is None or path not in blocks.reads(statement.value):
            continue
        inside = list(walk(site.body))
        named = [node for node in inside if isinstance(node, ast.Name) and node.id == target.id]
        is_shared = any(
            (isinstance(node, ast.arg) and node.arg == target.id)
            or (isinstance(node, (ast.Global, ast.Nonlocal)) and target.id in node.names)
            for node in inside
        )
        if len(named) == 2 and not is_shared:
            yield item, target.id
        return


def _holds_model(program: Program, path: str, branch: Site, site: Site) -> bool:
    """Whether a variable has its model before the ``if``: not one that is made in it, and not None."""
    owner, _, attribute = path.rpartition(".")
    if owner:
        inside = set(walk(branch.node))
        stores = [
            (scope.module, node)
            for node, _, scope in program.nodes()
            if isinstance(node, ast.Attribute) and node.attr == attribute and isinstance(node.ctx, ast.Store)
        ]
        given = [blocks.statement_of(where, node) for where, node in stores if node not in inside]
    else:
        given = [
            item
            for whole in earlier(branch)
            for item in blocks.walk_own(whole)
            if isinstance(item, (ast.Assign, ast.AnnAssign)) and path in blocks.writes(item)
        ]
        if not given and _is_given(program, path, branch):
            return True
    return bool(given) and not any(may_be_none(program, item) for item in given)


def _is_given(program: Program, name: str, site: Site) -> bool:
    """Whether a variable is a parameter of the function that every call gives."""
    info = program.function_of(site.body)
    if info is None or name not in info.positional:
        return False
    given = [info.argument(caller.call, name) for caller in program.flow.callers(info)]
    return not any(item is None or is_none(item) for item in given)


def _leaves_alone(program: Program, statement: ast.stmt, held: set[str], site: Site) -> bool:
    """Whether running a statement makes no more of the models than to ask for their parameters, as a log does."""
    attributes = {path.rpartition(".")[2] for path in held if "." in path}
    owners = {path.rpartition(".")[0] for path in held if "." in path}
    parents = site.module.parents
    for node in walk(statement):
        if isinstance(node, (ast.Name, ast.Attribute)):
            path = blocks.path_of(node)
            if path in held and not _is_asked(node, parents):
                return False
            if path in owners and not isinstance(parents[node], ast.Attribute):
                return False  # the object that keeps the model goes somewhere
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not program.flow.callees(node):
            if blocks.path_of(node.func.value) in owners:
                return False  # a method of it that is not known
    for body in program.called_from(walk(statement)):
        module = program.module_of(body)
        for node in walk(body):
            name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None
            is_same = name in (attributes if isinstance(node, ast.Attribute) else held)
            if is_same and isinstance(node, ast.Name):
                info = program.function_of(body)
                is_same = info is None or name not in info.parameters
            if is_same and (module is None or not _is_asked(node, module.parents)):
                return False
    return True


def _is_asked(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> bool:
    """``model.parameters()``, ``model.head.parameters()``: what gives nothing that a wrapper would change."""
    asked = parents[node]
    while isinstance(asked, ast.Attribute) and asked.attr not in TELLS_OF_MODEL:
        asked = parents[asked]
    return isinstance(asked, ast.Attribute)
