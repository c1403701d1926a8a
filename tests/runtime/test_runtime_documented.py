"""Every public name says what it does, what it takes, and what it raises."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import amp_runtime as amp
import pytest

_SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises|Source|Example):$", re.MULTILINE)
_KINDS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def public() -> Iterator[tuple[str, Any]]:
    for name in amp.__all__:
        if name not in ("optim", "scaler"):  # a package and an object, whose names are below
            yield f"amp.{name}", getattr(amp, name)
    for name in amp.optim.__all__:
        found = getattr(amp.optim, name)
        if not inspect.ismodule(found):
            yield f"amp.optim.{name}", found
    for kind in (amp.Scaler, amp.EMA, amp.StepTimer, amp.Reducer):
        for name, found in vars(kind).items():
            if not name.startswith("_") and callable(found):
                yield f"{kind.__name__}.{name}", found


def sections(documentation: str) -> dict[str, str]:
    """The text of each section by its title; what stands before the first one is under no title."""
    pieces = _SECTION.split(inspect.cleandoc(documentation))
    return {"": pieces[0], **dict(zip(pieces[1::2], pieces[2::2], strict=True))}


def entries(section: str) -> set[str]:
    """The names that a section explains."""
    lines = re.findall(r"^    (\*{0,2}\w[\w, *]*):", section, re.MULTILINE)
    return {name.strip(" *") for line in lines for name in line.split(",")}


def taken(found: Any) -> set[str]:
    """The names of the parameters that a caller gives."""
    if inspect.isclass(found) and ("__init__" not in vars(found) or issubclass(found, BaseException)):
        return set()
    function = found.__init__ if inspect.isclass(found) else found
    if not inspect.isfunction(inspect.unwrap(function)):
        return set()
    parameters = list(inspect.signature(function).parameters.values())
    return {p.name for p in parameters if p.name not in ("self", "cls") and p.kind not in _KINDS}


def raised(found: Any) -> set[str]:
    """The exceptions that the function itself raises by name."""
    function = inspect.unwrap(found.__init__ if inspect.isclass(found) else found)
    if not inspect.isfunction(function) or function.__code__.co_filename == "<string>":  # of a dataclass
        return set()
    return set(re.findall(r"^\s+raise (\w+(?:Error|Exception))\(", inspect.getsource(function), re.MULTILINE))


def problems(found: Any) -> list[str]:
    """What is missing in an object's documentation."""
    documentation = found.__doc__ or ""
    if not documentation.strip():
        return ["no docstring"]
    parts = sections(documentation)
    explained = entries(parts.get("Args", "")) | entries(parts.get("Attributes", ""))
    told = parts.get("Raises", "")
    wanted = [f"Args: {name}" for name in sorted(taken(found) - explained)]
    wanted += [f"Raises: {name}" for name in sorted(raised(found)) if f"{name}:" not in told]
    return wanted + ([] if parts[""].strip() else ["no sentence about what it does"])


CASES = dict(public())


@pytest.mark.parametrize("name", CASES)
def test_a_public_name_is_documented(name: str) -> None:
    assert not problems(CASES[name]), f"{name}: {', '.join(problems(CASES[name]))}"


def test_all_of_the_interface_is_looked_at() -> None:
    assert {"amp.init", "amp.optim.LAMB", "Scaler.scale", "EMA.update"} <= set(CASES)
    assert len(CASES) > 90


def test_what_is_missing_would_be_found() -> None:
    def undocumented(x: int) -> None:
        pass

    def poor(x: int, y: int) -> None:
        """Does something.

        Args:
            x: a number.
        """
        raise ValueError("never documented")

    assert problems(undocumented) == ["no docstring"]
    assert problems(poor) == ["Args: y", "Raises: ValueError"]
