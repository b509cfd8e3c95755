# Sourced by tails, graphs and known: `fuzz_kind KIND [options]` runs build/fuzz as it is meant to be run. What fails is reduced
# by `ferrule reduce` and kept with its inputs in a folder that is named (FERRULE_FUZZ_KEPT, else a new one).
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=${FERRULE_BUILD:-$root/build}
# As in runtime/registry.cpp: threads that wait do not take the cores from those that work.
export GOMP_SPINCOUNT=${GOMP_SPINCOUNT-1000}
# The GPU is made of host memory (tests/gpu/stub), whatever is there.
unset CUDA_HOME CUDA_PATH
export FERRULE_STUB_CACHE=$build/stub/cache

# reduced KIND TEXT: the first three failures of the run that printed this.
reduced() {
  local folder=${FERRULE_FUZZ_KEPT:-$(mktemp -d)} seed how check
  mkdir -p "$folder"
  while IFS=$'\t' read -r seed how; do
    "$build/fuzz" "$1" --rules "$root/rules" ${models+"${models[@]}"} --seed "$seed" --keep "$folder" >/dev/null
    check="'$build/fuzz' model {} --inputs {inputs} --rules '$root/rules' $how; s=\$?; [ \$s = 0 ] || [ \$s -ge 128 ]"
    timeout 120 "$build/ferrule" reduce "$folder/$seed.onnx" --inputs "$folder/$seed.npz" -o "$folder/$seed.small.onnx" --force --check "$check" |
      tail -n 20 || echo "seed $seed could not be reduced"
  done < <(sed -nE 's/^FAILED seed ([0-9]+), (--backend .*): .*/\1\t\2/p' <<<"$2" | sed -E 's/\t([^:]*):.*/\t\1/' | head -n 3)
  echo "kept: $folder"
}

fuzz_kind() {
  local python text status=0
  python=$("$root/tests/setup/deps.sh" --python bench 2>/dev/null | tail -n 1) || python=
  # Freed memory is overwritten at once, so that whatever still reads it goes wrong here, and not one time in ten.
  text=$(GLIBC_TUNABLES=glibc.malloc.perturb=165:glibc.malloc.tcache_count=0 LD_LIBRARY_PATH=$build/stub${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
    "$build/fuzz" "$1" --rules "$root/rules" --python "$python" ${models+"${models[@]}"} "${@:2}" 2>&1) || status=$?
  if grep -q '^FAILED seed' <<<"$text"; then
    head -n -1 <<<"$text"
    LD_LIBRARY_PATH=$build/stub${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} reduced "$1" "$text"
    tail -n 1 <<<"$text"
  elif grep -q '^stub: wrong use' <<<"$text"; then
    echo "$text"
    echo "FAILED the stub GPU was used wrongly"
    status=1
  else
    echo "$text"
  fi
  return "$status"
}
