#!/usr/bin/env bash
# Builds the documentation site into docs/_build/html; a warning is an error. Arguments go to sphinx-build.
set -euo pipefail
# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

fetch_pyodide
sphinx-build -b html -W --keep-going -q -j auto -d docs/_build/doctrees docs docs/_build/html "$@"
echo "docs/_build/html/index.html"
