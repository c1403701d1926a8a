"""The embedding tables of a program, and which of them are large enough to share their rows out."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.values import Value
from amp_rules.plan import notes
from amp_rules.plan.numbers import Numbers
from amp_rules.plan.report import Note
from amp_rules.roles.kinds import is_module
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.torch.models import EMBEDDINGS

_FROM_WEIGHTS = frozenset(f"{name}.from_pretrained" for name in EMBEDDINGS)


def is_table(value: Value) -> bool:
    """Whether a value is an ``nn.Embedding`` or ``nn.EmbeddingBag``, or of a class derived from them."""
    if value.kind == "instance":
        return bool(EMBEDDINGS & value.ref.external_bases())
    return value.name in EMBEDDINGS and value.kind == "object" and not value.is_result


class Tables:
    """The tables that a program makes.

    Attributes:
        min_rows: the rows from which on a table is shared out.
        sizes: what each may have for rows; None where the text does not say.
    """

    def __init__(self, program: Program, min_rows: int) -> None:
        self._program = program
        self.min_rows = min_rows
        self.sizes: dict[Value, frozenset[float] | None] = {}
        self._bearing: dict[Value, bool] = {}
        numbers = Numbers(program)
        for call, _, scope in program.calls():
            for value in program.flow.values(call, scope):
                if value.site is call and is_table(value):
                    given = _rows(call) if value.kind == "object" else None
                    self.sizes[value] = (numbers.of(given, scope) or None) if given is not None else None

    def is_large(self, value: Value) -> bool:
        """Whether a value is a table that may have as many rows."""
        if value not in self.sizes:
            return False
        sizes = self.sizes[value]
        return sizes is None or max(sizes) >= self.min_rows

    @property
    def large(self) -> list[Value]:
        """The tables that may have as many rows, in the order of the program."""
        return [value for value in self.sizes if self.is_large(value)]

    @property
    def of_weights(self) -> list[Site]:
        """Where a table is made of the weights that it is given."""
        return self._program.calls_to(_FROM_WEIGHTS)

    def bears(self, value: Value) -> bool:
        """Whether a value is a model or layer with such a table, or such a table itself."""
        if not is_module(value):
            return False
        if value not in self._bearing:
            self._bearing[value] = any(map(self.is_large, self._program.with_parts({value})))
        return self._bearing[value]

    def notes(self, shared: set[Value]) -> Iterator[Note]:
        """Yield what becomes of each table, and that there is none.

        Args:
            shared: those whose rows are shared out where they are as many.
        """
        for value, sizes in self.sizes.items():
            module = self._program.module_of(value.site) if value.site is not None else None
            if module is None or value.site is None:
                continue
            text = f"`{module.text(value.site)}`"
            if not self.is_large(value):
                text += f" has fewer than {self.min_rows} rows, and stays whole on each process"
            elif value not in shared:
                text += " is in no model that is prepared, and stays whole on each process"
            elif sizes is not None and min(sizes) >= self.min_rows:
                text += " is sharded by rows over the processes"
            else:
                text += f" is sharded by rows if it has {self.min_rows} rows or more, which is decided at run time"
            yield notes.note(notes.TABLES, module, value.site, text)
        if not self.sizes:
            text = "the script makes no `nn.Embedding` and no `nn.EmbeddingBag`: nothing is sharded"
            yield notes.note(notes.TABLES, self._program.entry, None, text)


def _rows(call: ast.Call) -> ast.expr | None:
    """What says how many rows a table has."""
    if call.args:
        return None if isinstance(call.args[0], ast.Starred) else call.args[0]
    return next((item.value for item in call.keywords if item.arg == "num_embeddings"), None)
