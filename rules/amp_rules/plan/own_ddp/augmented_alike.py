"""Samples that every process changes at random by the same numbers: the workers of its loaders are seeded alike."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.rank_paths import Reach
from amp_rules.flow.values import Value
from amp_rules.plan.file_names import name_of
from amp_rules.plan.own_ddp.drawn_alike import (
    OF_WORKERS,
    alike_seed,
    differs,
    filled,
    has_generator,
    once_made,
    seeded_alike,
    trains_together,
)
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.loader_arguments import given_to_loader
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.index import literal
from amp_rules.source.modules import Module
from amp_rules.source.syntax import last_name, values_given, walk
from amp_rules.torch.replication import AUGMENTS, LIBRARY_SEEDS, NOISE, SEEDS

_PARTED = frozenset({"get_rank", "rank", "getpid", "urandom", "time", "time_ns"})
"""What a seed is made of that every process has for itself."""
_OF_TORCH = frozenset({"initial_seed", "get_worker_info"})
"""What a worker is seeded with itself, which comes of torch's generator in its process."""
_DRAWS = ("random.", "numpy.random.")
_OF_SAMPLES = frozenset({"__getitem__", "__call__", "__iter__"})


def augmented_alike(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first seed of workers, or the first change at random, that is alike in all processes."""
    loaders = [site for use in own.data.uses for value in use.values if (site := _shared(own, value)) is not None]
    if not loaders or not trains_together(own):
        return
    seed = alike_seed(own, OF_WORKERS)
    for site in loaders:
        assert isinstance(site.node, ast.Call)
        given = given_to_loader(site.node, "worker_init_fn")
        generator = given_to_loader(site.node, "generator")
        if generator is not None:
            # The workers' seeds are drawn from it.
            found = _seed_of(own, site, generator) if _has_workers(site.node) else None
            parts = given is not None and (
                differs(own, site, given) or any(map(_is_parted, _starting(own, site, given)))
            )
            draw = (_by_library(own) or _drawn_by_hand(own, _DRAWS)) if found is not None and not parts else None
            if found is not None and draw is not None:
                text = (
                    f"`{found.module.text(found.node)}` seeds the workers of every process alike, so that "
                    f"`{draw.module.text(draw.node)}` changes the samples of each by the same numbers: add the rank"
                )
                yield found.module, found.node, text
                return
            continue
        if given is not None and literal(given) is not None:
            for found in _seeds_of_workers(own, site, given):
                draw = _drawn_by_hand(own, _family(own, found))
                later = _seeds_of_samples(own, found) if draw is not None else []
                if draw is None or any(differs(own, item, item.node) or _is_of_item(own, item) for item in later):
                    continue
                found = later[0] if later else found
                text = (
                    f"`{found.module.text(found.node)}` seeds the workers of every process alike, so that "
                    f"`{draw.module.text(draw.node)}` draws the same numbers for the samples of each: add the rank"
                )
                yield found.module, found.node, text
                return
        elif seed is not None:
            library = _by_library(own)
            draw = library or (_drawn_in_workers(own) if _has_workers(site.node) else None)
            if draw is not None:
                beside = _seed_beside(own, seed, draw)
                is_by_hand = draw is not library
                text = (
                    f"{seeded_alike(own, seed, draw.module, beside=beside, workers=is_by_hand)}, so that "
                    f"`{draw.module.text(draw.node)}`{_beside(own, draw) if is_by_hand else ''} changes the samples of "
                    f"each by the same numbers: add the rank to the seed {once_made(own)}"
                )
                yield draw.module, draw.node, text
                return
        if given is None and not _has_workers(site.node):
            found, draw = _drawn_in_process(own)
            if found is not None and draw is not None:
                text = (
                    f"{seeded_alike(own, found, draw.module)}, so that `{draw.module.text(draw.node)}` changes the "
                    "samples of each by the same numbers: seed again, with the rank added, above the loop that trains"
                )
                yield draw.module, draw.node, text
                return


def _drawn_in_workers(own: OwnDdp) -> Site | None:
    """The first draw in what gives or changes a sample; those of torch below a data set alone, as losses draw, too."""
    by_hand = _drawn_by_hand(own, _DRAWS)
    if by_hand is not None:
        return by_hand
    bodies = _of_samples(own, frozenset({"__getitem__"}))
    return next(_of_torch(own, bodies), None)


def _of_torch(own: OwnDdp, bodies: set[ast.AST]) -> Iterator[Site]:
    """Yield the draws of torch's generator in some functions, file by file, but for those of a model."""
    draws = [*own.program.calls_to(NOISE), *filled(own)]
    for site in sorted(draws, key=lambda item: (str(item.module.path), item.line)):
        if site.body not in bodies or site.module not in own.modules or has_generator(site.node):
            continue
        if not own.program.is_model_code(site.body):
            yield site


def _beside(own: OwnDdp, draw: Site) -> str:
    """The other files that draw for samples: which of the data sets there is read may be for a setting to say."""
    others = [site.module for site in _draws_by_hand(own, _DRAWS) if site.module is not draw.module]
    names = [f"`{name_of(own.program, module)}`" for module in dict.fromkeys(others)]
    if not names:
        return ""
    more = f" and {len(names) - 1} more file{'s' * (len(names) > 2)}" if len(names) > 1 else ""
    return f", like what is drawn in {names[0]}{more},"


def _drawn_in_process(own: OwnDdp) -> tuple[Site | None, Site | None]:
    """What seeds Python's or NumPy's generator alike, and a draw of it in a sample, which no worker makes."""
    bodies = _of_samples(own, frozenset({"__getitem__"}))
    draw = _drawn_by_hand(own, _DRAWS, bodies)
    names = _seeds_of(own, draw) if draw is not None else frozenset()
    if draw is None or any(site.body in bodies for site in own.program.calls_to(names)):
        return None, None  # each sample may be seeded by its number
    return alike_seed(own, names | LIBRARY_SEEDS), draw


def _seeds_of(own: OwnDdp, draw: Site) -> frozenset[str]:
    """The names of what seeds the generator of a draw."""
    assert isinstance(draw.node, ast.Call)
    drawn = own.program.callee_names(draw.node, draw.scope)
    return frozenset(f"{start}seed" for start in _DRAWS if any(name.startswith(start) for name in drawn))


def _shared(own: OwnDdp, value: Value) -> Site | None:
    """Where a loader is made that gives each process samples of its own."""
    located = own.program.locate(value.site) if isinstance(value.site, ast.Call) else None
    if located is None or not isinstance(value.site, ast.Call) or located[1].module not in own.modules:
        return None
    given = [given_to_loader(value.site, name) for name in ("sampler", "batch_sampler")]
    if not any(item is not None and literal(item) is not None for item in given):
        return None
    return Site(located[1].module, located[1], located[0], value.site)


def _has_workers(call: ast.Call) -> bool:
    """Whether a loader may have workers, which Python's and NumPy's generators are seeded for by torch's."""
    given = given_to_loader(call, "num_workers")
    return given is not None and literal(given) != 0


def _seeds_of_workers(own: OwnDdp, loader: Site, given: ast.expr) -> Iterator[Site]:
    """Yield the calls in what starts a worker that seed it by nothing of the process."""
    if differs(own, loader, given):
        return
    for info in _starting(own, loader, given):
        seeds = [site for site in own.program.calls_to(SEEDS) if site.body is info.node]
        if _is_parted(info) or _OF_TORCH & _named_in(info):
            continue
        if not any(differs(own, site, site.node) for site in seeds):
            # Without a seed the system chooses.
            yield from (site for site in seeds if isinstance(site.node, ast.Call) and values_given(site.node))


def _seeds_of_samples(own: OwnDdp, seed: Site) -> list[Site]:
    """What seeds the generator of workers once more where they give a sample: what started them counts no more."""
    names = frozenset(f"{start}seed" for start in _family(own, seed))
    bodies = _of_samples(own) if names else set()
    found = [site for site in own.program.calls_to(names) if site.body in bodies] if names else []
    return [site for site in found if isinstance(site.node, ast.Call) and values_given(site.node)]


def _is_of_item(own: OwnDdp, seed: Site) -> bool:
    """Whether a seed is made of what its function is given, as the number of the sample is."""
    info = own.program.function_of(seed.body)
    assert isinstance(seed.node, ast.Call)
    read = {path.partition(".")[0] for value in values_given(seed.node) for path in blocks.reads(value)}
    return info is not None and bool(read & (set(info.parameters) - {info.receiver}))


def _starting(own: OwnDdp, loader: Site, given: ast.expr) -> list[FunctionFacts]:
    """The functions of the project that start a loader's workers."""
    return [value.ref for value in own.program.flow.values(given, loader.scope) if value.kind == "function"]


def _is_parted(info: FunctionFacts) -> bool:
    """Whether a function may know in which process it runs."""
    return bool(_PARTED & _named_in(info))


def _named_in(info: FunctionFacts) -> set[str]:
    return {last_name(node) for node in blocks.walk_body(info.node) if isinstance(node, (ast.Name, ast.Attribute))}


def _seed_of(own: OwnDdp, loader: Site, generator: ast.expr) -> Site | None:
    """The call that seeds a loader's own generator by a number that all processes have: ``g.manual_seed(0)``."""
    path = blocks.path_of(generator)
    seeds = [
        Site(loader.module, loader.scope, loader.body, node)
        for node in blocks.walk_body(loader.body)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "manual_seed"
        and path in (blocks.path_of(node.func.value), *map(blocks.path_of, _targets(loader.module, node)))
    ]
    if path is None or not seeds or any(differs(own, site, site.node) for site in seeds):
        return None
    return seeds[0]


def _targets(module: Module, node: ast.Call) -> list[ast.expr]:
    """``g`` of ``g = torch.Generator().manual_seed(0)``."""
    statement = module.parents[node]
    return statement.targets if isinstance(statement, ast.Assign) else []


def _family(own: OwnDdp, seed: Site) -> tuple[str, ...]:
    """How the names of what a call seeds begin: ``random.`` of ``random.seed``."""
    assert isinstance(seed.node, ast.Call)
    names = own.program.callee_names(seed.node, seed.scope)
    return tuple(start for start in _DRAWS if f"{start}seed" in names)


def _seed_beside(own: OwnDdp, seed: Site, draw: Site) -> Site | None:
    """What seeds the generator of a draw where torch's is seeded, alike in all processes as well."""
    names = _seeds_of(own, draw)
    found = [site for site in own.program.calls_to(names) if site.body is seed.body] if names else []
    return next((site for site in found if not differs(own, site, site.node)), None)


def _by_library(own: OwnDdp) -> Site | None:
    """The first transform of a library that changes samples at random, and that every process makes."""
    for call, body, scope in own.program.calls():
        names = own.program.callee_names(call, scope)
        if not any(name.startswith(AUGMENTS[:2]) for name in names) or scope.module not in own.modules:
            continue
        if body not in own.uncalled and own.reach(scope.module, call) is Reach.EVERY:
            return Site(scope.module, scope, body, call)
    return None


def _drawn_by_hand(own: OwnDdp, starts: tuple[str, ...], bodies: set[ast.AST] | None = None) -> Site | None:
    """The first draw of Python's or NumPy's generator in what gives or changes a sample."""
    return next(_draws_by_hand(own, starts, bodies), None)


def _draws_by_hand(own: OwnDdp, starts: tuple[str, ...], bodies: set[ast.AST] | None = None) -> Iterator[Site]:
    if not starts:
        return
    bodies = _of_samples(own) if bodies is None else bodies
    for call, body, scope in own.program.calls():
        if body not in bodies or scope.module not in own.modules:
            continue
        names = own.program.callee_names(call, scope)
        if any(name.startswith(starts) and name not in SEEDS for name in names):
            yield Site(scope.module, scope, body, call)


def _of_samples(own: OwnDdp, names: frozenset[str] = _OF_SAMPLES) -> set[ast.AST]:
    """The methods that give or change a sample, what puts samples together, and what they call."""
    methods: list[ast.AST] = [
        info.node
        for info in own.program.flow.functions.values()
        if info.cls is not None and info.name in names and info.node not in own.uncalled
        if not _is_in_process_itself(own, info)
    ]
    methods += _collating(own)
    return {*methods, *own.program.called_from([node for body in methods for node in walk(body)])}


def _collating(own: OwnDdp) -> Iterator[ast.AST]:
    """Yield the functions that loaders with samples of each process put a batch together with, where they run, too."""
    for site in (_shared(own, value) for use in own.data.uses for value in use.values):
        given = (
            given_to_loader(site.node, "collate_fn") if site is not None and isinstance(site.node, ast.Call) else None
        )
        if site is not None and given is not None:
            yield from (info.node for info in _starting(own, site, given))


def _is_in_process_itself(own: OwnDdp, info: FunctionFacts) -> bool:
    """Whether a method runs in no worker, and changes no sample there: of a sampler, or one that models alone call."""
    owner = own.program.flow.class_of(info)
    if owner is not None and any(name.endswith("Sampler") for name in owner.external_bases()):
        return True
    callers = own.program.flow.callers(info)
    return bool(callers) and all(own.program.is_model_code(item.scope.node) for item in callers)
