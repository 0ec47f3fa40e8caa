// SPDX-License-Identifier: Apache-2.0
// The checks that stand between an untrusted safetensors header and a pointer.
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "io/json_file.h"
#include "io/safetensors.h"

namespace magi {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::size_t kMaxHeaderValues = std::size_t{1} << 20;  // of 100,000 tensors

struct StoredType {
  std::string_view name;
  int bits;
  std::optional<DType> dtype;
};

// The element types of the format. Those without a DType are listed, and refused when loaded.
constexpr StoredType kStoredTypes[] = {
    {"F64", 64, DType::f64},      {"F32", 32, DType::f32},      {"F16", 16, DType::f16},
    {"BF16", 16, DType::bf16},    {"I64", 64, DType::i64},      {"I32", 32, DType::i32},
    {"I16", 16, DType::i16},      {"I8", 8, DType::i8},         {"U8", 8, DType::u8},
    {"BOOL", 8, DType::boolean},  {"U16", 16, std::nullopt},    {"U32", 32, std::nullopt},
    {"U64", 64, std::nullopt},    {"C64", 64, std::nullopt},    {"F8_E4M3", 8, std::nullopt},
    {"F8_E5M2", 8, std::nullopt}, {"F8_E8M0", 8, std::nullopt}, {"F6_E2M3", 6, std::nullopt},
    {"F6_E3M2", 6, std::nullopt}, {"F4", 4, std::nullopt},
};

std::uint64_t unsigned_of(const Json& value, std::string_view what, const std::string& where,
                          const std::string& name) {
  require(value.is_number_unsigned(), "{}: {}: {} must be an unsigned integer", where, printable(name), what);
  return value.get<std::uint64_t>();
}

Shape shape_of(const Json& dims, const std::string& where, const std::string& name) {
  require(dims.is_array(), "{}: {}: no shape", where, printable(name));
  Shape shape;
  std::int64_t product =
      1;  // of the axes that are not zero: later arithmetic on parts of the shape cannot overflow
  for (const Json& dim : dims) {
    const std::uint64_t n = unsigned_of(dim, "a shape's axis", where, name);
    const bool overflows =
        n > INT64_MAX || __builtin_mul_overflow(product, std::max<std::int64_t>(n, 1), &product);
    require(!overflows, "{}: {}: the shape {} is too large", where, printable(name), printable(dims.dump()));
    shape.push_back(static_cast<std::int64_t>(n));
  }
  return shape;
}

SafetensorsHeader::Entry entry_of(const Json& value, std::size_t data_start, std::size_t data_bytes,
                                  const std::string& where, const std::string& name) {
  require(value.is_object() && value.contains("dtype") && value["dtype"].is_string() &&
              value.contains("shape") && value.contains("data_offsets") && value["data_offsets"].is_array() &&
              value["data_offsets"].size() == 2,
          "{}: {}: a tensor needs dtype, shape and two data_offsets", where, printable(name));
  const auto& type_name = value["dtype"].get_ref<const std::string&>();
  const auto* type = std::ranges::find(kStoredTypes, type_name, &StoredType::name);
  const bool known = type != std::end(kStoredTypes);
  const std::uint64_t begin = unsigned_of(value["data_offsets"][0], "a data offset", where, name);
  const std::uint64_t end = unsigned_of(value["data_offsets"][1], "a data offset", where, name);
  require(begin <= end && end <= data_bytes,
          "{}: {}: data offsets {}..{} do not lie in the file's {} bytes of data", where, printable(name),
          begin, end, data_bytes);

  SafetensorsHeader::Entry entry;
  entry.offset = data_start + begin;
  entry.info.shape = shape_of(value["shape"], where, name);
  entry.info.file = where;
  entry.info.stored_as = type_name;
  entry.info.bytes = end - begin;
  entry.info.readable = known && type->dtype.has_value();
  if (entry.info.readable) entry.info.dtype = *type->dtype;
  if (known) {
    std::uint64_t bits = 0;
    const bool overflows = __builtin_mul_overflow(static_cast<std::uint64_t>(numel(entry.info.shape)),
                                                  static_cast<std::uint64_t>(type->bits), &bits);
    require(!overflows && bits % 8 == 0 && bits / 8 == end - begin, "{}: {}: header gives {} bytes to {} {}",
            where, printable(name), end - begin, type_name, printable(to_string(entry.info.shape)));
  }
  return entry;
}

/// Tensors must tile the data: sorted by offset, each begins where the one before ended, the last ends with
/// the file.
void check_tiling(const SafetensorsHeader& header, std::size_t data_start, std::size_t file_bytes,
                  const std::string& where) {
  using Named = std::pair<const std::string, SafetensorsHeader::Entry>;
  std::vector<const Named*> order;
  for (const Named& named : header.tensors) order.push_back(&named);
  std::ranges::sort(order, {},
                    [](const Named* n) { return std::pair(n->second.offset, n->second.info.bytes); });
  std::size_t next = data_start;
  for (const Named* named : order) {
    const auto& [name, entry] = *named;
    require(entry.offset == next, "{}: {}: data begins at byte {}, the tensor before it ended at {}: {}",
            where, printable(name), entry.offset, next,
            entry.offset < next ? "tensors overlap" : "a hole in the file");
    next += entry.info.bytes;
  }
  require(next == file_bytes, "{}: {} bytes follow the last tensor: not the file that its header describes",
          where, file_bytes - next);
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file, const std::string& where) {
  std::uint64_t length = 0;
  require(file.size() >= sizeof length, "{}: {} bytes are too few for a safetensors file", where,
          file.size());
  std::memcpy(&length, file.data(), sizeof length);
  require(length <= kMaxHeaderBytes,
          "{}: a header of {} bytes: not a safetensors file (at most {} are allowed)", where, length,
          kMaxHeaderBytes);
  require(length <= file.size() - sizeof length, "{}: truncated: a header of {} bytes in a file of {}", where,
          length, file.size());
  const char* text = reinterpret_cast<const char*>(file.data()) + sizeof length;
  require(length > 0 && *text == '{', "{}: the header does not begin with '{{': not a safetensors file",
          where);
  const Json json = parse_json({text, length}, where + ": the header", nullptr, kMaxHeaderValues);

  SafetensorsHeader header;
  const std::size_t data_start = sizeof length + length;
  for (const auto& [name, value] : json.items()) {
    if (name != "__metadata__") {
      header.tensors.emplace(name, entry_of(value, data_start, file.size() - data_start, where, name));
      continue;
    }
    require(value.is_object() || value.is_null(), "{}: __metadata__ must hold strings", where);
    for (const auto& [key, text_value] : value.items()) {
      require(text_value.is_string(), "{}: __metadata__ must hold strings", where);
      header.metadata.emplace(key, text_value.get<std::string>());
    }
  }
  check_tiling(header, data_start, file.size(), where);
  return header;
}

}  // namespace magi
