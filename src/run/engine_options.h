// SPDX-License-Identifier: Apache-2.0
// What holds for every clip that an engine makes: where it computes and what it may use. What a single clip
// asks for is a Request.
#pragma once

#include "core/tensor.h"

namespace magi {

struct EngineOptions {
  Device device;
};

}  // namespace magi
