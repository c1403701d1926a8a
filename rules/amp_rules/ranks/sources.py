"""Calls that give each rank something of its own."""

from __future__ import annotations

import ast
from functools import cached_property

from amp_rules.ranks.frames import Frame
from amp_rules.ranks.origins import NOWHERE, Kind, Origin, Origins
from amp_rules.ranks.world import World
from amp_rules.roles.environments import environment_of, makes_environment
from amp_rules.roles.kinds import is_module
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.drawn_samples import draws_samples
from amp_rules.source.resolver import names_of
from amp_rules.source.syntax import is_none
from amp_rules.torch.file_access import COMMANDS, TEMPORARY
from amp_rules.torch.replication import (
    CLOCKS,
    DRAWING_METHODS,
    DRAWS,
    DROPOUT,
    ENTROPY,
    GENERATORS,
    NOT_DRAWN,
    OF_A_TIME,
    PIPES,
    PROCESS,
)

GIVE_CONTENTS = COMMANDS | {"builtins.open"}
"""Calls that give what is in a file, and not what it is called."""


class Sources:
    """Questions about calls of libraries."""

    def __init__(self, world: World) -> None:
        self._world = world

    @cached_property
    def _environment(self) -> Site | None:
        """An environment of a program that has pipes to other processes."""
        return environment_of(self._world.program) if self._world.program.calls_to(PIPES) else None

    def of(self, names: set[str], call: ast.Call, frame: Frame, given: Origins) -> Origins | None:
        """What makes the result of a function local by itself; None where it is no source."""
        for name in sorted(names):
            kind = self._kind(name, call, frame)
            if kind is not None:
                return self._world.origin(kind, frame.scope.module, call) | given
        return self.dropout(call, frame) or None

    def _kind(self, name: str, call: ast.Call, frame: Frame) -> Kind | None:
        if name in CLOCKS and not _is_of_a_given_time(name, call):
            return Kind.CLOCK
        if name in PROCESS:
            return Kind.PROCESS
        if name in ENTROPY or (name in GENERATORS and not has_seed(call)):
            return None if call in self._world.setting.alike else Kind.GENERATOR
        if name in GENERATORS:
            return None
        if makes_environment(name):
            return Kind.ENVIRONMENT
        if not frame.state.apart or name in NOT_DRAWN or any(item.arg == "generator" for item in call.keywords):
            return None
        if not frame.state.training and _is_of_training(call, frame):
            return None
        if name.startswith(DROPOUT):
            return Kind.DRAW if self._drops(call, frame) else None
        if name.startswith(DRAWS) and not name.startswith(("random.seed", "torch.random.")):
            return Kind.DRAW
        if draws_samples({name}, call):
            return Kind.DRAW
        return None

    def _drops(self, call: ast.Call, frame: Frame) -> bool:
        """Whether a functional dropout draws now: ``training=self.training`` follows the mode of the model."""
        for item in call.keywords:
            if item.arg == "training":
                if isinstance(item.value, ast.Constant):
                    return bool(item.value.value)
                return frame.state.training
        return len(call.args) < 3 or frame.state.training

    def of_method(self, function: ast.Attribute, call: ast.Call, frame: Frame) -> Origins:
        """What makes the result of a method local by itself."""
        if function.attr == "recv" and not call.args and self._environment is not None:
            # Environments run in processes of their own, and send through pipes what they give.
            return self._world.origin(Kind.ENVIRONMENT, self._environment.module, self._environment.node)
        if not frame.state.apart or any(item.arg == "generator" for item in call.keywords):
            return NOWHERE
        is_sample = function.attr == "sample" and any(
            value.kind == "object" and str(value.ref).startswith("torch.distributions.")
            for value in self._world.flow.values(function.value, frame.scope)
        )
        if function.attr not in DRAWING_METHODS and not is_sample:
            return NOWHERE
        return self._world.origin(Kind.DRAW, frame.scope.module, call)

    def dropout(self, call: ast.Call, frame: Frame) -> Origins:
        """The mask that a model of a library draws in training mode."""
        if not (frame.state.apart and frame.state.training and self._world.setting.has_dropout):
            return NOWHERE
        targets = self._world.flow.values(call.func, frame.scope)
        if not any(value.kind == "object" and is_module(value) and _may_drop(str(value.ref)) for value in targets):
            return NOWHERE
        return self._world.origin(Kind.DRAW, frame.scope.module, call)


def _is_of_training(call: ast.Call, frame: Frame) -> bool:
    """Whether a call stands below ``if self.training:``, where no model in evaluation mode comes."""
    inner: ast.AST = call
    for around in frame.scope.module.ancestors(call):
        if isinstance(around, ast.If) and blocks.path_of(around.test) == "self.training" and inner in around.body:
            return True
        inner = around
    return False


def _may_drop(name: str) -> bool:
    """Whether an object made by a constructor may draw dropout masks: containers, recurrent nets, models."""
    if not name.startswith("torch.nn."):
        return True
    last = name.rpartition(".")[2]
    return "Drop" in last or last in ("Sequential", "ModuleList", "LSTM", "GRU", "RNN") or "Transformer" in last


def has_seed(call: ast.Call) -> bool:
    """Whether a generator is given a seed."""
    given = [*call.args, *(item.value for item in call.keywords)]
    return any(not is_none(item) for item in given)


def _is_of_a_given_time(name: str, call: ast.Call) -> bool:
    """Whether a function is given the time that it writes: ``np.datetime64(day)``, but not ``np.datetime64("now")``."""
    if name not in OF_A_TIME or not call.args:
        return False
    given = call.args[0]
    return not isinstance(given, ast.Constant) or given.value not in ("now", "today")


def names_temporary(origin: Origin) -> bool:
    """Whether something differs because each process has a temporary file of its own."""
    return isinstance(origin.node, ast.Call) and names_of(origin.module).dotted(origin.node.func) in TEMPORARY
