#!/usr/bin/env bash
# Sets the project up in .venv and runs every check. Arguments go to pytest.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

ruff check .
ruff format --check .
mypy migrate/amp_migrate rules/amp_rules runtime/amp_runtime
# The same generated examples every time, so that a failure comes from a change; pytest by itself draws new ones.
pytest -n 2 --hypothesis-profile ci "$@"
