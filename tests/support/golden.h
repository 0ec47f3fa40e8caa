// SPDX-License-Identifier: Apache-2.0
// Golden data: where it is, how tests read it, and how they compare. $MAGI2_GOLDEN_DIR names another
// directory of the same layout (model/, cases/), whose model may have other sizes: read every size from the
// files.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "io/safetensors.h"

namespace magi {

inline std::filesystem::path golden_dir() {
  const char* chosen = std::getenv("MAGI2_GOLDEN_DIR");
  return chosen && *chosen ? std::filesystem::path(chosen)
                           : std::filesystem::path(MAGI2_SOURCE_DIR) / "tests/golden";
}

/// A part of the golden checkpoint root: golden_model("preview"); the root itself: golden_model().
inline std::filesystem::path golden_model(const std::string& part = "") {
  return part.empty() ? golden_dir() / "model" : golden_dir() / "model" / part;
}

/// A file of `cases/` by its full name ("prompt.json", "e2e_image.png").
inline std::filesystem::path golden_file(const std::string& name) {
  return golden_dir() / "cases" / name;
}

/// A copy as contiguous f32 of a host tensor of any element type.
inline Tensor as_f32(const Tensor& tensor) {
  const auto widen = [&](auto zero) {
    Tensor result = Tensor::empty(DType::f32, tensor.shape());
    const auto values = tensor.values<decltype(zero)>();
    std::transform(values.begin(), values.end(), result.data<float>(),
                   [](auto v) { return static_cast<float>(v); });
    return result;
  };
  switch (tensor.dtype()) {
    case DType::boolean:
      return widen(bool{});
    case DType::u8:
      return widen(std::uint8_t{});
    case DType::i8:
      return widen(std::int8_t{});
    case DType::i16:
      return widen(std::int16_t{});
    case DType::i32:
      return widen(std::int32_t{});
    case DType::i64:
      return widen(std::int64_t{});
    case DType::f32:
      return tensor.clone();
    default:
      return tensor.to(DType::f32);
  }
}

/// cases/NAME.safetensors. A missing file is no error until a tensor is asked for; a broken one is.
class GoldenCase {
 public:
  explicit GoldenCase(const std::string& name) : path_(golden_file(name + ".safetensors")) {
    if (!std::filesystem::exists(path_)) return;
    store_ = open_safetensors(path_);
    metadata_ = safetensors_metadata(path_);
  }
  bool exists() const { return store_ != nullptr; }
  std::string path() const { return path_.string(); }
  bool has(const std::string& name) const { return exists() && store_->has(name); }
  /// As stored; read-only memory.
  Tensor raw(const std::string& name) const {
    require(exists(), "{}: no such golden case", path());
    return store_->load(name);
  }
  /// As f32, whatever is stored (integers too); the caller's own copy.
  Tensor get(const std::string& name) const { return as_f32(raw(name)); }
  const TensorStore& store() const { return *store_; }
  bool has_meta(const std::string& key) const { return metadata_.contains(key); }
  std::string meta(const std::string& key) const {
    require(has_meta(key), "{}: no metadata {}", path(), key);
    return metadata_.at(key);
  }
  std::string meta(const std::string& key, const std::string& otherwise) const {
    return has_meta(key) ? metadata_.at(key) : otherwise;
  }

 private:
  std::filesystem::path path_;
  std::shared_ptr<TensorStore> store_;
  std::map<std::string, std::string> metadata_;
};

/// Opens a case, or skips the test by the case's name.
#define GOLDEN_CASE(variable, name)        \
  const ::magi::GoldenCase variable(name); \
  if (!variable.exists()) GTEST_SKIP() << "golden case missing: " << variable.path()

/// ‖got − want‖ / ‖want‖ (‖got − want‖ where want is all zero). Throws when the shapes differ.
inline double relative_l2(const Tensor& got, const Tensor& want) {
  require(got.shape() == want.shape(), "comparing a tensor {} with one of {}", to_string(got.shape()),
          to_string(want.shape()));
  const Tensor g = as_f32(got), w = as_f32(want);
  double difference = 0, norm = 0;
  for (std::int64_t i = 0; i < g.numel(); ++i) {
    const double a = g.data<float>()[i], b = w.data<float>()[i];
    difference += (a - b) * (a - b);
    norm += b * b;
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

/// Largest |got − want|; NaN when any difference is NaN.
inline double max_abs_diff(const Tensor& got, const Tensor& want) {
  require(got.shape() == want.shape(), "comparing a tensor {} with one of {}", to_string(got.shape()),
          to_string(want.shape()));
  const Tensor g = as_f32(got), w = as_f32(want);
  double largest = 0;
  for (std::int64_t i = 0; i < g.numel(); ++i) {
    const double d = std::abs(double{g.data<float>()[i]} - double{w.data<float>()[i]});
    if (std::isnan(d)) return d;
    largest = std::max(largest, d);
  }
  return largest;
}

/// Prints "name: relative L2 x (tolerance y)" and fails the test when x exceeds y or is NaN, or when shapes
/// differ.
inline void expect_close(const std::string& name, const Tensor& got, const Tensor& want, double tolerance) {
  ASSERT_EQ(got.shape(), want.shape()) << name;
  const double error = relative_l2(got, want);
  std::printf("%s: relative L2 %.3g (tolerance %.3g)\n", name.c_str(), error, tolerance);
  EXPECT_TRUE(error <= tolerance) << name << ": relative L2 " << error << ", tolerance " << tolerance;
}

}  // namespace magi
