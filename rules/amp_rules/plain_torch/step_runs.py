"""What runs around a backward pass: its function, and methods of the same object that stand beside its call.

Trainers have ``forward``, ``backward_G`` and ``optimize_parameters``, which calls both. What one method leaves in an
attribute for the other is seen where their bodies are read as if they stood in the place of the calls.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from amp_rules.roles.program import Program
from amp_rules.roles.sites import Backward, Site, calling
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts

_MAX_DEPTH = 4
"""Methods that call each other, looked into."""

Key = tuple[tuple[int, int], ...]
Path = tuple[object, str]
"""A variable: where it is known, and its path."""


@dataclass(frozen=True, eq=False)
class Frame:
    """A body that runs.

    Attributes:
        site: the body, by any node of it.
        call: what runs it, in the frame outside of it.
        outer: that frame.
    """

    site: Site
    call: ast.Call | None = None
    outer: Frame | None = None

    def key(self, place: tuple[int, int]) -> Key:
        """A place of the body, in the order in which everything runs."""
        if self.outer is None or self.call is None:
            return (place,)
        return (*self.outer.key(self.outer.site.module.start(self.call)), place)

    def start(self, node: ast.AST) -> Key:
        """Where a node of the body starts."""
        return self.key(self.site.module.start(node))

    def end(self, node: ast.AST) -> Key:
        """Where a node of the body ends."""
        return self.key(self.site.module.end(node))

    def around(self, node: ast.AST) -> list[tuple[Frame, ast.stmt]]:
        """The statements around a node of the body and around what runs it, the nearest first."""
        found = [(self, item) for item in blocks.enclosing(self.site.module, node)]
        if self.outer is not None and self.call is not None:
            found += self.outer.around(self.outer.site.module.parents[self.call])
        return found


class StepRun:
    """What runs around one backward pass.

    Attributes:
        frames: the bodies, as often as they run.
        own: that of the backward pass.
    """

    def __init__(self, program: Program, backward: Backward) -> None:
        self._program = program
        self._backward = backward
        self.inlined: set[ast.Call] = set()
        self.frames = [*self._within(Frame(self._root(backward)), 0)]
        mine = [frame for frame in self.frames if frame.site.body is backward.body]
        if len(mine) != 1:
            self.inlined = set()
            mine = self.frames = [Frame(backward)]
        self.own = mine[0]

    # ---- variables -------------------------------------------------------------------------------------------------

    def variables(self, frame: Frame, paths: set[str]) -> set[Path]:
        """Paths of a frame, with where they are known."""
        return {(self._known_in(frame, path), path) for path in paths}

    def paths(self, frame: Frame, variables: set[Path]) -> set[str]:
        """Those of the variables that a frame knows, as it calls them."""
        return {path for known, path in variables if self._known_in(frame, path) == known}

    def _known_in(self, frame: Frame, path: str) -> object:
        """The frame itself for a variable of a function; what the object is for its attributes."""
        root = path.partition(".")[0].partition("[")[0]
        if root == self._receiver:
            return "object"
        return frame if frame.site.scope.owner(root).node is frame.site.body else "module"

    @cached_property
    def _receiver(self) -> str | None:
        info = self._program.function_of(self._backward.body)
        return info.receiver if info is not None else None

    # ---- bodies ----------------------------------------------------------------------------------------------------

    def _root(self, site: Site) -> Site:
        """The method that is run around a backward pass by calls of the object's own methods alone."""
        for _ in range(_MAX_DEPTH):
            info = self._program.function_of(site.body)
            callers = self._program.flow.callers(info) if info is not None else []
            caller = calling(callers[0]) if len(callers) == 1 else None
            if caller is None or not isinstance(caller.node, ast.Call) or self._method(caller) is not info:
                break
            site = caller
        return site

    def _within(self, frame: Frame, depth: int) -> Iterator[Frame]:
        """Yield a frame, and those of the methods that it runs."""
        yield frame
        if depth >= _MAX_DEPTH:
            return
        site = frame.site
        for node in self._program.nodes_of(site.body):
            if isinstance(node, ast.Call):
                call = Site(site.module, site.scope, site.body, node)
                info = self._method(call)
                scope = self._program.flow.scopes.get(info.node) if info is not None else None
                if info is not None and scope is not None:
                    self.inlined.add(node)
                    yield from self._within(
                        Frame(Site(scope.module, scope, info.node, info.node), node, frame), depth + 1
                    )

    def _method(self, site: Site) -> FunctionFacts | None:
        """The method of the same object that ``self.method()`` runs, on a line of its own and with nothing given."""
        call = site.node
        assert isinstance(call, ast.Call)
        caller = self._program.function_of(site.body)
        callees = self._program.flow.callees(call)
        if (
            caller is None
            or len(callees) != 1
            or call.args
            or call.keywords
            or not isinstance(call.func, ast.Attribute)
        ):
            return None
        (info,) = callees
        is_own = (
            isinstance(call.func.value, ast.Name)
            and call.func.value.id == caller.receiver == info.receiver == self._receiver
            and isinstance(site.module.parents[call], ast.Expr)
        )
        is_plain = isinstance(info.node, ast.FunctionDef) and not any(
            isinstance(node, (ast.Yield, ast.YieldFrom, ast.Return)) for node in self._program.nodes_of(info.node)
        )
        return info if is_own and is_plain and info.node is not site.body else None
