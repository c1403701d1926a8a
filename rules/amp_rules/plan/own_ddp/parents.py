"""What only the process runs that starts the others: it trains nothing, and waits for them."""

from __future__ import annotations

import ast
from functools import cached_property

from amp_rules.flow.statements import is_under_main_guard
from amp_rules.flow.values import CallSite
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.roles.workers import training_workers
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk

_MAX_CALLERS = 6
"""Callers of callers that are asked: ``main``, ``launch``, ``set_up_logs``, ``open_log``."""


class Parents:
    """Answers about one program.

    Args:
        program: the program.
        joins: the calls that join its processes.
    """

    def __init__(self, program: Program, joins: list[Site]) -> None:
        self._program = program
        self._joins = joins

    def run_alone(self, body: ast.AST) -> bool:
        """Whether only the process that starts those which train gets to a function, on every way that is known."""
        return bool(self._starting) and self._run_alone(body, frozenset())

    @cached_property
    def _workers(self) -> list[tuple[Site, ast.AST]]:
        return [(site, info.node) for site, info in training_workers(self._program)]

    @cached_property
    def _below(self) -> set[ast.AST]:
        """What the started processes run."""
        workers = {node for _, node in self._workers}
        return workers | self._program.called_from(part for node in workers for part in blocks.walk_body(node))

    @cached_property
    def _starting(self) -> set[ast.AST]:
        """The functions that start all that trains; none where some process joins that was started otherwise."""
        for site, node in self._workers:
            info = self._program.function_of(node)
            started = {other.node for other, worker in self._workers if worker is node}
            # What is also called where there are no processes to start may be one that torchrun has started.
            if info is None or not isinstance(site.node, ast.Call) or not self._only_starts(info, started):
                return set()
        if not all(site.body in self._below for site in self._joins):
            return set()
        return {site.body for site, _ in self._workers} - self._below

    def _only_starts(self, info: FunctionFacts, started: set[ast.AST]) -> bool:
        return all(
            caller.call in started or self._is_of_single(caller, started) for caller in self._program.flow.callers(info)
        )

    def is_of_single(self, caller: CallSite) -> bool:
        """Whether a call of what the script starts elsewhere takes the place of all these processes, and joins none."""
        callees = {info.node for info in self._program.flow.callees(caller.call)}
        return any(
            self._is_of_single(caller, {other.node for other, worker in self._workers if worker is node})
            for _, node in self._workers
            if node in callees
        )

    def _is_of_single(self, caller: CallSite, started: set[ast.AST]) -> bool:
        """Whether one process takes the place of those that another branch starts: ``else: train(0, args)``.

        Each process that torchrun starts would need a number of its own, or joins where they are started alone.
        """
        module = caller.scope.module
        here = blocks.statement_of(module, caller.call)
        starts = [start for start in started if self._program.module_of(start) is module]
        starts = [
            start for start in starts if blocks.exclude_each_other(module, blocks.statement_of(module, start), here)
        ]
        number = caller.call.args[0] if caller.call.args else None
        if isinstance(number, ast.Constant) and isinstance(number.value, int):
            return bool(starts)
        return any(self._joins_under(test) for start in starts for test in _tests_of_starts(module, start, here))

    def _joins_under(self, test: ast.expr) -> bool:
        """Whether all joins stand where a test holds, by which the processes are started: ``args.distributed``."""
        text = ast.unparse(test)
        return bool(self._joins) and all(self._is_under(site, text, frozenset()) for site in self._joins)

    def _is_under(self, site: Site, text: str, seen: frozenset[ast.AST]) -> bool:
        for item in blocks.enclosing(site.module, site.node):
            if isinstance(item, ast.If) and ast.unparse(item.test) == text and site.statement in _within(item.body):
                return True
        info = self._program.function_of(site.body)
        callers = self._program.flow.callers(info) if info is not None and site.body not in seen else []
        return bool(callers) and all(self._is_under(calling(item), text, seen | {site.body}) for item in callers)

    def _run_alone(self, body: ast.AST, seen: frozenset[ast.AST]) -> bool:
        if body in self._below or isinstance(body, ast.Module) or body in seen or len(seen) > _MAX_CALLERS:
            return False
        if body in self._starting:
            return True
        info = self._program.function_of(body)
        callers = self._program.flow.callers(info) if info is not None else []
        return bool(callers) and all(self._calls_alone(item, seen | {body}) for item in callers)

    def _calls_alone(self, caller: CallSite, seen: frozenset[ast.AST]) -> bool:
        module = caller.scope.module
        body = blocks.body_of(module, caller.call)
        if not isinstance(body, ast.Module):
            return self._run_alone(body, seen)
        # A started process runs the script's own file once more, but for what the guard keeps.
        return module is self._program.entry and is_under_main_guard(module, caller.call)


def _tests_of_starts(module: Module, start: ast.AST, other: ast.stmt) -> list[ast.expr]:
    """The setting by which a branch starts processes and another one does not: ``args.distributed``."""
    found = [item for item in blocks.enclosing(module, start) if isinstance(item, ast.If)]
    return [
        item.test
        for item in found
        if isinstance(item.test, (ast.Name, ast.Attribute))
        and start in _within(item.body)
        and other not in _within(item.body)
        and (other in _within(item.orelse) or isinstance(item.body[-1], ast.Return))
    ]


def _within(suite: list[ast.stmt]) -> set[ast.AST]:
    return {node for item in suite for node in walk(item)}
