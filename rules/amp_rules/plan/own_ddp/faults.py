"""What is wrong with a script's own processes and no rewrite of ours mends: each told at its place.

The rewrites add what is missing. What a script does wrong itself stays: mending it means to know what was meant.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from functools import partial

from amp_rules.checks.common.around_wrappers import passes_around
from amp_rules.flow.values import Value
from amp_rules.plan.listing import listed
from amp_rules.plan.own_ddp.arrays_of_all import arrays_of_all
from amp_rules.plan.own_ddp.asked_early import asked_early, counted_early
from amp_rules.plan.own_ddp.asked_of_wrapper import asked_of_wrapper
from amp_rules.plan.own_ddp.augmented_alike import augmented_alike
from amp_rules.plan.own_ddp.averages_by_gpus import averages_by_gpus
from amp_rules.plan.own_ddp.averaging import may_average
from amp_rules.plan.own_ddp.backwards_of_one_pass import backwards_of_one_pass
from amp_rules.plan.own_ddp.barriers_never_run import barriers_never_run
from amp_rules.plan.own_ddp.called_bare import called_bare, taken_off
from amp_rules.plan.own_ddp.configured_ranks import configured_ranks
from amp_rules.plan.own_ddp.data_parallel_inside import data_parallel_around, data_parallel_inside
from amp_rules.plan.own_ddp.device_taken_early import device_taken_early
from amp_rules.plan.own_ddp.drawn_alike import drawn_alike
from amp_rules.plan.own_ddp.drawn_by_themselves import drawn_by_themselves
from amp_rules.plan.own_ddp.drawn_once_wrapped import drawn_once_wrapped
from amp_rules.plan.own_ddp.drawn_weights import drawn_weights
from amp_rules.plan.own_ddp.dropped_results import dropped_results
from amp_rules.plan.own_ddp.exchanged_by_one import exchanged_by_one
from amp_rules.plan.own_ddp.failed_alone import failed_alone
from amp_rules.plan.own_ddp.files_of_all import files_of_all
from amp_rules.plan.own_ddp.fixed_sizes import fixed_sizes, one_gpu
from amp_rules.plan.own_ddp.folders_by_clock import folders_by_clock
from amp_rules.plan.own_ddp.forwards_of_one import forwards_of_one
from amp_rules.plan.own_ddp.gone_calls import gone_calls
from amp_rules.plan.own_ddp.joined_in_rounds import joined_in_rounds
from amp_rules.plan.own_ddp.joined_twice import joined_twice
from amp_rules.plan.own_ddp.kept_before import kept_before
from amp_rules.plan.own_ddp.known_to_first import known_to_first
from amp_rules.plan.own_ddp.left_by_errors import left_by_errors
from amp_rules.plan.own_ddp.loaded_into_wrapper import loaded_into_wrapper
from amp_rules.plan.own_ddp.local_ranks import gpus_by_rank, local_ranks
from amp_rules.plan.own_ddp.masks_alike import masks_alike
from amp_rules.plan.own_ddp.meters_of_one import meters_of_one
from amp_rules.plan.own_ddp.no_sync_below import no_sync_below
from amp_rules.plan.own_ddp.one_device import one_device
from amp_rules.plan.own_ddp.opened_by_mode import opened_by_mode
from amp_rules.plan.own_ddp.options_in_spawned import options_in_spawned
from amp_rules.plan.own_ddp.options_never_made import options_never_made
from amp_rules.plan.own_ddp.options_of_no_launcher import options_of_no_launcher
from amp_rules.plan.own_ddp.orders_apart import orders_apart
from amp_rules.plan.own_ddp.passes_apart import passes_apart
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.ranks_of_mpi import ranks_of_mpi
from amp_rules.plan.own_ddp.ranks_of_options import ranks_of_options
from amp_rules.plan.own_ddp.rates_apart import rates_apart, set_by_one
from amp_rules.plan.own_ddp.read_early import read_early
from amp_rules.plan.own_ddp.read_half_written import read_half_written
from amp_rules.plan.own_ddp.refused_folders import refused_folders
from amp_rules.plan.own_ddp.repeated_samples import repeated_samples
from amp_rules.plan.own_ddp.rest_of_one import rest_of_one
from amp_rules.plan.own_ddp.rounds_apart import rounds_apart
from amp_rules.plan.own_ddp.same_epochs import same_epochs
from amp_rules.plan.own_ddp.sampler_arguments import sampler_arguments
from amp_rules.plan.own_ddp.samplers import is_shuffled
from amp_rules.plan.own_ddp.samplers_not_read import samplers_not_read
from amp_rules.plan.own_ddp.scores_of_one import scores_of_one
from amp_rules.plan.own_ddp.seeds_above import seeds_above
from amp_rules.plan.own_ddp.shares import Named, Shares
from amp_rules.plan.own_ddp.shares_of_own_orders import shares_of_own_orders
from amp_rules.plan.own_ddp.shown_of_one import shown_of_one
from amp_rules.plan.own_ddp.spawned_alone import spawned_alone
from amp_rules.plan.own_ddp.splits_apart import splits_apart
from amp_rules.plan.own_ddp.stopped_apart import stopped_apart
from amp_rules.plan.own_ddp.told_nothing import told_nothing
from amp_rules.plan.own_ddp.total_batches import total_batches
from amp_rules.plan.own_ddp.trained_outside import trained_outside
from amp_rules.plan.own_ddp.uneven_shares import uneven_shares
from amp_rules.plan.own_ddp.unfit_calls import unfit_calls
from amp_rules.plan.own_ddp.unfrozen_late import unfrozen_late
from amp_rules.plan.own_ddp.unshuffled import unshuffled
from amp_rules.plan.own_ddp.untrained_wrapped import untrained_wrapped
from amp_rules.plan.own_ddp.visible_gpus import one_gpu_of_all
from amp_rules.plan.own_ddp.waits_by_a_look import waits_by_a_look
from amp_rules.plan.own_ddp.weights_not_kept import weights_not_kept
from amp_rules.plan.own_ddp.whole_schedules import whole_schedules
from amp_rules.plan.own_ddp.without_address import without_address
from amp_rules.plan.own_ddp.wrapped_on_cpu import wrapped_on_cpu
from amp_rules.plan.own_ddp.wrappers import wrapped_by
from amp_rules.plan.own_ddp.written_ranks import written_ranks
from amp_rules.plan.own_ddp.written_where_missing import written_where_missing
from amp_rules.roles.kinds import is_optimizer, is_scheduler
from amp_rules.roles.sites import Site, Step
from amp_rules.source import blocks
from amp_rules.source.index import keyword, literal
from amp_rules.source.modules import Module
from amp_rules.source.syntax import last_name
from amp_rules.torch.distributed import BROADCASTS

Fault = tuple[Module, ast.AST, str]
"""A place, and a sentence on what is wrong there."""


def faults(own: OwnDdp) -> Iterator[Fault]:
    """Yield what is wrong, for certain."""
    shares = Shares(own)
    for second, first in joined_twice(own):
        line = first.told_line
        text = f"the process group is created at line {line} already: torch raises an error if it is created twice"
        yield second.module, second.node, text
    for site, loop in joined_in_rounds(own):
        text = f"each round of the loop at {own.place(loop.module, loop.node)} creates the process group anew"
        yield site.module, site.node, f"{text}, and nothing leaves it: torch raises an error in the second round"
    yield from written_ranks(own)
    yield from ranks_of_mpi(own)
    yield from ranks_of_options(own)
    yield from options_in_spawned(own)
    yield from options_of_no_launcher(own)
    yield from options_never_made(own)
    yield from without_address(own)
    yield from fixed_sizes(own)
    yield from averages_by_gpus(own)
    yield from one_gpu(own)
    yield from one_gpu_of_all(own)
    yield from one_device(own)
    yield from device_taken_early(own)
    yield from local_ranks(own)
    yield from gpus_by_rank(own)
    yield from sampler_arguments(own)
    yield from unshuffled(own)
    yield from same_epochs(own)
    yield from samplers_not_read(own)
    yield from configured_ranks(own)
    yield from asked_early(own)
    yield from counted_early(own)
    yield from gone_calls(own)
    yield from spawned_alone(own)
    yield from seeds_above(own)
    yield from drawn_weights(own)
    yield from drawn_once_wrapped(own)
    alike = [*drawn_alike(own), *augmented_alike(own)]
    yield from alike or masks_alike(own)
    yield from unfit_calls(own)
    yield from splits_apart(own)
    yield from [*orders_apart(own)] or drawn_by_themselves(own)
    yield from shares_of_own_orders(own)
    yield from _around(own)
    yield from called_bare(own)
    yield from _taken(own)
    yield from data_parallel_inside(own)
    yield from data_parallel_around(own)
    yield from trained_outside(own)
    yield from untrained_wrapped(own)
    yield from no_sync_below(own)
    yield from backwards_of_one_pass(own)
    yield from kept_before(own)
    yield from wrapped_on_cpu(own)
    yield from unfrozen_late(own)
    yield from asked_of_wrapper(own)
    yield from forwards_of_one(own)
    yield from weights_not_kept(own)
    yield from exchanged_by_one(own)
    yield from dropped_results(own)
    yield from waits_by_a_look(own)
    yield from barriers_never_run(own)
    yield from _evaluations(own, shares)
    yield from repeated_samples(own, shares)
    named: Named = set()
    yield from shown_of_one(own, shares, named)
    yield from scores_of_one(own, shares, named)
    yield from rest_of_one(own, shares, named)
    yield from known_to_first(own)
    yield from meters_of_one(own)
    yield from stopped_apart(own, shares)
    yield from failed_alone(own)
    yield from left_by_errors(own, shares)
    yield from rounds_apart(own, shares)
    yield from passes_apart(own, shares)
    yield from uneven_shares(own)
    yield from rates_apart(own, shares)
    yield from told_nothing(own)
    yield from whole_schedules(own, shares)
    yield from total_batches(own, shares)
    yield from files_of_all(own)
    yield from arrays_of_all(own)
    yield from loaded_into_wrapper(own)
    yield from folders_by_clock(own)
    yield from opened_by_mode(own)
    yield from read_early(own)
    yield from read_half_written(own)
    yield from written_where_missing(own)
    yield from refused_folders(own)
    yield from _restored(own)
    yield from _stepped(own)
    yield from set_by_one(own)


# ---- forward passes ------------------------------------------------------------------------------------------------


def _around(own: OwnDdp) -> Iterator[Fault]:
    """Yield a pass through the model inside its wrapper whose loss is trained on: the first for each wrapper's name."""
    gone = taken_off(own)
    for module in own.modules if own.wraps else ():
        told = {name for where, name in gone if where is module}
        for call, held in passes_around(own.facts(module), partial(_is_wrapped, own, module), by_name=True):
            name = module.text(held)
            if name not in told and not _is_frozen(module, call, held):
                told.add(name)
                text = f"this bypasses `{name}`, so that no gradient of this loss is averaged over the processes"
                if _has_several_backwards(module, call):
                    # One wrapper around all of them raises an error at the second.
                    yield module, call.func, f"{text}; wrap each network that a backward pass trains by itself"
                else:
                    yield module, call.func, f"{text}; call `{name}` itself{_within_forward(call.func)}"


def _is_frozen(module: Module, call: ast.Call, held: ast.expr) -> bool:
    """Whether the function around a pass takes the gradients off all that a wrapper holds, and never puts them on.

    ``for p in model.parameters(): p.requires_grad = False``, ``model.requires_grad_(False)``.
    """
    model = blocks.path_of(held)
    said = []
    for node in blocks.walk_body(blocks.body_of(module, call)) if model is not None else ():
        if any(isinstance(item, ast.If) for item in blocks.enclosing(module, node)):
            continue
        if isinstance(node, ast.For) and isinstance(node.iter, ast.Call) and isinstance(node.iter.func, ast.Attribute):
            of, asked = node.iter.func.value, node.iter.func.attr
            if asked == "parameters" and blocks.path_of(of) == model and len(node.body) == 1:
                set_to = node.body[0]
                if isinstance(set_to, ast.Assign) and last_name(set_to.targets[0]) == "requires_grad":
                    said.append(literal(set_to.value))
        elif isinstance(node, ast.Call) and last_name(node.func) == "requires_grad_" and node.args:
            if isinstance(node.func, ast.Attribute) and blocks.path_of(node.func.value) == model:
                said.append(literal(node.args[0]))
    return bool(said) and all(item is False for item in said)


def _has_several_backwards(module: Module, call: ast.Call) -> bool:
    """Whether the function around a forward pass runs several backward passes, one after another."""
    found = [
        node
        for node in blocks.walk_body(blocks.body_of(module, call))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "backward"
    ]
    return any(not blocks.exclude_each_other(module, found[0], other) for other in found[1:])


def _within_forward(called: ast.expr) -> str:
    """What the model's own forward pass has to do then, in words; nothing where the model is called as a whole."""
    if isinstance(called, ast.Name) or (isinstance(called, ast.Attribute) and called.attr == "module"):
        return ""
    return f", and let its forward() call the {'method' if isinstance(called, ast.Attribute) else 'part'}"


def _taken(own: OwnDdp) -> Iterator[Fault]:
    """Yield the first place where gradients of a wrapped model's parameters are taken, and not averaged."""
    if not own.wraps or may_average(own.program):
        return
    for site in own.program.calls_to(_GRADIENTS):
        call = site.node
        if not isinstance(call, ast.Call) or site.module not in own.modules:
            continue
        if keyword(call, "create_graph") is not None or not _sets_gradients(own):
            continue
        given = call.args[1] if len(call.args) > 1 else keyword(call, "inputs")
        if not (isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute)):
            continue
        if given.func.attr == "parameters" and wrapped_by(own, given.func.value, site, own.wraps):
            name = site.module.text(given.func.value)
            text = (
                "DistributedDataParallel averages what `backward()` computes, and not what `torch.autograd.grad` gives"
            )
            yield site.module, call, f"{text}: each process goes on with gradients of `{name}` of its own"
            return


def _sets_gradients(own: OwnDdp) -> bool:
    """Whether the program puts gradients where its optimizer finds them: ``parameter.grad = taken``."""
    return any(
        isinstance(node, ast.Attribute) and node.attr == "grad" and isinstance(node.ctx, ast.Store)
        for node, _, _ in own.program.nodes()
    )


_GRADIENTS = frozenset({"torch.autograd.grad"})


def _is_wrapped(own: OwnDdp, module: Module, node: ast.expr) -> bool:
    body = blocks.body_of(module, node)
    return wrapped_by(own, node, Site(module, own.program.flow.scopes[body], body, node), own.wraps)


# ---- evaluation -----------------------------------------------------------------------------------------------------


def _evaluations(own: OwnDdp, shares: Shares) -> Iterator[Fault]:
    """Yield an evaluation that one process runs alone, on its share of the data."""
    for use in shares.metrics.of_one_alone():
        order = ", and comes in an order of the sampler's own" if any(is_shuffled(own, v) for v in use.values) else ""
        is_own = any(map(shares.metrics.is_own_share, use.values))
        sampler = "sampler that is told its rank" if is_own else "DistributedSampler"
        text = (
            f"only one process evaluates here, and `{use.module.text(use.loader)}` gives it its share by a "
            f"{sampler}: what it finds leaves out those of the others{order}; give it a loader without that sampler"
        )
        yield use.module, use.loader, text


def _stepped(own: OwnDdp) -> Iterator[Fault]:
    """Yield the steps of an optimizer or a schedule that one process takes alone."""
    for call, body, scope in own.program.calls():
        if not (isinstance(call.func, ast.Attribute) and call.func.attr == "step" and scope.module in own.modules):
            continue
        values = own.program.flow.values(call.func.value, scope)
        is_schedule = any(map(is_scheduler, values))
        if (is_schedule or any(map(is_optimizer, values))) and own.is_of_first_alone(scope.module, call):
            if not is_schedule and own.program.fits_loose_tensors(
                Step(scope.module, scope, body, call, call, call.func.value)
            ):
                continue
            if not is_schedule and _is_made_alone(own, values):
                continue
            what = "learning rates" if is_schedule else "weights"
            text = f"only one process runs `{scope.module.text(call)}`: the {what} of the others differ from then on"
            yield scope.module, call, text


def _is_made_alone(own: OwnDdp, values: Collection[Value]) -> bool:
    """Whether the first process alone makes an optimizer: the others have none, and no weights that it changes."""
    made = [value for value in values if is_optimizer(value)]
    places = [(own.program.module_of(value.site), value.site) for value in made if isinstance(value.site, ast.Call)]
    return len(places) == len(made) and all(
        module is not None and own.is_of_first_alone(module, site) for module, site in places
    )


# ---- resuming ------------------------------------------------------------------------------------------------------


def _restored(own: OwnDdp) -> Iterator[Fault]:
    """Yield where one process alone takes up what was saved of the optimizer and the schedule."""
    if own.program.calls_to(BROADCASTS):
        return  # which may tell the others
    alone: list[Site] = []
    for call, body, scope in own.program.calls():
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "load_state_dict":
            continue
        values = own.program.flow.values(call.func.value, scope)
        if any(is_optimizer(value) or is_scheduler(value) for value in values):
            if own.is_of_first_alone(scope.module, call):
                alone.append(Site(scope.module, scope, body, call))
    for first in alone[:1]:
        names = [f"`{site.module.text(site.node.func.value)}`" for site in alone]  # type: ignore[attr-defined]
        names += [f"`{path}`" for path in _counted_from(own, first)]
        text = "only one process loads the saved state of {}: the others keep their initial values"
        yield first.module, first.node, text.format(listed(names))


def _counted_from(own: OwnDdp, restored: Site) -> Iterator[str]:
    """Yield what is assigned beside it that a loop counts from: ``range(start_epoch, epochs)``."""
    suite = blocks.place(restored.module, restored.statement).suite
    written = {path for item in suite for path in blocks.writes(item)}
    read = {
        path
        for call, _, _ in own.program.calls()
        if last_name(call.func) in ("range", "trange") and len(call.args) > 1
        for path in blocks.reads(call.args[0])
    }
    yield from sorted(written & read)
