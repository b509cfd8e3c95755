# shellcheck shell=bash
# Sourced by the recipes: finds the program, makes the model (of model.txt, or as model.py writes it), and shows commands
# before it runs them.
set -euo pipefail
recipe=$(basename "$PWD")
root=$(cd ../.. && pwd)
out=$root/build/examples/$recipe
python=${FERRULE_TEST_PYTHON:-$("$root/tests/setup/deps.sh" --python test)}
ferrule=${FERRULE_PROGRAM:-$root/build/ferrule}
[[ -x $ferrule ]] || { echo "build first: tests/setup/deps.sh && cmake -S . -B build -G Ninja && ninja -C build" >&2; exit 5; }
mkdir -p "$out"
if [[ -f model.py ]]; then PYTHONPATH=.. "$python" model.py "$out"; else "$python" ../make_model.py model.txt "$out/model.onnx"; fi

step() { printf '\n%s\n' "$*"; }
# Shows a command as one would type it here, runs it, and stops unless it ends with the expected status (first argument).
expect() {
  local wanted=$1 status=0
  shift
  local shown="$*"
  shown=${shown//$root\/build\//../../build/}
  printf '$ %s\n' "${shown//$ferrule/ferrule}"
  "$@" 2>&1 || status=$?
  [[ $status == "$wanted" ]] || { echo "exit status $status, wanted $wanted" >&2; exit 1; }
}
