"""Loaders that are asked to shuffle and given a sampler as well."""

from __future__ import annotations

import ast

from amp_rules.checks.common.calls import calls_named
from amp_rules.checks.common.origins import Origin, argument, origins
from amp_rules.lint.check import Check, LintedFile, replacement
from amp_rules.source.index import literal
from amp_rules.source.syntax import last_name, spelling
from amp_rules.torch.data import LOADERS_OF_TORCH

_POSITIONS = {"batch_size": 1, "shuffle": 2, "sampler": 3, "batch_sampler": 4, "drop_last": 8}


class ShuffleWithSampler(Check):
    """Loaders that are asked to shuffle and given a sampler as well.

    ## What it does

    Finds `DataLoader(..., shuffle=True, sampler=s)` where `s` is a sampler, or may be one on some path; a `shuffle`
    that is True only where `s is not None`, which is the wrong way round; and a `batch_sampler` beside `shuffle=True`,
    `drop_last=True` or a batch size.

    ## Why

    `DataLoader` raises `ValueError: sampler option is mutually exclusive with shuffle` when it is built. Where the
    sampler is None in one process and a `DistributedSampler` in several, this happens only once the script is run
    by several processes: 1 process trains, 2 stop at the first line that builds a loader.

    ## Example

        sampler = DistributedSampler(dataset) if distributed else None
        loader = DataLoader(dataset, batch_size=32, shuffle=True, sampler=sampler)

    ## Use instead

        loader = DataLoader(dataset, batch_size=32, shuffle=sampler is None, sampler=sampler)

    ## When it is silent

    When `shuffle` depends on anything that is not known, such as `sampler is None` or a setting, and when nothing
    says that the sampler can be other than None. Both are followed through names, attributes, settings that are
    written out, and functions of the project, also in other files.

    ## Source

    https://pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader
    """

    code = "AMP902"
    name = "shuffle-with-sampler"
    severity = "error"
    message = "A loader is asked to shuffle and given a sampler as well."
    advice = "Leave the order to the sampler: pass `shuffle=True` only where it is None."
    fix_title = "Shuffle only where there is no sampler"
    fix_safety = "safe"
    triggers = ("sampler",)

    def visit_module(self, file: LintedFile) -> None:
        """Judge the construction of each loader."""
        module = file.module
        if "DataLoader" not in module.module.source.text:
            return
        for call in calls_named(module, ("DataLoader",)):
            if module.dotted(call.func) in LOADERS_OF_TORCH:
                self._judge(file, call)

    def _judge(self, file: LintedFile, call: ast.Call) -> None:
        module = file.module
        sampler, shuffle = (argument(module, call, name, _POSITIONS[name]) for name in ("sampler", "shuffle"))
        if sampler is not None and shuffle is not None and _is_true(shuffle) and _can_be_sampler(sampler):
            name = spelling(sampler.node)
            fix = None
            # Settings that are written out elsewhere are mended there, by hand.
            if name is not None and _is_of(file, call, shuffle):
                fix = replacement(file, self.fix_title, "safe", (shuffle.node, f"{name} is None"))
            text = name or ast.unparse(sampler.node)
            message = f"`shuffle=True` beside the sampler `{text}` raises when the loader is built"
            self.report_in(file, _place(file, call, shuffle), message, fix=fix)
            return
        if sampler is not None and shuffle is not None and _is_inverted(shuffle.node, ast.unparse(sampler.node)):
            message = f"`{ast.unparse(shuffle.node)}` can be True only where there is a sampler, which raises"
            advice = f"Reverse the condition: `{ast.unparse(sampler.node)} is None`."
            self.report_in(file, _place(file, call, shuffle), message, advice=advice)
            return
        batches = argument(module, call, "batch_sampler", _POSITIONS["batch_sampler"])
        if batches is not None and _can_be_sampler(batches):
            self._beside_batches(file, call)

    def _beside_batches(self, file: LintedFile, call: ast.Call) -> None:
        for name in ("shuffle", "drop_last", "batch_size"):
            value = argument(file.module, call, name, _POSITIONS[name])
            if value is None:
                continue
            if _is_true(value) if name != "batch_size" else _is_number_of_many(value):
                text = f"`{name}={ast.unparse(value.node)}` beside a batch sampler raises when the loader is built"
                self.report_in(file, _place(file, call, value), text, advice=f"Leave `{name}` to the batch sampler.")
                return


def _is_of(file: LintedFile, call: ast.Call, place: Origin) -> bool:
    """Whether an argument stands in the call itself."""
    return place.module is file.module and call in file.module.index.ancestors(place.node)


def _place(file: LintedFile, call: ast.Call, place: Origin) -> ast.expr:
    return place.node if _is_of(file, call, place) else call


def _is_true(place: Origin) -> bool:
    """Whether a value is True whatever happens."""
    return all(literal(item.node) is True for item in origins(place.module, place.node))


def _is_inverted(shuffle: ast.expr, sampler: str) -> bool:
    """``setting and sampler is not None``, ``setting if sampler is not None else False``."""
    if isinstance(shuffle, ast.BoolOp) and isinstance(shuffle.op, ast.And):
        return any(_is_inverted(item, sampler) for item in shuffle.values)
    if isinstance(shuffle, ast.IfExp):
        return _is_inverted(shuffle.test, sampler) and literal(shuffle.orelse) is False
    if not isinstance(shuffle, ast.Compare) or not isinstance(shuffle.ops[0], (ast.IsNot, ast.NotEq)):
        return False
    return literal(shuffle.comparators[0]) is None and ast.unparse(shuffle.left) == sampler


def _is_number_of_many(place: Origin) -> bool:
    found = [literal(item.node) for item in origins(place.module, place.node)]
    return all(isinstance(item, int) and item != 1 for item in found)


def _can_be_sampler(place: Origin) -> bool:
    """Whether one of the values that are possible is a sampler that was just made."""
    return any(_is_sampler(item) for item in origins(place.module, place.node))


def _is_sampler(place: Origin) -> bool:
    """A call of torch's samplers, of one of the project or of another library, also by another name of the class."""
    call = place.node
    if not isinstance(call, ast.Call):
        return False
    cls = place.module.class_named(call.func)
    if cls is not None:
        return "Sampler" in cls.name or cls.inherits(lambda name: name.endswith("Sampler"))
    dotted = place.module.dotted(call.func)
    if dotted is not None and dotted.rpartition(".")[2].endswith("Sampler"):
        return True
    if not isinstance(call.func, ast.Name):
        return False
    return any(last_name(item.node).endswith("Sampler") for item in origins(place.module, call.func))
