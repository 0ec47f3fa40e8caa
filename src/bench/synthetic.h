// SPDX-License-Identifier: Apache-2.0
// Models of random weights, of any size, without files. Layers of one kind share storage, so that a model of
// 114B parameters fits where a layer or two do; a step's arithmetic and traffic stay those of the full model,
// as far as caches do not hold a whole layer.
#pragma once

#include <memory>

#include "model/preview.h"
#include "model/refiner.h"
#include "model/text_encoder.h"

namespace magi {

/// `distinct`: at most so many layers of a kind (same tensors, same shapes) have weights of their own; the
/// others repeat them in turn.
std::unique_ptr<Preview> synthetic_preview(Ops& ops, const PreviewConfig& config, DType dtype,
                                           std::int64_t distinct);
std::unique_ptr<Refiner> synthetic_refiner(Ops& ops, const RefinerConfig& config, DType dtype,
                                           std::int64_t distinct);
std::unique_ptr<TextEncoder> synthetic_text_encoder(Ops& ops, const TextEncoderConfig& config, DType dtype,
                                                    std::int64_t distinct);

}  // namespace magi
