"""Which number has to be reduced for a place to be the same on all ranks."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from amp_rules.plan.between_epochs import BetweenEpochs
from amp_rules.plan.definitions import Definition, Definitions
from amp_rules.plan.machine_names import joined_with_machine
from amp_rules.plan.sinks import Need, Sink
from amp_rules.plan.whole_numbers import counts_elements
from amp_rules.ranks.analysis import Ranks
from amp_rules.ranks.origins import Kind
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import is_none, walk
from amp_rules.text.vocabulary import Vocabulary, Written
from amp_rules.torch.functions import NUMBER_METHODS, NUMBER_TESTS, SUMMARISING_TESTS

_MAX_DEPTH = 12
"""Variables, functions and conditions between a place and the number that makes it local; people have three or four."""
_AVERAGED = frozenset({Kind.BATCH, Kind.DRAW})
"""What the mean over the ranks is right for."""
_TAKEN = frozenset({Kind.CLOCK, Kind.PROCESS, Kind.GENERATOR})
"""What the main process can say for all: no process knows better."""
_PLACES_OF_A_TIME = 2
"""Places that are mended one by one; where one time gets to more, it is mended itself."""
_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_SEQUENCES = (ast.Tuple, ast.List, ast.JoinedStr)
_SEVERAL = (ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp, ast.List, ast.Tuple, ast.Set, ast.Dict)
"""What holds numbers, and is none that could be reduced."""


@dataclass(frozen=True)
class Reduction:
    """A number that is reduced over the ranks.

    Attributes:
        module: the file.
        node: the expression, or the statement before which a variable is reduced.
        variable: that variable.
        need: what it is needed for.
        is_taken: whether the main process's value is taken, and no mean.
    """

    module: Module
    node: ast.expr | ast.stmt
    variable: str | None
    need: Need
    is_taken: bool = False

    @property
    def text(self) -> str:
        """What is reduced, as it is written."""
        return self.variable or self.module.text(self.node)

    def is_same(self, other: Reduction) -> bool:
        """Whether both reduce one number at one place, whatever for."""
        return self.node is other.node and self.variable == other.variable


_Found = list[Reduction] | None
_Mend = Callable[[ast.expr, Scope, int], _Found]


class Remedies:
    """Finds remedies, given what differs between ranks."""

    def __init__(self, program: Program, ranks: Ranks, definitions: Definitions) -> None:
        self._program = program
        self._ranks = ranks
        self._definitions = definitions
        self._seen: set[tuple[str, ast.AST]] = set()
        self._elementwise: set[ast.AST] = set()
        self._single: set[ast.AST] = set()
        self._need = Need.DECISION

    def of(self, sink: Sink) -> _Found:
        """What is reduced for a place; None where nothing mends it."""
        kinds = {origin.kind for origin in sink.origins}
        is_object = sink.need is Need.RATE and sink.node is _receiver(sink.what)
        if sink.is_look and kinds <= {Kind.CLOCK, Kind.PROCESS}:
            # Who looks for a file goes on to use it under its name: all ranks get the time that the name was made of,
            # and the identifier that was drawn beside it.
            return list(self._times_of([sink], sink.need))
        if sink.need is Need.PATH or (kinds <= _TAKEN and sink.need is not Need.ROUNDS and not is_object):
            return [self._of_main(sink)]
        if is_object and kinds == {Kind.CLOCK}:
            # A schedule made from settings that hold a time: all ranks get the main process's time where it is read.
            return list(self._times_of([sink], sink.need))
        if not kinds <= _AVERAGED or sink.need is Need.MODEL:
            return None
        self._seen = set()
        self._need = sink.need
        if sink.need is Need.DECISION:
            found = self._test(sink.node, sink.scope, 0)
            return [self._of_main(sink)] if found is None and self._main_may_decide(sink) else found
        if sink.need is Need.WEIGHTS:
            return self._upstream(sink.node, sink.scope, 0)
        if sink.need is Need.RATE and not is_object:
            if not _is_pair(sink.what):
                # A rate is one number, wherever it was found.
                self._single.add(sink.node)
            return self._number(sink.node, sink.scope, 0)
        # ``takewhile(function, batches)``, and a schedule whose function reads what is local.
        return self._results(self._given_functions(sink), 0)

    def of_times(self, sinks: Collection[Sink]) -> list[Reduction]:
        """What is reduced where many places differ by the same few times: these, where they are read.

        A time in the name of a run's folder gets into settings, and by them into all that is read from there.
        """
        timed = [sink for sink in sinks if {origin.kind for origin in sink.origins} == {Kind.CLOCK}]
        timed = [sink for sink in timed if sink.need is not Need.ROUNDS]
        found = self._times_of(timed, Need.PATH)
        return list(found) if len(timed) > _PLACES_OF_A_TIME * len(found) else []

    def _times_of(self, sinks: Iterable[Sink], need: Need) -> dict[Reduction, None]:
        origins = {origin for sink in sinks for origin in sink.origins}
        read = sorted(origins, key=lambda origin: (str(origin.module.path), origin.line, origin.text))
        calls = [(origin.module, origin.node) for origin in read if isinstance(origin.node, ast.Call)]
        whole = [(module, joined_with_machine(self._program, module, call) or call) for module, call in calls]
        return {Reduction(module, node, None, need, is_taken=True): None for module, node in whole}

    @staticmethod
    def _of_main(sink: Sink) -> Reduction:
        return Reduction(sink.module, sink.node, None, sink.need, is_taken=True)

    def _main_may_decide(self, sink: Sink) -> bool:
        """Whether a test between epochs rests on what was measured of batches, and on no count of what a rank has."""
        if not {origin.kind for origin in sink.origins} <= _AVERAGED:
            return False
        between = BetweenEpochs(self._program, self._ranks, self._definitions)
        site = Site(sink.module, sink.scope, blocks.body_of(sink.module, sink.node), sink.node)
        return between.has(site) and not between.trains(site) and not between.counts(sink.node, sink.scope)

    def _given_functions(self, sink: Sink) -> set[FunctionFacts]:
        """The functions of the project that a library was given where it made what a place holds."""
        sites = [sink.node, *(ref.site for ref in self._ranks.objects(sink.node))]
        found: set[FunctionFacts] = set()
        for site in sites:
            located = self._program.locate(site) if isinstance(site, ast.Call) else None
            if isinstance(site, ast.Call) and located is not None:
                for item in [*site.args, *(keyword.value for keyword in site.keywords)]:
                    values = self._program.flow.values(item, located[1])
                    found |= {value.ref for value in values if value.kind == "function"}
        return found

    # ---- tests ---------------------------------------------------------------------------------------------------

    def _test(self, node: ast.expr, scope: Scope, depth: int) -> _Found:
        """Reduce the numbers in a test."""
        if not self._ranks.truth_origins(node):
            return []
        if depth > _MAX_DEPTH or ("test", node) in self._seen:
            return []
        self._seen.add(("test", node))
        if isinstance(node, ast.BoolOp):
            return self._each(self._test(item, scope, depth + 1) for item in node.values)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self._test(node.operand, scope, depth + 1)
        if isinstance(node, ast.NamedExpr):
            return self._test(node.value, scope, depth + 1)
        if isinstance(node, ast.IfExp):
            return self._each(self._test(item, scope, depth + 1) for item in (node.test, node.body, node.orelse))
        if isinstance(node, ast.Compare):
            return self._comparison(node, scope, depth)
        if isinstance(node, ast.Call) and not self._program.flow.callees(node):
            return self._test_of_number(node, scope, depth)
        return self._upstream(node, scope, depth)

    def _comparison(self, node: ast.Compare, scope: Scope, depth: int) -> _Found:
        parts = [node.left, *node.comparators]
        is_nan_test = len(parts) == 2 and ast.dump(parts[0]) == ast.dump(parts[1])
        # ``if loss == 0: continue``: the mean of losses is 0 where each of them is, and else all take the step.
        is_without_loss = any(map(_is_zero, parts)) and any(self._is_loss(part) for part in parts)
        if is_nan_test or is_without_loss or all(isinstance(op, _ORDERS) for op in node.ops):
            if any(map(_is_whole, parts)) and not any(self._is_loss(part) for part in parts):
                # ``if count > 0``: where one rank has none, the mean over all would send it into what needs some.
                return self._each(self._upstream(part, scope, depth + 1) for part in parts)
            if node not in self._elementwise:
                # Its truth is asked for as it is: there is one number on either side, whatever it is made of.
                self._single.update(part for part in parts if not isinstance(part, _SEQUENCES))
            return self._each(self._number(part, scope, depth + 1) for part in parts)
        if any(map(is_none, parts)):
            return self._each(self._known(part, scope, depth + 1) for part in parts)
        return self._each(self._upstream(part, scope, depth + 1) for part in parts)

    def _known(self, node: ast.expr, scope: Scope, depth: int) -> _Found:
        """Mend what decides whether a variable has a number yet, ``best is None``, or else the numbers that it gets."""
        before = set(self._seen)
        found = self._upstream(node, scope, depth)
        if found is None:
            self._seen = before
            found = self._at_definition(node, scope, depth)
        return found

    def _test_of_number(self, node: ast.Call, scope: Scope, depth: int) -> _Found:
        """``torch.isnan(loss).any()``: true of the mean where it is true of one."""
        names = self._program.callee_names(node, scope)
        if names & NUMBER_TESTS and node.args:
            if node not in self._elementwise and not names & SUMMARISING_TESTS:
                self._single.add(node.args[0])  # the truth of ``isnan(mean)`` itself is asked for
            return self._inner(node.args[0], scope, depth)
        if isinstance(node.func, ast.Attribute) and node.func.attr in NUMBER_METHODS and not names:
            return self._inner(node.func.value, scope, depth)
        return None

    def _inner(self, node: ast.expr, scope: Scope, depth: int) -> _Found:
        if isinstance(node, (ast.GeneratorExp, ast.ListComp, ast.SetComp)):
            return self._of_each(node, scope, depth)
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            return self._each(self._inner(item, scope, depth + 1) for item in node.elts)
        if isinstance(node, (ast.Call, ast.Compare, ast.BoolOp)):
            self._elementwise.add(node)
            found = self._test(node, scope, depth + 1)
            if found is not None:
                return found
        return self._number(node, scope, depth + 1)

    def _of_each(self, node: ast.GeneratorExp | ast.ListComp | ast.SetComp, scope: Scope, depth: int) -> _Found:
        """``any(torch.isnan(item) for item in losses)``: each item is reduced, where all ranks have as many."""
        for part in node.generators:
            if part.ifs or self._ranks.size_origins(part.iter):
                return None
        return self._inner(node.elt, scope, depth + 1)

    def _is_loss(self, node: ast.expr) -> bool:
        """Whether a number is read off what a backward pass starts from."""
        losses = {path for site in self._program.backwards for path in blocks.reads(site.loss)}
        return bool(blocks.reads(node) & losses)

    def _is_whole_loss(self, node: ast.expr, scope: Scope) -> bool:
        """Whether a tensor has one element, however large its batch was: a backward pass without a gradient says so.

        A loss of each sample, of which the mean is taken under the same name, is none.
        """
        if not isinstance(node, (ast.Name, ast.Attribute)):
            return False
        key = self._program.flow.key(node, scope)
        goes_back = any(
            self._program.flow.key(part, site.scope) == key
            for site in self._program.backwards
            if isinstance(site.call.func, ast.Attribute) and not (site.call.args or site.call.keywords)
            for part in _elementwise(site.loss)
        )
        if key is None or not goes_back:
            return False
        return not any(
            item.whole and not isinstance(item.value, ast.BinOp) and blocks.reads(item.value) & blocks.reads(node)
            for item in self._definitions.of(node, scope)
        )

    # ---- numbers -------------------------------------------------------------------------------------------------

    def _number(self, node: ast.expr, scope: Scope, depth: int) -> _Found:
        """Reduce a number, where it is made if that is one place, and else where it is read."""
        if not self._ranks.origins(node):
            return []
        if depth > _MAX_DEPTH or ("number", node) in self._seen:
            return []
        self._seen.add(("number", node))
        if isinstance(node, ast.UnaryOp):
            return self._number(node.operand, scope, depth + 1)
        if isinstance(node, (ast.BoolOp, ast.Compare, ast.IfExp)):
            return self._test(node, scope, depth + 1)
        if isinstance(node, ast.Call) and "builtins.len" in self._program.callee_names(node, scope):
            # How long a list is follows from what decides whether something is put into it.
            return []
        if counts_elements(self._program, scope, node):
            return None
        before = set(self._seen)
        found = self._at_definition(node, scope, depth)
        if found is not None:
            return found
        self._seen = before
        return self._here(node, scope)

    def _at_definition(self, node: ast.expr, scope: Scope, depth: int) -> _Found:
        """Reduce what a number is made of where that is assigned, if each part has one such place."""
        if isinstance(node, (ast.BinOp, ast.UnaryOp)) or self._is_of_one_number(node, scope):
            parts = [part for part in _operands(node) if self._ranks.origins(part)]
            return self._each(self._at_definition(part, scope, depth + 1) for part in parts)
        if not isinstance(node, (ast.Name, ast.Attribute)) or depth > _MAX_DEPTH or _is_element(scope.module, node):
            return None
        self._seen.add(("number", node))
        given = [item for item in self._definitions.of(node, scope) if self._makes_local(item)]
        decided = self._each(self._decisions(item, depth) for item in given)
        if decided is None or decided:
            return decided
        if self._definitions.parameter(node, scope) is not None and not given:
            return self._callers(node, scope, depth, self._number)
        if not given:
            return None  # a property, or what another library holds
        local = [item for item in given if self._ranks.origins(item.value)]
        if given and not local:
            # It counts what is decided elsewhere, and agrees when that does.
            return []
        return self._each(self._made(item, depth) for item in local) if all(item.whole for item in local) else None

    def _is_of_one_number(self, node: ast.expr, scope: Scope) -> bool:
        """``abs(change)``: as local as what it is given."""
        return isinstance(node, ast.Call) and bool(self._program.callee_names(node, scope) & NUMBER_TESTS)

    def _makes_local(self, item: Definition) -> bool:
        return bool(self._ranks.origins(item.value) or self._ranks.decisions(item.statement))

    def _made(self, item: Definition, depth: int) -> _Found:
        """Reduce a number where it is assigned; what is only copied there, where it comes from."""
        value = item.value
        if isinstance(value, (ast.Name, ast.Attribute, ast.BinOp, ast.UnaryOp)):
            found = self._at_definition(value, item.scope, depth + 1)
            if found is not None or isinstance(value, (ast.Name, ast.Attribute)):
                return found
        if self._definitions.is_number(value, item.scope):
            return [Reduction(item.scope.module, value, None, self._need)]
        return None

    def _here(self, node: ast.expr, scope: Scope) -> _Found:
        """Reduce a number where it is read: in a line of its own where other readers of a variable follow."""
        module = scope.module
        if isinstance(node, _SEVERAL):
            return None
        is_number = self._definitions.is_number(node, scope)
        may_be_several = node not in self._single and not is_number and not self._is_whole_loss(node, scope)
        if may_be_several and self._ranks.size_origins(node):
            return None
        own = isinstance(node, ast.Name) and scope.owner(node.id) is scope and not _is_element(module, node)
        if is_number and own and isinstance(node, ast.Name) and not self._is_counter(node, scope):
            statement = blocks.statement_of(module, node)
            if self._can_precede(module, statement, node):
                return [Reduction(module, statement, node.id, self._need)]
        return [Reduction(module, node, None, self._need)]

    def _is_counter(self, node: ast.Name, scope: Scope) -> bool:
        """Whether a variable only counts rounds, ``waited += 1``: a mean in its place would be counted on."""
        given = self._definitions.of(node, scope)
        return any(isinstance(item.statement, ast.AugAssign) for item in given) and all(
            isinstance(item.value, ast.Constant) and type(item.value.value) is int for item in given
        )

    def _can_precede(self, module: Module, statement: ast.stmt, node: ast.expr) -> bool:
        """Whether a line before the statement runs as often as the expression, and before it."""
        if isinstance(statement, ast.If):
            parent = module.parents.get(statement)
            return not (isinstance(parent, ast.If) and statement in parent.orelse)
        return isinstance(statement, (ast.Expr, ast.Assign, ast.Return)) and not any(
            isinstance(other, (ast.BoolOp, ast.IfExp, ast.Lambda, ast.ListComp, ast.GeneratorExp, ast.DictComp))
            for other in module.ancestors(node)
            if not isinstance(other, ast.stmt)
        )

    # ---- where it comes from -------------------------------------------------------------------------------------

    def _upstream(self, node: ast.expr, scope: Scope, depth: int) -> _Found:
        """Mend the tests and numbers that something rests on that is no number itself."""
        if not self._ranks.origins(node):
            return []
        if depth > _MAX_DEPTH:
            return None
        if isinstance(node, (ast.Name, ast.Attribute)):
            return self._variable(node, scope, depth)
        if isinstance(node, ast.Call):
            return self._results(self._program.flow.callees(node), depth)
        if isinstance(node, ast.Subscript):
            return self._upstream(node.value, scope, depth + 1)
        return None

    def _variable(self, node: ast.Name | ast.Attribute, scope: Scope, depth: int) -> _Found:
        given = [item for item in self._definitions.of(node, scope) if self._makes_local(item)]
        if self._definitions.parameter(node, scope) is not None and not given:
            return self._callers(node, scope, depth, self._upstream)
        said = {
            method
            for ref in self._ranks.objects(node)
            if ref.cls is not None and (method := ref.cls.find_method("__bool__")) is not None
        }
        if said:
            return self._results(said, depth)
        found: list[Reduction] = []
        for item in given:
            decided = self._decisions(item, depth)
            if decided is None:
                return None
            found += decided
            if self._ranks.origins(item.value) and not decided:
                is_number = self._definitions.is_number(item.value, item.scope)
                inner = (self._number if is_number else self._test)(item.value, item.scope, depth + 1)
                if inner is None:
                    return None
                found += inner
        return found if given else None

    def _decisions(self, item: Definition, depth: int) -> _Found:
        """Mend what decides whether an assignment is made."""
        return self._each(
            self._test(decision.node, self._scope_of(decision.module, decision.node), depth + 1)
            for decision in self._ranks.decisions(item.statement)
            if isinstance(decision.node, ast.expr)
        )

    def _results(self, callees: Collection[FunctionFacts], depth: int) -> _Found:
        """Mend what functions of the project return."""
        found: list[Reduction] = []
        for info in sorted(callees, key=lambda item: item.place):
            scope = self._program.flow.scopes[info.node]
            if isinstance(info.node, ast.Lambda):
                inner = self._test(info.node.body, scope, depth + 1)
                if inner is None:
                    return None
                found += inner
            for node in self._program.nodes_of(info.node):
                if isinstance(node, ast.Return) and node.value is not None:
                    item = Definition(node, node.value, scope, whole=True)
                    inner = self._decisions(item, depth)
                    if inner is not None and not inner:
                        inner = self._test(node.value, scope, depth + 1)
                    if inner is None:
                        return None
                    found += inner
        return found if callees else None

    def _callers(self, node: ast.expr, scope: Scope, depth: int, mend: _Mend) -> _Found:
        """Mend what callers give for a parameter."""
        assert isinstance(node, ast.Name)
        function = self._definitions.parameter(node, scope)
        info = self._program.function_of(function) if function is not None else None
        if info is None:
            return None
        found: list[Reduction] = []
        for caller in self._program.flow.callers(info):
            site = calling(caller)
            given = info.argument(caller.call, node.id)
            if given is None:
                continue
            inner = mend(given, site.scope, depth + 1)
            if inner is None:
                return None
            found += inner
        return found

    def _scope_of(self, module: Module, node: ast.AST) -> Scope:
        return self._program.flow.scopes[blocks.body_of(module, node)]

    @staticmethod
    def _each(parts: Iterable[_Found]) -> _Found:
        found: list[Reduction] = []
        for part in parts:
            if part is None:
                return None
            found += part
        return found


def _elementwise(node: ast.expr) -> list[ast.expr]:
    """The variables that an expression is computed from element by element: none is larger than the result."""
    if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.MatMult):
        return [*_elementwise(node.left), *_elementwise(node.right)]
    return [node] if isinstance(node, (ast.Name, ast.Attribute)) else []


def _operands(node: ast.expr) -> list[ast.expr]:
    """What a number is computed from."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.UnaryOp):
        return [node.operand]
    return node.args if isinstance(node, ast.Call) else []


def _is_element(module: Module, node: ast.expr) -> bool:
    """Whether a name is a variable of a comprehension around it, which no statement assigns."""
    return isinstance(node, ast.Name) and any(
        isinstance(part, ast.Name) and part.id == node.id
        for parent in module.ancestors(node)
        if isinstance(parent, (ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp))
        for generator in parent.generators
        for part in walk(generator.target)
    )


def _is_whole(node: ast.expr) -> bool:
    """Whether the expression is the number 0 or 1, written as a whole one: a bound for counts."""
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value in (0, 1)


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value == 0


def _receiver(node: ast.AST) -> ast.AST | None:
    return node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None


def written(vocabulary: Vocabulary, item: Reduction) -> Written:
    """How a reduction is written."""
    if isinstance(item.node, ast.stmt):
        assert item.variable is not None
        return vocabulary.reduced_before(item.module, item.node, item.variable)
    if item.is_taken:
        return vocabulary.of_main_process(item.module, item.node)
    return vocabulary.reduced(item.module, item.node)


def _is_pair(statement: ast.AST) -> bool:
    """Whether a parameter group is given two numbers at once: ``group["betas"] = betas``."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    keys = [target.slice for target in targets if isinstance(target, ast.Subscript)]
    return any(isinstance(key, ast.Constant) and key.value == "betas" for key in keys)
