"""``amp-migrate verify``: runs the original and the migrated script, and compares what they compute."""
