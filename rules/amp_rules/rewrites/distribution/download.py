"""Download data once.

## What it does
Statements that may download a data set run under `with amp.main_process_first():`, together with a condition around
them that asks for the files, or of which each branch downloads: the others find them, and would not come by. So do
those that make a data set which is worked up on its first use and kept in a folder: data sets of `torch_geometric`,
`dgl` and `ogb`, the script's own classes that derive from theirs, and calls of libraries that are given a folder for
it, `cache_dir=` or `io_path=`. And so do `from_pretrained` of `pytorch_transformers` and `pytorch_pretrained_bert`,
`clip.load`, `whisper.load_model` and Keras' `get_file`, which keep no lock, and what trains a vocabulary where its file
is missing (`sentencepiece`).

## Why
Processes that download to one folder at the same time break each other's files; those that come later find
them there.

## Before
    train_set = datasets.MNIST("data", download=True)

## After
    with amp.main_process_first():
        train_set = datasets.MNIST("data", download=True)

## When it declines
In functions that nothing in the program calls: whether all processes come by is not known.

## Leaving it out
No: processes that download to one folder break each other's files. Download beforehand, and the call can go.

## Source
https://huggingface.co/docs/accelerate/concept_guides/deferring_execution
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.cached_data import folds_of_training
from amp_rules.plan.context import Change, Context, adjacent
from amp_rules.plan.rule import Rule
from amp_rules.source import blocks
from amp_rules.source.modules import Module

_LOADER = "AMP202"
_MODEL = "AMP108"

_Group = tuple[Module, ast.stmt, ast.stmt]

RULE = Rule(
    "AMP207",
    "download-once",
    "The main process downloads, the others find the files.",
    "distribution",
    after=(_LOADER,),
)


def changes(context: Context) -> Iterator[Change]:
    """Yield a block for each group of statements that may download."""
    loaders = {
        blocks.statement_of(change.module, change.node)
        for change in context.made
        if change.rule.code == _LOADER and not isinstance(change.node, ast.stmt)
    }
    # A loader is prepared after its own block, not in the middle of a longer one; a model after the block that it ends.
    alone = [item for item in context.processes.downloads if item[1] in loaders]
    others = [item for item in context.processes.downloads if item[1] not in loaders]
    models = {change.node for change in context.made if change.rule.code == _MODEL}
    groups = [part for group in adjacent(others) for part in _ending_at(models, *group)]
    for module, first, last in [*groups, *((module, item, item) for module, item in alone)]:
        written = context.vocabulary.main_process_first(module, first, last)
        yield Change.written(RULE, module, first, "the main process downloads first", written)
    for site, loop in folds_of_training(context.program):
        assert isinstance(site.node, ast.Call)
        written = context.vocabulary.asked_once_before(site.module, loop, site.node)
        yield Change.written(RULE, site.module, loop, "the main process writes the split first", written)


def _ending_at(ends: set[ast.AST], module: Module, first: ast.stmt, last: ast.stmt) -> Iterator[_Group]:
    """Yield the parts of a group of which the statements given are the last."""
    suite = blocks.place(module, first).suite
    for item in suite[suite.index(first) : suite.index(last) + 1]:
        if item is last or item in ends:
            yield module, first, item
            following = suite.index(item) + 1
            first = suite[following] if item is not last else first
