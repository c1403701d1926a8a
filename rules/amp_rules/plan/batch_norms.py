"""Which models have batch norm, and which modules beside those that are trained normalise by the batch."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from amp_rules.flow.values import UNKNOWN_MEMBER, CallSite, ClassInfo, Value
from amp_rules.plan.precision import Precision
from amp_rules.roles import batch_norm
from amp_rules.roles.absent import never_runs
from amp_rules.roles.kinds import is_module
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.index import argument_at, literal
from amp_rules.source.modules import Module
from amp_rules.source.syntax import last_name, values_given, walk
from amp_rules.torch.models import BATCH_NORM_FUNCTIONS, PACKAGES_WITH_BATCH_NORM, WITH_BATCH_NORM

_FUNCTION, _TRAINING = "batch_norm", 5
"""The last name of the function, and the place of ``training`` among its arguments."""


class BatchNorms:
    """Which models have batch norm; many wrapped models share their classes, and those share what they call."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._classes: dict[ClassInfo, bool] = {}
        self._texts: dict[ast.AST, bool] = {}
        self._given: dict[Value, bool] = {}
        self._chains: dict[ast.AST, bool] = {}
        self._functions: dict[ast.AST, list[ast.Call]] = {}
        # Models share their bases.
        self._made: dict[ast.ClassDef, list[Value]] = {}

    def are_in(self, value: Value) -> bool:
        """Whether a model has batch norm for all that its own text says, or may have it where an option chooses it."""
        if value.kind == "instance":
            known = self._classes.get(value.ref)
            if known is None:
                known = self._classes[value.ref] = self._are_in_class(value.ref)
            return known or self._are_in_parts(value)
        name = value.name if isinstance(value.name, str) else ""
        if name.startswith("torch.nn.") and value.site is not None:
            return self._are_named(value.site) or self._are_given(value.site)
        if name.startswith("torchvision.models."):
            last = name.rpartition(".")[2].lower()
            return is_chosen(value) or last.startswith(WITH_BATCH_NORM) or "bn" in last
        return name.startswith(PACKAGES_WITH_BATCH_NORM)

    def _are_in_parts(self, value: Value) -> bool:
        """Whether parts have batch norm that a model is given: ``Pair(encoder=net)``."""
        known = self._given.get(value)
        if known is None:
            self._given[value] = False  # parts that hold the model
            parts = (part for part in self._program.with_parts([value]) if part != value)
            known = self._given[value] = any(map(self.are_in, parts))
        return known

    def may_be_in(self, value: Value) -> bool:
        """The same, where a module of a library whose layers are not known counts as one that has it."""
        return self.are_in(value) or not (value.kind == "instance" or str(value.name).startswith("torch.nn."))

    def _are_given(self, call: ast.AST) -> bool:
        """Whether a chain of torch is made of models with batch norm in variables: ``nn.Sequential(net, head)``.

        Or of the layers of one: ``nn.Sequential(*list(net.children())[:-2])``.
        """
        known = self._chains.get(call)
        if known is not None:
            return known
        self._chains[call] = False  # what is put into itself
        located = self._program.locate(call) if isinstance(call, ast.Call) else None
        if located is not None and isinstance(call, ast.Call):
            given = [*call.args, *(part for item in call.args for part in _taken_apart(item))]
            parts = [value for item in given for value in self._program.roles.modules(item, located[1])]
            self._chains[call] = any(map(self.are_in, parts))
        return self._chains[call]

    def _are_in_class(self, info: ClassInfo) -> bool:
        texts = [node for base in info.mro() for node in walk(base.facts.node)]
        return (
            self._names_batch_norm(texts)
            or any(map(self._are_named, self._program.called_from(texts)))
            or any(self.are_in(item) for base in info.mro() for item in self._made_in(base.facts.node))
        )

    def by_function(self, value: Value) -> ast.Call | None:
        """A call of ``F.batch_norm`` by which a model of the script's own normalises by the batch; None without any.

        It belongs to no module of torch's classes, and what is made of these leaves it as it is.
        """
        if value.kind != "instance":
            return None
        texts = [base.facts.node for base in value.ref.mro()]
        bodies = [*texts, *self._program.called_from([node for text in texts for node in walk(text)])]
        return next((call for body in bodies for call in self._functions_in(body)), None)

    def _functions_in(self, body: ast.AST) -> list[ast.Call]:
        known = self._functions.get(body)
        if known is None:
            calls = (node for node in walk(body) if isinstance(node, ast.Call))
            known = self._functions[body] = [node for node in calls if self._is_by_batch(node)]
        return known

    def _is_by_batch(self, call: ast.Call) -> bool:
        function = call.func
        if isinstance(function, ast.Call) and function.args:
            function = function.args[0]  # ``amp.float_function(F.batch_norm)(x, ...)``
        located = self._program.locate(call) if last_name(function) == _FUNCTION else None
        if located is None or not self._program.names(function, located[1]) & BATCH_NORM_FUNCTIONS:
            return False
        training = argument_at(call, "training", _TRAINING)
        return training is not None and literal(training) is not False

    def _made_in(self, node: ast.ClassDef) -> list[Value]:
        """The modules of libraries that a class makes, each once."""
        known = self._made.get(node)
        if known is None:
            made = (item for part in walk(node) for item in _made_by(self._program, part))
            known = self._made[node] = list(dict.fromkeys(item for item in made if item.kind == "object"))
        return known

    def _are_named(self, text: ast.AST) -> bool:
        known = self._texts.get(text)
        if known is None:
            known = self._texts[text] = self._names_batch_norm(walk(text))
        return known

    def _names_batch_norm(self, nodes: Iterable[ast.AST]) -> bool:
        """Whether something that may run speaks of batch norm; an option may choose another norm in each call."""
        flow = self._program.flow
        for node in _without_looks(nodes):
            if batch_norm.names_batch_norm([node]):
                located = self._program.locate(node)
                if located is None:
                    return True
                module = located[1].module
                if not never_runs(flow, module, node) and not self._is_replaced(module, node):
                    return True
        return False

    def _is_replaced(self, module: Module, node: ast.AST) -> bool:
        """Whether a node is the default of a parameter, and each call gives another layer of torch's.

        ``def __init__(self, norm=nn.BatchNorm1d)``, and ``Encoder(norm=nn.InstanceNorm1d)`` wherever it is called.
        """
        default, parameters = node, module.parents.get(node)
        while parameters is not None and not isinstance(parameters, (ast.arguments, ast.stmt)):
            default, parameters = parameters, module.parents.get(parameters)
        info = self._program.function_of(module.parents[parameters]) if isinstance(parameters, ast.arguments) else None
        name = next((name for name, item in info.defaults.items() if item is default), None) if info else None
        if info is None or name is None:
            return False
        callers = self._program.flow.callers(info)
        return bool(callers) and all(self._gives_another(info, name, caller) for caller in callers)

    def _gives_another(self, info: FunctionFacts, name: str, caller: CallSite) -> bool:
        """Whether a call gives a parameter a class of torch's that is no batch norm."""
        is_written = caller.scope.module.parents.get(caller.call.func) is caller.call  # not that of a partial function
        if not is_written or any(isinstance(item, ast.Starred) for item in caller.call.args):
            return False
        given = info.argument(caller.call, name)
        values = self._program.flow.values(given, caller.scope) if given is not None else set()
        return bool(values) and all(
            value.name.startswith("torch.nn.") and not batch_norm.is_batch_norm(value.name) for value in values
        )


def is_chosen(value: Value) -> bool:
    """Whether a network of a library is chosen by a name that is not known: ``getattr(torchvision.models, arch)``."""
    return isinstance(value.name, str) and value.name.endswith(UNKNOWN_MEMBER)


def _taken_apart(given: ast.expr) -> Iterator[ast.expr]:
    """Yield the models whose layers an argument spreads: ``*list(net.children())[:-2]``."""
    for node in walk(given) if isinstance(given, ast.Starred) else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _LAYERS:
            yield node.func.value


_LAYERS = frozenset({"children", "modules"})
"""Methods that give the layers of a model."""


def _without_looks(nodes: Iterable[ast.AST]) -> list[ast.AST]:
    """Nodes but for the classes that something is looked for as: ``isinstance(m, nn.BatchNorm2d)`` makes none."""
    found = list(nodes)
    looked_for = {
        part
        for node in found
        if isinstance(node, ast.Call) and blocks.path_of(node.func) in ("isinstance", "issubclass")
        for item in node.args[1:]
        for part in walk(item)
    }
    return [node for node in found if node not in looked_for]


def _made_by(program: Program, node: ast.AST) -> Iterator[Value]:
    located = program.locate(node) if isinstance(node, ast.Call) else None
    if located is not None and isinstance(node, ast.Call):
        yield from program.roles.modules(node, located[1])


def normalising_beside(program: Program, precision: Precision) -> list[Value]:
    """The modules that training steps run in training mode, with batch norm and without anything that is trained.

    A loss by the features of a network, which nobody has put into evaluation mode, is one.
    """
    trained = program.with_parts(program.trained)
    norms = BatchNorms(program)

    def has_norms(part: Value) -> bool:
        # A network beside the training that an option chooses is most often one of VGG's, which have none.
        return norms.are_in(part) and not is_chosen(part)

    found: dict[Value, set[Value]] = {}
    for value in _called(program, precision):
        if value in trained or program.is_trained(value):
            continue
        parts = program.with_parts([value])
        shared = parts - _made_with(program, value, parts)
        if any(part in trained or program.is_trained(part) for part in shared):
            continue
        if any(map(has_norms, parts)) and not _is_evaluated(program, precision, parts):
            found[value] = parts
    inner = {part for value, parts in found.items() for part in parts - {value}}
    return sorted(found.keys() - inner, key=lambda value: getattr(value.site, "lineno", 0))


def _made_with(program: Program, value: Value, parts: set[Value]) -> set[Value]:
    """The parts that the call makes which makes a module, where one that is trained is made alike, with its own.

    The teacher of a network is often made like the network, and averages its weights.
    """
    assert isinstance(value.site, ast.Call)
    alike = [other for other in program.trained if other.ref == value.ref and other != value]
    inside, called = set(walk(value.site)), program.called_from({value.site}) if alike else set()
    found = set()
    for part in program.with_parts(alike) & parts:
        located = program.locate(part.site) if isinstance(part.site, ast.Call) else None
        if part.site in inside or (located is not None and located[0] in called):
            found.add(part)
    return found


def _called(program: Program, precision: Precision) -> set[Value]:
    """The modules that training steps call; what torch gives two inputs, as a loss that settings name, has no norms."""
    covered = {node for run in precision.training for item in run.statements() for node in blocks.walk_own(item)}
    covered |= {node for site in precision.backwards for node in walk(site.loss)}
    called = program.called_from(covered)
    return {
        value
        for call, body, scope in program.calls()
        if (call in covered or body in called) and not program.is_model_code(body)
        for value in program.called_models(call, scope)
        if value.kind in ("instance", "object") and isinstance(value.site, ast.Call) and is_module(value)
        if not (value.kind == "object" and value.ref.startswith("torch.nn.") and len(call.args) > 1)
    }


def _is_evaluated(program: Program, precision: Precision, parts: set[Value]) -> bool:
    """Whether something puts the module or a part of it into evaluation mode, wherever that is.

    The function that trains may put it back: ``encoder.train()`` beside the ``encoder.eval()`` of an evaluation.
    """
    texts = {info.facts.node for part in parts if part.kind == "instance" for info in part.ref.mro()}
    if any(_evaluates(node) for text in texts for node in walk(text)):
        return True
    evaluated: set[ast.AST] = set()
    put_back: set[ast.AST] = set()
    for call, body, scope in program.calls():
        if not (_evaluates(call) or _trains(call)):
            continue
        assert isinstance(call.func, ast.Attribute)
        owner: ast.expr = call.func.value
        while isinstance(owner, (ast.Attribute, ast.Subscript)) and not program.roles.modules(owner, scope):
            owner = owner.value
        owners = program.roles.modules(owner, scope)
        if owners & parts or parts <= program.with_parts(owners):
            (evaluated if _evaluates(call) else put_back).add(body)
    training = {blocks.body_of(run.module, run.first) for run in precision.training}
    is_put_back = bool(training) and training <= put_back and evaluated.isdisjoint(training)
    return bool(evaluated) and not is_put_back


def _trains(node: ast.AST) -> bool:
    """``net.train()``, ``net.train(True)``."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "train"):
        return False
    return all(literal(item) is True for item in values_given(node))


def _evaluates(node: ast.AST) -> bool:
    """``net.eval()``, ``net.train(False)``."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    is_off = any(literal(item) is not True for item in values_given(node))
    return node.func.attr == "eval" or (node.func.attr == "train" and is_off)
