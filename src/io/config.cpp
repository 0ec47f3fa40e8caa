// SPDX-License-Identifier: Apache-2.0
#include "io/config.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "io/tensor_store.h"

namespace magi {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr std::string_view kRootVariable = "${MAGI2_CKPT_ROOT}";
constexpr std::size_t kLongestList = 65536;
constexpr std::size_t kLongestChain = 32;

void expand_root(Json& value, const std::string& root) {
  if (value.is_string()) {
    auto& text = value.get_ref<std::string&>();
    for (std::size_t at = text.find(kRootVariable); at != std::string::npos;
         at = text.find(kRootVariable, at + root.size()))
      text.replace(at, kRootVariable.size(), root);
  } else if (value.is_structured()) {
    for (Json& child : value) expand_root(child, root);
  }
}

/// Objects merge key by key; of anything else the overlay wins. (nlohmann's update() throws where an object
/// replaces a number, and merge_patch() takes null for a deletion.)
Json merged(Json base, const Json& overlay) {
  for (const auto& [key, value] : overlay.items()) {
    Json& target = base[key];
    target = target.is_object() && value.is_object() ? merged(std::move(target), value) : value;
  }
  return base;
}

/// `chain`: the files being read, outermost first.
Json read_extending(const fs::path& file, std::vector<fs::path>& chain) {
  std::error_code error;
  const fs::path identity = fs::weakly_canonical(file, error);
  require(std::ranges::find(chain, identity) == chain.end(),
          "{}: configurations extend each other in a circle", file.string());
  require(chain.size() < kLongestChain, "{}: more than {} configurations extend each other", file.string(),
          kLongestChain);
  chain.push_back(identity);
  Json json = read_json(file);
  require(json.is_object(), "{}: a configuration is a JSON object", file.string());
  if (const auto base = json.find("extends"); base != json.end() && !base->is_null()) {
    require(base->is_string() && base->get_ref<const std::string&>().size() <= ConfigNode::kLongestText,
            "{}: extends: expected a file name, found {}", file.string(), printable(base->dump()));
    const fs::path base_file = file.parent_path() / base->get<std::string>();
    json = merged(read_extending(base_file, chain), json);
  }
  json.erase("extends");
  return json;
}

// A number's readers: the value, or nothing when its type or bounds are wrong.
auto integer_within(std::int64_t min, std::int64_t max) {
  return [=](const Json& value) -> std::optional<std::int64_t> {
    if (!value.is_number_integer()) return std::nullopt;
    if (value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX) return std::nullopt;
    const auto n = value.get<std::int64_t>();
    return n >= min && n <= max ? std::optional(n) : std::nullopt;
  };
}

auto number_within(double min, double max) {
  return [=](const Json& value) -> std::optional<double> {
    if (!value.is_number()) return std::nullopt;
    const auto x = value.get<double>();
    return x >= min && x <= max ? std::optional(x) : std::nullopt;
  };
}

constexpr auto boolean_value = [](const Json& value) {
  return value.is_boolean() ? std::optional(value.get<bool>()) : std::nullopt;
};

auto text_within(std::size_t max_bytes) {
  return [=](const Json& value) {
    const bool good = value.is_string() && value.get_ref<const std::string&>().size() <= max_bytes;
    return good ? std::optional(value.get<std::string>()) : std::nullopt;
  };
}

template <typename Number>
std::string range_text(Number min, Number max, Number any) {
  if (min <= -any && max >= any) return "";
  if (max >= any) return fmt::format(" of at least {}", min);
  if (min <= -any) return fmt::format(" of at most {}", max);
  return fmt::format(" from {} to {}", min, max);
}

}  // namespace

Json load_config(const fs::path& file, const fs::path& checkpoint_root) {
  std::vector<fs::path> chain;
  Json json = read_extending(file, chain);
  expand_root(json, checkpoint_root.string());
  return json;
}

ConfigNode::ConfigNode(Json object, std::string file)
    : value_(std::make_shared<const Json>(std::move(object))), file_(std::move(file)) {
  require(value_->is_object(), "{}: a configuration is a JSON object", file_);
}

ConfigNode ConfigNode::read(const fs::path& file) {
  return {read_json(file), file.string()};
}

std::string ConfigNode::where(std::string_view key) const {
  return fmt::format("{}: {}{}{}", file_, path_, path_.empty() ? "" : ".", key);
}

const Json* ConfigNode::find(std::string_view key) const {
  const auto it = value_->find(key);
  return it == value_->end() || it->is_null() ? nullptr : &*it;
}

/// `read` gives a pair: the value if it is good, and what was expected.
template <typename T, typename Read>
T ConfigNode::one(std::string_view key, const std::optional<T>& otherwise, Read read) const {
  const Json* value = find(key);
  const auto [parse, expected] = read;
  if (!value) {
    require(otherwise.has_value(), "{} is missing, expected {}", where(key), expected);
    return *otherwise;
  }
  const std::optional<T> result = parse(*value);
  require(result.has_value(), "{}: expected {}, found {}", where(key), expected,
          printable(value->dump(-1, ' ', true, Json::error_handler_t::replace)));
  return *result;
}

template <typename T, typename Read>
std::vector<T> ConfigNode::list(std::string_view key, const std::optional<std::vector<T>>& otherwise,
                                Read read) const {
  const auto [parse, expected] = read;
  const auto parse_all = [parse = parse](const Json& value) -> std::optional<std::vector<T>> {
    if (!value.is_array() || value.size() > kLongestList) return std::nullopt;
    std::vector<T> result;
    for (const Json& element : value) {
      const std::optional<T> parsed = parse(element);
      if (!parsed) return std::nullopt;
      result.push_back(*parsed);
    }
    return result;
  };
  return one(key, otherwise, std::pair(parse_all, "a list, each " + expected));
}

std::int64_t ConfigNode::integer(std::string_view key, std::optional<std::int64_t> otherwise,
                                 std::int64_t min, std::int64_t max) const {
  return one(key, otherwise,
             std::pair(integer_within(min, max), "an integer" + range_text(min, max, kAnyInt)));
}

double ConfigNode::number(std::string_view key, std::optional<double> otherwise, double min,
                          double max) const {
  return one(key, otherwise, std::pair(number_within(min, max), "a number" + range_text(min, max, kAny)));
}

bool ConfigNode::boolean(std::string_view key, std::optional<bool> otherwise) const {
  return one(key, otherwise, std::pair(boolean_value, std::string("true or false")));
}

std::string ConfigNode::text(std::string_view key, std::optional<std::string> otherwise,
                             std::size_t max_bytes) const {
  return one(key, otherwise,
             std::pair(text_within(max_bytes), fmt::format("a string of at most {} bytes", max_bytes)));
}

std::vector<std::int64_t> ConfigNode::integers(std::string_view key,
                                               std::optional<std::vector<std::int64_t>> otherwise,
                                               std::int64_t min, std::int64_t max) const {
  return list(key, otherwise,
              std::pair(integer_within(min, max), "an integer" + range_text(min, max, kAnyInt)));
}

std::vector<bool> ConfigNode::booleans(std::string_view key,
                                       std::optional<std::vector<bool>> otherwise) const {
  return list(key, otherwise, std::pair(boolean_value, std::string("true or false")));
}

std::vector<std::string> ConfigNode::texts(std::string_view key,
                                           std::optional<std::vector<std::string>> otherwise) const {
  return list(
      key, otherwise,
      std::pair(text_within(kLongestText), fmt::format("a string of at most {} bytes", kLongestText)));
}

ConfigNode ConfigNode::node(std::string_view key) const {
  static const auto empty = std::make_shared<const Json>(Json::object());
  const std::string path = path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
  const Json* value = find(key);
  if (!value) return {empty, file_, path};
  require(value->is_object(), "{}: expected an object, found {}", where(key), value->type_name());
  return {std::shared_ptr<const Json>(value_, value), file_, path};
}

}  // namespace magi
