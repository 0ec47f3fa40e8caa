// SPDX-License-Identifier: Apache-2.0
#include "run/prompt_file.h"

#include "io/mapped_file.h"

namespace magi {

std::string read_prompt_file(const std::filesystem::path& file) {
  const auto mapped = MappedFile::open(file);
  std::string text(reinterpret_cast<const char*>(mapped->bytes().data()), mapped->bytes().size());
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return text;
}

}  // namespace magi
