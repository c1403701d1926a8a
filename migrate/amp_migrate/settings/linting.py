"""Settings from ``[tool.amp-lint]`` and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from amp_rules.lattice.mode import DEVICES, HALF_TYPES, LEVELS, Mode
from amp_rules.lint.finding import SEVERITIES, Severity

from amp_migrate.out.lint import FORMATS
from amp_migrate.settings.caching import cache_folder
from amp_migrate.settings.migration import EXCLUDE
from amp_migrate.settings.pyproject import Key, boolean, choice, load_table, strings, table_of_strings, text
from amp_migrate.settings.selected_rules import Layer

TOOL = "amp-lint"
DEFAULT_TIMEOUT = 30.0
"""Most files take less than one; a busy machine, or one where each core has a process, takes longer by the clock."""


@dataclass(frozen=True)
class LintSettings:
    """What a run is to do.

    Attributes:
        mode: in which the code is judged.
        layers: which rules are asked, by the file and then by the command line.
        preview: whether rules in preview are.
        per_file_ignores: gitignore patterns, with selectors of what is not reported in such files.
        exclude: gitignore patterns of files that are passed over in directories.
        min_severity: what is less severe is neither reported nor counted.
        unsafe_fixes: whether such fixes are shown, and applied where fixes are.
        baseline: a file of known findings.
        output_format: how the findings are printed.
        jobs: number of processes; 0 for one a core.
        timeout: seconds for one file; 0 for no bound.
        cache_folder: where results are kept between runs; None for nowhere.
        root: the folder that patterns are relative to.
        origin: the file of the settings, for messages.
    """

    mode: Mode = field(default_factory=Mode)
    layers: tuple[Layer, ...] = ()
    preview: bool = False
    per_file_ignores: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    exclude: tuple[str, ...] = ()
    min_severity: Severity = "info"
    unsafe_fixes: bool = False
    baseline: Path | None = None
    output_format: str = "full"
    jobs: int = 0
    timeout: float = DEFAULT_TIMEOUT
    cache_folder: Path | None = None
    root: Path = field(default_factory=Path.cwd)
    origin: str = f"[tool.{TOOL}]"

    def overridden(self, values: Mapping[str, Any], origin: str) -> LintSettings:
        """Return these settings with those of ``values``, keyed as in the file, that are not None.

        Paths in ``values`` are absolute; ``origin`` is how messages name where the selectors come from.
        """
        given = {key.replace("-", "_"): value for key, value in values.items() if value is not None}
        mode = replace(self.mode, **{key: given.pop(key) for key in _MODE_FIELDS if key in given})
        chosen = {key: given.pop(key, None) for key in ("select", "ignore", "extend_select")}
        layers = self.layers
        if any(value is not None for value in chosen.values()):
            layer = Layer(chosen["select"], chosen["ignore"] or (), chosen["extend_select"] or (), origin)
            layers = (*layers, layer)
        if "format" in given:
            given["output_format"] = given.pop("format")
        if given.pop("cache", True) is False:
            given["cache_folder"] = None
        elif "cache_dir" in given:
            given["cache_folder"] = given["cache_dir"]
        given.pop("cache_dir", None)
        return replace(self, mode=mode, layers=layers, **given)

    def reports(self, severity: Severity) -> bool:
        """Whether findings of that severity are reported."""
        return SEVERITIES.index(severity) <= SEVERITIES.index(self.min_severity)


_MODE_FIELDS = tuple(item.name for item in fields(Mode))


def parse_jobs(value: object) -> int:
    """Return a number of processes; 0 stands for one a core.

    Raises:
        ValueError: it is neither ``"auto"`` nor a whole number from 0.
    """
    if value == "auto":
        return 0
    if isinstance(value, (int, str)) and not isinstance(value, bool) and int(value) >= 0:
        return int(value)
    raise ValueError(value)


def _seconds(value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf"):
        return float(value)
    raise ValueError(value)


_SELECTORS = strings('a list of codes, names and prefixes, as in ["AMP6", "const-overflow-fill"]')

KEYS: dict[str, Key] = {
    "opt-level": choice(LEVELS),
    "dtype": choice(HALF_TYPES),
    "device": choice(DEVICES),
    "ddp": boolean(),
    "select": _SELECTORS,
    "ignore": _SELECTORS,
    "extend-select": _SELECTORS,
    "per-file-ignores": table_of_strings('a table of patterns and codes, as in { "tests/*" = ["AMP6"] }'),
    "preview": boolean(),
    "min-severity": choice(SEVERITIES),
    "exclude": EXCLUDE,
    "baseline": text("the path of a file"),
    "unsafe-fixes": boolean(),
    "format": choice(FORMATS),
    "jobs": Key('"auto" or a whole number from 0', parse_jobs),
    "timeout": Key("a number of seconds; 0 for no bound", _seconds),
    "cache": boolean(),
    "cache-dir": text("the path of a folder"),
}


def load_settings(start: Path, explicit: Path | None) -> LintSettings:
    """Read the configuration that holds for the folder ``start``, or the file named by ``--config``.

    Raises:
        UserError: the file cannot be read, or holds a key or a value that is not known.
    """
    table = load_table(TOOL, KEYS, start, explicit)
    root = table.path.resolve().parent if table else Path.cwd()
    settings = LintSettings(root=root, cache_folder=cache_folder())
    if table is None:
        return settings
    values = dict(table.values)
    for key in ("baseline", "cache-dir"):
        if key in values:
            values[key] = root / values[key]
    return settings.overridden(values, settings.origin)
