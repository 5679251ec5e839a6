# CUDA, for builds with KVLANE_CUDA: the language, its options, and which devices code is made for.
# SPDX-License-Identifier: Apache-2.0

if(KVLANE_SANITIZE OR KVLANE_FUZZ)
  message(FATAL_ERROR "KVLANE_CUDA goes with neither KVLANE_SANITIZE nor KVLANE_FUZZ: device code meets the "
                      "sanitizers on emulated threads, in codec_test, attention_test and ops_test")
endif()

# Debian 12's CMake does not know that CUDA 12 and later can do C++20, and would leave the option out
# without a word.
foreach(kind STANDARD EXTENSION)
  if(NOT DEFINED CMAKE_CUDA20_${kind}_COMPILE_OPTION)
    set(CMAKE_CUDA20_${kind}_COMPILE_OPTION "-std=c++20")
  endif()
endforeach()
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 89-real 90-real 90-virtual CACHE STRING "What kernels are compiled for")
endif()
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "KVLANE_CUDA needs nvcc, and there is none on the PATH nor in CUDACXX: "
                      "install the CUDA toolkit, or configure with -DKVLANE_CUDA=OFF")
endif()
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.0)
  message(FATAL_ERROR "KVLANE_CUDA needs CUDA 12.0 or later, for C++20; this is ${CMAKE_CUDA_COMPILER_VERSION}")
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
# With a static runtime a program starts, and says what is missing, where no driver is.
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)

target_compile_options(kvlane_options INTERFACE
  "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-lineinfo;-Xcompiler=-Wall,-Wextra>"
  # A register that goes to memory, or an array that is indexed at run time, costs a kernel its speed.
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xptxas=--warn-on-spills,--warn-on-local-memory-usage>")
if(KVLANE_WARNINGS_ARE_ERRORS)
  target_compile_options(kvlane_options INTERFACE
    "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xptxas=--warning-as-error>")
endif()

# Whether there is code for sm_90: then X_hopper.cu files are compiled, whose instructions sm_90a alone has.
set(KVLANE_HOPPER OFF)
if(CMAKE_CUDA_ARCHITECTURES MATCHES "(^|;)(90a?(-real|-virtual)?|all|all-major|native)(;|$)")
  set(KVLANE_HOPPER ON)
endif()
