"""Noise that every process draws alike for its own samples: all are seeded with one number, and nothing parts them."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from amp_rules.checks.common.rank_branches import names_rank
from amp_rules.checks.common.rank_paths import Reach
from amp_rules.plan.file_names import name_of
from amp_rules.plan.own_ddp.averaging import may_average
from amp_rules.plan.own_ddp.given_runs import run_by_all
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.spawned import Spawned
from amp_rules.roles.path_objects import assigned
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.index import literal
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk
from amp_rules.torch.distributed import SPAWNS
from amp_rules.torch.replication import CLOCKS, DRAWING_METHODS, LIBRARY_SEEDS, MADE_EMPTY, NOISE, SEEDS

_SEEDS = frozenset(name for name in SEEDS if name.startswith("torch.")) | LIBRARY_SEEDS
OF_WORKERS = frozenset(name for name in _SEEDS if ".cuda." not in name)
"""What seeds the workers of a loader: the generator of the CPU alone."""
_DRAWING = ("random.", "numpy.random.")
"""Modules whose functions draw by a generator that the system seeds, until the script does."""
_MAX_NAMES = 5
"""Names and functions between a setting and the dictionary that has it."""

_MAX_CALLERS = 3
"""Functions and names between a number and what is seeded with it: ``seed``, ``set_seed``, ``main``."""


def drawn_alike(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first such draw of the training."""
    yield from itertools.islice(itertools.chain(_of_torch(own), _of_batches(own)), 1)


def _of_batches(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield draws of a batch by Python's or NumPy's generator: ``data[np.random.choice(len(data), 8)]``."""
    for site in own.data.random.values():
        for call in walk(site.node) if site.module in own.modules else ():
            located = own.program.locate(call) if isinstance(call, ast.Call) else None
            if located is None or not isinstance(call, ast.Call):
                continue
            names = own.program.callee_names(call, located[1])
            library = next((item for item in _DRAWING if any(name.startswith(item) for name in names)), None)
            first = alike_seed(own, frozenset({f"{library}seed"})) if library is not None else None
            if first is None or names & SEEDS or own.reach(site.module, call) is not Reach.EVERY:
                continue
            if _is_cut_by_rank(own, Site(site.module, site.scope, site.body, call)):
                continue
            so = f"{seeded_alike(own, first, site.module)}, so that `{site.module.text(call)}` draws the same numbers"
            yield site.module, call, f"{so} in each: add the rank to the seed {once_made(own)}"


def _of_torch(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield draws of noise, which comes of torch's generators."""
    first = alike_seed(own)
    if first is None:
        return
    draws = [*own.program.calls_to(NOISE), *filled(own)]
    loops = _loops(own) if draws else []
    bodies = own.program.called_from([node for loop in loops for node in walk(loop)])
    draws = [site for site in draws if site.body in bodies or any(loop in _around(site) for loop in loops)]
    run = run_by_all(own, loops) if draws else None
    for site in draws:
        if site.module not in own.modules or has_generator(site.node) or _is_single(site):
            continue
        if run is not None and site.node not in run:
            continue
        if own.reach(site.module, site.node) is not Reach.EVERY or own.is_of_first_alone(site.module, site.node):
            continue
        if own.program.without_gradients(site.module, site.node, site.body) or _is_looked_at_alone(own, site):
            continue
        if _is_cut_by_rank(own, site):
            continue
        # What the first process draws alone puts its stream ahead of the others.
        alone = any(own.is_of_first_alone(other.module, other.node) for other in own.program.calls_to(NOISE))
        what = "draws from one stream of numbers in each" if alone else "draws the same numbers in each"
        text = (
            f"{seeded_alike(own, first, site.module)}, so that `{site.module.text(site.node)}` {what}: add the rank to "
            f"the seed {once_made(own)}"
        )
        yield site.module, site.node, text


def _around(site: Site) -> list[ast.stmt]:
    return list(blocks.enclosing(site.module, site.node))


def filled(own: OwnDdp) -> Iterator[Site]:
    """Yield the draws into memory that was made for them: ``torch.empty_like(mean).normal_()``."""
    for call, body, scope in own.program.calls():
        made = call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr in DRAWING_METHODS else None
        if isinstance(made, ast.Call) and own.program.callee_names(made, scope) & MADE_EMPTY:
            yield Site(scope.module, scope, body, call)


def _is_single(site: Site) -> bool:
    """Whether one number is drawn, which decides for all processes alike: ``if torch.rand(1).item() > 0.5:``."""
    assert isinstance(site.node, ast.Call)
    asked = site.module.parents[site.node]
    is_one = [literal(item) for item in site.node.args] == [1]
    return is_one or (isinstance(asked, ast.Attribute) and asked.attr == "item")


def trains_together(own: OwnDdp) -> bool:
    """Whether a wrapper averages the gradients, or the script by hand, for all that is known."""
    return bool(own.wraps) or may_average(own.program)


def once_made(own: OwnDdp) -> str:
    """Where seeds may part: the weights that a model begins with are alike."""
    return "once the model is wrapped" if own.wraps else "once the model has the weights that all begin with"


def alike_seed(own: OwnDdp, names: frozenset[str] = _SEEDS) -> Site | None:
    """The first call that seeds generators alike on every process, torch's if nothing else is asked for.

    None where something parts them.
    """
    found = [site for site in own.program.calls_to(names) if site.body not in own.uncalled]
    seeds = [site for site in found if not any(_seeds_again(own, site, other) for other in found)]
    if not seeds or not trains_together(own):
        return None
    spawned = Spawned(own) if seeds and own.program.calls_to(SPAWNS) else None
    # What seeds the process that starts the others does not seed these, but for what each does at import.
    reached = [
        site
        for site in seeds
        if (spawned and isinstance(site.body, ast.Module)) or own.reach(site.module, site.node) is Reach.EVERY
        if spawned is None or spawned.run(site) or spawned.is_beside(site)
    ]
    if not reached or any(differs(own, site, site.node) for site in seeds):
        return None
    # What starts the processes tells them the number that it has drawn.
    if spawned is None and any(_is_drawn(own, site, site.node) for site in seeds):
        return None
    return reached[0]


def _seeds_again(own: OwnDdp, site: Site, other: Site) -> bool:
    """Whether a call below another one seeds the same generator again for certain: nothing is left of the first."""
    if site.body is not other.body or site.line >= other.line or other.module is not site.module:
        return False
    around = {site.body, *blocks.enclosing(site.module, site.node)}
    is_certain = blocks.place(other.module, other.statement).parent in around
    same = own.program.callee_names(site.node, site.scope) & own.program.callee_names(other.node, other.scope)  # type: ignore[arg-type]
    return is_certain and bool(same)


def _is_drawn(own: OwnDdp, site: Site, node: ast.AST, depth: int = _MAX_CALLERS) -> bool:
    """Whether each process may draw a seed for itself, or take it from its clock: ``seed = random.randint(1, 999)``."""
    for part in walk(node):
        if not isinstance(part, ast.Call) or part is site.node or (located := own.program.locate(part)) is None:
            continue
        names = own.program.callee_names(part, located[1])
        if any((name.startswith(_DRAWING) and name not in SEEDS) or name in CLOCKS for name in names):
            return True
    for part in walk(node) if depth else ():
        if not isinstance(part, (ast.Name, ast.Attribute)) or not isinstance(part.ctx, ast.Load):
            continue
        values = [(value, site) for value in assigned(own.program, part, site.scope)]
        if any(_is_drawn(own, where, value, depth - 1) for value, where in (*values, *_given(own, site, part))):
            return True
    return False


def _given(own: OwnDdp, site: Site, node: ast.expr) -> Iterator[tuple[ast.expr, Site]]:
    """Yield what callers give a parameter of the function around a place; nothing where it is another variable."""
    info = own.program.function_of(site.body)
    if info is None or not isinstance(node, ast.Name) or node.id not in info.parameters:
        return
    for caller in own.program.flow.callers(info):
        given = info.argument_or_default(caller.call, node.id)
        if given is not None:
            yield given, calling(caller)


def seeded_alike(own: OwnDdp, seed: Site, module: Module, *, beside: Site | None = None, workers: bool = False) -> str:
    """How a sentence on draws in a file begins; a seed under a test may be one that an option asks for.

    Args:
        own: the program.
        seed: what seeds torch's generators.
        module: the file of the draw.
        beside: what seeds the generator of the draw, in the same function.
        workers: whether workers draw, whose generators torch's seeds.
    """
    lines = sorted({seed.told_line, *([beside.told_line] if beside is not None else [])})
    where = f"line{'s' * (len(lines) > 1)} {' and '.join(map(str, lines))}"
    where += "" if seed.module is module else f" of `{name_of(own.program, seed.module)}`"
    # Seeds of what a launcher starts are none of those that the script spawns in its other mode.
    is_of_some = bool(own.program.calls_to(SPAWNS)) and Spawned(own).is_beside(seed)
    if own.is_always(seed) and not is_of_some:
        return f"every process is seeded alike at {where}" + ", its workers by that, too" * workers
    return f"every process that seeds at {where} is seeded alike" + ", its workers by that, too" * workers


def _is_looked_at_alone(own: OwnDdp, site: Site) -> bool:
    """Whether a model is run on what is drawn for its shapes, and what it gives is dropped: ``model(dummy)``."""
    statement = site.statement
    names = blocks.writes(statement) if isinstance(statement, ast.Assign) else set()
    uses = [
        node
        for node in blocks.walk_body(site.body)
        if isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load)
    ]
    return bool(uses) and all(_is_given_to_dropped_pass(own, site, node) for node in uses)


def _is_given_to_dropped_pass(own: OwnDdp, site: Site, node: ast.Name) -> bool:
    call = site.module.parents[node]
    is_dropped = isinstance(call, ast.Call) and isinstance(site.module.parents[call], ast.Expr)
    return is_dropped and bool(own.program.roles.modules(call.func, site.scope))  # type: ignore[attr-defined]


def _is_cut_by_rank(own: OwnDdp, site: Site) -> bool:
    """Whether each process takes a part of its own of what all draw alike: ``batch[rank * size:(rank + 1) * size]``."""
    statement = site.statement
    names = blocks.writes(statement) if isinstance(statement, ast.Assign) else set()
    around = site.module.parents[site.node]
    cuts = [around] if isinstance(around, ast.Subscript) and around.value is site.node else []
    cuts += [
        node
        for node in blocks.walk_body(site.body)
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and blocks.path_of(node.value) in names
    ]
    return any(differs(own, site, cut.slice) for cut in cuts)


def _loops(own: OwnDdp) -> list[ast.For | ast.AsyncFor | ast.While]:
    """The innermost loops that train: around them an evaluation may draw too."""
    found = [
        node
        for node, _, scope in own.program.nodes()
        if isinstance(node, blocks.LOOPS) and scope.module in own.modules and own.program.runs_backward(node)
    ]
    return [loop for loop in found if not any(other in found for part in loop.body for other in walk(part))]


def has_generator(call: ast.AST) -> bool:
    """Whether a draw is given a generator of its own."""
    return isinstance(call, ast.Call) and any(item.arg == "generator" for item in call.keywords)


def differs(own: OwnDdp, site: Site, node: ast.AST, depth: int = _MAX_CALLERS) -> bool:
    """Whether something may have another value in another process: the rank goes into it, or nothing is known."""
    entries = _entries(own, site, node, _MAX_NAMES) if isinstance(node, ast.Subscript) else []
    if entries:
        # Other settings of the same dictionary may be about ranks.
        return any(differs(own, where, entry, max(depth - 1, 0)) for entry, where in entries)
    if names_rank(node):
        return True
    for part in walk(node) if depth else ():
        if not isinstance(part, (ast.Name, ast.Attribute)) or not isinstance(part.ctx, ast.Load):
            continue
        if isinstance(part, ast.Name) and (site.body, part.id) in own.joined_under:
            return True
        values = assigned(own.program, part, site.scope)
        around = site.module.parents.get(part)
        if isinstance(around, ast.Subscript) and part is around.value and literal(around.slice) is not None:
            values = [value for value in values if _is_whole(site.module, value) or _is_for(site.module, value, around)]
        if any(differs(own, site, value, depth - 1) for value in values):
            return True
        if any(differs(own, where, value, depth - 1) for value, where in _given(own, site, part)):
            return True
    return False


def _entries(own: OwnDdp, site: Site, node: ast.Subscript, depth: int) -> list[tuple[ast.expr, Site]]:
    """What dictionaries of the program have under the key that is asked for; none where one of them was not found."""
    key = literal(node.slice)
    held = _held(own, site, node.value, depth) if isinstance(key, (str, int)) else []
    found = [(entry, where) for item, where in held if (entry := _under(item, key)) is not None]
    if not found or len(found) != len(held):
        return []
    path = blocks.path_of(node.value)
    put = [(value, where) for value, where in own.put_into.get(path or "", ()) if _is_for(where.module, value, node)]
    return found + put


def _held(own: OwnDdp, site: Site, node: ast.expr, depth: int) -> list[tuple[ast.expr, Site]]:
    """The dictionaries that an expression may be."""
    if isinstance(node, ast.Subscript):
        return _entries(own, site, node, depth - 1) if depth else []
    if not isinstance(node, ast.Name):
        return []
    values = [(value, site) for value in assigned(own.program, node, site.scope) if _is_whole(site.module, value)]
    found = []
    for value, where in values or _given(own, site, node):
        if isinstance(value, (ast.Name, ast.Subscript)):
            found += _held(own, where, value, depth - 1) if depth else []
        else:
            found.append((value, where))
    return found


def _is_whole(module: Module, value: ast.expr) -> bool:
    """Whether a variable gets a value as a whole, and not under a key."""
    statement = module.parents.get(value)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return not any(isinstance(target, ast.Subscript) for target in targets)


def _is_for(module: Module, value: ast.expr, asked: ast.Subscript) -> bool:
    """Whether a value is assigned under the key that is asked for."""
    statement = module.parents.get(value)
    key = literal(asked.slice)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return any(isinstance(target, ast.Subscript) and literal(target.slice) in (key, None) for target in targets)


def _under(node: ast.expr, key: object) -> ast.expr | None:
    """What a dictionary that stands there has under a key."""
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return next((value for name, value in pairs if name is not None and literal(name) == key), None)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
        return next((item.value for item in node.keywords if item.arg == key), None)
    return None
