"""The blocks of a sharded model that are whole one at a time, as far as the text says; the runtime finds them itself.

See ``blocks_of`` of the runtime: modules of one class that occur more than once in an ``nn.ModuleList`` or
``nn.Sequential`` and are made of modules themselves.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator

from amp_rules.flow.values import Value
from amp_rules.plan import notes
from amp_rules.plan.model_homes.home import Home
from amp_rules.plan.model_parts import has_parameters
from amp_rules.plan.precision import Precision
from amp_rules.plan.report import Note
from amp_rules.roles.kinds import is_module
from amp_rules.roles.program import Program
from amp_rules.source.scopes import Scope
from amp_rules.torch.models import CHAINS

_CONTAINERS = CHAINS | {"torch.nn.ModuleList", "torch.nn.modules.ModuleList", "torch.nn.modules.container.ModuleList"}
_MADE_OF_LAYERS = {
    "torch.nn.TransformerEncoder": "TransformerEncoderLayer",
    "torch.nn.TransformerDecoder": "TransformerDecoderLayer",
}


def notes_of_blocks(program: Program, precision: Precision) -> Iterator[Note]:
    """Yield for each model which of its parts are whole one at a time."""
    for home in precision.homes:
        found = sorted(_blocks(program, home))
        if found:
            listed = ", ".join(f"`{name}`" for name in found)
            text = f"`{home.variable}` is sharded in blocks, each whole while it runs: {listed}"
        else:
            text = (
                f"`{home.variable}` is sharded; the text names no repeated blocks, so it may be in memory whole "
                "while it runs: `amp.init(verbose=True)` prints the blocks that are found"
            )
        yield notes.note(notes.BLOCKS, home.module, home.statement, text)


def _blocks(program: Program, home: Home) -> set[str]:
    cell = program.flow.cells.get(home.key)
    parts = program.with_parts({value for value in cell.values if is_module(value)} if cell is not None else ())
    found = {_MADE_OF_LAYERS[value.name] for value in parts if value.name in _MADE_OF_LAYERS}
    layers: set[str] = set()
    for value in parts:
        located = program.locate(value.site) if isinstance(value.site, ast.Call) else None
        if located is None or value.name not in _CONTAINERS:
            continue
        assert isinstance(value.site, ast.Call)
        for one in _repeated(program, value.site.args, located[1]):
            is_block = one.kind == "instance" and len(program.with_parts({one})) > 1
            (found if is_block else layers).add(_name(one))
    return found or layers


def _repeated(program: Program, given: Iterable[ast.expr], scope: Scope) -> Iterator[Value]:
    """What a container of modules is made of more than once."""
    several: Counter[str] = Counter()
    by_name: dict[str, Value] = {}
    for item in given:
        inner = item.value if isinstance(item, ast.Starred) else item
        is_list = isinstance(inner, (ast.List, ast.Tuple))
        for part in inner.elts if isinstance(inner, (ast.List, ast.Tuple)) else [inner]:
            spread = part is inner and isinstance(item, ast.Starred)
            repeats = spread or isinstance(part, (ast.ListComp, ast.GeneratorExp))
            values = program.flow.values(part, scope)
            if not is_list and any(value.kind == "sequence" for value in values):
                values, repeats = program.flow.elements(values), True
            for value in values:
                if is_module(value) and has_parameters(value):
                    several[_name(value)] += 2 if repeats else 1
                    by_name[_name(value)] = value
    yield from (by_name[name] for name, count in sorted(several.items()) if count > 1)


def _name(value: Value) -> str:
    return value.ref.facts.node.name if value.kind == "instance" else value.name.rpartition(".")[2]
