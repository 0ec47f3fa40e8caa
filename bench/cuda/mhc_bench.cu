// SPDX-License-Identifier: Apache-2.0
// Times the mHC site of the release's size (4 streams of 3072, bf16) on fresh random data, and prints digests
// of what it computes: mhc_bench [repeats]. Device events, median. tests/ops checks it against the CPU.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "ops/cuda/mhc.h"
#include "random_arrays.cuh"

namespace {

using magi::cuda::MhcArgs;

constexpr int kStreams = 4, kWidth = 3072, kColumns = 24, kGroups = 3;

/// Rows as a step packs them: long runs of video, short ones of audio and text, twice.
magi::Segments segments_of(std::int64_t rows) {
  magi::Segments list;
  std::int64_t next = 0;
  const auto append = [&](std::int64_t count, int modality) {
    list.push_back({0, static_cast<magi::Modality>(modality), next, count});
    next += count;
  };
  append(rows / 2 - 679, 0);
  append(250, 1);
  append(429, 2);
  append(rows - next - 265, 0);
  append(250, 1);
  append(15, 2);
  return list;
}

void time_site(std::int64_t rows, int repeats) {
  MhcArgs a;
  a.rows = rows;
  a.streams_count = kStreams;
  a.width = kWidth;
  Bf16* streams = random_array<Bf16>(rows * kStreams * kWidth, 1, 1.0f);
  a.streams = streams;
  a.branch = random_array<Bf16>(rows * kWidth, 2, 1.0f);
  a.branch_pitch = kWidth;
  a.pre = random_array<Bf16>(rows * kStreams, 3, 0.3f);
  a.post = random_array<Bf16>(rows * kStreams, 4, 0.3f);
  a.res = random_array<Bf16>(rows * kStreams * kStreams, 5, 0.3f);
  a.norm_weight = random_array<float>(kGroups * kStreams * kWidth, 6, 0.1f);
  a.norm_eps = a.pre_eps = 1e-6f;
  a.phi = random_array<float>(std::int64_t{kStreams} * kWidth * kColumns, 7, 1.0f);
  a.alpha = random_array<float>(3, 8, 0.5f);
  a.bias = random_array<float>(kColumns, 9, 0.5f);
  a.pre_weight = random_array<float>(kGroups * kWidth, 10, 0.1f);
  Bf16* out = array<Bf16>(rows * kWidth);
  a.out = out;
  void* scratch = nullptr;
  check_cuda(cudaMalloc(&scratch, magi::cuda::mhc_sm90_scratch(magi::DType::bf16, {rows, 4, 3072}, kGroups)), "allocate");
  const auto runs = magi::cuda::row_groups(segments_of(rows), kGroups, rows);
  std::vector<cudaEvent_t> events(repeats + 1);
  for (auto& e : events) cudaEventCreate(&e);
  for (int i = -2; i <= repeats; ++i) {
    if (i >= 0) cudaEventRecord(events[i]);
    if (i < repeats) magi::cuda::mhc_site_sm90(a, kGroups, kGroups, runs, scratch, nullptr);
  }
  check_cuda(cudaDeviceSynchronize(), "mhc_site");
  std::vector<float> ms(repeats);
  for (int i = 0; i < repeats; ++i) cudaEventElapsedTime(&ms[i], events[i], events[i + 1]);
  std::sort(ms.begin(), ms.end());
  const double bytes = 2.0 * rows * kWidth * (2 * kStreams + 2);
  const Digest d = digest(out, rows * kWidth * 2), s = digest(streams, rows * kStreams * kWidth * 2);
  std::printf("%ld rows: %.3f ms (%.3f to %.3f), %.0f GB/s; digests %lx %lx, NaN %d %d\n",
              static_cast<long>(rows), ms[repeats / 2], ms.front(), ms.back(), bytes / ms[repeats / 2] * 1e-6,
              static_cast<unsigned long>(d.sum), static_cast<unsigned long>(s.sum), static_cast<int>(d.nans),
              static_cast<int>(s.nans));
}

}  // namespace

int main(int argc, char** argv) {
  const int repeats = argc > 1 ? std::stoi(argv[1]) : 21;
  time_site(29616, repeats);
  if (repeats > 1) time_site(115634, repeats);
}
