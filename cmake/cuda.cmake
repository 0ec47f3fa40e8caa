# SPDX-License-Identifier: Apache-2.0
# The NVIDIA toolkit, with MAGI2_CUDA=ON. ARCHS (e.g. -DARCHS="90a;100") lists the compute capabilities to build for;
# 90a is Hopper with its own instructions, for which some kernels have bodies that no other architecture compiles.
set(ARCHS 90a CACHE STRING "CUDA compute capabilities to build for, e.g. 80;89;90a;100;120")
set(CMAKE_CUDA_ARCHITECTURES "")
foreach(arch IN LISTS ARCHS)
  list(APPEND CMAKE_CUDA_ARCHITECTURES ${arch}-real)
endforeach()
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25.1 does not know that nvcc does C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
find_package(CUDAToolkit 12.8 REQUIRED)

# nvcc takes fmt's format strings only with its constexpr functions on; it switches them off for nvcc by default.
add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:-DFMT_USE_CONSTEXPR=1> $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)  # see compiler.cmake
  add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wno-array-bounds,-Wno-stringop-overflow>)
endif()
if(MAGI2_WERROR)
  add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
endif()

# What the CUDA backend links: the runtime and matrix products.
add_library(magi2_cuda_libraries INTERFACE)
target_link_libraries(magi2_cuda_libraries INTERFACE CUDA::cudart_static CUDA::cublasLt)
target_include_directories(magi2_cuda_libraries INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
target_compile_definitions(magi2_cuda_libraries INTERFACE MAGI2_CUDA=1)
