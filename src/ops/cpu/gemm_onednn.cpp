// SPDX-License-Identifier: Apache-2.0
// oneDNN's matrix product as the kernel of a tile. Versions 2 and 3 differ only in how a primitive is
// described.
#include <array>
#include <dnnl.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/error.h"
#include "ops/cpu/gemm.h"

namespace magi {
namespace {

constexpr std::int64_t kShortStep = 16;  // heights of short tiles: 16, 32, 48

dnnl::memory::data_type to_dnnl(DType dtype) {
  return dtype == DType::f32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

dnnl::matmul::primitive_desc describe(const dnnl::memory::desc& a, const dnnl::memory::desc& b,
                                      const dnnl::memory::desc& c) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
#if DNNL_VERSION_MAJOR >= 3
  return {cpu_engine(), a, b, c, attributes};
#else
  return {dnnl::matmul::desc(a, b, c), attributes, cpu_engine()};
#endif
}

/// The product of one height of tiles.
struct Shape {
  dnnl::matmul::primitive_desc description;
  dnnl::matmul primitive;
};

class OneDnnKernel final : public GemmKernel {
 public:
  OneDnnKernel(DType dtype, std::int64_t k, std::int64_t n) : dtype_(to_dnnl(dtype)), k_(k), n_(n) {
    using tag = dnnl::memory::format_tag;
    const auto shape = [&](std::int64_t rows, const dnnl::memory::desc& b) {
      const auto description =
          describe({{rows, k}, dtype_, tag::ab}, b, {{rows, n}, dnnl::memory::data_type::f32, tag::ab});
      return Shape{description, dnnl::matmul(description)};
    };
    full_ = shape(kTileRows, {{k, n}, dtype_, tag::any});
    weights_ = full_->description.weights_desc();
    try {
      for (std::int64_t rows = kShortStep; rows < kTileRows; rows += kShortStep)
        short_.push_back(shape(rows, weights_));
    } catch (const dnnl::error&) {
      short_.clear();  // no short kernels for this layout of the weights: full tiles do
    }
    const auto reorder = [&](tag layout) {
      return dnnl::reorder(
          dnnl::reorder::primitive_desc(cpu_engine(), {{k, n}, dtype_, layout}, cpu_engine(), weights_));
    };
    pack_ = reorder(tag::ab);
    pack_transposed_ = reorder(tag::ba);
  }

  bool optimised() const {
    return std::string_view(full_->description.impl_info_str()).find("ref") == std::string_view::npos;
  }

  std::size_t packed_bytes() const override { return weights_.get_size(); }

  void pack(const void* b, bool transposed, void* packed) const override {
    using tag = dnnl::memory::format_tag;
    dnnl::stream stream(cpu_engine());
    dnnl::memory from({{k_, n_}, dtype_, transposed ? tag::ba : tag::ab}, cpu_engine(), const_cast<void*>(b));
    dnnl::memory to(weights_, cpu_engine(), packed);
    dnnl::reorder reorder = transposed ? pack_transposed_ : pack_;
    reorder.execute(stream, from, to);
    stream.wait();
  }

  std::unique_ptr<Worker> worker() const override { return std::make_unique<OneDnnWorker>(*this); }

  void use_short_tiles(bool on) override { short_tiles_ = on && !short_.empty(); }

 private:
  /// Arguments of one primitive, made once: building them costs as much as a small product.
  struct Call {
    dnnl::matmul primitive;
    dnnl::memory a, b, c;
    std::unordered_map<int, dnnl::memory> arguments;

    explicit Call(const Shape& shape)
        : primitive(shape.primitive),
          a(shape.description.src_desc(), cpu_engine(), DNNL_MEMORY_NONE),
          b(shape.description.weights_desc(), cpu_engine(), DNNL_MEMORY_NONE),
          c(shape.description.dst_desc(), cpu_engine(), DNNL_MEMORY_NONE),
          arguments{{DNNL_ARG_SRC, a},
                    {DNNL_ARG_WEIGHTS, b},
                    {DNNL_ARG_DST, c},
                    {DNNL_ARG_SCRATCHPAD, dnnl::memory(shape.description.scratchpad_desc(), cpu_engine())}} {}
  };

  struct OneDnnWorker final : Worker {
    const OneDnnKernel& kernel;
    dnnl::stream stream;
    std::array<std::optional<Call>, kTileRows / kShortStep> calls;  // by height, made when first needed

    explicit OneDnnWorker(const OneDnnKernel& kernel) : kernel(kernel), stream(cpu_engine()) {}

    void run(const void* a, const void* packed, float* c, std::int64_t rows) override {
      auto height = static_cast<std::size_t>((rows - 1) / kShortStep);
      if (!kernel.short_tiles_ || height >= kernel.short_.size()) height = calls.size() - 1;
      std::optional<Call>& call = calls[height];
      if (!call) call.emplace(height < kernel.short_.size() ? kernel.short_[height] : *kernel.full_);
      call->a.set_data_handle(const_cast<void*>(a));
      call->b.set_data_handle(const_cast<void*>(packed));
      call->c.set_data_handle(c);
      call->primitive.execute(stream, call->arguments);
    }
  };

  dnnl::memory::data_type dtype_;
  std::int64_t k_, n_;
  std::optional<Shape> full_;
  std::vector<Shape> short_;
  bool short_tiles_ = false;
  dnnl::memory::desc weights_;
  dnnl::reorder pack_, pack_transposed_;
};

}  // namespace

std::unique_ptr<GemmKernel> make_onednn_kernel(DType dtype, std::int64_t k, std::int64_t n) {
  try {
    auto kernel = std::make_unique<OneDnnKernel>(dtype, k, n);
    if (!kernel->optimised()) return nullptr;
    return kernel;
  } catch (const dnnl::error&) {
    return nullptr;  // oneDNN has no such product on this processor: gemm.cpp's own kernel serves
  }
}

}  // namespace magi
