"""Notebooks for the tests: built from cells, and taken apart again."""

from __future__ import annotations

import json

PYTHON = {"kernelspec": {"display_name": "Python 3", "name": "python3"}, "language_info": {"name": "python"}}
IMAGE = {"data": {"image/png": "iVBORw0K\n"}, "output_type": "display_data", "metadata": {"é": "\u2028"}}


def notebook(*cells, indent=1, **more):
    """A notebook as Jupyter writes it; a tuple is (type, source), and plain text is code that has been run."""
    rows = []
    for number, cell in enumerate(cells):
        kind, source = cell if isinstance(cell, tuple) else ("code", cell)
        row = {"cell_type": kind, "id": f"id{number}", "metadata": {"tags": []}}
        if kind == "code":
            row |= {"execution_count": number, "outputs": [IMAGE]}
        rows.append({**row, "source": source.splitlines(keepends=True)})
    document = {"cells": rows, "metadata": PYTHON, "nbformat": 4, "nbformat_minor": 5, **more}
    return (json.dumps(document, indent=indent, ensure_ascii=False) + "\n").encode()


def sources(data):
    """The source of each cell, as one text."""
    return ["".join(cell["source"]) for cell in json.loads(data)["cells"]]


def without_sources(data, numbers):
    """The document without the sources of some cells, counted from 1."""
    document = json.loads(data)
    for number in numbers:
        del document["cells"][number - 1]["source"]
    return document
