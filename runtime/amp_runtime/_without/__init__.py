"""What stands in for modules that a copy of this package beside a script does without.

``amp-migrate --vendor`` copies what a script reaches. A module that one level, keyword or name alone needs is left out
where the script has none of them, and the file of the same name in this folder takes its place: it does nothing, says
that nothing is there, or refuses. The package itself imports none of these. Where a copy needs a name that the stand-in
does not have, it gets the module itself.
"""

from __future__ import annotations

WANTED_BY: dict[str, tuple[str, ...]] = {
    "_core.rows": ("shard_embedding",),
    "_data.division": ("load_checkpoint", "load_loader_state", "loader_state", "save_checkpoint"),
    "_data.position": ("load_checkpoint", "load_loader_state", "loader_state", "save_checkpoint"),
    "_data.rounds": ("sharded", "uneven"),
    "_distributed.averaging": ("Reducer", "deepcopy", "delay_allreduce"),
    "_distributed.rows": ("shard_embedding",),
    "_distributed.sharding": ("parallel", "shard", "shard_embedding"),
    "_distributed.shadow": ("sharded", "uneven"),
    "_noticing.parting": (),
    "_noticing.start": (),
    "_noticing.waiting": (),
    "_precision.half_models": ("O2", "O3"),
    "_precision.masters": ("O2", "O3"),
    "_precision.optimizer_state": ("O2", "O3", "parallel", "shard", "shard_embedding"),
    "_precision.registered": ("register_float_function", "register_half_function", "register_promote_function"),
    "_quantizing.library": ("convert_quantized", "load_quantized", "quantize", "save_quantized"),
    "_scaling.closures": ("closure",),
    "_scaling.combined": ("combine_grad",),
    "_scaling.overflow": ("GradientOverflowError", "OverflowLocation", "scaler.locate_overflow"),
    "_scaling.state": ("load_checkpoint", "save_checkpoint", "scaler.load_state_dict", "scaler.state_dict"),
    "_precision.names": ("custom_black_list", "custom_white_list"),
    "_precision.apex_policy": ("cast_policy",),
    "_distributed.plainly": ("create_graph", "delay_allreduce", "sharded", "uneven"),
    "_distributed.options": ("allreduce_always_fp32", "gradient_predivide_factor", "message_size"),
    "_scaling.explaining": ("GradientOverflowError", "OverflowLocation", "scaler.locate_overflow"),
    "_scaling.penalties": ("scaler.unscale_gradients",),
    "_scaling.replaying": ("GradientOverflowError", "OverflowLocation", "scaler.locate_overflow"),
}
"""The names, keywords and levels that want a module itself; ``()`` for one that only the whole package has."""
