// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace magi::av {

/// Opens FFmpeg's libraries; nothing of theirs may be called before. Throws Error when they are missing.
void load_library();

}  // namespace magi::av
