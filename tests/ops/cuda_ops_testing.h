// SPDX-License-Identifier: Apache-2.0
// Operations of the CUDA backend beside the CPU's: fresh inputs, poisoned outputs, twice with equal bytes.
#pragma once

#include <functional>

#include "ops/devices.h"
#include "ops_testing.h"

namespace magi::testing {

using Put = std::function<Tensor(const Tensor&)>;
/// An operation on inputs brought to the backend by `put`; gives what is compared.
using Operation = std::function<std::vector<Tensor>(Ops&, const Put&)>;

inline std::vector<double> flattened(const std::vector<Tensor>& tensors) {
  std::vector<double> all;
  for (const Tensor& t : tensors) {
    const auto values = t.dtype() == DType::i32 ? std::vector<double>(t.values<std::int32_t>().begin(),
                                                                      t.values<std::int32_t>().end())
                                                : doubles(t);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

class CudaOpsTest : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (cuda_devices().empty()) GTEST_SKIP() << "no CUDA device";
    gpu_arena_ = make_cuda_arena(0, std::size_t{1} << 30);
    gpu_ = make_cuda_ops(gpu_arena_);
  }

  DType dtype() const { return GetParam(); }
  /// Fresh values at every call.
  Tensor random(const Shape& shape, float scale = 1.0f) {
    return random_tensor(dtype(), shape, ++seed_, scale);
  }
  Tensor random_f32(const Shape& shape, float scale = 1.0f) {
    return random_tensor(DType::f32, shape, ++seed_, scale);
  }

  /// A run of random values over and over, where drawing them all would take long.
  Tensor repeated(const Shape& shape, float scale) {
    constexpr std::int64_t kPrime = 1048573;
    if (numel(shape) <= kPrime) return random(shape, scale);
    const Tensor run = random({kPrime}, scale);
    Tensor all = Tensor::empty(dtype(), shape);
    const std::size_t size = run.bytes();
    for (std::size_t at = 0; at < all.bytes(); at += size)
      std::memcpy(static_cast<std::byte*>(all.raw()) + at, run.raw(), std::min(size, all.bytes() - at));
    return all;
  }

  /// Results of the GPU, whose free scratch memory held NaN.
  std::vector<Tensor> on_gpu(const Operation& operation) {
    {
      const Tensor nan = Tensor::empty(DType::u8, {std::int64_t{192} << 20});
      std::fill_n(const_cast<std::uint8_t*>(nan.data<std::uint8_t>()), nan.numel(), 0xff);
      gpu_->copy_in(gpu_arena_.alloc(DType::u8, nan.shape()), nan);
    }
    std::vector<Tensor> results;
    for (const Tensor& t : operation(*gpu_, [&](const Tensor& host) { return gpu_->upload(host); }))
      results.push_back(gpu_->download(t));
    return results;
  }
  std::vector<Tensor> on_cpu(const Operation& operation) {
    return operation(*cpu_, [](const Tensor& host) { return host.clone(); });
  }

  void compare(const Operation& operation, double f32_tolerance = 2e-6, double bf16_tolerance = 4e-3) {
    const auto got = on_gpu(operation), want = on_cpu(operation);
    ASSERT_EQ(got.size(), want.size());
    const double limit = dtype() == DType::bf16 ? bf16_tolerance : f32_tolerance;
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].shape(), want[i].shape());
      const double error = relative_error_of(flattened({got[i]}), flattened({want[i]}));
      std::printf("result %zu: relative L2 %.3g (limit %.3g)\n", i, error, limit);
      EXPECT_TRUE(error <= limit) << "result " << i << ": " << error << ", limit " << limit;
    }
    const auto again = on_gpu(operation);
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same_bytes(got[i], again[i])) << "result " << i;
  }

  static double relative_error_of(const Doubles& got, const Doubles& want) {
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      difference += (got[i] - want[i]) * (got[i] - want[i]);
      size += want[i] * want[i];
    }
    return std::sqrt(difference / (size > 0 ? size : 1));
  }

  unsigned seed_ = static_cast<unsigned>(::testing::UnitTest::GetInstance()->random_seed()) * 1000 + 7;
  Arena cpu_arena_ = Arena::on_host(std::size_t{4} << 30);
  std::unique_ptr<Ops> cpu_ = make_cpu_ops(cpu_arena_);
  Arena gpu_arena_ = Arena::counting({});
  std::unique_ptr<Ops> gpu_;
};

}  // namespace magi::testing
