"""Where a trained model is made int8, with what it is calibrated, and how it is evaluated before and after."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from amp_rules.flow.values import Value
from amp_rules.plan.model_homes.home import Home
from amp_rules.plan.options import Quantization
from amp_rules.plan.quantizing.calibrating import calibration_at
from amp_rules.plan.quantizing.evaluating import EvaluationCall, EvaluationCalls, standing_alone
from amp_rules.plan.quantizing.last_epoch import kept_on_condition, saved
from amp_rules.plan.quantizing.places import Place
from amp_rules.plan.quantizing.training_for_it import TrainingStart, training_start
from amp_rules.plan.quantizing.why_not import Apart, NotQuantized, Remark
from amp_rules.plan.training_loops import TrainingLoop, training_loops
from amp_rules.roles.batches import DataFlow
from amp_rules.roles.program import Program
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk
from amp_rules.torch.distributed import JOINS
from amp_rules.torch.models import FORWARD_HOOKS
from amp_rules.torch.quantizing import (
    HAS_DYNAMIC_FORM,
    HAS_STATIC_FORM,
    LIBRARIES,
    LIBRARY_MODELS,
    OTHER_FORMS,
)
from amp_rules.torch.wrappers import DATA_PARALLEL

_NAMES = ("quantized", "int8_model", "quantized_model")


@dataclass(frozen=True)
class Quantized:
    """What is added to a script.

    Attributes:
        kind: which of the three.
        module: the file.
        statement: what it follows.
        model: the source of the trained model.
        name: the new variable.
        calibration: the source of the loader; None where the kind needs none there.
        inputs: the source of a function that makes the model's input of a batch, where one is needed.
        before: the source of the evaluation in float32, where the script has none at that place.
        after: the source of the evaluation in int8; None where nothing can be called once more.
        gives: whether the evaluation gives a result, which is to be shown.
        path: the source of the file's name.
        start: where the training for int8 begins, for ``"qat"``.
        remarks: what the reader has to know.
    """

    kind: Quantization
    module: Module
    statement: ast.stmt
    model: str
    name: str
    calibration: str | None
    inputs: str | None
    before: str | None
    after: str | None
    gives: bool
    path: str
    start: TrainingStart | None
    remarks: tuple[Remark, ...]


def find(program: Program, kind: Quantization, homes: Sequence[Home], *, joined_norms: bool) -> Quantized:
    """Decide on a program whose models have their homes.

    Args:
        program: the program.
        kind: what was asked for.
        homes: where the models are prepared.
        joined_norms: whether batch norm is to take the batches of all processes.

    Raises:
        NotQuantized: something is not understood, or stands in the way.
    """
    return _Search(program, kind, homes, joined_norms).found()


class _Search:
    def __init__(self, program: Program, kind: Quantization, homes: Sequence[Home], joined_norms: bool) -> None:
        self._program = program
        self._kind = kind
        self._homes = homes
        self._joined_norms = joined_norms

    def found(self) -> Quantized:
        program = self._program
        self._check_own()
        home = self._home()
        models = self._models(home)
        self._check_layers(home, models)
        loops = training_loops(program, DataFlow(program))
        data = {value for loop in loops for value in loop.use.values}
        place, remarks = self._place(EvaluationCalls(program, models, data), home, loops, models)
        start = None
        if self._kind == "qat":
            start, more = training_start(program, home, models, loops, place, joined_norms=self._joined_norms)
            remarks += more
        if not place.loads:
            remarks += kept_on_condition(program, place, models)
        return self._written(place, loops, models, start, tuple(remarks))

    def _home(self) -> Home:
        if not self._homes:
            raise NotQuantized(self._program.entry, None, "the trained model was not found")
        if len(self._homes) > 1:
            names = list(dict.fromkeys(f"`{home.variable}`" for home in self._homes))
            which = f", {' and '.join(names[:2])} among them" if len(names) > 1 else f" in turn, each as {names[0]}"
            raise NotQuantized(self._program.entry, None, f"several models are trained{which}")
        home = self._homes[0]
        if home.in_place or not home.variable.replace(".", "").isidentifier():
            raise NotQuantized(home.module, home.statement, "the trained model is kept among others, and not by a name")
        return home

    def _place(
        self, calls: EvaluationCalls, home: Home, loops: list[TrainingLoop], models: set[Value]
    ) -> tuple[Place, list[Remark]]:
        """Where the lines go: behind a training that an evaluation can follow, else in reach of the variable."""
        places = []
        failed: list[tuple[EvaluationCall, NotQuantized]] = []
        for call in calls.found:
            try:
                places.append(Place.of_call(self._program, call, models).checked())
            except NotQuantized as declined:
                failed.append((call, declined))
        if places:
            # Behind the training rather than in it, and on other data than those of the training.
            best = max(places, key=lambda item: (item.is_behind, not item.on_training_data, item.at.line))
            return best, []
        why = failed[0][1] if failed else calls.reason() or standing_alone(self._program, models)
        if why is None:
            raise NotQuantized(
                self._program.entry,
                None,
                "nothing evaluates the model, and what int8 costs would not be seen",
                "write the evaluation as a function that takes the model and a loader",
            )
        place = self._place_alone(home, loops, models, why)
        if failed and failed[0][0].body is not place.body:
            call = failed[0][0]
            text = (
                f"`{call.module.text(call.call)}` is called elsewhere than where the training has ended for its model"
            )
            why = NotQuantized(call.module, call.call, text, "call it there with the int8 model as well")
        return place, [Remark(why.module, why.node, f"the int8 model is saved and not evaluated: {why.told}")]

    def _place_alone(self, home: Home, loops: list[TrainingLoop], models: set[Value], why: NotQuantized) -> Place:
        """Where the lines go that evaluate nothing.

        Raises:
            NotQuantized: there is no such place; ``why`` is what kept an evaluation from it.
        """
        declined: list[NotQuantized] = []
        for place in Place.of_variables(self._program, home, loops, models):
            try:
                checked = place.checked()
                if self._kind == "static":
                    calibration_at(self._program, checked.spot, loops, models)  # in reach in another body, perhaps
                return checked
            except NotQuantized as reason:
                declined.append(reason)
        # That some body does not train says little.
        raise next((reason for reason in declined if not isinstance(reason, Apart)), why)

    def _models(self, home: Home) -> set[Value]:
        """What the model's variable may hold."""
        cell = self._program.flow.cells.get(home.key)
        return {value for value in (cell.values if cell is not None else set()) if value.kind in ("instance", "object")}

    def _check_own(self) -> None:
        program = self._program
        if program.entry.cells:
            raise NotQuantized(program.entry, None, "in a notebook cells may run again, in any order")
        for call, _, scope in program.calls():
            names = program.callee_names(call, scope)
            text = f"`{scope.module.text(call.func)}`"
            if any(name.startswith(LIBRARIES) for name in names):
                raise NotQuantized(scope.module, call, f"{text} quantizes already")
            if names & OTHER_FORMS or names & DATA_PARALLEL:
                raise NotQuantized(scope.module, call, f"{text} gives the model another form, of which no int8 is made")
            if names & JOINS:
                raise NotQuantized(scope.module, call, f"{text} joins processes of the script's own")
            if isinstance(call.func, ast.Attribute) and call.func.attr == "double":
                if program.roles.modules(call.func.value, scope):
                    raise NotQuantized(
                        scope.module, call, f"{text} makes the model float64, and int8 goes with float32"
                    )
            if (
                isinstance(call.func, ast.Attribute)
                and call.func.attr in FORWARD_HOOKS
                and not program.flow.callees(call)
            ):
                raise NotQuantized(scope.module, call, f"{text} adds a hook, which an exported model does not run")

    def _check_layers(self, home: Home, models: set[Value]) -> None:
        """At least one layer must have an int8 form, else the runtime raises an error when all is trained."""
        forms = HAS_DYNAMIC_FORM if self._kind == "dynamic" else HAS_STATIC_FORM
        parts = self._program.with_parts(models)
        if any(part.name in forms or part.name.startswith(LIBRARY_MODELS) for part in parts):
            return
        for part in parts:
            if part.kind != "instance":
                continue
            for info in part.ref.mro():
                calls = [node for node in walk(info.facts.node) if isinstance(node, ast.Call)]
                if any(self._is_one_of(forms, call) for call in calls):
                    return
        what = "linear layer" if self._kind == "dynamic" else "linear or convolution layer"
        raise NotQuantized(home.module, home.statement, f"no {what} of torch was found in `{home.variable}`")

    def _is_one_of(self, names: frozenset[str], call: ast.Call) -> bool:
        located = self._program.locate(call)
        return located is not None and bool(self._program.callee_names(call, located[1]) & names)

    # ---- what is written ---------------------------------------------------------------------------------------

    def _written(
        self,
        place: Place,
        loops: list[TrainingLoop],
        models: set[Value],
        start: TrainingStart | None,
        remarks: tuple[Remark, ...],
    ) -> Quantized:
        calibration = inputs = None
        if self._kind == "static":
            calibration, inputs = calibration_at(self._program, place.spot, loops, models)
        module, call = place.module, place.call
        taken = {node.id for node in ast.walk(module.tree) if isinstance(node, ast.Name)}
        name = next((item for item in _NAMES if item not in taken), None)
        if name is None:
            raise NotQuantized(module, place.statement, f"the names {', '.join(_NAMES)} are all taken")
        return Quantized(
            self._kind,
            module,
            place.statement,
            place.model,
            name,
            calibration,
            inputs,
            None if call is None or place.is_behind else call.text(place.model),
            None if call is None else call.text(name),
            call is not None and call.gives,
            self._path(place, models, place.model),
            start,
            remarks,
        )

    def _path(self, place: Place, models: set[Value], model: str) -> str:
        """The file, beside the script's own of the model where that is written out."""
        for site in saved(self._program, models):
            call = site.node
            assert isinstance(call, ast.Call)
            if len(call.args) < 2:
                continue
            path = call.args[1]
            if isinstance(path, ast.Constant) and isinstance(path.value, str):
                return _quoted(_beside(path.value))
            if isinstance(path, ast.Call) and path.args and isinstance(path.args[-1], ast.Constant):
                names = self._program.callee_names(path, site.scope)
                if names & {"os.path.join", "posixpath.join"} and site.body is place.body:
                    if place.known.unknown(path) is None and isinstance(path.args[-1].value, str):
                        folder = ", ".join(site.module.code(item) for item in path.args[:-1])
                        return f"{site.module.code(path.func)}({folder}, {_quoted(_beside(path.args[-1].value))})"
        return _quoted(f"{model.rpartition('.')[2]}_int8.pt")


def _beside(path: str) -> str:
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}{PurePosixPath(name).stem}_int8.pt"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
