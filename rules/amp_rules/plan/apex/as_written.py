"""How a program that wraps its models itself uses them, asked once for all its files, and only when it is needed."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from amp_rules.flow.values import Value
from amp_rules.plan.gradient_averaging import runs_once_a_pass
from amp_rules.plan.left_out import why_left_out_as_written
from amp_rules.plan.past_forward import reads_past_forward
from amp_rules.roles.half_tests import asks_for_float16
from amp_rules.roles.kinds import is_module
from amp_rules.roles.program import Program
from amp_rules.roles.uncalled import uncalled
from amp_rules.roles.widened import widened_parts
from amp_rules.source.index import argument_at
from amp_rules.source.modules import Module
from amp_rules.source.scopes import FunctionNode, Scope
from amp_rules.torch.apex import SWITCHES_EXCHANGE
from amp_rules.torch.dtypes import HALF_TYPES

_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass
class AsWritten:
    """Questions to a program; without one, nothing is known.

    Attributes:
        program: the program, before Apex is taken out of it.
    """

    program: Program | None = None

    @cached_property
    def left_out(self) -> str:
        """How a step may leave parameters out; empty where nothing suggests that it does."""
        return why_left_out_as_written(self.program) if self.program is not None else ""

    @cached_property
    def reads_past_forward(self) -> bool:
        """Whether a loss may read a parameter past the model's forward pass."""
        return self.program is not None and reads_past_forward(self.program)

    @cached_property
    def widens_parts(self) -> bool:
        """Whether a model makes a part of itself float32 as it runs."""
        return self.program is not None and any(True for _ in widened_parts(self.program))

    @cached_property
    def switched(self) -> str:
        """The method by which the program switches the exchange of Apex's wrapper itself; empty where it does not."""
        if self.program is None:
            return ""
        for node, scope in self.program.reads:
            if isinstance(node, ast.Attribute) and node.attr in SWITCHES_EXCHANGE:
                if not any(value.kind == "function" for value in self.program.flow.values(node, scope)):
                    return node.attr
        return ""

    @cached_property
    def makes_float16(self) -> bool:
        """Whether the program makes values float16 by itself, which weights of another half type do not meet."""
        return self.program is not None and any(
            _makes_float16(self.program, node, scope) for node, _, scope in self.program.nodes()
        )

    @cached_property
    def asks_for_float16(self) -> bool:
        """Whether a model asks whether it is given float16, which it would not be in another half type."""
        return self.program is not None and asks_for_float16(self.program)

    def is_idle(self, module: Module, node: ast.AST) -> bool:
        """Whether a place of the file, as it is by now, stands in a function or method that nothing calls."""
        around = [item.name for item in module.ancestors(node) if isinstance(item, _NAMED)]
        return (module.path, tuple(around[::-1])) in self._idle

    @cached_property
    def _idle(self) -> set[tuple[Path, tuple[str, ...]]]:
        """The functions that nothing calls, each by its file and the names of what is around it, and its own."""
        if self.program is None:
            return set()
        idle = uncalled(self.program)
        places: dict[tuple[Path, tuple[str, ...]], bool] = {}
        for module in self.program.flow.modules if idle else ():
            for node in module.nodes:
                if isinstance(node, FunctionNode) and not isinstance(node, ast.Lambda):
                    around = [item.name for item in (node, *module.ancestors(node)) if isinstance(item, _NAMED)]
                    key = module.path, tuple(around[::-1])
                    places[key] = places.get(key, True) and node in idle  # a name may be given twice
        return {key for key, is_idle in places.items() if is_idle}

    def may_be_list(self, module: Module, models: ast.expr) -> bool:
        """Whether what ``initialize`` is given as its models in the file, in these words, may be a list."""
        return any(map(_is_list, self._given_as_models.get((module.path, ast.unparse(models)), ())))

    def may_be_model(self, module: Module, models: ast.expr) -> bool:
        """Whether it may be a single model."""
        return any(map(is_module, self._given_as_models.get((module.path, ast.unparse(models)), ())))

    @cached_property
    def _given_as_models(self) -> dict[tuple[Path, str], set[Value]]:
        """What each such argument may hold, by its file and its words."""
        found: dict[tuple[Path, str], set[Value]] = {}
        if self.program is None:
            return found
        for site in self.program.calls_to(frozenset({"apex.amp.initialize"})):
            given = argument_at(site.node, "models", 0) if isinstance(site.node, ast.Call) else None
            if given is not None:
                values = found.setdefault((site.module.path, ast.unparse(given)), set())
                values |= self.program.flow.values(given, site.scope)
        return found

    @cached_property
    def is_one_pass(self) -> bool:
        """Whether each backward pass is of one forward pass, and no loss reads a parameter past it."""
        return self.program is not None and not self.reads_past_forward and runs_once_a_pass(self.program)


def _is_list(value: Value) -> bool:
    """Whether a value is a list; Apex refuses models in a tuple: ``from_pretrained`` gives one where that is asked."""
    return value.kind == "sequence" and not isinstance(value.site, (ast.Dict, ast.DictComp, ast.Tuple))


def _makes_float16(program: Program, node: ast.AST, scope: Scope) -> bool:
    """``mel.half()``, ``x.to(torch.float16)``; what asks for the type makes nothing."""
    if isinstance(node, ast.Call):
        is_method = (
            isinstance(node.func, ast.Attribute) and node.func.attr == "half" and not (node.args or node.keywords)
        )
        return is_method and not program.flow.callees(node)
    if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(node.ctx, ast.Load):
        return False
    parent = scope.module.parents[node]
    is_given = isinstance(parent, ast.keyword) or (isinstance(parent, ast.Call) and node in parent.args)
    return is_given and any(HALF_TYPES.get(name) == "float16" for name in program.names(node, scope))
