"""Numbers of the batches of one process that a script shows within the rounds of its loops, as they are."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator

from amp_rules.plan.clock_times import is_time
from amp_rules.plan.listing import listed
from amp_rules.plan.own_ddp.exchanges import Exchanges
from amp_rules.plan.own_ddp.lookups import may_run_anything
from amp_rules.plan.own_ddp.meters_shown import Filling, behind, behind_loops, may_be_reduced
from amp_rules.plan.own_ddp.of_themselves import names_process
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.shares import Named, Shares
from amp_rules.plan.own_ddp.shown_entries import shown_entries
from amp_rules.plan.own_ddp.sizes_told import is_told_sizes, numbers_in
from amp_rules.plan.rest_shown import OF_BATCHES, reads_of, root_of, shows
from amp_rules.plan.summed_terms import is_of_batch
from amp_rules.plan.training_loops import TrainingLoop
from amp_rules.plan.ways_to_show import tells
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import called_name, is_text, values_given, walk
from amp_rules.torch.gradients import CLIP_FUNCTIONS
from amp_rules.torch.mixed_precision import SCALERS

_TAGGED = frozenset({"add_scalar", "add_scalars", "log_metric", "log_scalar", "report_scalar"})
"""Methods whose first argument is the name of what they show."""

_MAX_HELPERS = 1
"""Functions between the one that a loop calls and the one that shows: ``self.plot(step, loss)``."""

_MAX_NAMES = 6
"""Variables that a note lists; more say nothing more."""


def shown_within(
    own: OwnDdp, shares: Shares, loops: list[TrainingLoop], told: Named
) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first place of each function that does, with all that it shows there and that is not ``told``.

    Then it is.
    """
    within = {node: loop for loop in loops for node in loop.inner}
    found: defaultdict[ast.AST, dict[str, Site]] = defaultdict(dict)
    texts: set[tuple[ast.AST, str]] = set()
    places = [*_shown_here(own, shares), *_shown_by_callees(own, shares, within)]
    for site, name in [*places, *shown_entries(own, shares, within)]:
        loop = within.get(site.node)
        if loop is None or loop.body is not site.body or name in loop.counters or (loop.body, name) in told:
            continue
        if name in found[loop.body]:
            continue
        values = _given(own, loop, name)
        if not _is_of_round(own, shares, loop, name, values):
            continue
        if only_divides(site.node, name, {path for body, path in told if body is loop.body}):
            continue
        if any(map(is_text, values)):
            texts.add((loop.body, name))
            if any(body is loop.body for body, _ in told):
                continue  # it tells the numbers that have a note
        if not any((loop.body, root_of(path)) in told for value in values for path in blocks.reads(value)):
            found[loop.body][name] = site
    for body, everything in found.items():
        numbers = {name: site for name, site in everything.items() if (body, name) not in texts}
        shown = numbers or everything
        if not shown:
            continue
        told.update((body, name) for name in shown)
        first = min(shown.values(), key=lambda site: site.line)
        yield first.module, first.node, f"AMP233: {are_of_batches(shown)}"


def are_of_batches(variables: Iterable[str]) -> str:
    """Says of variables that they hold numbers of one process's batches."""
    names = [f"`{name}`" for name in variables]
    several = len(names) > 1
    if len(names) > _MAX_NAMES:
        names[_MAX_NAMES:] = ["more"]
    return f"{listed(names)} {OF_BATCHES[several]}"


def only_divides(call: ast.AST, name: str, told: set[str]) -> bool:
    """Whether a call shows a number only as what one that is told is divided by: ``100 * correct / total``."""
    quotients = [node for node in walk(call) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)]
    dividing = {
        part
        for node in quotients
        if told & {root_of(path) for path in blocks.reads(node.left)}
        for part in walk(node.right)
    }
    uses = [node for node in walk(call) if isinstance(node, ast.Name) and node.id == name]
    return bool(uses) and all(node in dividing for node in uses)


def _shown_here(own: OwnDdp, shares: Shares) -> Iterator[tuple[Site, str]]:
    for site, name in shares.shown:
        call = site.node
        assert isinstance(call, ast.Call)
        if tells(call) and not is_of_tag(site.module, call):
            if any(map(names_process, shown_values(call))):
                continue  # what every process says of itself
            root = root_of(name)
            if any(root in numbers_in(value) for value in shown_values(call)):
                yield site, root


def is_of_tag(module: Module, call: ast.Call) -> bool:
    """Whether a text is the name that something is shown under: ``add_scalar("loss/{}".format(key), loss)``."""
    return any(
        isinstance(around, ast.Call)
        and called_name(around) in _TAGGED
        and bool(around.args)
        and any(part is call for part in walk(around.args[0]))
        for around in module.ancestors(call)
    )


def _shown_by_callees(own: OwnDdp, shares: Shares, within: dict[ast.AST, TrainingLoop]) -> Iterator[tuple[Site, str]]:
    """Yield what a loop gives to functions of the project that show a parameter: ``board.update(losses, step)``."""
    showing: dict[ast.AST, set[str]] = {}
    for node, loop in within.items():
        if not isinstance(node, ast.Call) or may_run_anything(own.program, node):
            continue
        for info in own.program.flow.callees(node):
            if info.node not in showing:
                showing[info.node] = shown_parameters(own, info.node)
            for name, value in info.bound(node) if showing[info.node] else ():
                if name in showing[info.node] and isinstance(value, (ast.Name, ast.Dict)):
                    if is_of_batch(value, shares.ranks):
                        for path in sorted(numbers_in(value)):
                            yield Site(loop.module, loop.scope, loop.body, node), path


def shown_parameters(own: OwnDdp, body: ast.AST, depth: int = _MAX_HELPERS) -> set[str]:
    """The parameters of a function that it gives to calls of libraries that show something, or their elements or texts.

    A helper of the project may give them on.
    """
    info = own.program.function_of(body)
    if info is None:
        return set()
    found = set()
    nodes = own.program.nodes_of(body)
    scope = own.program.flow.scopes[body]
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        read: set[str] = set()
        if tells(node) and shows(own.program, node, scope):
            read = {path for value in shown_values(node) for path in numbers_in(value)}
        elif depth and not may_run_anything(own.program, node):
            for helper in own.program.flow.callees(node):
                shown = shown_parameters(own, helper.node, depth - 1)
                read |= {path for name, value in helper.bound(node) if name in shown for path in numbers_in(value)}
        found |= read | _gone_through(scope.module, node, read)
    for text in nodes:
        # A line that is put together: ``line += f" {name} {value}"`` in a loop over a parameter.
        if isinstance(text, (ast.Assign, ast.AugAssign)) and is_text(text.value):
            if blocks.touches(blocks.writes(text), found):
                read = numbers_in(text.value)
                found |= read | _gone_through(scope.module, text, read)
    return found & set(info.parameters)


def _gone_through(module: Module, node: ast.AST, read: set[str]) -> set[str]:
    """What the loops around a place go through, of which it reads the items."""
    return {
        path
        for loop in blocks.enclosing(module, node)
        if isinstance(loop, ast.For) and blocks.touches(blocks.writes_target(loop), read)
        for path in blocks.reads(loop.iter)
    }


def shown_values(call: ast.Call) -> list[ast.expr]:
    """What a call shows, without the name that it does under."""
    given = values_given(call)
    return given[1:] if called_name(call) in _TAGGED and call.args else given


def reads_alike(own: OwnDdp, site: Site, value: ast.expr) -> bool:
    """Whether a value is the norm of averaged gradients, a loss scale, or the name of a file."""
    names = own.program.callee_names(value, site.scope) if isinstance(value, ast.Call) else set()
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        # All skip a step alike: a gradient that overflows on one process does so in the average.
        if any(item.ref in SCALERS for item in own.program.flow.values(value.func.value, site.scope)):
            return True
    return bool(names & CLIP_FUNCTIONS) or "os.path.join" in names


def _is_rate(own: OwnDdp, loop: TrainingLoop, value: ast.expr) -> bool:
    """Whether a number is read out of an optimizer: ``rates = [group["lr"] for group in optimizer.param_groups]``."""
    names = {node.id for node in walk(value) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    made = [given for name in sorted(names) if (given := _given(own, loop, name))]
    if is_text(value) and made:
        return all(any(map(reads_groups, given)) for given in made)  # beside a rate it may tell a loss
    return any(map(reads_groups, [value, *(part for given in made for part in given)]))


def reads_groups(node: ast.expr) -> bool:
    """Whether something is read out of the groups of an optimizer: a learning rate."""
    return any(isinstance(part, ast.Attribute) and part.attr == "param_groups" for part in walk(node))


def _given(own: OwnDdp, loop: TrainingLoop, name: str) -> list[ast.expr]:
    """What a round of a loop assigns to a variable, or a method that it calls to an attribute of its object."""
    nodes = list(loop.inner)
    if name.startswith("self."):
        calls = [node for node in loop.inner if isinstance(node, ast.Call) and _is_of_self(node)]
        nodes += [node for call in calls for info in own.program.flow.callees(call) for node in walk(info.node)]
    written = [node for node in nodes if isinstance(node, ast.stmt) and name in blocks.writes(node)]
    return [value for node in written if (value := getattr(node, "value", None)) is not None]


def _is_of_self(call: ast.Call) -> bool:
    return (blocks.path_of(call.func) or "").startswith("self.")


def _is_of_round(own: OwnDdp, shares: Shares, loop: TrainingLoop, name: str, values: list[ast.expr]) -> bool:
    """Whether a round of a loop makes the values of a number, that nothing puts together with those of the others."""
    inner = loop.inner
    if not values or all(
        is_time(own.program, loop, value) or reads_alike(own, loop, value) or _is_rate(own, loop, value)
        for value in values
    ):
        return False
    made_of = behind_loops(loop.inner, {path for value in values for path in blocks.reads(value)})
    if not _is_of_data(loop, values, made_of):
        return False  # alike on all, but for a process that has left the loop: a learning rate of the step
    if _is_of_evaluation(own, loop, values, made_of) or _is_of_meters_alike(own, shares, loop, values):
        return False
    exchanges = shares.metrics.exchanges
    calls = [node for node in blocks.walk_body(loop.body) if isinstance(node, ast.Call)]
    given = [call for call in calls if name in blocks.reads(call) and exchanges.puts_together(call)]
    if not all(map(exchanges.leaves_its_own, given)):
        return False
    if "." in name and exchanges.becomes_of_all(loop.body):
        return False  # what an object keeps may be reduced where this function has ended
    if any(may_be_reduced(own, Filling(name, value, loop.scope, tuple(inner)), exchanges) for value in values):
        return False
    return not _is_given_reduced(own, exchanges, loop, values)


def _is_of_meters_alike(own: OwnDdp, shares: Shares, loop: TrainingLoop, values: list[ast.expr]) -> bool:
    """Whether all that a number has of batches is that of meters which are told nothing of them but their sizes."""
    names = {
        root_of(ast.unparse(part)) for value in values for part in reads_of(value) if is_of_batch(part, shares.ranks)
    }
    return bool(names) and all(is_told_sizes(own.program, shares.ranks, loop, name) for name in names)


def _is_of_data(loop: TrainingLoop, values: list[ast.expr], made_of: set[str]) -> bool:
    """Whether a number, of some variables, may be made of the batch of a round, or of what anything gives there."""
    is_counted = isinstance(loop.loop.iter, ast.Call) and called_name(loop.loop.iter) == "enumerate"
    target = loop.loop.target
    batch = target.elts[1:] if is_counted and isinstance(target, ast.Tuple) else [target]
    given = {path for item in batch for part in walk(item) if (path := blocks.path_of(part)) is not None}
    loops = [node for node in loop.inner if isinstance(node, (ast.For, ast.AsyncFor))]
    pending = [*values, *(node.iter for node in loops if blocks.touches(blocks.writes_target(node), made_of))]
    for node in loop.inner:
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and node.value is not None:
            pending += [node.value] if blocks.touches(blocks.writes(node), made_of) else []
    return any(
        (isinstance(part, ast.Call) and called_name(part) not in _OF_NUMBERS)
        or (isinstance(part, ast.Name) and part.id in {"self", *given})
        for value in pending
        for part in walk(value)
    )


def _is_of_evaluation(own: OwnDdp, loop: TrainingLoop, values: list[ast.expr], made_of: set[str]) -> bool:
    """Whether a function that is given the model makes a number, of some variables, of which none is of the batch.

    ``score = evaluate(model, held_out)`` in a round of a loop over the loader itself is of no share of that.
    """
    if not any(node is loop.use.loader for node in walk(loop.loop.iter)):
        return False
    if "self" in {root_of(path) for path in made_of} or blocks.touches(made_of, blocks.writes_target(loop.loop)):
        return False
    sources = [*values, *(value for path in sorted(made_of) for value in _given(own, loop, path))]
    return any(
        isinstance(part, ast.Call)
        and any(own.program.roles.modules(given, loop.scope) for given in values_given(part))
        and not own.program.roles.modules(part.func, loop.scope)
        for value in sources
        for part in walk(value)
    )


_OF_NUMBERS = frozenset({"range", "len", "int", "float", "min", "max", "round", "abs", "pow", "cos", "exp", "sqrt"})
"""What computes a number of others."""


def _is_given_reduced(own: OwnDdp, exchanges: Exchanges, loop: TrainingLoop, values: list[ast.expr]) -> bool:
    """Whether a number is what a function gives that puts numbers together, or made of what a forward pass adds up.

    What a forward pass only gathers leaves its loss that of the process.
    """
    for call in (part for value in values for part in walk(value) if isinstance(part, ast.Call)):
        if exchanges.puts_together(call) and not own.program.roles.modules(call.func, loop.scope):
            return True
    made = behind(loop.inner, {path for value in values for path in blocks.reads(value)})
    return any(
        isinstance(part, ast.Call) and exchanges.adds_up(part)
        for node in loop.inner
        if isinstance(node, ast.Assign) and (blocks.touches(blocks.writes(node), made) or node.value in values)
        for part in walk(node.value)
    )
