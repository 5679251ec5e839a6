# What a build with KVLANE_GPU_ONLY has: src/gpu, codecs, attention and what it needs of src/quant, row operations, the
# forward pass, their tests and kvlane_gpu_bench. It needs a compiler and CUDA, and none of the libraries of the rest.
# Files are compiled apart (no KVLANE_UNITY): some refer to sources that are left out here, and the linker takes none of
# them.
# SPDX-License-Identifier: Apache-2.0

find_package(OpenMP REQUIRED)  # comes with the compiler

if(KVLANE_TESTS)
  enable_testing()
  find_package(GTest 1.12 QUIET)
  if(NOT GTest_FOUND)
    # Where it is not installed its sources do: they have no needs of their own.
    set(KVLANE_GTEST_SOURCE "" CACHE PATH "Sources of GoogleTest, the folder with src/gtest-all.cc")
    find_path(KVLANE_GTEST_FOUND src/gtest-all.cc NO_DEFAULT_PATH
      PATHS ${KVLANE_GTEST_SOURCE} ${PROJECT_SOURCE_DIR}/build/googletest/googletest
            ${PROJECT_SOURCE_DIR}/build/googletest /usr/src/googletest/googletest)
    if(NOT KVLANE_GTEST_FOUND)
      message(FATAL_ERROR "no GoogleTest: install libgtest-dev, or put its sources into build/googletest "
                          "(docs/gpu.md), or name them in KVLANE_GTEST_SOURCE")
    endif()
    message(STATUS "GoogleTest is built from ${KVLANE_GTEST_FOUND}")
    add_library(gtest STATIC EXCLUDE_FROM_ALL ${KVLANE_GTEST_FOUND}/src/gtest-all.cc)
    target_include_directories(gtest SYSTEM PUBLIC ${KVLANE_GTEST_FOUND}/include)
    target_include_directories(gtest PRIVATE ${KVLANE_GTEST_FOUND})
    target_link_libraries(gtest PUBLIC pthread)
    add_library(gtest_main STATIC EXCLUDE_FROM_ALL ${KVLANE_GTEST_FOUND}/src/gtest_main.cc)
    target_link_libraries(gtest_main PUBLIC gtest)
    add_library(GTest::gtest ALIAS gtest)
    add_library(GTest::gtest_main ALIAS gtest_main)
  endif()
  include(GoogleTest)
endif()

kvlane_simd(codec attention quant)
kvlane_library(base)
kvlane_library(cpu DEPS base OpenMP::OpenMP_CXX)
# Its headers alone: its sources need libraries, and codecs use none of them.
add_library(kvlane_format INTERFACE)
target_link_libraries(kvlane_format INTERFACE kvlane_base)
kvlane_library(gpu DEPS base PRIVATE ${CMAKE_DL_LIBS})
kvlane_library(codec DEPS format cpu gpu)
kvlane_library(cache DEPS format cpu)
kvlane_library(plan DEPS format)
# Products on a CPU need oneDNN, eigenvectors Eigen; rotations are for forward passes there.
kvlane_library(ops DEPS cpu format gpu
               WITHOUT "/(linear(_onednn|_scalar)?|rotation_[a-z0-9]+|gram[a-z_]*|eigenvectors)\\.cpp$")
# What attention on codes and on narrow pages, their tests and the benchmark need.
set(of_hack "hadamard(_avx512)?|hack_(scalar|(open|seal)[a-z0-9_]*)")
set(of_zack "zack_ranks|zack_seal_(no_cuda|gpu_test)|format_text")
kvlane_library(quant DEPS format cpu gpu ONLY "/(${of_hack}|${of_zack})\\.cpp$")
kvlane_library(attention DEPS cpu cache gpu plan quant)
kvlane_racecheck_test(attention hack_prefill)
# The forward pass on devices and what moves slabs there; reading checkpoints needs libraries.
set(of_slabs "forward_pass|plain_layout|slab_(coder|lane)(_gpu_test)?")
kvlane_library(model DEPS format codec ops attention cache gpu plan ONLY "/((device|gpu)_[a-z_]*|${of_slabs})\\.cpp$")

# Of src/bench what is about GPUs, and how figures are printed.
kvlane_library(bench DEPS codec model ONLY "/(gpu_[a-z_]*|figures)\\.cpp$")
kvlane_emulated_accelerator(model_test)
kvlane_fake_cufile(gpu_test)
kvlane_gpu_bench()
