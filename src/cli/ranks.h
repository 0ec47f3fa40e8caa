// SPDX-License-Identifier: Apache-2.0
// Commands that several ranks run together.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>

#include "comm/world.h"
#include "model/parallel.h"

namespace magi {

/// --sp, --cfg and --ep.
void add_degree_options(CLI::App& command, Degrees& degrees);

/// Meets the other ranks, if a launcher started several, runs `work` and leaves in peace; what it throws ends
/// all ranks. Only rank 0 writes lines.
void with_ranks(const std::function<void(const std::shared_ptr<World>&)>& work);

}  // namespace magi
