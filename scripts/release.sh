#!/usr/bin/env bash
# Builds both distributions into dist/, as sdist and wheel, and writes the notes of the release to dist-notes.md:
# the changelog's section of the version. With a tag, as in `scripts/release.sh v0.1.0`, that must be the version's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' runtime/amp_runtime/_version.py)
if [ "${1:-v$version}" != "v$version" ]; then
    echo "the tag is $1, and the version is $version: set runtime/amp_runtime/_version.py" >&2
    exit 1
fi
awk -v head="$version" '/^## /{on = index($0, head) > 0; next} on' CHANGELOG.md >dist-notes.md
if ! grep -q '[^[:space:]]' dist-notes.md; then
    echo "CHANGELOG.md has no section for $version" >&2
    exit 1
fi
if [ "${NOTES_ONLY:-}" = 1 ]; then exit 0; fi

rm -rf dist
python -m build --outdir dist .
python -m build --outdir dist runtime
python -m twine check --strict dist/*
