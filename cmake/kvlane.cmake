# Build helpers: compile options, one library per folder with its tests and fuzz targets.
# SPDX-License-Identifier: Apache-2.0

# What has tiers of kernels; elsewhere there are the scalar ones alone (kX86 in src/cpu/isa.h).
set(KVLANE_X86 OFF)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
  set(KVLANE_X86 ON)
endif()

option(KVLANE_UNITY "Compile files of a folder in batches: quicker from nothing, slower for one file" OFF)

# Options of every target of ours.
add_library(kvlane_options INTERFACE)
set(kvlane_cxx_options
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion $<$<BOOL:${KVLANE_WARNINGS_ARE_ERRORS}>:-Werror>
  # Members that an initialiser leaves out have defaults: that is what they are for.
  -Wno-missing-field-initializers
  # g++ 12 sees overlaps inside std::string that cannot be (GCC bug 105651), and at -O3 insertions into
  # a std::vector of bytes that run over.
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
  $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow>
  # To g++ a file of a batch is a header, whose types are everybody's; in a batch they are not.
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<BOOL:${KVLANE_UNITY}>>:-Wno-subobject-linkage>
  # The compiler must not fuse a*b+c on its own: results would depend on its mood.
  -ffp-contract=off)
target_compile_options(kvlane_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${kvlane_cxx_options}>")
target_include_directories(kvlane_options INTERFACE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
target_compile_definitions(kvlane_options INTERFACE KVLANE_VERSION="${PROJECT_VERSION}")
if(KVLANE_SANITIZE)
  add_compile_options(-fsanitize=${KVLANE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${KVLANE_SANITIZE})
  if(KVLANE_SANITIZE MATCHES undefined)
    # What these look for, AddressSanitizer finds when memory is touched; they take a third of the time of loops.
    add_compile_options(-fno-sanitize=null,object-size,pointer-overflow)
  endif()
  # What emulated threads meet in is no kernel, and half the time of tests on emulated devices.
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/gpu/emulated_block.cpp PROPERTIES
    COMPILE_OPTIONS "-O2;-fno-sanitize=all")
  # GCC sees too little of instrumented code to know; the builds without sanitizers warn.
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  if(KVLANE_SANITIZE MATCHES thread)
    # ThreadSanitizer does not know fences; Asio's queues are ordered by their mutex anyway.
    add_compile_definitions(BOOST_ASIO_DISABLE_FENCED_BLOCK)
  endif()
endif()

if(KVLANE_FUZZ)
  # Coverage of the libraries too: without it libFuzzer sees no branch outside the target's own file.
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# Where only GPU tests are built there may be no gmock.
set(kvlane_gtest GTest::gmock)
if(KVLANE_GPU_ONLY)
  set(kvlane_gtest GTest::gtest)
endif()

# The kernel's header of TCP, which this file needs, and the C library's cannot be included together.
set_source_files_properties(${PROJECT_SOURCE_DIR}/src/transfer/tcp_progress.cpp PROPERTIES
  SKIP_UNITY_BUILD_INCLUSION ON)

# kvlane_batches(LIST TARGET): the sources in the variable LIST become files that include sixteen of them each, if the
# build is to have batches. Those with compile options of their own, which kernels have, stay as they are. CMake's own
# UNITY_BUILD names files by absolute paths, and what one clone compiled would serve no other.
function(kvlane_batches list target)
  set(batched "")
  set(compiled "")
  foreach(source ${${list}})
    get_property(options SOURCE ${source} PROPERTY COMPILE_OPTIONS SET)
    get_source_file_property(apart ${source} SKIP_UNITY_BUILD_INCLUSION)
    if(KVLANE_UNITY AND NOT options AND NOT apart)
      list(APPEND batched ${source})
    else()
      list(APPEND compiled ${source})
    endif()
  endforeach()
  set(number 0)
  while(batched)
    list(SUBLIST batched 0 16 batch)
    list(REMOVE_ITEM batched ${batch})
    list(TRANSFORM batch REPLACE "^${PROJECT_SOURCE_DIR}/src/(.+)$" "#include \"\\1\"\n")
    list(JOIN batch "" text)
    set(file ${PROJECT_BINARY_DIR}/generated/batches/${target}_${number}.cpp)
    file(CONFIGURE OUTPUT ${file} CONTENT "${text}")
    list(APPEND compiled ${file})
    math(EXPR number "${number} + 1")
  endwhile()
  set(${list} ${compiled} PARENT_SCOPE)
endfunction()

# Every test program, and not what none of them needs.
add_custom_target(kvlane_tests)
# What each of them links.
add_library(kvlane_test_paths STATIC EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/src/base/test_paths.cpp)
target_link_libraries(kvlane_test_paths PRIVATE kvlane_options)
target_compile_definitions(kvlane_test_paths PRIVATE KVLANE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")

# kvlane_racecheck_test(LIBRARY KERNEL): the GPU tests of src/LIBRARY/KERNEL_hopper.cu alone, with every thread of it
# arriving for itself (gpu/hopper_thread.h), as the program LIBRARY_racecheck_test for compute-sanitizer.
function(kvlane_racecheck_test library kernel)
  if(NOT KVLANE_TESTS OR NOT KVLANE_HOPPER)
    return()
  endif()
  set(program ${library}_racecheck_test)
  set(stem ${PROJECT_SOURCE_DIR}/src/${library}/${kernel})
  # Its kernels come before those of the library, which nobody asks for then.
  add_executable(${program} ${stem}_gpu_test.cpp ${stem}_hopper.cu)
  set_target_properties(${program} PROPERTIES CUDA_ARCHITECTURES 90a-real)
  target_compile_definitions(${program} PRIVATE KVLANE_EVERY_THREAD_ARRIVES)
  target_link_libraries(${program} PRIVATE kvlane_${library} kvlane_test_paths ${kvlane_gtest} GTest::gtest_main)
  add_dependencies(kvlane_tests ${program})
endfunction()

# kvlane_library(NAME [DEPS ...] [PRIVATE ...] [ONLY REGEX] [WITHOUT REGEX]): src/NAME/*.cpp as the
# static library kvlane_NAME, of which only those whose path matches ONLY, and not those that match
# WITHOUT. DEPS are names of our own libraries or targets that its headers need; PRIVATE targets are
# used in its .cpp files only. X_hopper.cu files are compiled for sm_90a alone, and X_no_hopper.cpp stand
# in for them where a build with CUDA has no code for sm_90. X_test.cpp files, and X_fixture.cpp that they
# share, become the test program NAME_test, X_fuzz.cpp files one libFuzzer program each.
function(kvlane_library name)
  cmake_parse_arguments(arg "" "ONLY;WITHOUT" "DEPS;PRIVATE" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cpp)
  if(arg_ONLY)
    list(FILTER sources INCLUDE REGEX "${arg_ONLY}")
  endif()
  if(arg_WITHOUT)
    list(FILTER sources EXCLUDE REGEX "${arg_WITHOUT}")
  endif()
  set(tests ${sources})
  set(fuzzers ${sources})
  list(FILTER sources EXCLUDE REGEX "_(test|fixture|fuzz|main|plugin)\\.cpp$|/(emulated_accelerator|test_paths)\\.cpp$")
  if(NOT KVLANE_X86)
    list(FILTER sources EXCLUDE REGEX "_(avx2|avx512|avx512_bf16)\\.cpp$")
  endif()
  if(KVLANE_CUDA)
    list(FILTER sources EXCLUDE REGEX "_no_cuda\\.cpp$")
    file(GLOB kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cu)
    set(hopper_kernels ${kernels})
    list(FILTER hopper_kernels INCLUDE REGEX "_hopper\\.cu$")
    list(FILTER kernels EXCLUDE REGEX "_hopper\\.cu$")
    set_source_files_properties(${kernels} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    list(APPEND sources ${kernels})
    if(KVLANE_HOPPER)
      list(FILTER sources EXCLUDE REGEX "_no_hopper\\.cpp$")
    endif()
  else()
    list(FILTER sources EXCLUDE REGEX "_no_hopper\\.cpp$")
  endif()
  if(ucx_FOUND)
    list(FILTER sources EXCLUDE REGEX "/ucx_absent\\.cpp$")
  else()
    list(FILTER sources EXCLUDE REGEX "/ucx(_connection|_inbox|_library|_receiving|_worker)?\\.cpp$")
  endif()
  list(FILTER tests INCLUDE REGEX "_(test|fixture)\\.cpp$")
  # ucx_test is a program of its own.
  list(FILTER tests EXCLUDE REGEX "/ucx_[a-z_]*test\\.cpp$")
  list(FILTER fuzzers INCLUDE REGEX "_fuzz\\.cpp$")
  if(NOT KVLANE_CUDA)
    list(FILTER tests EXCLUDE REGEX "_gpu_test\\.cpp$")
  elseif(KVLANE_GPU_ONLY)
    list(FILTER tests INCLUDE REGEX "/gpu/|_(gpu|device)_test\\.cpp$")
  endif()

  if(sources)
    kvlane_batches(sources kvlane_${name})
    add_library(kvlane_${name} STATIC ${sources})
    set(scope PUBLIC)
    target_link_libraries(kvlane_${name} PRIVATE ${arg_PRIVATE})
  else()
    add_library(kvlane_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_link_libraries(kvlane_${name} ${scope} kvlane_options)
  set(ours ${arg_DEPS})
  foreach(dep ${arg_DEPS})
    if(TARGET kvlane_${dep})
      list(TRANSFORM ours REPLACE "^${dep}$" kvlane_${dep})
    endif()
  endforeach()
  target_link_libraries(kvlane_${name} ${scope} ${ours})

  if(KVLANE_HOPPER AND hopper_kernels)
    # Its own architecture is a target's, not a source's.
    add_library(kvlane_${name}_hopper OBJECT ${hopper_kernels})
    set_target_properties(kvlane_${name}_hopper PROPERTIES CUDA_ARCHITECTURES 90a-real)
    target_link_libraries(kvlane_${name}_hopper PRIVATE kvlane_options ${ours})
    target_sources(kvlane_${name} PRIVATE $<TARGET_OBJECTS:kvlane_${name}_hopper>)
  endif()

  if(KVLANE_TESTS AND tests)
    kvlane_batches(tests ${name}_test)
    add_executable(${name}_test ${tests})
    add_dependencies(kvlane_tests ${name}_test)
    target_link_libraries(${name}_test PRIVATE kvlane_${name} ${arg_PRIVATE} kvlane_test_paths ${kvlane_gtest}
                                               GTest::gtest_main)
    # What takes long here is what is tested. Under sanitizers optimising takes as long again, and is for those alone
    # whose kernels or references are in the tests themselves.
    if(KVLANE_SANITIZE AND NOT name MATCHES "^(attention|bench|cache|codec|gpu|ops|quant)$")
      target_compile_options(${name}_test PRIVATE -O0)
    else()
      target_compile_options(${name}_test PRIVATE -O1)
    endif()
    # g++ 12 takes the strings inside temporaries of EXPECT_EQ for uninitialised.
    target_compile_options(${name}_test PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
    # Parameters by number or name: values may print as addresses, which change.
    # Listing them takes long under a sanitizer on a busy machine.
    gtest_discover_tests(${name}_test DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 120 NO_PRETTY_VALUES
      PROPERTIES TIMEOUT 300
      # Threads that spin while they wait take the cores from those they wait for.
      ENVIRONMENT OMP_WAIT_POLICY=passive)
  endif()
  if(KVLANE_FUZZ)
    foreach(source ${fuzzers})
      get_filename_component(fuzzer ${source} NAME_WE)
      add_executable(${fuzzer} ${source})
      target_compile_options(${fuzzer} PRIVATE -fsanitize=fuzzer)
      target_link_options(${fuzzer} PRIVATE -fsanitize=fuzzer)
      target_link_libraries(${fuzzer} PRIVATE kvlane_${name} ${arg_PRIVATE})
    endforeach()
  endif()
endfunction()

# One translation unit per instruction-set tier: X_avx2.cpp, X_avx512.cpp and X_avx512_bf16.cpp of these folders
# are compiled for what src/cpu/isa.h says of the tier, all else for plain x86-64, or whatever the build is for. Such
# a file calls no inline function of a library: the linker could keep the AVX-512 copy of it for everybody. g++ 12
# takes the undefined operands inside its own intrinsics for uninitialised variables (GCC bug 105593).
function(kvlane_simd)
  set(scalar "")
  set(avx2 -mavx2 -mfma -mf16c)
  set(avx512 ${avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512
    -Wno-uninitialized $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  set(avx512_bf16 ${avx512} -mavx512vbmi -mavx512vbmi2 -mavx512vnni -mavx512bf16)
  foreach(name ${ARGN})
    foreach(tier scalar avx2 avx512 avx512_bf16)
      file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*_${tier}.cpp)
      set_source_files_properties(${sources} PROPERTIES COMPILE_OPTIONS "${${tier}}")
    endforeach()
  endforeach()
endfunction()

# ucx_test: the tests of real links once more, over UCX, and those of UCX itself; whole requests too. Not under
# sanitizers, which know nothing of what UCX does.
function(kvlane_ucx_test)
  if(NOT ucx_FOUND OR NOT KVLANE_TESTS OR KVLANE_SANITIZE)
    return()
  endif()
  set(folder ${PROJECT_SOURCE_DIR}/src/transfer)
  set(engine ${PROJECT_SOURCE_DIR}/src/engine)
  file(GLOB tests CONFIGURE_DEPENDS ${folder}/ucx_*test.cpp)
  add_executable(ucx_test ${tests} ${folder}/tcp_test.cpp ${folder}/endpoint_tcp_test.cpp
    ${folder}/endpoint_links_test.cpp ${folder}/flow_control_links_test.cpp
    ${engine}/ranked_disaggregation_test.cpp ${engine}/engine_fixture.cpp)
  add_dependencies(kvlane_tests ucx_test)
  target_compile_definitions(ucx_test PRIVATE KVLANE_TEST_UCX)
  target_link_libraries(ucx_test PRIVATE kvlane_engine kvlane_transfer PkgConfig::xxhash Threads::Threads
                                         kvlane_test_paths ${kvlane_gtest} GTest::gtest_main)
  target_include_directories(ucx_test SYSTEM PRIVATE ${ucx_INCLUDE_DIRS})
  target_compile_options(ucx_test PRIVATE -O1 $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  gtest_discover_tests(ucx_test DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 120 NO_PRETTY_VALUES
    PROPERTIES TIMEOUT 300 ENVIRONMENT OMP_WAIT_POLICY=passive)
endfunction()

# kvlane_emulated_accelerator(TEST...): a device on emulated threads, for these test programs. Its kernels take long to
# compile: they are compiled once.
function(kvlane_emulated_accelerator)
  if(NOT KVLANE_TESTS)
    return()
  endif()
  add_library(kvlane_emulated_accelerator STATIC EXCLUDE_FROM_ALL
    ${PROJECT_SOURCE_DIR}/src/model/emulated_accelerator.cpp)
  target_link_libraries(kvlane_emulated_accelerator PUBLIC kvlane_model)
  target_compile_options(kvlane_emulated_accelerator PRIVATE -O1)
  foreach(test ${ARGN})
    target_link_libraries(${test} PRIVATE kvlane_emulated_accelerator)
  endforeach()
endfunction()

# kvlane_fake_cufile(TEST...): a library that these test programs load, in the place of NVIDIA's.
function(kvlane_fake_cufile)
  if(NOT KVLANE_TESTS)
    return()
  endif()
  add_library(fake_cufile MODULE ${PROJECT_SOURCE_DIR}/src/gpu/fake_cufile_plugin.cpp)
  target_link_libraries(fake_cufile PRIVATE kvlane_options)
  foreach(test ${ARGN})
    add_dependencies(${test} fake_cufile)
  endforeach()
  target_compile_definitions(kvlane_test_paths PRIVATE KVLANE_FAKE_CUFILE="$<TARGET_FILE:fake_cufile>")
endfunction()

# bench/commit.h for the library kvlane_bench, and with CUDA the program kvlane_gpu_bench on it.
function(kvlane_gpu_bench)
  add_custom_target(kvlane_commit BYPRODUCTS ${PROJECT_BINARY_DIR}/generated/bench/commit.h
    COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR}
            -DOUTPUT=${PROJECT_BINARY_DIR}/generated/bench/commit.h -P ${PROJECT_SOURCE_DIR}/cmake/commit.cmake)
  add_dependencies(kvlane_bench kvlane_commit)
  target_include_directories(kvlane_bench PRIVATE ${PROJECT_BINARY_DIR}/generated)
  if(KVLANE_CUDA)
    add_executable(kvlane_gpu_bench ${PROJECT_SOURCE_DIR}/src/bench/gpu_bench_main.cpp)
    target_link_libraries(kvlane_gpu_bench PRIVATE kvlane_bench)
  endif()
endfunction()

# What the page of `kvlane eval` is made of, compiled into the library kvlane_eval.
function(kvlane_page_resources)
  find_file(KVLANE_CHART_JS chart.min.js PATHS /usr/share/javascript/chart.js NO_DEFAULT_PATH REQUIRED)
  set(folder ${PROJECT_SOURCE_DIR}/src/eval)
  set(files ${KVLANE_CHART_JS} ${folder}/eval_page.js ${folder}/eval_page.css)
  set(output ${PROJECT_BINARY_DIR}/generated/eval/page_resources.cpp)
  set(script ${PROJECT_SOURCE_DIR}/cmake/embed.cmake)
  set(texts kChartScript=${KVLANE_CHART_JS} kPageScript=${folder}/eval_page.js kPageStyle=${folder}/eval_page.css)
  add_custom_command(OUTPUT ${output} DEPENDS ${files} ${script} VERBATIM
    COMMAND ${CMAKE_COMMAND} -DOUTPUT=${output} "-DFILES=${texts}" -P ${script})
  target_sources(kvlane_eval PRIVATE ${output})
endfunction()
