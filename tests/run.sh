#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test. The last line is the sum: "N passed, N failed"
# (", N skipped" follows when something was). Exit status 0 only when nothing failed.
#
#   run.sh            everything that fits in fifteen minutes on 2 cores
#   run.sh --full     also the slow parts (they look at FERRULE_TEST_FULL)
#   run.sh --only GLOB    only the binaries and scripts whose name matches, for instance 'test_rule*' or 'models/*'
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 5

only='*'
while (($#)); do
  case $1 in
    # Every 61st of all f32 values through the polynomials (about a minute), instead of every 2003rd.
    --full) export FERRULE_TEST_FULL=1 FERRULE_STRIDE=61 ;;
    --only) only=${2:?--only needs a pattern}; shift ;;
    -h | --help) sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "run.sh: unknown option '$1' (see --help)" >&2; exit 2 ;;
  esac
  shift
done

passed=0 failed=0 skipped=0
started=$SECONDS
finish() {
  echo "$((SECONDS - started)) s"
  local line="$passed passed, $failed failed"
  ((skipped)) && line+=", $skipped skipped"
  echo "$line"
  ((failed == 0 && passed > 0))
  exit $?
}
# Whatever stops us, the last line stays what readers of it expect.
stop() { echo "FAILED: $1"; failed=$((failed + 1)); finish; }

python=$(tests/setup/deps.sh --python test) || stop "tests/setup/deps.sh"
export FERRULE_TEST_PYTHON=$python
# Unit tests link libgomp themselves; as in runtime/registry.cpp.
export GOMP_SPINCOUNT=${GOMP_SPINCOUNT-1000}
[[ -f build/build.ninja ]] || cmake -S . -B build -G Ninja || stop "configuring"
ninja -C build || stop "building"

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
limit=900
[[ -n ${FERRULE_TEST_FULL-} ]] && limit=7200  # the builds of tests/sanitize

# why_skipped COUNT DECORATED: why what the log calls skipped was not run, one line a reason, the most frequent first. A case
# with a doctest::skip (DECORATED of them) gives none: its script runs it.
why_skipped() {
  sed 's/\x1b\[[0-9;]*m//g' "$log" | awk -v count="$1" -v decorated="$2" '
    function add(why) { found[substr(why, 1, 150)]++; count-- }
    /^TEST CASE:/ { name = $0 }
    /MESSAGE: skipped, / { sub(/.*MESSAGE: skipped, /, ""); if (!seen[name]++) add($0); next }
    /^skipped,? / { at = index($0, ": "); add(at ? substr($0, at + 2) : $0) }
    /^skip: / { add(substr($0, 7)) }
    END {
      if (decorated) { print decorated "\tdoctest::skip"; count -= decorated }
      for (why in found) print found[why] "\t" why
      if (count) print count "\tno reason given"
    }' | sort -rn | awk -F '\t' '{ printf "        %4d skipped: %s\n", $1, $2 }'
}

# run_one NAME COMMAND...: counts what the command's last summary line says, into $logs/NAME.counts. A doctest binary
# and our scripts end with different ones; both are understood. One that ends without any, or by a signal, or by a bad
# status that its counts do not explain, is one failure more.
run_one() {
  local name=$1 log=$logs/${1//\//_} status begin=$SECONDS p=0 f=0 s=0 decorated=0 found=no
  shift
  local TIMEFORMAT='%U %S' user system
  { time timeout --kill-after=10 "$limit" "$@" >"$log" 2>&1 </dev/null; } 2>"$log.time"
  status=$?
  read -r user system < <(tail -n 1 "$log.time")
  local text
  text=$(sed 's/\x1b\[[0-9;]*m//g' "$log")
  if [[ $(grep -E '^\[doctest\] test cases:' <<<"$text" | tail -1) =~ :\ *[0-9]+\ *\|\ *([0-9]+)\ passed\ *\|\ *([0-9]+)\ failed\ *\|\ *([0-9]+)\ skipped ]]; then
    found=yes p=${BASH_REMATCH[1]} f=${BASH_REMATCH[2]} decorated=${BASH_REMATCH[3]}
    # A doctest case that could not run says "skipped, why"; doctest itself counts it as passed.
    s=$(awk '/^TEST CASE:/ { name = $0 } /MESSAGE: skipped, / { cases[name] } END { print length(cases) }' <<<"$text")
    p=$((p - s)) s=$((s + decorated))
  elif [[ $(grep -E '^[0-9]+ passed, [0-9]+ failed' <<<"$text" | tail -1) =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed(,\ ([0-9]+)\ skipped)? ]]; then
    found=yes p=${BASH_REMATCH[1]} f=${BASH_REMATCH[2]} s=${BASH_REMATCH[4]:-0}
  fi
  # One that ran nothing has shown nothing.
  if [[ $found == no ]] || { ((f == 0)) && ((status != 0 || p + s == 0)); }; then
    f=$((f + 1))
  fi
  echo "$p $f $s" >"$log.counts"
  # On a busy machine the processor's seconds say more than the clock's.
  local note= took="$((SECONDS - begin)) s (processor ${user%.*} + ${system%.*} s)"
  ((s)) && note=", $s skipped"
  {
    if ((f)); then
      tail -n 60 "$log"
      ((status == 124 || status == 137)) && note+=" (stopped after $limit s)"
      echo "FAILED  $name: $p passed, $f failed$note, exit status $status, $took"
    else
      echo "ok      $name: $p passed$note, $took"
    fi
    ((s)) && why_skipped "$s" "$decorated"
  } >"$log.report"
  cat "$log.report"  # in one piece, while others run
}

# Side by side, as many as there are cores.
running=0 started_names=()
start() {
  # shellcheck disable=SC2053
  [[ $1 == $only ]] || return 0
  ((running < $(nproc))) || { wait -n; running=$((running - 1)); }
  started_names+=("$1")
  run_one "$@" &
  running=$((running + 1))
}

# Scripts: tests/FOLDER/run (any language) and tests/FOLDER/*_test.py. The longest are among them, so they come first.
shopt -s nullglob
for script in tests/*/run tests/*/*_test.py; do
  name=${script#tests/}
  case $script in
    *.py) start "$name" "$python" "$script" ;;
    *) start "$name" "$script" ;;  # without its run bit it fails
  esac
done
while read -r name; do
  [[ -n $name ]] && start "$name" "build/$name" --no-colors
done <build/tests.txt
wait

for name in "${started_names[@]}"; do
  p=0 f=1 s=0  # of one that has left no counts
  read -r p f s <"$logs/${name//\//_}.counts"
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
done
finish
