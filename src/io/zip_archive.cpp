// SPDX-License-Identifier: Apache-2.0
// Field offsets: PKWARE's APPNOTE.TXT, sections 4.3.7 (local header), 4.3.12 (central directory), 4.3.14
// to 4.3.16 (end records), 4.5.3 (zip64 extra field).
#include "io/zip_archive.h"

#include <algorithm>
#include <cstdint>

#include "core/error.h"
#include "io/tensor_store.h"

namespace magi {
namespace {

constexpr std::uint64_t kLocalHeader = 0x04034b50, kCentralHeader = 0x02014b50, kEnd = 0x06054b50;
constexpr std::uint64_t kZip64End = 0x06064b50, kZip64Locator = 0x07064b50;
constexpr std::size_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kZip64EndBytes = 56,
                      kLocatorBytes = 20;
constexpr std::size_t kLongestComment = 65535;
constexpr std::uint64_t kIn64 = 0xffffffff;  // a 32-bit field whose value stands in a zip64 record

/// Bounds-checked little-endian fields of the archive.
class Fields {
 public:
  Fields(std::span<const std::byte> file, const std::string& where) : file_(file), where_(where) {}

  std::uint64_t at(std::uint64_t offset, std::size_t width) const {
    check(offset, width);
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < width; ++i)
      value |= std::to_integer<std::uint64_t>(file_[offset + i]) << (8 * i);
    return value;
  }
  std::span<const std::byte> range(std::uint64_t offset, std::uint64_t length) const {
    check(offset, length);
    return file_.subspan(offset, length);
  }
  std::string text(std::uint64_t offset, std::uint64_t length) const {
    const auto bytes = range(offset, length);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  std::size_t size() const { return file_.size(); }
  [[noreturn]] void damaged(std::string_view what) const {
    fail("{}: damaged zip archive: {}", where_, what);
  }

 private:
  void check(std::uint64_t offset, std::uint64_t length) const {
    if (offset > file_.size() || length > file_.size() - offset) damaged("a record lies outside the file");
  }

  std::span<const std::byte> file_;
  const std::string& where_;
};

struct Directory {
  std::uint64_t offset = 0, bytes = 0, entries = 0;
};

/// The end record: the last one whose comment reaches exactly to the end of the file.
std::uint64_t find_end(const Fields& fields, const std::string& where) {
  require(fields.size() >= kEndBytes,
          "{}: not a zip archive ({} bytes): a PyTorch file of version 1.6 or later is one", where,
          fields.size());
  const std::size_t last = fields.size() - kEndBytes;
  for (std::size_t back = 0; back <= std::min(last, kLongestComment); ++back)
    if (fields.at(last - back, 4) == kEnd && fields.at(last - back + 20, 2) == back) return last - back;
  fail("{}: not a zip archive, or truncated: a PyTorch file of version 1.6 or later is one", where);
}

Directory find_directory(const Fields& fields, const std::string& where) {
  std::uint64_t end = find_end(fields, where);
  Directory directory{fields.at(end + 16, 4), fields.at(end + 12, 4), fields.at(end + 10, 2)};
  std::uint64_t disks = fields.at(end + 4, 2) | fields.at(end + 6, 2);
  if (end >= kLocatorBytes && fields.at(end - kLocatorBytes, 4) == kZip64Locator) {
    end = fields.at(end - kLocatorBytes + 8, 8);
    if (fields.at(end, 4) != kZip64End) fields.damaged("no zip64 end record");
    fields.range(end, kZip64EndBytes);
    directory = {fields.at(end + 48, 8), fields.at(end + 40, 8), fields.at(end + 32, 8)};
    disks = fields.at(end + 16, 4) | fields.at(end + 20, 4);
  }
  require(disks == 0, "{}: a split zip archive", where);
  fields.range(directory.offset, directory.bytes);
  if (directory.offset + directory.bytes > end) fields.damaged("the directory overlaps its end record");
  return directory;
}

struct Entry {
  std::string name;
  std::uint64_t stored_bytes = 0, bytes = 0, local_header = 0;
};

/// Replaces the fields that do not fit in 32 bits by those of the zip64 extra field, which holds them in this
/// order.
void read_zip64_extra(const Fields& fields, std::uint64_t extra, std::uint64_t extra_end, Entry& entry) {
  while (extra + 4 <= extra_end) {
    const std::uint64_t id = fields.at(extra, 2);
    std::uint64_t next = extra + 4;
    extra = next + fields.at(extra + 2, 2);
    if (extra > extra_end) fields.damaged("an extra field is too long");
    if (id != 1) continue;
    for (std::uint64_t* value : {&entry.bytes, &entry.stored_bytes, &entry.local_header}) {
      if (*value != kIn64) continue;
      if (next + 8 > extra) fields.damaged("a zip64 field is missing");
      *value = fields.at(next, 8);
      next += 8;
    }
    return;
  }
}

/// The entry at `at` of the central directory; moves `at` behind it.
Entry read_entry(const Fields& fields, std::uint64_t& at, std::uint64_t directory_end,
                 const std::string& where) {
  if (at + kCentralBytes > directory_end || fields.at(at, 4) != kCentralHeader)
    fields.damaged("the directory is cut short");
  const std::uint64_t name_bytes = fields.at(at + 28, 2), extra_bytes = fields.at(at + 30, 2);
  const std::uint64_t name = at + kCentralBytes;
  const std::uint64_t extra = name + name_bytes;
  const std::uint64_t next = extra + extra_bytes + fields.at(at + 32, 2);
  if (next > directory_end) fields.damaged("the directory is cut short");
  Entry entry{fields.text(name, name_bytes), fields.at(at + 20, 4), fields.at(at + 24, 4),
              fields.at(at + 42, 4)};
  require((fields.at(at + 8, 2) & 1) == 0, "{}: {} is encrypted", where, printable(entry.name));
  require(fields.at(at + 10, 2) == 0, "{}: {} is compressed; PyTorch stores its records uncompressed", where,
          printable(entry.name));
  read_zip64_extra(fields, extra, extra + extra_bytes, entry);
  if (entry.bytes != entry.stored_bytes) fields.damaged("the sizes of a stored entry differ");
  at = next;
  return entry;
}

/// Content of an entry: behind its local header, whose name must be the directory's.
std::span<const std::byte> content(const Fields& fields, const Entry& entry, std::uint64_t directory_start) {
  const std::uint64_t header = entry.local_header;
  fields.range(header, kLocalBytes);
  if (fields.at(header, 4) != kLocalHeader) fields.damaged("an entry without local header");
  const std::uint64_t name_bytes = fields.at(header + 26, 2);
  if (fields.text(header + kLocalBytes, name_bytes) != entry.name) fields.damaged("an entry has two names");
  const std::uint64_t begin = header + kLocalBytes + name_bytes + fields.at(header + 28, 2);
  const auto bytes = fields.range(begin, entry.bytes);
  if (begin + entry.bytes > directory_start) fields.damaged("an entry runs into the directory");
  return bytes;
}

}  // namespace

ZipArchive::ZipArchive(std::span<const std::byte> file, const std::string& where) {
  const Fields fields(file, where);
  const Directory directory = find_directory(fields, where);
  std::uint64_t at = directory.offset;
  const std::uint64_t end = at + directory.bytes;
  for (std::uint64_t i = 0; i < directory.entries; ++i) {
    const Entry entry = read_entry(fields, at, end, where);
    const bool added = entries_.emplace(entry.name, content(fields, entry, directory.offset)).second;
    require(added, "{}: two entries are called {}", where, printable(entry.name));
  }
  if (at != end) fields.damaged("the directory holds more than it says");
}

}  // namespace magi
