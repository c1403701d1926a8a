"""How a variable that the script makes at its start, or beside its optimizers, gets to the functions that use it.

It is in reach by Python's scoping, is passed from call to call, or is an attribute of the one object that uses it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from amp_rules.plain_torch.beside_optimizers import Origin, comes_first
from amp_rules.plain_torch.passing import Obstacle, Passing
from amp_rules.plain_torch.translation import Translation
from amp_rules.plain_torch.uses import Use, has_attribute
from amp_rules.plain_torch.ways import Way
from amp_rules.roles.kinds import is_module, is_optimizer
from amp_rules.source import blocks
from amp_rules.source.facts import ClassFacts, FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.resolver import names_of
from amp_rules.source.scopes import FunctionNode
from amp_rules.text.actions import AddParameter, Replace
from amp_rules.text.expression_edits import add_keyword


class Carried:
    """A variable on its way from the start to where it is used.

    Args:
        translation: the program.
        uses: where it is wanted.
        names: what it may be called, the best first.
        made: the template of its value.
        held_anywhere: whether an object may make it that is made at any time, and not only one that is the start.
        origins: where it would better be made than at the start, the best first.
    """

    def __init__(
        self,
        translation: Translation,
        uses: Sequence[Use],
        names: Sequence[str],
        made: str,
        *,
        held_anywhere: bool,
        origins: Sequence[Origin] = (),
    ) -> None:
        self._translation = translation
        self._program = translation.program
        self._passing = translation.part(Passing)
        self._uses = uses
        self._made = made
        start = translation.start
        self._origin = Origin(start.use.module, start.use.body) if start is not None else None
        self._made_beside = origins
        self.way = self._found(held_anywhere)
        self._move_to_optimizers()
        self.name = self._free(names)
        self._write()

    # ---- what others ask -------------------------------------------------------------------------------------------

    def at(self, use: Use) -> str:
        """The expression for it at one of its uses."""
        return self._expression(use.body)

    @property
    def line(self) -> str | None:
        """The template of the line that makes it at the start; None where an object makes it."""
        if not self._uses or (self.way.holder is not None and not self._is_made_at_start):
            return None
        if self._origin is not None and self._origin.statement is not None:
            return None
        return f"{self.at_start} = {self._made}"

    @property
    def at_start(self) -> str:
        """The expression for it where the script starts."""
        holder = self.way.holder
        return self.name if holder is None else f"{self._initializer(holder).receiver}.{self.name}"

    @property
    def _is_made_at_start(self) -> bool:
        return self.way.holder is not None and self._initializer(self.way.holder).node is self._start

    def _expression(self, body: ast.AST) -> str:
        receiver = self.way.bodies.get(body)
        return f"{receiver}.{self.name}" if receiver else self.name

    # ---- finding the way -------------------------------------------------------------------------------------------

    @property
    def _start(self) -> ast.AST | None:
        """The body that makes it, unless an object does."""
        return self._origin.body if self._origin is not None else None

    def _move_to_optimizers(self) -> None:
        """Have it made beside the optimizers, where that asks for no more parameters than making it at the start."""
        start, at_start = self._origin, self.way
        for origin in self._made_beside:
            self._origin = origin
            way = self._way(None)
            users: set[ast.AST] = {*way.calls, *(use.whole for use in self._uses)}
            is_short = bool(at_start.obstacles) or len(way.functions) <= len(at_start.functions)
            is_known = not way.obstacles and (not origin.is_by_calls or all(map(self._has_known_calls, way.bodies)))
            if is_known and is_short and comes_first(self._program, origin, users):
                self.way = way
                return
        self._origin = start

    def _has_known_calls(self, body: ast.AST) -> bool:
        """Whether all is known that runs a body, so that a statement can be seen to come before."""
        info = self._program.flow.functions.get(body)
        return body is self._start or (info is not None and not self._passing.obstacles(info))

    def _found(self, held_anywhere: bool) -> Way:
        plain = self._way(None)
        methods = [info for info in plain.functions if info.cls is not None]
        if methods or plain.obstacles:
            for holder in self._holders():
                way = self._way(holder)
                is_start = self._initializer(holder).node is self._start
                is_apart = (
                    is_start
                    or self._start is None
                    or self._start not in way.bodies
                    or way.bodies[self._start] is not None
                )
                if not way.obstacles and is_apart and (held_anywhere or is_start):
                    return way
        return plain

    def _way(self, holder: ClassFacts | None) -> Way:
        way = Way(holder)
        for use in self._uses:
            self._need(way, use.module, use.body, use.node)
        return way

    def _need(self, way: Way, module: Module, body: ast.AST, node: ast.AST) -> None:
        """Find how a body gets the variable."""
        if body in way.bodies:
            return
        way.bodies[body] = None
        info = self._program.flow.functions.get(body)
        if way.holder is not None and info is not None and self._passing.is_method_of(info, way.holder):
            way.bodies[body] = info.receiver
            return
        if body is self._start:
            return
        if self._start is None:
            self._stop(way, module, node, "it is not known where the script starts", "call `amp.init` at one place")
            return
        outer = _enclosing(module, body)
        if outer is not None:
            self._need(way, module, outer, node)
            way.bodies[body] = way.bodies[outer]
            return
        if info is None and isinstance(body, FunctionNode):
            message = "nothing in the program runs this, so nothing can give it the scaler"
            self._stop(way, module, node, message, "take it out if it is not used any more, or --target runtime")
            return
        if info is None:
            message = "the file runs this when it is imported, before the script makes the scaler"
            self._stop(way, module, node, message, "move it into a function that is given the scaler")
            return
        if self._is_global(module) and self._reads_trained_global(info):
            return
        tried = way.copy()
        self._pass_to(tried, info)
        new = [item for item in tried.obstacles if item not in way.obstacles]
        if new and self._is_global(module):
            return
        way.functions, way.calls, way.bodies, way.obstacles = (
            tried.functions,
            tried.calls,
            tried.bodies,
            tried.obstacles,
        )

    def _pass_to(self, way: Way, info: FunctionFacts) -> None:
        """Have a function get it as a parameter, from all its callers."""
        obstacles = self._passing.obstacles(info)
        if obstacles:
            way.obstacles.update(dict.fromkeys(obstacles))
            return
        way.functions[info] = None
        for caller in self._program.flow.callers(info):
            way.calls[caller.call] = caller
            module = caller.scope.module
            self._need(way, module, blocks.body_of(module, caller.call), caller.call)

    def _stop(self, way: Way, module: Module, node: ast.AST, message: str, recipe: str) -> None:
        way.obstacles[Obstacle(module, node, message, recipe)] = None

    def _is_global(self, module: Module) -> bool:
        """Whether the variable is one of the file's own level there."""
        return self._origin is not None and isinstance(self._start, ast.Module) and module is self._origin.module

    def _reads_trained_global(self, info: FunctionFacts) -> bool:
        """Whether a function reads the optimizer or the model from the file's own level."""
        module = info.module.module
        for node in info.nodes:
            if not (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)):
                continue
            scope = self._program.flow.scopes.get(blocks.body_of(module, node))
            if scope is None or scope.owner(node.id) is not scope.top:
                continue
            made = [value for value in self._program.flow.values(node, scope) if value.kind in ("object", "instance")]
            if any(is_optimizer(value) or is_module(value) for value in made):
                return True
        return False

    # ---- objects that hold it --------------------------------------------------------------------------------------

    def _holders(self) -> list[ClassFacts]:
        """Classes whose objects could hold it: those of the methods that use it, the most general first."""
        found: dict[ClassFacts, None] = {}
        for use in self._uses:
            method = self._method_around(use)
            if method is not None and method.cls is not None:
                found[method.cls] = None
        lineage = {cls: self._passing.lineage(cls) for cls in found}
        tops = [cls for cls in found if not any(other is not cls and other in lineage[cls] for other in found)]
        shared = [base for base in lineage[tops[0]] if all(base in lineage[cls] for cls in tops)] if tops else []
        return [cls for cls in dict.fromkeys([*tops, *shared]) if self._passing.can_hold(cls)]

    def _method_around(self, use: Use) -> FunctionFacts | None:
        for node in [use.body, *use.module.ancestors(use.body)] if not isinstance(use.body, ast.Module) else ():
            info = self._program.flow.functions.get(node)
            if info is not None and info.cls is not None:
                return info
        return None

    def _initializer(self, holder: ClassFacts) -> FunctionFacts:
        found = self._passing.initializer(holder)
        assert found is not None
        return found

    # ---- writing ---------------------------------------------------------------------------------------------------

    def _free(self, names: Sequence[str]) -> str:
        modules = self._modules()
        taken = {name for module in modules for name in names if names_of(module).is_taken(name)}
        if self.way.holder is not None:
            taken |= {name for module in self._program.flow.modules for name in names if has_attribute(module, name)}
        candidates = [*names, *(f"{names[-1]}_{number}" for number in range(2, 100))]
        return next(name for name in candidates if name not in taken)

    def _modules(self) -> Iterable[Module]:
        found = {use.module: None for use in self._uses}
        found |= {site.scope.module: None for site in self.way.calls.values()}
        if self._origin is not None:
            found[self._origin.module] = None
        return found

    def _write(self) -> None:
        for obstacle in self.way.obstacles:
            self._translation.decline(obstacle.module, obstacle.node, obstacle.message, obstacle.recipe, "precision")
        if self.way.obstacles or not self._uses:
            return
        for info in self.way.functions:
            assert isinstance(info.node, (ast.FunctionDef, ast.AsyncFunctionDef))
            self._translation.do(
                info.module.module,
                AddParameter(info.node, self.name, before_defaults=self._passing.leaves_defaults(info)),
            )
        for call, site in self.way.calls.items():
            module = site.scope.module
            given = self._expression(blocks.body_of(module, call))
            self._translation.do(module, Replace(call, add_keyword(f"{self.name}={given}")))
        if self.way.holder is not None and self.line is None:
            self._make_in(self._initializer(self.way.holder))
        elif self._origin is not None and self._origin.statement is not None:
            code = f"{self.name} = {self._made}"
            self._translation.insert(self._origin.module, self._origin.statement, code, after=True)

    def _make_in(self, initializer: FunctionFacts) -> None:
        """Make it below the optimizer in ``__init__``, else at the end, or before what uses it there."""
        module = initializer.module.module
        users = set(self.way.calls) | {use.node for use in self._uses}
        uses = self._program.closure(lambda node: node in users)
        body = initializer.body
        code = f"{initializer.receiver}.{self.name} = {self._made}"
        beside = {origin.statement for origin in self._made_beside if origin.body is initializer.node}
        for statement in body:
            if isinstance(statement, ast.Return) or uses(statement):
                self._translation.insert(module, statement, code)
                return
            if statement in beside:
                self._translation.insert(module, statement, code, after=True)
                return
        self._translation.insert(module, body[-1], code, after=True)


def _enclosing(module: Module, body: ast.AST) -> ast.AST | None:
    """The function that a function is defined in, by whose variables it can see."""
    if isinstance(body, ast.Module):
        return None
    return next((node for node in module.ancestors(body) if isinstance(node, FunctionNode)), None)
