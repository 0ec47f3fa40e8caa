// SPDX-License-Identifier: Apache-2.0
#include "ops/ops.h"
namespace magi { }
