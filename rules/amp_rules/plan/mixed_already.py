"""Why a script keeps its precision: it has mixed precision of its own, or a framework that runs its steps."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan import declining, own_mixed_steps
from amp_rules.plan import taken_gradients as taken
from amp_rules.plan.apex.idle import is_idle
from amp_rules.plan.constant_tests import ConstantTests
from amp_rules.plan.declining import Declined
from amp_rules.plan.exchanged_gradients import ExchangedGradients
from amp_rules.plan.library_uses import first_import, first_use, uses
from amp_rules.plan.model_parts import has_parameters
from amp_rules.plan.own_ddp.other_processes import calls_itself_alone
from amp_rules.plan.own_half.helpers import is_copied, is_float_at_once
from amp_rules.plan.rule import Rule
from amp_rules.roles.gradient_accesses import gradient_accesses
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import keyword
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import last_name, own_name
from amp_rules.torch.containers import MADE_BY_SETTINGS
from amp_rules.torch.distributed import AVERAGES_BY_ITSELF, OLD_PIPELINE, OWN_SHARDING, RPC, SUMS_OF_HOROVOD
from amp_rules.torch.dtypes import HALF_TYPES
from amp_rules.torch.frameworks import OWN_FRAMEWORK, runs_no_step
from amp_rules.torch.gradients import INNER_LOOPS
from amp_rules.torch.mixed_precision import (
    APEX,
    APEX_LAYERS,
    AUTOCASTS,
    AUTOCASTS_BY_DEVICE,
    FOLLOWS_AUTOCAST,
    TORCH_AMP,
    is_off,
    runs_whole_step,
)


def frameworks(program: Program) -> Iterator[Declined]:
    """A framework that runs the training step."""
    # Where no backward pass is found, settings may make what a framework runs.
    first = first_use if program.backwards else first_import
    found = first(program, OWN_FRAMEWORK, lambda name, _node, _module: runs_no_step(name))
    if found is not None:
        module, node, name = found
        yield declining.decline(
            declining.FRAMEWORK,
            module,
            node,
            f"`{name}` runs the training step, and has its own mixed precision and distributed training",
            f"turn them on in {name.split('.')[0]}'s own options",
            already=True,
        )


# What only a migrated step or distribution uses of the runtime; its optimizers and layers stand for Apex's alone, too.
_OF_A_MIGRATION = frozenset(
    {
        "autocast",
        "barrier",
        "device",
        "drawn_alike",
        "from_main_process",
        "is_main_process",
        "main_process_first",
        "on_main",
        "prepare_loader",
        "prepare_model",
        "reduce_mean",
        "scaler",
        "same_hash",
        "same_order",
        "same_seed",
        "seed_alike",
        "seed_by_rank",
        "seed_of_rank",
        "unwrap",
        "world_size",
    }
)


def made_by_settings(program: Program) -> Iterator[Declined]:
    """What only settings name and may train, where nothing else does as far as is known."""
    for site in program.calls_to(MADE_BY_SETTINGS):
        node = site.node
        if isinstance(node, ast.expr) and not MADE_BY_SETTINGS & {
            value.name for value in program.flow.values(node, site.scope)
        }:
            continue
        yield declining.decline(
            declining.UNKNOWN_STEP,
            site.module,
            site.node,
            f"no backward pass was found, but `{site.module.text(site.node)}` makes what only the settings name, "
            "and that may train",
            "import its class and make it in the script, then migrate again; or migrate the file that trains by itself",
        )


def migrated_with_another(program: Program) -> Iterator[Declined]:
    """Modules that the script shares with another one and that were migrated with that one."""
    for module in program.flow.modules:
        names = {
            alias.asname or alias.name: node
            for node in module.tree.body
            if isinstance(node, ast.Import)
            for alias in node.names
            if alias.name == "amp_runtime"
        }
        for node in module.nodes if names else ():
            if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
                continue
            if node.value.id in names and node.attr in _OF_A_MIGRATION:
                yield declining.decline(
                    declining.ALREADY_MIXED,
                    module,
                    names[node.value.id],
                    f"{module.path.name} was migrated together with another script; this one only shares it",
                    "give this script the same `amp.init`, `amp.prepare_loader` and `amp.prepare_model` as the other's "
                    "diff shows",
                )


def stepping_scalers(program: Program) -> Iterator[Declined]:
    """Objects of a library that run the whole training step, scaled: ``loss_scaler(loss, optimizer)`` of timm."""
    for call, _, scope in program.calls():
        name = next((name for name in sorted(program.callee_names(call, scope)) if runs_whole_step(name)), None)
        if name is not None and not program.flow.callees(call):
            yield declining.decline(
                declining.ALREADY_MIXED,
                scope.module,
                call,
                f"the script has its own mixed precision (`{name}` scales the loss, goes backward and steps)",
                declining.NO_SECOND_SCALER,
                already=True,
            )


def has_torch_amp(program: Program) -> bool:
    """Whether the program trains with the mixed precision of PyTorch."""
    return bool(program.backwards) and first_use(program, TORCH_AMP, _mixes_nothing) is not None


def trains_with_torch_amp(program: Program) -> bool:
    """The same, or by a library that goes backward: ``NativeScaler`` of timm, or a framework."""
    if has_torch_amp(program) or next(stepping_scalers(program), None) is not None:
        return True
    return next(frameworks(program), None) is not None


def taken_gradients(program: Program) -> Iterator[Declined]:
    """Steps whose gradients the script sets by hand, with mixed precision of its own or without."""
    yield from taken.reasons(program, _mixes_nothing)


def beside_own_steps(program: Program) -> Iterator[Declined]:
    """Why the precision is not "already" there: some steps have none, or only what a setting lowers within a model."""
    if not has_torch_amp(program):
        return
    yield from own_mixed_steps.reasons(program, _mixes_nothing)
    region = _of_a_setting(program)
    if region is not None:
        yield declining.decline(
            declining.ALREADY_MIXED,
            region.module,
            region.node,
            f"`{region.module.text(region.node)}` turns mixed precision on within the model where a setting says so, "
            "and no scaler scales the loss",
            "take such regions out of the model, then migrate again",
        )


def _mixes_nothing(name: str, node: ast.AST, module: Module) -> bool:
    """Whether a use of ``torch.amp`` leaves the precision to others: ``autocast(enabled=False)``, ``custom_fwd``."""
    if name.rpartition(".")[2] in FOLLOWS_AUTOCAST:
        return True
    call = module.parents.get(node)
    if not isinstance(call, ast.Call):
        return False
    # `partial(autocast, enabled=False)` is kept for later, and says the same.
    is_kept = own_name(call.func) == "partial" and call.args == [node]
    given = ast.Call(call.func, [], call.keywords) if is_kept else call
    return (call.func is node or is_kept) and is_off(name, given)


def own_precision(program: Program) -> Iterator[Declined]:
    """Mixed precision of the script's own, and what takes the gradients out of the scaler's hands."""
    yield from beside_own_steps(program)
    yield from own_mixed_steps.scaled_by_others(program)

    def says_nothing(name: str, _node: ast.AST, module: Module) -> bool:
        # `apex.parallel` has nothing to do with precision, nor has what nothing comes to.
        return name.startswith(APEX_LAYERS) or is_idle(program, module)

    found = first_use(program, TORCH_AMP, _mixes_nothing) or first_import(program, APEX, says_nothing)
    if found is not None:
        module, node, name = found
        yield declining.decline(
            declining.ALREADY_MIXED,
            module,
            node,
            f"the script has its own mixed precision (`{name}`)",
            declining.NO_SECOND_SCALER,
            already=True,
        )
    yield from _of_framework(
        program,
        OWN_SHARDING,
        "keeps a shard of each gradient on each rank, which a single scaler cannot check",
        "use the mixed precision policy of the sharded model",
    )
    yield from _of_framework(
        program,
        (OLD_PIPELINE,),
        "is gone from current PyTorch, where the script cannot start",
        "run the parts by `torch.distributed.pipelining`, or leave the pipeline out, then migrate again",
        declining.UNREADABLE,
    )
    if not calls_itself_alone(program):
        yield from _of_framework(
            program,
            (RPC,),
            "lets other processes compute what the step differentiates, whose gradients the scaler does not see",
            "leave the script in FP32; or train in each process with `DistributedDataParallel`",
        )
    yield from _of_framework(
        program,
        INNER_LOOPS,
        "moves the weights of a task along gradients that it takes itself of a loss which nothing scales: fp16 would "
        "lose the small ones",
        "leave the script as it is; or take these steps in the script by `torch.autograd.grad`, then migrate again",
        declining.NO_OPTIMIZER,
    )
    yield from _of_framework(
        program,
        _averaging(program),
        "averages over processes that the scaler does not know: it would unscale the gradients before the average, "
        "and the processes would not agree on an overflow",
        "let `DistributedDataParallel` average the gradients, in processes of `torch.distributed`",
    )


def _of_a_setting(program: Program) -> Site | None:
    """The first region of a model that a setting turns on, ``autocast(enabled=args.mixed)``; None beside anything else.

    Networks are copied with such regions, where the training script that they come from has a scaler.
    """
    for module, node, name in uses(program, TORCH_AMP):
        parent = module.parents.get(node)
        # ``autocast = torch.cuda.amp.autocast``
        is_alias = isinstance(parent, ast.Assign) and parent.value is node
        if not (
            _mixes_nothing(name, node, module) or (name in AUTOCASTS and (is_alias or isinstance(parent, ast.Call)))
        ):
            return None
    found: list[Site] = []
    for call, body, scope in program.calls():
        names = program.callee_names(call, scope) & AUTOCASTS
        if not names or is_off(min(names), call):
            continue
        enabled = keyword(call, "enabled") or (call.args[0] if names & AUTOCASTS_BY_DEVICE and call.args else None)
        by_setting = isinstance(enabled, (ast.Name, ast.Attribute)) and len(call.args) + len(call.keywords) == 1
        if not by_setting or not program.is_model_code(body):
            return None
        found.append(Site(scope.module, scope, body, call))
    return found[0] if found and not any(site.is_scaled for site in program.backwards) else None


def _averaging(program: Program) -> tuple[str, ...]:
    """What averages the gradients before the scaler has seen them: not where the script gives them away by hand.

    These are unscaled behind the average. What else is averaged by the same functions is a number to print.
    """
    exchanged = ExchangedGradients(program, gradient_accesses(program)) if program.calls_to(SUMS_OF_HOROVOD) else None
    if exchanged is None or exchanged.lost or not exchanged.sums:
        return AVERAGES_BY_ITSELF
    return tuple(name for name in AVERAGES_BY_ITSELF if name not in SUMS_OF_HOROVOD)


def _of_framework(
    program: Program, names: tuple[str, ...], why: str, remedy: str, rule: Rule = declining.FRAMEWORK
) -> Iterator[Declined]:
    """The first use of what takes gradients out of the scaler's hands."""
    found = first_use(program, names)
    if found is not None:
        module, node, name = found
        yield declining.decline(rule, module, node, f"`{name}` {why}", remedy)


def half_models(program: Program) -> Iterator[Declined]:
    """Places where the script makes its model half by hand."""
    off = ConstantTests(program)
    for node, body, scope in program.nodes():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "half":
            if is_copied(program, node.func.value, scope) or is_float_at_once(scope.module, node):
                continue
            made = program.roles.modules(node.func.value, scope)
            # A loss without parameters holds nothing to be made half.
            if any(map(has_parameters, made)) and not node.args and not off.keep_out(scope.module, node):
                yield declining.decline(
                    declining.ALREADY_MIXED,
                    scope.module,
                    node,
                    f"`{scope.module.text(node)}` makes the model half already",
                    "remove the call, and migrate with --opt-level O2 or O3",
                    already=True,
                )
        elif isinstance(node, ast.Assign) and _halves_data(node) and _may_run(program, body, frozenset()):
            yield declining.decline(
                declining.ALREADY_MIXED,
                scope.module,
                node,
                f"`{scope.module.text(node)}` makes parameters half already",
                "remove the script's own half precision, then migrate with --opt-level O2",
                already=True,
            )
    yield from _made_half(program)


def _made_half(program: Program) -> Iterator[Declined]:
    """Trained models that are made or moved in half: ``from_pretrained(name, torch_dtype=torch.bfloat16)``."""
    for call, _, scope in program.calls():
        moves = isinstance(call.func, ast.Attribute) and call.func.attr in ("to", "bfloat16")
        types = [item.value for item in call.keywords if item.arg in ("dtype", "torch_dtype")]
        types += call.args if moves else []
        given = [name for item in types if (name := _half_type(program, item, scope)) is not None]
        if moves and isinstance(call.func, ast.Attribute) and call.func.attr == "bfloat16":
            given = ["bfloat16"]
        if not given or program.flow.callees(call):
            continue
        model = call.func.value if moves and isinstance(call.func, ast.Attribute) else call
        if not set(program.flow.values(model, scope)) & program.trained:
            continue
        yield declining.decline(
            declining.ALREADY_MIXED,
            scope.module,
            call,
            f"`{scope.module.text(call)}` makes the model {given[0]} already",
            "leave the type out, then migrate",
            already=True,
        )


def _half_type(program: Program, node: ast.expr, scope: Scope) -> str | None:
    """The half precision that an expression names for certain."""
    values = program.flow.values(node, scope)
    found = {HALF_TYPES.get(str(value.ref)) if value.kind == "external" else None for value in values}
    return found.pop() if len(found) == 1 else None


def is_half_by_hand(program: Program) -> bool:
    """Whether the script makes its model half by hand, and trains it as any other."""
    return next(half_models(program), None) is not None


def _may_run(program: Program, body: ast.AST, seen: frozenset[ast.AST]) -> bool:
    """Whether something may run a function: its name is written where something may run, besides in imports.

    Copies of a network keep methods that make it half, and trainers for them, of which the script uses none.
    """
    located = program.module_of(body)
    if not isinstance(body, ast.FunctionDef) or located is None:
        return True
    owner = located.parents.get(body)
    name = body.name
    if name == "__init__" and isinstance(owner, ast.ClassDef):
        name = owner.name
    elif name.startswith("__") or name == "forward":
        return True
    seen |= {body}
    for module in program.flow.modules:
        for node in module.nodes:
            if isinstance(node, ast.Constant) and node.value == name:
                return True
            if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(node.ctx, ast.Load):
                continue
            asking = blocks.body_of(module, node) if last_name(node) == name else None
            if asking is not None and asking not in seen and _may_run(program, asking, seen):
                return True
    return False


def _halves_data(node: ast.Assign) -> bool:
    """``weight.data = weight.data.half()``."""
    target, value = node.targets[0], node.value
    return (
        isinstance(target, ast.Attribute)
        and target.attr == "data"
        and isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr == "half"
        and not value.args
        and blocks.path_of(value.func.value) == blocks.path_of(target)
    )
