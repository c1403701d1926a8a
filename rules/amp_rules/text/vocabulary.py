"""The seam between what a rewrite wants and how it is written.

A rewrite decides that a loss is to be scaled, a loader shared out or a file written by one process only; a vocabulary
says in which words. Rewrites name nothing of :mod:`amp_runtime` themselves, so that a script can be migrated to other
words, such as PyTorch's own, without touching one of them.
"""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from amp_rules.roles.sites import Backward, Step
from amp_rules.source.modules import Module
from amp_rules.text.actions import Action

LOSS_NAMES = ("loss", "total_loss", "step_loss", "unscaled_loss")
"""What a loss is called that gets a variable: the first that the file has no other use for."""


@dataclass(frozen=True)
class Written:
    """How a wish is written.

    Attributes:
        actions: what is done to the file.
        needs_import: whether the new code uses the line of :meth:`Vocabulary.import_line`.
    """

    actions: tuple[Action, ...]
    needs_import: bool = True


@dataclass(frozen=True)
class InitArguments:
    """What the script trains with, as far as it is said where it starts; what is None is left to the default.

    Attributes:
        opt_level: the source of an expression, as in ``'"O1"'`` or ``'args.level'``.
        dtype: the half type, ``fp16`` or ``bf16``.
        loss_scale: a fixed scale.
        ddp: whether several processes join.
        sync_bn: whether batch norm is synchronised over them.
        sharded: whether the models are shared out over them.
        override: the source of a level that overrides it and the environment, as in ``args.amp``; it may be None.
        more: further arguments of Apex's ``initialize``, by Apex's names, with the source of each.
        quantize: how the script makes its model int8 in the end, if it does.
    """

    opt_level: str
    dtype: str | None = None
    loss_scale: float | None = None
    ddp: bool = False
    sync_bn: bool = True
    sharded: bool = False
    override: str | None = None
    more: tuple[tuple[str, str], ...] = ()
    quantize: str | None = None


@dataclass(frozen=True)
class Unscaled:
    """An optimizer whose gradients are looked at.

    Attributes:
        optimizer: its source at the place of the look, as in ``self.optimizer``.
        loop: the head of the loop that steps several, as in ``for optimizer in optimizers:``.
        conditions: what must hold for it to step, where it may be None.
    """

    optimizer: str
    loop: str | None = None
    conditions: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelPlace:
    """Where a model is prepared.

    Attributes:
        module: the file.
        statement: the statement after which it is there; the first that uses it, where it is there from the start.
        variable: the variable that holds it, as in ``self.model``.
        made: the expression that makes it, where the call around it reads better than a line of its own.
        in_place: whether it must be prepared where it is made.
        order: which of several at one place comes first.
        is_optional: whether the variable may hold None.
        test: the condition under which the variable holds a model, where it may hold something else than None.
        before: whether it is prepared before the statement, not after it.
        also: another variable that holds it.
    """

    module: Module
    statement: ast.stmt
    variable: str
    made: ast.expr | None = None
    in_place: bool = False
    order: int = 0
    is_optional: bool = False
    before: bool = False
    test: str = ""
    also: str | None = None


class Vocabulary(ABC):
    """Writes what rewrites wish for. One object serves one migration; ``module`` is always the file of the new code."""

    # ---- the start -----------------------------------------------------------------------------------------------

    @abstractmethod
    def import_line(self, module: Module) -> str | None:
        """The import that the written code needs in a file; None where the file has it at its head."""

    @abstractmethod
    def start(self, module: Module, start: InitArguments, width: int | None = None) -> str:
        """The statement at the head of the main path; of several lines where it is longer than ``width`` columns."""

    @property
    @abstractmethod
    def starting(self) -> frozenset[str]:
        """Qualified names of the functions that start the runtime, to find where a script does so already."""

    @abstractmethod
    def overridden(self, module: Module, call: ast.Call, override: str) -> Written:
        """Let a level override the one that a start was given; ``override`` is its source."""

    @abstractmethod
    def joined(self, module: Module, call: ast.Call, sync_bn: bool, width: int | None = None) -> str:
        """A start, see :attr:`starting`, at which the processes join too; on several lines, if it is wider."""

    @property
    @abstractmethod
    def preparing(self) -> frozenset[str]:
        """Qualified names of the functions that prepare a model, to find those that are prepared already."""

    # ---- precision -----------------------------------------------------------------------------------------------

    @abstractmethod
    def autocast(self, module: Module, first: ast.stmt, last: ast.stmt) -> Written:
        """Run the statements from ``first`` to ``last`` of one suite under autocast."""

    @abstractmethod
    def autocast_argument(self, module: Module, statement: ast.stmt, argument: ast.expr, variable: str) -> Written:
        """Compute an argument of a statement under autocast before it, and give it as a variable."""

    @abstractmethod
    def without_autocast(self, module: Module, first: ast.stmt, last: ast.stmt) -> Written:
        """Run the statements in FP32, inside of a region of autocast too."""

    @abstractmethod
    def in_float32(self, module: Module, function: ast.expr) -> Written:
        """Let a function or a module cast what it is given to FP32 and compute there."""

    @abstractmethod
    def in_float32_if(self, module: Module, made: ast.expr, test: str) -> Written:
        """Let the module that an expression makes do so where a condition holds."""

    @abstractmethod
    def called_in_float32(self, module: Module, node: ast.expr, function: str, *, tensor_last: bool = False) -> Written:
        """Let a call of a method or an operator compute in FP32, by the function that it stands for.

        ``tensor_last`` says that the left operand is a number, which torch's function takes second.
        """

    @abstractmethod
    def decorated_in_float32(self, module: Module, definition: ast.FunctionDef | ast.AsyncFunctionDef) -> Written:
        """Let a function cast what it is given to FP32 and compute there, wherever it is called."""

    @abstractmethod
    def at_least_float32(self, module: Module, dtype: str) -> str:
        """An expression: float32 where another gives a half type, else that type."""

    @abstractmethod
    def in_other_threads(self, module: Module, function: ast.expr) -> Written:
        """Let a function that another thread will call run under the autocast of this place."""

    @abstractmethod
    def backward(self, site: Backward, variable: str | None) -> Written:
        """Scale the loss of a backward pass.

        Args:
            site: the backward pass.
            variable: a free name, where the loss is computed in the same expression and needs autocast before.
        """

    @abstractmethod
    def unscale(self, module: Module, look: ast.stmt, optimizers: tuple[Unscaled, ...]) -> Written:
        """Unscale the gradients of optimizers before a statement that looks at them."""

    @abstractmethod
    def step(self, site: Step, result: str | None = None) -> Written:
        """Step an optimizer unless its gradients overflowed.

        Args:
            site: the step.
            result: a free name, where the step is returned and the scale must be updated before that.
        """

    @abstractmethod
    def update_scale(self, module: Module, statement: ast.stmt, *, before: bool = False) -> Written:
        """Let the scale adapt after the last step of a round, or before what leaves the round without one."""

    @abstractmethod
    def scale_saved(self, module: Module, made: ast.Dict | ast.Call, key: str) -> Written:
        """Put the state of the scale into a dictionary that is saved; ``key`` is the source of a string."""

    @abstractmethod
    def scale_stored(self, module: Module, statement: ast.stmt, saved: str, key: str) -> Written:
        """Put it after a statement into the dictionary that ``saved`` is the source of."""

    @abstractmethod
    def scale_restored(self, module: Module, statement: ast.stmt, loaded: str, key: str) -> Written:
        """After a statement, or above a ``return``, give the scale its state back.

        It is the one that the dictionary ``loaded`` has, if it has one.
        """

    @abstractmethod
    def model(self, place: ModelPlace, *, delayed: bool, unused: bool = False) -> Written:
        """Prepare a model for its precision and its processes.

        Args:
            place: where.
            delayed: whether gradients are averaged when the optimizer steps, not during the backward pass.
            unused: whether some of its parameters may get no gradient in a step.
        """

    @abstractmethod
    def delayed(self, module: Module, call: ast.Call) -> Written:
        """Let a call that prepares a model already, see :attr:`preparing`, average gradients at the step."""

    @abstractmethod
    def fused_optimizer(self, module: Module, call: ast.Call, name: str) -> Written:
        """Use the fused kernel of ``torch.optim.<name>``, whose constructor is called."""

    # ---- several processes ---------------------------------------------------------------------------------------

    @abstractmethod
    def device(
        self, module: Module, node: ast.expr, *, is_constructor: bool, as_text: bool = False, as_index: bool = False
    ) -> Written:
        """Put the process's own device in the place of one that is named by its index.

        Args:
            module: the file.
            node: the expression.
            is_constructor: whether it is a call of ``torch.device`` with the device alone.
            as_text: whether it must stay the text that it was.
            as_index: whether it must be the number of a GPU.
        """

    @abstractmethod
    def device_of_option(self, module: Module, statement: ast.stmt, path: str) -> Written:
        """Put the process's own device, as a text, into an option behind the statement that parses the command line."""

    @abstractmethod
    def moved_to_own_device(self, module: Module, call: ast.Call) -> Written:
        """Have ``.cuda()`` move to the process's own device, also where the process has none yet."""

    @abstractmethod
    def loader(self, module: Module, node: ast.expr, variable: str | None) -> Written:
        """Give each process its share of a loader that an expression makes.

        Args:
            module: the file.
            node: the expression.
            variable: what it is assigned to, where a line of its own after it would do.
        """

    @abstractmethod
    def loader_of(
        self, module: Module, statement: ast.stmt, variable: str, *, after: bool, condition: str = ""
    ) -> Written:
        """Give each process its share of a loader that a variable holds, before or after a statement.

        With a ``condition``, an expression, only where that holds.
        """

    @abstractmethod
    def unwrapped(self, module: Module, node: ast.expr, *, owner: bool) -> Written:
        """Use the model itself where its wrapper may stand; of ``model.module``, with ``owner``, that of ``model``."""

    @abstractmethod
    def whole_state(self, module: Module, call: ast.Call) -> Written:
        """Put the state together that ``X.state_dict()`` gives of something sharded; all processes do it."""

    @abstractmethod
    def tables_shared_out(self, place: ModelPlace, min_rows: int) -> Written:
        """Share the rows of a model's tables out, those with so many rows or more, above where it is prepared."""

    @abstractmethod
    def quantized(self, module: Module, model: str, kind: str, calibration: str | None, inputs: str | None) -> str:
        """An expression: the model in int8, with the ranges of a loader's batches where a kind needs them."""

    @abstractmethod
    def quantized_from_training(self, module: Module, model: str) -> str:
        """An expression: the model in int8, of one that was made to train for it."""

    @abstractmethod
    def ranges_frozen(self, module: Module, model: str) -> str:
        """A statement after which a model that trains for int8 keeps its ranges."""

    @abstractmethod
    def quantized_saved(self, module: Module, model: str, path: str) -> str:
        """A statement that saves a model in int8."""

    @abstractmethod
    def clipped_by_norm(self, module: Module, call: ast.Call) -> Written:
        """Clip by the norm of all shards, where ``torch.nn.utils.clip_grad_norm_`` is called."""

    @abstractmethod
    def names_of_data_parallel(self, module: Module, call: ast.Call) -> Written:
        """Keep the names that ``DataParallel(model, ...)`` gives, and leave the model on one device."""

    @abstractmethod
    def on_main_process(self, module: Module, first: ast.stmt, last: ast.stmt) -> Written:
        """Run statements on the main process only."""

    @abstractmethod
    def called_on_main(self, module: Module, function: ast.expr, *, share_folder: bool = False) -> Written:
        """Call a function on the main process only; all processes compute its arguments.

        With ``share_folder`` it makes a writer, all processes come there, and the others are told its folder.
        """

    @abstractmethod
    def main_process_first(self, module: Module, first: ast.stmt, last: ast.stmt) -> Written:
        """Run statements on the main process before the others run them."""

    @abstractmethod
    def asked_once_before(self, module: Module, loop: ast.stmt, iterable: ast.expr) -> Written:
        """Above a loop of several processes, ask for the first of what it iterates over, on the main process first."""

    @abstractmethod
    def raised_in_several(self, module: Module, statement: ast.stmt) -> Written:
        """Before the first statement of a handler, raise the error again where there are several processes."""

    @abstractmethod
    def same_folder(self, module: Module, statement: ast.stmt) -> Written:
        """Have all processes work in the folder of the main process before a statement."""

    @abstractmethod
    def barrier(self, module: Module, statement: ast.stmt) -> Written:
        """Let all processes wait for each other before a statement."""

    @abstractmethod
    def summed_after(self, module: Module, statement: ast.stmt, variable: str, loader: str | None) -> Written:
        """Sum a variable over all processes after a statement.

        Args:
            module: the file.
            statement: the statement.
            variable: what holds the sum of one process.
            loader: the source of what was iterated, where that may be a loader that is not shared out.
        """

    @abstractmethod
    def summed(self, module: Module, node: ast.expr, loader: str | None) -> Written:
        """Put the sum of an expression over all processes in its place; ``loader`` as for :meth:`summed_after`."""

    @abstractmethod
    def shared_evaluation(self, module: Module, loader: ast.expr) -> Written:
        """Iterate over this process's part of a loader that is evaluated."""

    @abstractmethod
    def put_together(
        self,
        module: Module,
        loop: ast.stmt,
        sums: Sequence[Sequence[str]],
        lists: Sequence[str],
        worked_out: Sequence[str],
    ) -> Written:
        """Behind an evaluation, put together what all processes have found.

        Args:
            module: the file.
            loop: the evaluation.
            sums: variables that are summed; those of a group stand together.
            lists: variables whose lists are joined.
            worked_out: statements that work out again what rests on the sums.
        """

    @abstractmethod
    def share_of(self, module: Module, node: ast.expr, loader: str | None) -> Written:
        """Make a number of steps that of one process; ``loader`` is the source of the loader that they go over."""

    @abstractmethod
    def seed_by_rank(self, module: Module, statement: ast.stmt) -> Written:
        """Let each process draw random numbers of its own from a statement on."""

    @abstractmethod
    def seed_alike(self, module: Module, statement: ast.stmt) -> Written:
        """Let all processes draw the same random numbers again from a statement on."""

    @abstractmethod
    def drawn_alike(self, module: Module, function: ast.expr) -> Written:
        """Call a function with the random numbers that all processes share."""

    @abstractmethod
    def same_seed(self, module: Module, call: ast.Call) -> Written:
        """Give a generator, or a function that seeds one, a seed that all processes share, where it is given none."""

    @abstractmethod
    def seed_of_rank(self, module: Module, seed: ast.expr) -> Written:
        """Let a generator have another seed on each process."""

    @abstractmethod
    def same_order(self, module: Module, elements: ast.expr) -> Written:
        """Take the elements of a set in an order that all processes share."""

    @abstractmethod
    def same_hash(self, module: Module, function: ast.expr) -> Written:
        """Hash by the content instead of ``hash``, which each process seeds."""

    @abstractmethod
    def reduced(self, module: Module, number: ast.expr) -> Written:
        """Take the mean of a number, or of a tensor, over all processes."""

    @abstractmethod
    def of_main_process(self, module: Module, value: ast.expr) -> Written:
        """Take the main process's value on all processes."""

    @abstractmethod
    def asked_on_main(self, module: Module, call: ast.Call) -> Written:
        """Ask on the main process only, and give all processes its answer."""

    @abstractmethod
    def reduced_once(self, module: Module, statement: ast.stmt, numbers: Sequence[ast.expr], variable: str) -> Written:
        """Give a variable the mean of one number over the ranks, for all places of a statement that read the number.

        Args:
            module: the file.
            statement: the statement, which the variable is assigned before.
            numbers: the same expression at each place.
            variable: a name that the file does not use.
        """

    @abstractmethod
    def reduced_before(self, module: Module, statement: ast.stmt, variable: str) -> Written:
        """Let a variable hold the mean over all processes before a statement."""

    @abstractmethod
    def is_main_process(self, module: Module) -> str:
        """An expression: whether this is the main process."""

    @abstractmethod
    def several_processes(self, module: Module) -> str:
        """An expression: whether there is more than one process."""

    # ---- what Apex had -------------------------------------------------------------------------------------------

    @abstractmethod
    def for_drafts(self) -> Vocabulary:
        """The same words for files on their way, where it is not known yet which names will be free."""

    @abstractmethod
    def finished(self, text: str, module: Module) -> str:
        """The text of a file that the words of :meth:`for_drafts` stand in, with the final names."""

    @abstractmethod
    def shown(self, message: str) -> str:
        """A message for the reader with the names that :meth:`finished` will most likely choose."""

    @abstractmethod
    def is_used(self, module: Module) -> bool:
        """Whether a file on its way uses what :meth:`import_line` brings."""

    @abstractmethod
    def prepared(self, module: Module, model: str) -> str:
        """An expression: the prepared model."""

    @abstractmethod
    def scaled(self, module: Module, loss: str, loss_id: str) -> str:
        """An expression: a loss scaled by a scaler of its own."""

    @abstractmethod
    def scale(self, module: Module) -> str:
        """An expression: the present scale."""

    @abstractmethod
    def set_scale(self, module: Module, value: str) -> str:
        """A statement: the scale becomes a value."""

    @abstractmethod
    def counterpart(self, module: Module, target: str) -> str | None:
        """An expression: what takes the place of a function or a class of Apex, if something does."""

    @abstractmethod
    def drop_in(self, path: str) -> str:
        """The module that has the interface of a module of Apex; of the empty path, that of Apex itself."""
