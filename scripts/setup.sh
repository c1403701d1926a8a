# Sourced by the other scripts: makes sure that .venv holds the project and its tools, and puts it on PATH.
# Another interpreter can be chosen with PYTHON=python3.12.

cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! .venv/bin/python -c 'import pip' 2>/dev/null; then
    python="${PYTHON:-python3}"
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
        echo "error: $python is missing or older than Python 3.10; choose another with PYTHON=..." >&2
        exit 1
    fi
    rm -rf .venv
    "$python" -m venv .venv
fi

# The stamp names what was installed, so that a complete environment is reused and an outdated one is not.
wanted="$(.venv/bin/python -c '
import hashlib, os, sys
with open("pyproject.toml", "rb") as file:
    print(hashlib.sha256(file.read()).hexdigest(), os.getcwd(), sys.version.split()[0])
')"
if [ "$(cat .venv/installed 2>/dev/null)" != "$wanted" ]; then
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input -e ".[dev]" </dev/null
    printf '%s\n' "$wanted" >.venv/installed
fi

# The report's tests open it in Chromium, and are passed over where there is none and none can be installed.
if [ ! -x /usr/bin/chromedriver ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    packages="chromium chromium-driver fonts-dejavu-core"
    timeout 300 sh -c "apt-get update -q && apt-get install -qy --no-install-recommends $packages" </dev/null \
        >.venv/chromium.log 2>&1 || echo "note: no Chromium could be installed (.venv/chromium.log)" >&2
fi

PATH="$PWD/.venv/bin:$PATH"
# Small models on few cores: more threads than cores only get in each other's way.
export PATH OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
