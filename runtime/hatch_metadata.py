"""What both distributions say of themselves that depends on where the repository is: links, and the long description.

A build calls this. Links in a README lead to files beside it, which a package index does not have.
``AMP_MIGRATE_REPOSITORY`` is the address of the repository; the release workflow sets it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PLACEHOLDER = "https://github.com/OWNER/amp-migrate"


def absolute(text: str, folder: str) -> str:
    """Have the links of a Markdown text that lead to files lead to ``folder`` instead, code left alone."""
    return re.sub(r"\]\((?![a-z]+:|#)([^)\s]+)\)", lambda link: f"]({folder}/{link[1]})", text)


class Repository(MetadataHookInterface):
    """Fills in ``readme`` and ``urls``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the fields."""
        home = os.environ.get("AMP_MIGRATE_REPOSITORY", PLACEHOLDER).rstrip("/")
        within = self.config.get("folder", "")
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": absolute(text, "/".join(part for part in (home, "blob/main", within) if part)),
        }
        metadata["urls"] = {
            "Repository": home,
            "Documentation": f"{home}/tree/main/docs",
            "Changelog": f"{home}/blob/main/CHANGELOG.md",
            "Issues": f"{home}/issues",
        }
