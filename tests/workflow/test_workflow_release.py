"""What a release rests on: version, changelog and workflow go together, and the long description leads somewhere."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
import yaml

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))


@pytest.fixture
def checkout(tmp_path):
    """What `scripts/release.sh` reads before it builds."""
    for name in ("scripts/release.sh", "runtime/amp_runtime/_version.py", "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def notes(checkout, *arguments):
    command = ["bash", str(checkout / "scripts/release.sh"), *arguments]
    return subprocess.run(command, env={"PATH": "/usr/bin:/bin", "NOTES_ONLY": "1"}, capture_output=True, text=True)


def test_the_notes_are_the_section_of_the_version(checkout):
    changelog = checkout / "CHANGELOG.md"
    changelog.write_text("# C\n\n## [Unreleased]\n\n- new\n\n## 0.3.0 - 2026-12-01\n\n- this\n\n## 0.2.0\n\n- old\n")
    (checkout / "runtime/amp_runtime/_version.py").write_text('__version__ = "0.3.0"\n')
    assert notes(checkout, "v0.3.0").returncode == 0
    assert (checkout / "dist-notes.md").read_text().split() == ["-", "this"]
    assert "the tag is v0.4.0, and the version is 0.3.0" in notes(checkout, "v0.4.0").stderr
    (checkout / "runtime/amp_runtime/_version.py").write_text('__version__ = "0.5.0"\n')
    assert "CHANGELOG.md has no section for 0.5.0" in notes(checkout).stderr


def test_the_workflow_builds_with_the_script_and_publishes_what_that_built():
    assert WORKFLOW[True] == {"push": {"tags": ["v*"]}}  # YAML reads `on` as true
    steps = WORKFLOW["jobs"]["build"]["steps"]
    assert 'scripts/release.sh "$GITHUB_REF_NAME"' in [step.get("run") for step in steps]
    assert WORKFLOW["jobs"]["publish"]["needs"] == "build"
    assert WORKFLOW["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("folder", ["", "runtime"])
def test_the_long_description_has_absolute_links(folder, monkeypatch):
    # Only a build has hatchling.
    interface = types.ModuleType("interface")
    interface.MetadataHookInterface = object
    monkeypatch.setitem(sys.modules, "hatchling.metadata.plugin.interface", interface)
    for name in ("hatchling", "hatchling.metadata", "hatchling.metadata.plugin"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    spec = importlib.util.spec_from_file_location("hatch_metadata", ROOT / "runtime/hatch_metadata.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = (ROOT / folder / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)]+)\)", module.absolute(text, "https://example.org/r"))
    assert all(link.startswith(("https://", "#")) for link in links)
    assert folder or "https://example.org/r/docs/tutorial.md" in links


def test_the_license_is_named_by_spdx():
    for name in ("pyproject.toml", "runtime/pyproject.toml"):
        project = tomllib.loads((ROOT / name).read_text(encoding="utf-8"))["project"]
        assert project["license"] == "Apache-2.0"
        assert not [line for line in project["classifiers"] if line.startswith("License ::")]
        assert "Typing :: Typed" in project["classifiers"]


def test_the_image_copies_all_that_the_build_needs():
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    copied = {word for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE) for word in line.split()[:-1]}
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert copied == {"pyproject.toml", "README.md", "LICENSE", "migrate", "rules", "runtime"}
    assert {line[1:] for line in ignored if line.startswith("!")} == copied
