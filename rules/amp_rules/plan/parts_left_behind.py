"""Parameters that stay on the CPU where other parts of their model move themselves to a GPU."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.values import ClassInfo, Value
from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.plan.model_parts import trained_classes
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import keyword, literal
from amp_rules.source.modules import Module
from amp_rules.source.syntax import own_name, walk
from amp_rules.torch.devices import DEFAULT_DEVICE, DEVICE, MOVING_MODELS
from amp_rules.torch.functions import PARAMETER_MAKERS
from amp_rules.torch.wrappers import DATA_PARALLEL

_TO_GPU = MOVING_MODELS - {"cpu"}


def reasons(program: Program) -> Iterator[Declined]:
    """Yield the first such parameter; where anything may move a model as a whole, there is none."""
    if not any("cuda" in module.source.text for module in program.flow.modules):
        return
    classes = [info for info in trained_classes(program) if isinstance(info, ClassInfo)]
    left = next(_left(program, classes), None)
    if left is None:
        return
    moved = next(_moved_parts(program, classes), None)
    if moved is None:
        return
    idle: list[Site] = []
    for call, body, scope in program.calls():
        name = own_name(call.func)
        site = Site(scope.module, scope, body, call)
        if name in DEFAULT_DEVICE or program.callee_names(call, scope) & DATA_PARALLEL or _is_unknown(program, site):
            return
        if not isinstance(call.func, ast.Attribute) or name not in _TO_GPU or not _may_be_whole(program, site):
            continue
        test = _never_true(program, site)
        if test is None:
            return
        idle.append(Site(scope.module, scope, body, test))
    text = f"`{left.module.text(left.node)}` stays on the CPU, and `{moved.module.text(moved.node)}` (line "
    text += f"{moved.told_line} of {moved.module.path.name}) moves another part of the model"
    if idle:
        text += f"; `{idle[0].module.text(idle[0].node)}` (line {idle[0].told_line} of {idle[0].module.path.name}) is "
        text += "never true, since a device equals no text"
    yield declining.decline(
        declining.GRADIENTS_OUTSIDE,
        left.module,
        left.node,
        f"{text}: on GPUs, DistributedDataParallel refuses parameters on two devices",
        "move the model as a whole, `model.to(device)`, before its optimizer is made",
    )


def _in_constructors(program: Program, classes: list[ClassInfo]) -> Iterator[Site]:
    """The calls in the constructors of models, by file and line."""
    bodies = {info.facts.methods["__init__"].node for info in classes if "__init__" in info.facts.methods}
    for call, body, scope in program.calls():
        if body in bodies:
            yield Site(scope.module, scope, body, call)


def _left(program: Program, classes: list[ClassInfo]) -> Iterator[Site]:
    """Attributes that get a parameter made on the CPU: ``self.scale = nn.Parameter(torch.ones(4))``."""
    for site in _in_constructors(program, classes):
        call = site.node
        assert isinstance(call, ast.Call)
        statement = site.module.parents.get(call)
        if not isinstance(statement, ast.Assign) or not program.callee_names(call, site.scope) & PARAMETER_MAKERS:
            continue
        if literal(keyword(call, "requires_grad")) is False:
            continue
        if call.args and _is_made_here(call.args[0], program, site):
            yield site


def _is_made_here(node: ast.expr, program: Program, site: Site) -> bool:
    """Whether functions of torch alone make a tensor, on no other device."""
    for part in walk(node):
        if isinstance(part, ast.Call):
            names = program.callee_names(part, site.scope)
            if not names or not all(name.startswith("torch.") for name in names):
                return False
            if keyword(part, "device") is not None:
                return False
    return isinstance(node, ast.Call)


def _moved_parts(program: Program, classes: list[ClassInfo]) -> Iterator[Site]:
    """Where a constructor moves a layer that it makes: ``nn.Linear(4, 2).to(device)``."""
    for site in _in_constructors(program, classes):
        call = site.node
        assert isinstance(call, ast.Call)
        method = call.func
        if not isinstance(method, ast.Attribute) or method.attr not in _TO_GPU:
            continue
        if any(literal(item) == "cpu" for item in call.args) or not isinstance(method.value, ast.Call):
            continue
        if _modules(program, method.value, site):
            yield site


def _modules(program: Program, node: ast.expr, site: Site) -> set[Value]:
    return program.roles.modules(node, site.scope)


def _may_be_whole(program: Program, site: Site) -> bool:
    """Whether a call may move a trained model: ``model.cuda()``, ``self.to(device)``; not a part of one where made."""
    method = site.node.func  # type: ignore[attr-defined]
    if program.is_model_code(site.body):
        return blocks.path_of(method.value) == "self"
    return bool(_modules(program, method.value, site))


def _is_unknown(program: Program, site: Site) -> bool:
    """Whether a call gives a model to what is not known: ``prepare(model)``."""
    call = site.node
    assert isinstance(call, ast.Call)
    if (
        program.callee_names(call, site.scope)
        or program.flow.callees(call)
        or program.flow.values(call.func, site.scope)
    ):
        return False
    return any(_modules(program, item, site) for item in call.args)


def _never_true(program: Program, site: Site) -> ast.expr | None:
    """The condition of a branch around a place that no run takes: ``device == "cuda"`` of a ``torch.device``."""
    inner: ast.AST = site.node
    for around in blocks.enclosing(site.module, site.node):
        if isinstance(around, ast.If) and _is_within(site.module, inner, around.body):
            test = around.test
            if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
                pair = (test.left, test.comparators[0])
                if any(isinstance(literal(item), str) for item in pair) and any(
                    _is_device(program, item, site) for item in pair
                ):
                    return test
        inner = around
    return None


def _is_within(module: Module, node: ast.AST, suite: list[ast.stmt]) -> bool:
    statement = node if isinstance(node, ast.stmt) else blocks.statement_of(module, node)
    return any(item is statement for item in suite)


def _is_device(program: Program, node: ast.expr, site: Site) -> bool:
    values = program.flow.values(node, site.scope)
    return bool(values) and all(value.kind == "object" and value.name == DEVICE for value in values)
