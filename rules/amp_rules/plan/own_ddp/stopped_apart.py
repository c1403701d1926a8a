"""Training that a process ends, and steps that it leaves out, by its own share of the data.

The others wait for it in the wrapper.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from amp_rules.plan.own_ddp.events import is_never_true
from amp_rules.plan.own_ddp.items_of_all import are_others_of_all
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.shares import Shares
from amp_rules.plan.own_ddp.stopped_by_files import file_changed
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.index import ends_process
from amp_rules.source.modules import Module
from amp_rules.source.syntax import last_name, values_given, walk
from amp_rules.torch.functions import FINITE_TESTS
from amp_rules.torch.replication import CLOCKS

_Found = tuple[Module, ast.AST, str]


def stopped_apart(own: OwnDdp, shares: Shares) -> Iterator[_Found]:
    """Yield what leaves a training loop, or a backward pass out, by numbers of each process's own batches."""
    leaving = list(_leaving(own)) if own.wraps and not shares.metrics.looked_after else []
    leaving = [item for item in leaving if not _may_be_of_all(shares, *item)]
    skipping = list(_skipping(own)) if own.wraps else []
    if not (leaving or skipping):
        return
    told: set[ast.AST] = set()
    for module, node, test, loop in skipping:
        if loop not in told and shares.decides(test) and not _is_exchanged(own, shares, test, loop):
            told.add(loop)
            yield (
                module,
                node,
                f"`{module.text(test)}` depends on each process's own share of the data: a process that leaves the "
                "backward pass out averages no gradients, and the others wait for it",
            )
    kept = [item for item in leaving if not is_never_true(own, item[2])]
    # Behind what was left apart, what a loop counts differs too.
    for module, node, test, loop in kept:
        why = _by_file_or_clock(own, shares, module, test, loop) if loop not in told else None
        if why is not None:
            told.add(loop)
            yield module, node, why
    for module, node, test, loop in kept:
        if loop in told or _is_within_epoch(own, module, node, test, loop) or _counts_rounds(shares, test, loop):
            continue
        if shares.decides(test):
            if _is_of_another_branch(shares, module, node, test, loop):
                continue
            told.add(loop)
            yield (
                module,
                node,
                f"`{module.text(test)}` depends on each process's own share of the data: one process leaves the "
                "training loop first, and the others wait for it",
            )
        elif shares.decides_by_order(test):
            told.add(loop)
            yield (
                module,
                node,
                f"`{module.text(test)}` depends on the order in which each process shuffles the data for itself: where "
                "their numbers differ, one process leaves the training loop first, and the others wait for it",
            )


def _is_of_another_branch(shares: Shares, module: Module, node: ast.AST, test: ast.expr, loop: ast.stmt) -> bool:
    """Whether the share of a process only matters to what a test asks for in a branch that excludes its own.

    ``if by_score: ... patience -= 1 ... else: ... patience -= 1``, where a setting decides for the whole run.
    """
    changed = {path for item in blocks.walk_own(loop) if isinstance(item, ast.stmt) for path in blocks.writes(item)}
    taken: dict[ast.expr, bool] = {}
    for branch in blocks.enclosing(module, node):
        if branch is loop:
            break
        if isinstance(branch, ast.If) and branch.orelse and not blocks.touches(blocks.reads(branch.test), changed):
            taken[branch.test] = any(part is node for item in branch.body for part in walk(item))
    return bool(taken) and not shares.decides_where(test, taken)


def _by_file_or_clock(own: OwnDdp, shares: Shares, module: Module, test: ast.expr, loop: ast.stmt) -> str | None:
    """What is said of a test that asks for a file that a process changes, or for the time."""
    path = file_changed(own, module, test)
    if path is not None:
        return (
            f"`{module.text(test)}` asks for the file {path}, which the first process to see it changes: the others "
            "may stay in the training loop, and wait for it"
        )
    if _asks_clock(own, test, loop) and shares.decides_by_clock(test):
        return (
            f"`{module.text(test)}` depends on each process's own clock: one process leaves the training loop first, "
            "and the others wait for it"
        )
    return None


def _skipping(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, ast.expr, ast.stmt]]:
    """Yield what keeps a process from a backward pass, with the test of the loss right around it and the loop."""
    for backward in own.program.backwards:
        module = backward.module
        around = list(blocks.enclosing(module, backward.node))
        loop = next((item for item in around if isinstance(item, blocks.LOOPS)), None)
        if loop is None or module not in own.modules:
            continue
        loss = blocks.reads(backward.loss)
        for branch in around[: around.index(loop)]:
            if isinstance(branch, ast.If) and _asks_for_loss(branch.test, loss):
                sides = (any(map(own.program.runs_backward, side)) for side in (branch.body, branch.orelse))
                if not all(sides):
                    yield module, branch.test, branch.test, loop
        for node in blocks.walk_own(loop):
            parent = module.parents.get(node)
            if not (isinstance(node, ast.Continue) and isinstance(parent, ast.If) and node.lineno < backward.line):
                continue
            # That of a loop within leaves out a part of the step.
            if blocks.loop_around(module, node) is loop:
                asks = _asks_for_loss(parent.test, loss) or _asks_for_selected(parent.test, loop)
                asks = asks or _asks_for_batch(parent.test, loop)
                if asks and not own.program.runs_backward(parent):
                    yield module, node, parent.test, loop


def _is_exchanged(own: OwnDdp, shares: Shares, test: ast.expr, loop: ast.stmt) -> bool:
    """Whether something above a test puts what it asks for together with that of the other processes.

    A loss that is a module may exchange what it divides by, and gives a number of its own batch. A function that
    exchanges copies gives another number, which the test may not ask for: ``shown = reduce_dict(losses)``.
    """
    names = _behind(test, loop)
    return any(
        isinstance(item, ast.Call)
        and item.lineno <= test.lineno
        and own.runs_exchange(item)
        and not (_runs_module(own, item) or _is_own_loss(own, item, loop))
        and blocks.touches(names, blocks.reads(item))
        and not (shares.metrics.exchanges.leaves_its_own(item) and _gives_others(own, item, test, names))
        for item in blocks.walk_own(loop)
    )


def _gives_others(own: OwnDdp, call: ast.Call, test: ast.expr, names: set[str]) -> bool:
    """Whether what a call gives goes into none of some variables, and not into a test itself."""
    located = own.program.locate(call)
    if located is None or call in set(walk(test)):
        return False
    statement = blocks.statement_of(located[1].module, call)
    return isinstance(statement, (*_BINDS, ast.Expr)) and not blocks.touches(names, blocks.writes(statement))


def _is_own_loss(own: OwnDdp, call: ast.Call, loop: ast.stmt) -> bool:
    """Whether a call is of an object of the project that is given what a batch holds: ``criterion(outputs, targets)``.

    What puts losses together is given them, and how many samples they are of.
    """
    if not isinstance(loop, (ast.For, ast.AsyncFor)):
        return False
    target = loop.target
    if isinstance(loop.iter, ast.Call) and last_name(loop.iter.func) == "enumerate" and isinstance(target, ast.Tuple):
        target = target.elts[-1]
    held = {blocks.path_of(item) for item in walk(target)} - {None}
    callees = own.program.flow.callees(call)
    is_object = bool(callees) and all(info.name == "__call__" for info in callees)
    return is_object and any(blocks.path_of(item) in held for item in values_given(call))


def _runs_module(own: OwnDdp, call: ast.Call) -> bool:
    located = own.program.locate(call)
    return located is not None and bool(own.program.roles.modules(call.func, located[1]))


def _behind(
    test: ast.expr,
    loop: ast.stmt,
    module: Module | None = None,
    handed: Iterable[tuple[set[str], set[str]]] = (),
) -> set[str]:
    """What a test reads, and what that is computed from in a loop; with a file, also under which tests.

    What is ``handed`` to objects is what their state is computed from.
    """
    names = blocks.reads(test)
    bindings = list(handed)
    for item in blocks.walk_own(loop):
        if isinstance(item, _BINDS):
            read = blocks.reads(item)
            for around in blocks.enclosing(module, item) if module is not None else ():
                if around is loop:
                    break
                read |= blocks.reads(around.test) if isinstance(around, (ast.If, ast.While)) else set()
            bindings.append((blocks.writes(item), read))
    for _ in bindings:
        found = {path for written, read in bindings if blocks.touches(written, names) for path in read}
        if found <= names:
            break
        names |= found
    return names


_BINDS = (ast.Assign, ast.AugAssign, ast.AnnAssign)


def _asks_for_loss(test: ast.expr, loss: set[str]) -> bool:
    """Whether a test is about the number that a loss is; the size of a batch is alike in all shares."""
    for item in walk(test):
        if isinstance(item, ast.Call) and last_name(item.func) in FINITE_TESTS:
            return True
        if isinstance(item, ast.Compare) and not isinstance(item.ops[0], (ast.Is, ast.IsNot, ast.In, ast.NotIn)):
            if blocks.touches(loss, blocks.reads(item)):
                return True
    return False


def _asks_for_batch(test: ast.expr, loop: ast.stmt) -> bool:
    """Whether a test is about what a batch holds, not how large it is: ``not batch["is_valid"]``, ``mask.any()``."""
    given = blocks.writes_target(loop) if isinstance(loop, (ast.For, ast.AsyncFor)) else set()
    asked = test.operand if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) else test
    if isinstance(asked, ast.Compare) and len(asked.ops) == 1:
        asked = asked.left
    calls = 0
    while isinstance(asked, ast.Call) and isinstance(asked.func, ast.Attribute) and asked.func.attr in _OF_ELEMENTS:
        asked, calls = asked.func.value, calls + 1
    if isinstance(asked, ast.Subscript):
        return blocks.path_of(asked.value) in given
    return bool(calls) and blocks.path_of(asked) in given


_OF_ELEMENTS = frozenset({"any", "all", "sum", "item", "max", "min"})


def _asks_for_selected(test: ast.expr, loop: ast.stmt) -> bool:
    """Whether a test is about the size of what is selected from a batch: ``y = y[known]``, then ``len(y) == 0``."""
    selected: set[str] = set()
    for item in blocks.walk_own(loop):
        if isinstance(item, ast.Assign) and item.lineno < test.lineno:
            pairs = [pair for target in item.targets for pair in blocks.unpacked(target, item.value)]
            selected |= {path for target, value in pairs if _selects(value) and (path := blocks.path_of(target))}
    return any(
        blocks.touches(selected, blocks.reads(item))
        for item in walk(test)
        if (isinstance(item, ast.Call) and last_name(item.func) in _SIZES)
        or (isinstance(item, ast.Attribute) and item.attr == "shape")
    )


_SIZES = frozenset({"len", "nelement", "numel", "size"})


def _selects(node: ast.expr) -> bool:
    """Whether an expression is a part of another by a mask or by indices: no slice, and no place of a tuple."""
    if not isinstance(node, ast.Subscript):
        return isinstance(node, ast.Call) and last_name(node.func) in ("masked_select", "nonzero")
    index = node.slice
    return isinstance(index, (ast.Name, ast.Compare, ast.Call, ast.BoolOp, ast.UnaryOp)) and not (
        isinstance(index, ast.UnaryOp) and isinstance(index.operand, ast.Constant)
    )


def _may_be_of_all(shares: Shares, module: Module, node: ast.AST, test: ast.expr, loop: ast.stmt) -> bool:
    """Whether something in a loop, or in a caller, puts what a test asks for together with that of the others."""
    exchanges = shares.metrics.exchanges
    names = _behind(test, loop, module, _handed_to(shares.program, test, loop))
    for call in blocks.walk_own(loop):
        if isinstance(call, ast.Call) and exchanges.puts_together(call):
            given = {path for item in (*call.args, *call.keywords) for path in blocks.reads(item)}
            given |= blocks.writes(blocks.statement_of(module, call))
            if not exchanges.is_of_torch(call):
                given |= blocks.reads(call.func)
            if blocks.touches(names, given) and not are_others_of_all(exchanges, shares.program, module, call, names):
                return True
    return exchanges.becomes_of_all(blocks.body_of(module, node))


def _handed_to(program: Program, test: ast.expr, loop: ast.stmt) -> Iterator[tuple[set[str], set[str]]]:
    """Yield an object that a test asks, and the numbers that a loop gives to it: ``stopper(loss, model)``."""
    asked = {path.rpartition(".")[0] for path in blocks.reads(test) if "." in path}
    for call in blocks.walk_own(loop):
        if not isinstance(call, ast.Call):
            continue
        path = blocks.path_of(call.func)
        if path is None or not asked & {path, path.rpartition(".")[0]}:
            continue
        given = [item for item in values_given(call) if not _holds_model(program, item)]
        yield blocks.reads(test), {name for item in given for name in blocks.reads(item)}


def _holds_model(program: Program, node: ast.expr) -> bool:
    """Whether a part of an expression is a model, which an object saves, and asks for no number."""
    for part in walk(node):
        located = program.locate(part) if isinstance(part, (ast.Name, ast.Attribute)) else None
        if located is not None and isinstance(part, ast.expr) and program.roles.modules(part, located[1]):
            return True
    return False


def _leaving(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, ast.expr, ast.stmt]]:
    """Yield what leaves a loop that trains, with the test right around it and the loop."""
    for node, _, scope in own.program.nodes():
        module = scope.module
        if module not in own.modules:
            continue
        if isinstance(node, ast.While):
            if own.program.runs_backward(node) and not own.is_of_first_alone(module, node):
                yield from ((module, flag, flag, node) for flag in _flags(node.test))
            continue
        if not _leaves(module, node) or own.is_of_first_alone(module, node):
            continue
        branch = module.parents[blocks.statement_of(module, node)]
        loop = blocks.loop_around(module, node)
        if not isinstance(branch, ast.If) or loop is None or not own.program.runs_backward(loop):
            continue
        yield module, node, branch.test, loop


def _is_within_epoch(own: OwnDdp, module: Module, node: ast.AST, test: ast.expr, loop: ast.stmt) -> bool:
    """Whether a loop goes through the batches of an epoch, and what leaves it asks for anything but the loss.

    It may ask for the size of a batch, which shares of one length have alike.
    """
    if not isinstance(loop, ast.For) or {use.loader for use in own.data.uses}.isdisjoint(walk(loop.iter)):
        return False
    return not (isinstance(node, ast.Break) and _asks_for_loss(test, _losses_in(own, loop)))


def _counts_rounds(shares: Shares, test: ast.expr, loop: ast.stmt) -> bool:
    """Whether a test asks how many rounds a loop has made, which its processes make together, and for nothing apart.

    What ends the loop differs between shares, so the count is known as such a number: behind the loop it may be one.
    """
    written: dict[str, list[ast.AST]] = {}
    for item in blocks.walk_own(loop):
        if isinstance(item, (*_BINDS, ast.For, ast.NamedExpr)):
            for path in blocks.writes(item):
                written.setdefault(path, []).append(item)
    leaves_out = [item.lineno for item in blocks.walk_own(loop) if isinstance(item, ast.Continue)]
    counters = {
        path
        for path, items in written.items()
        if len(items) == 1 and isinstance(items[0], ast.AugAssign) and items[0] in getattr(loop, "body", ())
        if isinstance(items[0].value, ast.Constant) and not any(line < items[0].lineno for line in leaves_out)
    }
    names = blocks.reads(test)
    others = (node for node in walk(test) if isinstance(node, (ast.Name, ast.Attribute)))
    apart = (node for node in others if blocks.path_of(node) not in counters and shares.decides(node))
    return bool(names & counters) and not names & (written.keys() - counters) and not any(apart)


def _asks_clock(own: OwnDdp, test: ast.expr, loop: ast.stmt) -> bool:
    """Whether a time that a loop reads goes into a test, and not only the number of a round that a time has ended."""
    names = _behind(test, loop)
    given = [item.value for item in blocks.walk_own(loop) if isinstance(item, _BINDS) and blocks.writes(item) & names]
    return any(_reads_clock(own, part) for item in (test, *given) if item is not None for part in walk(item))


def _reads_clock(own: OwnDdp, node: ast.AST) -> bool:
    """Whether a call is one of the clock, or of a function of the project that asks it: ``time_left()``."""
    located = own.program.locate(node) if isinstance(node, ast.Call) else None
    if not isinstance(node, ast.Call) or located is None:
        return False
    if own.program.callee_names(node, located[1]) & CLOCKS:
        return True
    bodies = [part for info in own.program.flow.callees(node) for part in blocks.walk_body(info.node)]
    return bool(bodies) and not {site.node for site in own.program.calls_to(CLOCKS)}.isdisjoint(bodies)


def _losses_in(own: OwnDdp, loop: ast.stmt) -> set[str]:
    """The losses whose backward passes run in a loop."""
    inside = set(walk(loop))
    return {path for site in own.program.backwards if site.node in inside for path in blocks.reads(site.loss)}


def _flags(test: ast.expr) -> Iterator[ast.expr]:
    """Yield the variables that a test asks for as they are: ``not stop``. What counts batches is alike in all."""
    if isinstance(test, ast.BoolOp):
        for item in test.values:
            yield from _flags(item)
    asked = test.operand if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) else test
    if isinstance(asked, (ast.Name, ast.Attribute)):
        yield test


def _leaves(module: Module, node: ast.AST) -> bool:
    """Whether a node leaves the loop around it: ``break``, ``return``, ``sys.exit()``."""
    ends = isinstance(node, ast.Call) and isinstance(module.parents[node], ast.Expr) and ends_process(node)
    return ends or isinstance(node, (ast.Break, ast.Return))
