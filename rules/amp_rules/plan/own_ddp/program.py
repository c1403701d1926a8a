"""What the rewrites of a script's own processes are given: its group, its ranks, their files and data, what is told."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import cached_property

from amp_rules.checks.common.file_writes import Access, access_of, is_shared
from amp_rules.checks.common.rank_branches import names_rank
from amp_rules.flow.values import Value
from amp_rules.plan import notes
from amp_rules.plan.batch_norms import BatchNorms
from amp_rules.plan.file_names import place_of
from amp_rules.plan.options import Options
from amp_rules.plan.own_ddp.named_by_rank import NamedByRank
from amp_rules.plan.own_ddp.named_by_samples import is_named_by_samples
from amp_rules.plan.own_ddp.ranks import ReachOfRanks
from amp_rules.plan.own_ddp.waiting import Waiting
from amp_rules.plan.report import Note
from amp_rules.plan.rule import Rule
from amp_rules.plan.words import Words
from amp_rules.roles.absent import never_runs
from amp_rules.roles.batches import DataFlow, TrainingData
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.torch.apex import ALL_WRAPPERS
from amp_rules.torch.wrappers import DISTRIBUTED_DATA_PARALLEL


@dataclass
class OwnDdp(ReachOfRanks):
    """One program that joins a process group of torch itself.

    Attributes:
        program: the program, as the round before left it.
        options: what was asked for.
        modules: those of its files that may be changed.
        told: what was left as it is, and why.
    """

    options: Options
    modules: frozenset[Module]
    told: list[Note] = field(default_factory=list)

    # ---- the processes -------------------------------------------------------------------------------------------

    @cached_property
    def wraps(self) -> list[Site]:
        """The calls of ``DistributedDataParallel``, torch's and Apex's, which the runtime has."""
        wrappers = DISTRIBUTED_DATA_PARALLEL | ALL_WRAPPERS
        return [site for site in self.program.calls_to(wrappers) if site.module in self.modules]

    @cached_property
    def waiting(self) -> Waiting:
        """Which calls wait for all processes."""
        return Waiting(self)

    @cached_property
    def put_into(self) -> dict[str, list[tuple[ast.expr, Site]]]:
        """What is put into elements of containers, and where, by the path of the container."""
        found: dict[str, list[tuple[ast.expr, Site]]] = {}
        for node, body, scope in self.program.nodes():
            for target in node.targets if isinstance(node, ast.Assign) else ():
                path = blocks.path_of(target.value) if isinstance(target, ast.Subscript) else None
                if path is not None and isinstance(node, ast.Assign):
                    found.setdefault(path, []).append((node.value, Site(scope.module, scope, body, node)))
        return found

    # ---- files ---------------------------------------------------------------------------------------------------

    def saves(self, module: Module, call: ast.Call) -> bool:
        """Whether a call of a library writes a file or takes one away, as far as its name says."""
        access = access_of(self.facts(module), call)
        return access is not None and access.kind in ("write", "remove")

    def is_own_file(self, module: Module, call: ast.Call) -> bool:
        """Whether a call changes a file of its process alone: its rank is in the path."""
        access = access_of(self.facts(module), call)
        given = self._given_paths(module, call, access)
        if access is not None and given:
            # A helper that is given the path: other calls of it, which nothing runs, say nothing.
            return all(self._is_own(where, access._replace(call=at, path=path)) for where, at, path in given)
        paths: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
        if access is not None and access.path is not None:
            paths = [access.path]
        written = [item.value if isinstance(item, ast.keyword) else item for item in paths]
        return (
            any(map(names_rank, paths))
            or any(self._named_by_rank.holds(module, path) for path in written)
            or (access is not None and not is_shared(self.facts(module), access, by_clock=False))
            or (access is not None and access.kind == "write" and self._is_named_by_samples(access))
        )

    def _is_named_by_samples(self, access: Access) -> bool:
        return access.path is not None and is_named_by_samples(self.program, self.facts, access.path)

    def may_be_own_file(self, module: Module, call: ast.Call) -> ast.expr | None:
        """What puts the rank into the path of a file on one of the ways to it; None where all hold it, or none."""
        access = access_of(self.facts(module), call)
        if access is None or access.path is None or self.is_own_file(module, call):
            return None
        return self._named_by_rank.may_hold(access.path)

    def may_be_of_each(self, module: Module, call: ast.Call) -> bool:
        """Whether what a call makes, a writer or an opened file, may have the rank of its process in its name."""
        given = [*call.args, *(item.value for item in call.keywords)]
        return any(
            names_rank(item)
            or self._named_by_rank.holds(module, item)
            or self._named_by_rank.may_hold(item) is not None
            for item in given
        )

    def way_of_rank(self, holder: ast.expr) -> str:
        """Says where the rank comes into a path: the file is one of each process there."""
        located = self.program.locate(holder)
        text = located[1].module.text(holder) if located is not None else ast.unparse(holder)
        own = f"holds the rank where it is made of `{text}`: there each process has its own"
        return f"{own}, and where it is made otherwise all may write one at the same time"

    def _is_own(self, module: Module, access: Access) -> bool:
        assert access.path is not None
        if names_rank(access.path) or self._named_by_rank.holds(module, access.path):
            return True
        return not is_shared(self.facts(module), access, by_clock=False)

    @cached_property
    def _named_by_rank(self) -> NamedByRank:
        return NamedByRank(self.program, self.joined_under)

    def _given_paths(
        self, module: Module, call: ast.Call, access: Access | None
    ) -> list[tuple[Module, ast.Call, ast.expr]]:
        """The paths that callers give to the function of a call, which hands one on; none where it does not."""
        info = self.program.function_of(blocks.body_of(module, call))
        path = access.path if access is not None else None
        if info is None or not isinstance(path, ast.Name) or names_rank(path):
            return []
        found = [
            (item.scope.module, item.call, given)
            for item in self.program.flow.callers(info)
            if (given := info.argument(item.call, path.id)) is not None
        ]
        return found if len(found) == len(self.program.flow.callers(info)) else []

    # ---- data and models -----------------------------------------------------------------------------------------

    @cached_property
    def batches(self) -> DataFlow:
        """Questions about loaders and loops."""
        return DataFlow(self.program)

    @cached_property
    def data(self) -> TrainingData:
        """What feeds the training steps."""
        return self.batches.training_data()

    @cached_property
    def norms(self) -> BatchNorms:
        """Which models have batch norm."""
        return BatchNorms(self.program)

    def holds(self, node: ast.expr, scope: Scope, values: set[Value]) -> bool:
        """Whether an expression may hold one of some values."""
        return bool(self.program.flow.values(node, scope) & values)

    # ---- words ---------------------------------------------------------------------------------------------------

    def word(self, module: Module, target: str) -> str | None:
        """How a file calls something of torch by what it imports at its head; None where it cannot."""
        return Words(self.program).word(module, target)

    def place(self, module: Module, node: ast.AST) -> str:
        """A place within a sentence: its file and line, as the user has them."""
        return place_of(self.program, module, node)

    @staticmethod
    def source(module: Module, node: ast.AST) -> str:
        """The exact source of an expression on one line; of several lines, as Python would write it."""
        (line, column), (end_line, end_column) = module.start(node), module.end(node)
        rows = module.lines[line - 1 : end_line]
        return rows[0][column:end_column] if len(rows) == 1 else ast.unparse(node)

    # ---- telling -------------------------------------------------------------------------------------------------

    def tell(self, module: Module, node: ast.AST, text: str) -> None:
        """Note what is wrong, and stays: ``text`` is a sentence without a full stop."""
        self.told.append(notes.note(notes.OWN_LEFT, module, node, text))

    def leave(self, rule: Rule, module: Module, node: ast.AST, text: str) -> None:
        """Note what is left as it is, for a rewrite: ``text`` says what, and why; nothing of what never runs."""
        if never_runs(self.program.flow, module, node):
            return
        found = notes.note(notes.OWN_LEFT, module, node, f"{rule.code}: {text}")
        # Two wrappers may stand on one line.
        if all((item.path, item.line, item.text) != (found.path, found.line, found.text) for item in self.told):
            self.told.append(found)
