"""Loaders that get one of the process's own beside them, where their constructor cannot be given a sampler."""

from __future__ import annotations

import ast

from amp_rules.plain_torch.file_head import Helper
from amp_rules.plain_torch.loader_arguments import arguments_of
from amp_rules.plain_torch.loaders_beside import Home
from amp_rules.plain_torch.shared_loaders import SharedLoaders
from amp_rules.plain_torch.translation import Translation
from amp_rules.plain_torch.uses import Use
from amp_rules.roles.kinds import is_loader_value
from amp_rules.source.modules import Module
from amp_rules.text.actions import Replace
from amp_rules.text.expression_edits import change_function, first_argument

_KEPT = (
    "batch_size", "num_workers", "collate_fn", "pin_memory", "drop_last", "timeout", "worker_init_fn",
    "multiprocessing_context", "generator", "prefetch_factor", "persistent_workers",
)  # fmt: skip
"""What a loader was given and can be asked for."""

_CODE = '''\
def distributed_loader(loader):
    """A loader that gives this process its share of another one's data."""
    if {WORLD_SIZE} == 1:
        return loader
    return {loader}(
        loader.dataset,
%s
        sampler={sampler}(loader.dataset, shuffle=%s),
    )'''


class LoaderCopies:
    """The helper function that makes a loader of the process's own."""

    def __init__(self, translation: Translation) -> None:
        self._translation = translation
        self._shared = translation.part(SharedLoaders)
        self._helpers: dict[Module, Helper] = {}
        self._written: set[Home] = set()

    def helper(self, module: Module) -> Helper:
        """The helper of a file, for all the loaders that it has copied there."""
        if module not in self._helpers:
            self._helpers[module] = self._made(module)
        return self._helpers[module]

    def put_beside(self, home: Home, use: Use) -> None:
        """Make the loader of the process's own where the whole one is assigned, and have it read by others."""
        if home in self._written:
            return
        self._written.add(home)
        name = self._translation.helper(use, self.helper(home.module), "distribution", home.module)
        code = f"{home.name} = {name}({home.source})"
        self._translation.insert(home.module, home.statement, code, after=True)
        prepared = {item.argument for item in self._translation.uses_of("prepare_loader") if item.call is not None}
        for node, (module, text) in self._shared.beside.renamed.items():
            where = self._translation.program.module_of(node)
            if (module, text) == (home.module, home.name) and node not in prepared and where is not None:
                assert isinstance(node, ast.expr)
                self._translation.replace(where, node, text)

    def _made(self, module: Module) -> Helper:
        program = self._translation.program
        given: set[str | None] = set()
        shuffled: set[bool | None] = set()
        beside = {home.module: use for home, use in self._shared.beside.homes.items()}
        for use, made in self._shared.decided.items():
            if made or module not in (use.module, *(place for place, other in beside.items() if other is use)):
                continue
            for value in program.flow.values(use.argument, use.scope):
                if isinstance(value.site, ast.Call) and is_loader_value(value):
                    found = arguments_of(program, value.site)
                    given |= set(found)
                    shuffle = found.get("shuffle")
                    is_hidden = "shuffle" in found and shuffle not in set(ast.walk(value.site))
                    unknown = None in found or is_hidden or not (shuffle is None or isinstance(shuffle, ast.Constant))
                    shuffled.add(None if unknown else bool(getattr(shuffle, "value", False)))
        kept = _KEPT if None in given else [name for name in _KEPT if name in given]
        rows = [f"        {name}=loader.{name}," for name in kept]
        order = (
            str(*shuffled)
            if len(shuffled) == 1 and None not in shuffled
            else "isinstance(loader.sampler, {random_sampler})"
        )
        code = _CODE % ("\n".join(rows), order)
        code = code.replace(", shuffle=True", "").replace("dataset,\n\n", "dataset,\n")
        return Helper("distributed_loader", code)


def own_copy(translation: Translation, use: Use) -> None:
    """``amp.prepare_loader(loader)`` becomes ``distributed_loader(loader)``, here or where the loader is assigned."""
    assert use.call is not None
    copies = translation.part(LoaderCopies)
    beside = translation.part(SharedLoaders).beside
    if translation.part(SharedLoaders).is_beside(use):
        for home in beside.homes:
            copies.put_beside(home, use)
        if use.argument in beside.renamed:
            translation.replace(use.module, use.whole, beside.renamed[use.argument][1])
        else:
            translation.do(use.module, Replace(use.whole, first_argument))
        return
    name = translation.helper(use, copies.helper(use.module), "distribution")
    translation.do(use.module, Replace(use.call, change_function(name)))
