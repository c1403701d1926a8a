"""The words of :mod:`amp_runtime`: the only place that writes its names into a script."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence

import libcst as cst

from amp_rules.roles.sites import Backward, Step
from amp_rules.source.modules import Module
from amp_rules.source.resolver import names_of
from amp_rules.text.actions import Decorate, ExpressionEdit, Insert, Replace, Wrap
from amp_rules.text.expression_edits import add_keyword, as_function, call_with, change_function, either, substitute
from amp_rules.text.line_width import entry_within, keyword_within
from amp_rules.text.taking_out import taken_out
from amp_rules.text.vocabulary import InitArguments, ModelPlace, Unscaled, Vocabulary, Written
from amp_rules.torch import apex as api

RUNTIME = "amp_runtime"

# The name in files on their way. As long as ``amp``: rows of arguments are aligned below it.
_STAND_IN = "_aM"

# A line that a call around a constructor makes longer than this gets one of its own instead; beyond the 100 columns of
# many projects no formatter would have left the constructor on one line.
_MODEL_LINE = 110

# As above for loaders, whose constructors black, at 88 columns, has put on several lines where they are longer.
_LOADER_LINE = 88

# Variables that are put together in one line, twice in it; more get a line of their own.
_ROW = 76

_DELAY = "delay_allreduce=True"
_UNUSED = "find_unused_parameters=True"

_COUNTERPARTS = api.RENAMED | api.OPTIMIZER_PATHS | api.PARALLEL


class RuntimeVocabulary(Vocabulary):
    """Writes calls of the runtime, under the name ``amp`` where a file leaves that free."""

    def __init__(self, alias: str | None = None) -> None:
        self._alias = alias
        self._aliases: dict[Module, str] = {}

    def _amp(self, module: Module) -> str:
        """The name that the runtime has in a file."""
        if self._alias is not None:
            return self._alias
        if module not in self._aliases:
            self._aliases[module] = imported_runtime(module) or _free_name(module)
        return self._aliases[module]

    def _code(self, module: Module, template: str) -> str:
        """The template with ``{amp}`` replaced by the runtime's name in the file."""
        return template.replace("{amp}", self._amp(module))

    # ---- the start -----------------------------------------------------------------------------------------------

    def import_line(self, module: Module) -> str | None:
        """``import amp_runtime as amp``."""
        if imported_runtime(module) is not None:
            return None
        alias = self._amp(module)
        return f"import {RUNTIME}" if alias == RUNTIME else f"import {RUNTIME} as {alias}"

    def start(self, module: Module, start: InitArguments, width: int | None = None) -> str:
        """``amp.init(opt_level=..., ddp=True)``."""
        parts = [f"opt_level={start.opt_level}"]
        if start.override is not None:
            parts.append(f"override={start.override}")
        if start.dtype is not None:
            parts.append(f'dtype="{start.dtype}"')
        if start.loss_scale is not None:
            parts.append(f"loss_scale={start.loss_scale!r}")
        parts += [f"{api.INIT_ARGUMENTS[name]}={value}" for name, value in start.more]
        if start.ddp:
            parts.append('parallel="fsdp"' if start.sharded else "ddp=True")
            if not start.sync_bn:
                parts.append("sync_bn=False")
        if start.quantize is not None:
            parts.append(f'quantize="{start.quantize}"')
        return self._start(module, parts, width)

    def _start(self, module: Module, parts: list[str], width: int | None) -> str:
        function = self._code(module, "{amp}.init")
        code = f"{function}({', '.join(parts)})"
        if width is None or len(code) <= width:
            return code
        return f"{function}(\n    " + ",\n    ".join(parts) + ",\n)"

    @property
    def starting(self) -> frozenset[str]:
        """``amp.init``."""
        return frozenset({f"{RUNTIME}.init"})

    def overridden(self, module: Module, call: ast.Call, override: str) -> Written:
        """``amp.init(..., override=args.amp)``."""
        return Written((Replace(call, add_keyword(f"override={override}")),), needs_import=False)

    def joined(self, module: Module, call: ast.Call, sync_bn: bool, width: int | None = None) -> str:
        """``amp.init(opt_level=args.opt_level, ddp=True)``."""
        parts = [f"{item.arg}={module.code(item.value)}" for item in call.keywords]
        parts += ["ddp=True"] if sync_bn else ["ddp=True", "sync_bn=False"]
        return self._start(module, parts, width)

    @property
    def preparing(self) -> frozenset[str]:
        """``amp.prepare_model``."""
        return frozenset({f"{RUNTIME}.prepare_model"})

    # ---- precision -----------------------------------------------------------------------------------------------

    def autocast(self, module: Module, first: ast.stmt, last: ast.stmt) -> Written:
        """``with amp.autocast():``."""
        return Written((Wrap(first, last, self._code(module, "with {amp}.autocast():")),))

    def autocast_argument(self, module: Module, statement: ast.stmt, argument: ast.expr, variable: str) -> Written:
        """``with amp.autocast():``, and the variable below it."""
        return Written(taken_out(argument, statement, variable, header=self._code(module, "with {amp}.autocast():")))

    def without_autocast(self, module: Module, first: ast.stmt, last: ast.stmt) -> Written:
        """``with amp.autocast(enabled=False):``."""
        return Written((Wrap(first, last, self._code(module, "with {amp}.autocast(enabled=False):")),))

    def in_float32(self, module: Module, function: ast.expr) -> Written:
        """``amp.float_function(...)``."""
        return Written((Replace(function, call_with(self._code(module, "{amp}.float_function"))),))

    def in_float32_if(self, module: Module, made: ast.expr, test: str) -> Written:
        """``amp.float_function(act()) if act is nn.Sigmoid else act()``."""
        wrapped, choice = call_with(self._code(module, "{amp}.float_function")), either(test, module.text(made))
        return Written((Replace(made, lambda node: choice(wrapped(node))),))

    def called_in_float32(self, module: Module, node: ast.expr, function: str, *, tensor_last: bool = False) -> Written:
        """``amp.float_function(torch.Tensor.inverse)(x)``."""
        code = self._code(module, "{amp}.float_function") + f"({function})"
        return Written((Replace(node, as_function(code, tensor_last=tensor_last)),))

    def decorated_in_float32(self, module: Module, definition: ast.FunctionDef | ast.AsyncFunctionDef) -> Written:
        """``@amp.float_function``."""
        return Written((Decorate(definition, self._code(module, "{amp}.float_function")),))

    def at_least_float32(self, module: Module, dtype: str) -> str:
        """``amp.at_least_float32(x.dtype)``."""
        return self._code(module, "{amp}.at_least_float32") + f"({dtype})"

    def in_other_threads(self, module: Module, function: ast.expr) -> Written:
        """``amp.in_this_region(function)``."""
        return Written((Replace(function, call_with(self._code(module, "{amp}.in_this_region"))),))

    def backward(self, site: Backward, variable: str | None) -> Written:
        """``amp.scaler.scale(loss).backward()``; the loss may get a statement of its own first."""
        scale = self._code(site.module, "{amp}.scaler.scale")
        if variable is None:
            return Written((Replace(site.loss, call_with(scale)),))
        header = self._code(site.module, "with {amp}.autocast():")
        return Written(taken_out(site.loss, site.statement, variable, header=header, instead=call_with(scale)))

    def unscale(self, module: Module, look: ast.stmt, optimizers: tuple[Unscaled, ...]) -> Written:
        """``amp.scaler.unscale_(optimizer)``."""
        lines = []
        for item in optimizers:
            heads = [item.loop] if item.loop is not None else []
            if item.conditions:
                heads.append(f"if {' and '.join(item.conditions)}:")
            call = self._code(module, "{amp}.scaler.unscale_") + f"({item.optimizer})"
            lines += ["    " * depth + row for depth, row in enumerate([*heads, call])]
        return Written((Insert(look, "\n".join(lines)),))

    def step(self, site: Step, result: str | None = None) -> Written:
        """``amp.scaler.step(optimizer)``; what is returned gets statements of its own first."""
        step = self._code(site.module, "{amp}.scaler.step")
        if result is None:
            return Written((Replace(site.call, _of_receiver(step)),))
        lines = (f"{result} = {step}({ast.unparse(site.optimizer)})", self._code(site.module, "{amp}.scaler.update()"))
        return Written((Insert(site.statement, "\n".join(lines)), Replace(site.call, substitute(result))))

    def update_scale(self, module: Module, statement: ast.stmt, *, before: bool = False) -> Written:
        """``amp.scaler.update()``."""
        return Written((Insert(statement, self._code(module, "{amp}.scaler.update()"), after=not before),))

    def scale_saved(self, module: Module, made: ast.Dict | ast.Call, key: str) -> Written:
        """``{..., "scaler": amp.scaler.state_dict()}``."""
        state = self._code(module, "{amp}.scaler.state_dict()")
        if isinstance(made, ast.Dict):
            return Written((Replace(made, entry_within(module, made, f"{key}: {state}")),))
        return Written((Replace(made, keyword_within(module, made, f"{ast.literal_eval(key)}={state}")),))

    def scale_stored(self, module: Module, statement: ast.stmt, saved: str, key: str) -> Written:
        """``state["scaler"] = amp.scaler.state_dict()``."""
        code = f"{saved}[{key}] = {self._code(module, '{amp}.scaler.state_dict()')}"
        return Written((Insert(statement, code, after=True),))

    def scale_restored(self, module: Module, statement: ast.stmt, loaded: str, key: str) -> Written:
        """``amp.scaler.load_state_dict(checkpoint.get("scaler", {}))``."""
        code = f"{self._code(module, '{amp}.scaler.load_state_dict')}({loaded}.get({key}, {{}}))"
        return Written((Insert(statement, code, after=not isinstance(statement, ast.Return)),))

    def model(self, place: ModelPlace, *, delayed: bool, unused: bool = False) -> Written:
        """``model = amp.prepare_model(model)``, around the constructor or on a line of its own."""
        function = self._code(place.module, "{amp}.prepare_model")
        more = ([_DELAY] if delayed else []) + ([_UNUSED] if unused else [])
        if place.made is not None and (place.in_place or _fits(place, function, more)):
            return Written((Replace(place.made, call_with(function, *more)),))
        names = place.variable if place.also is None else f"{place.variable} = {place.also}"
        code = f"{names} = {function}({', '.join([place.variable, *more])})"
        if place.is_optional or place.test:
            code = f"if {place.test or f'{place.variable} is not None'}:\n    {code}"
        return Written((Insert(place.statement, code, after=not place.before, order=place.order),))

    def delayed(self, module: Module, call: ast.Call) -> Written:
        """``delay_allreduce=True``."""
        return Written((Replace(call, add_keyword(_DELAY)),))

    def fused_optimizer(self, module: Module, call: ast.Call, name: str) -> Written:
        """``amp.optim.AdamW(...)``."""
        return Written((Replace(call, change_function(self._code(module, "{amp}.optim.") + name)),))

    # ---- several processes ---------------------------------------------------------------------------------------

    def device(
        self, module: Module, node: ast.expr, *, is_constructor: bool, as_text: bool = False, as_index: bool = False
    ) -> Written:
        """``amp.device(...)``; ``str(amp.device(...))`` or ``amp.device(...).index`` where that is wanted."""
        function = self._code(module, "{amp}.device")
        if as_text:
            device = call_with(function)
            return Written((Replace(node, lambda given: call_with("str")(device(given))),))
        written = change_function(function) if is_constructor else call_with(function)
        return Written(
            (Replace(node, (lambda given: cst.Attribute(written(given), cst.Name("index"))) if as_index else written),)
        )

    def device_of_option(self, module: Module, statement: ast.stmt, path: str) -> Written:
        """``args.device = str(amp.device(args.device))``."""
        code = f"{path} = str({self._code(module, '{amp}.device')}({path}))"
        return Written((Insert(statement, code, after=True, order=1),))

    def moved_to_own_device(self, module: Module, call: ast.Call) -> Written:
        """``.cuda(device=amp.device("cuda"))``."""
        return Written((Replace(call, add_keyword(self._code(module, 'device={amp}.device("cuda")'))),))

    def loader(self, module: Module, node: ast.expr, variable: str | None) -> Written:
        """``amp.prepare_loader(...)``: around a constructor of one line; else on a line of its own, which leaves it."""
        function = self._code(module, "{amp}.prepare_loader")
        statement = module.parents[node]
        if variable is not None and isinstance(statement, ast.stmt):
            (_, start), (_, end) = module.start(statement), module.end(statement)
            if statement.lineno != statement.end_lineno or end - start > _LOADER_LINE:
                return Written((Insert(statement, f"{variable} = {function}({variable})", after=True),))
        return Written((Replace(node, call_with(function)),))

    def loader_of(
        self, module: Module, statement: ast.stmt, variable: str, *, after: bool, condition: str = ""
    ) -> Written:
        """``loader = amp.prepare_loader(loader)``."""
        function = self._code(module, "{amp}.prepare_loader")
        otherwise = f" if {condition} else {variable}" if condition else ""
        return Written((Insert(statement, f"{variable} = {function}({variable}){otherwise}", after=after),))

    def unwrapped(self, module: Module, node: ast.expr, *, owner: bool) -> Written:
        """``amp.unwrap(model)``."""
        function = self._code(module, "{amp}.unwrap")
        return Written((Replace(node, _of_owner(function) if owner else call_with(function)),))

    def whole_state(self, module: Module, call: ast.Call) -> Written:
        """``amp.full_state_dict(model)``."""
        return Written((Replace(call, _of_receiver(self._code(module, "{amp}.full_state_dict"))),))

    def tables_shared_out(self, place: ModelPlace, min_rows: int) -> Written:
        """``amp.shard_embedding(model, min_rows=100000)``."""
        code = self._code(place.module, "{amp}.shard_embedding") + f"({place.variable}, min_rows={min_rows})"
        if place.is_optional:
            code = f"if {place.variable} is not None:\n    {code}"
        # Above the line that prepares it, where that is at the same place.
        return Written((Insert(place.statement, code, after=not place.before, order=-1),))

    def quantized(self, module: Module, model: str, kind: str, calibration: str | None, inputs: str | None) -> str:
        """``amp.quantize(model, "static", calibration=train_loader)``."""
        more = [] if calibration is None else [f"calibration={calibration}"]
        more += [] if inputs is None else [f"inputs={inputs}"]
        given = [model, f'"{kind}"', *more]
        function = self._code(module, "{amp}.quantize")
        code = f"{function}({', '.join(given)})"
        return code if len(code) <= _LOADER_LINE else f"{function}(\n    " + ",\n    ".join(given) + ",\n)"

    def quantized_from_training(self, module: Module, model: str) -> str:
        """``amp.convert_quantized(model)``."""
        return self._code(module, "{amp}.convert_quantized") + f"({model})"

    def ranges_frozen(self, module: Module, model: str) -> str:
        """``amp.unwrap(model).freeze_observers()``."""
        return self._code(module, "{amp}.unwrap") + f"({model}).freeze_observers()"

    def quantized_saved(self, module: Module, model: str, path: str) -> str:
        """``amp.save_quantized(quantized, "model_int8.pt")``."""
        return self._code(module, "{amp}.save_quantized") + f"({model}, {path})"

    def clipped_by_norm(self, module: Module, call: ast.Call) -> Written:
        """``amp.clip_grad_norm_(model.parameters(), 1.0)``."""
        return Written((Replace(call, change_function(self._code(module, "{amp}.clip_grad_norm_"))),))

    def names_of_data_parallel(self, module: Module, call: ast.Call) -> Written:
        """``amp.keep_module_prefix(model)``."""
        return Written((Replace(call, _around_first_argument(self._code(module, "{amp}.keep_module_prefix"))),))

    def on_main_process(self, module: Module, first: ast.stmt, last: ast.stmt) -> Written:
        """``if amp.is_main_process():``."""
        return Written((Wrap(first, last, self._code(module, "if {amp}.is_main_process():")),))

    def called_on_main(self, module: Module, function: ast.expr, *, share_folder: bool = False) -> Written:
        """``amp.on_main(save_image)(...)``."""
        more = ["share_folder=True"] if share_folder else []
        return Written((Replace(function, call_with(self._code(module, "{amp}.on_main"), *more)),))

    def main_process_first(self, module: Module, first: ast.stmt, last: ast.stmt) -> Written:
        """``with amp.main_process_first():``."""
        return Written((Wrap(first, last, self._code(module, "with {amp}.main_process_first():")),))

    def asked_once_before(self, module: Module, loop: ast.stmt, iterable: ast.expr) -> Written:
        """``next(iter(splitter.split(data)), None)`` under ``with amp.main_process_first():``."""
        turns = self._code(module, "with {amp}.main_process_first():")
        first = f"next(iter({module.text(iterable)}), None)"
        return Written((Insert(loop, f"if {self.several_processes(module)}:\n    {turns}\n        {first}"),))

    def raised_in_several(self, module: Module, statement: ast.stmt) -> Written:
        """``if amp.world_size() > 1: raise``."""
        return Written((Insert(statement, f"if {self.several_processes(module)}:\n    raise"),))

    def same_folder(self, module: Module, statement: ast.stmt) -> Written:
        """``os.chdir(amp.from_main_process(os.getcwd()))``."""
        goes = Insert(statement, self._code(module, "os.chdir({amp}.from_main_process(os.getcwd()))"), gap=True)
        if names_of(module).imports.get("os") == "os":
            return Written((goes,))
        first = next(item for item in module.tree.body if isinstance(item, (ast.Import, ast.ImportFrom)))
        if isinstance(first, ast.ImportFrom) and first.module == "__future__":
            return Written((Insert(first, "\nimport os", after=True), goes))
        of_python = isinstance(first, ast.Import) and first.names[0].name in sys.stdlib_module_names
        return Written((Insert(first, "import os", gap=not of_python), goes))

    def barrier(self, module: Module, statement: ast.stmt) -> Written:
        """``amp.barrier()``."""
        return Written((Insert(statement, self._code(module, "{amp}.barrier()")),))

    def summed_after(self, module: Module, statement: ast.stmt, variable: str, loader: str | None) -> Written:
        """``total = amp.reduce_sum(total)``, or ``amp.sum_of_shares(total, loader)``."""
        code = f"{variable} = {self._sum(module, loader)}({', '.join([variable, *([loader] if loader else [])])})"
        return Written((Insert(statement, code, after=True),))

    def summed(self, module: Module, node: ast.expr, loader: str | None) -> Written:
        """``amp.reduce_sum(total)``, or ``amp.sum_of_shares(total, loader)``."""
        return Written((Replace(node, call_with(self._sum(module, loader), *([loader] if loader else []))),))

    def _sum(self, module: Module, loader: str | None) -> str:
        return self._code(module, "{amp}.sum_of_shares" if loader else "{amp}.reduce_sum")

    def shared_evaluation(self, module: Module, loader: ast.expr) -> Written:
        """``amp.share_evaluation(loader)``."""
        return Written((Replace(loader, call_with(self._code(module, "{amp}.share_evaluation"))),))

    def put_together(
        self,
        module: Module,
        loop: ast.stmt,
        sums: Sequence[Sequence[str]],
        lists: Sequence[str],
        worked_out: Sequence[str],
    ) -> Written:
        """``correct, total = amp.sum_evaluated(correct, total)``, and the same of lists."""
        lines = []
        joined = [[path] for path in lists]
        for groups, function in ((sums, "{amp}.sum_evaluated"), (joined, "{amp}.gather_evaluated")):
            for few in _in_rows(groups):
                lines.append(f"{few} = {self._code(module, function)}({few})")
        return Written((Insert(loop, "\n".join([*lines, *worked_out]), after=True),))

    def share_of(self, module: Module, node: ast.expr, loader: str | None) -> Written:
        """``amp.share_of(steps, loader)``."""
        more = [loader] if loader else []
        return Written((Replace(node, call_with(self._code(module, "{amp}.share_of"), *more)),))

    def seed_by_rank(self, module: Module, statement: ast.stmt) -> Written:
        """``amp.seed_by_rank()``, apart from the statement by a blank line."""
        return Written((Insert(statement, self._code(module, "{amp}.seed_by_rank()"), gap=True),))

    def seed_alike(self, module: Module, statement: ast.stmt) -> Written:
        """``amp.seed_alike()``."""
        return Written((Insert(statement, self._code(module, "{amp}.seed_alike()")),))

    def drawn_alike(self, module: Module, function: ast.expr) -> Written:
        """``amp.drawn_alike(random.choice)(...)``."""
        return Written((Replace(function, call_with(self._code(module, "{amp}.drawn_alike"))),))

    def same_seed(self, module: Module, call: ast.Call) -> Written:
        """``np.random.default_rng(amp.same_seed())``."""
        seed = self._code(module, "{amp}.same_seed()")
        given = [*call.args, *(item.value for item in call.keywords)]
        if given:
            return Written((Replace(given[0], substitute(seed)),))
        return Written((Replace(call, _given_alone(seed)),))

    def seed_of_rank(self, module: Module, seed: ast.expr) -> Written:
        """``amp.seed_of_rank(seed)``."""
        return Written((Replace(seed, call_with(self._code(module, "{amp}.seed_of_rank"))),))

    def same_order(self, module: Module, elements: ast.expr) -> Written:
        """``amp.same_order(...)``."""
        return Written((Replace(elements, call_with(self._code(module, "{amp}.same_order"))),))

    def same_hash(self, module: Module, function: ast.expr) -> Written:
        """``amp.same_hash``."""
        return Written((Replace(function, substitute(self._code(module, "{amp}.same_hash"))),))

    def reduced(self, module: Module, number: ast.expr) -> Written:
        """``amp.reduce_mean(loss.item())``."""
        return Written((Replace(number, call_with(self._code(module, "{amp}.reduce_mean"))),))

    def of_main_process(self, module: Module, value: ast.expr) -> Written:
        """``amp.from_main_process(time.time() > end)``."""
        return Written((Replace(value, call_with(self._code(module, "{amp}.from_main_process"))),))

    def asked_on_main(self, module: Module, call: ast.Call) -> Written:
        """``amp.from_main_process(amp.on_main(input)("Go on? "))``."""
        asking = self.called_on_main(module, call.func)
        return Written((*asking.actions, *self.of_main_process(module, call).actions))

    def reduced_before(self, module: Module, statement: ast.stmt, variable: str) -> Written:
        """``loss = amp.reduce_mean(loss)``."""
        function = self._code(module, "{amp}.reduce_mean")
        return Written((Insert(statement, f"{variable} = {function}({variable})"),))

    def reduced_once(self, module: Module, statement: ast.stmt, numbers: Sequence[ast.expr], variable: str) -> Written:
        """``mean_loss = amp.reduce_mean(loss)``, and ``mean_loss`` at each place."""
        code = f"{variable} = {self._code(module, '{amp}.reduce_mean')}({module.text(numbers[0])})"
        before = Insert(statement, code, commented=True)
        return Written((before, *(Replace(item, substitute(variable)) for item in numbers)))

    def is_main_process(self, module: Module) -> str:
        """``amp.is_main_process()``."""
        return self._code(module, "{amp}.is_main_process()")

    def several_processes(self, module: Module) -> str:
        """``amp.world_size() > 1``."""
        return self._code(module, "{amp}.world_size() > 1")

    # ---- what Apex had -------------------------------------------------------------------------------------------

    def for_drafts(self) -> RuntimeVocabulary:
        """With a name that no script has: ``amp`` is Apex's until nothing of Apex is left."""
        return RuntimeVocabulary(_STAND_IN)

    def finished(self, text: str, module: Module) -> str:
        """With ``amp``, unless the file uses that for something else."""
        alias = _free_name(module)
        text = text.replace(f"import {RUNTIME} as {_STAND_IN}", f"import {RUNTIME} as {alias}")
        text = text.replace(f"import {RUNTIME} as {RUNTIME}", f"import {RUNTIME}")
        return re.sub(rf"\b{_STAND_IN}\b", alias, text)  # a name such as `no_amp_layers` holds the same letters

    def shown(self, message: str) -> str:
        """With ``amp``."""
        return message.replace(f"{_STAND_IN}.", "amp.")

    def is_used(self, module: Module) -> bool:
        """Whether the file names the runtime."""
        return any(isinstance(node, ast.Name) and node.id == self._amp(module) for node in module.parents)

    def prepared(self, module: Module, model: str) -> str:
        """``amp.prepare_model(model)``."""
        return self._code(module, "{amp}.prepare_model") + f"({model})"

    def scaled(self, module: Module, loss: str, loss_id: str) -> str:
        """``amp.scaler.scale(loss, loss_id=1)``."""
        return self._code(module, "{amp}.scaler.scale") + f"({loss}, loss_id={loss_id})"

    def scale(self, module: Module) -> str:
        """``amp.scaler.get_scale()``."""
        return self._code(module, "{amp}.scaler.get_scale()")

    def set_scale(self, module: Module, value: str) -> str:
        """``amp.scaler.update(value)``."""
        return self._code(module, "{amp}.scaler.update") + f"({value})"

    def counterpart(self, module: Module, target: str) -> str | None:
        """``amp.master_params``, ``amp.optim.FusedAdam``."""
        path = _COUNTERPARTS.get(target)
        return None if path is None else self._code(module, "{amp}.") + path

    def drop_in(self, path: str) -> str:
        """``amp_runtime.parallel``; the drop-in itself for the empty path, which holds ``amp_C``."""
        if not path:
            return f"{RUNTIME}.apex"
        return f"{RUNTIME}.apex.{path}" if path.split(".")[0] in api.EXTENSIONS else f"{RUNTIME}.{path}"


def imported_runtime(module: Module) -> str | None:
    """The name under which a file imports the runtime at its head, if it does."""
    for node in module.tree.body:
        for alias in node.names if isinstance(node, ast.Import) else ():
            if alias.name == RUNTIME:
                return alias.asname or alias.name
    return None


def _free_name(module: Module) -> str:
    """``amp``, unless the file uses that name for something else."""
    return RUNTIME if names_of(module).is_taken("amp") else "amp"


def _of_receiver(function: str) -> ExpressionEdit:
    """``optimizer.step()`` becomes ``function(optimizer)``."""

    def edit(node: cst.BaseExpression) -> cst.BaseExpression:
        receiver = cst.ensure_type(cst.ensure_type(node, cst.Call).func, cst.Attribute).value
        return call_with(function)(receiver)

    return edit


def _around_first_argument(function: str) -> ExpressionEdit:
    """``f(a, more)`` becomes ``function(a)``."""
    return lambda node: call_with(function)(cst.ensure_type(node, cst.Call).args[0].value)


def _given_alone(code: str) -> ExpressionEdit:
    """``default_rng()`` becomes ``default_rng(code)``."""
    return lambda node: cst.ensure_type(node, cst.Call).with_changes(args=[cst.Arg(cst.parse_expression(code))])


def _of_owner(function: str) -> ExpressionEdit:
    """``model.module`` becomes ``function(model)``."""
    return lambda node: call_with(function)(cst.ensure_type(node, cst.Attribute).value)


def _in_rows(groups: Sequence[Sequence[str]]) -> Iterator[str]:
    """The variables in a few rows, none much longer than a line of code may be; a group is not torn apart."""
    row: list[str] = []
    for group in groups:
        if row and 2 * len(", ".join([*row, *group])) > _ROW:
            yield ", ".join(row)
            row = []
        row += group
    if row:
        yield ", ".join(row)


def _fits(place: ModelPlace, function: str, more: list[str]) -> bool:
    """Whether the constructor's line has room for the call around it."""
    line = place.module.lines[place.statement.lineno - 1]
    return len(line) + len(function) + sum(len(item) + 2 for item in more) + 2 <= _MODEL_LINE
