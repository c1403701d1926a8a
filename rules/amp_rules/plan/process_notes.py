"""What several processes change though nothing is wrong: said in a few lines, each at its place.

The size of the batch once, what is evaluated, counts of one process that are shown, and what is done every so many
steps. A plain script gets one or two lines; of each kind no more than a reader needs to know where to look.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan import notes
from amp_rules.plan.device_counts import times_devices
from amp_rules.plan.distribution import Distribution
from amp_rules.plan.rank_averages import averages, is_shown, meters
from amp_rules.plan.report import Note
from amp_rules.plan.training_loops import added_to, variable
from amp_rules.roles.kinds import is_scheduler
from amp_rules.roles.loaders import LoaderUse
from amp_rules.roles.steps import Program, Site
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk
from amp_rules.torch.writers import MODEL_WRITERS, SAVERS

_EVALUATIONS = 2
"""Loops that evaluate, told one by one; of more, the last line says how many there are."""

_FILES = SAVERS & set(MODEL_WRITERS)
"""What writes a checkpoint."""

_MAX_VARIABLES = 4
"""Variables through which a number is followed to the length of a loader."""


def of_loaders(program: Program, processes: Distribution, *, shares_evaluation: bool) -> Iterator[Note]:
    """Yield what is to be known of the batches, and of what is evaluated unless it is to be shared out."""
    yield from _batch(program, processes)
    for site in times_devices(program, processes.whole_lengths):
        yield notes.note(
            notes.BATCH_SIZE,
            site.module,
            site.node,
            f"`{site.module.text(site.node)}` is for one process that drives N GPUs with DataParallel; each of N "
            "processes drives one now and multiplies by N all the same, N*N in all: leave the factor out",
        )
    if not shares_evaluation:
        yield from _evaluated(program, processes)


def of_counts(program: Program, processes: Distribution) -> Iterator[Note]:
    """Yield the numbers that are shown and count what one process sees."""
    told: set[ast.AST] = set()
    found = [*_progress(processes), *_totals(processes), *_lists(processes), *_bars(program, processes)]
    for site, text in [*found, *averages(processes), *meters(program, processes)]:
        if site.statement not in told:
            told.add(site.statement)
            yield notes.note(notes.TOTALS, site.module, site.node, text)
            return


def of_steps(program: Program, processes: Distribution) -> Iterator[Note]:
    """Yield what is done every so many steps, where the number stands in the script; the first place only.

    Of numbers that come of the dataset's length and may count steps, all places.
    """
    for site, text in processes.step_counts.unclear:
        yield notes.note(notes.STEPS, site.module, site.node, f"`{site.module.text(site.node)}` {text}")
    for site, text in [*_every(program, processes), *_schedules(program, processes)]:
        yield notes.note(notes.STEPS, site.module, site.node, text)
        return


# ---- batches and evaluation ----------------------------------------------------------------------------------------


def _batch(program: Program, processes: Distribution) -> Iterator[Note]:
    for use in processes.data.uses:
        site = _made(program, use)
        call = site.node
        size = batch_size_of(call) if isinstance(call, ast.Call) else None
        batches = f"N batches of `{site.module.text(size)}`" if size is not None else "N batches"
        yield notes.note(
            notes.BATCH_SIZE,
            site.module,
            size or call,
            f"with N processes a step averages over {batches}, one of each; the learning rate is not changed",
        )
        return
    for drawn in processes.data.random.values():
        yield notes.note(
            notes.BATCH_SIZE,
            drawn.module,
            drawn.statement,
            "with N processes a step averages over N batches, of which each draws one here; the learning rate is not "
            "changed",
        )
        return


def _made(program: Program, use: LoaderUse) -> Site:
    """Where a loader is made; where it is iterated, if that is not known."""
    for value in sorted(use.values, key=lambda item: getattr(item.site, "lineno", 0)):
        located = program.locate(value.site) if isinstance(value.site, ast.Call) else None
        if located is not None and value.site is not None:
            body, scope = located
            return Site(scope.module, scope, body, value.site)
    return Site(use.module, use.scope, use.body, use.loader)


def batch_size_of(call: ast.Call) -> ast.expr | None:
    """What a loader's constructor is given for the size of its batches."""
    for item in call.keywords:
        if item.arg == "batch_size":
            return item.value
    return call.args[1] if len(call.args) > 1 and not isinstance(call.args[1], ast.Starred) else None


def _evaluated(program: Program, processes: Distribution) -> Iterator[Note]:
    places: dict[tuple[ast.AST, str], LoaderUse] = {}
    for use in processes.data.evaluated:
        places.setdefault((use.body, use.module.text(use.loader)), use)
    uses = sorted(places.values(), key=lambda use: (str(use.module.path), use.line))
    flagged = [loop for loop in processes.loops if loop.evaluates]
    for loop in flagged[:1]:
        yield notes.note(
            notes.EVALUATION,
            loop.module,
            loop.use.loader,
            f"`{loop.module.text(loop.use.loader)}`: each process trains on a share and evaluates the whole, as one "
            "process does",
        )
    room = _EVALUATIONS - len(flagged[:1])
    for index, use in enumerate(uses[:room]):
        more = f"; so are {len(uses) - room} more" if index == room - 1 and len(uses) > room else ""
        yield notes.note(
            notes.EVALUATION,
            use.module,
            use.loader,
            f"`{use.module.text(use.loader)}` is whole on every process: what is measured on it is as in one process, "
            f"and takes as long{more}",
        )


# ---- counts --------------------------------------------------------------------------------------------------------

_Told = tuple[Site, str]


def _progress(processes: Distribution) -> Iterator[_Told]:
    """Yield where a training loop shows what it has counted beside the length of the whole dataset."""
    lengths = processes.whole_lengths
    shares = {item.node for item in processes.step_counts.counts}
    for loop in processes.loops:
        for node in loop.inner:
            if node in shares or not isinstance(node, ast.expr) or not lengths.is_length(node, loop.scope):
                continue
            if is_shown(loop, node):
                yield (
                    Site(loop.module, loop.scope, loop.body, node),
                    f"`{loop.module.text(node)}` counts the samples of all processes, what the loop has counted those "
                    "of one: what is shown ends at one Nth",
                )


def _totals(processes: Distribution) -> Iterator[_Told]:
    """Yield sums of one process that are shown as they are."""
    sums = processes.sums
    shares = frozenset(item.node for item in processes.step_counts.counts)
    for place, reduced in sums.places:
        for path in place.sums:
            if path in place.counters or not sums.is_shown_alone(place, path, shares, reduced=path in reduced):
                continue
            adding = next((node for node in walk(place.node) if path in added_to(node)), place.node)
            if _counts_rounds(place, path):
                continue
            yield (
                Site(place.module, place.scope, place.body, adding),
                f"`{path}` adds up what one process sees, about one Nth of the whole",
            )


def _counts_rounds(place: Site, path: str) -> bool:
    """Whether a number grows by a constant with each round, as on all ranks: ``iteration = iteration + 1``."""
    additions = [node for node in walk(place.node) if path in added_to(node)]
    return bool(additions) and all(
        isinstance(node, (ast.Assign, ast.AugAssign))
        and isinstance(next(blocks.enclosing(place.module, node), None), blocks.LOOPS)
        and any(isinstance(part, ast.Constant) for part in (node.value, *ast.iter_child_nodes(node.value)))
        for node in additions
    )


def _lists(processes: Distribution) -> Iterator[_Told]:
    """Yield where the length of a list is shown that a training loop fills."""
    for place, _ in processes.sums.places:
        for node in place.nodes_following():
            if not (isinstance(node, ast.Call) and blocks.path_of(node.func) == "len" and len(node.args) == 1):
                continue
            path = variable(node.args[0])
            if path in place.lists and is_shown(place, node):
                text = f"`{path}` holds what one process sees, about one Nth of the whole"
                yield Site(place.module, place.scope, place.body, node), text


def _bars(program: Program, processes: Distribution) -> Iterator[_Told]:
    """Yield progress bars that are as long as the whole dataset."""
    shares = {node for item in processes.step_counts.counts for node in walk(item.node)}
    for call, body, scope in program.calls():
        for item in call.keywords:
            if (
                item.arg == "total"
                and item.value not in shares
                and processes.whole_lengths.count(item.value, scope) == "samples"
            ):
                if any(name.startswith("tqdm.") for name in program.callee_names(call, scope)):
                    text = f"`{scope.module.text(item.value)}` counts the samples of all processes: the bar of one "
                    yield Site(scope.module, scope, body, item.value), f"{text}ends at one Nth"


# ---- steps ---------------------------------------------------------------------------------------------------------


def _every(program: Program, processes: Distribution) -> Iterator[_Told]:
    """Yield conditions such as ``step % 500 == 0`` of training loops, on which more depends than what is shown."""
    for loop in processes.loops:
        counters = loop.counters
        for node in loop.inner:
            if not isinstance(node, ast.If):
                continue
            if any(map(program.runs_step, node.body)):
                continue  # the end of an accumulation, which is meant in steps
            for part in walk(node.test):
                if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod) and blocks.reads(part.left) & counters:
                    # Within an epoch, looks at the progress come as they come.
                    within = not blocks.reads(part.left) & counters - blocks.writes_target(loop.loop)
                    if _does_more(program, node, loop.scope, within=within) and not _of_loader(
                        program, processes, part.right, loop.scope
                    ):
                        yield (
                            Site(loop.module, loop.scope, loop.body, part),
                            f"`{loop.module.text(part)}` counts steps, and with N processes an epoch has one Nth of "
                            "them: what follows is done less often",
                        )


def _does_more(program: Program, node: ast.If, scope: Scope, *, within: bool) -> bool:
    """Whether a condition decides about a schedule or a file; and over several epochs, about an evaluation."""
    inner = [child for item in node.body for child in blocks.walk_own(item)]
    if within:
        return any(isinstance(child, ast.Call) and _steps_or_saves(program, child, scope) for child in inner)
    return any(
        isinstance(child, (ast.For, ast.comprehension))
        or (isinstance(child, ast.Call) and _matters(program, child, scope))
        for child in inner
    )


def _matters(program: Program, call: ast.Call, scope: Scope) -> bool:
    return bool(program.flow.callees(call)) or _steps_or_saves(program, call, scope)


def _steps_or_saves(program: Program, call: ast.Call, scope: Scope) -> bool:
    return _is_step(call) or bool(program.callee_names(call, scope) & _FILES)


def _is_step(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "step"


def _schedules(program: Program, processes: Distribution) -> Iterator[_Told]:
    """Yield schedules that are stepped with the optimizer, and are as long as a number in the script."""
    for loop in processes.loops:
        for node in loop.inner:
            if not (isinstance(node, ast.Call) and _is_step(node) and isinstance(node.func, ast.Attribute)):
                continue
            for value in program.flow.values(node.func.value, loop.scope):
                located = program.locate(value.site) if is_scheduler(value) and value.site is not None else None
                if located is None or not isinstance(value.site, ast.Call) or node.args:
                    continue
                body, scope = located
                given = [*value.site.args[1:], *(item.value for item in value.site.keywords)]
                if given and not any(_comes_of_loader(program, processes, item, scope) for item in given):
                    yield (
                        Site(scope.module, scope, body, value.site),
                        f"`{scope.module.text(value.site.func)}` counts steps, and with N processes an epoch has one "
                        "Nth of them",
                    )


def _comes_of_loader(program: Program, processes: Distribution, node: ast.expr, scope: Scope) -> bool:
    """Whether a number does, or what a function works out."""
    if _of_loader(program, processes, node, scope):
        return True
    for value in program.flow.values(node, scope):
        if value.kind == "function":
            inner = program.flow.scopes[value.ref.node]
            if any(_of_loader(program, processes, part, inner) for part in value.ref.body if isinstance(part, ast.AST)):
                return True
    return False


def _of_loader(program: Program, processes: Distribution, node: ast.AST, scope: Scope, depth: int = 0) -> bool:
    """Whether a number comes of the length of a loader or of its dataset."""
    for part in walk(node):
        if not isinstance(part, ast.expr):
            continue
        if processes.whole_lengths.count(part, scope) is not None:
            return True
        if isinstance(part, ast.Call) and blocks.path_of(part.func) == "len" and part.args:
            if processes.whole_lengths.holds(part.args[0], scope):
                return True
        if isinstance(part, (ast.Name, ast.Attribute)) and depth < _MAX_VARIABLES:
            key = program.flow.key(part, scope)
            for value, where in processes.whole_lengths.assigned.get(key, ()) if key is not None else ():
                if _of_loader(program, processes, value, where, depth + 1):
                    return True
    return False
