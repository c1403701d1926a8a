"""What is done every so many steps, and schedules that count steps: of N processes each makes one Nth of an epoch.

Where a number of steps ends the training, and not a number of epochs, as many are made as before, and nothing is noted.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.cells import CellKey
from amp_rules.flow.values import Value
from amp_rules.plan import notes
from amp_rules.plan.batch_loops import BatchLoop
from amp_rules.plan.catching_up import catches_up
from amp_rules.plan.changed_each_step import changed_each_step
from amp_rules.plan.counters_given import given_tests
from amp_rules.plan.counts_of_loaders import MAX_VARIABLES, comes_of_loader, is_length, of_loader
from amp_rules.plan.distribution import Distribution
from amp_rules.plan.filled_by_steps import failing
from amp_rules.plan.report import Note
from amp_rules.plan.samples_to_train_on import counters_over_epochs
from amp_rules.plan.steps_at_most import leaving, of_share, slices
from amp_rules.plan.training_loops import added_to, counts_up
from amp_rules.plan.worked_out_of_steps import worked_out
from amp_rules.roles.kinds import is_optimizer, is_scheduler
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import literal
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import is_none, last_name, values_given, walk
from amp_rules.torch.failures import ENDS_PROCESS
from amp_rules.torch.optimizers import PLATEAU
from amp_rules.torch.writers import MODEL_WRITERS, SAVERS

_FILES = SAVERS & set(MODEL_WRITERS)
"""What writes a checkpoint."""

_WARM_UPS = frozenset({"num_warmup_steps", "warmup_steps"})
_WITH_WARM_UP = "_schedule_with_warmup"
"""How libraries of language models call a warm-up, and their functions that make schedules with one."""

_LESS = "and with N processes an epoch has 1/N as many"

_MORE = "with N processes an epoch has N times as many, or all that there are"

_CUT = f"takes as many batches in each process: {_MORE}"

_LEAVING = (ast.Break, ast.Return, ast.Raise)
_RANGES = frozenset({"range", "trange", "tnrange"})


def of_steps(program: Program, processes: Distribution) -> Iterator[Note]:
    """Yield what is done every so many steps, where the number stands in the script: one note for each loop.

    Of schedules, and of numbers that come of the dataset's length and may count steps, all places.
    """
    for site, text in processes.step_counts.unclear:
        yield notes.note(notes.STEPS, site.module, site.node, f"`{site.module.text(site.node)}` {text}")
    told: set[ast.AST] = set()
    loops: list[tuple[BatchLoop, set[CellKey]]] = []
    for loop in _loops(processes):
        cut = next(slices(program, processes, loop), None)
        if cut is not None:
            if of_share(program, loop, cut):
                yield notes.note(notes.STEPS, loop.module, cut, f"`{loop.module.text(cut)}` {_CUT}")
            continue
        end = leaving(program, processes, loop)
        if end is not None:
            text = f"`if {loop.module.text(end.test)}` ends an epoch after as many batches in each process"
            yield notes.note(notes.STEPS, loop.module, end, f"{text}: {_MORE}")
        inside = _counted_inside(program, loop)
        quotient = _epochs_of_steps(processes, loop)
        if quotient is None and not _ends_by_steps(program, processes, loop, inside):
            loops.append((loop, inside))
        elif quotient is not None and quotient[0] not in told:
            node, scope = quotient
            told.add(node)
            text = f"`{scope.module.text(node)}` makes as many steps as before, in N times as many epochs"
            yield notes.note(notes.STEPS, scope.module, node, f"{text}: an epoch has 1/N as many with N processes")
    for loop, inside in loops:
        yield from _every(program, processes, loop, inside)
        yield from _worked_out(program, processes, loop, inside)
    for site, text in [item for loop, _ in loops for item in _schedules(program, processes, loop)]:
        if site.node not in told:
            told.add(site.node)
            yield notes.note(notes.STEPS, site.module, site.node, text)


# ---- loops -----------------------------------------------------------------------------------------------------------


def _loops(processes: Distribution) -> Iterator[BatchLoop]:
    """Yield the loops over the batches of an epoch: over a loader, or as often as one has batches."""
    told: set[ast.AST] = set()
    for loop in processes.loops:
        told.add(loop.loop)
        yield BatchLoop(loop.module, loop.scope, loop.body, loop.loop, loop.loop)
    lengths = processes.whole_lengths
    for site in processes.data.loops:
        if site.node in told or not isinstance(site.node, ast.While):
            continue
        if any(is_length(lengths, part, site.scope) for part in walk(site.node.test)):
            told.add(site.node)
            yield BatchLoop(site.module, site.scope, site.body, site.node, site.node)


def _ends_by_steps(program: Program, processes: Distribution, loop: BatchLoop, inside: set[CellKey]) -> bool:
    """Whether a number of steps ends the training, by a way out of the loop or of those around it."""
    if any(
        isinstance(node, ast.If)
        and (blocks.reads(node.test) & loop.counters or _reads_any(program, node.test, loop.scope, inside))
        and not _is_of_epochs(program, processes, loop, node.test)
        and any(_leaves(program, part, loop.scope) for item in node.body for part in blocks.walk_own(item))
        for node in loop.inner
    ):
        return True
    if _ends_without_a_rate(loop):
        return True
    for around in processes.batches.loops_of(loop):
        node = around.node
        if isinstance(node, ast.While) and node is not loop.loop:
            if blocks.reads(node.test) & loop.counters or _reads_any(program, node.test, around.scope, inside):
                return True
    return False


def _ends_without_a_rate(loop: BatchLoop) -> bool:
    """Whether a loop ends where what is looked up for a step is none: ``rate = rate_at(step)``, ``if rate is None``."""
    found = {
        path
        for node in loop.inner
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if any(blocks.reads(item) & loop.counters for item in values_given(node.value))
        for path in blocks.writes(node)
    }
    return any(
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Compare)
        and isinstance(node.test.ops[0], ast.Is)
        and is_none(node.test.comparators[0])
        and blocks.path_of(node.test.left) in found
        and isinstance(node.body[-1], _LEAVING)
        for node in loop.inner
    )


def _epochs_of_steps(processes: Distribution, loop: BatchLoop) -> tuple[ast.BinOp, Scope] | None:
    """What works the number of epochs out of one of steps."""
    for around in processes.batches.loops_of(loop):
        for part in walk(_end(around.node.iter)) if isinstance(around.node, ast.For) else ():
            found = _quotient_by_length(processes, part, around.scope) if isinstance(part, ast.expr) else None
            if found is not None:
                return found
    return None


def _end(over: ast.expr) -> ast.expr:
    """What ends the numbers that a loop goes through: ``n`` of ``range(start, n)``, where one resumes behind others."""
    is_range = isinstance(over, ast.Call) and last_name(over.func) in _RANGES and len(over.args) > 1
    return over.args[1] if is_range else over  # type: ignore[attr-defined]


def _is_of_epochs(program: Program, processes: Distribution, loop: BatchLoop, test: ast.expr) -> bool:
    """Whether a counter is compared to the steps of some epochs: ``step >= epochs * len(loader)``."""
    return any(
        of_loader(program, processes, side, loop.scope)
        for part in walk(test)
        if isinstance(part, ast.Compare)
        for side in (part.left, *part.comparators)
        if not blocks.reads(side) & loop.counters
    )


def _leaves(program: Program, node: ast.AST, scope: Scope) -> bool:
    """Whether a statement ends the loop, or a call the program."""
    return isinstance(node, _LEAVING) or (
        isinstance(node, ast.Call) and bool(program.callee_names(node, scope) & ENDS_PROCESS)
    )


def _quotient_by_length(
    processes: Distribution, node: ast.expr, scope: Scope, depth: int = 0
) -> tuple[ast.BinOp, Scope] | None:
    """What works a number of epochs out of one of steps: ``epochs = steps // len(loader)``."""
    lengths = processes.whole_lengths
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.FloorDiv)):
        by_length = any(
            is_length(lengths, part, scope)
            or lengths.count(part, scope) == "steps"
            or (isinstance(part, (ast.Name, ast.Attribute)) and lengths.reach(part, scope) == "rank")
            for part in walk(node.right)
            if isinstance(part, ast.expr)
        )
        return (node, scope) if by_length else None
    if not isinstance(node, (ast.Name, ast.Attribute)) or depth >= MAX_VARIABLES:
        return None
    key = processes.program.flow.key(node, scope)
    if key is not None:
        given = lengths.assigned.get(key, [])
    else:
        # An attribute of settings that nothing tells of: what this function assigns to it.
        path = blocks.path_of(node)
        own = processes.program.nodes_of(scope.node) if path is not None else ()
        assigned = [item for item in own if isinstance(item, ast.Assign)]
        given = [(item.value, scope) for item in assigned for target in item.targets if blocks.path_of(target) == path]
    for value, where in given:
        for part in walk(value):
            found = _quotient_by_length(processes, part, where, depth + 1) if isinstance(part, ast.expr) else None
            if found is not None:
                return found
    return None


# ---- every so many steps ---------------------------------------------------------------------------------------------


def _every(program: Program, processes: Distribution, loop: BatchLoop, inside: set[CellKey]) -> Iterator[Note]:
    """Yield the conditions such as ``step % 500 == 0`` of a loop on which more depends than what is shown."""
    of_epoch: dict[str, tuple[Module, ast.expr]] = {}
    from_first: dict[str, tuple[Module, ast.expr]] = {}
    of_all: dict[str, tuple[Module, ast.expr]] = {}
    fails: dict[str, str] = {}
    counters = loop.counters | _over_epochs(loop)
    for node in loop.inner:
        # The end of an accumulation is meant in steps.
        if not isinstance(node, ast.If) or any(map(program.runs_step, node.body)):
            continue
        for part in _parts_of_test(loop, node.test):
            if not (isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod)):
                continue
            read = blocks.reads(part.left) & counters
            if not (read or _reads_any(program, part.left, loop.scope, inside)):
                continue
            if of_loader(program, processes, part.right, loop.scope):
                continue
            within = bool(read) and read <= loop.of_epoch
            if within and any(_one_test(loop, part, other) for _, other in of_all.values()):
                continue  # the same code, told of already
            if _does_more(program, node, loop.scope, within=within):
                begins = within and (_holds_at_first(loop, part) or _holds_at_last(program, processes, loop, part))
                found = from_first if begins else of_epoch if within else of_all
                found.setdefault(loop.module.text(part), (loop.module, part))
                missed = failing(program, loop, node) if not begins else None
                if missed is not None:
                    fails[loop.module.text(part)] = loop.module.text(missed)
    for test in given_tests(program, loop, counters):
        # A function is given the count for what it shows as well: only files, schedules and evaluations are told of.
        module = test.scope.module
        if _does_more(program, test.branch, test.scope, within=True):
            if not of_loader(program, processes, test.rest.right, test.scope):
                within = test.counter in loop.of_epoch
                begins = within and _is_asked_from_first(module, test.rest) and _begins_at_0(loop, test.counter)
                found = from_first if begins else of_epoch if within else of_all
                found.setdefault(module.text(test.rest), (module, test.rest))
    for found, text in (
        (of_all, f"{_LESS}: this code runs less often"),
        (from_first, f"{_LESS}: this code runs less often"),
        (of_epoch, f"{_LESS}: this code runs less often, and never if an epoch has too few steps"),
    ):
        if found:
            names = " and ".join(f"`{name}`" for name in found)
            counts = "counts" if len(found) == 1 else "count"
            missing = next((fails[name] for name in found if name in fails), None)
            more = f"; an epoch without it ends in an error at `{missing}`" if missing is not None else ""
            module, place = next(iter(found.values()))
            yield notes.note(notes.STEPS, module, place, f"{names} {counts} steps, {text}{more}")


def _one_test(loop: BatchLoop, one: ast.expr, other: ast.expr) -> bool:
    """Whether two counters have to stand right together: ``steps % 500 == 0 and step % 2 == 0``."""
    around = set(_ands_around(loop, one))
    return not around.isdisjoint(_ands_around(loop, other))


def _ands_around(loop: BatchLoop, node: ast.AST) -> Iterator[ast.AST]:
    for parent in loop.module.ancestors(node):
        if isinstance(parent, ast.stmt):
            return
        if isinstance(parent, ast.BoolOp) and isinstance(parent.op, ast.And):
            yield parent


def _over_epochs(loop: BatchLoop) -> set[str]:
    """Variables that a round works out of the epochs before and its own count: ``step = epoch * len(loader) + i``."""
    return {
        path
        for node in loop.inner
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Add)
        for one, other in ((node.value.left, node.value.right), (node.value.right, node.value.left))
        if blocks.path_of(one) in loop.head and isinstance(other, ast.BinOp) and isinstance(other.op, ast.Mult)
        for target in node.targets
        if (path := blocks.path_of(target)) is not None
    }


def _parts_of_test(loop: BatchLoop, test: ast.expr) -> Iterator[ast.AST]:
    """Yield the parts of a condition, and of what its variables are assigned: ``late = step % 2000 == 0``."""
    yield from walk(test)
    names = blocks.reads(test)
    for node in loop.inner:
        if isinstance(node, ast.Assign) and isinstance(node.value, (ast.BoolOp, ast.Compare)):
            if blocks.writes(node) & names:
                yield from walk(node.value)


def _counted_inside(program: Program, loop: BatchLoop) -> set[CellKey]:
    """What the functions that the loop calls count up: ``self.steps += 1`` in the step of a trainer."""
    found = set()
    for body in program.called_from(loop.inner):
        scope = program.flow.scopes[body]
        for node in program.nodes_of(body):
            if not (isinstance(node, (ast.AugAssign, ast.Assign)) and counts_up(node)):
                continue
            # What counts in a loop of its own counts samples, or parts of a step.
            if not any(isinstance(item, blocks.LOOPS) for item in blocks.enclosing(scope.module, node)):
                for target in [node.target] if isinstance(node, ast.AugAssign) else node.targets:
                    key = program.flow.key(blocks.reading(target), scope) if isinstance(target, ast.Attribute) else None
                    found |= {key} if key is not None else set()
    return found


def _reads_any(program: Program, node: ast.expr, scope: Scope, keys: set[CellKey]) -> bool:
    """Whether an expression reads one of the attributes."""
    return any(
        isinstance(part, ast.Attribute) and bool(keys) and program.flow.key(part, scope) in keys for part in walk(node)
    )


def _holds_at_first(loop: BatchLoop, rest: ast.BinOp) -> bool:
    """Whether ``step % 100 == 0`` is asked, of a counter that ``enumerate`` begins at 0: it holds in every epoch."""
    if not isinstance(rest.left, ast.Name) or not _begins_at_0(loop, rest.left.id):
        return False
    return _is_asked_from_first(loop.module, rest)


def _is_asked_from_first(module: Module, rest: ast.BinOp) -> bool:
    """Whether a test is ``step % 100 == 0``, or is true where that is."""
    asked = module.parents.get(rest)
    if not (isinstance(asked, ast.Compare) and asked.left is rest and isinstance(asked.ops[0], ast.Eq)):
        return False
    if ast.unparse(asked.comparators[0]) != "0" or len(asked.ops) > 1:
        return False
    # Another condition beside it may not hold then.
    return isinstance(module.parents.get(asked), ast.If) or bool(_one_of_several(module, asked))


def _begins_at_0(loop: BatchLoop, name: str) -> bool:
    """Whether a name is the number that ``enumerate`` gives the batches of the loop, from 0 on."""
    head = loop.loop
    if not isinstance(head, ast.For):
        return False
    first = head.target.elts[0] if isinstance(head.target, ast.Tuple) else None
    return (
        isinstance(first, ast.Name)
        and name == first.id
        and isinstance(head.iter, ast.Call)
        and isinstance(head.iter.func, ast.Name)
        and head.iter.func.id == "enumerate"
        and all(ast.unparse(start) == "0" for start in (*head.iter.args[1:], *(x.value for x in head.iter.keywords)))
    )


def _one_of_several(module: Module, asked: ast.expr) -> list[ast.expr]:
    """The conditions of which any is enough, if a test is nothing but one of them: ``a or b``."""
    around = module.parents.get(asked)
    if not (isinstance(around, ast.BoolOp) and isinstance(around.op, ast.Or)):
        return []
    return around.values if isinstance(module.parents.get(around), ast.If) else []


def _holds_at_last(program: Program, processes: Distribution, loop: BatchLoop, rest: ast.BinOp) -> bool:
    """Whether the last step of an epoch is enough too: ``step % 100 == 0 or step == len(loader) - 1``.

    The ``total`` of a bar over the loop's batches is as many: ``for batch in bar: ... or step == bar.total``.
    """
    asked = loop.module.parents[rest]
    while isinstance(around := loop.module.parents.get(asked), ast.BoolOp) and isinstance(around.op, ast.And):
        asked = around  # ``step == len(loader) - 1 or (often and step % 100 == 0)``
    return isinstance(asked, (ast.Compare, ast.BoolOp)) and any(
        isinstance(other, ast.Compare)
        and isinstance(other.ops[0], (ast.Eq, ast.GtE))
        and not loop.counters.isdisjoint(blocks.reads(other))
        and any(
            of_loader(program, processes, side, loop.scope) or _is_total(loop, side)
            for side in (other.left, *other.comparators)
        )
        for other in _one_of_several(loop.module, asked)
        if other is not asked
    )


def _is_total(loop: BatchLoop, side: ast.expr) -> bool:
    bar = blocks.path_of(loop.loop.iter) if isinstance(loop.loop, ast.For) else None
    return bar is not None and any(blocks.path_of(part) == f"{bar}.total" for part in walk(side))


def _does_more(program: Program, node: ast.If, scope: Scope, *, within: bool) -> bool:
    """Whether a condition decides about a schedule, a file or a forward pass; over several epochs, of any function.

    Within an epoch, looks at the progress come as they come.
    """
    inner = [child for item in node.body for child in blocks.walk_own(item)]
    calls = [child for child in inner if isinstance(child, ast.Call)]
    if any(_is_step(call) or bool(program.callee_names(call, scope) & _FILES) for call in calls):
        return True
    if within:
        return any(map(program.runs_forward, node.body))
    return any(isinstance(child, (ast.For, ast.comprehension)) for child in inner) or any(
        program.flow.callees(call) for call in calls
    )


def _worked_out(program: Program, processes: Distribution, loop: BatchLoop, inside: set[CellKey]) -> Iterator[Note]:
    """Yield numbers that follow the steps of all epochs, other than schedules of learning rates, in one note."""
    counters = (loop.counters - loop.of_epoch - _counts_of_epochs(program, processes, loop)) | _over_epochs(loop)
    found: dict[str, Site] = {}
    for site, node in worked_out(program, loop, counters, inside):
        statement = site.statement
        sets_rate = isinstance(statement, ast.Assign) and any(map(_is_rate, statement.targets))
        if isinstance(node, ast.Call):
            sets_rate |= _sets_rate(program, node) or _gives_rate(program, loop, node)
        if not sets_rate and not of_loader(program, processes, statement, site.scope):
            found.setdefault(site.module.text(node), site)
    for site in changed_each_step(program, loop):
        if not of_loader(program, processes, site.statement, site.scope):
            found.setdefault(site.module.text(site.node), site)
    if found:
        first, *others = found
        more = f" and {len(others)} more follow" if others else " follows"
        site = found[first]
        yield notes.note(notes.STEPS, site.module, site.node, f"`{first}`{more} the number of steps, {_LESS}")
    for site, node in worked_out(program, loop, counters_over_epochs(processes, loop), set()):
        if not of_loader(program, processes, site.statement, site.scope):
            text = f"`{site.module.text(node)}` follows the samples that one process has seen"
            yield notes.note(notes.STEPS, site.module, site.node, f"{text}: with N processes, 1/N of those of all")
            break


# ---- schedules -------------------------------------------------------------------------------------------------------


def _schedules(program: Program, processes: Distribution, loop: BatchLoop) -> Iterator[tuple[Site, str]]:
    """Yield schedules that are stepped with the optimizer, and are as long as a number in the script."""
    of_epochs = _counts_of_epochs(program, processes, loop)
    over_epochs = (loop.counters - loop.of_epoch - of_epochs) | _over_epochs(loop)
    for node in loop.inner:
        if not isinstance(node, ast.Call):
            continue
        given = values_given(node)
        sets_rate = _sets_rate(program, node) or _gives_rate(program, loop, node)
        if sets_rate and any(blocks.reads(item) & over_epochs for item in given):
            # Where a counter begins may come of the length: ``step = first_epoch * len(data) // batch``.
            others = [
                item
                for item in given
                if blocks.path_of(item) not in over_epochs
                and not any(map(is_optimizer, program.flow.values(item, loop.scope)))
            ]
            if not any(of_loader(program, processes, item, loop.scope) for item in others):
                text = f"`{loop.module.text(node)}` counts steps, {_LESS}"
                yield Site(loop.module, loop.scope, loop.body, node), text
        if not (_is_step(node) and isinstance(node.func, ast.Attribute)):
            continue
        for value in program.flow.values(node.func.value, loop.scope):
            located = program.locate(value.site) if is_scheduler(value) and value.site is not None else None
            if located is None or not isinstance(value.site, ast.Call) or node.args or _lacks_metric(value, node):
                continue
            body, scope = located
            lengths = [*value.site.args[1:], *(item.value for item in value.site.keywords)]
            if lengths and not any(comes_of_loader(program, processes, item, scope) for item in lengths):
                text = f"`{scope.module.text(value.site.func)}` counts steps, {_LESS}"
                yield Site(scope.module, scope, body, value.site), text
                continue
            warm_up = _warm_up(value.site)
            if warm_up is not None and not comes_of_loader(program, processes, warm_up, scope):
                text = f"`{scope.module.text(warm_up)}` counts the steps of a warm-up, {_LESS}"
                yield Site(scope.module, scope, body, warm_up), text


def _lacks_metric(value: Value, step: ast.Call) -> bool:
    """``scheduler.step()`` of a schedule that follows a metric: it raises TypeError, and counts nothing."""
    return str(value.name).endswith(PLATEAU) and not step.keywords


def _warm_up(call: ast.Call) -> ast.expr | None:
    """The number of steps of a warm-up that a schedule is given beside its length: ``num_warmup_steps=500``."""
    named = next((item.value for item in call.keywords if item.arg in _WARM_UPS), None)
    if named is None and last_name(call.func).endswith(_WITH_WARM_UP) and len(call.args) > 1:
        named = call.args[1]
    return None if named is None or literal(named) == 0 else named


def _counts_of_epochs(program: Program, processes: Distribution, loop: BatchLoop) -> set[str]:
    """Variables that count up once as many rounds as the loader has: ``if step % len(loader) == 0: epoch += 1``.

    Those that catch up with the epochs count among them.
    """
    found: set[str] = set()
    for branch in loop.inner:
        if not isinstance(branch, ast.If):
            continue
        taken = [node for item in branch.body for node in blocks.walk_own(item)]
        other = [node for item in branch.orelse for node in blocks.walk_own(item)]
        counted = {path for node in taken if counts_up(node) for path in added_to(node)}
        if of_loader(program, processes, branch.test, loop.scope):
            found |= counted | {path for node in other if counts_up(node) for path in added_to(node)}
        else:
            found |= {path for path in counted if catches_up(loop, branch, path)}
    return found


def _sets_rate(program: Program, call: ast.Call) -> bool:
    """Whether a function of the project sets learning rates: ``group["lr"] = ...``."""
    return any(
        isinstance(node, (ast.Assign, ast.AugAssign))
        and any(_is_rate(target) for target in (node.targets if isinstance(node, ast.Assign) else [node.target]))
        for info in program.flow.callees(call)
        for node in program.nodes_of(info.node)
    )


def _gives_rate(program: Program, loop: BatchLoop, call: ast.Call) -> bool:
    """Whether a function of the project works out a rate that the loop sets: ``group["lr"] = rate_at(step)``."""
    statement = blocks.statement_of(loop.module, call)
    if not isinstance(statement, ast.Assign) or statement.value is not call or not program.flow.callees(call):
        return False
    if any(map(_is_rate, statement.targets)):
        return True
    made = {path for target in statement.targets if (path := blocks.path_of(target)) is not None}
    return any(
        isinstance(node, ast.Assign) and any(map(_is_rate, node.targets)) and blocks.path_of(node.value) in made
        for node in loop.inner
    )


def _is_rate(target: ast.expr) -> bool:
    return isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant) and target.slice.value == "lr"


def _is_step(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "step"
