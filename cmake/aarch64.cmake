# Toolchain: from any Debian 12 to its 64-bit ARM, with g++-aarch64-linux-gnu. Libraries lie unpacked in
# build/aarch64-root (scripts/cross puts them there), and what was built runs through qemu-user.
# SPDX-License-Identifier: Apache-2.0

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

get_filename_component(root "${CMAKE_CURRENT_LIST_DIR}/../build/aarch64-root" ABSOLUTE)
if(NOT EXISTS "${root}/usr/include/stdio.h")
  message(FATAL_ERROR "there are no libraries for 64-bit ARM in ${root}: run scripts/cross")
endif()
set(CMAKE_SYSROOT "${root}")
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)

# pkg-config reads these when CMake calls it.
set(ENV{PKG_CONFIG_SYSROOT_DIR} "${root}")
set(ENV{PKG_CONFIG_LIBDIR} "${root}/usr/lib/aarch64-linux-gnu/pkgconfig:${root}/usr/share/pkgconfig")

set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L "${root}")
