"""What the abstract machine knows of objects: attributes as ``__init__`` leaves them, buffers, variables of modules."""

from __future__ import annotations

import ast

from amp_rules.lattice.abstract_values import (
    ASSUMED,
    F32,
    LOW,
    NUM,
    OTHER,
    POSITION,
    ZERO_DIM,
    Value,
)  # fmt: skip
from amp_rules.lattice.expression_evaluators import global_value
from amp_rules.lattice.frame import Frame, evaluate
from amp_rules.lattice.inline_calls import CallsInLine
from amp_rules.lattice.statement_runners import run
from amp_rules.source.facts import ClassFacts, ModuleFacts


class HoldsAttributes(CallsInLine):
    """Finds what classes and modules of the project hold."""

    # ---- module variables ----------------------------------------------------------------------------------------

    def module_value(self, module: ModuleFacts, node: ast.expr) -> Value:
        """The value of a module variable's expression."""
        frame = Frame(self, module, None, {}, False)
        frame.silent = True
        kept, self.thorough = self.thorough, False
        try:
            return evaluate(frame, node)
        finally:
            self.thorough = kept

    def imported_constant(self, importer: ModuleFacts, dotted: str) -> Value | None:
        """The value of a module variable of another file of the project."""
        key = (id(importer), dotted)
        if key not in self._imported:
            found = self.project.module_of_constant(importer, dotted)
            value = None
            if found is not None:
                frame = Frame(self, found[0], None, {}, False)
                frame.silent = True
                value = global_value(frame, found[1], found[0].constants[found[1]])
            self._imported[key] = value
        return self._imported[key]

    # ---- classes -------------------------------------------------------------------------------------------------

    def class_attribute(self, cls: ClassFacts, name: str) -> Value | None:
        """What instances of a class hold under a name, as far as its ``__init__`` tells."""
        for owner in cls.lineage:
            held = self._attributes(owner)
            if name in held:
                return held[name]
        return None

    def _attributes(self, cls: ClassFacts) -> dict[str, Value]:
        known = self.known_of(cls.module).attributes
        found = known.get(cls.node)
        if found is None:
            init = cls.methods.get("__init__")
            if init is not None and init.node in self._running:
                # What it leaves in ``self`` is not known before it has run.
                return self._of_class_body(cls)
            known[cls.node] = {}
            held = dict(self._of_class_body(cls))
            if init is not None:
                inner = Frame(self, cls.module, init, {}, False)
                inner.silent = True
                kept, self._calls = (self._calls, self.thorough), 0
                # What is kept for all must not depend on who asked first.
                self.thorough = self.thorough and bool(self.handed.get(init.node))
                self._bind_parameters(inner, init)
                self._run(inner, init.node, init.body)
                self._calls, self.thorough = kept
                for name, value in inner.variables.items():
                    if name.startswith("self."):
                        held[name[5:]] = value
            found = known[cls.node] = held
        return found

    def _of_class_body(self, cls: ClassFacts) -> dict[str, Value]:
        """What the class itself holds."""
        held = self._bodies.get(cls)
        if held is None:
            frame = Frame(self, cls.module, None, {}, False)
            frame.silent = True
            run(frame, [item for item in cls.node.body if isinstance(item, (ast.Assign, ast.AnnAssign))])
            held = self._bodies[cls] = frame.variables
        return held

    def register(self, frame: Frame, node: ast.AST, name: str, method: str, content: Value | None) -> None:
        """Note what ``self.register_buffer`` and ``self.register_parameter`` put under a name."""
        made = self._buffer(node, content) if method == "register_buffer" else self.parameter(node, content)
        made.data = name
        frame.variables[f"self.{name}"] = made
        self.show(made, frame)

    def _buffer(self, node: ast.AST, content: Value | None) -> Value:
        made = Value("buffer", node, (content,) if content is not None else (), self.unknown_any, 2)
        if content is not None and content.tensor:
            made.dtypes, made.lo, made.hi = content.dtypes, content.lo, content.hi
            made.bits = content.bits & (POSITION | ZERO_DIM)
        if not self.mode.autocast and made.dtypes & (LOW | F32):
            # ``model.half()`` converts buffers that hold floats.
            made.dtypes = made.dtypes & ~F32 | LOW
            made.bits |= ASSUMED
        return made

    def attribute_of_self(self, frame: Frame, base: Value, attr: str, node: ast.AST) -> Value:
        """``self.x``: what this function left there, else what ``__init__`` did."""
        key = f"self.{attr}"
        held = frame.variables.get(key)
        if held is not None:
            return held
        cls = base.data if isinstance(base.data, ClassFacts) else None
        if cls is not None:
            item = cls.method(attr)
            if item is not None:
                made = Value("function", node)
                made.data = item
                return made
            value = self.class_attribute(cls, attr)
            if value is not None and value.is_const and any(attr in item.reassigned for item in cls.lineage):
                # Another method may have given it another value.
                value, initial = Value("attr", node, (value,), self.unknown_any | NUM | OTHER, 1), value
                value.dtypes |= initial.dtypes
                value.data = attr
            if value is not None:
                if value.op == "param" and not value.is_const:
                    value = self._of_init(value, node, attr)
                frame.variables[key] = value
                return value
        made = self.unknown("attr", node, attr)
        if attr == "dtype" and cls is not None and cls.is_module:
            # Libraries give modules a property of that name: the type of their parameters.
            made = Value("dtype", node, (self.parameter(node, None),))
        if attr in ("weight", "bias") and cls is not None and cls.is_module and _is_layer(cls):
            made = self.parameter(node, None)
        elif attr == "dtype" and cls is not None and cls.is_module:
            # Libraries that give modules a type mean that of their weights.
            made = Value("dtype", node, (self.parameter(node, None),))
        frame.variables[key] = made
        return made

    def _of_init(self, value: Value, node: ast.AST, attr: str) -> Value:
        """An argument of ``__init__`` that was kept: a setting more often than a tensor."""
        made = self.unknown("attr", node, attr)
        made.dtypes |= NUM | OTHER
        made.args = (value,)
        return made


def _is_layer(cls: ClassFacts) -> bool:
    """Whether a class extends a layer of torch, which has weights of its own."""
    return any(name.startswith("torch.nn.") and name != "torch.nn.Module" for name in cls.external_bases)
