"""Parsers of command lines: the one of the standard library, and packages that read it in their own way."""

from __future__ import annotations

PARSERS = frozenset({"argparse.ArgumentParser"})
"""Classes of parsers to which options are added one by one.

Source: https://docs.python.org/3/library/argparse.html
"""

DATACLASS = "dataclasses.dataclass"

CLASSES_OF_OPTIONS = frozenset({DATACLASS, "tap.Tap", "tap.tap.Tap"})
"""Bases and decorators of classes whose fields are options, with their defaults.

Source: https://github.com/swansonk14/typed-argument-parser
"""

PARSERS_OF_DATACLASSES = frozenset(
    "argparse_dataclass cappa clize datargs draccus hydra jsonargparse omegaconf pyrallis simple_parsing tyro".split()
)
"""Packages that make options of the fields of a dataclass."""

CLASSES_THAT_PARSE_DATACLASSES = ("HfArgumentParser", "TrlParser")
"""The same of transformers and trl, which scripts copy too.

Source: https://huggingface.co/docs/transformers/internal/trainer_utils
"""

GROUPS = frozenset(
    {"argparse.ArgumentParser.add_argument_group", "argparse.ArgumentParser.add_mutually_exclusive_group"}
)
"""Methods of a parser that give a part of it, to which options are added as well."""

PARSING: dict[str, tuple[int | None]] = {
    "parse_args": (None,),
    "parse_intermixed_args": (None,),
    "parse_known_args": (0,),
}
"""Methods that parse, with the index of the arguments in what they return; None where they are all of it."""

OTHER_PARSERS = (
    "absl",
    "click",
    "configargparse",
    "defopt",
    "docopt",
    "fire",
    "hydra",
    "jsonargparse",
    "optparse",
    "plac",
    "simple_parsing",
    "tap",
    "typer",
    "tyro",
)
"""Packages from which a script may have its command line otherwise."""

HOLDING_ALL = frozenset({"builtins.dict", "argparse.Namespace", "types.SimpleNamespace"})
"""What takes any arguments by name, and keeps them."""

PRECISION_SWITCHES = frozenset({"amp", "use_amp", "fp16", "use_fp16", "mixed_precision"})
"""What options are called that turn mixed precision on, by the name of the argument."""
