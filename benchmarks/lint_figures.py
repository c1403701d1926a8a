"""Figures of lint rules that were measured, for the rules' pages: ``lint_figures.json``."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

FIGURES = Path(__file__).with_suffix(".json")


def keep(part: str, figures: dict[str, object]) -> None:
    """Write one part down, ``recall`` or ``precision``, with the date; the other stays."""
    held = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.exists() else {}
    held[part] = {"date": date.today().isoformat(), **figures}
    FIGURES.write_text(json.dumps(held, indent=1, sort_keys=True) + "\n", encoding="utf-8")
