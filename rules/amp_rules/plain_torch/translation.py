"""One program on its way from the runtime's words to torch's own."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from amp_rules.plain_torch.arrays import widened_for_numpy
from amp_rules.plain_torch.cpu_kernels import lacks_kernel_on_cpus
from amp_rules.plain_torch.file_head import FileHead, Helper
from amp_rules.plain_torch.uses import Use, alike, import_of_runtime, uses_of_runtime
from amp_rules.plan import declining
from amp_rules.plan.declining import Reasons
from amp_rules.plan.distribution import visible_devices
from amp_rules.plan.options import Options
from amp_rules.plan.report import Refusal, Unit
from amp_rules.roles.program import Program
from amp_rules.roles.workers import training_workers
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.text.actions import Action, ExpressionEdit, Insert, Remove, Replace
from amp_rules.text.applying import apply
from amp_rules.text.expression_edits import substitute

Translate = Callable[["Translation", Use], None]
"""Writes one use of the runtime in torch's words, or declines it."""

_DTYPES = {
    "fp16": "{torch}.float16",
    "bf16": "{torch}.bfloat16",
    "auto": "{torch}.float16 if {torch}.cuda.is_available() else {torch}.bfloat16",
}
_MAX_HELPERS = 2
"""More helper functions in a file are a library of their own, which the runtime is."""
_T = TypeVar("_T")


@dataclass(frozen=True)
class Start:
    """``amp.init(...)``.

    Attributes:
        use: the call.
        level: the source of its level, as in ``'"O1"'`` or ``'args.opt_level'``.
        dtype: the half type.
        loss_scale: the source of a fixed scale; None where it adapts.
        ddp: whether several processes join there.
        sync_bn: whether batch norm is synchronised.
    """

    use: Use
    level: str
    dtype: str
    loss_scale: str | None
    ddp: bool
    sync_bn: bool


class Translation:
    """What becomes of a program's files.

    Attributes:
        program: the program in the runtime's words.
        options: what was asked for.
        uses: every use of the runtime, by file and place.
        limits: what torch cannot keep of this program, one sentence each with its order, by file.
    """

    def __init__(self, program: Program, options: Options) -> None:
        self.program = program
        self.options = options
        self.uses = sorted(uses_of_runtime(program), key=lambda use: (str(use.module.path), use.module.start(use.node)))
        self.limits: dict[Module, dict[str, int]] = defaultdict(dict)
        self._actions: defaultdict[Module, list[Action]] = defaultdict(list)
        self._heads: dict[Module, FileHead] = {}
        self._reasons = Reasons()
        self._parts: dict[type, object] = {}
        self._at_end: list[Callable[[], None]] = []

    # ---- what the program says -------------------------------------------------------------------------------------

    def uses_of(self, *paths: str) -> Iterator[Use]:
        """Yield the uses of names of the runtime."""
        yield from (use for use in self.uses if use.path in paths)

    @cached_property
    def start(self) -> Start | None:
        """Where the runtime is started; None where nothing starts it, or several places do, each in its own way."""
        found = [use for use in self.uses_of("init") if use.call is not None and use != self._joined_before]
        if not found or not (len(found) == 1 or alike(found)):
            return None
        use, joins = found[0], self.joins
        dtype = use.keyword("dtype")
        return Start(
            use,
            _text(use, "opt_level") or '"O1"',
            dtype.value if isinstance(dtype, ast.Constant) and isinstance(dtype.value, str) else self.options.dtype,
            _text(use, "loss_scale"),
            joins is not None,
            joins is None or _text(joins, "sync_bn") != "False",
        )

    @cached_property
    def joins(self) -> Use | None:
        """Where the processes join, if they do; scripts for Apex may do so before the start, to share out the data."""
        found = [use for use in self.uses_of("init") if use.call is not None and _text(use, "ddp") == "True"]
        return found[0] if len(found) == 1 else None

    @cached_property
    def _joined_before(self) -> Use | None:
        others = [use for use in self.uses_of("init") if use.call is not None and use != self.joins]
        return self.joins if others else None

    @cached_property
    def where(self) -> str:
        """The template of the devices on which it computes in mixed precision; empty for all."""
        return "{torch}.cuda.is_available() and " if lacks_kernel_on_cpus(self.program) else ""

    @property
    def is_distributed(self) -> bool:
        """Whether the script joins other processes."""
        return self.joins is not None and self.start is not None

    def part(self, kind: type[_T]) -> _T:
        """What is known for the whole program and made once: ``translation.part(LossScaling)``."""
        if kind not in self._parts:
            self._parts[kind] = kind(self)  # type: ignore[call-arg]
        found = self._parts[kind]
        assert isinstance(found, kind)
        return found

    # ---- writing ---------------------------------------------------------------------------------------------------

    def head(self, module: Module) -> FileHead:
        """The head of a file."""
        if module not in self._heads:
            level = self.start.level.strip("\"'") if self.start else self.options.opt_level
            level = "O0" if level == "O0" else "O1"
            dtype = self.start.dtype if self.start else self.options.dtype
            settings = {"level": level, "dtype": _DTYPES[dtype], "where": self.where}
            # Once CUDA has started, which `is_available` does, nothing reads `CUDA_VISIBLE_DEVICES` again, and no
            # process that is forked later can use it.
            is_early = self._hides_devices_late or self._forks
            asks = "device_count() > 0" if is_early else "is_available()"
            self._heads[module] = FileHead(module, settings, asks)
        return self._heads[module]

    @cached_property
    def _forks(self) -> bool:
        """Whether the script trains in processes that it may fork; ``spawn`` begins them anew."""
        return any(
            not isinstance(site.node, ast.Call)
            or not any(name.endswith(".spawn") for name in self.program.callee_names(site.node, site.scope))
            for site, _ in training_workers(self.program)
        )

    @cached_property
    def _hides_devices_late(self) -> bool:
        """Whether ``CUDA_VISIBLE_DEVICES`` is set below the constants of some file."""
        runtime = import_of_runtime(self.program.entry)
        return any(
            module is not self.program.entry
            or runtime is None
            or statement.lineno > runtime.lineno
            or blocks.body_of(module, statement) is not module.tree
            for module, statement in visible_devices(self.program)
        )

    def code(self, module: Module, template: str) -> str:
        """New code for a file, see :meth:`FileHead.code`."""
        return self.head(module).code(template)

    def do(self, module: Module, *actions: Action) -> None:
        """Have something done to a file."""
        self._actions[module].extend(actions)

    def replace(self, module: Module, node: ast.expr, edit: ExpressionEdit | str) -> None:
        """Put something in the place of an expression; text is a template."""
        self.do(module, Replace(node, substitute(self.code(module, edit)) if isinstance(edit, str) else edit))

    def insert(
        self,
        module: Module,
        statement: ast.stmt,
        template: str,
        *,
        after: bool = False,
        order: int = 0,
        gap: bool = False,
    ) -> None:
        """Put lines beside a statement."""
        self.do(module, Insert(statement, self.code(module, template), after=after, order=order, gap=gap))

    def take_out(self, use: Use) -> None:
        """Take out the statement that a use is."""
        self.do(use.module, Remove(use.statement, keep_comments=True))

    def put_for(self, use: Use, template: str, *, gap: bool = False) -> None:
        """Put lines in the place of the statement that a use is; ``gap`` sets them apart by blank lines."""
        self.insert(use.module, use.statement, template, gap=gap)
        self.do(use.module, Remove(use.statement))

    def helper(self, use: Use, helper: Helper, unit: Unit, module: Module | None = None) -> str:
        """The name of a helper function for a use, in its file or another; a third one declines its unit."""
        head = self.head(module or use.module)
        if helper not in head.helpers and len(head.helpers) >= _MAX_HELPERS:
            names = " and ".join(f"`{item.name}`" for item in head.helpers)
            message = f"the file would get a third helper function, `{helper.name}`, beside {names}"
            self.decline(use.module, use.node, message, "keep the runtime here (--target runtime)", unit)
        return head.helper(helper)

    # ---- declining -------------------------------------------------------------------------------------------------

    def decline(self, module: Module, node: ast.AST, message: str, recipe: str, unit: Unit) -> None:
        """Note why a unit cannot be written in torch's words."""
        rule = declining.NOT_IN_TORCH
        span = module.span(node)
        refusal = Refusal(module.path, span, rule.code, rule.name, unit, message, recipe)
        self._reasons.extend([declining.Declined(refusal)])

    def cannot_keep(self, module: Module, sentence: str, *, order: int = 0) -> None:
        """Note what torch cannot keep, to be said once for the file.

        Args:
            module: the file.
            sentence: what it is.
            order: above 0 what hardly ever shows, which is said after what may train otherwise.
        """
        self.limits[module].setdefault(sentence, order)

    def at_end(self, write: Callable[[], None]) -> None:
        """Have something written once every use has been translated."""
        self._at_end.append(write)

    def texts(self, words: Mapping[str, Translate], unknown: Translate) -> dict[Path, str]:
        """The files in torch's words.

        Args:
            words: what writes each name of the runtime.
            unknown: what declines the others.

        Raises:
            Declined: something has no words in torch.
        """
        for use in self.uses:
            words.get(use.path, unknown)(self, use)
        for write in self._at_end:
            write()
        self._reasons.decline()
        modules = dict.fromkeys([*(use.module for use in self.uses), *self._actions])
        texts = {module: self.head(module).written(apply(module, self._actions[module])) for module in modules}
        if self.start is None or self.start.dtype != "fp16":
            texts = {module: widened_for_numpy(module, text) for module, text in texts.items()}
        return {module.path: text for module, text in texts.items()}


def _text(use: Use, name: str) -> str | None:
    given = use.keyword(name)
    return None if given is None else ast.unparse(given)
