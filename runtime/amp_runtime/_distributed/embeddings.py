"""``amp.shard_embedding``: the rows of embedding tables, shared out over the ranks.

What a parameter server is for: a table that no worker should train as a whole, of which a batch uses few rows. Each
rank has its rows, their gradients and what the optimizer keeps of them; the other parameters of the model are
replicated, and averaged as ever. A table stays the same object, of a class that is derived from torch's.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import nn

from amp_runtime._core import rows
from amp_runtime._core.context import SHARDED, context
from amp_runtime._core.dtensors import is_sharded
from amp_runtime._core.models import prepared_parameters
from amp_runtime._core.rows import Table
from amp_runtime._distributed import sharding
from amp_runtime._distributed.group import from_all_processes
from amp_runtime._distributed.lookup import Found, look_up
from amp_runtime._distributed.rows import give_out, put_together
from amp_runtime._precision.optimizer_state import watch_optimizers

M = TypeVar("M", bound=nn.Module)

_CALLER = "amp.shard_embedding"
_DTYPES = (torch.float32, torch.float64)


def shard_embedding(module: M, *, min_rows: int = 1) -> M:
    """Shares the rows of embedding tables out over the ranks, in place. A collective.

    For tables that are too large for every rank to hold, or whose gradients are too large to average::

        model = Net()
        amp.shard_embedding(model, min_rows=1_000_000)  # before amp.prepare_model, and before the optimizer is built
        model = amp.prepare_model(model)

    Row ``i`` is on rank ``i % world_size``, as rank 0 has it now. Looking up exchanges the rows of the batch, and so
    does the backward pass: what is sent does not depend on the size of the table, and ranks may have batches of
    different length. The rest of the model is replicated by ``amp.prepare_model``. Gradients are the mean over the
    ranks, as everywhere, so that N processes train as one process with the N-fold batch. With ``sparse=True`` the
    gradient of the rows is sparse on the rank that has them. ``state_dict()`` and checkpoints are those of a model that
    is whole; asking for a state is a collective then.

    All ranks must run each forward and backward pass, in evaluations too. ``docs/embeddings.md`` has a table of what
    works and what is declined. In one process nothing is changed.

    Args:
        module: an ``nn.Embedding``, an ``nn.EmbeddingBag``, or a model with such; with its weights initialised or
            loaded.
        min_rows: tables with fewer rows are left as they are.

    Returns:
        The module itself.

    Raises:
        TypeError: ``module`` is not a module.
        ValueError: ``min_rows`` is not positive; or a table cannot be shared out: it has fewer rows than there are
            ranks, another class or type, ``max_norm`` or ``scale_grad_by_freq``, or its weight is used elsewhere in the
            model; or ``amp.init`` was told O2, O3, ``combine_grad`` or shards. On all ranks.
        RuntimeError: the model is prepared already, or an optimizer holds the weight of a table. On all ranks.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"{_CALLER} got {type(module).__name__}; allowed: a torch.nn.Module")
    if not isinstance(min_rows, int) or min_rows < 1:
        raise ValueError(f"{_CALLER} got min_rows={min_rows!r}; allowed: 1, 2, 3, ...")
    if not context.initialised:
        return module
    tables = {name: table for name, table in _tables_in(module) if table.num_embeddings >= min_rows}
    if not tables:
        return module
    problem = _problem(module, tables)
    if not context.distributed:
        if problem is not None:
            raise problem
        return module
    _raise_together(problem, tables)
    weights = [(table._parameters["weight"], name) for name, table in tables.items()]
    sharding.refuse_early_optimizers(module, (weight for weight, _ in weights if weight is not None), _CALLER)
    if rows.group is None:
        # Of its own: what DDP sends meanwhile, in an order of its own, cannot be taken for rows.
        rows.group = torch.distributed.new_group()
    for name, table in tables.items():
        _share_out(table, name)
    sharding.note_replaced(((weight, name) for weight, name in weights if weight is not None), _CALLER)
    watch_optimizers()
    if context.verbose and context.rank == 0:
        print(f"amp: sharded by rows over {context.world_size} processes: {', '.join(tables)}")
    return module


def _tables_in(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """The tables of a module with their names, those that are shared out already left aside."""
    kind = type(module).__name__
    for name, part in module.named_modules():
        if isinstance(part, (nn.Embedding, nn.EmbeddingBag)) and not isinstance(part, _OfRows):
            yield f"{kind}.{name}" if name else f"{kind}({part.num_embeddings}, {part.embedding_dim})", part


def _problem(module: nn.Module, tables: dict[str, Any]) -> Exception | None:
    """Why the tables cannot be shared out."""
    if context.opt_level in ("O2", "O3"):
        return ValueError(f"{_CALLER} was called at {context.opt_level}; allowed: O0, O1. The rows are float32")
    if context.parallel in SHARDED:
        return ValueError(f"{_CALLER} was called after amp.init(parallel={context.parallel!r}); allowed: ddp=True")
    if context.combine_grad:
        return ValueError(f"{_CALLER} was called after amp.init(combine_grad=True); allowed: False")
    prepared = prepared_parameters()
    slots = list(sharding._slots(module))
    for name, table in tables.items():
        weight = table._parameters.get("weight")
        if id(weight) in prepared:
            return RuntimeError(f"{_CALLER} got {name}, which amp.prepare_model has prepared already; call it before")
        told = _unfit(table, weight) or ("its weight used elsewhere too" if slots.count(id(weight)) > 1 else "")
        if told:
            return ValueError(f"{_CALLER} got {name} with {told}; allowed: {_ALLOWED}")
        if table.num_embeddings < context.world_size:
            return ValueError(
                f"{_CALLER} got {name} with {table.num_embeddings} rows for {context.world_size} processes; allowed: "
                "at least one row for each. min_rows= leaves small tables as they are"
            )
    return None


_ALLOWED = (
    "a whole float32 nn.Embedding or nn.EmbeddingBag itself, without max_norm and scale_grad_by_freq, whose weight "
    "nothing else uses"
)


def _unfit(table: Any, weight: Any) -> str:
    """What of a table does not go with rows on other ranks; empty if nothing."""
    if type(table) not in (nn.Embedding, nn.EmbeddingBag):
        return f"the class {type(table).__name__}"
    if not isinstance(weight, nn.Parameter):
        return "no weight of its own"
    if is_sharded(weight) or weight.is_meta or weight.dtype not in _DTYPES:
        return f"a weight that is {'sharded' if is_sharded(weight) else 'meta' if weight.is_meta else weight.dtype}"
    if table.max_norm is not None:
        return f"max_norm={table.max_norm}"
    return "scale_grad_by_freq=True" if table.scale_grad_by_freq else ""


def _raise_together(problem: Exception | None, tables: dict[str, Any]) -> None:
    """Raises on all ranks if one of them has a problem, or other tables. A collective."""
    layout = [(name, table.num_embeddings, table.embedding_dim) for name, table in tables.items()]
    told = from_all_processes(("" if problem is None else str(problem), layout))
    if problem is not None:
        raise problem
    for rank, (of_rank, of_layout) in enumerate(told):
        if of_rank:
            raise RuntimeError(f"{_CALLER} was refused on rank {rank}: {of_rank}")
        if of_layout != layout:
            raise RuntimeError(f"{_CALLER} got {layout} here and {of_layout} on rank {rank}; allowed: the same")


def _share_out(module: Any, name: str) -> None:
    weight = module._parameters["weight"]
    table = Table(name, rows.next_serial(), module.num_embeddings, context.rank, context.world_size)
    part = nn.Parameter(give_out(table, weight), requires_grad=weight.requires_grad)
    rows.mark(part, table)
    module._parameters["weight"] = part
    module.__dict__["table"] = table
    module.__class__ = ShardedEmbedding if isinstance(module, nn.Embedding) else ShardedEmbeddingBag


# ---- tables -------------------------------------------------------------------------------------------------------


class _OfRows(nn.Module):
    """What both kinds of tables have in common.

    Attributes:
        table: how the rows are shared out.
    """

    table: Table

    @property
    def weight(self) -> Any:
        """Refused: what a script computes of one rank's rows would differ between the ranks.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(
            f"the weight of {self.table.name} was asked for, whose rows amp.shard_embedding has sharded; allowed: "
            "calling it, .parameters() for an optimizer, and state_dict(), which has the whole table"
        )

    @property
    def _rows(self) -> nn.Parameter:
        part = self._parameters["weight"]
        assert part is not None
        return part

    def _look_up(self, identifiers: Any, sparse: bool, padding: int | None, problem: str = "") -> Found:
        right = isinstance(identifiers, torch.Tensor) and identifiers.dtype in (torch.int32, torch.int64)
        error = None
        if problem or not right:
            kind = identifiers.dtype if isinstance(identifiers, torch.Tensor) else type(identifiers).__name__
            error = ValueError(f"{self.table.name} got {problem or f'{kind} to look up; allowed: int32, int64'}")
            identifiers = torch.empty(0, dtype=torch.int64)
        return look_up(self._rows, self.table, identifiers, sparse=sparse, padding=padding, problem=error)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "weight"] = put_together(self.table, self._rows)

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        key, own = prefix + "weight", self._rows
        whole = state_dict.get(key)
        shape = torch.Size((self.table.rows, *own.shape[1:]))
        if isinstance(whole, torch.Tensor) and whole.shape == shape:
            state_dict[key] = whole[self.table.rank :: self.table.ranks]  # of torch's own copy
        elif isinstance(whole, torch.Tensor):
            error_msgs.append(  # in the words of torch, which amp.load_checkpoint reads
                f"size mismatch for {key}: copying a param with shape {whole.shape} from checkpoint, the shape in "
                f"current model is {shape}."
            )
            state_dict[key] = own.detach()
        metadata = {**local_metadata, "assign_to_params_buffers": False}  # the parameter stays that of the optimizer
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing_keys, unexpected_keys, error_msgs)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        moved = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        rows.mark(self._rows, self.table)
        return moved

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = self.__class__.__new__(self.__class__)
        memo[id(self)] = copied
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        rows.mark(copied._rows, self.table)
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError(
            f"{self.table.name} cannot be pickled: this rank has a part of its rows. Save amp.full_state_dict(model), "
            "or use amp.save_checkpoint"
        )


class ShardedEmbedding(_OfRows, nn.Embedding):  # type: ignore[override]
    """An ``nn.Embedding`` of whose rows each rank has a part. ``amp.shard_embedding`` makes it."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The rows of ``input``, as ``nn.Embedding`` gives them. A collective."""
        found = self._look_up(input, self.sparse, self.padding_idx)
        return F.embedding(found.positions.view(input.shape), found.rows)


class ShardedEmbeddingBag(_OfRows, nn.EmbeddingBag):  # type: ignore[override]
    """An ``nn.EmbeddingBag`` of whose rows each rank has a part. ``amp.shard_embedding`` makes it."""

    def forward(
        self, input: torch.Tensor, offsets: torch.Tensor | None = None, per_sample_weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The bags of ``input``, as ``nn.EmbeddingBag`` gives them. A collective."""
        found = self._look_up(input, self.sparse, self.padding_idx, _ill_formed(input, offsets))
        fetched, positions = found.rows, found.positions.view(input.shape)
        if not len(fetched):  # torch's kernels want a row, also where all bags are empty
            fetched = torch.cat([fetched, fetched.new_zeros(1, self.embedding_dim)])
        return F.embedding_bag(
            positions,
            fetched,
            None if offsets is None else offsets.to(positions.dtype),
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=found.padding,
        )


def _ill_formed(input: Any, offsets: Any) -> str:
    """What would have torch refuse a bag, on this rank alone."""
    if not isinstance(input, torch.Tensor) or input.dim() not in (1, 2):
        return "an input that has not one or two dimensions"
    if (input.dim() == 1) == (offsets is None):
        return "offsets for a matrix, or none for a vector"
    return ""
