"""Models that DistributedDataParallel wraps: where, and with what options."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import replace
from functools import cached_property

from amp_rules.plain_torch.averaged_passes import AveragedPasses
from amp_rules.plain_torch.batch_norm import may_have_batch_norm, names_batch_norm, reasons_against
from amp_rules.plain_torch.file_head import Helper
from amp_rules.plain_torch.gpu import may_use_gpu
from amp_rules.plain_torch.model_reads import ModelReads
from amp_rules.plain_torch.moved_models import MovedModels, is_variable
from amp_rules.plain_torch.translation import Translation
from amp_rules.plain_torch.uses import Use
from amp_rules.plain_torch.wrapped import Moved, Wrapped
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.text.expression_edits import call_with, first_argument

_MANY = 3
"""Models of one file from which on a function wraps them."""

ON_THE_CPU = "batch norm over all processes on the CPU, where each process has its own"
"""What torch has no counterpart of."""

_WIDTH = 110
"""A longer line is broken."""

_ORDER = -10
"""A model is wrapped before what else comes after the statement that makes it."""


class WrappedModels:
    """The models of a program that are wrapped for several processes."""

    def __init__(self, translation: Translation) -> None:
        self._translation = translation
        self._program = translation.program
        uses = [use for use in translation.uses_of("prepare_model") if use.call is not None and use.call.args]
        models = [self._wrapped(use) for use in uses]
        places = Counter(item.place.node for item in models)
        self.models = [item if places[item.place.node] == 1 else replace(item, moved=None) for item in models]
        self._options = AveragedPasses(translation, self.models).options
        self.reads = ModelReads(translation, self.models)
        self.reads.rewrite()
        start = translation.start
        self._has_batch_norm = start is not None and start.sync_bn and may_have_batch_norm(self._program)
        if self._has_batch_norm:
            reasons_against(translation)
            if may_use_gpu(self._program) and names_batch_norm(self._program):
                translation.cannot_keep(self._program.entry, ON_THE_CPU, order=1)

    def wrap(self, use: Use) -> None:
        """Wrap a model where it is prepared."""
        found = next(item for item in self.models if item.use is use)
        options = self._options.get(use)
        if options is None:
            return  # declined
        if self._declines_moves(found):
            return
        if found.moved is not None:
            self._wrap_where_moved(found, found.moved, options)
            return
        module = use.module
        if found.variable is None or self._are_many(module):
            name = self._translation.helper(use, self._function(use, options), "distribution")
            self._translation.replace(module, use.whole, lambda node: call_with(name)(first_argument(node)))
        elif found.has_own_line:
            self._translation.put_for(use, self._lines(use, found.variable, options))
        else:
            self._translation.replace(module, use.whole, first_argument)
            lines = self._lines(use, found.variable, options)
            self._translation.insert(module, use.statement, lines, after=True, order=_ORDER)

    def _declines_moves(self, found: Wrapped) -> bool:
        """Decline a model that gets to another device after it was wrapped, and say whether it does."""
        use, translation = found.use, self._translation
        later = self._moves.later(use, found.values) if found.moved is None else []
        for moved in later[:1]:
            translation.decline(
                moved.module,
                moved.node,
                f"`{moved.module.text(moved.node)}` moves a model to its device after DistributedDataParallel wrapped "
                "it: its gradients would not be averaged",
                f"move the model to its device where it is built, above line {use.line} of {use.module.path.name}",
                "distribution",
            )
        away = self._moves.away(use, found.values)
        if away is not None:
            translation.decline(
                away.module,
                away.node,
                f"`{away.module.text(away.node)}` takes a model from its device between steps: once it is back, "
                "DistributedDataParallel averages no gradients",
                "leave the model where it is, and copy what is saved: "
                "{key: value.cpu() for key, value in model.state_dict().items()}",
                "distribution",
            )
        return bool(later) or away is not None

    def _wrap_where_moved(self, found: Wrapped, moved: Moved, options: str) -> None:
        """Wrap a model below the statement that moves it to its device."""
        if found.has_own_line:
            self._translation.take_out(found.use)
        else:
            self._translation.replace(found.use.module, found.use.whole, first_argument)
        lines = self._lines(moved, moved.variable, options)
        self._translation.insert(moved.module, moved.statement, lines, after=True, order=_ORDER)

    # ---- the text --------------------------------------------------------------------------------------------------

    def _lines(self, use: Site, variable: str, options: str) -> str:
        """The statements that wrap a variable's model, as a template."""
        return "if {WORLD_SIZE} > 1:\n" + _indented(self._wrapping(variable, options, use))

    def _function(self, use: Use, options: str) -> Helper:
        """A function that wraps a model."""
        body = ["if {WORLD_SIZE} == 1:", "    return model", *self._wrapping("model", options, None)]
        place = next(index for index, row in enumerate(body) if row.startswith("model = {DDP}"))
        body[place] = body[place].replace("model = ", "return ", 1)
        text = '"""Average the gradients of a model over all processes."""'
        return Helper("distributed", "def distributed(model):\n" + _indented([text, *body]))

    def _wrapping(self, variable: str, options: str, use: Site | None) -> list[str]:
        lines = []
        if self._has_batch_norm and may_use_gpu(self._program):
            lines += [
                f"if next({variable}.parameters()).is_cuda:",
                f"    {variable} = {{torch}}.nn.SyncBatchNorm.convert_sync_batchnorm({variable})",
            ]
        model = variable
        if self._keeps_names:
            model = f"{variable}.module"
            if may_use_gpu(self._program):
                # DataParallel took inputs to the GPU, and this one does so for devices that it is told.
                options = f", device_ids=[{{LOCAL_RANK}}] if next({variable}.parameters()).is_cuda else None{options}"
        line = f"{variable} = {{DDP}}({model}{options})"
        column = 0 if use is None else use.module.start(use.statement)[1]
        module = self.models[0].use.module if use is None else use.module
        if column + 4 + len(self._translation.code(module, line)) <= _WIDTH:
            return [*lines, line]
        return [*lines, f"{variable} = {{DDP}}(", f"    {model}{options}", ")"]

    # ---- what there is ---------------------------------------------------------------------------------------------

    def _wrapped(self, use: Use) -> Wrapped:
        statement = use.statement
        variable = None
        modules = self._program.roles.modules
        values = modules(use.argument, use.scope)
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is use.call:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            if len(targets) == 1 and is_variable(targets[0]):
                variable = ast.unparse(targets[0])
                # What a library gives, ``BertModel.from_pretrained(name)``, is known by what its variable is used for.
                values = values or modules(blocks.reading(targets[0]), use.scope)
        moved = None if self._keeps_names else self._moves.to_wrap_at(use, frozenset(values))
        return Wrapped(use, frozenset(values), variable, moved)

    @cached_property
    def _moves(self) -> MovedModels:
        return MovedModels(self._program)

    @property
    def _keeps_names(self) -> bool:
        """Whether the models are inside of DataParallel."""
        return any(True for _ in self._translation.uses_of("keep_module_prefix"))

    def _are_many(self, module: Module) -> bool:
        return sum(item.use.module is module for item in self.models) >= _MANY


def _indented(rows: list[str]) -> str:
    return "\n".join("    " + row for row in rows)
