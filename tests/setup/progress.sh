#!/usr/bin/env bash
# ninja … | progress.sh LABEL: says on standard error how far a build is and about how long it will still take, in one line that is
# rewritten on a terminal, else in a line every ten seconds. What is no status line of ninja's ("[3/7] …") goes on to standard output.
# The time left supposes that all steps take equally long.
set -u
label=$1 begin=$EPOCHSECONDS said=0
terminal=no
[[ -t 2 ]] && terminal=yes
while IFS= read -r line || [[ -n $line ]]; do
  if ! [[ $line =~ ^\[([0-9]+)/([0-9]+)\] ]]; then
    printf '%s\n' "$line"
    continue
  fi
  done=${BASH_REMATCH[1]} total=${BASH_REMATCH[2]} now=$EPOCHSECONDS
  ((done > 0 && now > begin)) || continue
  [[ $terminal == yes ]] || ((now >= said + 10 || done == total)) || continue
  said=$now
  left=$(((now - begin) * (total - done) / done))
  text="$label: $done of $total steps"
  if ((done == total)); then
    text+=", $((now - begin)) s"
  elif ((left < 90)); then
    text+=", about $left s left"
  else
    text+=", about $(((left + 30) / 60)) min left"
  fi
  if [[ $terminal == yes ]]; then printf '\r%s\e[K' "$text" >&2; else printf '%s\n' "$text" >&2; fi
done
if [[ $terminal == yes ]] && ((said)); then printf '\n' >&2; fi
