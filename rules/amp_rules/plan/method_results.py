"""What functions give in half under autocast: nothing makes that float32 again, as it does the outputs of models.

The linter's analysis of types says what a function returns; the points-to analysis says which forward passes of the
project's own modules its values come from.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Literal

from amp_rules.flow.values import Value as Object
from amp_rules.lattice.abstract_values import ASSUMED, F32, IN_A_FUNCTION, KEEPING_TYPE, LOW, OTHER, Value
from amp_rules.lattice.binding import gives_pair
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode
from amp_rules.lattice.operation_names import SPLITS, WITH_STATES
from amp_rules.lint.check import Check
from amp_rules.lint.linter import Linter
from amp_rules.roles.kinds import is_chain
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.spans import Span
from amp_rules.source.text import SourceError
from amp_rules.torch.models import is_layer_of_floats

Result = Literal["float32", "half"]
"""``float32``: nothing of it is half; ``half``: one tensor of floats, which may be half."""

_HOLDING = frozenset({"tuple", "list", "dict"})
_FROM_ELSEWHERE = frozenset({"param", "attr", "name", "call", "element", "result", "method"})
"""Operations that say nothing of what they give."""
_MAX_FORWARDS = 4
"""Forward passes within forward passes that are followed, as deep as models nest blocks that are worth a name; what is
made deeper is not known."""


class MethodResults:
    """What calls of the program's functions give where they run under autocast.

    Args:
        program: the program.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._judged: dict[Module, _Returns] = {}
        self._calls: dict[Module, dict[Span, tuple[ast.Call, Scope]]] = {}

    def of(self, call: ast.Call, scope: Scope) -> Result | None:
        """What a call gives; None where that is not known, or what it runs hands half tensors to NumPy."""
        called = self._program.called_models(call, scope)
        found: set[Result | None] = set()
        for value in called:
            forward = value.ref.find_method("forward") if value.kind == "instance" else None
            if forward is not None:
                found.add(self._of(forward, 0))
            else:
                found.add("half" if self._is_layer_of_floats(value) else None)
        if not called:
            found = {self._of(info, 0) for info in self._program.flow.callees(call)}
        if not found or None in found:
            return None
        return "half" if "half" in found else "float32"

    def _is_layer_of_floats(self, value: Object) -> bool:
        """Whether torch's layer gives one tensor of floats; of a chain its last layer decides."""
        if value.kind != "object" or value.is_result:
            return False
        if not is_chain(value):
            return is_layer_of_floats(str(value.ref))
        last = value.site.args[-1] if isinstance(value.site, ast.Call) and value.site.args else None
        if not isinstance(last, ast.Call):
            return False
        located = self._program.locate(last)
        names = self._program.callee_names(last, located[1]) if located is not None else set()
        return bool(names) and all(map(is_layer_of_floats, names))

    def _of(self, info: FunctionFacts, depth: int) -> Result | None:
        module = self._program.module_of(info.node)
        if module is None or depth > _MAX_FORWARDS or isinstance(info.node, ast.Lambda):
            return None
        returns = self._returns(module)
        span = module.span(info.node)
        values = returns.found.get(span)
        if not values or self._gives_numpy(info):
            return None
        kinds = {self._kind(value, module, depth) for value in values}
        if None in kinds or ("half" in kinds and not all(value.tensor for value in values)):
            return None
        if not any(item.tensor for value in values for item in (value, *value.args)):
            return None  # numbers of an evaluation that it is itself
        return "half" if "half" in kinds else "float32"

    def _gives_numpy(self, info: FunctionFacts) -> bool:
        """Whether a function, or one that it calls, makes an array of what may be half: bfloat16 has none."""
        calls = [node for node in blocks.walk_body(info.node) if isinstance(node, ast.Call)]
        for body in {info.node, *self._program.called_from(calls)}:
            module = self._program.module_of(body)
            if module is not None and module.span(body) in self._returns(module).to_numpy:
                return True
        return False

    def _returns(self, module: Module) -> _Returns:
        known = self._judged.get(module)
        if known is None:
            known = self._judged[module] = _Returns(module)
            try:
                Linter(Mode("O1", "fp16"), [known], in_regions=True).lint(module.source)
            except (SourceError, RecursionError):
                known.found.clear()
        return known

    def _kind(self, value: Value, module: Module, depth: int) -> Result | None:
        if value.op in _HOLDING:
            kinds = [self._kind(item, module, depth) for item in value.args]
            return "float32" if kinds and all(kind == "float32" for kind in kinds) else None
        if value.tensor == 0:
            return None if value.dtypes & OTHER and value.op in ("call", "attr", "name", "param") else "float32"
        if not value.dtypes & LOW:
            return "float32"
        if gives_pair(value) or value.op in SPLITS | WITH_STATES:
            return None  # several tensors, of which none is made float32 by itself
        if value.op == "module" and value.bits & ASSUMED:
            return self._of_forwards(value, module, depth)
        return "half" if self._is_of_floats(value, module, depth, IN_A_FUNCTION) else None

    def _is_of_floats(self, value: Value, module: Module, depth: int, left: int) -> bool:
        """Whether a tensor has floats for certain: a module's output is assumed to; what is given may be indices."""
        if not value.tensor or value.dtypes & ~(LOW | F32) or left == 0:
            return False
        if value.dtypes == LOW or value.dtypes == F32:
            return not value.bits & ASSUMED or value.op != "buffer"
        if value.op == "module" and value.bits & ASSUMED:
            forwards = self._forwards(value, module)
            return bool(forwards) and all(self._gives_floats(info, depth + 1) for info in forwards)
        tensors = [item for item in value.args if item.tensor]
        known = (self._is_of_floats(item, module, depth, left - 1) for item in tensors)
        if value.op == "join":
            return bool(tensors) and all(known)
        if value.op in KEEPING_TYPE or value.bits & ASSUMED:
            return any(known)  # a float and an integer make a float
        return bool(value.args) and value.op not in _FROM_ELSEWHERE

    def _forwards(self, value: Value, module: Module) -> list[FunctionFacts]:
        """The forward passes that a value was made by; nothing where one of them is not the project's."""
        if value.node is None:
            return []
        located = self._calls_of(module).get(module.span(value.node))
        called = self._program.called_models(*located) if located is not None else set()
        forwards = [item.ref.find_method("forward") if item.kind == "instance" else None for item in called]
        known = [info for info in forwards if info is not None]
        return known if len(known) == len(called) else []

    def _of_forwards(self, value: Value, module: Module, depth: int) -> Result | None:
        kinds = {self._of(info, depth + 1) for info in self._forwards(value, module)}
        return kinds.pop() if len(kinds) == 1 else None

    def _gives_floats(self, info: FunctionFacts, depth: int) -> bool:
        """Whether a forward pass gives one tensor of floats, of whatever type."""
        module = self._program.module_of(info.node)
        if module is None or depth > _MAX_FORWARDS:
            return False
        values = self._returns(module).found.get(module.span(info.node))
        return bool(values) and all(self._is_of_floats(item, module, depth, IN_A_FUNCTION) for item in values or ())

    def _calls_of(self, module: Module) -> dict[Span, tuple[ast.Call, Scope]]:
        if not self._calls:
            for call, _, scope in self._program.calls():
                self._calls.setdefault(scope.module, {})[scope.module.span(call)] = call, scope
        return self._calls.get(module, {})


class _Returns(Check):
    """Collects what the functions of a file return, and which of them hand tensors that may be half to NumPy."""

    code, name, message = "", "returns", ""
    triggers = ("return",)
    operations = ("numpy",)

    def __init__(self, module: Module) -> None:
        self.found: dict[Span, list[Value]] = {}
        self.to_numpy: set[Span] = set()
        self._module = module

    def visit(self, op: Value, frame: Frame) -> None:
        """Note the function in which an array is made of what may be half."""
        if any(item.maybe_low for item in op.args):
            self.to_numpy.update(self._around(frame))

    def visit_function(self, function: FunctionFacts | None, frame: Frame) -> None:
        """Note what a function returned."""
        if function is not None and function.module.module.path == self._module.path:
            self.found[self._module.span(function.node)] = list(frame.returned)

    def _around(self, frame: Frame) -> Iterator[Span]:
        around: Frame | None = frame
        while around is not None:
            if around.function is not None and around.module.module.path == self._module.path:
                yield self._module.span(around.function.node)
            around = around.caller
