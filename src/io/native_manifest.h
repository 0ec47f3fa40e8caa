// SPDX-License-Identifier: Apache-2.0
// A native root, as `magi2 quantize` writes it (docs/format.md), has a manifest that names every file with
// its size and checksum. Files are checked when they are first read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace magi {

inline constexpr const char* kManifestName = "magi2-native.json";
inline constexpr const char* kUnfinishedManifestName = "magi2-native.unfinished.json";
inline constexpr int kNativeVersion = 2;

/// XXH3, 128 bits, of bytes that come in pieces.
class FileHash {
 public:
  FileHash();
  ~FileHash();
  void add(const void* data, std::size_t bytes);
  std::string hex() const;  ///< 32 digits

 private:
  struct State;
  std::unique_ptr<State> state_;
};

struct NativeFile {
  std::uint64_t bytes = 0;
  std::string xxh3;         ///< as FileHash::hex
  std::string error_rms{};  ///< relative error of its four-bit weights, "0.0952"; empty: it has none
  bool operator==(const NativeFile&) const = default;
};

/// Size and checksum of a file, read in pieces from the disk's cache or the disk. Throws Error when it cannot
/// be read.
NativeFile describe_file(const std::filesystem::path& file);

struct NativeManifest {
  std::string experts;                      ///< "bf16" or "nvfp4"
  std::string text_encoder;                 ///< the same
  std::string source;                       ///< of an unfinished root: what it is made from; else empty
  std::map<std::string, NativeFile> files;  ///< by path relative to the root

  /// JSON whose last member is the checksum of all the text with that checksum's digits as zeros.
  std::string to_text() const;
  /// Throws Error `WHERE: …` for what is no manifest, another version, or damaged.
  static NativeManifest parse(const std::string& text, const std::string& where);
};

/// The manifest of a root; nothing where the directory has none.
std::optional<NativeManifest> read_manifest(const std::filesystem::path& root);

/// Compares a file with the manifest of the native root that it lies in, at most two directories below; all
/// is well for files elsewhere, and for those that the manifest does not name. Reads the whole file. Throws
/// Error that names it.
void verify_native_file(const std::filesystem::path& file);

}  // namespace magi
