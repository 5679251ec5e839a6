# Writes a C++ file that defines texts of eval/page_resources.h: OUTPUT from FILES, a list of NAME=PATH.
# SPDX-License-Identifier: Apache-2.0
cmake_minimum_required(VERSION 3.25)
set(source "// Written by cmake/embed.cmake.\n#include \"eval/page_resources.h\"\n\n")
# Longer than what compilers must take; ours take more.
string(APPEND source "#pragma GCC diagnostic push\n#pragma GCC diagnostic ignored \"-Woverlength-strings\"\n")
string(APPEND source "namespace kvlane {\n")
foreach(pair ${FILES})
  string(REGEX MATCH "^([^=]+)=(.*)$" matched "${pair}")
  set(name ${CMAKE_MATCH_1})
  file(READ "${CMAKE_MATCH_2}" text)
  string(APPEND source "const std::string_view ${name} = R\"kvlane_text(${text})kvlane_text\";\n")
endforeach()
file(WRITE ${OUTPUT} "${source}}  // namespace kvlane\n#pragma GCC diagnostic pop\n")
