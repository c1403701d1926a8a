"""``python -m amp_migrate``."""

from amp_migrate.commands.migrate import main

if __name__ == "__main__":
    main(prog_name="amp-migrate")
