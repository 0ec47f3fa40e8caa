// SPDX-License-Identifier: Apache-2.0
#include "io/finite.h"

#include <algorithm>
#include <atomic>

#include "core/in_parts.h"

namespace magi {
namespace {

/// A float is not finite when all its exponent bits are set.
template <typename Word>
std::int64_t first_with_all_bits(const void* data, std::int64_t count, Word exponent) {
  const Word* words = static_cast<const Word*>(data);
  constexpr std::int64_t block =
      (1 << 18) / sizeof(Word);  // 256 KiB: cheap to schedule, small to search again
  const std::int64_t blocks = (count + block - 1) / block;
  std::atomic<std::int64_t> first = count;
  in_parts(blocks, [&](std::int64_t b) {
    const std::int64_t begin = b * block;
    const std::int64_t end = std::min(count, begin + block);
    if (begin >= first) return;
    Word any = 0;  // no early exit inside a block: the loop vectorises
    for (std::int64_t i = begin; i < end; ++i) any |= static_cast<Word>((words[i] & exponent) == exponent);
    if (any == 0) return;
    const Word* hit =
        std::find_if(words + begin, words + end, [=](Word w) { return (w & exponent) == exponent; });
    std::int64_t known = first;
    while (hit - words < known && !first.compare_exchange_weak(known, hit - words)) {
    }
  });
  return first == count ? -1 : first.load();
}

}  // namespace

std::int64_t first_non_finite(const Tensor& tensor) {
  require(tensor.contiguous() && tensor.device().kind == Device::Kind::cpu,
          "the finite check takes contiguous host tensors");
  const std::int64_t count = tensor.numel();
  switch (tensor.dtype()) {
    case DType::f32:
      return first_with_all_bits<std::uint32_t>(tensor.raw(), count, 0x7f800000u);
    case DType::bf16:
      return first_with_all_bits<std::uint16_t>(tensor.raw(), count, 0x7f80u);
    case DType::f16:
      return first_with_all_bits<std::uint16_t>(tensor.raw(), count, 0x7c00u);
    case DType::f64:
      return first_with_all_bits<std::uint64_t>(tensor.raw(), count, 0x7ff0000000000000u);
    default:
      fail("the finite check takes floats, not {}", name_of(tensor.dtype()));
  }
}

}  // namespace magi
