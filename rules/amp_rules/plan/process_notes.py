"""What several processes change though nothing is wrong: said in a few lines, each at its place.

The size of the batch once, what is evaluated, and counts of one process that are shown. A plain script gets one or two
lines; of each kind no more than a reader needs to know where to look.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from amp_rules.plan import notes
from amp_rules.plan.adding_methods import adding_methods
from amp_rules.plan.comprehensions_over_shares import over_shares
from amp_rules.plan.constant_tests import ConstantTests
from amp_rules.plan.device_counts import DeviceCounts, is_of_rate, only_rounds
from amp_rules.plan.distribution import Distribution
from amp_rules.plan.divided_by_all import divided_by_all
from amp_rules.plan.divided_by_places import divided_by_places
from amp_rules.plan.divided_by_shares import divided_by_shares
from amp_rules.plan.evaluated_by_index import evaluated_by_index
from amp_rules.plan.evaluated_shares import evaluated_shares
from amp_rules.plan.file_names import name_of
from amp_rules.plan.kept_by_models import kept_by_models
from amp_rules.plan.kept_numbers import gathered, kept_numbers
from amp_rules.plan.listing import listed
from amp_rules.plan.loaders_to_prepare import before_the_bar
from amp_rules.plan.meters_of_steps import meters_of_steps
from amp_rules.plan.rank_averages import averages
from amp_rules.plan.rank_meters import meters
from amp_rules.plan.rank_numbers import ADDS_UP, GETS_NUMBERS, OF_ONE_BATCH, Told, of_the_share
from amp_rules.plan.report import Note
from amp_rules.plan.rest_shown import (
    DRAWN,
    OF_DRAWS,
    REST,
    has_rest,
    in_order,
    root_of,
    shown_alone,
    shown_elsewhere,
    shown_of_shares,
)
from amp_rules.plan.saved_of_shares import DECIDES, KEEPS, not_told, saved_of_shares
from amp_rules.plan.shown_of_batches import shown_of_batches
from amp_rules.plan.training_loops import added_to, variable
from amp_rules.plan.ways_to_show import is_shown
from amp_rules.ranks.origins import Kind
from amp_rules.roles.loaders import LoaderUse
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import literal
from amp_rules.source.modules import Module
from amp_rules.source.scopes import FunctionNode
from amp_rules.source.syntax import called_name, walk
from amp_rules.torch.replication import STOPWATCHES

_EVALUATIONS = 2
"""Loops that evaluate, told one by one; the last line names others."""

_NAMED = 3
"""How many others it names."""


_TIMES_DEVICES = (
    "assumes one process that drives N GPUs with DataParallel; now each of N processes drives one GPU and still "
    "multiplies by N: remove the factor"
)
_OVER_DEVICES = (
    "averages what DataParallel gathers from N GPUs; now each of N processes computes one loss, and its gradients are "
    "averaged, but it is still divided by N: remove the division"
)
_RATE_TIMES_DEVICES = (
    "is for a batch that N GPUs share, which N processes have together: it stays right, where the batch of each "
    "process is not multiplied by N as well"
)


_ROUNDED_TO_DEVICES = (
    "leaves out samples, so that N GPUs get equally many from DataParallel; now each of N processes drives one GPU, "
    "and nothing has to be left out: a batch of fewer than N samples would be empty"
)


def of_loaders(program: Program, processes: Distribution, *, shares_evaluation: bool) -> Iterator[Note]:
    """Yield what is to be known of the batches, and of what is evaluated unless it is to be shared out."""
    yield from _batch(program, processes)
    counts = DeviceCounts(program, processes.whole_lengths)
    for site in counts.products():
        text = _TIMES_DEVICES if not is_of_rate(site) else _RATE_TIMES_DEVICES
        text = _ROUNDED_TO_DEVICES if only_rounds(site) else text
        yield notes.note(notes.BATCH_SIZE, site.module, site.node, f"`{site.module.text(site.node)}` {text}")
    for site in counts.divided_losses(processes.precision):
        yield notes.note(notes.BATCH_SIZE, site.module, site.node, f"`{site.module.text(site.node)}` {_OVER_DEVICES}")
    if not shares_evaluation:
        yield from _evaluated(program, processes)
        yield from divided_by_shares(processes)
    yield from evaluated_shares(program, processes)
    yield from divided_by_places(processes)


def of_counts(program: Program, processes: Distribution) -> Iterator[Note]:
    """Yield the numbers that are shown and count what one process sees: those of a kind in one note, at the first."""
    progress = [*_progress(processes), *_bars(program, processes)]
    found = [*progress, *_totals(processes), *_lists(processes)]
    kinds: dict[str, list[Told]] = {}
    named: set[tuple[ast.AST, str]] = set()
    found += [*averages(processes), *meters(program, processes), *meters_of_steps(program, processes)]
    known = frozenset((told.site.body, told.name) for told in found)
    found += [*kept_numbers(processes, known), *gathered(processes, known), *adding_methods(processes, known)]
    # Where a mean over all is told, the batches that it is made of need no word of their own.
    divided = [*divided_by_all(processes)]
    found += [*(divided or shown_of_batches(processes, found)), *over_shares(processes)]
    found += kept_by_models(processes, found)
    found = [told for told in found if not _is_alike(processes, told)]
    places = [*shown_of_shares(program, processes.agreed.ranks)]
    drawn = in_order({*shown_of_shares(program, processes.agreed.ranks, Kind.DRAW)}.difference(places))
    saved = [*saved_of_shares(processes)]
    alone = [] if found else [*shown_alone(processes, places)]
    of_draws = [] if found or alone else [*shown_alone(processes, drawn, OF_DRAWS)]
    found = found or alone or of_draws or [*shown_elsewhere(processes, places)]
    # What is only saved says nothing of what is shown.
    for told in [*found, *not_told(processes, saved, found)]:
        if (told.site.body, told.name) not in named or told.one in (DECIDES[0], KEEPS[0]):
            named.add((told.site.body, told.name))
            kinds.setdefault(told.one, []).append(told)
    rest = f"; {REST}" if found and has_rest(processes, places, found) else ""
    rest += f"; {DRAWN}" if found and not of_draws and has_rest(processes, drawn, found) else ""
    # Rounds that evaluate go over all of the data.
    training_alone = {node for loop in processes.loops if loop.evaluates for node in loop.inner}
    # What is said of a progress holds for no other number.
    of_progress = {told.one for told in progress}
    for several in sorted(kinds.values(), key=lambda several: several[0].one in of_progress):
        first, names = several[0], list(dict.fromkeys(f"`{told.name}`" for told in several))
        text = f"{listed(names)} {first.several if len(names) > 1 else first.one}"
        if all(told.site.node in training_alone for told in several):
            text += ", where the loop trains"
        yield notes.note(notes.TOTALS, first.site.module, first.site.node, text + rest)
        rest = ""


def _is_alike(processes: Distribution, told: Told) -> bool:
    """Whether a number is the same on all processes, whatever it is added up of: the norm of averaged gradients.

    Of a count of samples that says nothing: it is as large on each of them, and 1/N of all.
    """
    if told.one not in (ADDS_UP[0], GETS_NUMBERS[0], OF_ONE_BATCH[0]):
        return False
    ranks, root = processes.agreed.ranks, root_of(told.name)
    named = [node for node in processes.program.nodes_of(told.site.body) if isinstance(node, (ast.Name, ast.Attribute))]
    if not any(origin.kind is Kind.BATCH for node in named for origin in ranks.origins(node)):
        return False  # the run did not see whose batches the function has
    read = [node for node in named if ast.unparse(node) == root]
    return any(map(ranks.has_met, read)) and not any(map(ranks.origins, read))


# ---- batches and evaluation ----------------------------------------------------------------------------------------


def _batch(program: Program, processes: Distribution) -> Iterator[Note]:
    for use in processes.data.uses:
        site = _made(program, use)
        call = site.node
        size = batch_size_of(call) if isinstance(call, ast.Call) else None
        if use.slices is not None:
            size = use.slices.size
            site = replace(site, module=use.slices.scope.module) if size is not None else site
        # A sample of a loader with batches of one may be a batch itself; with none, it is.
        told = None if literal(size) in (None, 1) else size
        batches = f"N batches of `{site.module.text(told)}`" if told is not None else "N batches"
        each = "one per process"
        if use.slices is not None and use.slices.range is not use.loader:
            each += f", out of all that `{use.module.text(use.loader)}` gives in each of them"
        yield notes.note(
            notes.BATCH_SIZE,
            site.module,
            size or call,
            f"with N processes each step averages over {batches}, {each}; the learning rate is not changed",
        )
        return
    for drawn in processes.data.random.values():
        yield notes.note(
            notes.BATCH_SIZE,
            drawn.module,
            drawn.statement,
            "with N processes each step averages over N batches, one drawn here by each process; the learning rate is "
            "not changed",
        )
        return


def _made(program: Program, use: LoaderUse) -> Site:
    """Where a loader is made; where it is iterated, if that is not known."""
    found = [
        Site(located[1].module, located[1], located[0], value.site)
        for value in use.values
        if isinstance(value.site, ast.Call) and (located := program.locate(value.site)) is not None
    ]
    if found:
        return min(found, key=lambda site: (site.line, str(site.module.path)))
    return Site(use.module, use.scope, use.body, use.loader)


def batch_size_of(call: ast.Call) -> ast.expr | None:
    """What a loader's constructor is given for the size of its batches."""
    for item in call.keywords:
        if item.arg == "batch_size":
            return item.value
    return call.args[1] if len(call.args) > 1 and not isinstance(call.args[1], ast.Starred) else None


def _evaluated(program: Program, processes: Distribution) -> Iterator[Note]:
    places: dict[tuple[ast.AST, str], LoaderUse] = {}
    found = [use for use in processes.data.evaluated if _is_measured(program, use)]
    evaluated = [before_the_bar(program, use) for use in found]
    for use in [*evaluated, *_taken_elsewhere(program, processes)]:
        places.setdefault((use.body, use.module.text(use.loader)), use)
    uses = sorted(places.values(), key=lambda use: (str(use.module.path), use.line))
    flagged = [loop for loop in processes.loops if loop.evaluates]
    for loop in flagged[:1]:
        yield notes.note(
            notes.EVALUATION,
            loop.module,
            loop.use.loader,
            f"`{loop.module.text(loop.use.loader)}`: each process trains on its share and evaluates all of the data, "
            "as one process does",
        )
    room = _EVALUATIONS - len(flagged[:1])
    for index, use in enumerate(uses[:room]):
        more = _more(program, use.module, uses[room:]) if index == room - 1 else ""
        yield notes.note(
            notes.EVALUATION,
            use.module,
            use.loader,
            f"`{use.module.text(use.loader)}` is evaluated {_how_far(program, use)} by every process: "
            f"{_shown(program)} are those of one process{more}",
        )
    if not flagged and not uses:
        yield from _evaluated_without_loader(program)


def _evaluated_without_loader(program: Program) -> Iterator[Note]:
    site = next(evaluated_by_index(program), None)
    if site is not None:
        text = (
            f"`{site.module.text(site.node)}` is evaluated by every process: {_shown(program)} are those of one process"
        )
        yield notes.note(notes.EVALUATION, site.module, site.node, text)


def _shown(program: Program) -> str:
    """What an evaluation may show, metrics or pictures; a time only where something in the script measures one."""
    return "the results and the time" if program.calls_to(STOPWATCHES) else "the results"


def _more(program: Program, module: Module, uses: list[LoaderUse]) -> str:
    """What a note on an evaluation says of further ones, by name and place."""
    places = []
    for use in uses:
        line = use.module.line_on_disk(use.line)
        where = f"line {line}" if use.module is module else f"{name_of(program, use.module)}:{line}"
        places.append(f"`{use.module.text(use.loader)}` ({where})")
    return f"; so {'are' if len(uses) > 1 else 'is'} {listed(places, _NAMED)}" if places else ""


def _how_far(program: Program, use: LoaderUse) -> str:
    """``in full``, unless the loop has a ``break`` of its own, which some call turns on."""
    loop = use.loop_around
    off = ConstantTests(program)
    ends = loop is not None and any(
        isinstance(node, ast.Break)
        and not off.keep_out(use.module, node)
        and blocks.loop_around(use.module, node) is loop
        for node in walk(loop)
    )
    return "up to the `break`" if ends else "in full"


def _is_measured(program: Program, use: LoaderUse) -> bool:
    """Whether the loop over a loader runs a model: one that fills a cache, or takes one batch to look at, does not."""
    loop = use.loop_around
    if loop is None or any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in walk(loop)):
        return True  # what it gives its batches to is not known here
    return program.runs_model(loop) or _is_gathered(program, use, loop)


def _is_gathered(program: Program, use: LoaderUse, loop: ast.AST) -> bool:
    """Whether a function gathers the samples of a loader, and then evaluates the trained model on them."""
    if not isinstance(loop, ast.For) or not isinstance(use.body, FunctionNode):
        return False
    if any(map(program.runs_backward, blocks.own_parts(use.body))):
        return False
    filled = {
        node.value.id
        for node in walk(loop)
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name)
    }
    return any(
        not filled.isdisjoint(blocks.reads(item)) and program.runs_forward(item)
        for suite, index in blocks.suites_around(use.module, loop)
        for item in suite[index + 1 :]
    )


def _taken_elsewhere(program: Program, processes: Distribution) -> Iterator[LoaderUse]:
    """Yield loaders that a loop takes batches from by ``next``, and no training step."""
    trained = {value for use in processes.data.uses for value in use.values}
    loops = {loop.node for loop in processes.data.loops}
    for call, body, scope in program.calls():
        around = {item for item in blocks.enclosing(scope.module, call) if isinstance(item, blocks.LOOPS)}
        if around and not around & loops and any(map(program.runs_model, around)):
            for use in processes.batches.loaders.taken(call, Site(scope.module, scope, body, call)):
                if use.values.isdisjoint(trained):
                    yield use


# ---- counts --------------------------------------------------------------------------------------------------------


def _progress(processes: Distribution) -> Iterator[Told]:
    """Yield where a training loop shows what it has counted beside the length of the whole dataset."""
    lengths = processes.whole_lengths
    shares = {node for item in processes.step_counts.counts for node in walk(item.node)}
    for loop in processes.loops:
        for node in of_the_share(processes, loop):
            if node in shares or not isinstance(node, ast.expr) or not lengths.is_length(node, loop.scope):
                continue
            beside = blocks.reads(blocks.statement_of(loop.module, node))
            if is_shown(loop, node) and not beside.isdisjoint({*loop.counters, *loop.sums}):
                rest = (
                    "the samples of all processes, but the loop counts those of one process: the progress stops at 1/N"
                )
                site = Site(loop.module, loop.scope, loop.body, node)
                yield Told(site, loop.module.text(node), f"counts {rest}", f"count {rest}")


def _totals(processes: Distribution) -> Iterator[Told]:
    """Yield sums of one process that are shown as they are."""
    sums = processes.sums
    shares = frozenset(item.node for item in processes.step_counts.counts)
    for place, reduced in sums.places:
        for path in place.sums:
            if path in place.counters | place.steps:
                continue  # all ranks make each step together
            if not sums.is_shown_alone(place, path, shares, reduced=path in reduced):
                continue
            adding = next((node for node in walk(place.node) if path in added_to(node)), place.node)
            if _counts_rounds(place, path):
                continue
            site, rest = (
                Site(place.module, place.scope, place.body, adding),
                "up the batches of one process, about 1/N of",
            )
            yield Told(site, path, f"adds {rest} the data", f"add {rest} the data")


def _counts_rounds(place: Site, path: str) -> bool:
    """Whether a number grows by a constant with each round, as on all ranks: ``iteration = iteration + 1``."""
    additions = [node for node in walk(place.node) if path in added_to(node)]
    return bool(additions) and all(
        isinstance(node, (ast.Assign, ast.AugAssign))
        and isinstance(next(blocks.enclosing(place.module, node), None), blocks.LOOPS)
        and any(isinstance(part, ast.Constant) for part in (node.value, *ast.iter_child_nodes(node.value)))
        for node in additions
    )


def _lists(processes: Distribution) -> Iterator[Told]:
    """Yield where the length of a list is shown that a training loop fills."""
    for place, _ in processes.sums.places:
        for node in place.nodes_following():
            if not (isinstance(node, ast.Call) and blocks.path_of(node.func) == "len" and len(node.args) == 1):
                continue
            path = variable(node.args[0])
            if path in place.lists and is_shown(place, node):
                site, rest = (
                    Site(place.module, place.scope, place.body, node),
                    "the results of one process, about 1/N of",
                )
                yield Told(site, path, f"holds {rest} the data", f"hold {rest} the data")


def _bars(program: Program, processes: Distribution) -> Iterator[Told]:
    """Yield progress bars that are as long as the whole dataset."""
    shares = {node for item in processes.step_counts.counts for node in walk(item.node)}
    for call, body, scope in program.calls():
        if call.args and isinstance(call.args[0], ast.Call) and called_name(call.args[0]) == "range":
            continue  # it goes as far as its numbers do, on each process
        for item in call.keywords:
            if (
                item.arg == "total"
                and item.value not in shares
                and processes.whole_lengths.count(item.value, scope) == "samples"
            ):
                if any(name.startswith("tqdm.") for name in program.callee_names(call, scope)):
                    site, rest = Site(scope.module, scope, body, item.value), "the samples of all processes: the bar of"
                    text = scope.module.text(item.value)
                    yield Told(
                        site, text, f"counts {rest} one process ends at 1/N", f"count {rest} one process ends at 1/N"
                    )
