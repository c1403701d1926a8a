"""An error of the tool says where it came up: in which function, and at which line of whose code."""

from __future__ import annotations

import ast

from amp_migrate.internal_errors import where
from amp_migrate.problems import Problem
from amp_rules.source import blocks
from amp_rules.source.modules import parse
from amp_rules.source.text import read_source


def raised(call):
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_the_line_that_was_looked_at_is_named(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("import torch\n\nmodel = torch.nn.Linear(4, 2)\n")
    module = parse(read_source(path))

    def look(node):
        raise KeyError(node)

    def analyse(module):
        look(next(node for node in module.nodes if isinstance(node, ast.Call)))

    assert where(raised(lambda: analyse(module))) == " (at line 3 of train.py)"


def test_the_function_of_the_tool_is_named(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("x = 1\n")
    module = parse(read_source(path))
    stranger = ast.parse("y = 2").body[0]
    error = raised(lambda: blocks.place(module, stranger))
    problem = Problem.from_exception(path, error, "the file was left as it was")
    assert "internal error: KeyError" in problem.message
    assert "please report; the file was left as it was (in amp_rules.source.blocks.place, at line 1)" in problem.message


def test_an_error_without_a_place_says_nothing_of_one():
    assert where(raised(lambda: {}["missing"])) == ""
