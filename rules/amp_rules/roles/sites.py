"""Places in a program that rules ask about: calls, backward passes and optimizer steps."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from amp_rules.flow.values import CallSite
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope


@dataclass(frozen=True)
class Site:
    """A node of interest and where it stands."""

    module: Module
    scope: Scope
    body: ast.AST
    node: ast.AST

    @property
    def statement(self) -> ast.stmt:
        """The statement that the node is in."""
        return blocks.statement_of(self.module, self.node)

    @property
    def line(self) -> int:
        """The line that it begins on."""
        return int(getattr(self.node, "lineno", 1))

    @property
    def told_line(self) -> int:
        """That line as a sentence names it: in the file on disk."""
        return self.module.line_on_disk(self.line)


@dataclass(frozen=True)
class Backward(Site):
    """``loss.backward()`` or ``torch.autograd.backward(loss)``.

    ``is_scaled`` says that a scaler is called there already: ``scaler.scale(loss).backward()``.
    """

    call: ast.Call
    loss: ast.expr
    is_scaled: bool = False


@dataclass(frozen=True)
class Step(Site):
    """``optimizer.step()``."""

    call: ast.Call
    optimizer: ast.expr


@dataclass(frozen=True)
class Apart:
    """One step that stays as it is: its optimizer trains models that no other one does, within its closure alone.

    Nothing of it has to do with the loss scale, as of an LBFGS probe of features beside the training.

    Attributes:
        step: the step.
        backwards: the backward passes of its closure.
        closures: the closures, where they set the gradients themselves and run no backward pass.
    """

    step: Step
    backwards: tuple[Backward, ...]
    closures: tuple[ast.AST, ...] = ()


def calling(caller: CallSite) -> Site:
    """A call of a function of the project, as a site."""
    module = caller.scope.module
    return Site(module, caller.scope, blocks.body_of(module, caller.call), caller.call)


def closure_of(step: Step) -> ast.expr | None:
    """``closure`` of ``optimizer.step(closure)``."""
    call = step.call
    if step.optimizer in call.args or len(call.args) + len(call.keywords) != 1:
        return None
    return call.args[0] if call.args else call.keywords[0].value
