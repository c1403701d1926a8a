"""Settings from ``[tool.amp-migrate]`` and how they are checked."""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from amp_rules.options import APEX_MODES, DTYPES, OPT_LEVELS, Options

from amp_migrate.problems import UserError, shown

SECTION = "tool.amp-migrate"
_BOOLEANS = ("ddp", "sync-bn", "fused", "vendor")
KEYS = ("opt-level", "ddp", "sync-bn", "fused", "dtype", "loss-scale", "apex", "vendor", "exclude")
_CHOICES: dict[str, tuple[str, ...]] = {"opt-level": OPT_LEVELS, "dtype": DTYPES, "apex": APEX_MODES}


@dataclass(frozen=True)
class Settings:
    """What a run is to do, from defaults, configuration file and command line.

    Attributes:
        options: what the migration itself is asked for.
        vendor: copy the runtime beside the entry scripts.
        exclude: gitignore patterns of files that are passed over in directories.
        root: the folder that ``exclude`` is relative to.
    """

    options: Options = field(default_factory=Options)
    vendor: bool = False
    exclude: tuple[str, ...] = ()
    root: Path = field(default_factory=Path.cwd)

    def overridden(self, values: Mapping[str, Any]) -> Settings:
        """Return these settings with those of ``values``, keyed as in the file, that are not None."""
        given = {key: value for key, value in values.items() if value is not None}
        vendor = given.pop("vendor", self.vendor)
        exclude = tuple(given.pop("exclude", self.exclude))
        options = replace(self.options, **{key.replace("-", "_"): value for key, value in given.items()})
        return replace(self, options=options, vendor=vendor, exclude=exclude)


def load_settings(start: Path, explicit: Path | None) -> Settings:
    """Read the configuration that holds for ``start``, or the file named by ``--config``.

    Raises:
        UserError: the file cannot be read, or holds a key or a value that is not known.
    """
    if explicit is not None:
        table = _section(_read_toml(explicit))
        if table is None:
            raise UserError(f"{shown(explicit)}: has no table [{SECTION}]")
        return _settings(table, explicit)
    for folder in (start, *start.parents):
        candidate = folder / "pyproject.toml"
        if candidate.is_file():
            table = _section(_read_toml(candidate))
            if table is not None:
                return _settings(table, candidate)
    return Settings()


def parse_loss_scale(value: object) -> float | Literal["dynamic"]:
    """Return a valid loss scale.

    Raises:
        ValueError: it is neither ``"dynamic"`` nor a positive finite number.
    """
    if value == "dynamic":
        return "dynamic"
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        number = float(value)
        if math.isfinite(number) and number > 0:
            return number
    raise ValueError(value)


def _read_toml(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]
    try:
        document: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{shown(path)}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{shown(path)}: is not UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{shown(path)}: is not valid TOML: {error}") from error
    return document


def _section(document: dict[str, Any]) -> object | None:
    tool = document.get("tool")
    return tool.get("amp-migrate") if isinstance(tool, dict) else None


def _settings(table: object, path: Path) -> Settings:
    if not isinstance(table, dict):
        raise UserError(f"{shown(path)}: [{SECTION}] must be a table, not {table!r}")
    values = {}
    for key, value in table.items():
        if key not in KEYS:
            close = difflib.get_close_matches(key.replace("_", "-").lower(), KEYS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(KEYS)}"
            raise UserError(f"{shown(path)}: unknown key {key!r} in [{SECTION}]; {hint}")
        values[key] = _checked(key, value, path)
    return Settings(root=path.resolve().parent).overridden(values)


def _checked(key: str, value: Any, path: Path) -> Any:
    """Return ``value`` if ``key`` allows it, in the type that the program uses."""
    if key in _BOOLEANS and isinstance(value, bool):
        return value
    if value in _CHOICES.get(key, ()):
        return value
    if key == "exclude" and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    if key == "loss-scale":
        try:
            return parse_loss_scale(value)
        except ValueError:
            pass
    raise UserError(f"{shown(path)}: {key} = {_toml(value)} in [{SECTION}]; allowed: {_allowed(key)}")


def _allowed(key: str) -> str:
    if key in _BOOLEANS:
        return "true, false"
    if key == "exclude":
        return 'a list of gitignore patterns, as in ["legacy/", "*_test.py"]'
    if key == "loss-scale":
        return '"dynamic" or a positive number'
    return ", ".join(f'"{choice}"' for choice in _CHOICES[key])


def _toml(value: object) -> str:
    """Write a value about as it stands in the file."""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
