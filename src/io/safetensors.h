// SPDX-License-Identifier: Apache-2.0
// The safetensors format: eight bytes of header length (little endian), a JSON header, the tensors' bytes
// without gaps. https://github.com/huggingface/safetensors#format
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "io/tensor_store.h"

namespace magi {

/// How a file's tensors come into memory. mapped: as views of the file, which must not shrink; copied: by
/// reading, each time they are asked for; direct: the same past the system's file cache.
enum class Access { mapped, copied, direct };

/// Checks the header; load() gives views of the file (copies only where the data is misaligned), or copies.
std::shared_ptr<TensorStore> open_safetensors(const std::filesystem::path& file,
                                              Access access = Access::mapped);

/// The same over a whole file in memory, kept alive by `owner`; `where` names it in errors.
std::shared_ptr<TensorStore> safetensors_store(std::span<const std::byte> file,
                                               std::shared_ptr<const void> owner, const std::string& where);

/// The header's `__metadata__`, empty when there is none.
std::map<std::string, std::string> safetensors_metadata(const std::filesystem::path& file);

/// Writes host tensors in the order given. Written beside the target, synced and renamed: `file` is either
/// the old one or complete.
void write_safetensors(const std::filesystem::path& file,
                       const std::vector<std::pair<std::string, Tensor>>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

struct SafetensorsHeader {
  struct Entry {
    TensorInfo info;
    std::size_t offset = 0;  ///< from the start of the file
  };
  std::map<std::string, Entry> tensors;
  std::map<std::string, std::string> metadata;
};

/// Reads and checks the header of a whole file in memory by the rules of the format's reference library: at
/// most 100 MB of header, no overlap, no hole, the last tensor ends with the file. Element types that are
/// unknown here are listed as not readable. `where` names the file in errors.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file, const std::string& where);

}  // namespace magi
