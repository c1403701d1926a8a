"""What flows into a parameter: a question of this analysis to the other one.

Types and intervals tell a tensor from a number, and judge a function without its callers. What an object is, its name
tells most of the time; where it does not, or where a finding rests on nothing but a name, the points-to analysis
(:mod:`amp_rules.flow`) is asked which objects the calls of the same file give. It takes about ten times as long as
judging the file does, so nothing is done before the first question, and nothing for a function that nobody calls.

Only the file itself is analysed. What it imports from the project is looked up among the facts that both analyses stand
on; that is quick, and the answer rests on no file that is not noted as used.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from amp_rules.flow.flow import Flow
from amp_rules.flow.values import ClassInfo, Value
from amp_rules.source.facts import ClassFacts, FunctionFacts, ModuleFacts
from amp_rules.source.files import SingleFile
from amp_rules.source.index import Function
from amp_rules.source.project import Project
from amp_rules.torch.canonical_names import canonical


@dataclass(frozen=True)
class Given:
    """The objects that the calls in a file give for a parameter; ``None`` is not among them.

    Attributes:
        made_by: qualified names of what makes them, for those that a library's classes and functions make.
        classes: their classes, for those of the project.
        complete: whether every call is known, and the class of everything that it gives.
    """

    made_by: frozenset[str]
    classes: frozenset[ClassFacts]
    complete: bool


class ParameterFlow:
    """Asks about the parameters of one file's functions, and remembers the answers.

    Args:
        module: the file.
    """

    def __init__(self, module: ModuleFacts) -> None:
        self._module = module
        self._flow: Flow | None = None
        self._is_too_deep = False
        self._answers: dict[ast.arg, Given | None] = {}

    def given(self, parameter: ast.arg) -> Given | None:
        """What the calls in the file give for a parameter of a function; None where nothing calls it."""
        if parameter not in self._answers:
            self._answers[parameter] = self._asked(parameter)
        return self._answers[parameter]

    def _asked(self, parameter: ast.arg) -> Given | None:
        parents = self._module.module.parents
        function = parents.get(parents.get(parameter, parameter))
        # Names tell at once that nothing in the file calls it, which is so for most functions of a library.
        if not isinstance(function, Function) or not self._module.index.callers(function):
            return None
        flow = self._settled()
        info = flow.functions.get(function) if flow is not None else None
        if flow is None or info is None or not flow.callers(info):
            return None
        return self._read(flow, info, parameter.arg)

    def _settled(self) -> Flow | None:
        """The analysis of the file; None where an expression is nested more deeply than it can follow."""
        if self._flow is None and not self._is_too_deep:
            module = self._module.module
            try:
                self._flow = Flow(Project(module.path, SingleFile(module)))
            except RecursionError:
                self._is_too_deep = True
        return self._flow

    def _read(self, flow: Flow, info: FunctionFacts, name: str) -> Given:
        cell = flow.cells.get((info.node, name))
        found = self._sorted(cell.values if cell is not None else ())
        function = info.node
        assert isinstance(function, Function)
        reached = {site.call for site in flow.callers(info)}
        known = all(_is_known(flow, info, name, site.call) for site in flow.callers(info))
        whole = known and reached.issuperset(self._module.index.callers(function))
        return Given(found.made_by, found.classes, found.complete and whole)

    def _sorted(self, values: Iterable[Value]) -> Given:
        made_by: set[str] = set()
        classes: set[ClassFacts] = set()
        complete = True
        for value in values:
            cls = self._class_of(value)
            if cls is not None:
                classes.add(cls)
            elif value.kind == "object" and not value.is_result:
                made_by.add(canonical(value.ref))
                # What a function of a library makes may be anything.
                complete &= value.ref.rpartition(".")[2][:1].isupper()
            else:
                complete &= value.kind in _NO_OBJECTS
        return Given(frozenset(made_by), frozenset(classes), complete)

    def _class_of(self, value: Value) -> ClassFacts | None:
        """The class of the project that a value is an object of."""
        if value.kind == "instance" and isinstance(value.ref, ClassInfo):
            return self._module.classes.get(value.ref.facts.name)
        if value.kind != "object" or value.is_result:
            return None
        found = self._module.project.resolve(self._module, value.ref)
        return found if isinstance(found, ClassFacts) else None


_NO_OBJECTS = frozenset({"constant", "sequence", "function", "class", "module", "parameters", "batch"})
"""Kinds of values that are certainly no object with a role in the training step."""


def _is_known(flow: Flow, info: FunctionFacts, name: str, call: ast.Call) -> bool:
    """Whether something is known of what a call gives for a parameter."""
    if any(isinstance(item, ast.Starred) for item in call.args) or any(item.arg is None for item in call.keywords):
        return False
    given = info.argument(call, name)
    if given is None or isinstance(given, ast.Constant):
        # The default is among the values, and a constant is no object; ``None`` is not even a value.
        return True
    return any(flow.values(given, site.scope) for site in flow.callers(info) if site.call is call)
