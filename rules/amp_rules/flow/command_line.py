"""The command line of the script: what its options can be."""

from __future__ import annotations

import ast

from amp_rules.flow.cells import option_key
from amp_rules.flow.parts import Keywords
from amp_rules.flow.store import Store
from amp_rules.flow.values import Value

_PARSER = "argparse."


def declare_option(node: ast.Call, store: Store) -> None:
    """``parser.add_argument("--model", default="small")``: remember what the option can be."""
    keywords = {item.arg: item.value for item in node.keywords}
    flags = [item.value for item in node.args if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    named = keywords.get("dest")
    if isinstance(named, ast.Constant):
        flags = [str(named.value)]
    default = keywords.get("default")
    if flags and isinstance(default, ast.Constant) and isinstance(default.value, str):
        flag = next((item for item in flags if item.startswith("--")), flags[0])
        store.write(option_key(flag.lstrip("-").replace("-", "_")), {Value("constant", default.value)})


def declare_commands(keywords: Keywords, store: Store) -> None:
    """``commands.add_parser("train").set_defaults(run=train)``: remember the functions that ``args.run`` can be."""
    for name, values in keywords.items():
        functions = {value for value in values if value.kind in ("function", "partial")}
        if name is not None and functions:
            store.write(option_key(name), functions)


def options_of(owner: Value, name: str, store: Store) -> set[Value]:
    """What an attribute of parsed arguments can be."""
    is_parsed = owner.is_result and str(owner.ref).startswith(_PARSER)
    return store.read(option_key(name)) if is_parsed else set()
