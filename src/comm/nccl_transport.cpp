// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>

#include "comm/nccl.h"
#include "comm/nccl_window.h"

namespace magi {
namespace {

/// Measured between two H200: messages of 180 MB at 338 GB/s, at 292 with what NCCL would choose. They take
/// multiprocessors that have nothing else to do.
constexpr int kCtas = 64;

void check_cuda(cudaError_t status, const char* what) {
  require(status == cudaSuccess, "ranks: {}: {}", what, cudaGetErrorString(status));
}

void check_nccl(ncclResult_t status, const char* what) {
  require(status == ncclSuccess, "NCCL: {}: {} ({})", what, ncclGetErrorString(status),
          ncclGetLastError(nullptr));
}

std::shared_ptr<CUevent_st> make_event() {
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreate(&event), "making an event");
  return {event, cudaEventDestroy};
}
using Event = std::shared_ptr<CUevent_st>;

/// An exchange's marks: on the stream of exchanges its begin and end; on the computing stream the begin and
/// end of waiting for it.
struct Marks {
  std::string what;
  Event begin, end, wait_begin, wait_end;
  bool waited = false;
  bool begun = false;  ///< seen
  Deadline begun_at{};
};

class NcclTransport final : public Transport {
 public:
  NcclTransport(const World& world, Device device, cudaStream_t compute)
      : rank_(world.rank()),
        size_(world.size()),
        device_(device),
        compute_(compute),
        monitor_(world.monitor()) {
    check_cuda(cudaSetDevice(device.index), "choosing the CUDA device");
    // Multicast serves collectives that sum or copy, of which there are none here, and costs memory.
    ::setenv("NCCL_NVLS_ENABLE", "0", 0);
    ncclUniqueId id{};
    if (rank_ == 0) check_nccl(ncclGetUniqueId(&id), "starting");
    const std::string text = world.host().broadcast(std::string(id.internal, sizeof id.internal), 0);
    require(text.size() == sizeof id.internal, "NCCL: rank 0 has another version");
    std::memcpy(id.internal, text.data(), sizeof id.internal);
    world.set_stage("starting NCCL");
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.minCTAs = config.maxCTAs = kCtas;
    check_nccl(ncclCommInitRankConfig(&communicator_, size_, id, rank_, &config), "connecting the GPUs");
    int least = 0, greatest = 0;
    check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "reading priorities");
    // An exchange takes few multiprocessors for a short time: it goes first.
    check_cuda(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest), "creating a stream");
    monitor_->watch([this] { return what_is_late(); });
  }

  ~NcclTransport() override {
    monitor_->watch({});
    // An orderly end waits for the other ranks'; where an error ends this one, they may be elsewhere.
    if (failed_ || std::uncaught_exceptions() > 0) {
      ncclCommAbort(communicator_);
    } else {
      try {
        close_windows();
      } catch (const Error&) {  // a device that failed: what it said first is on its way
      }
      ncclCommDestroy(communicator_);
    }
    cudaStreamDestroy(stream_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::unique_ptr<Exchange> start(std::vector<Part> send, std::vector<Part> receive,
                                  const std::string& what) override;

  void copy(Tensor to, const Tensor& from) override {
    if (from.bytes() && from.raw() != to.raw())
      check_cuda(cudaMemcpyAsync(to.raw(), from.raw(), from.bytes(), cudaMemcpyDeviceToDevice, compute_),
                 "copying");
  }

  std::map<std::string, Traffic> traffic() override {
    const std::lock_guard lock(mutex_);
    harvest();
    return traffic_;
  }

  void reset_traffic() override {
    const std::lock_guard lock(mutex_);
    harvest();
    traffic_.clear();
  }

  void count_written(const std::string& what, std::int64_t sent, std::int64_t received) override {
    const std::lock_guard lock(mutex_);
    Transport::count_written(what, sent, received);
  }

  /// The computing stream goes on when the exchange is over.
  void wait(const std::shared_ptr<Marks>& marks) {
    check_cuda(cudaEventRecord(marks->wait_begin.get(), compute_), "recording an event");
    check_cuda(cudaStreamWaitEvent(compute_, marks->end.get()), "waiting for an exchange");
    check_cuda(cudaEventRecord(marks->wait_end.get(), compute_), "recording an event");
    const std::lock_guard lock(mutex_);
    marks->waited = true;
  }

 private:
  std::shared_ptr<Window> make_window(std::size_t bytes) override {
    monitor_->check();
    check_cuda(cudaSetDevice(device_.index), "choosing the CUDA device");
    return make_nccl_window(communicator_, size_, device_, bytes);
  }
  static bool is_over(const Event& event) { return cudaEventQuery(event.get()) == cudaSuccess; }

  std::shared_ptr<Marks> new_marks(const std::string& what);
  /// Adds up the exchanges that are over.
  void harvest();
  /// Of the oldest exchange under way, what is wrong with it, if anything. From the monitor's thread.
  std::string what_is_late();

  int rank_, size_;
  Device device_;
  cudaStream_t compute_, stream_ = nullptr;
  Monitor* monitor_;
  ncclComm_t communicator_ = nullptr;
  std::mutex mutex_;
  std::deque<std::shared_ptr<Marks>> under_way_;
  std::vector<std::shared_ptr<Marks>> free_;
  std::atomic<bool> failed_{false};
};

class NcclExchange final : public Exchange {
 public:
  NcclExchange(NcclTransport& transport, std::shared_ptr<Marks> marks, std::vector<Part> send,
               std::vector<Part> receive)
      : transport_(transport),
        marks_(std::move(marks)),
        send_(std::move(send)),
        receive_(std::move(receive)) {}
  // Even where nobody waited, later work must not overwrite what is still on its way.
  ~NcclExchange() override {
    if (marks_) try {
        wait(0);
      } catch (const Error&) {
      }
  }
  void wait(double) override {
    if (marks_) transport_.wait(marks_);
    marks_.reset();
    send_.clear();
    receive_.clear();
  }

 private:
  NcclTransport& transport_;
  std::shared_ptr<Marks> marks_;
  std::vector<Part> send_, receive_;
};

std::unique_ptr<Exchange> NcclTransport::start(std::vector<Part> send, std::vector<Part> receive,
                                               const std::string& what) {
  monitor_->check();
  check_cuda(cudaSetDevice(device_.index), "choosing the CUDA device");
  const std::shared_ptr<Marks> marks = new_marks(what);
  {
    const std::lock_guard lock(mutex_);
    count(what, send, receive);
    harvest();
    under_way_.push_back(marks);
  }
  check_cuda(cudaEventRecord(marks->wait_end.get(), compute_), "recording an event");  // made again by wait()
  check_cuda(cudaStreamWaitEvent(stream_, marks->wait_end.get()), "waiting for what is sent");
  check_cuda(cudaEventRecord(marks->begin.get(), stream_), "recording an event");
  check_nccl(ncclGroupStart(), "an exchange");
  for (const Part& p : send)
    check_nccl(ncclSend(p.data.raw(), p.data.bytes(), ncclUint8, p.rank, communicator_, stream_), "sending");
  for (Part& p : receive)
    check_nccl(ncclRecv(p.data.raw(), p.data.bytes(), ncclUint8, p.rank, communicator_, stream_),
               "receiving");
  check_nccl(ncclGroupEnd(), "an exchange");
  check_cuda(cudaEventRecord(marks->end.get(), stream_), "recording an event");
  return std::make_unique<NcclExchange>(*this, marks, std::move(send), std::move(receive));
}

std::shared_ptr<Marks> NcclTransport::new_marks(const std::string& what) {
  std::shared_ptr<Marks> marks;
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      marks = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (!marks)
    marks = std::make_shared<Marks>(Marks{what, make_event(), make_event(), make_event(), make_event()});
  marks->what = what;
  marks->waited = marks->begun = false;
  return marks;
}

void NcclTransport::harvest() {
  const auto seconds = [](const Event& from, const Event& to) {
    float milliseconds = 0;
    return cudaEventElapsedTime(&milliseconds, from.get(), to.get()) == cudaSuccess ? milliseconds / 1e3
                                                                                    : 0.0;
  };
  while (!under_way_.empty()) {
    const std::shared_ptr<Marks>& m = under_way_.front();
    if (!m->waited || !is_over(m->end) || !is_over(m->wait_end)) return;
    Traffic& t = traffic_[m->what];
    t.seconds += seconds(m->begin, m->end);
    const double waited = seconds(m->wait_begin, m->wait_end);
    t.exposed_seconds += waited;
    monitor_->add_waiting(waited);
    free_.push_back(m);
    under_way_.pop_front();
  }
}

std::string NcclTransport::what_is_late() {
  const std::lock_guard lock(mutex_);
  harvest();
  ncclResult_t state = ncclSuccess;
  if (ncclCommGetAsyncError(communicator_, &state) == ncclSuccess && state != ncclSuccess &&
      state != ncclInProgress) {
    failed_ = true;
    return fmt::format("NCCL: {}", ncclGetErrorString(state));
  }
  for (const std::shared_ptr<Marks>& m : under_way_) {
    if (is_over(m->end)) continue;
    if (!m->begun && is_over(m->begin)) {
      m->begun = true;
      m->begun_at = std::chrono::steady_clock::now();
    }
    const double limit = rank_deadline_seconds();
    if (!m->begun || std::chrono::steady_clock::now() < m->begun_at + std::chrono::duration<double>(limit))
      return "";
    failed_ = true;
    return fmt::format("{} has not finished for {:.0f} s: another rank does not take part", m->what, limit);
  }
  return "";
}

}  // namespace

bool nccl_available() {
  return true;
}

std::shared_ptr<Transport> make_nccl_transport(const World& world, Device device, void* compute_stream) {
  const RankName own = RankName::own(world.rank());
  const std::vector<std::string> places =
      world.host().gather_texts(fmt::format("{} cuda:{}", own.host, device.index));
  for (std::size_t a = 0; a < places.size(); ++a)
    for (std::size_t b = a + 1; b < places.size(); ++b)
      require(places[a] != places[b], "ranks {} and {} both compute on {}: each rank needs a GPU of its own",
              a, b, places[a]);
  return std::make_shared<NcclTransport>(world, device, static_cast<cudaStream_t>(compute_stream));
}

}  // namespace magi
