"""Where the loaders of training data are prepared."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import replace

from amp_rules.flow.statements import is_main_guard
from amp_rules.flow.values import Value
from amp_rules.plan.epoch_schedules import EpochSchedules
from amp_rules.plan.model_reads import Taken, assignment_of, may_come_from, taken_from_call
from amp_rules.plan.rebindings import Constructors, Rebinding
from amp_rules.roles.batches import TrainingData
from amp_rules.roles.kinds import is_loader_value
from amp_rules.roles.loaders import Loaders, LoaderUse
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.index import keyword
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope, arguments_of
from amp_rules.source.syntax import walk
from amp_rules.torch.data import LOADER_SAMPLERS
from amp_rules.torch.wrappers import PROGRESS_BARS


def share(program: Program, data: TrainingData, changed: set[Module]) -> tuple[list[Site], list[Rebinding]]:
    """The expressions to wrap and the variables to rebind.

    A loader is prepared where it is made; where it is iterated when it is also evaluated; or at the variable that takes
    it from a function, when nothing else changes in that function's file, or when the same function makes the loaders
    for evaluation.
    """
    schedules = EpochSchedules(program, data)
    evaluated = {value for use in data.evaluated for value in use.values}
    found: dict[ast.AST, Site] = {}
    taken: dict[tuple[ast.AST, str], Rebinding] = {}
    late: set[Value] = set()
    imported = _run_by_imports(program)
    for use in [before_the_bar(program, use) for use in data.uses]:
        sites = _loader_sites(program, use, evaluated | schedules.loaders)
        if use.body not in imported and any(site.body in imported for site in sites):
            sites = [Site(use.module, use.scope, use.body, use.loader)]
        place = _variable_taking(program, use, sites, data, changed) if not use.values & schedules.loaders else None
        if place is not None and blocks.body_of(place.module, place.statement) not in imported:
            whole = _whole_value(program, place)
            if whole is not None:
                found[whole.node] = whole
            else:
                taken[place.statement, place.variable] = Rebinding(
                    place.module, place.statement, place.variable, after=True
                )
            continue
        for site in sites:
            found[site.node] = site
            if site.node is use.loader:
                late |= use.values - evaluated
    kept, rebindings = _rebind(program, list(found.values()), data, schedules)
    constructors = Constructors(program, data)
    rebindings = [constructors.moved(item) for item in rebindings]
    rebound = {(site.body, blocks.path_of(site.node)) for site in found.values() if site not in kept}
    left = {site.node for site in schedules.lengths}
    lengths = [
        site
        for site in _lengths(program, data, list(found.values()), late)
        if site.node not in found and (site.body, blocks.path_of(site.node)) not in rebound
        if site.module.parents[site.node] not in left and not any(_is_below(site, item) for item in rebindings)
    ]
    return [*kept, *lengths], [*dict.fromkeys(rebindings), *taken.values()]


def _variable_taking(
    program: Program, use: LoaderUse, sites: list[Site], data: TrainingData, changed: set[Module]
) -> Taken | None:
    """The variable at which a loader is prepared that is not to be where it is made."""
    if not any(site.module in changed for site in sites):
        place = taken_from_call(program, Site(use.module, use.scope, use.body, use.loader), changed)
    else:
        place = _taken_for_training(program, use, data)
    if place is None and [site.node for site in sites] == [use.loader]:
        place = _given_for_training(program, use, data)
    return place


def _is_below(site: Site, place: Rebinding) -> bool:
    """Whether the variable of an expression is given the prepared loader above it, in its body."""
    if not place.after or blocks.path_of(site.node) != place.variable or site.module is not place.module:
        return False
    same = site.body is blocks.body_of(place.module, place.statement)
    return same and site.module.start(site.statement) > place.module.end(place.statement)


def _run_by_imports(program: Program) -> set[ast.AST]:
    """Bodies that run while the entry's imports do, before ``init``: nothing is shared out yet."""
    modules = {module.tree for module in program.flow.modules if module is not program.entry}
    nodes = [
        node
        for tree in modules
        for statement in tree.body
        if not (isinstance(statement, ast.If) and is_main_guard(statement))
        for node in blocks.walk_own(statement)
    ]
    return {*modules, *program.called_from(nodes)}


def _taken_for_training(program: Program, use: LoaderUse, data: TrainingData) -> Taken | None:
    """The variable that takes the loader for training from a function that makes those for evaluation too.

    None where what is evaluated may be read from that variable.
    """
    evaluated = [before_the_bar(program, other) for other in data.evaluated if not use.values.isdisjoint(other.values)]
    place = None
    if evaluated:
        modules = set(program.flow.modules)
        place = taken_from_call(program, Site(use.module, use.scope, use.body, use.loader), modules)
    if place is None:
        return None
    is_read = any(
        may_come_from(program, place, Site(other.module, other.scope, other.body, other.loader), other.values)
        for other in evaluated
    )
    return None if is_read else place


def _given_for_training(program: Program, use: LoaderUse, data: TrainingData) -> Taken | None:
    """The variable from which a function is given the loader that it trains on, if nothing else reads it.

    The function may be called for each epoch; the variable is assigned once: ``train_batches = loaders["train"]``.
    """
    info = program.function_of(use.body)
    if info is None or not isinstance(use.loader, ast.Name) or use.loader.id not in info.parameters:
        return None
    place = assignment_of(program, Site(use.module, use.scope, use.body, use.loader))
    if place is None or not isinstance(place.statement, ast.Assign) or not place.variable.isidentifier():
        return None
    if len(place.statement.targets) != 1 or not isinstance(place.statement.targets[0], ast.Name):
        return None
    if blocks.loop_around(place.module, place.statement) is not None:
        return None
    target = place.statement.targets[0]
    located, trained = program.locate(target), {item.loader for item in data.uses}
    return place if located is not None and _is_only_trained(program, target, located[1], trained, set()) else None


def _is_only_trained(
    program: Program, variable: ast.Name, scope: Scope, trained: Collection[ast.expr], seen: set[object]
) -> bool:
    """Whether all that is done with a variable is training over what it holds, also by functions that are given it."""
    key = program.flow.key(variable, scope)
    if key is None or key in seen:
        return key is not None
    seen.add(key)
    for node, _, where in program.nodes():
        if not isinstance(node, ast.Name) or node.id != variable.id or not isinstance(node.ctx, ast.Load):
            continue
        if program.flow.key(node, where) != key or node in trained:
            continue
        parent = where.module.parents[node]
        if isinstance(parent, ast.Call) and blocks.path_of(parent.func) == "len":
            continue
        call = where.module.parents[parent] if isinstance(parent, ast.keyword) else parent
        if not isinstance(call, ast.Call) or call.func is node:
            return False
        callees = program.flow.callees(call)
        if not callees:
            return False
        for info in callees:
            names = [name for name, argument in info.bound(call) if argument is node]
            inner = program.flow.scopes.get(info.node)
            arguments = [item for item in arguments_of(info.node) if item.arg in names]
            if inner is None or not arguments or info.name == "__init__":
                return False
            for item in arguments:
                taken = ast.copy_location(ast.Name(item.arg, ast.Load()), info.node)
                if not _is_only_trained(program, taken, inner, trained, seen):
                    return False
    return True


def _whole_value(program: Program, place: Taken) -> Site | None:
    """The call that gives a variable its loader, if that is all that the statement does."""
    statement = place.statement
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    located = program.locate(statement.value) if isinstance(statement.value, ast.Call) else None
    if located is None or isinstance(statement.targets[0], ast.Tuple):
        return None
    body, scope = located
    return Site(place.module, scope, body, statement.value)


def before_the_bar(program: Program, use: LoaderUse) -> LoaderUse:
    """What a progress bar is given, for a variable that holds the bar: ``bar = tqdm(self.train_loader)``."""
    opened = behind_opened_bar(program, use)
    if opened is not use:
        return opened
    name = blocks.path_of(use.loader)
    given = [
        node
        for node in program.nodes_of(use.body)
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For)) and name in blocks.writes(node)
    ]
    made = given[0].value if len(given) == 1 and isinstance(given[0], ast.Assign) else None
    if made is None or isinstance(made, ast.Tuple):
        made = Loaders(program).bar(use.loader, use)
    return _given_to_bar(program, use, made) or use


def behind_opened_bar(program: Program, use: LoaderUse) -> LoaderUse:
    """What a bar shows that a ``with`` around the loop opens: ``with tqdm(loaders[phase]) as bar``."""
    if not isinstance(use.loader, ast.Name):
        return use
    name = use.loader.id
    opened = blocks.opened_around(use.module, use.loader, name)
    if opened is None or any(name in blocks.writes_itself(node) for node in program.nodes_of(use.body)):
        return use
    return _given_to_bar(program, use, opened) or use


def _given_to_bar(program: Program, use: LoaderUse, made: ast.expr | None) -> LoaderUse | None:
    """The use with the one loader that a call of a bar is given, however deep in it; None where it is no such call."""
    if not isinstance(made, ast.Call) or not program.callee_names(made, use.scope) & PROGRESS_BARS:
        return None
    given = made.args[0] if made.args else keyword(made, "iterable")
    inner = list(Loaders(program).direct(given, use)) if given is not None else []
    return replace(use, loader=inner[0].loader, node=inner[0].loader) if len(inner) == 1 else None


def _lengths(program: Program, data: TrainingData, found: list[Site], late: set[Value]) -> Iterator[Site]:
    """Where the length of a loader is asked for that is prepared only where it is iterated, such as for a schedule.

    It is one of ``late``, or held by the same variable, or written alike in the same body: ``loaders["train"]``; also
    where that is given to the function whose loop goes over it.
    """
    lists = data.sliced
    iterated = [
        site
        for site in found
        if isinstance(site.node, (ast.Name, ast.Attribute, ast.Subscript)) and site.node not in lists
    ]
    texts = {(site.body, ast.dump(site.node)) for site in iterated if isinstance(site.node, ast.Subscript)}
    keys = {program.flow.key(site.node, site.scope) for site in iterated if isinstance(site.node, ast.expr)}
    keys -= {None}
    for entry in _given_to_loops(program, iterated):
        texts.update((body, ast.dump(entry.node)) for body in _bodies_alike(program, entry))
    evaluated = {program.flow.key(use.loader, use.scope) for use in data.evaluated}
    if not late and not texts and not keys:
        return
    for node, body, scope in program.nodes():
        if not (isinstance(node, ast.Call) and blocks.path_of(node.func) == "len" and len(node.args) == 1):
            continue
        asked = node.args[0]
        if isinstance(asked, ast.Attribute) and asked.attr in LOADER_SAMPLERS:
            asked = asked.value  # ``len(loader.sampler)``
        values = program.flow.values(asked, scope)
        given = bool(values) and values <= late and all(map(is_loader_value, values))
        key = program.flow.key(asked, scope)
        site = Site(scope.module, scope, body, asked)
        is_same = key in keys and (key not in evaluated or _counts_training(program, data, site))
        if given or is_same or (body, ast.dump(asked)) in texts:
            yield site


def _given_to_loops(program: Program, iterated: list[Site]) -> Iterator[Site]:
    """Yield the entry of a container that all calls of a function give its loop: ``self.train(loaders["train"])``."""
    for site in iterated:
        info = program.function_of(site.body) if isinstance(site.node, ast.Name) else None
        if info is None or not isinstance(site.node, ast.Name) or site.node.id not in info.parameters:
            continue
        given: list[Site] = []
        for caller in program.flow.callers(info):
            outer, argument = calling(caller), info.argument(caller.call, site.node.id)
            given.append(Site(outer.module, outer.scope, outer.body, argument or caller.call))
        if given and all(isinstance(item.node, ast.Subscript) for item in given):
            if len({ast.dump(item.node) for item in given}) == 1:
                yield from given


def _bodies_alike(program: Program, site: Site) -> Iterator[ast.AST]:
    """The body of an expression, and the other methods of its class where that is of the object's own."""
    yield site.body
    info = program.function_of(site.body)
    root = (blocks.path_of(site.node) or "").partition(".")[0]
    if info is not None and info.cls is not None and root == info.receiver:
        yield from (method.node for method in info.cls.methods.values() if method is not info)


def _counts_training(program: Program, data: TrainingData, site: Site) -> bool:
    """Whether a length is one of the training, where a variable is trained on and evaluated too.

    It goes with the loop that it stands in or that changes what is worked out there: ``total /= len(loader)``. Else it
    goes with the loop before, or with the training where there is none, as in front of a schedule.
    """
    assert isinstance(site.node, ast.expr)
    key = program.flow.key(site.node, site.scope)
    if not any(use.body is site.body and program.flow.key(use.loader, use.scope) == key for use in data.uses):
        return False
    trains = [loop.node for loop in data.loops if loop.body is site.body]
    evaluates = [
        blocks.statement_of(use.module, use.node)
        for use in data.evaluated
        if use.body is site.body and program.flow.key(use.loader, use.scope) == key
    ]
    loops = sorted(
        [*((loop, True) for loop in trains), *((loop, False) for loop in evaluates)],
        key=lambda item: site.module.start(item[0]),
    )
    around = list(site.module.ancestors(site.node))
    inside = [is_training for loop, is_training in loops if loop in around]
    if inside:
        return inside[-1]
    statement = blocks.statement_of(site.module, site.node)
    paths = {path for node in around if isinstance(node, ast.expr) for path in blocks.reads(node)}
    if isinstance(statement, ast.AugAssign):
        paths |= blocks.writes(statement)
    changing = {is_training for loop, is_training in loops if paths & blocks.writes(loop)}
    if len(changing) == 1:
        return changing.pop()
    before = [is_training for loop, is_training in loops if site.module.start(loop) < site.module.start(statement)]
    return before[-1] if before else True


def _rebind(
    program: Program, sites: list[Site], data: TrainingData, schedules: EpochSchedules
) -> tuple[list[Site], list[Rebinding]]:
    """Tell expressions to wrap from variables to rebind, because the function asks for their length too.

    What is evaluated as well is not rebound where other reads may hand it to what evaluates; nor is that whose whole
    length a schedule needs.
    """
    whole = {value for use in data.evaluated for value in use.values}
    evaluated = {program.flow.key(use.loader, use.scope) for use in data.evaluated}
    wrapped = {site.node for site in sites}
    # A list of batches may still be shuffled, and its length is that of all: only what the loop iterates is prepared.
    lists = data.sliced
    kept: list[Site] = []
    found: dict[Rebinding, None] = {}
    for site in sites:
        if site.node in lists:
            kept.append(site)
            continue
        path = blocks.path_of(site.node)
        is_variable = isinstance(site.node, (ast.Name, ast.Attribute)) and path is not None
        others = [
            node
            for node in program.nodes_of(site.body)
            if isinstance(node, (ast.Name, ast.Attribute)) and node is not site.node and blocks.path_of(node) == path
        ]
        key = program.flow.key(site.node, site.scope) if isinstance(site.node, ast.expr) else None
        is_evaluated = isinstance(site.node, ast.expr) and not whole.isdisjoint(
            program.flow.values(site.node, site.scope)
        )
        # Where each read takes batches for the training, as `iter(loader)` once more, nothing else is given it. An
        # attribute may be read elsewhere.
        own = wrapped if isinstance(site.node, ast.Name) else set()
        is_handed_on = any(_is_argument(site.module, node) for node in others if node not in own)
        # A function that assigns a variable of the file would have one of its own, which nothing is assigned before.
        is_others = isinstance(site.node, ast.Name) and site.scope.owner(site.node.id).node is not site.body
        is_whole = isinstance(site.node, ast.expr) and not schedules.loaders.isdisjoint(
            program.flow.values(site.node, site.scope)
        )
        if (
            not is_variable
            or not others
            or is_others
            or key in evaluated
            or (is_evaluated and is_handed_on)
            or is_whole
        ):
            kept.append(site)
            continue
        assert path is not None
        found[Rebinding(site.module, _before_use(site, path), path)] = None
    return kept, list(found)


def _is_argument(module: Module, node: ast.AST) -> bool:
    """Whether a function is given a loader, other than one that asks for its length; in a container, any may be."""
    parent = module.parents[node]
    if isinstance(parent, (ast.Dict, ast.List, ast.Tuple, ast.Set)):
        return True
    call = module.parents[parent] if isinstance(parent, ast.keyword) else parent
    return isinstance(call, ast.Call) and call.func is not node and blocks.path_of(call.func) != "len"


def _before_use(site: Site, path: str) -> ast.stmt:
    """The first statement of the body, or of the block in it, or the first after the variable was assigned there."""
    suite: list[ast.stmt] = list(getattr(site.body, "body", []))
    while assigned := [index for index, item in enumerate(suite) if path in {*blocks.writes(item), *_imports(item)}]:
        holding = next(index for index, item in enumerate(suite) if site.node in set(walk(item)))
        if holding not in assigned:
            after = min(assigned[-1] + 1, holding)
            if path in _imports(suite[after - 1]):
                # Not among the imports, which ``init`` follows.
                after = next(index for index in range(after, holding + 1) if _names(suite[index], path))
            return suite[after]
        # One statement, as ``if __name__ == "__main__":``, holds both the assignment and the use.
        inner = [
            block for block in blocks.suites(suite[holding]) if any(site.node in set(walk(item)) for item in block)
        ]
        if not inner:
            return suite[holding]
        suite = list(inner[0])
    has_docstring = isinstance(suite[0], ast.Expr) and isinstance(suite[0].value, ast.Constant)
    return suite[1] if has_docstring and len(suite) > 1 else suite[0]


def _imports(item: ast.stmt) -> set[str]:
    """The names that a statement imports, in a ``try`` too."""
    found = (node for node in blocks.walk_own(item) if isinstance(node, (ast.Import, ast.ImportFrom)))
    return {alias.asname or alias.name for node in found for alias in node.names}


def _names(item: ast.stmt, path: str) -> bool:
    """Whether a statement reads a variable."""
    return any(blocks.path_of(node) == path for node in blocks.walk_own(item))


def _loader_sites(program: Program, use: LoaderUse, evaluated: set[Value]) -> list[Site]:
    here = Site(use.module, use.scope, use.body, use.loader)
    made: list[Site] = []
    for value in sorted(use.values, key=lambda item: getattr(item.site, "lineno", 0)):
        call = value.site
        located = program.locate(call) if isinstance(call, ast.Call) else None
        if value in evaluated or located is None or not isinstance(call, ast.Call):
            return [here]
        body, scope = located
        targets = program.flow.values(call.func, scope)
        if len(targets) != 1 or not is_loader_value(value):
            return [here]
        if value.kind == "instance" and program.flow.key(use.loader, use.scope) is None:
            return [here]
        made.append(Site(scope.module, scope, body, call))
    return made or [here]
