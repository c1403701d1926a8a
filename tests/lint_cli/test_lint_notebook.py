"""Notebooks: their cells as one text, and the way back."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from amp_migrate.notebook.reading import read_notebook
from amp_rules.source.spans import Position
from amp_rules.source.text import SourceError
from hypothesis import given, settings
from hypothesis import strategies as st
from properties import examples

PYTHON = {"language_info": {"name": "python"}}


def notebook(*cells, **more):
    """A notebook with code cells; a tuple is (type, source)."""
    rows = []
    for cell in cells:
        kind, source = cell if isinstance(cell, tuple) else ("code", cell)
        row = {"cell_type": kind, "metadata": {}, "source": source.splitlines(keepends=True)}
        rows.append({**row, "outputs": [], "execution_count": None} if kind == "code" else row)
    return json.dumps({"cells": rows, "metadata": PYTHON, "nbformat": 4, "nbformat_minor": 5, **more}, indent=1) + "\n"


def test_findings_name_the_cell_and_the_line_in_it(write, invoke):
    write({"a.ipynb": notebook(("markdown", "# Title\nfill(x, 1)"), "import torch\n", "x = 1\n\ny = fill(x, 1)")})
    done = invoke("a.ipynb", "--format", "concise")
    assert done.stdout == "a.ipynb:cell 3:3:5: AMP601 [const-overflow-fill] [*] `fill(x, 1)` is wrong\n"
    document = json.loads(invoke("a.ipynb", "--format", "json").stdout)
    (finding,) = document["findings"]
    assert (finding["cell"], finding["start"]) == (3, {"line": 3, "column": 5})
    assert finding["fix"]["edits"][0]["cell"] == 3
    assert "3 | y = fill(x, 1)\n  |     ^^^^^^^^^^\n" in invoke("a.ipynb", "--format", "full").stdout


@pytest.mark.parametrize("output_format", ["sarif", "github", "gitlab", "rdjson"])
def test_formats_without_cells_say_so_in_the_message(write, invoke, output_format):
    write({"a.ipynb": notebook("x = 1", "fill(x, 1)")})
    text = invoke("a.ipynb", "--format", output_format).stdout
    assert "cell 2:1" in text
    assert "suggestions" not in text
    assert "insertedContent" not in text


@pytest.mark.parametrize(
    ("cell", "lines"),
    [
        ("%matplotlib inline\nfill(x, 1)", [2]),
        ("!pip install torch\nfill(x, 1)", [2]),
        ("!pip install \\\n  torch\nfill(x, 1)", [3]),
        ("%%time\nfill(x, 1)", [2]),
        ("%%bash\nfill(x, 1)", []),
        ("%%writefile a.py\nfill(x, 1)\n(", []),
        ("files = !ls\nfill(x, 1)", [2]),
        ("torch.nn?\nfill(x, 1)", [2]),
        ("?torch\nfill(x, 1)", [2]),
        ("if x:\n    %time y\n    fill(x, 1)", [3]),
        ("x = (a\n% b)\nfill(x, 1)", [3]),
        ('"""\n%d\n"""\nfill(x, 1)', [4]),
        ("await fill(x, 1)", [1]),
        ("", []),
    ],
)
def test_lines_of_ipython_are_passed_over_and_lines_still_count(write, invoke, cell, lines):
    write({"a.ipynb": notebook("y = 1", cell, "z = 1")})
    done = invoke("a.ipynb", "--format", "json")
    document = json.loads(done.stdout)
    assert document["problems"] == []
    assert [(item["cell"], item["start"]["line"]) for item in document["findings"]] == [(2, line) for line in lines]


def test_a_broken_cell_is_named_and_the_others_are_judged(write, invoke):
    write({"a.ipynb": notebook("fill(x, 1)", "x = 1\ny = (", "fill(y, 2)")})
    done = invoke("a.ipynb", "--format", "concise")
    assert done.exit_code == 2
    assert [line.split(": ")[0] for line in done.stdout.splitlines()] == ["a.ipynb:cell 1:1:1", "a.ipynb:cell 3:1:1"]
    assert "error: a.ipynb:cell 2:2:5: syntax error: '(' was never closed; the cell was passed over" in done.stderr


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not a notebook: Expecting value"),
        (b"{", "a.ipynb:1:2: is not a notebook"),
        (b"[]", "is not a notebook"),
        (b"{}", "is not a notebook: it has no cells"),
        (b'{"nbformat": 3, "worksheets": []}', "is a notebook of an old format"),
        (b"\xff", "is not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_notebook_is_an_error(write, invoke, data, message):
    write({"a.ipynb": data, "b.py": "fill(x, 1)\n"})
    done = invoke("a.ipynb", "b.py", "--format", "concise")
    assert done.exit_code == 2
    assert message in done.stderr
    assert "b.py:1:1: AMP601" in done.stdout


def test_odd_cells_and_other_languages_hold_nothing(write, invoke):
    document = json.loads(notebook("fill(x, 1)"))
    document["cells"] += [3, {"cell_type": "code"}, {"cell_type": "code", "source": "log(x)\n"}, {"source": None}]
    write({"a.ipynb": json.dumps(document)})
    assert [line.split()[2] for line in invoke("a.ipynb", "--format", "concise").stdout.splitlines()] == [
        "AMP601",
        "AMP602",
    ]
    document["metadata"] = {"kernelspec": {"language": "R"}}
    write({"a.ipynb": json.dumps(document)})
    assert invoke("a.ipynb").exit_code == 0


def test_what_is_ipythons_is_shown_as_it_is(write, invoke):
    write({"a.ipynb": notebook("!ls\nfill(x, 1)\n%time z = fill(x, 1)")})
    shown = invoke("a.ipynb", "--format", "full").stdout
    assert "1 | !ls\n2 | fill(x, 1)\n" in shown and "3 | %time z = fill(x, 1)\n" in shown
    assert "a.ipynb:cell 1:3:11: AMP601" in shown


def test_suppressions_work_in_cells(write, invoke):
    write({"a.ipynb": notebook("# amp: ignore-file[AMP7]\nfill(x, 1)  # noqa", "half(x)")})
    assert invoke("a.ipynb").exit_code == 0


# ---- fixes ---------------------------------------------------------------------------------------------------


def test_fixes_change_nothing_but_their_cells(write, invoke):
    before = notebook(
        ("markdown", "# 标题 \u2028"),
        "%matplotlib inline\nimport torch",
        "!ls\ny = fill(x, 1)  # 中文\n%time z",
        "odd   =  1",
        "def bare(x):\n    return x\n",
    )
    path = write({"a.ipynb": before})
    done = invoke("a.ipynb", "--fix")
    assert (done.exit_code, done.stdout) == (0, "")
    after = path.read_text()
    assert [row["source"] for row in json.loads(after)["cells"]] == [
        json.loads(before)["cells"][0]["source"],
        ["%matplotlib inline\n", "import torch\n", "from t import keep"],
        ["!ls\n", "y = full(x)  # 中文\n", "%time z"],
        ["odd   =  1"],
        ["@keep\n", "def bare(x):\n", "    return x\n"],
    ]
    changed = ['"y = fill(x, 1)', '"import torch"', '"def bare(x)']
    untouched = [line for line in before.splitlines() if not any(word in line for word in changed)]
    assert [line for line in untouched if line not in after.splitlines()] == []
    assert invoke("a.ipynb", "--fix").stderr == "nothing found in 1 file\n"
    assert path.read_text() == after


@pytest.mark.parametrize("indent", [None, 1, 4])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_the_layout_of_the_file_is_kept(write, invoke, indent, ascii_only):
    document = json.loads(notebook("y = fill('é', 1)\nz = 1", "half('é')\nx = 1"))
    document["cells"][1]["source"] = "half('é')\nx = 'é'"
    path = write({"a.ipynb": json.dumps(document, indent=indent, ensure_ascii=ascii_only)})
    assert invoke("a.ipynb", "--fix").exit_code == 0
    document["cells"][0]["source"][0] = "y = full('é')\n"
    document["cells"][1]["source"] = "x = 'é'"
    assert path.read_text() == json.dumps(document, indent=indent, ensure_ascii=ascii_only)


def test_lines_that_stay_keep_their_way_of_writing(write, invoke):
    before = notebook("y = 'MARK'\nz = fill(x, 1)").replace("MARK", "\\u003c\\/a>")
    path = write({"a.ipynb": before})
    assert invoke("a.ipynb", "--fix").exit_code == 0
    assert path.read_text() == before.replace("fill(x, 1)", "full(x)")


def test_a_broken_cell_stays_as_it_is(write, invoke):
    path = write({"a.ipynb": notebook("y = fill(x, 1)", "print 'x'", "%%bash\nls")})
    assert invoke("a.ipynb", "--fix").exit_code == 2
    sources = [row["source"] for row in json.loads(path.read_text())["cells"]]
    assert sources == [["y = full(x)"], ["print 'x'"], ["%%bash\n", "ls"]]


# ---- any notebook --------------------------------------------------------------------------------------------

CELLS = st.lists(
    st.sampled_from(
        [
            "x = 1",
            "x = 1\n",
            "",
            "\n\n",
            "%time x\ny = 2",
            "!ls",
            "%%bash\nls\nls",
            "if x:\n    !ls\n",
            "x = (",
            "'\u2028'",
        ]
    )
    | st.tuples(st.just("markdown"), st.text(st.characters(codec="utf-8"), max_size=5)),
    max_size=6,
)


@settings(max_examples=examples(100), deadline=None)
@given(CELLS)
def test_every_line_of_the_joined_text_leads_back_to_its_cell(cells):
    data = notebook(*cells).encode()
    found = read_notebook(data, Path("a.ipynb"))
    ast.parse(found.source.text)
    lines = found.source.text.split("\n")
    by_number = {cell.number: cell for cell in found.cells}
    for number, line in enumerate(lines[:-1], start=1):
        place = found.places.locate(Position(number, 1))
        assert by_number[place.cell].python.split("\n")[place.line - 1] == line
    assert [cell.text for cell in found.cells] == [
        "".join(row["source"]) for row in json.loads(data)["cells"] if row["cell_type"] == "code"
    ]
    for cell in found.cells:
        assert cell.skipped or cell.restored(cell.python) == cell.text


@settings(max_examples=examples(100), deadline=None)
@given(CELLS, st.sampled_from([None, 1, 2]))
def test_new_texts_go_where_they_belong(cells, indent):
    document = json.loads(notebook(*cells))
    data = json.dumps(document, indent=indent).encode()
    found = read_notebook(data, Path("a.ipynb"))
    assert found.updated({}) == data
    texts = {cell.number: "new\ntext" for cell in found.cells[::2]}
    for number in texts:
        document["cells"][number - 1]["source"] = ["new\n", "text"]
    updated = found.updated(texts)
    assert json.loads(updated) == document


def test_a_source_error_names_the_file():
    with pytest.raises(SourceError, match=r"a\.ipynb"):
        read_notebook(b"[", Path("a.ipynb"))
