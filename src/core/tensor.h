// SPDX-License-Identifier: Apache-2.0
// Tensor: a typed, shaped view of memory that may keep its storage alive. Row-major. Contiguous, except that
// the first axis may have a longer pitch (columns of a matrix, q/k/v inside one projection).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/error.h"

namespace magi {

using Shape = std::vector<std::int64_t>;

/// "[3,4,5]"
std::string to_string(const Shape& shape);
/// Product of the axes; 1 for a scalar.
std::int64_t numel(const Shape& shape);

/// Where bytes live. CUDA devices are numbered as the driver does.
struct Device {
  enum class Kind : std::uint8_t { cpu, cuda };
  Kind kind = Kind::cpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};

class Tensor {
 public:
  Tensor() = default;

  /// New host memory, uninitialised, 64-byte aligned, owned by the tensor and its views.
  static Tensor empty(DType dtype, Shape shape);
  static Tensor zeros(DType dtype, Shape shape);
  /// A view of memory that lives elsewhere; `keep_alive` (optional) is held as long as any view of it.
  static Tensor view(void* data, DType dtype, Shape shape, std::shared_ptr<const void> keep_alive = nullptr,
                     Device device = {});
  /// Host copy of values, f32 / i32 / i64 / u8 by element type.
  template <typename T>
  static Tensor of(std::span<const T> values, Shape shape) {
    Tensor t = empty(dtype_of<T>(), std::move(shape));
    require(t.numel() == static_cast<std::int64_t>(values.size()), "tensor of {} values given shape {}",
            values.size(), to_string(t.shape()));
    std::copy(values.begin(), values.end(), t.data<T>());
    return t;
  }

  bool defined() const { return defined_; }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  const Shape& shape() const { return shape_; }
  std::int64_t rank() const { return static_cast<std::int64_t>(shape_.size()); }
  /// Axis length; negative counts from the end.
  std::int64_t dim(std::int64_t axis) const { return shape_.at(axis < 0 ? axis + shape_.size() : axis); }
  std::int64_t numel() const { return magi::numel(shape_); }
  std::size_t bytes() const { return static_cast<std::size_t>(numel()) * size_of(dtype_); }
  /// Elements between consecutive indices of the first axis.
  std::int64_t pitch() const { return pitch_; }
  bool contiguous() const;

  void* raw() { return data_; }
  const void* raw() const { return data_; }
  /// Typed pointer; throws when T is not the tensor's dtype.
  template <typename T>
  T* data() {
    check_dtype(dtype_of<T>());
    return static_cast<T*>(data_);
  }
  template <typename T>
  const T* data() const {
    check_dtype(dtype_of<T>());
    return static_cast<const T*>(data_);
  }
  template <typename T>
  std::span<T> values() {
    require(contiguous(), "values() of a tensor with a row pitch");
    return {data<T>(), static_cast<std::size_t>(numel())};
  }
  template <typename T>
  std::span<const T> values() const {
    require(contiguous(), "values() of a tensor with a row pitch");
    return {data<T>(), static_cast<std::size_t>(numel())};
  }

  /// Views that share storage.
  Tensor rows(std::int64_t first, std::int64_t count) const;     ///< slice of the first axis
  Tensor columns(std::int64_t first, std::int64_t count) const;  ///< slice of the second axis of a matrix
  Tensor reshape(Shape shape) const;                             ///< same elements, contiguous tensors only
  /// Host copy with another dtype (f32, bf16, f16, f64 among each other; integers only to themselves).
  Tensor to(DType dtype) const;
  Tensor clone() const;

 private:
  void check_dtype(DType wanted) const;

  void* data_ = nullptr;
  std::shared_ptr<const void> keep_;
  Shape shape_;
  std::int64_t pitch_ = 0;
  DType dtype_ = DType::f32;
  Device device_;
  bool defined_ = false;
};

}  // namespace magi
