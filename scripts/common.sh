# Shared by the scripts of this folder: where the tree is, how to speak, what to install, how many jobs to run.
# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf '%s\n' "$*" >&2; }

# One clear sentence, then the end.
die() {
  say "${0##*/}: $*"
  exit 1
}

# Prints the comment block at the head of the calling script, without the marks: its help.
show_help() { awk 'NR == 1 { next } /^# SPDX/ { exit } { sub(/^# ?/, ""); print }' "$0"; }

# The packages of groups of packages.txt, comments left out.
packages_of() { # group...
  awk -v groups=" $* " '
    { sub(/#.*/, "") }
    /^\[/ { wanted = index(groups, " " substr($1, 2, length($1) - 2) " "); next }
    NF && wanted { print $1 }' "$root/scripts/packages.txt"
}

# Parallel jobs: as many as cores, but 2 GiB of memory for each; the largest files need that much
# under AddressSanitizer.
jobs_max() {
  local cores memory_gib
  cores=$(nproc)
  memory_gib=$(awk '/^MemAvailable:/ { print int($2 / 1048576) }' /proc/meminfo)
  local by_memory=$((memory_gib / 2))
  ((by_memory >= 1)) || by_memory=1
  echo $((cores < by_memory ? cores : by_memory))
}

# Puts nvcc on the PATH where it is installed beside it; fails where there is none.
find_nvcc() {
  command -v nvcc >/dev/null && return
  [[ -x /usr/local/cuda/bin/nvcc ]] || return
  PATH=/usr/local/cuda/bin:$PATH
}
