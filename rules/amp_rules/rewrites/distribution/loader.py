"""Give each process its share of the training data.

## What it does
The loader that feeds a training loop goes through `amp.prepare_loader(...)`: in one process it is the loader itself,
under torchrun each process gets its share, in a new order every epoch. Loaders for evaluation stay whole on
every process.

## Why
Without it every process trains on the same batches: several devices do the work of one. A loader that is evaluated too
is wrapped in the training loop only, so that its metrics stay those of all data. So is a loader whose length goes to a
schedule that is stepped once an epoch, `T_max=len(train_loader)`. A loader from a file in which nothing else changes
is prepared at the variable that takes it; so is one within a tuple at the variable that takes it out, and an entry of
a dictionary that is given to a function for training alone; and an object whose class iterates its loader by
`__iter__`, where others of the class are evaluated. Where one loop goes over `loaders[phase]`, the entry for
training is prepared behind the dictionary, or below what goes over all of it first, for a mean or for counts. Where a
script makes its batches by itself, what its loop iterates is shared out: a list or a generator of batches, the parts
of an order, or the range over their places, `amp.prepare_loader(range(0, len(x), size))`.

## Before
    train_loader = DataLoader(train_set, batch_size=64, shuffle=True)

## After
    train_loader = amp.prepare_loader(DataLoader(train_set, batch_size=64, shuffle=True))

## When it declines
When nothing that can be shared out feeds the loop, or each step trains on all of the data at once; when a loader of
DALI feeds it: each of its pipelines has a GPU and a shuffle of its own; when what chooses the samples, a sampler or a
part of the data, follows the batches that one process has seen; when labels are looked up by the number of the batch,
`labels[i]` of `for i, x in enumerate(loader)`, in the order of all data; when what is shared out comes of an
environment (Gym's), of which each process steps its own; when a generator never ends, and the loop over it is left by
the size of a batch; and when the dataset gives what a counter of its own has come to, whatever its index is, as
`torchio.Queue` does (AMP291).

## Leaving it out
No: every process would train on the same batches.

## Source
https://pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan import declining
from amp_rules.plan.context import Change, Context
from amp_rules.plan.counted_batches import counted_batches
from amp_rules.plan.datasets_that_go_on import going_on
from amp_rules.plan.declining import Declined
from amp_rules.plan.distribution import Distribution
from amp_rules.plan.endless_batches import left_by_size
from amp_rules.plan.file_names import line_of, name_of
from amp_rules.plan.first_batches import first_batches
from amp_rules.plan.function_memories import function_memories
from amp_rules.plan.labels_by_place import looked_up_by_place
from amp_rules.plan.left_unfollowed import unfound_batches
from amp_rules.plan.loaders_to_prepare import share
from amp_rules.plan.process_notes import of_loaders
from amp_rules.plan.report import Note
from amp_rules.plan.rule import EVERY_OTHER, Rule
from amp_rules.plan.sample_queues import sample_queues
from amp_rules.plan.sample_tables import sample_tables
from amp_rules.plan.stepped_environments import passes_on_own_steps
from amp_rules.plan.unfollowed_batches import loader_that_may_feed
from amp_rules.plan.unresolved import loop_trail
from amp_rules.plan.wanted import wants
from amp_rules.plan.whole_data import all_of_the_data
from amp_rules.ranks.origins import Kind
from amp_rules.roles.batches import TrainingData
from amp_rules.roles.environments import environment_of
from amp_rules.roles.loader_arguments import given_to_loader
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Backward, Site
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.torch.data import PIPELINES
from amp_rules.torch.frameworks import STEP_ENGINES
from amp_rules.torch.optimizers import FUSED_OPTIMIZERS

_CHOOSING = ("dataset", "sampler", "batch_sampler")
"""Arguments of a loader that say which samples it gives, and in which order."""

_SHARING = "AMP223"
"""The code of that rewrite, which may be left out."""

RULE = Rule(
    "AMP202",
    "prepare-loader",
    "Each process gets its share of the training data.",
    "distribution",
    # A loader is prepared where it is made, unless that alone would change the file.
    after=(EVERY_OTHER,),
)


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each loader of training data."""
    told = context.processes.told
    loaders, rebindings = share(context.program, told.data, _changed(context, context.processes))
    sliced = told.data.sliced
    for site in loaders:
        assert isinstance(site.node, ast.expr)
        message = f"`{site.module.text(site.node)}` gives each process its share"
        message += " of the batches" if site.node in sliced else ", in a new order every epoch"
        written = context.vocabulary.loader(site.module, site.node, _variable(site))
        yield Change.written(RULE, site.module, site.node, message, written)
    for rebinding in [*rebindings, *told.rebindings]:
        message = f"`{rebinding.variable}` gives each process its share, in a new order every epoch"
        written = context.vocabulary.loader_of(
            rebinding.module,
            rebinding.statement,
            rebinding.variable,
            after=rebinding.after,
            condition=rebinding.condition,
        )
        yield Change.written(RULE, rebinding.module, rebinding.statement, message, written)


def _variable(site: Site) -> str | None:
    """The variable that the loader is assigned to, if a line after it can assign it again."""
    statement = site.statement
    if not isinstance(statement, ast.Assign) or statement.value is not site.node or len(statement.targets) != 1:
        return None
    (target,) = statement.targets
    return None if isinstance(target, ast.Subscript) else blocks.path_of(target)


def reasons(context: Context) -> Iterator[Declined]:
    """Yield where the training data cannot be shared out."""
    data = context.processes.data
    yield from _unfed(context.program, data)
    yield from _counted(context.program, context.processes)
    yield from context.processes.told.reasons
    yield from _mixed(data)
    yield from _pipelines(data)
    yield from _endless(context.program, data)
    yield from _first(context.program, data)
    tables = [*_tables(context.program, data)]
    yield from tables or _orders(context.processes)
    yield from _by_place(context.processes)
    yield from _of_own_environments(context.processes)


def notes(context: Context) -> Iterator[Note]:
    """Yield how large the batch becomes, and what is evaluated."""
    yield from of_loaders(context.program, context.processes, shares_evaluation=_shares_evaluation(context))


def _shares_evaluation(context: Context) -> bool:
    """Whether another rewrite says what becomes of evaluations."""
    return context.options.shard_eval and wants(context.options, _SHARING)


def _changed(context: Context, distribution: Distribution) -> set[Module]:
    """The files that change in any case, by the other rewrites."""
    fused = context.program.calls_to(frozenset(f"torch.optim.{name}" for name in FUSED_OPTIMIZERS))
    precision = distribution.precision
    # A script with a mixed precision of its own, or with Apex's models prepared, changes there by other rewrites.
    return {
        context.program.entry,
        *(site.module for site in [*precision.backwards, *precision.steps]),
        *(run.module for run in precision.runs),
        *(home.module for home in precision.homes),
        *(change.module for change in context.made),
        *(module for module, _ in distribution.downloads),
        *(site.module for site in fused),
    }


def _unfed(program: Program, data: TrainingData) -> Iterator[Declined]:
    """Yield backward passes whose batches come from no loader and are not drawn at random either."""
    environment = environment_of(program) if data.unfed else None
    loader = loader_that_may_feed(program, data) if data.unfed else None
    for site in data.unfed:
        if site.node not in data.random:
            message, recipe = _why_unfed(program, site, environment, loader)
            yield declining.decline(declining.HAND_BATCHES, site.module, site.node, message, recipe)


def _why_unfed(program: Program, site: Backward, environment: Site | None, loader: Site | None) -> tuple[str, str]:
    """What is said of a pass without a loader, and what to do."""
    loss = site.module.text(site.loss)
    whole = all_of_the_data(program, site)
    if whole:
        given = ", ".join(f"`{item}`" for item in whole)
        return (
            f"each step trains on all of the data at once ({given}): there are no batches that the processes could "
            "share",
            "use `--no-ddp`; or make batches of parts of the data, by a DataLoader",
        )
    caller = _calls_back(program, site)
    if caller is not None:
        return (
            f"the batches of `{loss}` come through `{caller}`, whose loop is not followed: it is not known which "
            "loader feeds it",
            "give its `run` the loader as `amp.prepare_loader(...)`, wrap the model, and let one rank write "
            "checkpoints and logs, by hand",
        )
    if loader is not None:
        return (
            f"how the batches of `{loss}` come from a DataLoader is not followed: it is not known whether the one of "
            f"line {loader.told_line} of {name_of(program, loader.module)} feeds it",
            "iterate over the DataLoader in the loop that trains; or wrap it in `amp.prepare_loader(...)` by hand, "
            "with all that several processes need",
        )
    if environment is not None:
        return (
            f"no DataLoader feeds `{loss}`: each process would step an environment of its own "
            f"(`{environment.module.text(environment.node)}`), and nothing says how the steps are shared out",
            "use `--no-ddp`; or give each rank its share of the environments by "
            "`amp.rank()` and `amp.world_size()`, and as many steps between two updates as the others",
        )
    given = loop_trail(program, site)
    if given:
        return (
            f"it is not known whether a DataLoader feeds `{loss}`: its batches come from {given}",
            "migrate the script that makes the loader; or wrap it there in `amp.prepare_loader(...)`, by hand",
        )
    unfound = unfound_batches(program, site)
    if unfound is not None:
        return (
            f"it is not known whether a DataLoader feeds `{loss}`: `{unfound[0]}` comes of `{unfound[1]}`, which was "
            "not found in this project",
            "start from a folder that has it; or wrap the loader in `amp.prepare_loader(...)` by hand, with all that "
            "several processes need",
        )
    return (
        f"no DataLoader feeds `{loss}`, and nothing else says which part of the data each process would get",
        "put the data in a Dataset and a DataLoader, or give each rank its share by `amp.rank()` and "
        "`amp.world_size()`; a loss that is no mean over samples, but of all of them at once, needs `--no-ddp`",
    )


def _endless(program: Program, data: TrainingData) -> Iterator[Declined]:
    """Yield loops over a generator that never ends, which are left by the size of a batch."""
    for use, test in left_by_size(program, data):
        assert isinstance(use.node, ast.expr)
        yield declining.decline(
            declining.HAND_BATCHES,
            use.module,
            use.node,
            f"`{use.module.text(use.node)}` never ends, and the loop is left by the size of a batch "
            f"(`{use.module.text(test)}`): when one process has the last batch, another already has what comes behind "
            "it, which holds no samples",
            "let the generator end behind its last batch",
        )


def _calls_back(program: Program, site: Site) -> str | None:
    """The call that hands a step's function to a library, which alone calls it: ``Engine(step)``."""
    info = program.function_of(site.body)
    if info is None or program.flow.callers(info):
        return None
    for call, _, scope in program.calls():
        if not program.callee_names(call, scope) & STEP_ENGINES:
            continue
        for given in [*call.args, *(item.value for item in call.keywords)]:
            values = program.flow.values(given, scope) if isinstance(given, (ast.Name, ast.Attribute)) else set()
            if any(value.kind == "function" and value.ref is info for value in values):
                return scope.module.text(call)
    return None


def _tables(program: Program, data: TrainingData) -> Iterator[Declined]:
    """Yield tables with a row for each sample, of which a process would write only those of its share."""
    queues = [*sample_queues(program, data), *function_memories(program, data)]
    for site in sample_tables(program, data):
        if any(site.node is queue.node for queue in queues):
            continue
        yield declining.decline(
            declining.HAND_BATCHES,
            site.module,
            site.node,
            f"`{site.table}` has a row for each sample: each process would write the rows of its share, and the other "
            "rows would stay old",
            f"write the rows of all processes: `amp.gather(...)` of the indices and of what `{site.table}` is given",
        )
    for item in going_on(program, data):
        yield declining.decline(declining.HAND_BATCHES, item.module, item.node, item.text, item.recipe)
    for site in queues:
        yield declining.decline(
            declining.HAND_BATCHES,
            site.module,
            site.node,
            f"`{site.table}` keeps samples of earlier batches: each process would keep samples of its own share, or "
            "all processes those of rank 0",
            f"write the samples of all processes: `amp.gather(...)` of what `{site.table}` is given",
        )


def _orders(processes: Distribution) -> Iterator[Declined]:
    """Yield what chooses the samples of a shared loader, and rests on the batches that one process has seen."""
    program, ranks = processes.program, processes.agreed.ranks
    calls = {
        value.site: None for use in processes.data.uses for value in use.values if isinstance(value.site, ast.Call)
    }
    for call in calls:
        located = program.locate(call)
        if located is None:
            continue
        module = located[1].module
        given = [item for name in _CHOOSING if (item := given_to_loader(call, name)) is not None]
        for item in given:
            origins = [origin for origin in ranks.origins(item) if origin.kind is Kind.BATCH]
            if not origins:
                continue
            cause = min(origins, key=lambda origin: (origin.line, str(origin.module.path), origin.text))
            place = line_of(program, cause.module, cause.line, module)
            yield declining.decline(
                declining.HAND_BATCHES,
                module,
                item,
                f"`{module.text(item)}` chooses the samples by what one process has seen of its batches "
                f"(`{cause.text}`, {place}): each process would choose others",
                "make what it is made of the same on all ranks first: `amp.gather(...)` of the indices and of their "
                "values, or `amp.reduce_mean(value)`",
            )


def _by_place(processes: Distribution) -> Iterator[Declined]:
    """Yield what a batch is compared with, and that is looked up by the number of the batch."""
    for site in looked_up_by_place(processes):
        text = site.module.text(site.node)
        table = site.module.text(site.node.value)  # type: ignore[attr-defined]
        yield declining.decline(
            declining.HAND_BATCHES,
            site.module,
            site.node,
            f"`{text}` belongs to a batch by its number in the order of all data: each process would count the batches "
            f"of its share by `{site.counter}`, and take what belongs to others",
            f"put `{table}` into the dataset, so that each batch brings its own",
        )


def _of_own_environments(processes: Distribution) -> Iterator[Declined]:
    """Yield passes whose batches are made of what each process gets from an environment of its own."""
    for site, environment in passes_on_own_steps(processes):
        made = environment.module.text(environment.node)
        yield declining.decline(
            declining.HAND_BATCHES,
            site.module,
            site.node,
            f"`{site.module.text(site.loss)}` is computed from what an environment gives (`{made}`), of which each "
            "process would step its own: a share of what one process has stored is no share of what all have",
            "use `--no-ddp`; or let each process train on all that it has stored, with an environment of another "
            "seed by `amp.rank()`, and take as many steps between two updates as the others",
        )


def _mixed(data: TrainingData) -> Iterator[Declined]:
    """Yield loops that evaluate what one generator gives them and a training loop."""
    for site in data.mixed:
        iterated: ast.expr = site.node.iter  # type: ignore[attr-defined]
        text = site.module.text(iterated)
        yield declining.decline(
            declining.HAND_BATCHES,
            site.module,
            iterated,
            f"`{text}` also feeds a training loop: this loop would get only a share of the batches",
            "iterate `amp.prepare_loader(...)` of it in the training loop, and leave this loop unchanged",
        )


def _pipelines(data: TrainingData) -> Iterator[Declined]:
    """Yield iterators over pipelines on a GPU: all would decode on one, and each may shuffle in an order of its own."""
    for use in data.uses:
        if any(value.name.startswith(PIPELINES) for value in use.values):
            yield declining.decline(
                declining.HAND_BATCHES,
                use.module,
                use.loader,
                f"`{use.module.text(use.loader)}` iterates a pipeline of DALI, which decodes on a GPU of its own and "
                "shuffles by itself: no share of it can be taken from outside",
                "give each rank's pipeline `device_id=amp.local_rank()`, and its reader `shard_id=amp.rank()` and "
                "`num_shards=amp.world_size()`",
            )


def _first(program: Program, data: TrainingData) -> Iterator[Declined]:
    """Yield loaders of one task each, which a rank's share would leave incomplete."""
    for site in first_batches(program, data):
        yield declining.decline(
            declining.HAND_BATCHES,
            site.module,
            site.node,
            f"each iteration makes `{site.module.text(site.node)}` again and takes one batch of it; a share would "
            "make this batch smaller",
            "let each rank draw whole tasks of its own: `amp.seed_by_rank()` before the loop, and the loader as it is",
        )


def _counted(program: Program, processes: Distribution) -> Iterator[Declined]:
    """Yield loops that count an epoch's batches by hand and take them by ``next``: a share has fewer."""
    for site in counted_batches(program, processes.data, processes.whole_lengths, processes.step_counts.counts):
        assert isinstance(site.node, ast.For)
        text = site.module.text(site.node.iter)
        if site.iterator is not None:
            yield declining.decline(
                declining.HAND_BATCHES,
                site.module,
                site.node,
                f"`{text}` asks `{site.iterator}` for that many batches, and nothing begins it anew where it ends; "
                "each process has only a share of the batches, which may be fewer",
                "iterate over the loader itself; or begin it anew by `except StopIteration`",
            )
            continue
        yield declining.decline(
            declining.HAND_BATCHES,
            site.module,
            site.node,
            f"`{text}` counts the batches of all processes; each process has only a share of them",
            "write `range(len(loader))`, or iterate over the loader itself",
        )
