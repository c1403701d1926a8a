#!/usr/bin/env bash
# Makes sure that .venv holds the project and what EXTRA (dev) of pyproject.toml names, and puts it on PATH for the
# scripts that source this one. Another interpreter can be chosen with PYTHON=python3.12.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

make_environment() {
    local python="${PYTHON:-python3}"
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
        echo "error: $python is missing or older than Python 3.10; choose another with PYTHON=..." >&2
        exit 1
    fi
    rm -rf .venv
    "$python" -m venv .venv
}

# Prints what an environment must have been made from, so that a complete one is reused and an outdated one is not.
wanted() {
    .venv/bin/python -c '
import hashlib, os, sys
from pathlib import Path
asked = b"".join(Path(name).read_bytes() for name in ("pyproject.toml", "constraints.txt", "runtime/amp_runtime/_version.py"))
print(hashlib.sha256(asked).hexdigest(), os.getcwd(), sys.version.split()[0])
'
}

install() {
    local extra="$1" wanted
    wanted="$(wanted)"
    # Development needs all that the other extras name, but for Ray.
    if grep -qsxF "$wanted" .venv/installed-dev ".venv/installed-$extra"; then return; fi
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input -c constraints.txt -e ".[$extra]" </dev/null
    printf '%s\n' "$wanted" >".venv/installed-$extra"
}

# Tests open reports and the site in Chromium, and complete command lines in zsh and fish. They are skipped where these are
# missing and cannot be installed.
install_packages() {
    if { [ -x /usr/bin/chromedriver ] && [ -x /usr/bin/zsh ] && [ -x /usr/bin/fish ]; } || [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then return; fi
    local packages="chromium chromium-driver fonts-dejavu-core zsh fish"
    DEBIAN_FRONTEND=noninteractive timeout 300 sh -c \
        "apt-get update -q && apt-get install -qy --no-install-recommends $packages" </dev/null >.venv/packages.log 2>&1 ||
        echo "note: Chromium, zsh and fish could not be installed (.venv/packages.log)" >&2
}

# The site's playground needs it, and is left out of the site where it cannot be fetched.
fetch_pyodide() {
    timeout 150 .venv/bin/python docs/_ext/pyodide_package.py </dev/null || true
}

# The tests of Ray Train start it, and are passed over where it is missing: not every Python has a build of it.
install_ray() {
    if .venv/bin/python -c 'import ray' 2>/dev/null; then return; fi
    local quietly=(--quiet --disable-pip-version-check --no-input)
    timeout 300 .venv/bin/python -m pip install "${quietly[@]}" -c constraints.txt -e ".[ray]" </dev/null >.venv/ray.log 2>&1 ||
        echo "note: Ray could not be installed (.venv/ray.log)" >&2
}

# The tests of int8 are passed over where torchao is missing: it goes with few releases of torch.
install_torchao() {
    if .venv/bin/python -c 'import torchao' 2>/dev/null; then return; fi
    local quietly=(--quiet --disable-pip-version-check --no-input)
    timeout 300 .venv/bin/python -m pip install "${quietly[@]}" -c constraints.txt -e ".[quantize]" </dev/null >.venv/torchao.log 2>&1 ||
        echo "note: torchao could not be installed (.venv/torchao.log)" >&2
}

if ! .venv/bin/python -c 'import pip' 2>/dev/null; then make_environment; fi
install "${EXTRA:-dev}"

PATH="$PWD/.venv/bin:$PATH"
# Small models on few cores: more threads than cores only get in each other's way.
export PATH OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
if [ "${BASH_SOURCE[0]}" = "$0" ]; then install_packages && fetch_pyodide; fi
