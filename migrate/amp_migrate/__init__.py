"""The command line of amp-migrate: finds files, shows or writes what the rules change, and says why."""
