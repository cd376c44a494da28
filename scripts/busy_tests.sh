#!/usr/bin/env bash
# Run the tests several times while every core is busy, and report the number of green runs.
#
#   scripts/busy_tests.sh [N] [arguments of pytest]
#
# N defaults to 3. A busy loop per core runs beside the tests, at a lower priority (HOG_NICE, 5) so that a run ends; with
# 0 the priorities are equal. The output of the runs is kept in a folder, whose path is printed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

runs="${1:-3}"
[[ "$runs" =~ ^[1-9][0-9]*$ ]] || { echo "Expected a number of runs, but got '$runs'." >&2; exit 2; }
shift || true
python="${PYTHON:-.venv/bin/python}"
logs="$(mktemp -d)"

hogs=()
for _ in $(seq "$(nproc)"); do
    nice -n "${HOG_NICE:-5}" bash -c 'while :; do :; done' &
    hogs+=($!)
done
trap 'kill "${hogs[@]}" 2>/dev/null || true' EXIT

green=0
for run in $(seq "$runs"); do
    log="$logs/$run.log"
    if OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" "$python" -m pytest -q -n 2 "$@" >"$log" 2>&1; then
        green=$((green + 1))
    fi
    echo "run $run: $(tail -n 1 "$log")"
done
echo "$green of $runs runs were green; the output is in $logs"
[[ "$green" == "$runs" ]]
