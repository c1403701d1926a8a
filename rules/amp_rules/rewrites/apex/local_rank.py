"""Keep `--local_rank` working under torchrun.

## What it does
The default of the option, given through `parser.add_argument` or another name for it, becomes the environment's
`LOCAL_RANK`, and its old default where there is none. The spelling `--local-rank`, which launchers of PyTorch 2 pass,
is accepted too. So does the default of a field `local_rank` of a `Tap`, or of a dataclass where some parser makes
options of fields. An option that nothing reads, or that the script sets by the variable itself, gets the second
spelling alone. So does that of a script which leaves all processes one GPU before they join, as
`os.environ["CUDA_VISIBLE_DEVICES"] = "0"` does.

## Why
Scripts for Apex were started by `torch.distributed.launch`, which passed the option; torchrun sets the variable
instead.

## Before
    parser.add_argument("--local_rank", type=int, default=-1)

## After
    parser.add_argument("--local_rank", "--local-rank", type=int, default=int(os.environ.get("LOCAL_RANK", -1)))

## When it declines
When the default is something else than a number or None, or the script gives the parser options that it writes out
itself. Where the option is the number of the machine (`rank = args.local_rank * gpus + gpu` in processes that the
script starts), it stays as it is. So it does where the script sets it before it starts each process, and where the
script joins a process group in which nothing averages the gradients: torchrun would turn on a path that trains each
model on its own, beside a schedule for all of them.

## Leaving it out
Yes: the option is then what it was, and launchers that pass it go on to do so. torchrun passes none.

## Source
https://pytorch.org/docs/stable/elastic/run.html#transitioning-from-torch-distributed-launch-to-torchrun
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from amp_rules.plan.apex.file import ApexFile
from amp_rules.plan.context import Change
from amp_rules.plan.rule import Rule
from amp_rules.source.head import import_place
from amp_rules.source.index import keyword, literal
from amp_rules.source.resolver import imported_names
from amp_rules.source.syntax import last_name
from amp_rules.text.actions import Action, ExpressionEdit, Insert, Replace
from amp_rules.text.expression_edits import add_keyword, substitute
from amp_rules.torch.command_lines import CLASSES_OF_OPTIONS, DATACLASS
from amp_rules.torch.distributed import OPTION_OF_LAUNCHERS

RULE = Rule(
    "AMP409",
    "local-rank",
    "The local rank comes from torchrun's environment.",
    "distribution",
    optional=True,
    together=True,
    ways=("idiom", "beside torch", "compat", "present names", "own processes"),
    after=("AMP411",),
)

_WIDTH = 110
_NAMES = OPTION_OF_LAUNCHERS
_METHOD = "add_argument"
_FIELD = "local_rank"


def changes(file: ApexFile) -> Iterator[Change]:
    """Yield an edit for each option, and one for the import that it takes."""
    ranks = file.local_ranks
    if ranks is not None and (ranks.is_of_nodes or ranks.is_set_for_each or ranks.is_without_group):
        return
    aliases = _aliases(file)
    calls = [node for node in file.module.parents if isinstance(node, ast.Call)]
    found = [] if _gives_its_own(calls) else [node for node in calls if _is_option(node, aliases)]
    fields = list(_fields(file))
    if (found or fields) and ranks is not None and ranks.is_without_averages:
        return
    is_read = file.local_ranks is None or file.local_ranks.is_read if found else True
    if (found or fields) and ranks is not None and ranks.is_of_one_gpu:
        # The device of its local rank is not there for any process but the first.
        is_read, fields = False, []
    for call in found:
        message = "torchrun sets LOCAL_RANK and passes no option"
        if not is_read and not _is_required(call):
            message = "launchers of PyTorch 2 pass it so spelled"
        actions = list(_actions(file, call, is_read=is_read))
        if actions:
            yield Change(RULE, file.module, call, message, actions)
    for default in fields:
        code = f'int(os.environ.get("LOCAL_RANK", {file.source(default)}))'
        message = "torchrun sets LOCAL_RANK and fills no field"
        yield Change(RULE, file.module, default, message, [Replace(default, substitute(code))])
    if (any(is_read or _is_required(call) for call in found) or fields) and not _imports_os(file):
        where, after = _place_of_import(file)
        edit = Insert(where, "import os", after=after)
        yield Change(RULE, file.module, where, "for os.environ", [edit])


def _gives_its_own(calls: list[ast.Call]) -> bool:
    """Whether the parser only reads options that the file writes out itself: no launcher ever passed any."""
    parsing = [node for node in calls if last_name(node.func) in ("parse_args", "parse_known_args")]
    return bool(parsing) and all(
        node.args and isinstance(node.args[0], ast.List) and node.args[0].elts for node in parsing
    )


def _fields(file: ApexFile) -> Iterator[ast.expr]:
    """Yield the defaults of ``local_rank: int = 0`` in classes from which command lines are parsed."""
    for owner in file.module.nodes:
        if not isinstance(owner, ast.ClassDef):
            continue
        makers = [*owner.bases, *(item.func if isinstance(item, ast.Call) else item for item in owner.decorator_list)]
        of_options = {name for item in makers if (name := file.names.dotted(item)) in CLASSES_OF_OPTIONS}
        if file.local_ranks is not None and not file.local_ranks.parses_dataclasses:
            of_options.discard(DATACLASS)
        if not of_options:
            continue
        for item in owner.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.target.id == _FIELD:
                default = _default(item.value) if isinstance(item.value, ast.Call) else item.value
                if default is not None and _is_number(default):
                    yield default


def _aliases(file: ApexFile) -> frozenset[str]:
    """Names that the method has: ``add = parser.add_argument``."""
    return frozenset(
        target.id
        for node in file.module.nodes
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute) and node.value.attr == _METHOD
        for target in node.targets
        if isinstance(target, ast.Name)
    )


def _is_option(call: ast.Call, aliases: frozenset[str]) -> bool:
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr == _METHOD
    if not (call.args and (is_method or (isinstance(call.func, ast.Name) and call.func.id in aliases))):
        return False
    first = call.args[0]
    if not (isinstance(first, ast.Constant) and first.value in _NAMES):
        return False
    default = _default(call)
    if default is not None and "environ" in ast.unparse(default):
        return False
    return default is None or _is_number(default) or _is_text_or_none(default)


def _is_text_or_none(node: ast.expr) -> bool:
    """``None``, and a number that argparse reads itself: ``"0"``."""
    value = node.value if isinstance(node, ast.Constant) else ""
    return value is None or (isinstance(value, str) and value.lstrip("-").isdigit())


def _is_number(node: ast.expr) -> bool:
    value = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(value, ast.Constant) and type(value.value) is int


def _default(call: ast.Call) -> ast.expr | None:
    return next((item.value for item in call.keywords if item.arg == "default"), None)


def _is_required(call: ast.Call) -> bool:
    required = keyword(call, "required")
    return isinstance(required, ast.Constant) and required.value is True


def _actions(file: ApexFile, call: ast.Call, *, is_read: bool) -> Iterator[Action]:
    default = _default(call)
    quote = file.source(call.args[0])[-1]
    # Without a default it is None outside of a launcher, which scripts ask for; argparse reads a string as it should.
    code = f"os.environ.get({quote}LOCAL_RANK{quote})"
    if default is not None and isinstance(literal(default), str):
        code = f"os.environ.get({quote}LOCAL_RANK{quote}, {file.source(default)})"
    elif default is not None and _is_number(default):
        code = f"int(os.environ.get({quote}LOCAL_RANK{quote}, {file.source(default)}))"
    required = keyword(call, "required")
    if required is not None and _is_required(call):
        yield Replace(required, substitute(f"{quote}LOCAL_RANK{quote} not in os.environ"))
    given = {item.value for item in call.args if isinstance(item, ast.Constant)}
    missing = [name for name in _NAMES if name not in given]
    if not is_read and not _is_required(call):
        if not missing:
            return
    elif default is not None:
        yield Replace(default, substitute(code))
    else:
        yield Replace(call, add_keyword(f"default={code}"))
    if missing:
        yield Replace(call, _also_called(missing[0]))
    yield Replace(call, _within(_WIDTH - file.module.start(call)[1]))


def _also_called(name: str) -> ExpressionEdit:
    def edit(node: cst.BaseExpression) -> cst.BaseExpression:
        call = cst.ensure_type(node, cst.Call)
        first = call.args[0]
        quote = first.value.quote if isinstance(first.value, cst.SimpleString) else '"'
        added = cst.Arg(
            cst.SimpleString(f"{quote}{name}{quote}"), comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        )
        if len(call.args) == 1:
            first = first.with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
            added = added.with_changes(comma=cst.MaybeSentinel.DEFAULT)
        else:
            added = added.with_changes(comma=first.comma)
            first = first.with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
        return call.with_changes(args=[first, added, *call.args[1:]])

    return edit


def _within(width: int) -> ExpressionEdit:
    """A call on one line that is too long by now gets a line for each argument."""

    def edit(node: cst.BaseExpression) -> cst.BaseExpression:
        call = cst.ensure_type(node, cst.Call)
        code = cst.Module([]).code_for_node(call)
        if "\n" in code or len(code) <= width:
            return call
        inner, outer = (
            cst.ParenthesizedWhitespace(cst.TrailingWhitespace(), indent=True, last_line=cst.SimpleWhitespace(space))
            for space in ("    ", "")
        )
        arguments = [item.with_changes(comma=cst.Comma(whitespace_after=inner)) for item in call.args[:-1]]
        last = call.args[-1].with_changes(comma=cst.Comma(whitespace_after=outer))
        return call.with_changes(whitespace_before_args=inner, args=[*arguments, last])

    return edit


def _imports_os(file: ApexFile) -> bool:
    """Whether the name is bound at the head already, as ``import os.path`` does too."""
    return any(("os", "os") in imported_names(node) for node in file.module.tree.body if isinstance(node, ast.Import))


def _place_of_import(file: ApexFile) -> tuple[ast.stmt, bool]:
    """Where ``import os`` stands among the first imports of the file, by the alphabet; and whether after that one."""
    imports = [
        node
        for node in file.module.tree.body
        if isinstance(node, (ast.Import, ast.ImportFrom)) and not _is_future(node)
    ]
    if not imports:
        return import_place(file.module.tree)
    place = imports[0]
    for node in imports:
        if not isinstance(node, ast.Import) or node.names[0].name > "os" or node.lineno > place.lineno + 1:
            break
        place = node
    return place, isinstance(place, ast.Import) and place.names[0].name < "os"


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"
