# SPDX-License-Identifier: Apache-2.0
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# -O2 with vectorisation: as fast here as -O3, and half the compile time. -ffp-contract=off: a result must not depend
# on which instructions the compiler chose to fuse; fused multiply-adds are written where they are meant.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -ftree-vectorize -DNDEBUG")
# No operation of ours traps or reads errno; saying so lets loops with comparisons and square roots vectorise and changes
# no value. -Wno-psabi: vectors pass by value between inlined functions alone, so their calling convention is no matter.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wall> $<$<COMPILE_LANGUAGE:CXX>:-Wextra>
                    $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>
                    $<$<COMPILE_LANGUAGE:CXX>:-fno-trapping-math> $<$<COMPILE_LANGUAGE:CXX>:-fno-math-errno>
                    $<$<COMPILE_LANGUAGE:CXX>:-Wno-psabi>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
  # It sees {fmt} 9 break array bounds, where nothing does.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-array-bounds> $<$<COMPILE_LANGUAGE:CXX>:-Wno-stringop-overflow>)
endif()

if(MAGI2_WERROR)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()

if(MAGI2_FUZZ)  # every floor reports coverage to the fuzzer and is checked while it runs
  set(MAGI2_SANITIZE fuzzer-no-link,address,undefined)
endif()
if(MAGI2_SANITIZE)
  add_compile_options(-fsanitize=${MAGI2_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${MAGI2_SANITIZE})
endif()

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()
