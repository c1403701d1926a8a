"""Scripts that start or join processes of their own."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator

from amp_rules.plan import declining
from amp_rules.plan.constant_tests import ConstantTests
from amp_rules.plan.declining import Declined, decline_at_first
from amp_rules.plan.file_names import name_of
from amp_rules.plan.group_guards import GroupGuards
from amp_rules.plan.guarded_exchanges import Use, against
from amp_rules.plan.library_uses import first_use, uses
from amp_rules.plan.own_ddp.averaging import may_average, may_wrap
from amp_rules.plan.own_ddp.group import OwnGroup, is_own, joins_run, looked_after
from amp_rules.plan.own_ddp.idle import is_idle, is_within_idle, mentioned
from amp_rules.plan.own_ddp.other_processes import calls_itself_alone
from amp_rules.plan.own_ddp.written_ranks import is_of_one
from amp_rules.plan.taken_gradients import not_averaged
from amp_rules.plan.training_loops import SHOWING
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.roles.uncalled import uncalled
from amp_rules.roles.workers import training_workers, workers
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.syntax import called_name, last_name
from amp_rules.torch.data import DISTRIBUTED_SAMPLERS
from amp_rules.torch.distributed import (
    ASKS_GROUP,
    ASKS_RANK,
    EXCHANGES,
    GETS_WORLD_SIZE,
    JOINING_WORDS,
    JOINS,
    LIBRARY_LAUNCHERS,
    OF_ONE_PROCESS,
    OLD_PIPELINE,
    OWN_DISTRIBUTION,
    OWN_SHARDING,
    PROCESSES,
    RPC,
)
from amp_rules.torch.frameworks import JOINS_PROCESSES, OWN_FRAMEWORK, looks_after_processes
from amp_rules.torch.wrappers import DISTRIBUTED_DATA_PARALLEL, FULLY_SHARDED

_SERVES = DISTRIBUTED_SAMPLERS | DISTRIBUTED_DATA_PARALLEL | {"torch.distributed.destroy_process_group"}
"""What is used within a group of processes, and joins none."""

COMPLETE = "AMP230 to AMP239 find nothing to add; it stays as it is"
"""What is said of processes that were looked at, where nothing is told to be left as it is."""

_NOT_LOOKED_AT = "these processes were not checked for missing parts; they stay as they are"
_BY_HAND = "wrap the model by hand in `torch.nn.parallel.DistributedDataParallel`"
_SHARE = " and give each process its share of the data"
_KEPT_IDLE = "it stays as it is for one process; for several, create the process group and wrap the model by hand"
_WITH_TORCHRUN = "start the processes with torchrun instead, and train one model in each"


def _not_looked_at(program: Program) -> str:
    """What is said of processes that were not looked at, with what stands in the way."""
    use = looked_after(program)
    if use is not None and use[2].startswith(OWN_SHARDING):
        # A policy, or a strategy, is only given to what wraps the model.
        wraps = ((site.module, site.node, min(_names_of(program, site))) for site in program.calls_to(FULLY_SHARDED))
        use = next(wraps, use)
    unknown = _joining_elsewhere(program) if use is None and next(joins_run(program), None) is None else None
    if unknown is not None:
        module, called = unknown
        where = f"line {module.line_on_disk(called.lineno)} of {name_of(program, module)}"
        return f"{_NOT_LOOKED_AT}: `{module.text(called)}` ({where}) was not found"
    if use is None:
        return _NOT_LOOKED_AT
    module, node, name = use
    where = f"line {module.line_on_disk(getattr(node, 'lineno', 1))} of {name_of(program, module)}"
    return f"{_NOT_LOOKED_AT}: `{name}` ({where}) may look after them"


def reasons(program: Program, *, is_understood: bool = True) -> Iterator[Declined]:
    """Yield where the program starts or joins processes of its own.

    Args:
        program: the program.
        is_understood: whether its training step is: what is taken out is written anew only then.
    """
    behind = guarded_uses(program)
    is_alone = _within_one(program)
    found = first_use(program, OWN_DISTRIBUTION, lambda name, _node, _module: name in ASKS_GROUP or is_alone(name))
    if behind:
        fault = against(program, behind)
        if fault is not None:
            use, message, recipe = fault
            yield declining.decline(declining.OWN_DISTRIBUTION, use.module, use.node, message, recipe)
    elif found is not None and (parted := not_averaged(program)) is not None:
        yield parted
    elif found is not None:
        module, node, name = found
        joining = next(joins_run(program), None) or next(iter(program.calls_to(LIBRARY_LAUNCHERS)), None)
        if joining is not None:
            names = _names_of(program, joining) & (JOINS | LIBRARY_LAUNCHERS)
            module, node, name = joining.module, joining.node, min(names)
        elif (run := _first_run(program)) is not None:
            module, node, name = run  # a helper that joins, and that nothing calls, says nothing
        message = f"the script already sets up distributed training (`{name}`)"
        recipe = COMPLETE if is_own(program) else _not_looked_at(program)
        lacking = _lacking(program, name)
        if lacking is not None:
            message, by_hand = lacking
            # Without its set-up, what uses it (``model.module``, ``if rank == 0:``) stops a script; others may need it.
            elsewhere = "" if module is program.entry else ", unless other scripts need it"
            anew = f", or remove its set-up with all that uses it{elsewhere}, and the migration writes a new set-up"
            recipe = by_hand + (anew if is_understood else "")
        yield declining.decline(declining.OWN_DISTRIBUTION, module, node, message, recipe, already=lacking is None)
    elif not is_understood and first_use(program, JOINS_PROCESSES):
        return  # a framework that runs the step creates the group
    elif (asked := _asked(program)) is not None:
        module, node, name = asked
        yield declining.decline(
            declining.OWN_DISTRIBUTION,
            module,
            node,
            f"`{name}` uses a process group, which nothing in the script creates: it is not known what the code "
            "around it does with several processes",
            _KEPT_IDLE + (", or write what one process does in its place" if is_understood else ""),
        )
    yield from _started(program)


def _within_one(program: Program) -> Callable[[str], bool]:
    """Which names speak of no other process: RPC that is opened for one alone, and the pipeline in that."""
    parts = (RPC, OLD_PIPELINE) if calls_itself_alone(program) else ()
    return lambda name: name.startswith((*parts, *OF_ONE_PROCESS))


def _uses(program: Program) -> Iterator[tuple[Module, ast.AST, str]]:
    """The places where code that can run uses what distributes training."""
    return (use for use in uses(program, OWN_DISTRIBUTION) if not use[2].startswith(OF_ONE_PROCESS))


def _first_run(program: Program) -> tuple[Module, ast.AST, str] | None:
    """The first use of several processes that is not in a function which nothing calls."""
    for module, node, name in _uses(program):
        if name not in ASKS_GROUP and not is_within_idle(program, node, module):
            return module, node, name
    return None


def _names_of(program: Program, site: Site) -> set[str]:
    assert isinstance(site.node, ast.Call)
    return program.callee_names(site.node, site.scope)


def guarded_uses(program: Program) -> list[Use]:
    """Where a program that creates no process group uses one, if each of these places asks for it first.

    Returns:
        The places; none where some place does not ask, where a group may be created in a way that was not followed, and
        where nothing but the rank is asked for.
    """
    if not any(name.startswith("torch.distributed") for name in program.flow.imported):
        if not any(module.source.text.count("torch.distributed") for module in program.flow.modules):
            return []
    idle = uncalled(program)
    found = [
        Use(module, node, name)
        for module, node, name in _uses(program)
        if blocks.body_of(module, node) not in idle and not is_idle(program, node, module)
    ]
    names = {use.name for use in found}
    if names <= ASKS_RANK or names & JOINS or first_use(program, JOINS_PROCESSES):
        return []
    if _may_join(program, idle):
        return []
    guards = GroupGuards(program)
    asking = [use for use in found if use.name not in ASKS_RANK]
    return found if all(guards.keep_out(use.module, use.node) for use in asking) else []


def _may_join(program: Program, idle: Collection[ast.AST] = ()) -> bool:
    """Whether something that was not followed may create a group; a helper that nothing calls does not."""
    mentions = mentioned(program, idle)
    joining = {mention for word in JOINING_WORDS for mention in mentions if word in mention}
    if not all(_joins_nothing(program, mention) for mention in joining):
        return True
    return _joining_elsewhere(program, idle) is not None


def _joins_nothing(program: Program, name: str) -> bool:
    """Whether the script has functions of a name, and these call nothing that could join processes: yet to be written.

    Other functions of the project that they call are not asked.
    """
    named = [info for info in program.flow.functions.values() if info.name == name]
    return bool(named) and all(
        _joins_none(program, node)
        for info in named
        for node in program.nodes_of(info.node)
        if isinstance(node, ast.Call)
    )


def _joins_none(program: Program, call: ast.Call) -> bool:
    located = program.locate(call)
    names = program.callee_names(call, located[1]) if located is not None else set()
    return bool(names) and all(name.startswith(_JOIN_NONE) for name in names) and not names & JOINS


_JOIN_NONE = ("builtins.", "logging.", "os.", "torch.cuda.", "torch.device")
"""What is called to say something, and to look at the environment and the GPUs."""


def _joining_elsewhere(program: Program, idle: Collection[ast.AST] = ()) -> tuple[Module, ast.expr] | None:
    """What joins processes by its name, and is not there: ``misc.init_distributed_mode(args)``."""
    for call, body, scope in program.calls():
        if body in idle or not any(word in last_name(call.func) for word in JOINING_WORDS):
            continue
        names = program.callee_names(call, scope)
        if not program.flow.callees(call) and not any(name.startswith("torch.") for name in names):
            return scope.module, call.func
    return None


def _asked(program: Program) -> tuple[Module, ast.AST, str] | None:
    """Where the program asks for a group of processes that nothing joins.

    A logger that only asks for its rank does with several processes what its author meant for them: which values
    differ between ranks by that is followed like all that differs.
    """
    if first_use(program, OWN_FRAMEWORK, lambda name, _node, _module: not looks_after_processes(name)) is not None:
        return None  # a framework creates the group
    off = ConstantTests(program)
    is_alone = _within_one(program)
    asking = [use for use in uses(program, OWN_DISTRIBUTION) if not is_alone(use[2])]
    asking = [use for use in asking if not is_idle(program, use[1], use[0])]
    left = [use for use in asking if use[2] in ASKS_RANK or not off.keep_out(use[0], use[1])] if asking else []
    left = [use for use in left if not (use[2] in GETS_WORLD_SIZE and _is_shown(use[0], use[1]))]
    return next((use for use in left if use[2] not in ASKS_RANK), None)


def _is_shown(module: Module, node: ast.AST) -> bool:
    """Whether a number of processes is part of what a statement only shows: ``logger.info("%d", size * world)``."""
    statement = blocks.statement_of(module, node)
    return isinstance(statement, ast.Expr) and called_name(statement.value) in SHOWING


def _started(program: Program) -> Iterator[Declined]:
    """Yield where a program without a group starts processes, or shares a model with others."""
    training = {info.node for _, info in training_workers(program)}
    starts = {site.node for site in program.calls_to(PROCESSES)}
    run = defaultdict[ast.AST, list[FunctionFacts]](list)
    for site, info in workers(program):
        run[site.node].append(info)
    for call, _, scope in program.calls():
        text = scope.module.text(call)
        message, recipe = "", _WITH_TORCHRUN
        if call in starts:
            functions = run[call]
            if not functions:
                message = f"`{text}` starts a process, and what it runs is not known"
                recipe = "start what trains with torchrun instead, and other processes on one rank, by hand"
            elif not any(info.node in training for info in functions):
                message = (
                    f"`{text}` runs `{functions[0].name}` in another process beside the training: each rank "
                    "would start one"
                )
                recipe = "do its work in the workers of a DataLoader, or start it by hand on one rank"
            else:
                message = f"`{text}` starts its own processes, and nothing puts them into a process group"
        elif (
            # With no process to share it with, the model only lies in other memory.
            starts
            and isinstance(call.func, ast.Attribute)
            and call.func.attr == "share_memory"
            and program.roles.modules(call.func.value, scope)
        ):
            message = f"`{text}` shares the weights of one model with other processes"
        if message:
            yield declining.decline(declining.OWN_DISTRIBUTION, scope.module, call, message, recipe)
    for site, info in training_workers(program):
        message = f"`{info.name}` trains in its own processes"
        yield declining.decline(declining.OWN_DISTRIBUTION, site.module, site.node, message, _WITH_TORCHRUN)


def lacks_a_part(program: Program) -> bool:
    """Whether processes of the script's own lack for certain what no rewrite adds, so that distribution declines."""
    return _lacking(program, "") is not None


def averages_nothing(program: Program) -> bool:
    """Whether nothing takes gradients from one process to another.

    Where no backward pass was found, what wraps the model may stand in what was not followed either.
    """
    return bool(program.backwards) and not may_wrap(program) and not may_average(program)


def _lacking(program: Program, name: str) -> tuple[str, str] | None:
    """What processes of the script's own lack for certain, and how it is added; None where they may be complete."""
    used = {used for module, node, used in _uses(program) if not is_within_idle(program, node, module)}
    if not used <= ASKS_GROUP | EXCHANGES | JOINS | _SERVES:
        return None
    is_joined = bool(used & JOINS or program.calls_to(LIBRARY_LAUNCHERS))
    if not is_joined and not _may_join(program):
        message = f"`{name}` needs a process group, which nothing in the script creates"
        return message, "create the group by hand with `torch.distributed.init_process_group`"
    if used & JOINS and averages_nothing(program):
        joining = min(used & JOINS)
        message = (
            f"`{joining}` creates a process group, but nothing averages the gradients: each process would train "
            "its own model"
        )
        return message, _BY_HAND + ("" if program.calls_to(DISTRIBUTED_SAMPLERS) else _SHARE)
    if used & JOINS and not program.calls_to(LIBRARY_LAUNCHERS) and is_of_one(OwnGroup(program)):
        message = (
            f"`{min(used & JOINS)}` creates a group of one process (`rank=0`, `world_size=1`): nothing is distributed "
            "over processes"
        )
        return message, (
            "leave `rank`, `world_size` and an address out, and give each process its GPU, its share of the data "
            "(`DistributedSampler`) and the files to rank 0 by hand"
        )
    return None


def own_distribution(program: Program) -> Declined | None:
    """Why several processes are the script's own matter, where they are."""
    try:
        decline_at_first(reasons(program))
    except Declined as own:
        return own
    return None
