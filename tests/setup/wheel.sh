#!/usr/bin/env bash
# Builds the wheel into dist/ and prints its path as the last line. `pip wheel .` makes one for this machine; auditwheel puts Debian's
# libraries into it, so that it runs wherever glibc is 2.35 or newer. Minutes from nothing, seconds when little has changed (build-wheel/).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
out=${1:-dist}
platform=manylinux_2_35_x86_64
largest=$((45 * 1000 * 1000))

python=$(tests/setup/deps.sh --python wheel)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# auditwheel and scikit-build-core look for programs on the path.
PATH=$(dirname "$python"):$PATH
# As CMake calls it by itself: a compiler cache tells g++ from c++.
export CXX=${CXX:-c++}
"$python" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$scratch" . >&2
# oneDNN is in the wheel already, and its path in the build.
"$python" -m auditwheel repair --plat "$platform" --only-plat --wheel-dir "$scratch/repaired" "$scratch"/ferrule-*.whl >"$scratch/log" 2>&1 ||
  { cat "$scratch/log" >&2; exit 1; }
wheel=$(echo "$scratch"/repaired/*.whl)
bytes=$(stat -c %s "$wheel")
((bytes < largest)) || { echo "wheel.sh: $(basename "$wheel") has $bytes bytes, $largest are allowed" >&2; exit 1; }
mkdir -p "$out"
rm -f "$out"/ferrule-*.whl
mv "$wheel" "$out/"
echo "$out/$(basename "$wheel")"
