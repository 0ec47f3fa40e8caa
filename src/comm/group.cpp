// SPDX-License-Identifier: Apache-2.0
#include "comm/group.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace magi {
namespace {

class SoloTransport final : public Transport {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::unique_ptr<Exchange> start(std::vector<Part>, std::vector<Part>, const std::string& what) override {
    fail("{}: there is no other rank", what);
  }
};

class Done final : public Exchange {
 public:
  void wait(double) override {}
};

std::vector<Part> blocks(const Tensor& whole, int count, std::string_view what) {
  require(whole.contiguous() && whole.numel() % count == 0, "{}: a tensor {} among {} ranks", what,
          to_string(whole.shape()), count);
  const Tensor rows = whole.reshape({count, whole.numel() / count});
  std::vector<Part> parts;
  for (int r = 0; r < count; ++r) parts.push_back({r, rows.rows(r, 1)});
  return parts;
}

std::vector<Part> numbered(const std::vector<Tensor>& tensors) {
  std::vector<Part> parts;
  for (std::size_t r = 0; r < tensors.size(); ++r) parts.push_back({static_cast<int>(r), tensors[r]});
  return parts;
}

/// The same data for every rank.
std::vector<Part> copies(const Tensor& data, int count) {
  std::vector<Part> parts;
  for (int r = 0; r < count; ++r) parts.push_back({r, data});
  return parts;
}

Tensor bytes_of(const std::string& text) {
  return Tensor::of<std::uint8_t>({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()},
                                  {static_cast<std::int64_t>(text.size())});
}

std::string text_of(const Tensor& bytes) {
  return {reinterpret_cast<const char*>(bytes.raw()), bytes.bytes()};
}

bool is_idle(const std::shared_ptr<Window>& window) {
  return window.use_count() == 1;
}

/// In front of a window's piece lies a signal to send, then one to receive from each rank of the run.
constexpr std::size_t kSignal = 16;
std::size_t signal_bytes(const Transport& transport) {
  return (kSignal * (static_cast<std::size_t>(transport.size()) + 1) + 255) / 256 * 256;
}

}  // namespace

void Transport::copy(Tensor to, const Tensor& from) {
  if (from.bytes() && from.raw() != to.raw()) std::memcpy(to.raw(), from.raw(), from.bytes());
}

std::shared_ptr<Window> Transport::open_window(std::size_t bytes) {
  for (const std::shared_ptr<Window>& window : windows_)
    if (is_idle(window) && window->bytes() >= bytes) return window;
  close_idle_windows();
  std::shared_ptr<Window> window = make_window(bytes);
  if (window) windows_.push_back(window);
  return window;
}

std::shared_ptr<Window> Transport::make_window(std::size_t) {
  return nullptr;
}

void Transport::close_idle_windows() {
  for (const std::shared_ptr<Window>& window : windows_)
    if (is_idle(window)) window->close();
  std::erase_if(windows_, is_idle);
}

void Transport::close_windows() {
  for (const std::shared_ptr<Window>& window : windows_) window->close();
  windows_.clear();
}

void Transport::count_written(const std::string& what, std::int64_t sent, std::int64_t received) {
  traffic_[what].bytes_sent += sent;
  traffic_[what].bytes_received += received;
}

void Transport::count(const std::string& what, const std::vector<Part>& send,
                      const std::vector<Part>& receive) {
  Traffic& t = traffic_[what];
  ++t.calls;
  for (const Part& p : send) t.bytes_sent += static_cast<std::int64_t>(p.data.bytes());
  for (const Part& p : receive) t.bytes_received += static_cast<std::int64_t>(p.data.bytes());
}

Group::Group() : transport_(std::make_shared<SoloTransport>()), name_("solo"), members_{0} {}

Group::Group(std::shared_ptr<Transport> transport, std::string name)
    : transport_(std::move(transport)), name_(std::move(name)), rank_(transport_->rank()) {
  for (int r = 0; r < transport_->size(); ++r) members_.push_back(r);
}

Group Group::subgroup(const std::vector<int>& ranks, std::string name) const {
  Group group(*this);
  group.name_ = std::move(name);
  group.members_.clear();
  group.rank_ = -1;
  for (const int r : ranks) {
    if (r == rank_) group.rank_ = group.size();
    group.members_.push_back(world_rank(r));
  }
  require(group.rank_ >= 0, "group {}: rank {} makes a group without itself", group.name_, rank_);
  return group;
}

std::unique_ptr<Exchange> Group::start_exchange(std::vector<Part> send, std::vector<Part> receive,
                                                std::string_view what) const {
  std::vector<Tensor> own_send, own_receive;
  const auto foreign = [&](std::vector<Part>& parts, std::vector<Tensor>& own) {
    std::vector<Part> others;
    for (Part& p : parts) {
      require(p.rank >= 0 && p.rank < size(), "{} of {}: there is no rank {}", what, name_, p.rank);
      if (!p.data.defined() || p.data.bytes() == 0) continue;
      require(p.data.contiguous(), "{} of {}: a part {} with a row pitch", what, name_,
              to_string(p.data.shape()));
      if (p.rank == rank_)
        own.push_back(std::move(p.data));
      else
        others.push_back({world_rank(p.rank), std::move(p.data)});
    }
    parts = std::move(others);
  };
  foreign(send, own_send);
  foreign(receive, own_receive);
  require(own_send.size() == own_receive.size(), "{} of {}: {} parts sent to oneself, {} expected", what,
          name_, own_send.size(), own_receive.size());
  for (std::size_t i = 0; i < own_send.size(); ++i) {
    require(own_send[i].dtype() == own_receive[i].dtype() && own_send[i].numel() == own_receive[i].numel(),
            "{} of {}: from {} to {}", what, name_, to_string(own_send[i].shape()),
            to_string(own_receive[i].shape()));
    transport_->copy(own_receive[i], own_send[i]);
  }
  if (send.empty() && receive.empty()) return std::make_unique<Done>();
  return transport_->start(std::move(send), std::move(receive), fmt::format("{} of {}", what, name_));
}

void Group::exchange(std::vector<Part> send, std::vector<Part> receive, std::string_view what) const {
  start_exchange(std::move(send), std::move(receive), what)->wait();
}

std::shared_ptr<Window> Group::open_window(std::size_t bytes) const {
  if (transport_->size() == 1) return nullptr;
  const std::shared_ptr<Window> window = transport_->open_window(signal_bytes(*transport_) + bytes);
  if (window) start_arrival(window, 0, 0, "windows")->wait();
  return window;
}

std::byte* Group::on(const Window& window, int rank) const {
  return window.on(world_rank(rank)) + signal_bytes(*transport_);
}

std::unique_ptr<Exchange> Group::start_arrival(const std::shared_ptr<Window>& window, std::int64_t sent,
                                               std::int64_t received, std::string_view what) const {
  std::vector<Part> send, receive;
  const auto signal = [&](int slot) {
    std::byte* const at = window->on(transport_->rank()) + kSignal * static_cast<std::size_t>(slot);
    return Tensor::view(at, DType::u8, {kSignal}, window, window->device());
  };
  for (const int r : members_) {
    if (r == transport_->rank()) continue;
    send.push_back({r, signal(0)});
    receive.push_back({r, signal(1 + r)});
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);  // what the host wrote goes before its signal
  const std::string named = fmt::format("{} of {}", what, name_);
  transport_->count_written(named, sent, received);
  if (send.empty()) return std::make_unique<Done>();
  return transport_->start(std::move(send), std::move(receive), named);
}

void Group::all_to_all(const Tensor& send, Tensor receive) const {
  require(send.numel() == receive.numel() && send.dtype() == receive.dtype(),
          "all-to-all of {}: from {} to {}", name_, to_string(send.shape()), to_string(receive.shape()));
  exchange(blocks(send, size(), "all-to-all"), blocks(receive, size(), "all-to-all"), "all-to-all");
}

std::unique_ptr<Exchange> Group::start_all_to_all(const std::vector<Tensor>& send,
                                                  const std::vector<Tensor>& receive) const {
  require(static_cast<int>(send.size()) == size() && static_cast<int>(receive.size()) == size(),
          "all-to-all of {}: {} parts to send and {} to receive for {} ranks", name_, send.size(),
          receive.size(), size());
  return start_exchange(numbered(send), numbered(receive), "all-to-all");
}

void Group::all_gather(const Tensor& send, Tensor receive) const {
  require(send.numel() * size() == receive.numel() && send.dtype() == receive.dtype(),
          "all-gather of {}: from {} to {}", name_, to_string(send.shape()), to_string(receive.shape()));
  exchange(copies(send, size()), blocks(receive, size(), "all-gather"), "all-gather");
}

void Group::all_gather(const Tensor& send, const std::vector<Tensor>& receive) const {
  require(static_cast<int>(receive.size()) == size(), "all-gather of {}: {} parts for {} ranks", name_,
          receive.size(), size());
  exchange(copies(send, size()), numbered(receive), "all-gather");
}

void Group::broadcast(Tensor tensor, int root) const {
  require(root >= 0 && root < size(), "broadcast of {}: there is no rank {}", name_, root);
  if (rank_ != root) return exchange({}, {{root, tensor}}, "broadcast");
  std::vector<Part> parts = copies(tensor, size());
  std::erase_if(parts, [&](const Part& p) { return p.rank == root; });
  exchange(std::move(parts), {}, "broadcast");
}

std::vector<std::string> Group::gather_texts(const std::string& text, double deadline_seconds) const {
  const std::int64_t own = static_cast<std::int64_t>(text.size());
  const Tensor lengths = Tensor::empty(DType::i64, {size()});
  start_exchange(copies(Tensor::of<std::int64_t>({&own, 1}, {1}), size()), blocks(lengths, size(), "texts"),
                 "texts")
      ->wait(deadline_seconds);
  std::vector<Tensor> received;
  for (const std::int64_t length : lengths.values<std::int64_t>())
    received.push_back(Tensor::empty(DType::u8, {length}));
  all_gather(bytes_of(text), received);
  std::vector<std::string> texts;
  for (const Tensor& t : received) texts.push_back(text_of(t));
  return texts;
}

std::string Group::broadcast(std::string text, int root, double deadline_seconds) const {
  const std::int64_t own = static_cast<std::int64_t>(text.size());
  const Tensor length = Tensor::of<std::int64_t>({&own, 1}, {1});
  if (rank_ == root)
    broadcast(length, root);
  else
    start_exchange({}, {{root, length}}, "broadcast")->wait(deadline_seconds);
  const Tensor bytes =
      rank_ == root ? bytes_of(text) : Tensor::empty(DType::u8, {length.values<std::int64_t>()[0]});
  broadcast(bytes, root);
  return text_of(bytes);
}

void Group::all_signal(double deadline_seconds) const {
  const std::uint8_t own = 1;
  const Tensor all = Tensor::zeros(DType::u8, {size()});
  start_exchange(copies(Tensor::of<std::uint8_t>({&own, 1}, {1}), size()), blocks(all, size(), "barrier"),
                 "barrier")
      ->wait(deadline_seconds);
}

Share share_of(std::int64_t total, int size, int rank) {
  const std::int64_t each = total / size, more = total % size;
  return {rank * each + std::min<std::int64_t>(rank, more), each + (rank < more ? 1 : 0)};
}

}  // namespace magi
