# Writes bench/commit.h with the commit of the tree, at every build, touching it only when it changed.
# SPDX-License-Identifier: Apache-2.0
cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND git -C ${SOURCE} rev-parse --short=12 HEAD
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
execute_process(COMMAND git -C ${SOURCE} status --porcelain --untracked-files=no
                OUTPUT_VARIABLE changes ERROR_QUIET)
if(NOT commit)
  set(commit "unknown")
elseif(changes)
  string(APPEND commit "-dirty")
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#pragma once\n#define KVLANE_COMMIT \"@commit@\"\n" @ONLY)
