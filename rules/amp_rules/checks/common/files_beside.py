"""The files that run together with one: what it imports, what imports it, and what that imports."""

from __future__ import annotations

from collections.abc import Iterator

from amp_rules.source.facts import ModuleFacts


def files_beside(module: ModuleFacts, text: str) -> Iterator[ModuleFacts]:
    """The other files that are loaded where a file is, and in which a text stands.

    Args:
        module: the file.
        text: such as ``args.log``.
    """
    seen = {module}
    for importer in (module, *module.project.importers(module)):
        for item in (importer, *importer.imported()):
            if item not in seen:
                seen.add(item)
                if text in item.module.source.text:
                    yield item
