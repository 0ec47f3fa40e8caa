// SPDX-License-Identifier: Apache-2.0
#include "run/share_directory.h"

#include <cstdlib>

#include "core/error.h"

namespace magi {

std::filesystem::path share_directory() {
  namespace fs = std::filesystem;
  if (const char* own = std::getenv("MAGI2_SHARE"); own && *own) return own;
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const fs::path& candidate : {program.parent_path() / "share/magi2", program / "share/magi2"})
    if (!error && fs::is_directory(candidate, error)) return candidate;
  fail("{}: no share/magi2 in or beside the program's directory; set MAGI2_SHARE", program.string());
}

}  // namespace magi
