#!/usr/bin/env bash
# Sets the project up in .venv and runs its checks: `quick` those that take some minutes, without a mode those that a
# change must pass, `full` more, `whole` all but the campaigns, `verify` those. Further arguments go to pytest.
# tests/README.md says what runs when.
set -euo pipefail
mode="${1:-}"
case "$mode" in quick | full | whole | verify) shift ;; *) mode=usual ;; esac
# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

# Commands that tests start would compile the whole project each time where the environment keeps Python from writing it.
python -m compileall -q migrate rules runtime tests/shared

# The same generated examples every time, so that a failure comes from a change; pytest by itself draws new ones.
tests() { pytest -n 2 --dist loadgroup --hypothesis-profile ci "$@"; }

# Tests that start processes of their own (heavy, slow) share the machine with whatever else runs on it. Where only such
# tests have failed, and few, they are run once more, alone; what fails twice fails. pytest names both times.
twice() {
    local status=0
    tests --cache-clear "$@" || status=$?
    if [ "$status" != 1 ]; then return "$status"; fi
    local failed=(pytest --last-failed --last-failed-no-failures none --hypothesis-profile ci)
    local others=0
    "${failed[@]}" --collect-only -q -m "not heavy and not slow" >/dev/null || others=$?
    if [ "$others" != 5 ] || [ "$("${failed[@]}" --collect-only -q -m "" | grep -c '::')" -gt 5 ]; then return 1; fi
    echo "Once more, alone, what failed and starts processes:"
    "${failed[@]}" -m ""
}

# Folders with tests marked `half`.
HALF=(tests/proof tests/runtime)

ruff check .
ruff format --check .
# One process, which the tests need not wait for. What it says is printed with its verdict, at the end.
mypy migrate/amp_migrate rules/amp_rules runtime/amp_runtime >.venv/mypy.log 2>&1 &
types=$!
typed() {
    local status=0
    wait "$types" || status=$?
    cat .venv/mypy.log
    if [ "$status" != 0 ]; then echo "error: mypy found errors" >&2; fi
    return "$status"
}
trap 'status=$?; typed || status=1; exit "$status"' EXIT
case "$mode" in
    quick) AMP_TEST_EXAMPLES=0.2 tests -m "not slow and not heavy" "$@" ;;
    usual)
        install_packages
        fetch_pyodide
        tests "$@"
        ;;
    verify) tests -m campaign "$@" ;;
    full | whole)
        install_packages
        fetch_pyodide
        install_ray
        install_torchao
        if [ "$mode" = full ]; then
            # Others with each commit, and the same for the same commit.
            commit="$(git rev-parse --short=6 HEAD 2>/dev/null || echo 0)"
            export AMP_TEST_TURN="$((0x${commit:0:6} % 48))"
            echo "Of the tests marked heavy a sixteenth runs, of those marked slow a forty-eighth (AMP_TEST_TURN=$AMP_TEST_TURN);" \
                "scripts/test.sh whole runs all."
        fi
        twice -m "not campaign" "$@"
        # As on a processor that lacks what torch uses for half precision on this one.
        status=0
        # Without arguments, no other folders are collected.
        if [ "$#" = 0 ]; then chosen=("${HALF[@]}"); else chosen=("$@"); fi
        # In full, a quarter of the light ones.
        ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 AMP_TEST_AGAIN=1 \
            twice -m "half and not slow and not campaign" "${chosen[@]}" || status=$?
        # 5: the arguments name no such test.
        if [ "$status" != 0 ] && { [ "$status" != 5 ] || [ "$#" = 0 ]; }; then exit "$status"; fi
        ;;
esac
