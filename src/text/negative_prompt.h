// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace magi {

/// The negative prompt that the released pipeline uses when none is given: the unconditional branch's text.
std::string_view default_negative_prompt();

}  // namespace magi
