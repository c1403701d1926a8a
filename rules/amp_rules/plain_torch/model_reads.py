"""What reads a model after DistributedDataParallel was put around it, which hands no attribute through."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from amp_rules.flow.values import Value
from amp_rules.plain_torch.plain_reads import PlainReads
from amp_rules.plain_torch.saved_models import SavedModels
from amp_rules.plain_torch.training_nodes import TrainingNodes
from amp_rules.plain_torch.translation import Translation
from amp_rules.plain_torch.unused_results import UnusedResults
from amp_rules.plain_torch.wrapped import Wrapped
from amp_rules.plain_torch.wrapped_references import WrappedReferences
from amp_rules.roles.kinds import is_module
from amp_rules.roles.sites import Site
from amp_rules.source.syntax import is_super, walk
from amp_rules.text.runtime_vocabulary import RUNTIME
from amp_rules.torch.models import RETURNS_RECEIVER
from amp_rules.torch.wrappers import (
    COPIES_FIRST_ARGUMENT,
    DATA_PARALLEL,
    DISTRIBUTED_DATA_PARALLEL,
    RETURNS_FIRST_ARGUMENT,
)

_SAME_OF_WRAPPER = frozenset(
    {
        "train", "eval", "training", "parameters", "zero_grad", "to", "cuda", "cpu", "float", "requires_grad_",
        "forward", "__call__", "module", "share_memory", "no_sync",
    }
)  # fmt: skip
"""What the wrapper does, or gives, as the model does."""

_TAKES_EITHER = frozenset(
    f"builtins.{name}" for name in ("print", "str", "repr", "id", "bool", "callable", "super", "format")
)
_WRAPPERS = DATA_PARALLEL | DISTRIBUTED_DATA_PARALLEL | {"torch.nn.Module", "torch.nn.modules.module.Module"}
_LOOKS = frozenset({"hasattr", "isinstance", "setattr", "delattr", "len", "type", "vars", "dir"})
"""Functions of Python's own that run no layer of what they are given."""

_WANT_MODEL = COPIES_FIRST_ARGUMENT | {
    "torch.jit.script",
    "torch.jit.trace",
    "torch.nn.utils.weight_norm",
    "torch.nn.utils.spectral_norm",
}
_KEEPS = frozenset({"append", "add", "extend", "insert", "setdefault", "update", "put"})


class ModelReads:
    """The reads of the wrapped models of a program."""

    def __init__(self, translation: Translation, models: list[Wrapped]) -> None:
        self._translation = translation
        self._program = translation.program
        self._models = models
        self._taken: set[ast.expr] = set()
        self._values = frozenset(value for item in models for value in item.values)
        self._references = WrappedReferences(self._program, models)
        self._plain = PlainReads(self._program)
        self._training = TrainingNodes(self._program)
        self._unused = UnusedResults(self._program)
        self._alone, self._called_alone = self._of_one_process()

    def rewrite(self) -> None:
        """Have the model itself asked for what its wrapper lacks."""
        saved = SavedModels(self._translation, self._models, self._references)
        if any(True for _ in self._translation.uses_of("keep_module_prefix")):
            for site in saved.sites():
                message = f"`{site.module.text(site.node)}` is saved as a whole, DataParallel around it, too"
                self._decline(site, message, "save `model.module.state_dict()`")
            return  # DataParallel hands no attribute through either, and gives the same names
        for site in saved.sites():
            self.take_itself(site)
        self._check_compiled()
        for site in self._reads():
            node = site.node
            assert isinstance(node, ast.expr)
            if not self._asks_model(site) or not self._references.may_be_wrapped(node, site.scope):
                continue
            if self._is_trained_through(site):
                text = site.module.text(self._asked(site))
                self._translation.decline(
                    site.module,
                    node,
                    f"`{text}` runs a part of the model in a training step, not the model: DistributedDataParallel "
                    "averages no gradients of that",
                    "let the model's own forward do it; run it under torch.no_grad() where no loss comes of it",
                    "distribution",
                )
            else:
                self.take_itself(site)

    def _check_compiled(self) -> None:
        """Decline models that are compiled after they were wrapped: what is compiled names its state after itself."""
        for site in self._program.calls_to(frozenset({"torch.compile"})):
            assert isinstance(site.node, ast.Call)
            for given in site.node.args[:1]:
                if self._holds(given, site.scope) and self._references.may_be_wrapped(given, site.scope):
                    text = site.module.text(given)
                    message = f"`{text}` would be compiled together with DistributedDataParallel, under other names"
                    self._decline(site, message, f"compile it where it is made: `{text} = torch.compile({text})`")

    def take_itself(self, site: Site) -> None:
        """Put the model itself in the place of an expression that may be its wrapper."""
        node = site.node
        assert isinstance(node, ast.expr)
        while (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in RETURNS_RECEIVER
        ):
            node = node.func.value
        if node in self._taken:
            return
        self._taken.add(node)
        text = ast.unparse(node)
        if not _is_path(node):
            message = f"`{site.module.text(node)}` may be the wrapper of DistributedDataParallel, and is no variable"
            self._decline(site, message, "put the model into a variable first")
        elif self._has_module(node, site):
            message = (
                f"`{site.module.text(node)}` has a part `module`, as DistributedDataParallel calls the model itself"
            )
            self._decline(site, message, "give the part another name")
        else:
            code = f'getattr({text}, "module", {text})'
            self._translation.replace(site.module, node, lambda _: cst.parse_expression(code))

    def _decline(self, site: Site, message: str, recipe: str) -> None:
        self._translation.decline(site.module, site.node, message, recipe, "distribution")

    # ---- which ------------------------------------------------------------------------------------------------------

    def _reads(self) -> Iterator[Site]:
        """Yield the expressions that can be a wrapped model."""
        for node, body, scope in self._program.nodes():
            if not isinstance(node, (ast.Name, ast.Attribute, ast.Subscript, ast.Call)):
                continue
            if not isinstance(getattr(node, "ctx", ast.Load()), ast.Load) or self._is_self(node, body):
                continue
            parent = scope.module.parents[node]
            if isinstance(parent, ast.Call) and node in parent.args and self._is_of_runtime(parent, scope.module):
                continue
            if isinstance(node, ast.Call) and self._program.callee_names(node, scope) & {f"{RUNTIME}.unwrap"}:
                continue  # the model itself
            if self._holds(node, scope):
                yield Site(scope.module, scope, body, node)

    def _holds(self, node: ast.expr, scope: object) -> bool:
        return bool(self._program.roles.modules(node, scope) & self._values)  # type: ignore[arg-type]

    def _is_self(self, node: ast.expr, body: ast.AST) -> bool:
        """Whether a name is what a method of a model is called on: the model itself."""
        info = self._program.function_of(body)
        while info is not None:
            if isinstance(node, ast.Name) and node.id == info.receiver:
                return True
            info = info.outer
        return is_super(node)

    def _is_of_runtime(self, call: ast.Call, module: object) -> bool:
        located = self._program.locate(call)
        return located is not None and any(
            name.startswith(f"{RUNTIME}.") for name in self._program.callee_names(call, located[1])
        )

    # ---- what is asked ----------------------------------------------------------------------------------------------

    def _asks_model(self, site: Site) -> bool:
        """Whether the wrapper cannot stand where the expression does."""
        node = site.node
        parent = site.module.parents[node]
        if isinstance(parent, ast.Attribute):
            return parent.attr not in _SAME_OF_WRAPPER or (parent.attr == "forward" and self._runs_alone(site))
        if isinstance(parent, ast.Call):
            return self._runs_alone(site) if node is parent.func else self._is_wanted_by(parent, site)
        if isinstance(parent, ast.keyword):
            call = site.module.parents[parent]
            return isinstance(call, ast.Call) and self._is_wanted_by(call, site)
        if isinstance(parent, ast.Subscript):
            return parent.value is node
        if isinstance(parent, (ast.For, ast.comprehension)):
            return parent.iter is node
        if isinstance(parent, ast.Compare):
            return any(isinstance(item, (ast.In, ast.NotIn)) for item in parent.ops) and parent.left is not node
        if isinstance(parent, ast.Assign):
            return any(isinstance(target, (ast.Tuple, ast.List)) for target in parent.targets)
        return isinstance(parent, ast.Starred)

    def _runs_alone(self, site: Site) -> bool:
        """Whether one process alone may run a forward pass, in which the wrapper would wait for the others."""
        return site.node in self._alone or site.body in self._called_alone

    def _of_one_process(self) -> tuple[set[ast.AST], set[ast.AST]]:
        """What stands under ``if amp.is_main_process():``, and the bodies that are called from there."""
        found: set[ast.AST] = set()
        for use in self._translation.uses_of("is_main_process", "rank", "local_rank"):
            for parent in use.module.ancestors(use.node):
                if isinstance(parent, ast.If) and use.node in set(walk(parent.test)):
                    found |= {node for item in [*parent.body, *parent.orelse] for node in walk(item)}
                elif isinstance(parent, ast.IfExp) and use.node in set(walk(parent.test)):
                    found |= {*walk(parent.body), *walk(parent.orelse)}
        return found, self._program.called_from(found)

    def _is_wanted_by(self, call: ast.Call, site: Site) -> bool:
        """Whether a function that is given the model must have the model itself."""
        if self._program.flow.callees(call):
            return False  # its own reads are looked at
        names = self._program.callee_names(call, site.scope)
        if names & {"builtins.isinstance", "builtins.issubclass"} or ast.unparse(call.func) == "isinstance":
            kinds = call.args[1] if len(call.args) > 1 else call
            found = {name for part in walk(kinds) for name in self._names(part, site)}
            return not found & _WRAPPERS
        if names & _WANT_MODEL:
            return True
        if names & (_TAKES_EITHER | RETURNS_FIRST_ARGUMENT | _WRAPPERS) or _is_plain(call):
            return False
        made = self._program.flow.values(call, site.scope)
        if self._program.flow.elements(made) & self._values:
            return False  # a record, which hands out what it was given
        if any(is_module(value) for value in made) and any(name.startswith("torch.nn.") for name in names):
            return False  # a model that calls this one
        return not (isinstance(call.func, ast.Attribute) and call.func.attr in _KEEPS and not names)

    def _names(self, node: ast.AST, site: Site) -> set[str]:
        return self._program.names(node, site.scope) if isinstance(node, (ast.Name, ast.Attribute)) else set()

    def _is_trained_through(self, site: Site) -> bool:
        """Whether what is asked of the model computes, in a training step, what its forward pass does not."""
        outer = self._asked(site)
        parent = site.module.parents[outer]
        if isinstance(parent, ast.Call) and parent.func is site.node:  # one process runs it
            return any(item.node in self._alone or item.body in self._called_alone for item in self._program.backwards)
        if isinstance(outer, ast.Attribute):
            if self._plain.computes_nothing(outer, site):
                return False
            if self._is_given(outer, parent) and self._plain.is_number(outer, site):
                return False
        if not isinstance(parent, (ast.Call, ast.For, ast.comprehension, ast.keyword)):
            return False
        if isinstance(parent, ast.Call) and parent.func is not outer and outer is site.node:
            # ``ema.update(model)`` gives nothing that a loss could be made of.
            if isinstance(site.module.parents[parent], ast.Expr):
                return False
            if self._program.callee_names(parent, site.scope) & COPIES_FIRST_ARGUMENT:
                return False
            if isinstance(parent.func, ast.Name) and parent.func.id in _LOOKS:
                return False
        elif isinstance(parent, ast.Call) and parent.func is outer and self._gives_no_tensor(parent, site):
            return False
        if not self._training.has(outer, site.body, site.module):
            return False
        return not isinstance(parent, ast.Call) or not self._unused.has(
            Site(site.module, site.scope, site.body, parent)
        )

    def _is_given(self, node: ast.expr, parent: ast.AST) -> bool:
        """Whether an expression is an argument: ``torch.zeros(2, model.size)``."""
        return isinstance(parent, ast.keyword) or (isinstance(parent, ast.Call) and parent.func is not node)

    def _gives_no_tensor(self, call: ast.Call, site: Site) -> bool:
        """Whether a method of the project runs no layer, or none with gradients."""
        callees = self._program.flow.callees(call)
        if callees and all(info.has_decorator("no_grad", "inference_mode") for info in callees):
            return True
        return bool(callees) and not self._program.runs_model(call)

    def _asked(self, site: Site) -> ast.expr:
        """The whole chain of attributes and items that is asked for: ``model.encoder.layers[0]``."""
        node = site.node
        assert isinstance(node, ast.expr)
        while isinstance(parent := site.module.parents[node], (ast.Attribute, ast.Subscript)) and parent.value is node:
            node = parent
        return node

    def _has_module(self, node: ast.expr, site: Site) -> bool:
        """Whether the model has an attribute of the name that its wrapper has for the model."""
        return any(
            "module" in self._program.flow.attribute_names.get(info.facts.node, set()) | info.facts.methods.keys()
            for value in self._program.flow.values(node, site.scope)
            if _is_instance(value)
            for info in value.ref.mro()
        )


def _is_instance(value: Value) -> bool:
    return value.kind == "instance"


def _is_path(node: ast.expr) -> bool:
    """Whether reading an expression twice gives the same: ``self.models["encoder"]``."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        if isinstance(node, ast.Subscript) and not isinstance(node.slice, (ast.Constant, ast.Name)):
            return False
        node = node.value
    return isinstance(node, ast.Name)


def _is_plain(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and f"builtins.{call.func.id}" in _TAKES_EITHER
