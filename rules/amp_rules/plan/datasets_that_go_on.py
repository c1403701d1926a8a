"""Datasets that give what they have come to, whatever index they are asked for: each process would get the same.

``__getitem__`` reads an attribute that it moves on itself, ``self.current_user``, and what it returns comes of that
alone. What depends on the index is shared out by it, and random numbers differ between processes. Queues of libraries,
which give the next sample of an order of their own, are known by name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from amp_rules.roles.batches import TrainingData
from amp_rules.roles.loader_arguments import given_to_loader
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.torch.data import QUEUES


@dataclass(frozen=True)
class GoingOn:
    """A dataset of a training loader that goes on by itself.

    Attributes:
        module: its file.
        node: what it returns, or what makes a queue.
        text: what it does.
        recipe: what to write instead.
    """

    module: Module
    node: ast.expr
    text: str
    recipe: str


def going_on(program: Program, data: TrainingData) -> Iterator[GoingOn]:
    """Yield the datasets of training loaders that go on by themselves."""
    told: set[ast.AST] = set()
    calls = {value.site: None for use in data.uses for value in use.values if isinstance(value.site, ast.Call)}
    for call in calls:
        located = program.locate(call)
        given = given_to_loader(call, "dataset")
        for value in program.flow.values(given, located[1]) if located is not None and given is not None else ():
            if value.name in QUEUES and isinstance(value.site, ast.Call) and value.site not in told:
                told.add(value.site)
                yield from _queue(program, value.site)
            info = value.ref.find_method("__getitem__") if value.kind == "instance" else None
            if info is None or info.node in told:
                continue
            told.add(info.node)
            found = _moving(program, info)
            if found is not None:
                yield found


def _moving(program: Program, info: FunctionFacts) -> GoingOn | None:
    """What a dataset returns that comes of an attribute which it moves on, and not of the index."""
    index = next(iter(info.positional), None)
    if index is None or info.receiver is None:
        return None
    moved = set() if _hands_on(info, index) else set(_moved(program, info, index))
    for returned in info.returns if moved else ():
        made_of = _made_of(info, returned)
        path = min(made_of & moved, default=None)
        if path is not None and index not in made_of:
            text = f"`{info.qualname}` gives what `{path}` has come to, whatever index it is asked for: each process "
            recipe = (
                "take the sample by its index there; or give each rank its share by `amp.rank()` and `amp.world_size()`"
            )
            return GoingOn(info.module.module, returned, f"{text}would go over the same samples", recipe)
    return None


def _queue(program: Program, made: ast.Call) -> Iterator[GoingOn]:
    """A queue of a library, by the call that makes it."""
    located = program.locate(made)
    if located is not None:
        module = located[1].module
        text = (
            f"`{module.text(made.func)}` gives the next sample of an order of its own, whatever index it is asked for"
        )
        recipe = (
            "give each queue the data of its rank, `data[amp.rank()::amp.world_size()]`, and leave its loader as it is"
        )
        yield GoingOn(module, made, f"{text}: each process would take what it gives out of all data", recipe)


def _hands_on(info: FunctionFacts, index: str) -> bool:
    """Whether a method gives the index, or what it made of it, to what may keep it: ``self.read(index)``."""
    made = {index}
    statements = [node for node in blocks.walk_body(info.node) if isinstance(node, (ast.Assign, ast.AugAssign))]
    while True:
        before = len(made)
        for node in statements:
            if blocks.touches(blocks.reads(node.value), made):
                made |= blocks.writes_itself(node)
        if len(made) == before:
            break
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and (blocks.path_of(node.func) or "").split(".")[0] == info.receiver
        and any(blocks.touches(blocks.reads(given), made) for given in [*node.args, *node.keywords])
        for node in blocks.walk_body(info.node)
    )


def _moved(program: Program, info: FunctionFacts, index: str) -> Iterator[str]:
    """The attributes that a method, or another one that it calls, writes by what they hold, and not by the index."""
    bodies = [info]
    for node in blocks.walk_body(info.node):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if blocks.path_of(node.func.value) == info.receiver:
                bodies += program.flow.callees(node)
    for body in bodies:
        prefix = f"{body.receiver}."
        for node in blocks.walk_body(body.node):
            if isinstance(node, (ast.Assign, ast.AugAssign)) and index not in blocks.reads(node):
                yield from (path for path in blocks.writes(node) if path.startswith(prefix))


def _made_of(info: FunctionFacts, returned: ast.expr) -> set[str]:
    """The variables and attributes that a value of a function is computed from."""
    found = blocks.reads(returned)
    statements = [
        node for node in blocks.walk_body(info.node) if isinstance(node, (ast.Assign, ast.AugAssign, ast.For))
    ]
    while True:
        before = len(found)
        for node in statements:
            if blocks.touches(blocks.writes_itself(node), found):
                found |= blocks.reads(node.iter if isinstance(node, ast.For) else node)
        if len(found) == before:
            return found
