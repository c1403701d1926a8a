"""Distributed samplers that are never told the epoch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.calls import calls_named, own_name_of
from amp_rules.checks.common.carriers import Carriers
from amp_rules.checks.common.epoch_loops import MAX_CALLERS, counts_epochs, is_counted, loops_over, trains
from amp_rules.checks.common.origins import Origin, argument, functions_called, origins
from amp_rules.checks.common.rank_branches import uses_framework
from amp_rules.lint.check import Check, LintedFile
from amp_rules.lint.finding import Fix, TextEdit
from amp_rules.source.facts import FunctionFacts, ModuleFacts
from amp_rules.source.index import FileIndex, Function, Loop, keyword, literal
from amp_rules.source.syntax import last_name, spelling, walk
from amp_rules.torch.idioms import NAMED_EVALUATION


class SamplerSetEpoch(Check):
    """Distributed samplers that are never told the epoch.

    ## What it does

    Finds an epoch loop whose loader draws its batches through a `DistributedSampler` that shuffles, where nothing in
    the file calls `set_epoch`. A loop is one over epochs by its name, or where it comes round a loop over the loader
    that runs backward passes, as `while step < last` does.

    ## Why

    The sampler shuffles with a generator seeded by `seed + epoch`, and its `epoch` stays 0 until `set_epoch` is
    called. Without it every epoch has the same order: with 8 samples and 2 processes, rank 0 gets the same 4 samples
    in the same order in each of 10 epochs, and never one of the other 4.

    ## Example

        sampler = DistributedSampler(dataset)
        loader = DataLoader(dataset, batch_size=32, sampler=sampler)
        for epoch in range(epochs):
            for batch in loader:
                step(batch)

    ## Use instead

        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            for batch in loader:
                step(batch)

    ## When it is silent

    When `set_epoch` occurs in the file, or in those that make the loader or go through it; for samplers with
    `shuffle=False` and those of validation sets; when the loader is handed to code that is not part of the project, or
    to a framework that calls `set_epoch` itself; and when no epoch loop over the loader is in the file.

    ## Source

    https://pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
    """

    code = "AMP901"
    name = "sampler-set-epoch"
    severity = "warning"
    message = "A distributed sampler never gets the epoch, so it shuffles in the same order in every epoch."
    advice = "Call `set_epoch(epoch)` on the sampler at the start of each epoch."
    fix_title = "Tell the sampler the epoch"
    fix_safety = "unsafe"
    triggers = ("DistributedSampler", "epoch in ", "epochs in ", "while epoch")

    def visit_module(self, file: LintedFile) -> None:
        """Follow the samplers of a file to the loops over their loaders."""
        module = file.module
        index = module.index
        if "set_epoch" in index.words or uses_framework(module):
            return
        for loop, text in _from_other_files(module):
            self._report(file, loop, loop, text, None)
        made = [call for call in _samplers(module) if _shuffles(index, call)]
        if not made:
            return
        made_here = set(map(id, made))
        carriers = Carriers(
            index,
            lambda node: id(node) in made_here,
            lambda call: _cannot_tell(module, call),
            lambda call: own_name_of(module, call) or last_name(call.func),
        )
        if carriers.escapes:
            return
        for loop, place in _epoch_loops(index, carriers, made):
            sampler = _sampler_text(index, carriers, made, place)
            self._report(file, loop, place, sampler, made[0])

    def _report(self, file: LintedFile, loop: Loop, place: ast.AST, sampler: str | None, made: ast.Call | None) -> None:
        module = file.module
        if made is None:
            text = (
                f"`{sampler}` has a sampler that does not get the epoch, so every iteration of this loop has the "
                "same order"
            )
            self.report_in(file, place, text)
            return
        text = sampler or module.module.text(made)
        message = f"`{text}` does not get the epoch, so this loop has the same order in every epoch"
        if place is loop:
            message = f"`{text}` does not get the epoch, so every iteration of this loop has the same order"
        self.report_in(file, place, message, fix=_fix(module, loop, sampler))


def _samplers(module: ModuleFacts) -> list[ast.Call]:
    """The calls that make a distributed sampler, also through a name that may stand for the class."""
    found = calls_named(module, ("DistributedSampler",))
    index = module.index
    for target, value, _ in index.assignments:
        if isinstance(target, ast.Name) and isinstance(value, ast.IfExp):
            kinds = ((module.dotted(item) or "").rpartition(".")[2] for item in (value.body, value.orelse))
            if "DistributedSampler" in kinds:
                found += [call for call in index.named.get(target.id, ()) if isinstance(call.func, ast.Name)]
    return found


def _shuffles(index: FileIndex, call: ast.Call) -> bool:
    """Whether a sampler is sure to shuffle, and for training."""
    shuffle = keyword(call, "shuffle") or (call.args[3] if len(call.args) > 3 else None)
    if (shuffle is not None and literal(shuffle) is not True) or keyword(call, "seed") is not None:
        return False
    about = [ast.unparse(item) for item in call.args[:1]]
    about += [ast.unparse(item.value) for item in call.keywords if item.arg == "dataset"]
    statement = index.statement(call)
    if isinstance(statement, ast.Assign):
        about += [ast.unparse(item) for item in statement.targets]
    function = index.scope(call)
    if isinstance(function, Function):
        about.append(function.name)
    return not any(NAMED_EVALUATION.search(item) for item in about)


def _cannot_tell(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether a function of another file gets a loader and sets no epoch."""
    name = module.dotted(call.func)
    found = module.project.resolve(module, name) if name else None
    if not isinstance(found, FunctionFacts):
        return False
    return not {"set_epoch", "Trainer"} & found.module.index.words


def _from_other_files(module: ModuleFacts) -> Iterator[tuple[Loop, str]]:
    """The epoch loops over a loader that another file makes, each with the loader to speak of."""
    index = module.index
    told: set[Loop] = set()
    for loop in index.loops:
        if not counts_epochs(loop):
            continue
        for node in _gone_through(module, loop):
            text = spelling(node)
            if text is None or NAMED_EVALUATION.search(text) or loop in told:
                continue
            if any(_draws_alike(module, place) for place in origins(module, node)):
                told.add(loop)
                yield loop, text


def _gone_through(module: ModuleFacts, place: ast.AST, depth: int = MAX_CALLERS) -> Iterator[ast.expr]:
    """What loops within an epoch loop go through, and what is given there to functions of other files.

    Methods that the loop calls on ``self`` belong to it.
    """
    index = module.index
    for item in walk(place):
        if isinstance(item, ast.For) and item is not place:
            yield _unwrapped(item.iter)
        elif isinstance(item, ast.Call) and not NAMED_EVALUATION.search(last_name(item.func)):
            called = functions_called(module, item)
            if depth and len(called) == 1 and called[0].module is module and _is_own_method(item):
                yield from _gone_through(module, called[0].node, depth - 1)
            if called and all(function.module is not module and _sets_none(function.module) for function in called):
                for given in [*item.args, *(part.value for part in item.keywords)]:
                    if isinstance(given, (ast.Name, ast.Attribute, ast.Subscript)) and not index.callees(item):
                        yield given


def _is_own_method(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and spelling(call.func.value) == "self"


def _unwrapped(node: ast.expr) -> ast.expr:
    """``loader`` of ``enumerate(tqdm(loader))``."""
    while isinstance(node, ast.Call) and node.args and last_name(node.func) in ("enumerate", "tqdm", "iter", "zip"):
        node = node.args[0]
    return node


def _sets_none(module: ModuleFacts) -> bool:
    return not {"set_epoch", "Trainer"} & module.index.words and not uses_framework(module)


def _draws_alike(module: ModuleFacts, place: Origin) -> bool:
    """Whether a loader has a distributed sampler that shuffles; of those that stand in this file others tell."""
    call = place.node
    if not isinstance(call, ast.Call) or not own_name_of(place.module, call).endswith("DataLoader"):
        return False
    sampler = argument(place.module, call, "sampler", 3)
    if sampler is None or not _sets_none(place.module):
        return False
    return any(
        isinstance(item.node, ast.Call)
        and own_name_of(item.module, item.node) == "DistributedSampler"
        and not (item.module is module and place.module is module)
        and _sets_none(item.module)
        and _shuffles(item.module.index, item.node)
        for item in origins(sampler.module, sampler.node)
    )


def _epoch_loops(index: FileIndex, carriers: Carriers, made: list[ast.Call]) -> list[tuple[Loop, ast.AST]]:
    """The epoch loops in which a loader is gone through, each with the place to speak of."""
    found: dict[int, tuple[Loop, ast.AST]] = {}

    def comes_round(loop: Loop) -> bool:
        return is_counted(loop) and not any(_gives_loader(item) for item in walk(loop))

    def _gives_loader(node: ast.AST) -> bool:
        # Each turn has a loader of its own, as each fold of a cross validation.
        return isinstance(node, ast.Call) and (node in made or (bool(index.callees(node)) and carriers.carries(node)))

    for use in _uses(index, carriers):
        loops = loops_over(index, use, counts_epochs)
        if not loops and isinstance(use, ast.For) and trains(index, use):
            loops = loops_over(index, use, comes_round)
        for loop, inner in loops:
            found.setdefault(id(loop), (loop, _place(index, loop, use, inner)))
    return list(found.values())


def _uses(index: FileIndex, carriers: Carriers) -> list[ast.AST]:
    """The places where a loader is gone through, or given to a function of another file."""
    found: list[ast.AST] = [
        loop for loop in index.loops if not isinstance(loop, ast.While) and _is_loader(carriers, loop.iter)
    ]
    for call in index.calls:
        if (last_name(call.func) in ("iter", "next") and any(_is_loader(carriers, item) for item in call.args)) or (
            not index.callees(call) and any(carriers.carries(item) for item in call.args) and carriers.may_pass(call)
        ):
            found.append(call)
    return found


def _is_loader(carriers: Carriers, node: ast.expr) -> bool:
    return carriers.carries(node) and not NAMED_EVALUATION.search(ast.unparse(node))


def _place(index: FileIndex, loop: Loop, use: ast.AST, inner: ast.AST) -> ast.AST:
    """The epoch loop, where the sampler is to be told; the loop over the loader, where a method gets the epoch."""
    function = index.scope(use)
    if not isinstance(use, ast.For):
        return loop
    if use is inner:
        return loop
    is_method = isinstance(function, Function) and index.owner(function) is not None
    return use if is_method and any("epoch" in item.arg for item in function.args.args) else loop  # type: ignore[union-attr]


def _sampler_text(index: FileIndex, carriers: Carriers, made: list[ast.Call], place: ast.AST) -> str | None:
    """The sampler's name, where it can be used at ``place``."""
    for call in made:
        for target, value, _ in index.assignments:
            if any(item is call for item in ast.walk(value)) and not last_name(value):
                text = spelling(target)
                is_sampler = value is call or (isinstance(value, ast.IfExp) and call in (value.body, value.orelse))
                if text is None or not is_sampler:
                    continue
                if index.scope(target) in (None, index.scope(place)) or text.startswith("self."):
                    return text
    return None


def _fix(module: ModuleFacts, loop: Loop, sampler: str | None) -> Fix | None:
    """Tell the sampler the epoch, first thing in the loop."""
    if sampler is None or not isinstance(loop, ast.For) or not isinstance(loop.target, ast.Name):
        return None
    index = module.index
    if sampler.startswith("self.") and index.owner(index.scope(loop) or loop) is None:
        return None
    if loop.target.id == "_":
        return None
    text = f"{sampler}.set_epoch({loop.target.id})"
    others = _other_values(index, sampler)
    if others:
        only_none = all(literal(item) is None for item in others)
        text = f"if {sampler} is not None: {text}" if only_none else f'if hasattr({sampler}, "set_epoch"): {text}'
    elif not _is_always_made(index, sampler, loop):
        return None
    edit = TextEdit("insert before", module.module.span(loop.body[0]), text)
    return Fix(SamplerSetEpoch.fix_title, "unsafe", (edit,))


def _is_always_made(index: FileIndex, sampler: str, loop: Loop) -> bool:
    """Whether a loop is reached only where the sampler is made, which ``if distributed:`` may stand above."""
    around = set(index.branches(loop))
    return any(
        around.issuperset(index.branches(target)) for target, _, _ in index.assignments if spelling(target) == sampler
    )


def _other_values(index: FileIndex, sampler: str) -> list[ast.expr]:
    """What else the sampler's name may hold."""
    found: list[ast.expr] = []
    for target, value, _ in index.assignments:
        if spelling(target) == sampler:
            found += [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
    return [item for item in found if not (isinstance(item, ast.Call) and last_name(item.func) == "DistributedSampler")]
