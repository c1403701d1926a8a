#!/usr/bin/env bash
# What the GitHub Action does: `action.sh install` puts the project into an environment of its own, `action.sh run` runs
# one of its commands. Inputs come as variables INPUT_*; no word of them is expanded or run as a command. Python is called
# with -I, so that it imports nothing from the checked-out folder.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
temporary="${RUNNER_TEMP:-${TMPDIR:-/tmp}}"
venv="$temporary/amp-migrate-venv"

fail() {
    # Percent signs and line ends have a meaning in an annotation.
    local text="${1//'%'/%25}"
    text="${text//$'\r'/%0D}"
    printf '::error title=amp-migrate::%s\n' "${text//$'\n'/%0A}"
    exit 2
}

# ---- install ---------------------------------------------------------------------------------------------------

install() {
    local python
    python="$(command -v python3 || command -v python)" || fail "there is no Python; set python-version"
    "$python" -I -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
        fail "$python is older than Python 3.10; set python-version"
    "$python" -I -m venv "$venv"
    "$(programs)/python" -I -m pip install --quiet --disable-pip-version-check --no-input "$root"
}

# Prints the folder with the programs of the environment, which Windows calls by another name.
programs() {
    if [ -d "$venv/Scripts" ]; then echo "$venv/Scripts"; else echo "$venv/bin"; fi
}

# ---- inputs ----------------------------------------------------------------------------------------------------

# Reads the text $2 of the input $1 as a shell reads words, quotes included, into the array `words`.
split() {
    words=()
    TEXT="$2" python -I -c '
import os, shlex, sys
try:
    words = shlex.split(os.environ["TEXT"])
except ValueError as error:
    sys.exit(str(error))
sys.stdout.buffer.write(b"".join(os.fsencode(word) + b"\0" for word in words))
' >"$work/words" 2>"$work/error" || fail "$1 cannot be read: $(cat "$work/error"): $2"
    local word
    while IFS= read -r -d '' word; do words+=("$word"); done <"$work/words"
}

# Fails unless the value $2 of the input $1 is true or false.
check_flag() {
    case "$2" in true | false) ;; *) fail "$1 is true or false, not '$2'" ;; esac
}

read_inputs() {
    command="${INPUT_COMMAND:-migrate}"
    case "$command" in migrate | lint | verify) ;; *) fail "command is migrate, lint or verify, not '$command'" ;; esac
    annotations="${INPUT_ANNOTATIONS:-true}" summary="${INPUT_SUMMARY:-true}" sarif="${INPUT_SARIF_FILE:-}"
    check_flag annotations "$annotations"
    check_flag summary "$summary"
    if [ "$command" = verify ] && [ -n "$sarif" ]; then fail "sarif-file goes with migrate and lint"; fi
    case "$sarif" in *[[:cntrl:]]*) fail "sarif-file is not the name of a file" ;; esac

    split fail-on "${INPUT_FAIL_ON:-findings errors}"
    fail_on=("${words[@]}")
    local word
    for word in "${fail_on[@]}"; do
        case "$word" in
            findings | errors | nothing) ;;
            *) fail "fail-on is findings, errors, both, or nothing, not '$word'" ;;
        esac
    done

    arguments=()
    if [ -n "${INPUT_OPT_LEVEL:-}" ]; then arguments+=("--opt-level=$INPUT_OPT_LEVEL"); fi
    if [ -n "${INPUT_DDP:-}" ]; then
        check_flag ddp "$INPUT_DDP"
        if [ "$INPUT_DDP" = true ]; then arguments+=(--ddp); else arguments+=(--no-ddp); fi
    fi
    split paths "${INPUT_PATHS:-.}"
    arguments+=(${words[@]+"${words[@]}"})
    split args "${INPUT_ARGS:-}"
    arguments+=(${words[@]+"${words[@]}"})
}

# ---- run -------------------------------------------------------------------------------------------------------

# Runs a command whose output quotes source code, of which no line is to be taken for a command to GitHub.
quoting() {
    local token status=0
    token="$(python -I -c 'import secrets; print(secrets.token_hex(16))')"
    echo "::stop-commands::$token"
    "$@" 2>&1 || status=$?
    printf '\n::%s::\n' "$token"
    return "$status"
}

# Adds standard input to the page of the job.
summarise() {
    if [ "$summary" = true ]; then cat >>"${GITHUB_STEP_SUMMARY:-/dev/null}"; else cat >/dev/null; fi
}

# Prints an item of the result, a JSON document, that is reached by the keys $1 and $2.
from_result() {
    python -I -c 'import json, sys; print(json.load(open(sys.argv[1], encoding="utf-8"))[sys.argv[2]][sys.argv[3]])' \
        "$work/result" "$1" "$2"
}

run_migrate() {
    local check=(amp-migrate --check --cache-dir "$work/cache" "${arguments[@]}")
    quoting "${check[@]}" --report "$work/report.md" || status=$?
    # The other runs find the decisions of the first in the cache; their errors were told.
    "${check[@]}" --quiet --format json >"$work/result" 2>"$work/error" || true
    due="$(from_result summary files_changed 2>"$work/error")" || true
    if [ "$annotations" = true ]; then "${check[@]}" --quiet --format github 2>"$work/error" || true; fi
    if [ -n "$sarif" ]; then "${check[@]}" --quiet --format sarif >"$sarif" 2>"$work/error" || true; fi
    if [ -f "$work/report.md" ]; then summarise <"$work/report.md"; fi
}

run_lint() {
    local lint=(amp-lint --cache-dir "$work/cache" "${arguments[@]}")
    quoting "${lint[@]}" --format full || status=$?
    "${lint[@]}" --quiet --format json >"$work/result" 2>"$work/error" || true
    due="$(from_result summary findings 2>"$work/error")" || true
    if [ "$annotations" = true ]; then "${lint[@]}" --quiet --format github 2>"$work/error" || true; fi
    if [ -n "$sarif" ]; then "${lint[@]}" --quiet --format sarif >"$sarif" 2>"$work/error" || true; fi
    "${lint[@]}" --quiet --format concise >"$work/concise" 2>"$work/error" || true
    {
        printf '### amp-lint: %s findings\n\n~~~~text\n' "${due:-no}"
        head -n 200 "$work/concise"
        printf '~~~~\n\n'
    } | summarise
}

run_verify() {
    quoting amp-migrate verify --python "$users_python" --report "$work/report.md" "${arguments[@]}" || status=$?
    if [ -f "$work/report.md" ]; then summarise <"$work/report.md"; fi
}

run() {
    users_python="$(command -v python3 || command -v python)" || fail "there is no Python; set python-version"
    PATH="$(programs):$PATH"
    work="$(mktemp -d "$temporary/amp-migrate-XXXXXX")"
    trap 'rm -rf "$work"' EXIT
    read_inputs
    status=0 due=""
    "run_$command"
    if [ -n "$sarif" ] && [ ! -s "$sarif" ]; then sarif=""; fi
    printf '%s\n' "exit-code=$status" "changes-due=$due" "sarif-file=$sarif" >>"${GITHUB_OUTPUT:-/dev/null}"
    if [ "$annotations" = true ]; then annotate_end; fi
    exit_as_wished
}

# Exit codes as in migrate/amp_migrate/exit_codes.py: 1 is an answer, and has annotations of its own.
annotate_end() {
    case "$status" in
        0 | 1) ;;
        3) echo "::error title=amp-migrate::not proved; the log says why" ;;
        *) echo "::error title=amp-migrate::$command could not be completed; the log says why" ;;
    esac
}

# Not proved counts as an error: a job that verifies must not pass because its script did not run.
exit_as_wished() {
    if [ "$status" -eq 0 ] || wants nothing; then exit 0; fi
    if [ "$status" -eq 1 ]; then
        if wants findings; then exit 1; fi
    elif wants errors; then
        exit "$status"
    fi
    exit 0
}

wants() {
    case " ${fail_on[*]} " in *" $1 "*) ;; *) return 1 ;; esac
}

case "${1:-}" in
    install | run) "$1" ;;
    *) fail "usage: action.sh install|run" ;;
esac
