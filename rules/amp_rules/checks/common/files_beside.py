"""The files that run together with one: what it imports, what imports it, and what that imports."""

from __future__ import annotations

from collections.abc import Iterator

from amp_rules.source.facts import ModuleFacts


def files_beside(module: ModuleFacts) -> Iterator[ModuleFacts]:
    """The other files that are loaded where a file is."""
    seen = {module}
    for importer in (module, *module.project.importers(module)):
        for item in (importer, *importer.imported()):
            if item not in seen:
                seen.add(item)
                yield item
