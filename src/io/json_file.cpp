// SPDX-License-Identifier: Apache-2.0
#include "io/json_file.h"

#include <utility>

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

/// What the parser found wrong and where, without the library's name for it.
std::string json_problem(const Json::exception& e) {
  const std::string_view what = e.what();  // "[json.exception.parse_error.101] parse error at line 1, …"
  const std::size_t name = what.starts_with('[') ? what.find("] ") : what.npos;
  return printable(what.substr(name == what.npos ? 0 : name + 2));
}

/// Builds the value, and demands what parse_json() does. The library's own builder can be asked to tell of
/// what it reads, but then takes quadratic time over an object of objects.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  Builder(const std::string& where, const std::size_t& line, std::size_t max_values,
          std::vector<std::size_t>* lines)
      : where_(where), line_(line), left_(max_values), max_values_(max_values), lines_(lines) {}

  Json take() { return std::move(result_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& value) override { return add(std::move(value)); }
  bool start_object(std::size_t) override { return begin(Json::object()); }
  bool key(string_t& name) override {
    const auto [at, added] = open_.back()->get_ref<Json::object_t&>().try_emplace(std::move(name));
    require(added, "{}: line {}: the name {} is there twice", where_, line_, printable(at->first));
    next_ = &at->second;
    return true;
  }
  bool end_object() override { return end(); }
  bool start_array(std::size_t) override { return begin(Json::array()); }
  bool end_array() override { return end(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& e) override {
    fail("{}: not valid JSON: {}", where_, json_problem(e));
  }

 private:
  bool add(Json value) {
    require(left_-- > 0, "{}: more than {} values", where_, max_values_);
    if (lines_ && open_.size() == 1) lines_->push_back(line_);
    if (!open_.empty() && open_.back()->is_array())
      next_ = &open_.back()->get_ref<Json::array_t&>().emplace_back();
    *next_ = std::move(value);
    return true;
  }
  bool begin(Json value) {
    add(std::move(value));
    open_.push_back(next_);
    require(open_.size() <= 64, "{}: JSON nested more than 64 deep", where_);
    return true;
  }
  bool end() {
    open_.pop_back();
    return true;
  }

  const std::string& where_;
  const std::size_t& line_;
  std::size_t left_, max_values_;
  std::vector<std::size_t>* lines_;
  Json result_;
  Json* next_ = &result_;    ///< where the next value goes, but in a list
  std::vector<Json*> open_;  ///< the objects and lists around the place
};

}  // namespace

Json parse_json(std::string_view text, const std::string& where, std::vector<std::size_t>* lines,
                std::size_t max_values) {
  std::size_t line = 1;
  Builder builder(where, line, max_values, lines);
  Json::sax_parse(Reader(text.data(), &line), Reader(text.data() + text.size(), &line), &builder);
  return builder.take();
}

Json read_json(const std::filesystem::path& file, std::vector<std::size_t>* lines) {
  verify_native_file(file);
  const auto mapped = MappedFile::open(file);
  const auto bytes = mapped->bytes();
  require(bytes.size() <= kMaxJsonBytes, "{}: {} bytes are too many for a JSON file", file.string(),
          bytes.size());
  return parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, file.string(), lines);
}

}  // namespace magi
