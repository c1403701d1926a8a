"""Give each process its own device.

## What it does
A device chosen by its index (`"cuda:0"`, `.cuda(args.gpu)`, `torch.cuda.set_device(n)`) goes through `amp.device(...)`:
alone it is that device, under torchrun it is the process's own. The device is followed from where it is used to where
it is written: a variable or a constant of the file is changed there, and what a variable gets of a file of settings
(`device = config.device`, or `config["device"]` of what `yaml.safe_load` gave, or the same of an `EasyDict` made of
that) where it gets it; a number, a parameter's default and an option of the command line, which its user may set, where
they are used. An option that is read for devices alone, and often, is changed once, where the command line is parsed.
Where the script reads the text itself, as `device.startswith("cuda")` does, it stays a text. Where it compares it with
words, as `device == "gpu"` does, the text is left as it is, and changed where a device is made of it. What nothing
calls stays as it is. Plain `"cuda"` and `.cuda()` stay: `amp.init` sets the current device. What a file moves there
when it is imported goes through `amp.device("cuda")`, which the launcher's environment tells before `amp.init`. The
script sets `CUDA_VISIBLE_DEVICES` only where torchrun does not start it, and reads it with `os.environ.get`; an
assertion that there is one GPU is for one process then. A checkpoint that `load_state_dict` copies is read with
`map_location="cpu"` where nothing says where to, and not by every process to the GPU that it was saved from. One that
holds the optimizer itself is read to the GPU of each process, as what the optimizer remembers stays where it is put.
The `cuda` of a storage, in a function that is given as `map_location`, takes a number and no device:
`storage.cuda(amp.device(n).index)`.

## Why
Two processes on one device share its memory and gain nothing; NCCL refuses them.

## Before
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    model = Net().to(device)

## After
    device = amp.device("cuda:0" if torch.cuda.is_available() else "cpu")
    model = Net().to(device)

## When it declines
When the script uses several devices in one process (AMP293): parts of a model on `"cuda:0"` and `"cuda:1"`, a device
for each turn of a loop, `device_map=`. When layers of a model move themselves, nothing moves it as a whole, and a
parameter stays on the CPU: of a `torch.device`, `if device == "cuda":` is never true.

## Leaving it out
No: NCCL refuses two processes on one device.

## Source
https://pytorch.org/docs/stable/elastic/run.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from amp_rules.plan import declining, parts_left_behind
from amp_rules.plan.arguments_in_reach import Place
from amp_rules.plan.asserted_devices import asserted_devices
from amp_rules.plan.context import Change, Context
from amp_rules.plan.declining import Declined
from amp_rules.plan.loaded_weights import read_to_one_gpu, read_whole
from amp_rules.plan.placed_early import early_calls, early_uses
from amp_rules.plan.rule import Rule
from amp_rules.plan.start_place import start_place
from amp_rules.roles.device_origins import DeviceUse
from amp_rules.roles.devices import Devices
from amp_rules.roles.sites import Site
from amp_rules.roles.uncalled import uncalled
from amp_rules.source import blocks
from amp_rules.source.syntax import own_name
from amp_rules.text.actions import Replace, Wrap
from amp_rules.text.expression_edits import add_keyword, substitute

_TO_OWN_GPU = 'map_location={"cuda:0": "cuda"}'
"""The place for ``torch.load`` of what is not copied: `amp.init` sets the current GPU. What was on the CPU stays there,
as the numbers of steps of an optimizer are."""

RULE = Rule("AMP201", "device-by-rank", "Each process uses its own device.", "distribution")


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each device that is chosen by its index."""
    devices = Devices(context.program)
    start = start_place(context) if not context.initialised else None
    places = _places(devices, start)
    for option, parsed in _often_read(devices, places):
        places = [place for place in places if not _is_read_of(place, option)]
        assert isinstance(parsed.statement, ast.Assign)
        path = f"{parsed.module.text(parsed.statement.targets[0])}.{option}"
        message = f"`{path}` alone, this process's own device under torchrun"
        written = context.vocabulary.device_of_option(parsed.module, parsed.statement, path)
        yield Change.written(RULE, parsed.module, parsed.statement, message, written)
    for place in places:
        module, node = place.use.module, place.use.expression
        message = f"`{module.text(node)}` alone, this process's own device under torchrun"
        written = context.vocabulary.device(
            module,
            node,
            is_constructor=place.use.is_constructor,
            as_text=place.stays_text,
            as_index=place.use.of_storage,
        )
        yield Change.written(RULE, module, node, message, written)
    for site in early_calls(devices, start):
        assert isinstance(site.node, ast.Call)
        written = context.vocabulary.moved_to_own_device(site.module, site.node)
        message = "it is moved before the process has a GPU of its own"
        yield Change.written(RULE, site.module, site.node, message, written)
    for site in read_to_one_gpu(context.program):
        assert isinstance(site.node, ast.Call)
        message = "what is copied to each process's own device is not put on the GPU that it was saved from"
        yield Change(RULE, site.module, site.node, message, [Replace(site.node, add_keyword('map_location="cpu"'))])
    for site in read_whole(context.program):
        assert isinstance(site.node, ast.Call)
        message = "what an optimizer remembers is put on the GPU of its process, where its parameters go"
        yield Change(RULE, site.module, site.node, message, [Replace(site.node, add_keyword(_TO_OWN_GPU))])
    for module, statement in context.processes.visible_devices:
        target = module.text(statement).split("[")[0]
        message = "torchrun gives each process a device; all of them must stay visible"
        header = f'if "LOCAL_RANK" not in {target}:'
        yield Change(RULE, module, statement, message, [Wrap(statement, statement, header)])
    for site, test in asserted_devices(context.program) if context.processes.visible_devices else ():
        several = context.vocabulary.several_processes(site.module)
        message = "where torchrun chooses the devices, each process sees all of them"
        action = Replace(test, substitute(f"{several} or {site.module.text(test)}"))
        yield Change(RULE, site.module, site.node, message, [action], needs_import=True)
    for module, read in context.processes.visible_devices_read:
        asked = f'{module.text(read.value)}.get({module.text(read.slice)}, "")'
        message = "where torchrun chooses the devices, the script has not set the variable"
        yield Change(RULE, module, read, message, [Replace(read, substitute(asked))])


def reasons(context: Context) -> Iterator[Declined]:
    """Yield where one process uses several devices."""
    yield from parts_left_behind.reasons(context.program)
    devices = Devices(context.program)
    recipe = "start one process for each device with torchrun, and keep what each process trains on one device"
    for site in devices.spread:
        yield declining.decline(
            declining.GRADIENTS_OUTSIDE,
            site.module,
            site.node,
            f"`{site.module.text(site.node)}` spreads a model over all devices, which each process would do",
            recipe,
        )
    first: tuple[DeviceUse, set[int]] | None = None
    for use in devices.uses:
        if _is_of_a_turn(use):
            yield declining.decline(
                declining.GRADIENTS_OUTSIDE,
                use.module,
                use.node,
                f"`{use.module.text(use.node)}` is a different device in each iteration: one process uses several "
                "devices",
                recipe,
            )
            return
        numbers = set() if devices.is_of_no_use(use) else devices.indices(use.expression, use.scope)
        if first is not None and numbers and not numbers & first[1]:
            other = first[0].module.text(first[0].node)
            yield declining.decline(
                declining.GRADIENTS_OUTSIDE,
                use.module,
                use.node,
                f"one process uses several devices: `{use.module.text(use.node)}` here, `{other}` at line "
                f"{first[0].told_line} of {first[0].module.path.name}",
                recipe,
            )
            return
        if numbers and first is None:
            first = use, numbers


class _Place(NamedTuple):
    """An expression that is to be the process's own device, and whether it stays a text."""

    use: DeviceUse
    stays_text: bool = False


_OFTEN = 3
"""Reads of one option from which on it is replaced where the command line is parsed."""


def _often_read(devices: Devices, places: list[_Place]) -> Iterator[tuple[str, Site]]:
    """Yield the options that are read as a device alone, in several places, with the statement that parses them."""
    nodes = {
        place.use.node
        for place in places
        if not place.use.is_constructor and not place.stays_text and not place.use.of_storage
    }
    options = {place.use.node.attr: place for place in places if isinstance(place.use.node, ast.Attribute)}
    for option, place in options.items():
        reads = [read for read, _ in devices.reads_of_option(option)]
        if len(reads) < _OFTEN or not nodes.issuperset(reads):
            continue
        parsed = devices.parsed_at(place.use.expression, place.use.scope)
        if parsed is not None and blocks.loop_around(parsed.module, parsed.node) is None:
            yield option, parsed


def _is_read_of(place: _Place, option: str) -> bool:
    return isinstance(place.use.node, ast.Attribute) and place.use.node.attr == option


def _places(devices: Devices, start: Place | None) -> list[_Place]:
    """The expressions that choose a device by its index, where they are written if they can be followed.

    Above the start plain CUDA is the first GPU in each process.
    """
    found: dict[ast.AST, _Place] = {}
    for use, origin in early_uses(devices, start):
        is_constructor = isinstance(origin.node, ast.Call)
        written = replace(origin, is_constructor=is_constructor)
        is_text = not is_constructor and origin.node is not use.node
        found.setdefault(origin.node, _Place(written, is_text and _is_read_as_text(devices, origin)))
    for use in devices.uses:
        for place in _of_constructor(devices, use) if use.is_constructor else _of_use(devices, use):
            found.setdefault(place.use.node, place)
    idle = uncalled(devices.program)
    return [
        item
        for item in found.values()
        if item.use.body not in idle
        if not _is_made_below(devices, item.use) and not _is_of_wrapper(devices, item.use)
    ]


def _is_of_wrapper(devices: Devices, use: DeviceUse) -> bool:
    """Whether it stands in a class that spreads batches as ``DataParallel`` does, which nothing makes any more."""
    body = blocks.body_of(use.module, use.node)
    info = devices.program.function_of(body)
    owner = devices.program.flow.class_of(info) if info is not None else None
    return owner is not None and bool(owner.spreads_as)


def _is_made_below(devices: Devices, use: DeviceUse) -> bool:
    """Whether a function is given the device and begins with ``device = torch.device(device)``, which is written."""
    call = use.module.parents.get(use.node)
    if use.is_constructor or not isinstance(call, ast.Call) or use.node not in call.args:
        return False
    callees = devices.program.flow.callees(call)
    return bool(callees) and all(
        any(argument is use.node and _is_remade(devices, info.node, name) for name, argument in info.bound(call))
        for info in callees
    )


def _is_remade(devices: Devices, body: ast.AST, name: str | None) -> bool:
    reading = [item for item in blocks.own_parts(body) if name in blocks.reads(item)]
    first = reading[0] if reading else None
    return (
        isinstance(first, ast.Assign)
        and blocks.path_of(first.targets[0]) == name
        and any(use.is_constructor and use.node is first.value for use in devices.uses)
    )


def _of_constructor(devices: Devices, use: DeviceUse) -> Iterator[_Place]:
    """``torch.device(...)``, unless it certainly names no number."""
    call = use.expression
    assert isinstance(call, ast.Call)
    given = [*call.args, *(item.value for item in call.keywords)]
    if len(given) > 1:
        if not any(isinstance(item, ast.Constant) and item.value == "cpu" for item in given):
            yield _Place(DeviceUse(use.module, use.scope, use.body, call))
    elif call.args and devices.kind(call.args[0], use.scope) != "plain" and not _is_made_already(devices, use, call):
        yield _Place(use)


def _is_made_already(devices: Devices, use: DeviceUse, call: ast.Call) -> bool:
    """Whether a device is made of one that another constructor makes, which is written: ``torch.device(device)``."""
    made = {other.node for other in devices.uses if other.is_constructor and other.node is not use.node}
    values = devices.program.flow.values(call.args[0], use.scope)
    is_device = {value.kind == "object" and value.ref == "torch.device" for value in values} == {True}
    return is_device and all(value.site in made for value in values)


def _of_use(devices: Devices, use: DeviceUse) -> Iterator[_Place]:
    origins = devices.origins(use.expression, use.scope)
    if not use.is_certain and devices.may_be_tensor(use, origins or []):
        return
    if origins is None:
        is_read_off = isinstance(use.node, ast.Attribute) and use.node.attr == "device"
        if devices.has_index(use.expression, use.scope) or (use.chooses and not is_read_off):
            yield _Place(use)
        return
    kinds = [devices.kind(origin.expression, origin.scope) for origin in origins]
    if "number" in kinds or "option" in kinds or ("unknown" in kinds and use.chooses):
        yield _Place(use)
        return
    for origin, kind in zip(origins, kinds, strict=True):
        if kind == "text" and (use.of_storage or origin.node in devices.spelled_out):
            yield _Place(use)
        elif kind == "text":
            is_followed = origin.node is not use.node
            yield _Place(origin, is_followed and _is_read_as_text(devices, origin))


def _is_read_as_text(devices: Devices, origin: DeviceUse) -> bool:
    """Whether the variable that a device is assigned to is used for more than devices and messages."""
    statement = origin.module.parents.get(origin.node)
    target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
    key = devices.program.flow.key(blocks.reading(target), origin.scope) if isinstance(target, ast.expr) else None
    if key is None:
        return True
    taken = {use.node for use in devices.uses}
    for use in devices.uses:
        if use.is_constructor and isinstance(use.node, ast.Call):
            taken.update(use.node.args)
    return any(
        node not in taken and not _is_shown(scope.module.parents.get(node)) for node, scope in devices.loads(key)
    )


def _is_shown(parent: ast.AST | None) -> bool:
    return isinstance(parent, ast.FormattedValue) or (isinstance(parent, ast.Call) and own_name(parent.func) == "print")


def _is_of_a_turn(use: DeviceUse) -> bool:
    """Whether a device is made of the variable of a loop around it, as ``f"cuda:{i}"`` is."""
    if not isinstance(use.node, (ast.Name, ast.JoinedStr, ast.BinOp)) and not use.is_constructor:
        return False
    if isinstance(use.node, ast.Name) and not use.is_certain:
        return False
    names = {node.id for node in ast.walk(use.node) if isinstance(node, ast.Name)}
    loops = [item for item in blocks.enclosing(use.module, use.node) if isinstance(item, ast.For)]
    return any(names & blocks.writes_target(loop) for loop in loops)
