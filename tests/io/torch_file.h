// SPDX-License-Identifier: Apache-2.0
// Small PyTorch files by hand: a writer of stored zip archives and the pickle fragments that torch.save()
// puts together.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace magi {

inline std::string little_endian(std::uint64_t value, int width) {
  std::string bytes;
  for (int i = 0; i < width; ++i) bytes += i < 8 ? static_cast<char>(value >> (8 * i)) : '\0';
  return bytes;
}

struct ZipEntry {
  std::string name;
  std::string content;
  int method = 0;
  int flags = 0x808;
};

/// `zip64`: sizes and offsets in zip64 records, as for archives beyond 4 GB.
inline std::string zip_of(const std::vector<ZipEntry>& entries, bool zip64 = false) {
  std::string file, directory;
  for (const ZipEntry& e : entries) {
    const std::uint64_t header = file.size();
    const std::string common =
        little_endian(e.flags, 2) + little_endian(e.method, 2) + std::string(8, '\0');  // time, CRC
    const std::string sizes = zip64 ? std::string(8, '\xff')
                                    : little_endian(e.content.size(), 4) + little_endian(e.content.size(), 4);
    const std::string extra = zip64 ? little_endian(1, 2) + little_endian(24, 2) +
                                          little_endian(e.content.size(), 8) +
                                          little_endian(e.content.size(), 8) + little_endian(header, 8)
                                    : "";
    const std::size_t padding =
        64 - (header + 30 + e.name.size() + 4) % 64;  // PyTorch aligns records by an extra field
    const std::string pad = "FB" + little_endian(padding, 2) + std::string(padding, 'Z');
    file += "PK\3\4" + little_endian(0, 2) + common + std::string(8, '\0') + little_endian(e.name.size(), 2) +
            little_endian(pad.size(), 2) + e.name + pad + e.content;
    directory += "PK\1\2" + little_endian(0, 4) + common + sizes + little_endian(e.name.size(), 2) +
                 little_endian(extra.size(), 2) + std::string(10, '\0') +
                 (zip64 ? std::string(4, '\xff') : little_endian(header, 4)) + e.name + extra;
  }
  const std::uint64_t start = file.size();
  file += directory;
  if (zip64) {
    const std::uint64_t end = file.size();
    file += "PK\6\6" + little_endian(44, 8) + little_endian(0, 12) + little_endian(entries.size(), 8) +
            little_endian(entries.size(), 8) + little_endian(directory.size(), 8) + little_endian(start, 8);
    file += "PK\6\7" + little_endian(0, 4) + little_endian(end, 8) + little_endian(1, 4);
    return file + "PK\5\6" + little_endian(0, 4) + std::string(12, '\xff') + little_endian(0, 2);
  }
  return file + "PK\5\6" + little_endian(0, 4) + little_endian(entries.size(), 2) +
         little_endian(entries.size(), 2) + little_endian(directory.size(), 4) + little_endian(start, 4) +
         little_endian(0, 2);
}

namespace pickled {

inline std::string text(const std::string& value) {
  return "X" + little_endian(value.size(), 4) + value;
}
inline std::string integer(std::int64_t value) {
  return value >= 0 && value < 256 ? "K" + little_endian(value, 1) : "\x8a\x08" + little_endian(value, 8);
}
inline std::string global(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}
inline std::string integers(const std::vector<std::int64_t>& values) {
  std::string result = "(";
  for (const auto v : values) result += integer(v);
  return result + "t";
}
inline std::string storage(const std::string& type, const std::string& key, std::int64_t numel) {
  return "(" + text("storage") + global("torch", type) + text(key) + text("cpu") + integer(numel) + "tQ";
}
inline std::string tensor(const std::string& storage, std::int64_t offset,
                          const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& strides) {
  return global("torch._utils", "_rebuild_tensor_v2") + "(" + storage + integer(offset) + integers(shape) +
         integers(strides) + "\x89" + global("collections", "OrderedDict") + ")RtR";
}
inline std::string dict(const std::vector<std::pair<std::string, std::string>>& items) {
  std::string result = "}(";
  for (const auto& [key, value] : items) result += text(key) + value;
  return result + "u";
}
inline std::string finished(const std::string& body) {
  return "\x80\x02" + body + ".";
}

}  // namespace pickled
}  // namespace magi
