"""Let the launcher say where a script's own processes meet.

## What it does
Where a script that a launcher starts writes `MASTER_ADDR`, `MASTER_PORT`, `WORLD_SIZE`, `RANK` or `LOCAL_RANK` into the
environment, a value that the launcher has put there stays, and the script's own is for a start without one.

## Why
torchrun, and `torch.distributed.launch` since PyTorch 1.9, serve the meeting place themselves, at a port of their own.
With another port every process is a client of one that nobody serves, and waits until the timeout. A number of
processes that is not that of the launcher has the processes wait for others, which never come; and with one
`LOCAL_RANK` for all they share a GPU.

## Before
    os.environ["MASTER_PORT"] = "12355"
    dist.init_process_group("nccl")

## After
    os.environ["MASTER_PORT"] = os.environ.get("MASTER_PORT", "12355")
    dist.init_process_group("nccl")

## When it declines
Where the script starts its processes itself, as `mp.spawn` does: nothing else says where they meet then. Where a test
asks for the launcher already, or for a run of one process, or for a port that no caller gives. Where both the script
and a launcher may start them, where the value is set in a loop, and where `init_process_group` is given an address
(`tcp://127.0.0.1:12355`, or `env://` within one) (AMP288). What only another framework than torch runs
(`torch.__version__ == "parrots"`) stays, too.

## Leaving it out
Yes: without a launcher the script is the same.

## Source
https://pytorch.org/docs/stable/elastic/run.html#important-notices
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from amp_rules.checks.common.rank_branches import in_several
from amp_rules.flow.values import Value
from amp_rules.plan.constant_tests import ConstantTests
from amp_rules.plan.context import Change
from amp_rules.plan.own_ddp.launchers import Starts
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.rank_values import is_environment, variable_read
from amp_rules.plan.rule import Rule
from amp_rules.roles.absent import is_always_none
from amp_rules.roles.path_objects import assigned
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import keyword, literal
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import is_none, walk
from amp_rules.text.actions import Replace
from amp_rules.text.expression_edits import substitute
from amp_rules.torch.distributed import LAUNCHER_VARIABLES, VARIABLES_OF_OTHERS
from amp_rules.torch.idioms import NAMED_LAUNCHER

RULE = Rule(
    "AMP238",
    "launcher-address",
    "The processes meet where the launcher says.",
    "distribution",
    optional=True,
    together=True,
)

_GIVEN = LAUNCHER_VARIABLES | {"LOCAL_RANK"}
"""What torchrun has put into the environment of each process."""

_WAIT = (
    "a process that torchrun starts and that joins waits there until the timeout, for torchrun serves another port, "
    "unless its `--master-port` is this one"
)


def changes(own: OwnDdp) -> Iterator[Change]:
    """Yield an edit for each variable that is written whatever the launcher says."""
    starts = Starts(own.program, own.joins)
    if not starts.by_launcher:
        return
    written = [site for site in _written(own) if starts.is_direct(site) and not _is_told_apart(own, site)]
    off = ConstantTests(own.program)
    written = [site for site in written if not (_is_never_run(own, site) or off.keep_out(site.module, site.node))]
    for site in written:
        reason = _reason(starts, site)
        if reason is None:
            yield _change(own, site)
        elif _variable(site) == "MASTER_PORT":
            own.leave(RULE, site.module, site.node, f"`{site.module.text(site.node)}` {reason}")
    if not starts.by_script:
        _leave_addresses(own, starts)


def _reason(starts: Starts, site: Site) -> str | None:
    """Why an assignment is left as it is."""
    if starts.by_script:
        return f"is for processes that the script starts itself; {_WAIT}"
    if any(isinstance(item, blocks.LOOPS) for item in blocks.enclosing(site.module, site.node)):
        return f"is run again in a loop; {_WAIT}"
    return None


def _change(own: OwnDdp, site: Site) -> Change:
    statement = _assignment(site)
    target = statement.targets[0]
    assert isinstance(target, ast.Subscript)
    parts = [own.source(site.module, node) for node in (target.value, target.slice, statement.value)]
    code = "{}.get({}, {})".format(*parts)
    message = f"a launcher's `{_variable(site)}` stays"
    return Change(RULE, site.module, statement, message, [Replace(statement.value, substitute(code))])


def _written(own: OwnDdp) -> Iterator[Site]:
    """Yield ``os.environ["MASTER_PORT"] = "12355"``, where the value takes nothing from the environment."""
    for node, body, scope in own.program.nodes():
        if not (isinstance(node, ast.Assign) and scope.module in own.modules and len(node.targets) == 1):
            continue
        target = node.targets[0]
        if not (isinstance(target, ast.Subscript) and is_environment(own.program, target.value, scope)):
            continue
        if literal(target.slice) in _GIVEN and not _comes_of_environment(own, node.value, scope):
            yield Site(scope.module, scope, body, node)


def _comes_of_environment(own: OwnDdp, node: ast.expr, scope: Scope) -> bool:
    """Whether a value is read from the environment, here or where its variables are assigned."""
    if _reads_environment(own, node):
        return True
    return any(
        _reads_environment(own, value)
        for part in walk(node)
        if isinstance(part, (ast.Name, ast.Attribute)) and blocks.path_of(part) is not None
        for value in assigned(own.program, part, scope)
    )


def _assignment(site: Site) -> ast.Assign:
    assert isinstance(site.node, ast.Assign)
    return site.node


def _variable(site: Site) -> object:
    target = _assignment(site).targets[0]
    assert isinstance(target, ast.Subscript)
    return literal(target.slice)


def _is_told_apart(own: OwnDdp, site: Site) -> bool:
    """Whether a test asks for the launcher, or the function is for one of another kind, or for one process."""
    for test, holds in own.branches(site.module, site.node):
        if holds and site.node in _calls_of(own) and _asks_for_torchrun(test):
            continue
        said = in_several(test)
        if (said is not None and said is not holds) or _reads_environment(own, test):
            return True
        if NAMED_LAUNCHER.search(ast.unparse(test)):
            return True
    if any(isinstance(item, ast.ExceptHandler) for item in site.module.ancestors(site.node)):
        return True  # ``except KeyError``: the environment was asked
    return any(
        isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(VARIABLES_OF_OTHERS)
        for node in blocks.walk_body(site.body)
    )


def _is_never_run(own: OwnDdp, site: Site) -> bool:
    """Whether it stands under ``if port is not None:``, and nothing gives the function a port."""
    return any(
        isinstance(test, ast.Compare)
        and isinstance(test.ops[0], ast.IsNot if holds else ast.Is)
        and is_none(test.comparators[0])
        and is_always_none(own.program.flow, test.left, site.scope)
        for test, holds in own.branches(site.module, site.node)
    )


def _calls_of(own: OwnDdp) -> set[ast.AST]:
    return {site.node for site in own.joins}


def _asks_for_torchrun(test: ast.expr) -> bool:
    """``"RANK" in os.environ and "WORLD_SIZE" in os.environ``: what torchrun starts goes on there."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return all(map(_asks_for_torchrun, test.values))
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.In):
        return False
    return literal(test.left) in LAUNCHER_VARIABLES


def _reads_environment(own: OwnDdp, node: ast.AST) -> bool:
    """Whether something of the environment is read, or asked for: ``"RANK" in os.environ``."""
    for item in walk(node):
        located = own.program.locate(item) if isinstance(item, (ast.Name, ast.Attribute, ast.Call)) else None
        if located is None:
            continue
        if isinstance(item, ast.Call):
            if variable_read(own.program, item, located[1]) is not None:
                return True
        elif isinstance(item, ast.expr) and is_environment(own.program, item, located[1]):
            return True
    return False


def _leave_addresses(own: OwnDdp, starts: Starts) -> None:
    """Note an address that ``init_process_group`` is given: the first of them."""
    for site in own.joins:
        assert isinstance(site.node, ast.Call)
        given = keyword(site.node, "init_method") or (site.node.args[1] if len(site.node.args) > 1 else None)
        if given is None or site.module not in own.modules or not starts.is_direct(site):
            continue
        inner = _address_within(own, given, site)
        if inner is not None:
            own.leave(RULE, site.module, site.node, _twice(site.module.text(given), inner))
            return
        if _is_told_apart(own, site) or not _is_address(own, given, site):
            continue
        text = f"`{site.module.text(given)}` names a port of the script's own; {_WAIT}"
        own.leave(RULE, site.module, site.node, f'{text}; `init_method="env://"` takes torchrun\'s')
        return


def _is_address(own: OwnDdp, node: ast.expr, site: Site) -> bool:
    """Whether an expression is a port of TCP, and nothing else for all that is known."""
    if isinstance(node, ast.JoinedStr):
        return bool(node.values) and _is_tcp(literal(node.values[0])) and not _reads_environment(own, node)
    values = own.program.flow.values(node, site.scope)
    given = [value.ref for value in values if value.kind == "constant"]
    others = [value for value in values if value.kind != "constant" and not (given and _is_option(value))]
    # ``address += os.environ["MASTER_PORT"]`` goes on where the constant ends.
    return bool(given) and not others and all(map(_names_port, given))


def _address_within(own: OwnDdp, node: ast.expr, site: Site) -> str | None:
    """What is written into ``tcp://...``, and may be ``env://`` itself: ``"tcp://" + host``."""
    values = [node]
    if isinstance(node, ast.Name):
        values = assigned(own.program, node, site.scope)
    if len(values) != 1 or not _begins_address(values[0]):
        return None
    for part in walk(values[0]):
        if isinstance(part, (ast.Name, ast.Attribute)) and isinstance(part.ctx, ast.Load):
            if any(value.kind == "constant" and value.ref == "env://" for value in _values_of(own, part, site)):
                return ast.unparse(part)
    return None


def _values_of(own: OwnDdp, node: ast.expr, site: Site) -> Collection[Value]:
    return own.program.flow.values(node, site.scope)


def _begins_address(node: ast.expr) -> bool:
    """``"tcp://" + x``, ``"tcp://%s:%d" % x``, ``"tcp://{}".format(x)``, ``f"tcp://{x}"``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        node = node.func.value
    while isinstance(node, ast.BinOp):
        node = node.left
    if isinstance(node, ast.JoinedStr) and node.values:
        node = node.values[0]
    return _is_tcp(literal(node))


def _twice(address: str, inner: str) -> str:
    """What happens where one address is written into another."""
    text = f"`{address}` puts `{inner}` into an address where that is `env://` itself, and `tcp://env://` has no port"
    return f"{text}: `init_process_group` raises an error there; pass `env://` as it is"


def _is_option(value: Value) -> bool:
    """Whether it is what a parser read, whose default is known."""
    owner = value.receiver
    return owner is not None and owner.is_result and str(owner.ref).startswith("argparse.")


def _names_port(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"tcp://[^/]+:\d+/?", value) is not None


def _is_tcp(value: object) -> bool:
    return isinstance(value, str) and value.startswith("tcp://")
