// SPDX-License-Identifier: Apache-2.0
// A packed sequence as a list of segments: runs of rows of one sample and one modality, in packed order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace magi {

/// Order of the stacked per-modality weights in the checkpoints.
enum class Modality : std::uint8_t { video = 0, audio = 1, text = 2 };
inline constexpr int kModalities = 3;

struct Segment {
  std::int32_t sample = 0;
  Modality modality = Modality::video;
  std::int64_t first = 0;  ///< first row
  std::int64_t rows = 0;
  bool noised = false;  ///< carries the timestep (latents being denoised); text and reference images do not
};

/// Segments in packed order cover rows 0…N−1 without gaps; zero-row segments are allowed.
using Segments = std::vector<Segment>;

/// Half-open range of rows.
struct RowRange {
  std::int64_t first = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - first; }
};

/// The rows in both; empty ranges are {0, 0}.
inline RowRange intersect(RowRange a, RowRange b) {
  const RowRange both{std::max(a.first, b.first), std::min(a.end, b.end)};
  return both.size() > 0 ? both : RowRange{};
}

inline std::int64_t row_count(const Segments& segments) {
  return segments.empty() ? 0 : segments.back().first + segments.back().rows;
}

/// The row range of each sample, in order (what other implementations call cu_seqlens).
inline std::vector<RowRange> sample_ranges(const Segments& segments) {
  std::vector<RowRange> ranges;
  for (const Segment& s : segments) {
    if (static_cast<std::size_t>(s.sample) >= ranges.size()) ranges.push_back({s.first, s.first});
    ranges.back().end = s.first + s.rows;
  }
  return ranges;
}

}  // namespace magi
