"""What a program makes of its option `--local_rank`, and where options come from the fields of classes."""

from __future__ import annotations

import ast
import re
from functools import cached_property

from amp_rules.plan.own_ddp.launchers import Starts
from amp_rules.roles.steps import Program
from amp_rules.source import blocks
from amp_rules.source.syntax import last_name
from amp_rules.torch.command_lines import CLASSES_THAT_PARSE_DATACLASSES, PARSERS_OF_DATACLASSES
from amp_rules.torch.distributed import JOINS

_NAME = "local_rank"
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
    def parses_dataclasses(self) -> bool:
        """Whether some parser of the program may make options of the fields of a dataclass."""
        if PARSERS_OF_DATACLASSES & {name.split(".")[0] for name in self._program.flow.imported}:
            return True
        return any(_PARSES.search(module.source.text) for module in self._program.flow.modules)


def _last(node: ast.expr) -> str:
    return last_name(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""
