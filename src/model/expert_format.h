// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace magi {

/// How the preview's expert weights are kept in memory.
enum class ExpertFormat : std::uint8_t {
  stored,      ///< as the checkpoint has them
  bf16,        ///< as numbers of the compute dtype, from either kind of checkpoint
  nvfp4,       ///< four bits a weight (ops/nvfp4.h), packed at load where the checkpoint has numbers
  nvfp4_fake,  ///< the numbers that four bits can say, kept like bf16: the reference for nvfp4
};

/// "bf16", "nvfp4" or "nvfp4-fake"; throws Error for other names.
ExpertFormat expert_format(std::string_view name);
/// The reverse; "stored" for stored.
std::string_view name_of(ExpertFormat format);

}  // namespace magi
