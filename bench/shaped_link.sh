#!/usr/bin/env bash
# Sends the KV of a long prompt over links of known speed, with each codec: `kvlane bench transfer` between two network
# namespaces whose link `tc tbf` shapes. Prints the figures of docs/bench.md for each speed; the last one, "unshaped",
# is the link as it is.
#
#   bench/shaped_link.sh [--rates "1gbit 10gbit"] [--json DIR] MODEL TEXT [flags of kvlane bench transfer]
#
#   bench/shaped_link.sh models/kvlane-tiny-gqa README.md --tokens 8192 --rounds 5
#
# --json DIR writes one file for each speed there, for tools/record.py. Needs root, ip and tc (package iproute2), and a
# kernel with network namespaces and tbf: without one of them nothing is measured, and this script says so.
# KVLANE_PROGRAM is the program, build/release/kvlane if it is not set.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/common.sh"

rates="1gbit 10gbit"
json=
positional=()
flags=()
while (($#)); do
  case $1 in
    --rates) rates=$2; shift 2 ;;
    --json) json=$2; shift 2 ;;
    -h | --help) show_help; exit 0 ;;
    -*) flags+=("$1" "${2-}"); shift 2 || die "$1 has no value" ;;
    *) positional+=("$1"); shift ;;
  esac
done
((${#positional[@]} == 2)) || { show_help >&2; exit 2; }
model=${positional[0]} text=${positional[1]}
program=${KVLANE_PROGRAM:-$root/build/release/kvlane}
[[ -x $program ]] || die "$program is not there: build it, or set KVLANE_PROGRAM"

skip() {
  say "SKIPPED: ${0##*/} $*; nothing was measured"
  exit 0
}

sender=kvlane-a-$$
receiver=kvlane-b-$$
address=10.213.77.2
listener=

clean_up() {
  [[ -z $listener ]] || kill "$listener" 2>/dev/null || true
  ip netns del "$sender" 2>/dev/null || true
  ip netns del "$receiver" 2>/dev/null || true
}

for tool in ip tc; do
  command -v "$tool" >/dev/null || skip "needs $tool (package iproute2)"
done
trap clean_up EXIT
ip netns add "$sender" 2>/dev/null || skip "may not make network namespaces (root may)"
ip netns add "$receiver" || die "the second namespace could not be made"
ip -n "$sender" link add veth0 type veth peer name veth0 netns "$receiver" 2>/dev/null ||
  skip "cannot make a pair of virtual interfaces"
ip -n "$sender" addr add 10.213.77.1/24 dev veth0
ip -n "$receiver" addr add "$address/24" dev veth0
for name in "$sender" "$receiver"; do
  ip -n "$name" link set lo up
  ip -n "$name" link set veth0 up
done

# Burst: what the shaper lets through at once, more than the largest packet the sender's TCP hands over (64 KiB), and for so long
# as its timer sleeps. Limit: what may wait in the shaper before packets are dropped; as much as a good switch has.
shape() {
  ip netns exec "$sender" tc qdisc replace dev veth0 root tbf rate "$1" burst 512k limit 4m 2>/dev/null
}

# One run at one speed: $1 names it, what follows are flags for the sender.
measure() {
  local name=$1
  shift
  local told
  exec {told}< <(exec ip netns exec "$receiver" "$program" bench transfer --listen "$address:0" "${flags[@]}")
  listener=$!
  # It takes its memory first.
  local line
  read -r -t 60 -u "$told" line || die "the receiver does not listen"
  local output
  output=$(ip netns exec "$sender" "$program" bench transfer "$model" --text "$text" \
    --send-to "${line##* }" "${flags[@]}" "$@" ${json:+--json})
  wait "$listener" || die "the receiver failed"
  listener=
  exec {told}<&-
  if [[ -n $json ]]; then
    printf '%s\n' "$output" >"$json/shaped_link_$name.json"
    say "wrote $json/shaped_link_$name.json"
  else
    printf '\n== %s ==\n%s\n' "$name" "$output"
  fi
}

[[ -z $json ]] || mkdir -p "$json"
for rate in $rates; do
  shape "$rate" || skip "has no tc tbf that takes rate $rate"
  measure "$rate" --shaped
done
ip netns exec "$sender" tc qdisc del dev veth0 root 2>/dev/null || true
measure unshaped
