"""Scripts that join their processes themselves, with ``torch.distributed``: writing what their processes lack.

This comes before anything else is decided, in drafts, and in torch's own words under the script's own names. Each
rewrite can be left out alone. What is complete stays byte for byte.
"""
