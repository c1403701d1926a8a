"""Commands that start the migrated scripts."""
