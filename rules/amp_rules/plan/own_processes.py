"""Scripts that start or join processes of their own."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.plan.library_uses import first_use, uses
from amp_rules.plan.worker_functions import training_workers
from amp_rules.roles.steps import Program
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.torch.data import DISTRIBUTED_SAMPLERS
from amp_rules.torch.distributed import ASKS_GROUP, EXCHANGES, JOINING_WORDS, JOINS, OWN_DISTRIBUTION
from amp_rules.torch.wrappers import DISTRIBUTED_DATA_PARALLEL

_SERVES = DISTRIBUTED_SAMPLERS | DISTRIBUTED_DATA_PARALLEL | {"torch.distributed.destroy_process_group"}
"""What is used within a group of processes, and joins none."""


def reasons(program: Program) -> Iterator[Declined]:
    """Yield where the program starts or joins processes of its own."""
    found = first_use(program, OWN_DISTRIBUTION, lambda name, node, module: name in ASKS_GROUP)
    if found is not None:
        module, node, name = found
        message = f"the script sets up several processes itself (`{name}`)"
        recipe = "nothing to do for several processes; remove its own set-up first to have it written anew"
        lacking = _lacking(program, name)
        if lacking:
            message = lacking
            recipe = "remove its own set-up, with what only serves it, to have it written anew; or complete it by hand"
        yield declining.decline(declining.OWN_DISTRIBUTION, module, node, message, recipe, already=not lacking)
    elif (asked := first_use(program, OWN_DISTRIBUTION, lambda _, *place: _is_idle(program, *place))) is not None:
        module, node, name = asked
        yield declining.decline(
            declining.OWN_DISTRIBUTION,
            module,
            node,
            f"`{name}` asks for a group of processes, which nothing that the script runs joins: what the code around "
            "it does in several processes is not known",
            "take it out, with what only serves it; or keep it, and join the processes and wrap the model by hand",
        )
    for call, _, scope in program.calls():
        names = program.callee_names(call, scope)
        spawned = [
            name
            for name in names
            if name.startswith(("torch.multiprocessing.", "multiprocessing."))
            and name.rpartition(".")[2] in ("spawn", "Process", "start_processes")
        ]
        shared = (
            isinstance(call.func, ast.Attribute)
            and call.func.attr == "share_memory"
            and program.roles.modules(call.func.value, scope)
        )
        if spawned or shared:
            yield declining.decline(
                declining.OWN_DISTRIBUTION,
                scope.module,
                call,
                f"`{scope.module.text(call)}` makes processes of its own",
                "start the processes with torchrun instead, and train one model in each",
                already=not shared,
            )
    for site, info in training_workers(program):
        yield declining.decline(
            declining.OWN_DISTRIBUTION,
            site.module,
            site.node,
            f"`{info.name}` trains in processes of its own",
            "start the processes with torchrun instead, and train one model in each",
        )


def _lacking(program: Program, name: str) -> str:
    """What processes of the script's own lack for certain; empty where they may be complete."""
    used = {used for _, _, used in uses(program, OWN_DISTRIBUTION)}
    texts = [module.source.text for module in program.flow.modules]
    if not used <= ASKS_GROUP | JOINS | _SERVES:
        return ""
    if not used & JOINS and not any(word in text for word in JOINING_WORDS for text in texts):
        return f"`{name}` is for a group of processes, which nothing that the script runs joins"
    if used & JOINS and not used & (EXCHANGES | DISTRIBUTED_DATA_PARALLEL):
        if not any("DistributedDataParallel" in text or "DDP" in text for text in texts):
            return (
                f"`{name}` joins processes, but nothing averages their gradients: each would train a model of its own"
            )
    return ""


def _is_idle(program: Program, node: ast.AST, module: Module) -> bool:
    """Whether a use stands in a function that nothing in the program calls or mentions: a method that nobody needs."""
    info = program.function_of(blocks.body_of(module, node))
    if info is None or isinstance(info.node, ast.Lambda) or info.decorator_list or program.flow.callers(info):
        return False
    if info.name.startswith("__"):
        return False  # Python itself calls it
    owner = program.flow.class_of(info)
    if owner is not None and owner.external_bases() - {"builtins.object"}:
        return False  # a library that knows the base can call it
    return info.name not in _mentioned(program)


def _mentioned(program: Program) -> set[str]:
    """The names and texts in what the program runs, by which a function could be reached."""
    found: set[str] = set()
    for other, _, scope in program.nodes():
        if isinstance(other, ast.Attribute):
            if not program.names(other, scope):  # a library's own: ``dist.all_reduce``
                found.add(other.attr)
        elif isinstance(other, ast.Name):
            found.add(other.id)
        elif isinstance(other, ast.Constant) and isinstance(other.value, str):
            found.add(other.value)
    return found
