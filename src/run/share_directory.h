// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

namespace magi {

/// Where the program's data files lie: $MAGI2_SHARE, else ../share/magi2 beside the program's directory (an
/// installation), else share/magi2 in it (a build tree). Throws Error when there is none.
std::filesystem::path share_directory();

}  // namespace magi
