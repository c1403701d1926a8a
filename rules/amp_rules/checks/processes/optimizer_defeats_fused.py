"""Optimizers that are kept from stepping many parameters at once."""

from __future__ import annotations

import ast

from amp_rules.lint.check import Check, LintedFile
from amp_rules.source.facts import ModuleFacts
from amp_rules.source.index import FileIndex, keyword, literal
from amp_rules.source.syntax import last_name, spelling

_EACH = frozenset({"parameters", "named_parameters"})


class OptimizerDefeatsFused(Check):
    """Optimizers that are kept from stepping many parameters at once.

    ## What it does

    Finds parameter groups of one parameter each (`{"params": [p], ...}` for each `p` of a model), and
    `foreach=False` where no fused kernel is asked for.

    ## Why

    Fused and foreach optimizers, torch's as well as Apex's, take a few kernels per parameter group, whatever number
    of tensors is in it. One group per parameter brings them back to a few kernels per tensor: for 161 tensors in 2
    groups AdamW's foreach path makes about 13 calls for each group, 26 in all; in 161 groups it makes 2093. With
    half precision, in which the rest of a step is short, that is often a quarter of the step.

    ## Example

        groups = []
        for name, p in model.named_parameters():
            groups.append({"params": [p], "weight_decay": 0.0 if p.ndim < 2 else 0.1})
        optimizer = torch.optim.AdamW(groups)

    ## Use instead

        decay = [p for p in model.parameters() if p.ndim >= 2]
        rest = [p for p in model.parameters() if p.ndim < 2]
        optimizer = torch.optim.AdamW(
            [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        )

    ## When it is silent

    When the groups hold more than one parameter, when they are not made in a loop over the parameters of a model, and
    when the file merges groups with equal options.

    ## Source

    https://pytorch.org/docs/stable/optim.html#algorithms
    """

    code = "AMP953"
    name = "optimizer-defeats-fused"
    severity = "performance"
    message = "Groups of one parameter each keep an optimizer from stepping many at once."
    advice = "Put the parameters with equal options into one group."
    triggers = ('"params":', "'params':", "params=[", "foreach=False")

    def visit_module(self, file: LintedFile) -> None:
        """Look at the groups and at the options of optimizers."""
        module = file.module
        index = module.index
        if any(
            word.startswith(("reduce_param_groups", "merge_param_groups", "merge_groups", "ContiguousParams"))
            for word in index.words
        ):
            return
        for call in index.calls:
            if literal(keyword(call, "foreach")) is False and _is_torch_optimizer(module, call):
                if literal(keyword(call, "fused")) is not True and keyword(call, "differentiable") is None:
                    node = keyword(call, "foreach")
                    assert node is not None
                    advice = "Leave it out: torch takes the foreach kernels on a GPU by itself."
                    self.report_in(file, node, "`foreach=False` steps the parameters one by one", advice=advice)
            elif last_name(call.func) == "dict" and keyword(call, "params") is not None:
                self._judge(file, call, keyword(call, "params"))
        for node in _dicts(index):
            for key, value in zip(node.keys, node.values, strict=True):
                if literal(key) == "params":
                    self._judge(file, node, value)

    def _judge(self, file: LintedFile, group: ast.expr, value: ast.expr | None) -> None:
        """Judge one group."""
        module = file.module
        index = module.index
        name = (
            spelling(value.elts[0])
            if isinstance(value, ast.List) and len(value.elts) == 1
            else spelling(value or group)
        )
        if name is None or not _is_each_parameter(index, group, name) or not _is_collected(index, group):
            return
        self.report_in(file, group, f"Each group holds the one parameter `{name}`, so each takes its own kernel launch")


def _dicts(index: FileIndex) -> list[ast.Dict]:
    return [node for node in index.parents if isinstance(node, ast.Dict)]


def _is_torch_optimizer(module: ModuleFacts, call: ast.Call) -> bool:
    return (module.dotted(call.func) or "").startswith("torch.optim.")


def _is_each_parameter(index: FileIndex, node: ast.AST, name: str) -> bool:
    """Whether a name stands for one parameter of a model after the other around a node."""
    for item in index.ancestors(node):
        generators = getattr(item, "generators", None)
        turns = [(part.target, part.iter) for part in generators] if generators else []
        if isinstance(item, ast.For):
            turns.append((item.target, item.iter))
        for target, iterated in turns:
            names = [part.id for part in ast.walk(target) if isinstance(part, ast.Name)]
            if names and names[-1] == name and _goes_through_parameters(index, iterated):
                return True
        if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return False
    return False


def _goes_through_parameters(index: FileIndex, node: ast.expr) -> bool:
    values = [node, *(index.values_of(node) if isinstance(node, ast.Name) else [])]
    for value in values:
        for item in ast.walk(value):
            if isinstance(item, ast.Call) and last_name(item.func) in _EACH:
                return True
    return False


def _is_collected(index: FileIndex, node: ast.AST) -> bool:
    """Whether the groups are gathered in a list, and not one by one given more parameters."""
    for item in index.ancestors(node):
        if isinstance(item, (ast.ListComp, ast.GeneratorExp, ast.AugAssign)):
            return True
        if isinstance(item, ast.Call) and last_name(item.func) in ("append", "add_param_group", "extend"):
            return True
        if isinstance(item, ast.stmt):
            return isinstance(item, ast.Assign) and _is_appended(index, item)
    return False


def _is_appended(index: FileIndex, statement: ast.Assign) -> bool:
    """``group = {...}``, then ``groups.append(group)``."""
    name = spelling(statement.targets[0])
    return any(
        call.args and spelling(call.args[0]) == name and index.scope(call) is index.scope(statement)
        for call in index.named.get("append", ())
    )
