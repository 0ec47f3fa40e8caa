// SPDX-License-Identifier: Apache-2.0
// Exchanges through rank 0: every rank sends it one message with all its parts, and gets one with those for
// it. For control where there is no MPI; the transfers happen in wait().
#include <cstring>

#include "comm/world.h"

namespace magi {
namespace {

using Messages =
    std::vector<std::vector<std::string>>;  ///< [from][to], parts joined, each with its length in front

void append(std::string& message, const void* data, std::size_t bytes) {
  const std::uint64_t length = bytes;
  message.append(reinterpret_cast<const char*>(&length), sizeof length);
  message.append(static_cast<const char*>(data), bytes);
}

/// Cuts the next part off a message's front.
std::string take(std::string_view& message) {
  std::uint64_t length = 0;
  require(message.size() >= sizeof length, "a message between ranks is cut off");
  std::memcpy(&length, message.data(), sizeof length);
  message.remove_prefix(sizeof length);
  require(message.size() >= length, "a message between ranks is cut off");
  std::string part(message.substr(0, length));
  message.remove_prefix(length);
  return part;
}

class ControlTransport final : public Transport {
 public:
  ControlTransport(int rank, int size, std::vector<Socket> links, std::shared_ptr<Monitor> monitor,
                   double deadline)
      : rank_(rank),
        size_(size),
        links_(std::move(links)),
        monitor_(std::move(monitor)),
        deadline_(deadline) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::unique_ptr<Exchange> start(std::vector<Part> send, std::vector<Part> receive,
                                  const std::string& what) override {
    count(what, send, receive);
    return std::make_unique<Round>(*this, std::move(send), std::move(receive), what);
  }

 private:
  class Round final : public Exchange {
   public:
    Round(ControlTransport& transport, std::vector<Part> send, std::vector<Part> receive, std::string what)
        : transport_(transport),
          send_(std::move(send)),
          receive_(std::move(receive)),
          what_(std::move(what)) {}

    void wait(double deadline_seconds) override {
      if (done_) return;
      done_ = true;
      std::vector<std::string> outgoing(static_cast<std::size_t>(transport_.size_));
      for (const Part& p : send_)
        append(outgoing[static_cast<std::size_t>(p.rank)], p.data.raw(), p.data.bytes());
      const double seconds = deadline_seconds > 0 ? deadline_seconds : transport_.deadline_;
      transport_.monitor_->set_collective(what_);
      const std::vector<std::string> incoming = transport_.trade(std::move(outgoing), what_, seconds);
      transport_.monitor_->set_collective("");
      std::vector<std::string_view> messages(incoming.begin(), incoming.end());
      for (Part& p : receive_) {
        const std::string part = take(messages[static_cast<std::size_t>(p.rank)]);
        require(part.size() == p.data.bytes(), "{}: rank {} sent {} bytes, {} were expected", what_, p.rank,
                part.size(), p.data.bytes());
        std::memcpy(p.data.raw(), part.data(), part.size());
      }
    }

   private:
    ControlTransport& transport_;
    std::vector<Part> send_, receive_;
    std::string what_;
    bool done_ = false;
  };

  /// What each rank sent to this one, by rank.
  std::vector<std::string> trade(std::vector<std::string> outgoing, const std::string& what, double seconds) {
    if (rank_ > 0) {
      std::string message;
      for (const std::string& m : outgoing) append(message, m.data(), m.size());
      links_[0].send_frame(message, deadline_in(seconds));
      return split(receive(0, what, seconds));
    }
    Messages all(static_cast<std::size_t>(size_));
    all[0] = std::move(outgoing);
    for (int r = 1; r < size_; ++r) all[static_cast<std::size_t>(r)] = split(receive(r, what, seconds));
    for (std::size_t r = 1; r < all.size(); ++r) {
      std::string message;
      for (const auto& from : all) append(message, from[r].data(), from[r].size());
      links_[r - 1].send_frame(message, deadline_in(seconds));
    }
    std::vector<std::string> own;
    for (auto& from : all) own.push_back(std::move(from[0]));
    return own;
  }

  std::vector<std::string> split(const std::string& message) const {
    std::string_view rest = message;
    std::vector<std::string> parts;
    for (int r = 0; r < size_; ++r) parts.push_back(take(rest));
    return parts;
  }

  /// Looks at the monitor four times a second while it waits.
  std::string receive(int rank, const std::string& what, double seconds) {
    Socket& link = links_[rank_ == 0 ? static_cast<std::size_t>(rank - 1) : 0];
    for (const Deadline end = deadline_in(seconds);;) {
      if (link.readable(0.25)) try {
          return link.receive_frame(deadline_in(seconds));
        } catch (const Error&) {  // the monitor will know why
          link.close();
        }
      monitor_->check();
      if (std::chrono::steady_clock::now() > end) monitor_->late(rank, what, seconds);
    }
  }

  int rank_, size_;
  std::vector<Socket> links_;
  std::shared_ptr<Monitor> monitor_;
  double deadline_;
};

}  // namespace

std::shared_ptr<Transport> make_control_transport(int rank, int size, std::vector<Socket> links,
                                                  std::shared_ptr<Monitor> monitor, double deadline_seconds) {
  return std::make_shared<ControlTransport>(rank, size, std::move(links), std::move(monitor),
                                            deadline_seconds);
}

}  // namespace magi
