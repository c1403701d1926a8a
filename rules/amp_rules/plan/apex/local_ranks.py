"""What a program makes of its option `--local_rank`, and where options come from the fields of classes."""

from __future__ import annotations

import ast
import re
import sys
from functools import cached_property

from amp_rules.plan.own_ddp.group import OwnGroup
from amp_rules.plan.own_ddp.launchers import Starts
from amp_rules.plan.own_ddp.visible_gpus import gpu_of_all
from amp_rules.plan.own_processes import averages_nothing
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import last_name
from amp_rules.torch.command_lines import CLASSES_THAT_PARSE_DATACLASSES, PARSERS_OF_DATACLASSES, PARSING
from amp_rules.torch.distributed import ASKS_GROUP, ASKS_RANK, JOINING_WORDS, JOINS, PROCESSES

_NAME = "local_rank"
_NAMED = re.compile(r"(?<!-)\blocal_rank\b")
_SPREAD = re.compile(r"\bvars\(|\.__dict__\b")
_ALL_OPTIONS = re.compile(r"_get_kwargs|\bgetattr\(\w*(args|opt|cfg|config)\w*, *[^\"' ]")
_MAX_ROUNDS = 4
"""Functions that hand the arguments on: ``main``, ``Trainer.__init__``, and what that calls."""

_SHOWS = frozenset("print format str repr pprint pformat info debug".split())
"""What writes arguments out, and does nothing by one of them."""

_SILENT = frozenset({"builtins", "numpy", "omegaconf", "tensorboardX", "timm", "torch", "wandb", "yaml"})
"""Packages that are given all arguments and ask for no rank on the machine among them."""

_PARSES = re.compile("|".join((*CLASSES_THAT_PARSE_DATACLASSES, r"\bfields\(", "__dataclass_fields__")))


class LocalRanks:
    """Answers for one program."""

    def __init__(self, program: Program) -> None:
        self._program = program

    @cached_property
    def is_of_nodes(self) -> bool:
        """Whether the option is the number of the machine: ``rank = args.local_rank * gpus + gpu`` in a worker.

        The script starts a process for each GPU there, and torchrun would start as many scripts.
        """
        return (
            any(
                isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and self._is_rank_of_all(node)
                for node, _, _ in self._program.nodes()
            )
            and Starts(self._program, self._program.calls_to(JOINS)).by_script
        )

    def _is_rank_of_all(self, node: ast.BinOp) -> bool:
        products = [side for side in (node.left, node.right) if isinstance(side, ast.BinOp)]
        if not any(
            isinstance(side.op, ast.Mult) and _NAME in (_last(side.left), _last(side.right)) for side in products
        ):
            return False
        located = self._program.locate(node)
        if located is None:
            return False
        module = located[1].module
        parent = module.parents[node]
        if isinstance(parent, ast.keyword):
            return parent.arg == "rank"
        return any("rank" in path for path in blocks.writes(blocks.statement_of(module, node)))

    @cached_property
    def is_without_group(self) -> bool:
        """Whether the program asks a group of processes that nothing creates: by its option it stays one process."""
        texts = [module.source.text for module in self._program.flow.modules]
        if any(word in text for word in JOINING_WORDS for text in texts) or self._program.calls_to(JOINS):
            return False
        return bool(self._program.calls_to(ASKS_GROUP - ASKS_RANK))

    @cached_property
    def is_without_averages(self) -> bool:
        """Whether the program joins a process group in which nothing averages the gradients.

        By torchrun's rank it would leave the way of one process, on which each trains as it is written.
        """
        return bool(self._program.calls_to(JOINS)) and averages_nothing(self._program)

    @cached_property
    def is_of_one_gpu(self) -> bool:
        """Whether the script leaves all processes one GPU, and the same: there is none of another local rank."""
        return gpu_of_all(OwnGroup(self._program)) is not None

    @cached_property
    def is_read(self) -> bool:
        """Whether something may read the option: by its name, or all of the arguments by code that is not known."""
        if self.is_set:
            return False
        texts = [module.source.text for module in self._program.flow.modules]
        if self._is_named or any(map(_ALL_OPTIONS.search, texts)):
            return True
        if self._are_parameters and any(map(_NAMED.search, texts)):
            return True
        names = self._names_of_arguments
        return not names or any(self._is_given_to_others(call, scope) for call, _, scope in self._program.calls())

    @cached_property
    def _is_named(self) -> bool:
        """Whether something reads an attribute of that name, or asks for one by a text."""
        return any(
            (isinstance(node, ast.Attribute) and node.attr == _NAME and isinstance(node.ctx, ast.Load))
            or (isinstance(node, ast.Constant) and node.value == _NAME)
            for module in self._program.flow.modules
            for node in module.nodes
        )

    @cached_property
    def _are_parameters(self) -> bool:
        """Whether all arguments become those of a function, by their names: ``main(**vars(args))``."""
        spread = (part.value for call, _, _ in self._program.calls() for part in call.keywords if part.arg is None)
        return any(_SPREAD.search(ast.unparse(value)) for value in spread)

    @cached_property
    def is_set(self) -> bool:
        """Whether the script sets the option by what torchrun says: ``args.local_rank = int(os.environ[...])``.

        A function may tell it, beside others: ``args.local_rank, args.rank = ranks_of_environment()``.
        """
        return any(_is_of_torchrun(value) or self._is_told_by_function(value) for value, _ in self._sets)

    def _is_told_by_function(self, value: ast.expr) -> bool:
        called = self._program.flow.callees(value) if isinstance(value, ast.Call) else set()
        return bool(called) and all(info.returns and _is_of_torchrun(info.node) for info in called)

    @cached_property
    def is_set_for_each(self) -> bool:
        """Whether the script sets the option before it starts each process."""
        starting = {site.body for site in self._program.calls_to(PROCESSES)}
        return any(isinstance(value, ast.Name) and body in starting for value, body in self._sets)

    @cached_property
    def _sets(self) -> list[tuple[ast.expr, ast.AST]]:
        """What is assigned to the option, and in which body."""
        return [
            (value, body)
            for node, body, _ in self._program.nodes()
            if isinstance(node, ast.Assign)
            for target in node.targets
            for part, value in blocks.unpacked(target, node.value)
            if self._is_option(part)
        ]

    def _is_option(self, target: ast.AST) -> bool:
        return (
            isinstance(target, ast.Attribute)
            and target.attr == _NAME
            and _last(target.value) in self._names_of_arguments
        )

    @cached_property
    def _names_of_arguments(self) -> set[str]:
        """The names and attributes that hold what was parsed, through functions that take it or give it back."""
        found: set[str] = set()
        for _ in range(_MAX_ROUNDS):
            before = len(found)
            for node, _, _ in self._program.nodes():
                if isinstance(node, ast.Assign) and self._holds(node.value, found):
                    found |= {name for target in node.targets if (name := _last(_parsed(target, node.value)))}
            for call, _, _ in self._program.calls():
                for info in self._program.flow.callees(call):
                    given = ((name, info.argument(call, name)) for name in info.parameters)
                    found |= {name for name, value in given if value is not None and _last(value) in found}
            if len(found) == before:
                break
        return found

    def _holds(self, value: ast.expr, names: set[str]) -> bool:
        if not isinstance(value, ast.Call):
            return _last(value) in names
        given_back = (item for info in self._program.flow.callees(value) for item in info.returns)
        return last_name(value.func) in PARSING or any(
            _last(item) in names or (isinstance(item, ast.Call) and last_name(item.func) in PARSING)
            for item in given_back
        )

    def _is_given_to_others(self, call: ast.Call, scope: Scope) -> bool:
        given = (*call.args, *(part.value for part in call.keywords))
        if not any(_last(item) in self._names_of_arguments for item in given) or self._program.flow.callees(call):
            return False
        packages = {name.partition(".")[0] for name in self._program.callee_names(call, scope)}
        if packages and packages <= _SILENT | sys.stdlib_module_names:
            return False
        return last_name(call.func) not in _SHOWS

    @cached_property
    def parses_dataclasses(self) -> bool:
        """Whether some parser of the program may make options of the fields of a dataclass."""
        if PARSERS_OF_DATACLASSES & {name.split(".")[0] for name in self._program.flow.imported}:
            return True
        return any(_PARSES.search(module.source.text) for module in self._program.flow.modules)


def _parsed(target: ast.expr, value: ast.expr) -> ast.expr:
    """``args`` of ``args, unknown = parser.parse_known_args()``."""
    place = PARSING.get(last_name(value.func), (None,))[0] if isinstance(value, ast.Call) else None
    return target.elts[place] if place is not None and isinstance(target, ast.Tuple) else target


def _is_of_torchrun(value: ast.AST) -> bool:
    text = ast.unparse(value)
    return "environ" in text and "LOCAL_RANK" in text


def _last(node: ast.AST) -> str:
    return last_name(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""
