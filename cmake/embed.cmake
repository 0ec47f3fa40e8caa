# SPDX-License-Identifier: Apache-2.0
# magi2_embed(TARGET DIR...): every .html, .css, .js, .svg and .json in the directories becomes an entry of assets()
# (serve/assets.h), requested as /NAME, index.html as /.
function(magi2_embed target)
  set(patterns ${ARGN})
  list(TRANSFORM patterns PREPEND ${CMAKE_SOURCE_DIR}/)
  list(TRANSFORM patterns APPEND /*.*)
  file(GLOB files CONFIGURE_DEPENDS ${patterns})
  list(FILTER files INCLUDE REGEX "\\.(html|css|js|svg|json)$")
  set(type_html "text/html; charset=utf-8")
  set(type_css "text/css; charset=utf-8")
  set(type_js "text/javascript; charset=utf-8")
  set(type_svg "image/svg+xml")
  set(type_json "application/json")
  set(entries "")
  foreach(file ${files})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    get_filename_component(name ${file} NAME)
    string(REGEX REPLACE ".*\\." "" extension "${name}")
    string(REGEX REPLACE "^index\\.html$" "" name "${name}")
    file(SIZE ${file} bytes)
    file(READ ${file} hex HEX)
    string(REGEX REPLACE "(................................)" "\\1\n" lines "${hex}")
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "\\\\x\\1" lines "${lines}")
    string(REGEX REPLACE "([^\n]+)" "\"\\1\"" lines "${lines}")
    string(APPEND entries "{\"/${name}\", \"${type_${extension}}\", {\n${lines}\n\"\", ${bytes}}},\n")
  endforeach()
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/assets.cpp @ONLY CONTENT
"#include \"serve/assets.h\"
namespace magi {
std::span<const Asset> assets() {
  static constexpr Asset kAssets[] = {
@entries@};
  return kAssets;
}
}  // namespace magi
")
  target_sources(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/assets.cpp)
endfunction()
