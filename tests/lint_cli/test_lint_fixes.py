"""Carrying out single fixes on the syntax tree, and the same as replacements of text."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from amp_migrate.lint.patches import apply_patch, patch_of
from amp_rules.lint.finding import Fix, TextEdit
from amp_rules.lint.fixes import apply_fixes
from amp_rules.lint.resolved_edits import EditResolver
from amp_rules.source.modules import parse
from amp_rules.source.text import SourceError, source_from_bytes
from hypothesis import given, settings
from hypothesis import strategies as st
from properties import examples


def node_at(module, source):
    """The outermost expression or statement whose text is ``source``."""
    for node in ast.walk(module.tree):
        if isinstance(node, (ast.expr, ast.stmt)) and ast.get_source_segment(module.source.text, node) == source:
            return node
    raise AssertionError(f"no {source!r}")


def fix_for(module, *edits):
    """A fix whose edits are (kind, source of the node, text)."""
    return Fix(
        "title",
        "safe",
        tuple(TextEdit(kind, module.span(expression(module, kind, source)), text) for kind, source, text in edits),
    )


def expression(module, kind, source):
    if kind == "import":
        return module.tree.body[0]
    if kind == "decorate":
        return next(node for node in ast.walk(module.tree) if getattr(node, "name", "") == source)
    return node_at(module, source)


def mended(text, *fixes):
    source = source_from_bytes(text.encode(), Path("a.py"))
    module = parse(source)
    return apply_fixes(source, [fix_for(module, *edits) for edits in fixes])


@pytest.mark.parametrize(
    ("before", "edit", "after"),
    [
        ("y = f(x, 1e-12)\n", ("replace", "1e-12", "1e-7"), "y = f(x, 1e-7)\n"),
        ("y = (x + 1).sum()  # c\n", ("replace", "x + 1", "x - 1"), "y = (x - 1).sum()  # c\n"),
        ("y = x.sum()\n", ("replace", "x", "x + 1"), "y = (x + 1).sum()\n"),
        ("y = 2 * x\n", ("replace", "x", "a + b"), "y = 2 * (a + b)\n"),
        ("y = a * b\n", ("replace", "a * b", "a * c"), "y = a * c\n"),
        ("y = f(x)\n", ("replace", "x", "a + b"), "y = f(a + b)\n"),
        ("y = f(x)\n", ("replace", "x", "(a, b)"), "y = f((a, b))\n"),
        ("y = f(x)\n", ("replace", "f", "a or b"), "y = (a or b)(x)\n"),
        ("y = (\n    x\n)\n", ("replace", "x", "f(x)"), "y = (\n    f(x)\n)\n"),
        ("y = x if c else z\n", ("replace", "x", "lambda: 0"), "y = (lambda: 0) if c else z\n"),
        ("y = not x\n", ("replace", "x", "a and b"), "y = not (a and b)\n"),
        ("y = x\n", ("replace", "x", "a and b"), "y = a and b\n"),
        ("return_ = [x, z]\n", ("replace", "x", "a if b else c"), "return_ = [(a if b else c), z]\n"),
        ("变量 = '中文', f(x)\n", ("replace", "f(x)", "g(x)"), "变量 = '中文', g(x)\n"),
        ("a()\nb()\n", ("insert before", "b()", "c()"), "a()\nc()\nb()\n"),
        ("a()\n# about b\nb()\n", ("insert before", "b()", "c()"), "a()\nc()\n# about b\nb()\n"),
        ("if x:\n    b()  # c\n", ("insert after", "b()", "c()"), "if x:\n    b()  # c\n    c()\n"),
        ("f(\n    x\n)\nb()\n", ("insert after", "f(\n    x\n)", "c()"), "f(\n    x\n)\nc()\nb()\n"),
        ("a()\nb()  # c\nd()\n", ("remove", "b()", ""), "a()\nd()\n"),
        ("a()\n# about b\nb()\nd()\n", ("remove", "b()", ""), "a()\n# about b\nd()\n"),
        ("if x:\n    b()\nd()\n", ("remove", "b()", ""), "if x:\n    pass\nd()\n"),
        ("def f(x):\n    pass\n", ("decorate", "f", "g(1)"), "@g(1)\ndef f(x):\n    pass\n"),
        ("@a\n# c\ndef f(x):\n    pass\n", ("decorate", "f", "g"), "@a\n# c\n@g\ndef f(x):\n    pass\n"),
        (
            "class A:\n    async def f(x):\n        pass\n",
            ("decorate", "f", "g"),
            "class A:\n    @g\n    async def f(x):\n        pass\n",
        ),
        (
            '"""Doc."""\nimport torch\nimport os\n',
            ("import", "", "from torch import nn"),
            '"""Doc."""\nimport torch\nfrom torch import nn\nimport os\n',
        ),
        ("from torch import nn, cuda\n", ("import", "", "from torch import nn"), "from torch import nn, cuda\n"),
    ],
)
def test_each_kind_of_edit_changes_its_place_only(before, edit, after):
    assert mended(before, [edit]).text == after
    module = parse(source_from_bytes(before.encode(), Path("a.py")))
    patch = patch_of(fix_for(module, edit), EditResolver(module))
    assert patch is not None
    assert apply_patch(before, patch) == after


@pytest.mark.parametrize(
    ("before", "edit", "after"),
    [
        ("if x: b()\n", ("insert before", "b()", "c()"), "if x:\n    c()\n    b()\n"),
        ("a(); b()\n", ("remove", "b()", ""), "a()\n"),
        ("if x: b()\n", ("remove", "b()", ""), "if x:\n    pass\n"),
        ("b()", ("insert after", "b()", "c()"), "b()\nc()"),
        ("class A: f = 1\n", ("decorate", "A", "g"), "@g\nclass A: f = 1\n"),
    ],
)
def test_where_statements_share_a_line_only_the_tree_knows(before, edit, after):
    assert mended(before, [edit]).text == after
    module = parse(source_from_bytes(before.encode(), Path("a.py")))
    patch = patch_of(fix_for(module, edit), EditResolver(module))
    assert patch is None or apply_patch(before, patch) == after


def test_overlapping_fixes_wait_and_equal_edits_are_made_once():
    text = "import torch\ny = f(g(x))\nz = h(x)\n"
    outer, inner = [("replace", "f(g(x))", "f(x)")], [("replace", "g(x)", "x")]
    both = mended(text, outer, inner)
    assert (both.text, len(both.applied)) == ("import torch\ny = f(x)\nz = h(x)\n", 1)
    new = ("import", "", "import math")
    two = mended(text, [("replace", "f(g(x))", "a"), new], [("replace", "h(x)", "b"), new])
    assert (two.text, len(two.applied)) == ("import torch\nimport math\ny = a\nz = b\n", 2)


def test_what_a_removed_statement_holds_is_not_changed_as_well():
    removed = [("remove", "f(x)", "")]
    found = mended("f(x)\ng()\n", removed, [("replace", "x", "y")], [("insert before", "f(x)", "h()")])
    assert (found.text, len(found.applied)) == ("g()\n", 1)
    found = mended("def f(x):\n    g()\n    h()\n", [("decorate", "f", "d")], [("remove", "g()", "")])
    assert (found.text, len(found.applied)) == ("@d\ndef f(x):\n    h()\n", 2)


def test_a_fix_whose_place_is_gone_is_left_out():
    source = source_from_bytes(b"x = 1\n", Path("a.py"))
    other = parse(source_from_bytes(b"yy = f(2)\n", Path("a.py")))
    fix = fix_for(other, ("replace", "f(2)", "3"))
    assert apply_fixes(source, [fix]).applied == ()
    assert patch_of(fix, EditResolver(parse(source))) is None


def test_line_ends_and_byte_order_marks_are_kept():
    source = source_from_bytes(b"\xef\xbb\xbfimport torch\r\ndef f():\r\n    a()\r\n    b()\r\n", Path("a.py"))
    module = parse(source)
    fix = fix_for(module, ("insert before", "b()", "c()"), ("remove", "a()", ""))
    text = apply_fixes(source, [fix]).text
    assert source.encode(text) == b"\xef\xbb\xbfimport torch\r\ndef f():\r\n    c()\r\n    b()\r\n"
    patch = patch_of(fix, EditResolver(module))
    assert patch is not None
    assert apply_patch(source.text, patch) == text


OPERANDS = ["x", "1", "f(x)", "a + b", "-a", "a if b else c", "lambda: 0", "a < b", "a, b", "(a for a in b)", "not a"]
PLACES = [
    "y = {}",
    "f({})",
    "f(k={})",
    "({}).g",
    "[{}, z]",
    "2 * ({})",
    "({}) ** 2",
    "w[{}]",
    "{{k: ({})}}",
    "f(*({}))",
    "({}) if p else q",
    "z = w = {}",
    "assert ({})",
]


@settings(max_examples=examples(100), deadline=None)
@given(st.sampled_from(PLACES), st.sampled_from(OPERANDS), st.sampled_from(OPERANDS))
def test_a_replacement_stands_where_the_old_operand_stood(place, old, new):
    text = place.format(old) + "\n"
    wanted = ast.dump(ast.parse(place.format(f"({new})")))
    try:
        module = parse(source_from_bytes(text.encode(), Path("a.py")))
        node = node_at(module, old)
    except (SourceError, AssertionError):
        # ``f(k=a, b)``, or ``-a`` in ``(-a) ** 2``, whose parentheses are no part of it.
        return
    if ast.dump(ast.parse(text)) != ast.dump(ast.parse(place.format(f"({old})"))) or (old, place) == ("a, b", "w[{}]"):
        # The place takes the operand apart, or LibCST knows several indices but no tuple.
        return
    fix = Fix("t", "safe", (TextEdit("replace", module.span(node), new),))
    assert ast.dump(ast.parse(apply_fixes(module.source, [fix]).text)) == wanted
    patch = patch_of(fix, EditResolver(module))
    assert patch is not None
    assert ast.dump(ast.parse(apply_patch(text, patch))) == wanted
