"""How processes join those that torchrun started, and part from them."""

from __future__ import annotations

import ast

from amp_rules.flow.statements import is_main_guard
from amp_rules.plain_torch.generators import same_states
from amp_rules.plain_torch.gpu import may_use_gpu
from amp_rules.plain_torch.streams import Streams
from amp_rules.plain_torch.training_start import may_repeat
from amp_rules.plain_torch.translation import Translation
from amp_rules.plain_torch.uses import Use
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.text.actions import Insert

_JOIN = """\
if {WORLD_SIZE} > 1%s:
    if {torch}.cuda.is_available():
        {torch}.cuda.set_device({LOCAL_RANK})
    {dist}.init_process_group("cpu:gloo,cuda:nccl" if {torch}.cuda.is_available() else "gloo")"""

_JOIN_ON_THE_CPU = """\
if {WORLD_SIZE} > 1%s:
    {dist}.init_process_group("gloo")"""

_SILENT = """\
    if {RANK} != 0:
        {sys}.stdout = open({os}.devnull, "w")  # the first process speaks for all"""

_WITHOUT_LOG = """\
        {logging}.disable({logging}.INFO)"""

_PART = """\

if {WORLD_SIZE} > 1:
    {dist}.destroy_process_group()"""

_PLAIN_RESULTS = (ast.Name, ast.Attribute, ast.Constant)


def join(translation: Translation, module: Module) -> list[str]:
    """The lines with which a process joins those that torchrun started; it parts from them where the script ends."""
    streams = translation.part(Streams)
    start = translation.start
    repeats = start is not None and may_repeat(translation.program, start.use.module, start.use.node)
    form = _JOIN if may_use_gpu(translation.program) else _JOIN_ON_THE_CPU
    lines = [form % (" and not {dist}.is_initialized()" if repeats else "")]
    if streams.broadcast:
        lines.append(same_states(module, streams.broadcast))
    lines.append(_SILENT)
    if any(name.split(".")[0] == "logging" for name in translation.program.flow.imported):
        lines.append(_WITHOUT_LOG)
    joins = translation.joins
    if joins is not None and joins.module is module and not module.cells:
        _part(translation, joins)
    return translation.code(module, "\n".join(lines)).splitlines()


# ---- the end -------------------------------------------------------------------------------------------------------


def _part(translation: Translation, use: Use) -> None:
    """Destroy the process group where the script's main path ends, if that is one place; else the system does."""
    last = _last_statement(translation.program, use.module, use.statement, use.scope)
    if last is None or not any(map(translation.program.runs_backward, blocks.place(use.module, last).suite)):
        return  # whoever calls this file's functions trains when the path has ended
    is_result = isinstance(last, ast.Return)
    code = translation.code(use.module, _PART)
    translation.do(use.module, Insert(last, code, after=not is_result, order=_LAST))


_LAST = 9
"""The end comes after whatever else is put behind the last statement."""


def _last_statement(program: Program, module: Module, statement: ast.stmt, scope: Scope) -> ast.stmt | None:
    """The last statement of the path that a statement begins, or the ``return`` at its end."""
    place = blocks.place(module, statement)
    parent, suite = place.parent, place.suite
    if isinstance(parent, ast.Module):
        return suite[-1] if module.is_entry else None
    if isinstance(parent, ast.If) and is_main_guard(parent) and module.is_entry:
        return suite[-1]
    if not isinstance(parent, ast.FunctionDef):
        return None
    info = program.flow.functions.get(parent)
    callers = program.flow.callers(info) if info is not None else []
    if len(callers) > 1 or any(caller.scope.module is not module for caller in callers):
        return None
    if callers:
        called = blocks.statement_of(module, callers[0].call)
        further = _last_statement(program, module, called, callers[0].scope)
        if further is not called or not isinstance(called, ast.Expr):
            return further  # the script goes on after the function
    returns = [node for node in blocks.walk_body(parent) if isinstance(node, ast.Return)]
    if not returns:
        return suite[-1]
    if returns == [suite[-1]]:
        value = returns[0].value
        items = value.elts if isinstance(value, ast.Tuple) else [value]
        if all(item is None or isinstance(item, _PLAIN_RESULTS) for item in items):
            return suite[-1]
    return called if callers else None
