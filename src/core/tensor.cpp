// SPDX-License-Identifier: Apache-2.0
#include "core/tensor.h"

#include <sys/mman.h>

#include <cstring>
#include <new>

#include "core/memory_ledger.h"

namespace magi {
namespace {

std::int64_t inner_size(const Shape& shape) {
  std::int64_t n = 1;
  for (std::size_t i = 1; i < shape.size(); ++i) n *= shape[i];
  return n;
}

template <typename From, typename To>
void convert_rows(const Tensor& from, Tensor& to) {
  const std::int64_t rows = from.rank() ? from.dim(0) : 1;
  const std::int64_t width = inner_size(from.shape());
  const From* src = from.data<From>();
  To* dst = to.data<To>();
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < width; ++c) {
      if constexpr (std::is_same_v<From, double>)
        dst[r * width + c] = static_cast<To>(static_cast<float>(src[r * from.pitch() + c]));
      else if constexpr (std::is_same_v<To, double>)
        dst[r * width + c] = static_cast<double>(static_cast<float>(src[r * from.pitch() + c]));
      else
        dst[r * width + c] = static_cast<To>(static_cast<float>(src[r * from.pitch() + c]));
    }
}

template <typename From>
void convert_from(const Tensor& from, Tensor& to) {
  switch (to.dtype()) {
    case DType::f32:
      return convert_rows<From, float>(from, to);
    case DType::bf16:
      return convert_rows<From, bf16>(from, to);
    case DType::f64:
      return convert_rows<From, double>(from, to);
    default:
      fail("cannot convert {} to {}", name_of(from.dtype()), name_of(to.dtype()));
  }
}

}  // namespace

std::string to_string(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape, ","));
}

std::int64_t numel(const Shape& shape) {
  std::int64_t n = 1;
  for (auto d : shape) n *= d;
  return n;
}

Tensor Tensor::empty(DType dtype, Shape shape) {
  const std::size_t bytes = static_cast<std::size_t>(magi::numel(shape)) * size_of(dtype);
  auto entry = std::make_shared<LedgerEntry>(Device{}, bytes);
  // Weights and large scratch on huge pages: most of the time of writing new memory once is page faults.
  constexpr std::size_t huge_page = std::size_t{2} << 20;
  const std::align_val_t alignment{bytes < 4 * huge_page ? 64 : huge_page};
  void* memory = ::operator new(bytes + 64, alignment);  // slack: vector loads may run past the last element
  if (bytes >= 4 * huge_page) madvise(memory, bytes, MADV_HUGEPAGE);  // a hint: failure changes nothing
  std::shared_ptr<const void> owner(
      memory, [alignment, entry](const void* p) { ::operator delete(const_cast<void*>(p), alignment); });
  return view(memory, dtype, std::move(shape), std::move(owner));
}

Tensor Tensor::zeros(DType dtype, Shape shape) {
  Tensor t = empty(dtype, std::move(shape));
  std::memset(t.raw(), 0, t.bytes());
  return t;
}

Tensor Tensor::view(void* data, DType dtype, Shape shape, std::shared_ptr<const void> keep_alive,
                    Device device) {
  Tensor t;
  t.data_ = data;
  t.keep_ = std::move(keep_alive);
  t.pitch_ = inner_size(shape);
  t.shape_ = std::move(shape);
  t.dtype_ = dtype;
  t.device_ = device;
  t.defined_ = true;
  return t;
}

bool Tensor::contiguous() const {
  return shape_.empty() || shape_[0] <= 1 || pitch_ == inner_size(shape_);
}

Tensor Tensor::rows(std::int64_t first, std::int64_t count) const {
  if (rank() < 1 || first < 0 || count < 0 || first + count > shape_[0]) {
    fail("rows {}+{} of a tensor {}", first, count, to_string(shape_));
  }
  Tensor t = *this;
  t.shape_[0] = count;
  t.data_ = static_cast<char*>(data_) + static_cast<std::size_t>(first * pitch_) * size_of(dtype_);
  return t;
}

Tensor Tensor::columns(std::int64_t first, std::int64_t count) const {
  if (rank() != 2 || first < 0 || count < 0 || first + count > shape_[1]) {
    fail("columns {}+{} of a tensor {}", first, count, to_string(shape_));
  }
  Tensor t = *this;
  t.shape_[1] = count;
  t.data_ = static_cast<char*>(data_) + static_cast<std::size_t>(first) * size_of(dtype_);
  return t;
}

Tensor Tensor::reshape(Shape shape) const {
  if (!contiguous() || magi::numel(shape) != numel()) {
    fail("cannot view a tensor {} as {}", to_string(shape_), to_string(shape));
  }
  Tensor t = *this;
  t.pitch_ = inner_size(shape);
  t.shape_ = std::move(shape);
  return t;
}

Tensor Tensor::to(DType dtype) const {
  require(device_.kind == Device::Kind::cpu, "Tensor::to() works on host memory");
  if (dtype == dtype_ && contiguous()) return *this;
  if (dtype == dtype_) return clone();
  Tensor result = empty(dtype, shape_);
  switch (dtype_) {
    case DType::f32:
      convert_from<float>(*this, result);
      break;
    case DType::bf16:
      convert_from<bf16>(*this, result);
      break;
    case DType::f16:
      convert_from<f16>(*this, result);
      break;
    case DType::f64:
      convert_from<double>(*this, result);
      break;
    default:
      fail("cannot convert {} to {}", name_of(dtype_), name_of(dtype));
  }
  return result;
}

Tensor Tensor::clone() const {
  require(device_.kind == Device::Kind::cpu, "Tensor::clone() works on host memory");
  Tensor result = empty(dtype_, shape_);
  const std::size_t row_bytes = static_cast<std::size_t>(inner_size(shape_)) * size_of(dtype_);
  const std::int64_t rows = rank() ? dim(0) : 1;
  for (std::int64_t r = 0; r < rows; ++r)
    std::memcpy(static_cast<char*>(result.raw()) + r * row_bytes,
                static_cast<const char*>(data_) + static_cast<std::size_t>(r * pitch_) * size_of(dtype_),
                row_bytes);
  return result;
}

void Tensor::check_dtype(DType wanted) const {
  // Asked for every typed pointer, in inner loops too: the message is put together only when it is needed.
  if (defined_ && wanted == dtype_) return;
  require(defined_, "use of an undefined tensor");
  fail("tensor {} is {}, used as {}", to_string(shape_), name_of(dtype_), name_of(wanted));
}

}  // namespace magi
