// SPDX-License-Identifier: Apache-2.0
// Short loops over host tensors between the steps of a device, on several threads.
#pragma once

#include <cstdint>
#include <functional>

namespace magi {

/// Calls part(0) … part(count − 1), each once, in no order, on the calling thread and on those of its helpers
/// that are there in time; together no more threads than OpenMP would use. An OpenMP loop ends when all of
/// its threads have come, of which a busy machine starts some milliseconds late; this one ends when the work
/// is done. Parts must not throw, and take some microseconds at least. While one caller has the helpers,
/// another works alone.
void in_parts(std::int64_t count, const std::function<void(std::int64_t)>& part);

/// The same over elements 0 … count − 1, in ranges of about 32,768 that begin at multiples of `step`.
void in_ranges(std::int64_t count, std::int64_t step,
               const std::function<void(std::int64_t first, std::int64_t end)>& range);

}  // namespace magi
