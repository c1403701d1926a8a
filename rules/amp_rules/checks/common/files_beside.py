"""The files that run together with one: what it imports, what imports it, and what that imports."""

from __future__ import annotations

from collections.abc import Iterator

from amp_rules.source.facts import ClassFacts, FunctionFacts, ModuleFacts


def files_beside(module: ModuleFacts) -> Iterator[ModuleFacts]:
    """The other files that are loaded where a file is."""
    seen = {module}
    importers = module.project.importers(module, "")
    for importer in (module, *importers):
        for item in (importer, *_imported(importer)):
            if item not in seen:
                seen.add(item)
                yield item


def _imported(module: ModuleFacts) -> Iterator[ModuleFacts]:
    """The files of the project that a file imports."""
    for dotted in (*module.imports.values(), *module.stars):
        found = module.project.resolve(module, dotted)
        if isinstance(found, (ClassFacts, FunctionFacts)):
            yield found.module
        elif isinstance(found, ModuleFacts):
            yield found
