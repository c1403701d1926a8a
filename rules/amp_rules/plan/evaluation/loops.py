"""Which evaluations are shared out among the processes, and why others stay whole on every one."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from amp_rules.plan.evaluation.assignments import Reads, Unclear, names_in
from amp_rules.plan.evaluation.body import Body, Findings
from amp_rules.plan.evaluation.calls import Calls
from amp_rules.plan.evaluation.modes import check_modes
from amp_rules.plan.evaluation.uses import check_uses
from amp_rules.plan.training_loops import TrainingLoop, variable
from amp_rules.ranks.analysis import Ranks
from amp_rules.roles.kinds import is_loader_value
from amp_rules.roles.loaders import Loaders, LoaderUse
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.scopes import FunctionNode
from amp_rules.source.syntax import walk
from amp_rules.torch import evaluating

_MAX_CALLERS = 6
"""Callers of callers that are followed to the start of the program; evaluations are three or four deep."""


@dataclass(frozen=True)
class SharedLoop(Site):
    """A loop that each process runs over its own batches.

    Attributes:
        loader: the expression that holds the loader, where it becomes a part of it.
        found: what is put together behind the loop.
    """

    loader: ast.expr
    found: Findings

    @property
    def loop(self) -> ast.For:
        """The statement."""
        assert isinstance(self.node, ast.For)
        return self.node


@dataclass(frozen=True)
class WholeLoop(Site):
    """A loop that every process runs over all batches.

    Attributes:
        loader: what it iterates.
        why: what was not understood.
        unclear: where.
    """

    loader: ast.expr
    why: str
    unclear: ast.AST


class Evaluations:
    """The loops of a program that evaluate a model.

    Args:
        program: the program.
        evaluated: the loaders that are iterated outside of training loops.
        flagged: loops that train and evaluate.
        ranks: what differs between ranks.
        guarded: nodes that not all processes run.
        meeting: nodes where the processes meet already.
    """

    def __init__(
        self,
        program: Program,
        evaluated: list[LoaderUse],
        flagged: list[TrainingLoop],
        ranks: Ranks,
        guarded: set[ast.AST],
        meeting: set[ast.AST],
    ) -> None:
        self._program = program
        self._loaders = Loaders(program)
        self._calls = Calls(program)
        self._ranks = ranks
        self._guarded = guarded
        self._meeting = meeting
        self.shared: list[SharedLoop] = []
        self.whole: list[WholeLoop] = []
        trains = {loop.node for loop in flagged}
        for use in evaluated:
            self._decide(use, trains)
        self.shared.sort(key=lambda item: (str(item.module.path), item.line))

    def _decide(self, use: LoaderUse, trains: set[ast.AST]) -> None:
        loop = self._loop_of(use)
        if loop is None or loop.node in trains:
            return
        if any(loop.node is item.node for item in [*self.shared, *self.whole]):
            return
        inner = [node for item in getattr(loop.node, "body", []) for node in blocks.walk_own(item)]
        inner = inner or list(blocks.walk_own(loop.node))
        if any(map(self._program.runs_backward, inner)) or not any(map(self._program.runs_forward, inner)):
            return  # what looks at the data alone
        try:
            self.shared.append(self._read(use, loop))
        except Unclear as unclear:
            module = loop.module if unclear.node in loop.module.parents else self._program.module_of(unclear.node)
            where = unclear.node if module is loop.module else loop.node
            self.whole.append(WholeLoop(loop.module, loop.scope, loop.body, loop.node, use.loader, unclear.why, where))

    def _loop_of(self, use: LoaderUse) -> Site | None:
        """The loop, or the expression with a ``for`` of its own, that takes the batches of a loader."""
        site = Site(use.module, use.scope, use.body, use.node)
        for parent in use.module.ancestors(use.loader):
            if isinstance(parent, ast.comprehension):
                return Site(use.module, use.scope, use.body, use.module.parents[parent])
            if isinstance(parent, (ast.For, ast.AsyncFor)) and use.loader in set(walk(parent.iter)):
                return Site(use.module, use.scope, use.body, parent)
            if isinstance(parent, ast.stmt):
                break
        return self._by_variable(use, site)

    def _by_variable(self, use: LoaderUse, site: Site) -> Site | None:
        """The loop over a variable that is given the loader within a bar: ``bar = tqdm(loader)``."""
        statement = site.statement
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return None
        path = variable(statement.targets[0])
        where = blocks.place(use.module, statement)
        for item in where.suite[where.index + 1 :]:
            if isinstance(item, ast.For) and path is not None:
                if path in {variable(node) for node in ast.walk(item.iter)}:
                    return Site(use.module, use.scope, use.body, item)
        return None

    # ---- one loop ------------------------------------------------------------------------------------------

    def _read(self, use: LoaderUse, site: Site) -> SharedLoop:
        loop = site.node
        if not isinstance(loop, ast.For):
            raise Unclear(loop, "the loader is not iterated by a `for` statement")
        if loop.orelse:
            raise Unclear(loop, "the loop has an `else`")
        self._check_loader(use)
        self._check_comes_by(site, frozenset())
        check_modes(self._program, site)
        counters = self._counters(use, site)
        self._check_meets_nobody(loop)
        findings = Body(self._program, self._calls, site, counters).read()
        self._check_left(site, findings)
        check_uses(self._program, site, findings)
        return SharedLoop(site.module, site.scope, site.body, loop, use.loader, findings)

    def _check_loader(self, use: LoaderUse) -> None:
        text = use.module.text(use.loader)
        for value in use.values:
            if not is_loader_value(value):
                raise Unclear(use.loader, f"`{text}` is no DataLoader of torch")
            if value.kind == "instance" and value.ref.find_method("__iter__") is not None:
                raise Unclear(use.loader, f"`{text}` has an iteration of its own")
            call = value.site
            located = self._program.locate(call) if isinstance(call, ast.Call) else None
            if located is None or not isinstance(call, ast.Call):
                continue
            given = [*call.args[:1], *(item.value for item in call.keywords if item.arg == "dataset")]
            for data in (made for item in given for made in self._program.flow.values(item, located[1])):
                if data.kind == "instance" and any("IterableDataset" in name for name in data.ref.external_bases()):
                    raise Unclear(use.loader, f"`{text}` reads a stream, which cannot be split in advance")
                if "IterableDataset" in data.name:
                    raise Unclear(use.loader, f"`{text}` reads a stream, which cannot be split in advance")

    def _counters(self, use: LoaderUse, site: Site) -> set[str]:
        """The variables of the loop's head that count the rounds; what stands around the loader must be known."""
        loop = site.node
        assert isinstance(loop, ast.For)
        counters: set[str] = set()
        target: ast.expr = loop.target
        node: ast.expr = loop.iter
        while node is not use.loader:
            if isinstance(node, (ast.Name, ast.Attribute)) and use.loader not in set(walk(loop.iter)):
                node = self._assigned(use, variable(node), loop)
                continue
            names = self._program.callee_names(node, site.scope) if isinstance(node, ast.Call) else set()
            if not isinstance(node, ast.Call) or not names or not names <= evaluating.SINGLE:
                raise Unclear(loop.iter, f"it is not known how `{site.module.text(node)}` gives the batches")
            given = [*node.args[:1], *(item.value for item in node.keywords if item.arg == "iterable")]
            if not given:
                raise Unclear(loop.iter, f"it is not known how `{site.module.text(node)}` gives the batches")
            if "builtins.enumerate" in names:
                if not isinstance(target, ast.Tuple) or len(target.elts) != 2:
                    raise Unclear(loop, f"`{site.module.text(target)}` was not understood")
                counters |= names_in(target.elts[0])
                target = target.elts[1]
            node = given[0]
        return counters

    def _assigned(self, use: LoaderUse, path: str | None, loop: ast.For) -> ast.expr:
        """What a bar's variable is given, where the loop alone iterates it."""
        statement = blocks.statement_of(use.module, use.loader)
        assert isinstance(statement, ast.Assign)
        for node in self._program.nodes_of(use.body):
            if isinstance(node, (ast.Name, ast.Attribute)) and variable(node) == path and node not in set(walk(loop)):
                parent = use.module.parents[node]
                if node is not statement.targets[0] and not isinstance(parent, ast.Attribute):
                    raise Unclear(node, f"`{path}` is used elsewhere, too")
        return statement.value

    # ---- does every process come by ------------------------------------------------------------------------

    def _check_comes_by(self, site: Site, seen: frozenset[ast.AST]) -> None:
        """Every process must run the loop, and equally often: what follows it waits for all."""
        if site.node in self._guarded or site.body in self._guarded:
            raise Unclear(site.node, "the main process alone runs it")
        for origin in self._ranks.control_origins(site.node) | self._ranks.control_origins(site.statement):
            raise Unclear(site.node, f"whether it runs depends on `{origin.text}` of one process")
        info = self._program.function_of(site.body)
        if isinstance(site.body, ast.Lambda):
            raise Unclear(site.node, "it is not known when it runs")
        if info is None or site.body in seen:
            return
        callers = self._program.flow.callers(info)
        if not callers or len(seen) > _MAX_CALLERS:
            raise Unclear(site.node, f"it is not known where `{info.name}` is called")
        if info.is_generator:
            raise Unclear(site.node, f"`{info.name}` gives its results one by one")
        for caller in callers:
            self._check_comes_by(calling(caller), seen | {site.body})

    def _check_meets_nobody(self, loop: ast.For) -> None:
        """Within the loop no process may wait for another, which may have fewer batches."""
        inside = set(walk(loop))
        bodies = self._program.called_from(inside)
        for node in self._meeting:
            located = self._program.locate(node)
            if node in inside or (located is not None and located[0] in bodies):
                raise Unclear(node, "the processes synchronize within the loop")

    # ---- what is read behind the loop ----------------------------------------------------------------------

    def _check_left(self, site: Site, found: Findings) -> None:
        """What holds one batch's results must not be read behind the loop."""
        reads = Reads(found.left)
        around: list[ast.stmt] = [
            item for item in blocks.enclosing(site.module, site.node) if isinstance(item, blocks.LOOPS)
        ]
        for statement in [site.statement, *around]:
            following = [
                item for suite, index in blocks.suites_around(site.module, statement) for item in suite[index + 1 :]
            ]
            reads.run(following, set())
        for outer in around:  # the next round begins with what this one has left
            assigned = names_in(outer.target) if isinstance(outer, ast.For) else set()
            reads.run(getattr(outer, "body", []), assigned, until=site.statement)
        if reads.found:
            name = reads.found[0]
            raise Unclear(name, f"`{name.id}` is used after the loop, where it holds the last value of one process")
        self._check_others(site, found)

    def _check_others(self, site: Site, found: Findings) -> None:
        """No other function may read the loop's variables, as it may those of the file."""
        outside = {name for name in found.left if site.scope.owner(name).node is not site.scope.node} | (
            found.left if not site.scope.is_function else set()
        )
        inside = set(walk(site.node))
        called = self._program.called_from(inside)
        filled = {path.partition(".")[0] for path in (*found.sums, *found.lists, *found.meters)}
        for node, body, scope in self._program.nodes():
            if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
                continue
            if node.id in filled and body in called and scope.owner(node.id) is site.scope.owner(node.id):
                raise Unclear(node, f"`{node.id}` is used by a function that the loop calls")
            if node.id not in found.left:
                continue
            if body is site.body or node in inside or scope.module is not site.module:
                continue
            is_inner = isinstance(body, FunctionNode) and scope.owner(node.id).node is site.scope.node
            if is_inner or (node.id in outside and scope.owner(node.id) is site.scope.owner(node.id)):
                raise Unclear(node, f"`{node.id}` is also used elsewhere, where it holds the last value of one process")
