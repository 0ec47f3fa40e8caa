// SPDX-License-Identifier: Apache-2.0
#include "io/json_file.h"

#include "core/error.h"
#include "io/mapped_file.h"
#include "io/native_manifest.h"
#include "io/tensor_store.h"

namespace magi {

using Json = nlohmann::json;

namespace {

/// Hands the parser a text and knows on which line the character lies that was read last.
class Reader {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  Reader(const char* at, std::size_t* line) : at_(at), line_(line) {}
  reference operator*() const { return *at_; }
  Reader& operator++() {
    *line_ += after_newline_;
    after_newline_ = *at_++ == '\n';
    return *this;
  }
  bool operator==(const Reader& other) const { return at_ == other.at_; }

 private:
  const char* at_;
  std::size_t* line_;
  bool after_newline_ = false;
};

}  // namespace

std::string json_problem(const Json::exception& e) {
  const std::string_view what = e.what();  // "[json.exception.parse_error.101] parse error at line 1, …"
  const std::size_t name = what.starts_with('[') ? what.find("] ") : what.npos;
  return printable(what.substr(name == what.npos ? 0 : name + 2));
}

Json parse_json(std::string_view text, const std::string& where, std::vector<std::size_t>* lines) {
  using Event = Json::parse_event_t;
  std::size_t line = 1;
  const auto on_event = [&](int depth, Event event, Json&) {
    require(depth <= 64, "{}: JSON nested more than 64 deep", where);
    const bool begins = event == Event::object_start || event == Event::array_start || event == Event::value;
    if (lines && depth == 1 && begins) lines->push_back(line);
    return true;
  };
  try {
    return Json::parse(Reader(text.data(), &line), Reader(text.data() + text.size(), &line), on_event);
  } catch (const Json::exception& e) {
    fail("{}: not valid JSON: {}", where, json_problem(e));
  }
}

Json read_json(const std::filesystem::path& file, std::vector<std::size_t>* lines) {
  verify_native_file(file);
  const auto mapped = MappedFile::open(file);
  const auto bytes = mapped->bytes();
  require(bytes.size() <= 64u << 20, "{}: {} bytes are too many for a JSON file", file.string(),
          bytes.size());
  return parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, file.string(), lines);
}

}  // namespace magi
