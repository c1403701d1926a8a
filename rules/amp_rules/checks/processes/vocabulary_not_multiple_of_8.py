"""Vocabularies whose size Tensor Cores have to pad."""

from __future__ import annotations

import ast
import re

from amp_rules.checks.common.calls import calls_named, own_name_of
from amp_rules.checks.common.mixed_types import MATRIX_PRODUCTS
from amp_rules.checks.common.origins import Origin, argument, origins
from amp_rules.lattice.mode import Mode
from amp_rules.lint.check import Check, LintedFile
from amp_rules.lint.finding import Severity
from amp_rules.source.facts import ModuleFacts
from amp_rules.source.index import literal
from amp_rules.source.syntax import last_name

_SIZES = {"Linear": (1, "out_features"), "Embedding": (0, "num_embeddings")}
_NUMBER = re.compile(r"(?<![\w.])(?:[5-9]\d{3}|[1-9]\d{4,6})(?![\w.])")
_PRODUCTS = MATRIX_PRODUCTS | {"linear"}
_LARGE = 5000
"""Numbers of classes are smaller, and cost little."""
_NAMED = re.compile(r"(\w+)[\"']?\s*(?::\s*\w+\s*)?[:=]\s*$")
"""What a written number is given to."""


class VocabularyNotMultipleOf8(Check):
    """Vocabularies whose size Tensor Cores have to pad.

    ## What it does

    Finds output layers of 5000 rows and more whose number, written in the file, is not a multiple of 8, and embeddings
    whose table is that of the output.

    ## Why

    The product with the vocabulary is the largest of a small language model. Tensor Cores multiply half matrices in
    tiles of 8 (16 bytes of alignment): with 50257 = 8 * 6282 + 1 columns only 1 row in 8 is aligned, and cuBLAS takes
    a kernel that is several times slower. Padded to 50304, the first 50257 outputs are the same numbers.

    ## Example

        self.head = nn.Linear(768, 50257)

    ## Use instead

        self.head = nn.Linear(768, 50304)

    ## When it is silent

    For embeddings that are only looked up, for sizes below 5000, and for those that do not stand in the file: settings,
    parameters without a default, parameters that a call gives something else.

    ## Source

    https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html
    """

    code = "AMP957"
    name = "vocabulary-not-multiple-of-8"
    severity = "performance"
    message = "The size of a vocabulary is not a multiple of 8."
    advice = "Round the size up to a multiple of 8 (64 is better still) and ignore what is beyond."
    triggers = ("Linear(", "Embedding")

    def applies(self, mode: Mode) -> bool:
        """Tensor Cores are in GPUs."""
        return mode.device == "cuda"

    def visit_module(self, file: LintedFile) -> None:
        """Judge the sizes of large layers."""
        module = file.module
        names = _names_of_sizes(module.module.source.text)
        if not names:
            return
        for call in calls_named(module, _SIZES):
            name = own_name_of(module, call)
            if not (module.dotted(call.func) or "").startswith("torch.nn.") or name not in _SIZES:
                continue
            place, keyword = _SIZES[name]
            given = argument(module, call, keyword, place)
            if given is None or not (names & _words(given.node) or literal(given.node) is not None):
                continue
            size = _number(given)
            if size is not None and _is_odd(size):
                if name == "Embedding" and not _is_multiplied_by(module, call):
                    continue  # A lookup.
                message = f"`{ast.unparse(given.node)}` of this {name} is not a multiple of 8"
                where = given.node if given.module is module else call
                # A table is multiplied by only where the output shares it.
                severity: Severity | None = "info" if name == "Embedding" else None
                self.report_in(file, where, f"{message}: {size} = 8 * {size // 8} + {size % 8}", severity=severity)


def _names_of_sizes(text: str) -> set[str]:
    """The words of layers in a text that are such numbers, or are given one somewhere: following a size takes long."""
    used = {word.lower() for layer in _LAYER.findall(text) for word in _WORD.findall(layer)}
    found = {word for word in used if word.isdigit() and _is_odd(int(word))}
    for number in _NUMBER.finditer(text):
        if _is_odd(int(number[0])):
            named = _NAMED.search(text, max(0, number.start() - _NEAR), number.start())
            if named and named[1].lower() in used:
                found.add(named[1].lower())
    return found


_LAYER = re.compile(r"(?:Linear|Embedding)\(([^()\n]*)")
_WORD = re.compile(r"\w+")
_NEAR = 60
"""Characters before a number in which its name stands."""


def _is_odd(size: int) -> bool:
    return size >= _LARGE and size % 8 != 0


def _words(node: ast.AST) -> set[str]:
    """The names in an expression."""
    found = [item for item in ast.walk(node) if isinstance(item, (ast.Name, ast.Attribute))]
    return {(item.id if isinstance(item, ast.Name) else item.attr).lower() for item in found}


def _is_multiplied_by(module: ModuleFacts, made: ast.Call) -> bool:
    """Whether the table of an embedding is a factor of a product: it is that of the output, too."""
    names: set[str] = set()
    for target, value, _ in module.index.assignments:
        again = isinstance(value, (ast.Attribute, ast.Name)) and last_name(value) in names
        if (value is made or again) and isinstance(target, (ast.Attribute, ast.Name)):
            names.add(last_name(target))
    for use in (use for name in sorted(names) for use in module.index.uses(name)):
        weight = module.index.parents.get(use)
        if not isinstance(weight, ast.Attribute) or weight.attr != "weight":
            continue
        for around in module.index.ancestors(weight):
            if isinstance(around, ast.BinOp) and isinstance(around.op, ast.MatMult):
                return True
            if isinstance(around, ast.Call) and last_name(around.func) in _PRODUCTS:
                return True
            if isinstance(around, ast.stmt):
                break
    return False


def _number(place: Origin) -> int | None:
    """The one number that a size may be."""
    node = place.node
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        left, right = _number(Origin(place.module, node.left)), _number(Origin(place.module, node.right))
        if left is None or right is None:
            return None
        return left + right if isinstance(node.op, ast.Add) else left - right
    found = {literal(item.node) for item in origins(place.module, node)}
    value = found.pop() if len(found) == 1 else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
