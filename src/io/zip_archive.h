// SPDX-License-Identifier: Apache-2.0
// Zip archives whose entries are stored, not compressed, as PyTorch writes them: an entry is then a range of
// the file and needs no copy. (A zip library would inflate gigabytes through a buffer to give what the
// mapping already holds.)
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>

namespace magi {

class ZipArchive {
 public:
  /// Reads the central directory (zip64 too) of a whole archive in memory; `where` names it in errors. Throws
  /// Error when it is damaged, encrypted, compressed, split, or has two entries of one name.
  ZipArchive(std::span<const std::byte> file, const std::string& where);

  /// Name to content; the spans point into the file that was given.
  const std::map<std::string, std::span<const std::byte>>& entries() const { return entries_; }

 private:
  std::map<std::string, std::span<const std::byte>> entries_;
};

}  // namespace magi
