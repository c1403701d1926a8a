"""Which values reach which name, attribute and call.

A points-to analysis: every variable, attribute of a class and element of a container is a *cell*, every
body (a module's or a function's) is looked at again whenever a cell that it read has grown, until nothing
changes; of its statements, those are evaluated again that read such a cell. It knows no order of statements and
one context per function; what a helper returns is evaluated once more for each call with that call's own
arguments, which keeps ``make(kind)`` factories apart.

Cells form no order either: a variable can hold an object that holds the variable. So nothing here, and nothing that
asks, follows values from one to the next without a note of those that it has seen.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from amp_rules.flow.attributes import Attributes
from amp_rules.flow.call_graph import CallGraph
from amp_rules.flow.calls import CallEvaluator
from amp_rules.flow.cells import CellKey
from amp_rules.flow.configurations import Configurations
from amp_rules.flow.containers import Containers
from amp_rules.flow.expressions import ExpressionEvaluator
from amp_rules.flow.given_models import GivenModels
from amp_rules.flow.imports import Imports
from amp_rules.flow.libraries import Libraries
from amp_rules.flow.local_variables import LocalVariables
from amp_rules.flow.partials import Partials
from amp_rules.flow.parts import Evaluation
from amp_rules.flow.reached import Reached
from amp_rules.flow.records import Records, constructor_fields
from amp_rules.flow.reflection import Reflection
from amp_rules.flow.registries import Registries
from amp_rules.flow.returns import Returns
from amp_rules.flow.statements import Statements
from amp_rules.flow.store import Store
from amp_rules.flow.unknown_models import UnknownModels
from amp_rules.flow.values import CallSite, ClassInfo, Value
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.project import Project
from amp_rules.source.scopes import Scope

_MAX_VISITS = 20_000
"""Looks at bodies; each body takes two to three, so this is a program of a hundred thousand lines. The work ends in any
case, for cells only grow and are bounded. Beyond, what is known by then counts: models that were not found make the
migration decline."""


class Flow:
    """The fixed point over one program: the entry and what it imports.

    Use :meth:`values` for what an expression can hold and :meth:`callees` for the functions of the project that a call
    can reach.

    Attributes:
        project: the files.
        modules: the modules that the program reaches, the entry first.
        scopes: their scopes by node.
        functions: their functions by node.
        classes: their classes by node.
        imported: qualified names of libraries that they import.
        cells: what each variable, attribute and element can hold.
        attribute_names: the attributes that the objects of a class have, by the node of the class.
        uses: the attributes that the program asks of a variable.
    """

    def __init__(self, project: Project) -> None:
        self._store = store = Store()
        self._reached = reached = Reached(project, store)
        self._containers = containers = Containers(store, reached)
        evaluation = Evaluation()
        variables = LocalVariables()
        self._graph = graph = CallGraph(store, reached)
        records = Records(store, containers)
        attributes = Attributes(store, reached, records)
        reflection = Reflection(store, reached, containers, attributes, variables, evaluation)
        registries = Registries(store, reached, evaluation)
        libraries = Libraries(store, containers, reflection, evaluation)
        returns = Returns(store, reached, registries, variables, evaluation)
        partials = Partials(store, graph, evaluation)
        configurations = Configurations(store, reached, graph, attributes, partials, evaluation)
        calls = CallEvaluator(
            store,
            reached,
            graph,
            containers,
            records,
            registries,
            libraries,
            partials,
            configurations,
            returns,
            variables,
            evaluation,
        )
        self._expressions = ExpressionEvaluator(store, reached, containers, attributes, variables, calls)
        self._statements = Statements(store, reached, containers, self._expressions, calls, Imports(store, reached))
        self._given_models = GivenModels(store, reached, graph, self._expressions)
        self._unknown_models = UnknownModels(store, reached, graph, self._expressions)
        evaluation.calls, evaluation.expressions, evaluation.definitions = calls, self._expressions, self._statements

        self.project = project
        self.modules = reached.modules
        self.scopes = reached.scopes
        self.functions = reached.functions
        self.classes = reached.classes
        self.imported = reached.imported
        self.cells = store.cells
        self.attribute_names = store.attribute_names
        self.uses = self._expressions.uses
        # Nothing changes any more when questions are asked, and many ask the same.
        self._answers: dict[tuple[ast.expr, Scope], set[Value]] = {}
        self._settle()

    def _settle(self) -> None:
        """Look at bodies until nothing changes, then keep everything as it is."""
        entry = self.project.entry
        self._reached.add_module(entry)
        for info in list(self.functions.values()):
            # What nothing calls is looked at too: others may import this script.
            if info.module.module is entry and not isinstance(info.node, ast.Lambda):
                self._reached.reach(info)
        self._look(_MAX_VISITS)
        self._given_models.add()
        self._look(_MAX_VISITS)
        self._unknown_models.add()
        self._look(_MAX_VISITS)
        self._store.freeze()

    def _look(self, visits: int) -> None:
        """Look at the bodies that wait, and at those that this makes wait, as many times at most."""
        for _ in range(visits):
            following = self._store.take()
            if following is None:
                break
            self._statements.body(*following)

    # ---- questions -----------------------------------------------------------------------------------------

    def values(self, node: ast.expr, scope: Scope) -> set[Value]:
        """What the expression can hold; empty when nothing is known. The set is not the caller's to change."""
        known = self._answers.get((node, scope))
        if known is None:
            known = self._answers[node, scope] = self._expressions.evaluate(node, scope)
        return known

    def elements(self, owners: Iterable[Value]) -> set[Value]:
        """What iterating over the values can give."""
        return self._containers.elements(owners)

    def members(self, module: Value) -> set[Value]:
        """What a name made at run time can find in a module."""
        return self._containers.members(module)

    def held_by(self, cls: ast.ClassDef) -> Iterator[set[Value]]:
        """Yield what each attribute of a class's own objects can hold."""
        return self._store.held_by(cls)

    def callees(self, call: ast.Call) -> set[FunctionFacts]:
        """Functions of the project that the call can run, methods' ``forward`` of called models included."""
        return self._graph.callees(call)

    def scope_given(self, info: FunctionFacts, caller: CallSite, given: ast.expr | None) -> Scope:
        """The scope of the names of what a call gives a parameter: a default stands in the file of its function."""
        is_default = given is not None and any(given is item for item in info.defaults.values())
        return self.scopes[info.node].top if is_default else caller.scope

    def callers(self, info: FunctionFacts) -> list[CallSite]:
        """The calls that can run a function of the project."""
        return self._graph.callers(info)

    def class_of(self, info: FunctionFacts) -> ClassInfo | None:
        """The class whose method a function is."""
        return self._reached.class_of(info)

    def bodies(self) -> Iterable[tuple[ast.AST, Scope]]:
        """Every body that the program can reach: modules and functions."""
        return self._reached.bodies()

    def key(self, node: ast.expr, scope: Scope) -> CellKey | None:
        """The cell that a name or an attribute of ``self`` stands for."""
        return self._expressions.key(node, scope)

    def field_of(self, call: ast.Call, field: object, scope: Scope) -> ast.expr | None:
        """What the constructor of a record is given for a field: ``net`` of ``Parts(net, loss)`` for ``"net"``."""
        for item in call.keywords:
            if item.arg == field:
                return item.value
        for target in self.values(call.func, scope):
            fields = constructor_fields(target)
            index = field if isinstance(field, int) else fields.index(str(field)) if field in fields else None
            if fields and index is not None and 0 <= index < len(call.args):
                return call.args[index]
        return None
