"""Read the data of a dataset by its present name.

## What it does
`mnist.train_data` and `mnist.test_data` become `mnist.data`, `mnist.train_labels` and `mnist.test_labels` become
`mnist.targets`: for the MNIST family and for CIFAR of torchvision.

## Why
torchvision 0.2.2 gave both parts one name. MNIST still has the old ones, with a warning; CIFAR does not.

## Before
    inputs = train_set.train_data.float() / 255

## After
    inputs = train_set.data.float() / 255

## When it declines
Where the object is not known to be one of these datasets.

## Leaving it out
Yes: MNIST warns, CIFAR raises AttributeError.

## Source
https://pytorch.org/vision/stable/generated/torchvision.datasets.MNIST.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change
from amp_rules.plan.old_torch.edits import last_name
from amp_rules.plan.old_torch.old import OldProgram, change
from amp_rules.plan.rule import Rule
from amp_rules.source.modules import Module
from amp_rules.text.actions import Replace
from amp_rules.torch import old_torch as old_names
from amp_rules.torch.canonical_names import canonical

RULE = Rule("AMP517", "dataset-attributes", "The data of a dataset is read by its name.", "modern", optional=True)


def changes(old: OldProgram) -> Iterator[Change]:
    """Yield an edit for each old attribute."""
    for module, node in old.nodes():
        if not isinstance(node, ast.Attribute) or node.attr not in old_names.DATASET_ATTRIBUTES:
            continue
        if _is_dataset(old, module, node.value):
            new = old_names.DATASET_ATTRIBUTES[node.attr]
            message = f"`{node.attr}` is called `{new}`, whichever part it is"
            yield change(RULE, module, node, message, Replace(node, last_name(new)))


def _is_dataset(old: OldProgram, module: Module, node: ast.expr) -> bool:
    values = old.program.flow.values(node, old.tensors.names[module].scope_of(node))
    return bool(values) and all(
        value.kind == "object" and isinstance(value.ref, str) and canonical(value.ref) in old_names.DATASETS
        for value in values
    )
