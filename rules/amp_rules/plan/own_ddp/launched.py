"""Scripts that only a launcher can start: without what it tells each process, they stop with an error."""

from __future__ import annotations

import ast

from amp_rules.flow.statements import is_main_guard, is_under_main_guard
from amp_rules.plan.options import Options
from amp_rules.plan.own_ddp.launchers import Starts, meets_by_environment, takes_rank_of_launcher
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.rank_values import is_environment, variable_read
from amp_rules.plan.report import Launched
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.roles.uncalled import uncalled
from amp_rules.source import blocks
from amp_rules.source.index import keyword, literal
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import last_name, walk
from amp_rules.torch.distributed import (
    GETS_RANK,
    GETS_WORLD_SIZE,
    LAUNCHER_VARIABLES,
    OPTION_OF_LAUNCHERS,
    VARIABLES_OF_OTHERS,
)

_UNDER_CONDITIONS = (ast.If, ast.IfExp, ast.BoolOp, ast.Try, ast.While, ast.For, ast.With, ast.Lambda)

_ASKS = frozenset({"torch.distributed.is_initialized", "torch.distributed.distributed_c10d.is_initialized"})
_TOLD = LAUNCHER_VARIABLES | {"LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"}


def launched(program: Program, options: Options) -> Launched:
    """How many processes a launcher must start: ``""`` where none has to, as far as is known."""
    own = OwnDdp(program, options, frozenset())
    if Starts(program, own.joins).by_script:
        return ""
    if any(own.is_always(site) for site in _required_options(program)):
        return "1"
    if _sets_variables(own):
        return ""
    if any(own.is_always(site) for site in _required_variables(program)):
        return "1"
    if own.joins and all(meets_by_environment(site.node) for site in own.joins):
        if own.is_several_always or any(_joins_or_stops(own, site, frozenset()) for site in own.joins):
            return "1"
    if not own.joins or not all(takes_rank_of_launcher(site.node) for site in own.joins):
        return ""
    # A test stands before the group, by the number of processes perhaps: it is certain to be there for several.
    asks = program.calls_to(GETS_RANK | GETS_WORLD_SIZE)
    return "N" if any(own.is_always(site) for site in asks) else ""


def asks_for_arguments(program: Program) -> bool:
    """Whether the script stops with an error where its command line names nothing: a subcommand, ``sys.argv[1]``."""
    if any(_writes_arguments(program, node, scope) for node, _, scope in program.nodes()):
        return False
    calls = ((scope.module, call) for call, _, scope in program.calls() if _is_required(call))
    if any(not _is_for_another_entry(program, *row) for row in calls):
        return True
    return any(_takes_argument(program, node, body, scope) for node, body, scope in program.nodes())


def _takes_argument(program: Program, node: ast.AST, body: ast.AST, scope: Scope) -> bool:
    """Whether a node takes an argument of the command line by its place, whatever else holds: ``sys.argv[1]``."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Load):
        return False
    index = literal(node.slice)
    if not isinstance(index, int) or index < 1 or "sys.argv" not in program.names(node.value, scope):
        return False
    if body in uncalled(program) or (isinstance(body, ast.Module) and scope.module is not program.entry):
        return False
    around = [item for item in scope.module.ancestors(node) if isinstance(item, _UNDER_CONDITIONS)]
    return all(isinstance(item, ast.If) and is_main_guard(item) for item in around)


def _writes_arguments(program: Program, node: ast.AST, scope: Scope) -> bool:
    """Whether the script itself says what a parser reads: ``sys.argv = [...]``, or by a patch of mock's."""
    given: ast.expr | None = None
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
        target = node.targets[0]
        given = node.value if target.attr == "argv" and _is_sys(program, target.value, scope) else None
    elif isinstance(node, ast.Call) and last_name(node.func) == "object" and len(node.args) > 2:
        is_it = literal(node.args[1]) == "argv" and _is_sys(program, node.args[0], scope)
        given = node.args[2] if is_it else None
    return given is not None and not any(
        isinstance(item, ast.Attribute) and item.attr == "argv" for item in walk(given)
    )


def _is_sys(program: Program, node: ast.expr, scope: Scope) -> bool:
    return "sys" in program.names(node, scope)


def _is_required(call: ast.Call) -> bool:
    """Whether a call makes an argument that a parser asks for."""
    name = last_name(call.func)
    if name == "add_subparsers":
        return True
    flag = literal(call.args[0]) if name == "add_argument" and call.args else None
    if not isinstance(flag, str) or flag in OPTION_OF_LAUNCHERS:
        return False
    if flag.startswith("-"):
        required = keyword(call, "required")
        return required is not None and literal(required) is True
    count = keyword(call, "nargs")
    if count is not None and literal(count) in ("*", "?"):
        return keyword(call, "default") is None  # nothing is what few scripts go on with
    return count is None or literal(count) == "+" or isinstance(literal(count), int)


def _is_for_another_entry(program: Program, module: Module, node: ast.AST) -> bool:
    """Whether a place is run only where its file is started, and not imported."""
    return module is not program.entry and is_under_main_guard(module, node)


def _required_variables(program: Program) -> list[Site]:
    """The places that read a variable of torchrun, and stop the script where there is none."""
    return [
        Site(scope.module, scope, body, node)
        for node, body, scope in program.nodes()
        if isinstance(node, ast.Subscript) and variable_read(program, node, scope) in _TOLD
    ]


def _required_options(program: Program) -> list[Site]:
    """``parser.add_argument("--local_rank", required=True)``, or where torchrun has set no ``LOCAL_RANK`` alone."""
    return [
        Site(scope.module, scope, body, call)
        for call, body, scope in program.calls()
        if last_name(call.func) == "add_argument" and any(literal(item) in OPTION_OF_LAUNCHERS for item in call.args)
        if (required := keyword(call, "required")) is not None
        if literal(required) is True or ast.unparse(required) == "'LOCAL_RANK' not in os.environ"
    ]


def _joins_or_stops(own: OwnDdp, site: Site, seen: frozenset[ast.AST]) -> bool:
    """Whether each run comes to a place where processes join, or stops with an error before it.

    That a group exists already (``if not dist.is_initialized():``) is no other way: something has joined it then.
    """
    if any(not _lets_by(own, site, test, holds) for test, holds in own.branches(site.module, site.node)):
        return False
    if any(isinstance(item, ast.Try) for item in blocks.enclosing(site.module, site.node)):
        return False
    info = own.program.function_of(site.body)
    if info is None:
        return site.module is own.program.entry
    if info.node in seen or site.body in own.uncalled:
        return False
    callers = own.program.flow.callers(info)
    return bool(callers) and all(_joins_or_stops(own, calling(item), seen | {info.node}) for item in callers)


def _lets_by(own: OwnDdp, site: Site, test: ast.expr, holds: bool) -> bool:
    """Whether no run that goes on is kept out by a test."""
    parent = site.module.parents[test]
    if isinstance(parent, ast.If):
        if is_main_guard(parent):
            return holds and site.module is own.program.entry
        if not holds and not parent.orelse and isinstance(parent.body[-1], ast.Raise):
            return True
        if holds and parent.orelse and isinstance(parent.orelse[-1], ast.Raise):
            return True
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, holds = test.operand, not holds
    if holds and isinstance(test, ast.Attribute) and _is_on(own, test):
        return True
    is_asked = isinstance(test, ast.Call) and own.program.callee_names(test, site.scope) & _ASKS
    return bool(is_asked) and not holds


def _is_on(own: OwnDdp, read: ast.Attribute) -> bool:
    """Whether a test asks for an option of the command line that is on where none is given: ``default=True``."""
    made = [
        call
        for call, _, _ in own.program.calls()
        if last_name(call.func) == "add_argument"
        and any(str(literal(item)).lstrip("-").replace("-", "_") == read.attr for item in call.args)
    ]
    return bool(made) and all(literal(keyword(call, "default")) is True for call in made)


def _sets_variables(own: OwnDdp) -> bool:
    """Whether the script tells itself what a launcher would: ``os.environ["RANK"] = "0"``."""
    for node, _, scope in own.program.nodes():
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            is_set = is_environment(own.program, node.value, scope) and literal(node.slice) in _TOLD
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_set = _may_set(node) and is_environment(own.program, node.func.value, scope)
        else:
            continue
        if is_set and not _is_of_other_launchers(own, scope.module, node):
            return True
    return False


def _may_set(call: ast.Call) -> bool:
    """Whether a method of the environment may set such a variable: not ``setdefault("OMP_NUM_THREADS", "1")``."""
    method = last_name(call.func)
    name = literal(call.args[0]) if call.args else ...
    return method == "update" or (method == "setdefault" and (name is ... or name in _TOLD))


def _is_of_other_launchers(own: OwnDdp, module: Module, node: ast.AST) -> bool:
    """Whether a place is reached only under a launcher other than torchrun: ``if "SLURM_JOB_ID" in os.environ:``."""
    return any(
        holds and isinstance(part, ast.Constant) and str(part.value).startswith(VARIABLES_OF_OTHERS)
        for test, holds in own.branches(module, node)
        for part in walk(test)
    )
