# To be sourced: tests that are several Python scripts.

# run_scripts "SCRIPT..." ARGUMENT...: runs each SCRIPT.py of the folder $here with $python, shows what it prints but its sum, and
# ends with the sum of all. Exit status 0 only when nothing failed.
run_scripts() {
  local scripts=$1 script out line passed=0 failed=0 skipped=0
  shift
  for script in $scripts; do
    out=$("$python" "$here/$script.py" "$@" 2>&1)
    head -n -1 <<<"$out"
    if [[ $(tail -n 1 <<<"$out") =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed(,\ ([0-9]+)\ skipped)?$ ]]; then
      passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2])) skipped=$((skipped + ${BASH_REMATCH[4]:-0}))
    else
      tail -n 1 <<<"$out"
      echo "FAILED $script.py did not end as it should"
      failed=$((failed + 1))
    fi
  done
  line="$passed passed, $failed failed"
  ((skipped)) && line+=", $skipped skipped"
  echo "$line"
  ((failed == 0))
}
