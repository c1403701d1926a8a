"""Batches that a loop draws at random in its own body: ``x = data[torch.randint(n, (size,))]``, collocation points.

Each model that the loss is computed from must be given nothing but what the round draws: entries of the data that
random numbers choose, random numbers themselves, and what is made of these and of plain numbers, by a generator too.
Where anything else is given, as the whole data with noise on it, all processes would train on the same, and nothing is
found.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Collection, Iterator

from amp_rules.flow.values import CallSite
from amp_rules.roles.kinds import is_without_parameters
from amp_rules.roles.path_objects import assigned
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Backward, Site
from amp_rules.source import blocks
from amp_rules.source.drawn_samples import draws_samples
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import values_given, walk

_DRAWS = frozenset(
    {f"torch.{name}" for name in ("rand", "randn", "randint", "randperm", "multinomial")}
    | {f"random.{name}" for name in ("randint", "randrange", "random", "sample", "uniform")}
    | {
        f"numpy.random.{name}"
        for name in (
            "choice",
            "normal",
            "permutation",
            "rand",
            "randint",
            "randn",
            "random",
            "random_sample",
            "uniform",
        )
    }
)
_SEEDS = frozenset({"torch.manual_seed", "torch.random.manual_seed", "numpy.random.seed", "random.seed"})
_PLACING = frozenset({"to", "cuda", "type", "cpu"})
"""Methods whose arguments say where a tensor goes, and what it is made."""

_OF_PLACE = frozenset({"device", "dtype", "requires_grad", "dim", "axis", "non_blocking"})
_LIBRARIES = ("torch.", "numpy.", "math.", "builtins.")
_NUMBERS = frozenset({"math.pi", "math.tau", "math.e", "numpy.pi", "numpy.e", "torch.pi", "torch.e"})
_OF_NUMBERS = frozenset(f"builtins.{name}" for name in ("int", "float", "len", "min", "max", "abs", "round"))
_MAX_FUNCTIONS = 5
"""Functions of the project that a draw, and what they are given, is followed through."""
_MAX_DEPTH = 12
"""Variables that a batch is followed through; beyond, it is not known what it is."""


class _Draws:
    """What some statements draw at random, and what they make of it.

    Args:
        program: the program.
        scope: the names that the statements see.
        inner: their nodes.
        depth: how many functions may still be asked what they draw.
    """

    def __init__(self, program: Program, scope: Scope, inner: list[ast.AST], depth: int = _MAX_FUNCTIONS) -> None:
        self._program = program
        self._scope = scope
        self._inner = inner
        self._depth = depth
        self._made: dict[str, list[ast.expr]] = {}
        self._unclear: set[str] = set()
        for node in inner:
            self._note(node)

    def _note(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                for part, value in _paired(target, node.value):
                    if isinstance(part, ast.Name):
                        self._made.setdefault(part.id, []).append(value)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            self._made.setdefault(node.target.id, []).append(node.value)
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            self._unclear |= blocks.writes_target(node)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                if item.optional_vars is not None:
                    self._unclear |= {part.id for part in walk(item.optional_vars) if isinstance(part, ast.Name)}
        elif isinstance(node, ast.NamedExpr):
            self._unclear.add(node.target.id)

    def _draws(self, nodes: Collection[ast.AST]) -> list[ast.Call]:
        return [node for node in nodes if isinstance(node, ast.Call) and self._is_draw(node)]

    def _is_draw(self, call: ast.Call) -> bool:
        callees = self._program.flow.callees(call)
        if callees:
            return self._depth > 0 and all(_gives_draws(self._program, info, self._depth - 1) for info in callees)
        names = self._program.callee_names(call, self._scope)
        if draws_samples(names, call):
            return True
        return bool(names) and names <= _DRAWS and not any(item.arg in ("generator", None) for item in call.keywords)

    # ---- what a loss comes of ----------------------------------------------------------------------------------------

    def _running_models(self, made: list[ast.expr]) -> Iterator[ast.Call]:
        """Yield each call that runs a model, of those that some expressions are computed from."""
        pending, seen = [*made], set[str]()
        while pending:
            for node in walk(pending.pop()):
                if isinstance(node, ast.Name) and node.id not in seen:
                    seen.add(node.id)
                    pending.extend(self._reaching(self._made.get(node.id, [])))
                elif isinstance(node, ast.Call) and self._runs_model(node):
                    yield node

    def _is_fed(self, call: ast.Call) -> bool:
        """Whether what a call gives a model is drawn here, or in the function of the project that is called."""
        if self._gives_drawn(call):
            return True
        callees = self._program.flow.callees(call) if self._depth > 0 else []
        return (
            bool(callees)
            and not self._program.called_models(call, self._scope)
            and all(
                _is_straight(info) and _FunctionDraws(self._program, info, self._depth - 1).feed_models()
                for info in callees
            )
        )

    def _gives_drawn(self, call: ast.Call, depth: int = 0) -> bool:
        given = [item for item in values_given(call) if not self._is_module(item)]
        return (
            bool(given)
            and all(self._is_of_round(item, depth=depth) for item in given)
            and any(self._is_drawn(item, depth=depth) for item in given)
        )

    def _is_module(self, node: ast.expr) -> bool:
        """Whether a model is given, and not what one of a library gave."""
        return any(not value.is_result for value in self._program.roles.modules(node, self._scope))

    def _is_given_drawn(self, call: ast.Call, depth: int) -> bool:
        """Whether a model is called with what is drawn, as a generator is whose result another model is given."""
        return bool(self._program.called_models(call, self._scope)) and self._gives_drawn(call, depth)

    def _runs_model(self, call: ast.Call) -> bool:
        called = self._program.called_models(call, self._scope)
        if called:
            # A loss of torch's that a variable holds compares what models gave, as a function does.
            return not all(map(is_without_parameters, called))
        return bool(self._program.flow.callees(call)) and self._program.runs_forward(call)

    # ---- what the round draws ----------------------------------------------------------------------------------------

    def _is_drawn(self, node: ast.expr, drawn: frozenset[str] = frozenset(), depth: int = 0) -> bool:
        """Whether random numbers of this round are in an expression: by a model only where it is given no others."""
        if depth > _MAX_DEPTH:
            return False
        calls = [part for part in walk(node) if isinstance(part, ast.Call)]
        models = list(filter(self._runs_model, calls))
        if models:
            return all(self._is_given_drawn(call, depth + 1) for call in models)
        if self._draws(calls):
            return True
        names = {part.id for part in walk(node) if isinstance(part, ast.Name)}
        return bool(names & drawn) or any(
            self._is_drawn(value, drawn, depth + 1)
            for name in names - self._unclear
            for value in self._made.get(name, ())
        )

    def _is_of_round(self, node: ast.expr, drawn: frozenset[str] = frozenset(), depth: int = 0) -> bool:
        """Whether an expression is made of nothing but what the round draws, and of numbers."""
        if depth > _MAX_DEPTH or isinstance(node, ast.Starred):
            return False

        def is_of_round(part: ast.expr) -> bool:
            return self._is_of_round(part, drawn, depth + 1)

        if isinstance(node, ast.Constant):
            return True
        if isinstance(node, ast.Name):
            return node.id in drawn or self._is_variable_of_round(node, depth)
        if isinstance(node, ast.Attribute):
            return self._is_number(node) or is_of_round(node.value)
        if isinstance(node, ast.Subscript):
            return self._is_drawn(node.slice, drawn) or is_of_round(node.value)
        if isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Tuple, ast.List)):
            return all(is_of_round(part) for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr))
        if isinstance(node, (ast.ListComp, ast.GeneratorExp)) and len(node.generators) == 1:
            over = node.generators[0]
            each = frozenset(part.id for part in walk(over.target) if isinstance(part, ast.Name))
            return self._is_drawn(over.iter, drawn) and self._is_of_round(node.elt, drawn | each, depth + 1)
        if not isinstance(node, ast.Call):
            return False
        if self._is_draw(node) or self._is_given_drawn(node, depth + 1):
            return True
        names = self._program.callee_names(node, self._scope)
        keywords = [item.value for item in node.keywords if item.arg not in _OF_PLACE]
        if names and all(name.startswith(_LIBRARIES) for name in names) and self._is_function(node):
            return all(map(is_of_round, [*node.args, *keywords]))
        if isinstance(node.func, ast.Attribute) and not self._program.flow.callees(node):
            given = [] if node.func.attr in _PLACING else [*node.args, *keywords]
            return is_of_round(node.func.value) and all(map(is_of_round, given))
        return False

    def is_plain_number(self, node: ast.expr, depth: int = 0) -> bool:
        """Whether an expression is made of numbers alone: no tensor, which could be the whole of the data."""
        if depth > _MAX_DEPTH:
            return False
        if isinstance(node, (ast.Name, ast.Attribute)):
            made = self._made.get(node.id, []) if isinstance(node, ast.Name) and node.id not in self._unclear else []
            return self._is_number(node) or (bool(made) and all(self.is_plain_number(item, depth + 1) for item in made))
        if isinstance(node, ast.Call):
            names = self._program.callee_names(node, self._scope)
            parts = node.args if names and names <= _OF_NUMBERS and not node.keywords else [node]
            return parts != [node] and all(self.is_plain_number(item, depth + 1) for item in parts)
        parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
        is_made = isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Tuple, ast.List))
        return isinstance(node, ast.Constant) or (
            is_made and all(self.is_plain_number(item, depth + 1) for item in parts)
        )

    def _is_function(self, call: ast.Call) -> bool:
        """Whether a function of a library is called, and no method of what one made."""
        root = (blocks.path_of(call.func) or "").split(".")[0]
        return bool(root) and root not in self._made and not isinstance(call.func, ast.Call)

    def _is_variable_of_round(self, node: ast.Name, depth: int) -> bool:
        if node.id in self._unclear:
            return False
        given = self._reaching(self._made.get(node.id, []))
        made = [value for value in given if node.id not in blocks.reads(value)]
        again = [value for value in given if node.id in blocks.reads(value)]
        if not made:
            return not again and self._is_number(node)
        itself = frozenset({node.id})
        return all(self._is_of_round(value, frozenset(), depth + 1) for value in made) and all(
            self._is_of_round(value, itself, depth + 1) for value in again
        )

    def _reaching(self, given: list[ast.expr]) -> list[ast.expr]:
        """Those of the values of a variable that may be read where a loss is computed."""
        return given

    def _is_number(self, node: ast.Name | ast.Attribute) -> bool:
        """Whether a variable from outside of the loop holds a number: a constant, an option, a length."""
        flow = self._program.flow
        values = flow.values(node, self._scope)
        if values and all(value.kind == "constant" for value in values):
            return True
        if values and all(value.kind == "external" and value.ref in _NUMBERS for value in values):
            return True
        owners = flow.values(node.value, self._scope) if isinstance(node, ast.Attribute) else set()
        if any(value.name.startswith("argparse.") for value in owners):
            return True
        made = assigned(self._program, node, self._scope) if isinstance(node, ast.Name) else []
        return bool(made) and all(isinstance(item, ast.Call) and blocks.path_of(item.func) == "len" for item in made)


class InlineDraws(_Draws):
    """Finds the statement with which the body of a loop draws the batch of a backward pass.

    Args:
        program: the program.
        loops: the loops around the backward pass, from the inside.
        backward: the backward pass.
    """

    def __init__(self, program: Program, loops: list[Site], backward: Backward) -> None:
        self._loops = loops
        self._loop = loop = loops[0]
        self._backward = backward
        inner = [child for item in loop.node.body for child in blocks.walk_own(item)]  # type: ignore[attr-defined]
        super().__init__(program, loop.scope, inner)

    def statement(self) -> ast.stmt | None:
        """The first statement that draws; None where the batch is not drawn here, or that is not certain."""
        if self._backward.body is not self._loop.body or self._backward.node not in self._inner:
            return None
        if self._goes_on() or self._seeds():
            return None
        running = list(self._running_models([self._backward.loss]))
        if not running or not all(map(self._is_fed, running)):
            return None
        drawing = [*self._draws(self._inner), *(call for call in running if not self._gives_drawn(call))]
        statements = [blocks.statement_of(self._loop.module, call) for call in drawing]
        body: list[ast.stmt] = self._loop.node.body  # type: ignore[attr-defined]
        # A generator trains on what it gave in the loop that trains its critic.
        within = (item for item in body if any(node in statements for node in walk(item)))
        return next((item for item in body if item in statements), None) or next(within, None)

    def _reaching(self, given: list[ast.expr]) -> list[ast.expr]:
        """Without what a variable is given below the backward pass, where each round gives it another above that."""
        module, line = self._loop.module, self._backward.line
        above = [value for value in given if value.lineno < line]
        for value in above:
            parents = blocks.enclosing(module, blocks.statement_of(module, value))
            inner = list(itertools.takewhile(lambda parent: parent is not self._loop.node, parents))
            if all(isinstance(parent, (ast.For, ast.With)) for parent in inner):
                return above
        return given

    # ---- the loop --------------------------------------------------------------------------------------------------

    def _goes_on(self) -> bool:
        """Whether the loop takes entries by a number that it counts up."""
        counted = {
            node.target.id
            for node in self._inner
            if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
        }
        return any(isinstance(node, ast.Subscript) and blocks.reads(node.slice) & counted for node in self._inner)

    def _seeds(self) -> bool:
        """Whether a round of a loop sets the random state: each process would draw the same."""
        return any(
            isinstance(node, ast.Call) and bool(self._program.callee_names(node, loop.scope) & _SEEDS)
            for loop in self._loops
            for item in loop.node.body  # type: ignore[attr-defined]
            for node in blocks.walk_own(item)
        )


class _FunctionDraws(_Draws):
    """What a function of the project draws each time that it is called.

    Only what does nothing else is followed: it assigns variables and returns. A branch may draw nothing, an entry that
    is assigned may be one of the data, and a call without a result may seed.
    """

    def __init__(self, program: Program, info: FunctionFacts, depth: int) -> None:
        self._info = info
        super().__init__(program, program.flow.scopes[info.node], list(blocks.walk_body(info.node)), depth)

    def are_all(self) -> bool:
        """Whether it gives nothing but what it draws, and what is made of that and of plain numbers."""
        assigned_here = [item.value for item in self._info.body if isinstance(item, ast.Assign)]
        return (
            bool(self._info.returns)
            and not self._seeds()
            and all(map(self._is_of_round, [*assigned_here, *self._info.returns]))
            and all(map(self._is_drawn, self._info.returns))
        )

    def feed_models(self) -> bool:
        """Whether they are all that the models are given which it runs for what it returns: a loss."""
        running = list(self._running_models(self._info.returns))
        return bool(running) and not self._seeds() and all(map(self._is_fed, running))

    def _seeds(self) -> bool:
        calls = (node for node in self._inner if isinstance(node, ast.Call))
        return any(self._program.callee_names(call, self._scope) & _SEEDS for call in calls)

    def _is_number(self, node: ast.Name | ast.Attribute) -> bool:
        info = self._info
        if not isinstance(node, ast.Name) or node.id not in info.parameters or node.id == info.receiver:
            return super()._is_number(node)
        callers = self._program.flow.callers(info) if self._depth > 0 else []
        return bool(callers) and all(
            given is not None and self._around(caller).is_plain_number(given)
            for caller in callers
            for given in [info.argument_or_default(caller.call, node.id)]
        )

    def _around(self, caller: CallSite) -> _Draws:
        """What the body around a call makes of numbers."""
        info = self._program.function_of(caller.scope.node)
        if info is not None:
            return _FunctionDraws(self._program, info, self._depth - 1)
        return _Draws(self._program, caller.scope, list(blocks.walk_body(caller.scope.node)), self._depth - 1)


def _paired(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """What an assignment writes, each with what it is made of: ``x, y = x.cuda(), y.cuda()``."""
    parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
    values = value.elts if isinstance(value, (ast.Tuple, ast.List)) and parts != [target] else []
    is_starred = any(isinstance(item, ast.Starred) for item in [*parts, *values])
    return [*zip(parts, values if len(values) == len(parts) and not is_starred else [value] * len(parts), strict=True)]


def _gives_draws(program: Program, info: FunctionFacts, depth: int) -> bool:
    return _is_straight(info) and _FunctionDraws(program, info, depth).are_all()


def _is_straight(info: FunctionFacts) -> bool:
    """Whether a function does the same in each call: it assigns variables and returns."""
    if info.decorator_list or info.is_generator or not isinstance(info.node, ast.FunctionDef):
        return False
    return all(_is_plain(item, index) for index, item in enumerate(info.body))


def _is_plain(statement: ast.stmt, index: int) -> bool:
    """Whether a statement assigns variables, returns, or is what a function says of itself."""
    if isinstance(statement, ast.Assign):
        targets = [part for item in statement.targets for part in getattr(item, "elts", [item])]
        return all(isinstance(part, ast.Name) for part in targets) and not any(
            isinstance(part, (ast.IfExp, ast.BoolOp, ast.NamedExpr)) for part in walk(statement.value)
        )
    if isinstance(statement, ast.Expr):
        return index == 0 and isinstance(statement.value, ast.Constant)
    return isinstance(statement, ast.Return)
