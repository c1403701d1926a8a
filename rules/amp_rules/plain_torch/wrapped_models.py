"""Models that DistributedDataParallel wraps: where, and with what options."""

from __future__ import annotations

import ast

from amp_rules.plain_torch.averaged_passes import AveragedPasses
from amp_rules.plain_torch.batch_norm import may_have_batch_norm, names_batch_norm, reasons_against
from amp_rules.plain_torch.file_head import Helper
from amp_rules.plain_torch.gpu import may_use_gpu
from amp_rules.plain_torch.model_reads import ModelReads
from amp_rules.plain_torch.translation import Translation
from amp_rules.plain_torch.uses import Use
from amp_rules.plain_torch.wrapped import Wrapped
from amp_rules.roles.steps import Site
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.text.expression_edits import call_with, first_argument

_MANY = 3
"""Models of one file from which on a function wraps them."""

ON_THE_CPU = "batch norm over all processes on the CPU, where each process has its own"
"""What torch has no counterpart of."""

_WIDTH = 110
"""A longer line is broken."""

_MOVES = frozenset({"cuda", "to"})
"""Methods that put a model on a device: a parameter of another type of device is another tensor to its wrapper."""

_ORDER = -10
"""A model is wrapped before what else comes after the statement that makes it."""


class WrappedModels:
    """The models of a program that are wrapped for several processes."""

    def __init__(self, translation: Translation) -> None:
        self._translation = translation
        self._program = translation.program
        uses = [use for use in translation.uses_of("prepare_model") if use.call is not None and use.call.args]
        self.models = [self._wrapped(use) for use in uses]
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
        moved = self._moved_later(found)
        if moved is not None:
            self._translation.decline(
                moved.module,
                moved.node,
                f"`{moved.module.text(moved.node)}` moves a model to its device after DistributedDataParallel wrapped "
                "it: its gradients would not be averaged",
                f"move the model to its device where it is built, above line {use.line} of {use.module.path.name}",
                "distribution",
            )
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

    def _moved_later(self, found: Wrapped) -> Site | None:
        """Where a function that runs after the wrapping puts the model on its device, and nothing did before."""
        use = found.use
        if not may_use_gpu(self._program):
            return None
        moves = [
            Site(scope.module, scope, body, call)
            for call, body, scope in self._program.calls()
            if isinstance(call.func, ast.Attribute)
            and call.func.attr in _MOVES
            and self._program.roles.modules(call.func.value, scope) & found.values
        ]
        if any(move.body is use.body and move.line <= use.line for move in moves):
            return None
        after = [node for node in self._program.nodes_of(use.body) if getattr(node, "lineno", 0) >= use.line]
        called = self._program.called_from(after)
        return next((move for move in moves if move.body is not use.body and move.body in called), None)

    # ---- the text --------------------------------------------------------------------------------------------------

    def _lines(self, use: Use, variable: str, options: str) -> str:
        """The statements that wrap a variable's model, as a template."""
        return "if {WORLD_SIZE} > 1:\n" + _indented(self._wrapping(variable, options, use))

    def _function(self, use: Use, options: str) -> Helper:
        """A function that wraps a model."""
        body = ["if {WORLD_SIZE} == 1:", "    return model", *self._wrapping("model", options, None)]
        place = next(index for index, row in enumerate(body) if row.startswith("model = {DDP}"))
        body[place] = body[place].replace("model = ", "return ", 1)
        text = '"""Average the gradients of a model over all processes."""'
        return Helper("distributed", "def distributed(model):\n" + _indented([text, *body]))

    def _wrapping(self, variable: str, options: str, use: Use | None) -> list[str]:
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
        if column + 4 + len(self._translation.code(self.models[0].use.module, line)) <= _WIDTH:
            return [*lines, line]
        return [*lines, f"{variable} = {{DDP}}(", f"    {model}{options}", ")"]

    # ---- what there is ---------------------------------------------------------------------------------------------

    def _wrapped(self, use: Use) -> Wrapped:
        statement = use.statement
        variable = None
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is use.call:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            if len(targets) == 1 and _is_variable(targets[0]):
                variable = ast.unparse(targets[0])
        return Wrapped(use, frozenset(self._program.roles.modules(use.argument, use.scope)), variable)

    @property
    def _keeps_names(self) -> bool:
        """Whether the models are inside of DataParallel."""
        return any(True for _ in self._translation.uses_of("keep_module_prefix"))

    def _are_many(self, module: Module) -> bool:
        return sum(item.use.module is module for item in self.models) >= _MANY


def _is_variable(node: ast.expr) -> bool:
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and blocks.path_of(node) is not None
    return isinstance(node, (ast.Name, ast.Attribute)) and blocks.path_of(node) is not None


def _indented(rows: list[str]) -> str:
    return "\n".join("    " + row for row in rows)
