#!/usr/bin/env bash
# Runs the tests that need a GPU, in less than 10 minutes, and prints one JSON object last:
#     {"passed": N, "failed": [...], "skipped": N, "seconds": S, "facts": {...}}
#
#     tests/device/run.sh          on the machine with the GPU; it has a torch with CUDA
#     tests/device/run.sh pack     beforehand, with a network: puts the wheels that it needs beside this script, for
#                                  the Python of TIERD_DEVICE_PYTHON (default 3.12), if that machine has none
#
# OUT (default: a new directory) gets the log and the results. Exit status: that of the tests.
set -euo pipefail
cd "$(dirname "$0")/../.."
wheels=tests/device/wheels
needs=(grpcio grpcio-health-checking grpcio-reflection protobuf numpy xxhash pydantic structlog uvloop typer rich
       redis prometheus-client starlette uvicorn pytest pytest-timeout)

if [ "${1:-}" = pack ]; then
    mkdir -p "$wheels"
    "${PYTHON:-python3}" -m pip wheel --quiet --no-deps -w "$wheels" . ./clients
    rm -rf build clients/build
    exec "${PYTHON:-python3}" -m pip download --quiet -d "$wheels" -c constraints.txt --only-binary=:all: \
        --python-version "${TIERD_DEVICE_PYTHON:-3.12}" "${needs[@]}"
fi

OUT=${OUT:-$(mktemp -d)}
environment=$OUT/environment
"${PYTHON:-python3}" -m venv --system-site-packages "$environment"
install=("$environment/bin/python" -m pip install --quiet --disable-pip-version-check)
if [ -d "$wheels" ]; then
    install+=(--no-index --find-links "$wheels")
    "${install[@]}" "${needs[@]}"
    "${install[@]}" --no-deps tierd tierd-client
else
    "${install[@]}" -c constraints.txt "${needs[@]}"
    "${install[@]}" --no-deps . ./clients
fi
export PYTHONPATH=$PWD:$PWD/clients  # what is here is tested; what is installed says which version it is

status=0
timeout 540 "$environment/bin/python" -m pytest tests/device -p no:cacheprovider -o addopts= --timeout=120 -q -rs \
    --junitxml="$OUT/device.xml" >"$OUT/device.log" 2>&1 || status=$?
tail -n 40 "$OUT/device.log"
exec "$environment/bin/python" tests/device/summary.py "$OUT/device.xml" "$status"
