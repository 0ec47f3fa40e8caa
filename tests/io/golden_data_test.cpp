// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "support/golden.h"

namespace magi {
namespace {

// Golden tests skip cases that a directory lacks; this one fails when there is nothing at all to compare
// with.
TEST(GoldenData, SomeCaseIsPresent) {
  const std::array known{"preview_forward_t2v_f32",
                         "preview_forward_i2v_f32",
                         "preview_sample_t2v_f32",
                         "refiner_forward_audio_f32",
                         "refiner_forward_noaudio_f32",
                         "turbo_vae_decode",
                         "wan_vae_encode",
                         "audio_decode",
                         "text_encoder",
                         "torch_randn",
                         "e2e_t2v",
                         "e2e_short"};
  EXPECT_TRUE(std::ranges::any_of(known, [](const char* name) { return GoldenCase(name).exists(); }))
      << golden_dir() << " has not one golden case: nothing was compared. Set MAGI2_GOLDEN_DIR.";
}

}  // namespace
}  // namespace magi
