"""What a training loop gives its model of a batch, as an expression over the batch."""

from __future__ import annotations

import ast

from amp_rules.flow.values import Value
from amp_rules.plan.training_loops import TrainingLoop
from amp_rules.roles.program import Program
from amp_rules.source.syntax import walk

BATCH = "batch"
_MOVES = frozenset({"to", "cuda", "cpu", "detach", "contiguous"})
"""Methods that give the same numbers, on another device perhaps: the runtime moves what it is given itself."""


class NoInput(Exception):
    """What a model is given was not understood; ``node`` is the place."""

    def __init__(self, node: ast.AST) -> None:
        super().__init__(ast.unparse(node))
        self.node = node


def input_of(program: Program, loop: TrainingLoop, models: set[Value]) -> str | None:
    """The source of what the model is given of ``batch``; None where that is what ``amp.quantize`` takes by itself.

    Raises:
        NoInput: it is not known.
    """
    reader = _Reader(program, loop, models)
    call = reader.run(loop.loop.body)
    if call is None:
        raise NoInput(loop.loop)
    return reader.given(call)


class _Reader:
    """Follows the variables of one round, from the batch to the model's call."""

    def __init__(self, program: Program, loop: TrainingLoop, models: set[Value]) -> None:
        self._program = program
        self._loop = loop
        self._models = models
        self._known: dict[str, ast.expr] = {}
        target = loop.loop.target
        counts = any(isinstance(part, ast.Name) and part.id == "enumerate" for part in walk(loop.loop.iter))
        if counts:
            if not (isinstance(target, ast.Tuple) and len(target.elts) == 2):
                raise NoInput(target)
            target = target.elts[1]
        self._bind(target, ast.Name(BATCH, ast.Load()))

    def run(self, suite: list[ast.stmt]) -> ast.Call | None:
        """Go through statements up to the model's first call, which is given back."""
        for statement in suite:
            call: ast.AST | None
            if isinstance(statement, (ast.With, ast.AsyncWith)):
                call = self.run(statement.body)
            else:
                call = next(filter(self._is_model, walk(statement)), None)
                if call is not None and not isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Expr, ast.AugAssign)):
                    raise NoInput(statement)
            if call is not None:
                assert isinstance(call, ast.Call)
                return call
            self._assign(statement)
        return None

    def given(self, call: ast.Call) -> str | None:
        """See :func:`input_of`."""
        if not call.args and len(call.keywords) == 1 and call.keywords[0].arg is None:
            if self._text(call.keywords[0].value) == BATCH:
                return None
            raise NoInput(call)
        if any(isinstance(item, ast.Starred) for item in call.args) or any(item.arg is None for item in call.keywords):
            raise NoInput(call)
        if call.args and call.keywords:
            raise NoInput(call)
        if call.keywords:
            return "{" + ", ".join(f'"{item.arg}": {self._text(item.value)}' for item in call.keywords) + "}"
        texts = [self._text(item) for item in call.args]
        if len(texts) != 1:
            if not texts:
                raise NoInput(call)
            return f"({', '.join(texts)})"
        return None if texts[0] in (f"{BATCH}[0]", BATCH) else texts[0]

    def _is_model(self, node: ast.AST) -> bool:
        if not isinstance(node, ast.Call):
            return False
        return bool(self._program.called_models(node, self._loop.scope) & self._models)

    def _text(self, node: ast.expr) -> str:
        return ast.unparse(self._over_batch(node))

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self._known[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            for index, item in enumerate(target.elts):
                if isinstance(item, ast.Starred):
                    break
                self._bind(item, ast.Subscript(value, ast.Constant(index), ast.Load()))

    def _assign(self, statement: ast.stmt) -> None:
        pairs: list[tuple[ast.expr, ast.expr | None]] = []
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, value = statement.targets[0], statement.value
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
                pairs = [(one, self._or_none(other)) for one, other in zip(target.elts, value.elts, strict=True)]
            else:
                pairs = [(target, self._or_none(value))]
        for node in walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self._known.pop(node.id, None)
        for target, held in pairs:
            if held is not None:
                self._bind(target, held)

    def _or_none(self, value: ast.expr) -> ast.expr | None:
        try:
            return self._over_batch(value)
        except NoInput:
            return None

    def _over_batch(self, node: ast.expr) -> ast.expr:
        """The expression with what its variables hold, in terms of the batch."""
        if isinstance(node, ast.Constant):
            return node
        if isinstance(node, ast.Name) and node.id in self._known:
            return self._known[node.id]
        if isinstance(node, ast.UnaryOp):
            return ast.UnaryOp(node.op, self._over_batch(node.operand))
        if isinstance(node, ast.BinOp):
            return ast.BinOp(self._over_batch(node.left), node.op, self._over_batch(node.right))
        if isinstance(node, ast.Subscript):
            return ast.Subscript(self._over_batch(node.value), self._index(node.slice), ast.Load())
        if isinstance(node, ast.Attribute) and node.attr == "shape":
            return ast.Attribute(self._over_batch(node.value), node.attr, ast.Load())
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            return self._method(node, node.func)
        raise NoInput(node)

    def _index(self, node: ast.expr) -> ast.expr:
        if any(isinstance(part, (ast.Name, ast.Call)) for part in walk(node)):
            raise NoInput(node)
        return node

    def _method(self, call: ast.Call, function: ast.Attribute) -> ast.expr:
        owner = self._over_batch(function.value)
        if function.attr in _MOVES and not _casts(call):
            return owner
        arguments = [self._over_batch(item) for item in call.args]
        keywords = [ast.keyword(item.arg, self._over_batch(item.value)) for item in call.keywords]
        return ast.Call(ast.Attribute(owner, function.attr, ast.Load()), arguments, keywords)


def _casts(call: ast.Call) -> bool:
    """Whether ``to`` may change the type of the numbers."""
    texts = [ast.unparse(item) for item in [*call.args, *(item.value for item in call.keywords)]]
    return any(item.arg == "dtype" for item in call.keywords) or any(text.startswith("torch.") for text in texts)
