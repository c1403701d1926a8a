"""Checkpoints that training goes on from without the loss scale, where AMP118 did not understand both sides."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.values import Value
from amp_rules.plan.checkpoint_keys import asked_for_state, stepped_optimizers
from amp_rules.plan.file_names import place_of
from amp_rules.plan.notes import UNSAVED_SCALE, note
from amp_rules.plan.report import Note
from amp_rules.plan.whole_optimizers import whole_optimizers
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source.index import argument_at, keyword, literal
from amp_rules.source.scopes import Scope
from amp_rules.torch.checkpoints import KEY_METHODS, LOADS


def notes(program: Program) -> Iterator[Note]:
    """Yield one, for the first optimizer that gets the state back which the program saved."""
    if _asks_scaler(program):
        return
    saved = list(_asked(program, "state_dict"))
    # What nothing calls, another script may call.
    for site, optimizers in _asked(program, "load_state_dict") if saved else ():
        first = next((place for place, others in saved if optimizers & others), None)
        if first is None or not program.is_called(site.body) or not _is_out_of_a_file(program, site):
            continue
        assert isinstance(site.node, ast.Call) and isinstance(site.node.func, ast.Attribute)
        text = (
            f"`{site.module.text(site.node.func.value)}` gets back the state that is saved at "
            f"{place_of(program, first.module, first.node)}, and the loss scale of float16 is not in it: training "
            "that goes on from here begins again with the first scale; save the `state_dict()` of the scaler beside "
            "it, and load it here"
        )
        yield note(UNSAVED_SCALE, site.module, site.node, text)
        return
    yield from _of_whole_optimizers(program)


def _of_whole_optimizers(program: Program) -> Iterator[Note]:
    """Yield one for the first optimizer that is saved itself, not its state, and taken out of such a file again."""
    found = next((item for item in whole_optimizers(program) if program.is_called(item.site.body)), None)
    if found is None:
        return
    place = place_of(program, found.saved.module, found.saved.node)
    text = (
        f"`{found.site.module.text(found.site.node)}` is the optimizer that is saved at {place}, and the loss scale of "
        "float16 is not in that file: training that goes on from here begins again with the first scale; save the "
        "`state_dict()` of the scaler beside it, and load it here"
    )
    yield note(UNSAVED_SCALE, found.site.module, found.site.node, text)


def finds_scale(call: ast.Call) -> bool:
    """Whether a call of ``amp.initialize`` of Apex makes a loss scale that changes in training."""
    scale = keyword(call, "loss_scale")
    if scale is not None:
        return not isinstance(literal(scale), (int, float))
    return literal(keyword(call, "opt_level")) not in ("O0", "O3")


def _asked(program: Program, method: str) -> Iterator[tuple[Site, set[Value]]]:
    """Yield the calls of a method of optimizers that are stepped, each with these."""
    stepped = stepped_optimizers(program)
    for call, body, scope in program.calls():
        if isinstance(call.func, ast.Attribute) and call.func.attr == method:
            held = program.flow.values(call.func.value, scope) or _by_any_name(program, call.func.value, scope)
            optimizers = held & stepped
            if optimizers:
                yield Site(scope.module, scope, body, call), optimizers


def _by_any_name(program: Program, node: ast.expr, scope: Scope) -> set[Value]:
    """What the attributes of an object hold: ``getattr(trainer, name)`` of ``for name in vars(trainer)``."""
    if not isinstance(node, ast.Call) or "builtins.getattr" not in program.callee_names(node, scope):
        return set()
    owners = program.flow.values(node.args[0], scope) if node.args else set()
    classes = {info.facts.node for value in owners if value.kind == "instance" for info in value.ref.mro()}
    cells = [
        program.flow.cells.get((owner, name))
        for owner in classes
        for name in program.flow.attribute_names.get(owner, ())
    ]
    return {value for cell in cells if cell is not None for value in cell.values}


def _asks_scaler(program: Program) -> bool:
    """Whether the program asks anything that may be a scaler, or Apex, for a state."""
    asked = (ast.unparse(held).lower() for held, _ in asked_for_state(program))
    return any("scaler" in text or text.endswith("amp") for text in asked)


def _is_out_of_a_file(program: Program, site: Site) -> bool:
    """Whether a state is taken out of what ``torch.load`` gives, as far as that is known, or is read near by."""
    given = argument_at(site.node, "state_dict", 0) if isinstance(site.node, ast.Call) else None
    while not isinstance(given, ast.Name):
        if isinstance(given, (ast.Subscript, ast.Attribute)):
            given = given.value  # some dictionaries give their entries as attributes
        elif isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute) and given.func.attr in KEY_METHODS:
            given = given.func.value
        else:
            break
    if given is None:
        return False
    if any(value.ref in LOADS for value in program.flow.values(given, site.scope)):
        return True
    reading = {loading.body for loading in program.calls_to(LOADS)}
    called = program.called_from(list(program.nodes_of(site.body)))
    return isinstance(given, (ast.Name, ast.Call)) and not reading.isdisjoint({site.body, *called})
