// SPDX-License-Identifier: Apache-2.0
#include "io/read_file.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "core/error.h"

namespace magi {
namespace {

constexpr std::size_t kPiece = 1 << 16;

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

}  // namespace

std::string read_file(const std::filesystem::path& file, std::size_t max_bytes) {
  const std::unique_ptr<std::FILE, Close> in(std::fopen(file.c_str(), "rbe"));
  require(in != nullptr, "{}: cannot be read: {}", file.string(), std::strerror(errno));
  std::string bytes;
  for (std::size_t got = 1; got > 0;) {
    const std::size_t before = bytes.size();
    bytes.resize(before + std::max(before, kPiece));
    got = std::fread(bytes.data() + before, 1, bytes.size() - before, in.get());
    bytes.resize(before + got);
    require(std::ferror(in.get()) == 0, "{}: cannot be read: {}", file.string(), std::strerror(errno));
    require(bytes.size() <= max_bytes, "{}: cannot be read: it holds more than {} bytes", file.string(),
            max_bytes);
  }
  return bytes;
}

}  // namespace magi
