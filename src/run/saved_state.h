// SPDX-License-Identifier: Apache-2.0
// A denoising run on disk: latents and the solvers' histories, so that a killed program goes on with the same
// bits.
#pragma once

#include "run/generate.h"
#include "sample/preview_sampler.h"

namespace magi {

/// Written beside and renamed. A disk that cannot take it is no reason to stop: a warning is logged.
void keep_state(const Resume& resume, const Request& request, const SampleState& state);

/// Replaces `state` (its latents have the shapes to expect) by what was kept, if it is whole and of the same
/// request; else leaves it as it is.
void take_up(const Resume& resume, const Request& request, SampleState& state);

}  // namespace magi
