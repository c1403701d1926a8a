"""A switch for the level among the script's own options: a new one, or one that the script has and nothing reads.

The command line wins over ``AMP_OPT_LEVEL``, and that over the level that was asked for. So a new option has no default
of its own: what is not given is None, and overrides nothing.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from amp_rules.flow.statements import is_main_guard
from amp_rules.flow.values import Value
from amp_rules.plan.arguments_in_reach import ArgumentsInReach, Parsed, Place
from amp_rules.plan.options import OPT_LEVELS, Options
from amp_rules.plan.own_options import Option, OwnOptions
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import is_none
from amp_rules.text.option_lines import Neighbour, option_line
from amp_rules.torch.command_lines import OTHER_PARSERS, PRECISION_SWITCHES

_FLAG, _NAME = "--amp", "amp"
_IN_TORCH = ("O0", "O1")


@dataclass(frozen=True)
class Switch:
    """How the level is chosen on the command line.

    Attributes:
        place: where the runtime starts.
        level: the source of the level for want of another, as in ``'"O1"'`` or ``'"O1" if args.fp16 else "O0"'``.
        override: the source of what overrides it, as in ``args.amp``.
        option: the option that is there already.
        above: the statement below which a new option is added; None where there is one.
        line: what adds it.
    """

    place: Place
    level: str
    override: str | None
    option: Option | None = None
    above: tuple[Module, ast.stmt] | None = None
    line: str = ""


class NoSwitch(Exception):
    """Why there is no switch, for the reader, and where."""

    def __init__(self, module: Module, node: ast.AST | None, text: str) -> None:
        super().__init__(text)
        self.module = module
        self.node = node
        self.text = text


def find(program: Program, options: Options, place: Place, level: str) -> Switch:
    """The switch of a script whose runtime starts at a place, with a level for want of another.

    Raises:
        NoSwitch: there is no place for one.
    """
    variable, parsed, parser = _arguments(program, place)
    own = OwnOptions(program)
    of_parser = [item for item in own.all if item.parsers == {parser}]
    existing = [item for item in of_parser if _names_levels(item) or _is_flag(item)]
    if existing:
        return _reused(own, existing, level, place, variable)
    _check_free(own, parser, parsed)
    neighbour = _neighbour(program, of_parser, parser, parsed)
    levels = _IN_TORCH if options.target == "torch" else OPT_LEVELS
    shown = level if level in levels else levels[-1]
    line = option_line(
        [Neighbour(item.module, item.call) for item in of_parser if item.module is neighbour.module],
        Neighbour(neighbour.module, neighbour.call),
        _FLAG,
        levels,
        f"mixed precision, O0 for none; without it AMP_OPT_LEVEL, or {shown}",
    )
    above = neighbour.module, blocks.statement_of(neighbour.module, neighbour.call)
    return Switch(place, f'"{level}"', f"{variable}.{_NAME}", above=above, line=line)


# ---- the arguments ---------------------------------------------------------------------------------------------


def _arguments(program: Program, place: Place) -> tuple[str, frozenset[Parsed], Value]:
    """The variable that holds the parsed arguments at the place, the calls that parse them, and the one parser."""
    found = list(ArgumentsInReach(program).at(place))
    if not found:
        raise NoSwitch(place.module, place.statement, _without_arguments(program))
    variable, parsed = found[0]
    own = OwnOptions(program)
    parsers = {parser for call in parsed for parser in own.parsers(call.parser, call.scope)}
    if len(parsers) != 1:
        raise NoSwitch(place.module, place.statement, f"`{variable}` comes from more than one parser")
    return variable, parsed, parsers.pop()


def _without_arguments(program: Program) -> str:
    imported = {name.partition(".")[0] for name in program.flow.imported}
    if "argparse" in imported:
        return "no variable holds the script's arguments, as argparse gives them, where the level is chosen"
    other = next((name for name in OTHER_PARSERS if name in imported), None)
    if other is not None:
        return f"the script has its arguments from {other}: a switch is written for argparse alone"
    return "the script has no argument parser"


# ---- an option that is there -----------------------------------------------------------------------------------


def _names_levels(option: Option) -> bool:
    """Whether an option takes one of the levels: ``choices=["O0", "O1"]``, or one as its default."""
    choices = option.keyword("choices")
    if isinstance(choices, (ast.List, ast.Tuple, ast.Set)) and choices.elts:
        return all(isinstance(item, ast.Constant) and item.value in OPT_LEVELS for item in choices.elts)
    default = option.keyword("default")
    return isinstance(default, ast.Constant) and default.value in OPT_LEVELS


def _is_flag(option: Option) -> bool:
    """Whether an option turns mixed precision on, by its name, and is off without it."""
    action, default = option.keyword("action"), option.keyword("default")
    if not (isinstance(action, ast.Constant) and action.value == "store_true" and option.name in PRECISION_SWITCHES):
        return False
    return default is None or (isinstance(default, ast.Constant) and not default.value)


def _reused(own: OwnOptions, existing: list[Option], level: str, place: Place, variable: str) -> Switch:
    option = existing[0]
    if len(existing) > 1:
        both = f"{option.shown} and {existing[1].shown}"
        raise NoSwitch(option.module, option.call, f"{both} may both be meant: the script has two options for it")
    if not _always_runs(option.module, blocks.statement_of(option.module, option.call)):
        raise NoSwitch(option.module, option.call, f"{option.shown} is added under a condition")
    reader = next(own.readers(option.name, besides=option.call), None)
    if reader is not None:
        line = reader[0].line_on_disk(getattr(reader[1], "lineno", 1))
        text = f"the script has {option.shown}, which something else reads (line {line})"
        raise NoSwitch(option.module, option.call, text)
    argument = f"{variable}.{option.name}"
    if _is_flag(option):
        on = "O1" if level == "O0" else level
        return Switch(place, f'"{on}" if {argument} else "O0"', None, option)
    if option.keyword("action") is not None or option.keyword("nargs") is not None:
        raise NoSwitch(option.module, option.call, f"{option.shown} gives more than one level")
    default = option.keyword("default")
    if default is None or is_none(default):
        return Switch(place, f'"{level}"', argument, option)
    if isinstance(default, ast.Constant) and default.value in OPT_LEVELS:
        return Switch(place, argument, None, option)
    raise NoSwitch(option.module, option.call, f"the default of {option.shown} is made at run time")


# ---- a new option ----------------------------------------------------------------------------------------------


def _check_free(own: OwnOptions, parser: Value, parsed: frozenset[Parsed]) -> None:
    """Refuse where the name may be taken, and where one argument more may be one too many."""
    for option in own.all:
        if option.flags is None:
            if not option.parsers or parser in option.parsers:
                raise NoSwitch(option.module, option.call, "what an option is called is made at run time")
        elif option.name == _NAME or any(f"-{flag.lstrip('-')}".startswith(f"-{_NAME}") for flag in option.flags):
            raise NoSwitch(option.module, option.call, f"{option.shown} is an option of the script's own")
        elif option.name in PRECISION_SWITCHES:
            text = f"the script has {option.shown}, an option of its own for the precision"
            raise NoSwitch(option.module, option.call, text)
    for module, node in own.readers(_NAME):
        raise NoSwitch(module, node, f"`{module.text(node)}` has the name of the option already")
    for module, call in own.given_elsewhere(parser):
        raise NoSwitch(module, call, f"`{module.text(call)}` may add options that are not seen")
    for item in parsed:
        for module, call in own.unpacked(item):
            raise NoSwitch(module, call, f"`{module.text(call)}` takes all arguments, and would be given one more")


def _neighbour(program: Program, options: list[Option], parser: Value, parsed: frozenset[Parsed]) -> Option:
    """The option below which the new one goes: the last that is added under no condition, where the parser is made."""
    found = [item for item in options if _is_unconditional(item)]
    found = [item for item in found if not item.is_grouped] or found
    made = program.locate(parser.site) if parser.site is not None else None
    homes = [made[0]] if made is not None else []
    homes += [call.scope.node for call in parsed]
    helpers = [item.scope.node for item in found if _is_called_always(program, item)]
    for home in [*homes, *helpers]:
        inside = [item for item in found if item.scope.node is home and not _is_parsed_before(item, parsed)]
        if inside:
            return max(inside, key=lambda item: item.call.lineno)
    call = min(parsed, key=lambda item: item.call.lineno)
    raise NoSwitch(call.scope.module, call.call, "no statement adds an option beside which the new one could stand")


def _is_unconditional(option: Option) -> bool:
    statement = blocks.statement_of(option.module, option.call)
    if not (isinstance(statement, ast.Expr) and statement.value is option.call):
        return False
    return _always_runs(option.module, statement)


def _always_runs(module: Module, statement: ast.stmt) -> bool:
    """Whether a statement runs whenever its body does."""
    return all(isinstance(item, ast.If) and is_main_guard(item) for item in blocks.enclosing(module, statement))


def _is_called_always(program: Program, option: Option) -> bool:
    """Whether the function that adds an option is called at one place, under no condition."""
    info = program.function_of(option.scope.node)
    callers = program.flow.callers(info) if info is not None else []
    return len(callers) == 1 and all(
        _always_runs(caller.scope.module, blocks.statement_of(caller.scope.module, caller.call)) for caller in callers
    )


def _is_parsed_before(option: Option, parsed: frozenset[Parsed]) -> bool:
    return any(item.scope is option.scope and item.call.lineno < option.call.lineno for item in parsed)
