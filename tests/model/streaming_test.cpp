// SPDX-License-Identifier: Apache-2.0
// Layers that come through slots or from disk give the same bytes as resident ones.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "core/memory_ledger.h"
#include "io/checkpoint.h"
#include "io/config.h"
#include "model/layer_image.h"
#include "model/preview.h"
#include "model/refiner.h"
#include "model/slot_ring.h"
#include "model/text_encoder.h"
#include "ops/cpu/cpu_ops.h"
#include "support/backend.h"
#include "support/expect_error.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace magi {
namespace {

namespace fs = std::filesystem;

/// Slots in host memory, filled late by a thread. A slot that is written while it is lent, or lent before it
/// is filled by the copy asked for last, shows in `mistakes`; a released one is overwritten at once.
class LateTransfer final : public Transfer {
 public:
  LateTransfer(int slots, std::size_t slot_bytes, std::atomic<int>& mistakes)
      : slot_bytes_(slot_bytes),
        mistakes_(mistakes),
        memory_(Tensor::empty(DType::u8, {slots, static_cast<std::int64_t>(slot_bytes)})),
        slots_(static_cast<std::size_t>(slots)),
        thread_([this] { run(); }) {}
  ~LateTransfer() override {
    {
      const std::scoped_lock lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  std::byte* slot(int i) override {
    return static_cast<std::byte*>(memory_.raw()) + static_cast<std::size_t>(i) * slot_bytes_;
  }
  void fill(int i, const std::byte* host, std::size_t bytes) override {
    const std::scoped_lock lock(mutex_);
    if (at(i).lent || bytes > slot_bytes_) ++mistakes_;
    ++at(i).waiting;
    copies_.push_back({i, host, bytes});
    times_.bytes += bytes;
    changed_.notify_all();
  }
  void acquire(int i) override {  // a device would wait for it in its stream
    wait_filled(i);
    const std::scoped_lock lock(mutex_);
    if (at(i).lent) ++mistakes_;
    at(i).lent = true;
  }
  void release(int i) override {
    const std::scoped_lock lock(mutex_);
    if (!at(i).lent) ++mistakes_;
    at(i).lent = false;
    std::memset(slot(i), 0xff, slot_bytes_);
  }
  void wait_filled(int i) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return at(i).waiting == 0; });
  }
  TransferTimes take_times() override {
    const std::scoped_lock lock(mutex_);
    return std::exchange(times_, {});
  }

 private:
  struct Slot {
    bool lent = false;
    int waiting = 0;
  };
  struct Copy {
    int slot;
    const std::byte* host;
    std::size_t bytes;
  };
  Slot& at(int i) { return slots_.at(static_cast<std::size_t>(i)); }
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stopping_ || !copies_.empty(); });
      if (copies_.empty()) return;
      const Copy copy = copies_.front();
      copies_.pop_front();
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(300));
      std::memcpy(slot(copy.slot), copy.host, copy.bytes);
      lock.lock();
      --at(copy.slot).waiting;
      changed_.notify_all();
    }
  }

  std::size_t slot_bytes_;
  std::atomic<int>& mistakes_;
  Tensor memory_;
  std::vector<Slot> slots_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Copy> copies_;
  TransferTimes times_;
  bool stopping_ = false;
  std::thread thread_;
};

/// A host that streams as a device does.
class DeviceLikeOps final : public CpuOps {
 public:
  DeviceLikeOps(Arena& arena, std::atomic<int>& mistakes) : CpuOps(arena), mistakes_(mistakes) {}
  std::unique_ptr<Transfer> make_transfer(int slots, std::size_t slot_bytes) override {
    return std::make_unique<LateTransfer>(slots, slot_bytes, mistakes_);
  }

 private:
  std::atomic<int>& mistakes_;
};

/// Sizes of the layers of a model as the backend has them.
template <typename Config, typename Load>
std::vector<std::size_t> layer_bytes(Ops& ops, const TensorStore& store, DType dtype, const Config& config,
                                     std::int64_t layers, const std::string& prefix, Load load) {
  std::vector<std::size_t> bytes;
  for (std::int64_t i = 0; i < layers; ++i)
    bytes.push_back(LayerPattern(load(WeightLoader(ops, store, dtype, prefix), config, i)).bytes());
  return bytes;
}

PreviewLayer preview_layer(const WeightLoader& root, const PreviewConfig& config, std::int64_t i) {
  return load_preview_layer(root, config, i);
}

std::string bytes_of(const std::vector<Tensor>& tensors) {
  std::string bytes;
  for (const Tensor& t : tensors) bytes.append(static_cast<const char*>(t.raw()), t.bytes());
  return bytes;
}

Tensor some(Shape shape, float scale) {
  Tensor t = Tensor::empty(DType::f32, std::move(shape));
  std::uint32_t seed = 1;
  for (float& v : t.values<float>()) {
    seed = seed * 1664525u + 1013904223u;
    v = scale * (static_cast<float>(seed >> 8) * 0x1p-23f - 1.0f);
  }
  return t;
}

/// Places of `layers` layers: the letters repeat. D: device, h: host, d: disk.
Placement placement(const std::string& letters, const std::vector<std::size_t>& bytes) {
  Placement p;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const char letter = letters[i % letters.size()];
    p.layers.push_back(letter == 'D' ? Place::device : letter == 'h' ? Place::host : Place::disk);
  }
  p.slot_bytes = *std::max_element(bytes.begin(), bytes.end());
  return p;
}

class StreamedModel : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (!fs::exists(golden_model("config.json"))) GTEST_SKIP() << "golden model missing: " << golden_model();
    if (tests_on_cuda())
      ops_ = make_ops(arena_);
    else
      ops_ = std::make_unique<DeviceLikeOps>(arena_, mistakes_);
  }
  static ConfigNode config() {
    return {load_config(golden_model("config.json"), golden_model()), "config.json"};
  }

  /// Two calls of the preview: the second one uses what the first one's end read ahead.
  std::string preview(const TensorStore& store, const std::string& letters) {
    const auto c = PreviewConfig::from(config());
    Placement places;
    if (!letters.empty())
      places = placement(letters, layer_bytes(*ops_, store, GetParam(), c, c.layers, "", preview_layer));
    const auto model = load_preview(*ops_, store, c, GetParam(), {}, {}, places);
    const Tensor text = some({5, c.channels.text}, 1);
    PreviewRun run(*ops_, *model, pack({2, 3, 4}, 6, {{text, {}}, {text.rows(0, 2), {}}}), GetParam());
    std::vector<Tensor> results;
    for (const double timestep : {900.0, 300.0})
      for (const Velocity& v :
           run.velocity(some({c.channels.video, 2, 3, 4}, 1), some({6, c.channels.audio}, 1), timestep))
        results.insert(results.end(), {v.video, v.audio});
    streamed_bytes_ = model->take_transfer_times().bytes;
    return bytes_of(results);
  }
  std::string refiner(const TensorStore& store, const std::string& letters) {
    const auto c = RefinerConfig::from(config());
    Placement places;
    if (!letters.empty())
      places = placement(letters, layer_bytes(*ops_, store, GetParam(), c, c.layers, "", load_refiner_layer));
    const auto model = load_refiner(*ops_, store, c, GetParam(), {}, places);
    RefinerRun run(*ops_, *model, {3, 4, 5}, 0, some({7, c.channels.text}, 1), GetParam());
    std::vector<Tensor> results;
    for (const float scale : {1.0f, 0.5f})
      results.push_back(run.velocity(some({c.channels.video, 3, 4, 5}, scale)).video);
    return bytes_of(results);
  }
  std::string text_encoder(const TensorStore& store, const std::string& letters) {
    const auto c = TextEncoderConfig::from(ConfigNode::read(golden_model("text_encoder") / "config.json"));
    Placement places;
    if (!letters.empty())
      places = placement(letters, layer_bytes(*ops_, store, GetParam(), c, c.run_layers(),
                                              "model.language_model.", load_text_encoder_layer));
    const auto model = load_text_encoder(*ops_, store, c, GetParam(), {}, places);
    const std::vector<std::int32_t> ids{1, 2, 3, 5, 8};
    return bytes_of({model->encode(*ops_, ids), model->encode(*ops_, std::span(ids).first(3))});
  }

  Arena arena_ = test_arena();
  std::atomic<int> mistakes_{0};
  std::unique_ptr<Ops> ops_;
  std::size_t streamed_bytes_ = 0;
};

/// "d" and "Dd" on a host that computes are DiskWeights; with an h the layers go through slots.
const std::vector<std::string> kPlacements{"h", "d", "Dhdd"};

TEST_P(StreamedModel, PreviewIsTheSame) {
  const auto store = open_checkpoint(golden_model("preview"));
  const std::string resident = preview(*store, "");
  EXPECT_EQ(streamed_bytes_, 0U);
  for (const std::string& letters : kPlacements) {
    EXPECT_EQ(preview(*store, letters) == resident, true) << letters;
    EXPECT_EQ(streamed_bytes_ > 0, letters.find('h') != letters.npos || tests_on_cuda()) << letters;
  }
  EXPECT_EQ(mistakes_, 0);
}

TEST_P(StreamedModel, RefinerIsTheSame) {
  const auto store = open_checkpoint(golden_model("refiner"));
  const std::string resident = refiner(*store, "");
  for (const std::string& letters : kPlacements)
    EXPECT_EQ(refiner(*store, letters) == resident, true) << letters;
  EXPECT_EQ(mistakes_, 0);
}

TEST_P(StreamedModel, TextEncoderIsTheSame) {
  const auto store = open_checkpoint(golden_model("text_encoder"));
  const std::string resident = text_encoder(*store, "");
  for (const std::string& letters : kPlacements)
    EXPECT_EQ(text_encoder(*store, letters) == resident, true) << letters;
  EXPECT_EQ(mistakes_, 0);
}

TEST_P(StreamedModel, FilesAreReadInAnyWay) {
  const std::string resident = preview(*open_checkpoint(golden_model("preview")), "");
  for (const Access access : {Access::copied, Access::direct})
    EXPECT_EQ(preview(*open_checkpoint(golden_model("preview"), access), "d") == resident, true);
}

TEST_P(StreamedModel, AFileThatShrinksInTheMiddleIsOneError) {
  TempDir directory;
  fs::copy(golden_model("preview"), directory / "preview", fs::copy_options::recursive);
  const auto store = open_checkpoint(directory / "preview", Access::copied);
  const auto c = PreviewConfig::from(config());
  const auto places = placement("Dd", layer_bytes(*ops_, *store, GetParam(), c, c.layers, "", preview_layer));
  const auto model = load_preview(*ops_, *store, c, GetParam(), {}, {}, places);
  const Tensor text = some({5, c.channels.text}, 1);
  PreviewRun run(*ops_, *model, pack({2, 3, 4}, 6, {{text, {}}}), GetParam());
  const auto step = [&] {
    run.velocity(some({c.channels.video, 2, 3, 4}, 1), some({6, c.channels.audio}, 1), 500);
  };
  step();
  for (const auto& entry : fs::directory_iterator(directory / "preview"))
    if (entry.path().extension() == ".safetensors") fs::resize_file(entry.path(), 1 << 10);
  expect_error(
      [&] {
        for (int i = 0; i < 3; ++i) step();  // some layers may have been read ahead
      },
      "cut short, or changed while in use");
}

INSTANTIATE_TEST_SUITE_P(Golden, StreamedModel, testing::Values(DType::f32, DType::bf16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

/// A step that ends early leaves the slots full of layers that nobody wants next.
TEST(Streaming, ABrokenStepIsFollowedByAWholeOne) {
  std::atomic<int> mistakes{0};
  std::vector<LayerImage> images;
  for (int i = 0; i < 5; ++i) {
    std::shared_ptr<std::byte> memory(new std::byte[64], std::default_delete<std::byte[]>());
    std::fill_n(memory.get(), 64, static_cast<std::byte>(i));
    images.push_back({memory, 64});
  }
  for (const int slots : {1, 2, 3, 7}) {
    SlotRing ring(std::make_unique<LateTransfer>(slots, 64, mistakes), slots, {0, 1, 2, 3, 4}, images);
    for (const int steps : {5, 2, 5, 1, 0, 4, 5, 5})
      for (int layer = 0; layer < steps; ++layer) {
        const int slot = ring.acquire(layer);
        EXPECT_EQ(ring.slot(slot)[63], static_cast<std::byte>(layer)) << slots << " slots";
        ring.release(slot);
      }
    EXPECT_EQ(ring.acquire(3) >= 0, true);
    if (slots == 1) expect_error([&] { ring.acquire(4); }, "more layers are borrowed than there are slots");
    expect_error([&] { ring.acquire(9); }, "not among those that are streamed");
  }
  EXPECT_EQ(mistakes, 0);
}

}  // namespace
}  // namespace magi
