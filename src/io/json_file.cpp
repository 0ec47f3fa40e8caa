// SPDX-License-Identifier: Apache-2.0
#include "io/json_file.h"

#include "core/error.h"
#include "io/mapped_file.h"
#include "io/tensor_store.h"

namespace magi {

using Json = nlohmann::json;

Json parse_json(std::string_view text, const std::string& where) {
  const auto bound_depth = [&](int depth, Json::parse_event_t, Json&) {
    require(depth <= 64, "{}: JSON nested more than 64 deep", where);
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), bound_depth);
  } catch (const Json::exception& e) {
    fail("{}: not valid JSON: {}", where, printable(e.what()));
  }
}

Json read_json(const std::filesystem::path& file) {
  const auto mapped = MappedFile::open(file);
  const auto bytes = mapped->bytes();
  require(bytes.size() <= 256u << 20, "{}: {} bytes are too many for a JSON file", file.string(),
          bytes.size());
  return parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, file.string());
}

}  // namespace magi
