"""Where a trained model is made int8, with what it is calibrated, and how it is evaluated before and after."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from amp_rules.flow.values import Value
from amp_rules.plan.gradient_averaging import runs_once
from amp_rules.plan.model_parts import with_parts
from amp_rules.plan.model_variables import Home
from amp_rules.plan.options import Quantization
from amp_rules.plan.quantizing.evaluating import EvaluationCall, EvaluationCalls
from amp_rules.plan.quantizing.inputs import BATCH, NoInput, input_of
from amp_rules.plan.quantizing.known_names import KnownNames
from amp_rules.plan.quantizing.why_not import NotQuantized
from amp_rules.plan.training_loops import TrainingLoop, training_loops
from amp_rules.roles.batches import DataFlow
from amp_rules.roles.file_effects import file_effects
from amp_rules.roles.steps import Program, Site
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.syntax import COMPREHENSIONS, walk
from amp_rules.torch.distributed import JOINS
from amp_rules.torch.models import RETURNS_RECEIVER
from amp_rules.torch.quantizing import (
    HAS_DYNAMIC_FORM,
    HAS_STATIC_FORM,
    HOOKS,
    LIBRARIES,
    LIBRARY_MODELS,
    OTHER_FORMS,
)
from amp_rules.torch.wrappers import DATA_PARALLEL

_NAMES = ("quantized", "int8_model", "quantized_model")
_MAX_CALLERS = 4
"""Functions through which a loader is handed to its loop; trainers have two."""


@dataclass(frozen=True)
class Quantized:
    """What is added to a script.

    Attributes:
        kind: which of the three.
        module: the file.
        statement: what it follows.
        model: the source of the trained model.
        name: the new variable.
        calibration: the source of the loader; None where the kind needs none.
        inputs: the source of a function that makes the model's input of a batch, where one is needed.
        before: the source of the evaluation in float32, where the script has none at that place.
        after: the source of the evaluation in int8.
        gives: whether the evaluation gives a result, which is to be shown.
        path: the source of the file's name.
    """

    kind: Quantization
    module: Module
    statement: ast.stmt
    model: str
    name: str
    calibration: str | None
    inputs: str | None
    before: str | None
    after: str
    gives: bool
    path: str


def find(program: Program, kind: Quantization, homes: Sequence[Home]) -> Quantized:
    """Decide on a program whose models have their homes.

    Raises:
        NotQuantized: something is not understood, or stands in the way.
    """
    return _Search(program, kind, homes).found()


class _Search:
    def __init__(self, program: Program, kind: Quantization, homes: Sequence[Home]) -> None:
        self._program = program
        self._kind = kind
        self._homes = homes

    def found(self) -> Quantized:
        program = self._program
        self._check_own()
        if not self._homes:
            raise NotQuantized(program.entry, None, "the trained model was not found")
        if len(self._homes) > 1:
            names = list(dict.fromkeys(f"`{home.variable}`" for home in self._homes))
            which = f", {' and '.join(names[:2])} among them" if len(names) > 1 else f" in turn, each as {names[0]}"
            raise NotQuantized(program.entry, None, f"several models are trained{which}")
        home = self._homes[0]
        if home.in_place or not home.variable.replace(".", "").isidentifier():
            raise NotQuantized(home.module, home.statement, "the trained model is kept among others, and not by a name")
        models = self._models(home)
        self._check_layers(home, models)
        loops = training_loops(program, DataFlow(program))
        data = {value for loop in loops for value in loop.use.values}
        calls = EvaluationCalls(program, models, data)
        places = []
        reason: NotQuantized | None = None
        for call in calls.found:
            try:
                places.append(_Place(program, call, models).checked())
            except NotQuantized as declined:
                reason = reason or declined
        if not places:
            raise (
                reason
                or calls.reason()
                or NotQuantized(
                    program.entry,
                    None,
                    "no function evaluates the model, to be called once more with that in int8",
                    "write the evaluation as a function that takes the model and a loader",
                )
            )
        # Behind the training rather than in it, and on other data than those of the training.
        best = max(places, key=lambda item: (item.is_behind, not item.call.on_training_data, item.call.line))
        return self._written(best, loops, models)

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
            if isinstance(call.func, ast.Attribute) and call.func.attr in HOOKS and not program.flow.callees(call):
                raise NotQuantized(scope.module, call, f"{text} adds a hook, which an exported model does not run")

    def _check_layers(self, home: Home, models: set[Value]) -> None:
        """At least one layer must have an int8 form, else the runtime raises an error when all is trained."""
        forms = HAS_DYNAMIC_FORM if self._kind == "dynamic" else HAS_STATIC_FORM
        parts = with_parts(self._program, models)
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

    def _written(self, place: _Place, loops: list[TrainingLoop], models: set[Value]) -> Quantized:
        calibration = inputs = None
        if self._kind != "dynamic":
            calibration, inputs = self._calibration(place, loops, models)
        module = place.call.module
        taken = {node.id for node in ast.walk(module.tree) if isinstance(node, ast.Name)}
        name = next((item for item in _NAMES if item not in taken), None)
        if name is None:
            raise NotQuantized(module, place.statement, f"the names {', '.join(_NAMES)} are all taken")
        model = module.code(place.call.given)
        return Quantized(
            self._kind,
            module,
            place.statement,
            model,
            name,
            calibration,
            inputs,
            None if place.is_behind else place.call.text(model),
            place.call.text(name),
            place.call.gives,
            self._path(place, models, model),
        )

    def _calibration(self, place: _Place, loops: list[TrainingLoop], models: set[Value]) -> tuple[str, str | None]:
        reason: NotQuantized | None = None
        for loop in loops:
            try:
                inputs = input_of(self._program, loop, models)
            except NoInput as unclear:
                text = "it is not known what the model is given of a batch, to calibrate it with the same"
                node = unclear.node if unclear.node in loop.module.parents else loop.loop
                reason = reason or NotQuantized(loop.module, node, text)
                continue
            loader = self._loader_at(place, loop.use.loader, loop, 0)
            if loader is None:
                text = f"`{loop.module.text(loop.use.loader)}` is not in reach where the training has ended"
                reason = reason or NotQuantized(loop.module, loop.use.loader, text)
                continue
            return loader, None if inputs is None else f"lambda {BATCH}: {inputs}"
        entry = self._program.entry
        raise reason or NotQuantized(entry, None, "no loader gives the batches of the training, to calibrate with")

    def _loader_at(self, place: _Place, node: ast.expr, site: Site, depth: int) -> str | None:
        """The source, at the place, of the loader that a loop iterates."""
        if depth > _MAX_CALLERS or not isinstance(node, (ast.Name, ast.Attribute)):
            return None
        if site.body is place.call.body:
            return None if place.known.unknown(node) else site.module.code(node)
        root: ast.expr = node
        while isinstance(root, ast.Attribute):
            root = root.value
        if not isinstance(root, ast.Name):
            return None
        info = self._program.function_of(site.body)
        if info is None:
            return None
        if root.id in info.parameters:
            callers = self._program.flow.callers(info)
            if len(callers) != 1 or any(
                isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store) and item.id == root.id
                for item in info.nodes
            ):
                return None
            call = callers[0]
            given: ast.expr | None = node
            if root.id == info.receiver:
                owner = call.call.func.value if isinstance(call.call.func, ast.Attribute) else None
                if not isinstance(owner, ast.Name) or owner.id != root.id:
                    return None
            else:
                given = info.argument_or_default(call.call, root.id) if node is root else None
            if given is None:
                return None
            body = blocks.body_of(call.scope.module, call.call)
            return self._loader_at(place, given, Site(call.scope.module, call.scope, body, call.call), depth + 1)
        is_of_file = site.scope.owner(root.id).node is not site.scope.node and site.module is place.call.module
        return site.module.code(node) if is_of_file and not place.known.unknown(node) else None

    def _path(self, place: _Place, models: set[Value], model: str) -> str:
        """The file, beside the script's own of the model where that is written out."""
        for site in self._program.calls_to(frozenset({"torch.save"})):
            call = site.node
            assert isinstance(call, ast.Call)
            if len(call.args) < 2:
                continue
            if not any(models & self._program.flow.values(part, site.scope) for part in walk(call.args[0])
                       if isinstance(part, (ast.Name, ast.Attribute))):  # fmt: skip
                continue
            path = call.args[1]
            if isinstance(path, ast.Constant) and isinstance(path.value, str):
                return _quoted(_beside(path.value))
            if isinstance(path, ast.Call) and path.args and isinstance(path.args[-1], ast.Constant):
                names = self._program.callee_names(path, site.scope)
                if names & {"os.path.join", "posixpath.join"} and site.body is place.call.body:
                    if place.known.unknown(path) is None and isinstance(path.args[-1].value, str):
                        folder = ", ".join(site.module.code(item) for item in path.args[:-1])
                        return f"{site.module.code(path.func)}({folder}, {_quoted(_beside(path.args[-1].value))})"
        return _quoted(f"{model.rpartition('.')[2]}_int8.pt")


def _beside(path: str) -> str:
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}{PurePosixPath(name).stem}_int8.pt"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


class _Place:
    """Where the training has ended, in the body in which an evaluation is called.

    Attributes:
        call: the evaluation.
        statement: what the new lines follow.
        is_behind: whether the script evaluates there itself, behind all that changes the model.
        known: what has a value behind the statement.
    """

    def __init__(self, program: Program, call: EvaluationCall, models: set[Value]) -> None:
        self._program = program
        self._models = models
        self.call = call
        self.is_behind = False

    def checked(self) -> _Place:
        """The place itself.

        Raises:
            NotQuantized: there is none for this evaluation.
        """
        module, call = self.call.module, self.call
        top = call.body.body if hasattr(call.body, "body") and isinstance(call.body.body, list) else []
        suite, index = self._end_of_training(top)
        trained = suite[index]
        if not runs_once(self._program, module, trained) or self._is_repeated(trained):
            raise NotQuantized(module, trained, f"`{module.text(call.call)}` stands where the training may run again")
        inside = self._program.called_from(self._program.nodes_of(call.body)) | {call.body}
        for site in self._program.backwards:
            if site.body not in inside:
                raise NotQuantized(site.module, site.node, "training goes on elsewhere, too")
        last = self._last(suite, index, self._loads)
        own = self._own_evaluation(suite)
        if own is not None and own >= last and own > index:
            last, self.is_behind = own, True
        # Should something fail here, all that the training was for is on the disk.
        written = {effect.call for effect in file_effects(self._program)}
        last = self._last(suite, last, lambda node: node in written)
        self._check_saved(suite[: last + 1])
        self.statement = suite[last]
        if isinstance(self.statement, (ast.Return, ast.Raise)):
            raise NotQuantized(module, self.statement, "the training ends with leaving the function")
        self._check_model(suite[index : last + 1])
        self.known = KnownNames(self._program, Site(module, call.scope, call.body, self.statement))
        unknown = self.known.unknown(call.call)
        if unknown is not None:
            raise NotQuantized(
                module, call.call, f"`{module.text(call.call)}` needs `{unknown}`, which may have no value behind the "
                "training", "evaluate once more behind the training loop, with what is known there",
            )  # fmt: skip
        for item in [*call.call.args, *(keyword.value for keyword in call.call.keywords)]:
            if any(isinstance(part, (ast.Call, ast.Lambda, ast.Await, ast.NamedExpr)) for part in walk(item)):
                raise NotQuantized(module, item, f"`{module.text(item)}` may be another one when it is made again")
        return self

    def _end_of_training(self, suite: list[ast.stmt]) -> tuple[list[ast.stmt], int]:
        module = self.call.module
        found = [
            index
            for index, item in enumerate(suite)
            if not isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            and self._program.runs_backward(item)
        ]
        if not found:
            raise NotQuantized(
                module, self.call.call, f"`{module.text(self.call.call)}` is called apart from the training, whose "
                "end is not seen there",
            )  # fmt: skip
        last = suite[found[-1]]
        if isinstance(last, ast.If):
            branches = [branch for branch in (last.body, last.orelse) if any(map(self._program.runs_backward, branch))]
            if len(branches) != 1:
                raise NotQuantized(module, last, "the training is in one of two branches")
            return self._end_of_training(branches[0])
        if isinstance(last, (ast.With, ast.AsyncWith)):
            raise NotQuantized(module, last, f"the training is within `{module.text(last.items[0].context_expr)}`")
        if isinstance(last, ast.Return):
            raise NotQuantized(module, last, "the training ends with leaving the function")
        return suite, found[-1]

    def _is_repeated(self, node: ast.AST) -> bool:
        """Whether a comprehension or a function without a name may run it several times."""
        pending: list[tuple[Module, ast.AST]] = [(self.call.module, node)]
        seen: set[FunctionFacts] = set()
        while pending:
            module, item = pending.pop()
            if any(isinstance(parent, (*COMPREHENSIONS, ast.Lambda)) for parent in module.ancestors(item)):
                return True
            info = self._program.function_of(blocks.body_of(module, item))
            if info is not None and info not in seen:
                seen.add(info)
                pending += [(caller.scope.module, caller.call) for caller in self._program.flow.callers(info)]
        return False

    def _last(self, suite: list[ast.stmt], index: int, direct: Callable[[ast.AST], bool]) -> int:
        """The last statement behind another that can run what is asked for; that other one if there is none."""
        runs = self._program.closure(direct)
        definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        behind = range(index + 1, len(suite))
        return max([index, *(k for k in behind if not isinstance(suite[k], definitions) and runs(suite[k]))])

    def _loads(self, node: ast.AST) -> bool:
        """Whether a call loads the model's weights."""
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            return False
        located = self._program.locate(node) if node.func.attr == "load_state_dict" else None
        return located is not None and bool(self._models & self._program.flow.values(node.func.value, located[1]))

    def _check_saved(self, statements: list[ast.stmt]) -> None:
        """No checkpoint may come later: it would be lost with whatever failed before it."""
        inside = {node for item in statements for node in walk(item)}
        called = self._program.called_from(inside)
        for site in self._program.calls_to(frozenset({"torch.save"})):
            if site.node not in inside and site.body not in called and self._program.runs(site.body):
                text = "a checkpoint is written later, and would be lost should the model not be quantized"
                raise NotQuantized(site.module, site.node, text, "save the model where its training ends")

    def _own_evaluation(self, suite: list[ast.stmt]) -> int | None:
        """The statement of a suite that the evaluation stands in, where it always runs."""
        statement = blocks.statement_of(self.call.module, self.call.call)
        if statement in suite and isinstance(statement, (ast.Expr, ast.Assign, ast.AnnAssign)):
            return suite.index(statement)
        return None

    def _check_model(self, statements: list[ast.stmt]) -> None:
        """The variable must hold the one model from the training on."""
        module = self.call.module
        path = blocks.path_of(self.call.given)
        for item in statements:
            for node in blocks.walk_own(item):
                if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, (ast.Store, ast.Del)):
                    if blocks.path_of(node) == path:
                        raise NotQuantized(module, node, f"`{path}` is given another model")
        for item in statements[1:]:
            for node in blocks.walk_own(item):
                if isinstance(node, ast.Attribute) and node.attr in RETURNS_RECEIVER - {"train", "eval"}:
                    if blocks.path_of(node.value) == path:
                        text = f"`{module.text(node)}` may move the model away from the data of the evaluation"
                        raise NotQuantized(module, node, text, "save a copy, and let the model stay where it is")
