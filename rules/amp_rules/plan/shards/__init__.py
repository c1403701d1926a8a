"""Models whose parameters are shared out over the processes, with ``--shard``: what of a program has to change for it.

What a sharded model cannot do declines the distribution as a whole; what differs from models that are whole on every
rank stands in :mod:`amp_rules.plan.shards.sharding`, which the rewrites ask.
"""
