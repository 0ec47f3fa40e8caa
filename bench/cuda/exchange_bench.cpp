// SPDX-License-Identifier: Apache-2.0
// The exchanges of a 540p step between the GPUs of one host, alone: NCCL's choices beside each other. Started
// once a rank, like step_bench: RANK=… WORLD_SIZE=… MASTER_ADDR=127.0.0.1 exchange_bench
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "comm/world.h"
#include "core/error.h"

namespace {

using namespace magi;

constexpr int kRounds = 15;

void check(cudaError_t status) {
  require(status == cudaSuccess, "CUDA: {}", cudaGetErrorString(status));
}
void check(ncclResult_t status) {
  require(status == ncclSuccess, "NCCL: {} ({})", ncclGetErrorString(status), ncclGetLastError(nullptr));
}

enum class Way { plain, registered, window, copy_engines };

struct Variant {
  const char* name;
  Way way;
  int ctas;  ///< 0: NCCL's choice
  int policy = NCCL_CONFIG_UNDEF_INT;
};

class Communicator {
 public:
  Communicator(const World& world, const Variant& variant) {
    ncclUniqueId id{};
    if (world.rank() == 0) check(ncclGetUniqueId(&id));
    const std::string text = world.host().broadcast(std::string(id.internal, sizeof id.internal), 0);
    std::memcpy(id.internal, text.data(), sizeof id.internal);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    if (variant.ctas > 0) config.minCTAs = variant.ctas, config.maxCTAs = variant.ctas;
    config.CTAPolicy = variant.policy;
    check(ncclCommInitRankConfig(&handle_, world.size(), id, world.rank(), &config));
  }
  ~Communicator() { ncclCommDestroy(handle_); }
  ncclComm_t get() const { return handle_; }

 private:
  ncclComm_t handle_ = nullptr;
};

/// Median seconds of an exchange of `bytes` with each other rank.
double time_exchange(const World& world, ncclComm_t comm, bool all_to_all, char* send, char* receive,
                     std::size_t bytes, cudaStream_t stream) {
  std::vector<cudaEvent_t> marks(kRounds + 1);
  for (cudaEvent_t& mark : marks) check(cudaEventCreate(&mark));
  world.host().barrier();
  check(cudaEventRecord(marks[0], stream));
  for (int i = 1; i <= kRounds; ++i) {
    if (all_to_all) {
      check(ncclAlltoAll(send, receive, bytes, ncclUint8, comm, stream));
    } else {
      check(ncclGroupStart());
      for (int r = 0; r < world.size(); ++r) {
        if (r == world.rank()) continue;
        const std::size_t at = static_cast<std::size_t>(r) * bytes;
        check(ncclSend(send + at, bytes, ncclUint8, r, comm, stream));
        check(ncclRecv(receive + at, bytes, ncclUint8, r, comm, stream));
      }
      check(ncclGroupEnd());
    }
    check(cudaEventRecord(marks[static_cast<std::size_t>(i)], stream));
  }
  check(cudaStreamSynchronize(stream));
  std::vector<double> seconds;
  for (int i = 2; i < kRounds; ++i) {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, marks[static_cast<std::size_t>(i)],
                               marks[static_cast<std::size_t>(i) + 1]));
    seconds.push_back(ms / 1e3);
  }
  for (cudaEvent_t& mark : marks) cudaEventDestroy(mark);
  std::nth_element(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2),
                   seconds.end());
  return seconds[seconds.size() / 2];
}

void run(const World& world, const Variant& v) {
  const Communicator comm(world, v);
  // qkv and gate of half the heads, attention's result, rows for the experts: of 57816 rows
  const std::vector<std::size_t> sizes{57816UL * 4624 * 2, 57816UL * 1536 * 2, 57816UL * 1536 * 2};
  const std::size_t all = static_cast<std::size_t>(world.size()) * sizes[0];
  char *send = nullptr, *receive = nullptr;
  const bool own_memory = v.way == Way::plain;
  if (own_memory) {
    check(cudaMalloc(&send, all));
    check(cudaMalloc(&receive, all));
  } else {
    check(ncclMemAlloc(reinterpret_cast<void**>(&send), all));
    check(ncclMemAlloc(reinterpret_cast<void**>(&receive), all));
  }
  check(cudaMemset(send, world.rank() + 1, all));
  void *send_handle = nullptr, *receive_handle = nullptr;
  ncclWindow_t send_window = nullptr, receive_window = nullptr;
  if (v.way == Way::registered) {
    check(ncclCommRegister(comm.get(), send, all, &send_handle));
    check(ncclCommRegister(comm.get(), receive, all, &receive_handle));
  } else if (v.way == Way::window || v.way == Way::copy_engines) {
    check(ncclCommWindowRegister(comm.get(), send, all, &send_window, NCCL_WIN_COLL_SYMMETRIC));
    check(ncclCommWindowRegister(comm.get(), receive, all, &receive_window, NCCL_WIN_COLL_SYMMETRIC));
  }
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  std::string line = fmt::format("{:<44}", v.name);
  for (const std::size_t bytes : sizes) {
    const double seconds =
        time_exchange(world, comm.get(), v.way == Way::copy_engines, send, receive, bytes, stream);
    line +=
        fmt::format("  {:>7.3f} ms {:>4.0f} GB/s", seconds * 1e3, static_cast<double>(bytes) / seconds / 1e9);
  }
  unsigned char first = 0;
  const int other = (world.rank() + 1) % world.size();
  check(cudaMemcpy(&first, receive + static_cast<std::size_t>(other) * sizes.back(), 1,
                   cudaMemcpyDeviceToHost));
  if (world.rank() == 0) fmt::print("{}  {}\n", line, first == other + 1 ? "ok" : "WRONG");
  std::fflush(stdout);
  cudaStreamDestroy(stream);
  if (send_handle)
    ncclCommDeregister(comm.get(), send_handle), ncclCommDeregister(comm.get(), receive_handle);
  if (send_window)
    ncclCommWindowDeregister(comm.get(), send_window), ncclCommWindowDeregister(comm.get(), receive_window);
  for (char* p : {send, receive})
    own_memory ? static_cast<void>(cudaFree(p)) : static_cast<void>(ncclMemFree(p));
}

}  // namespace

int main() {
  try {
    ::setenv("NCCL_NVLS_ENABLE", "0", 1);
    const std::shared_ptr<World> world = World::join();
    require(!world->alone(), "exchange_bench: start it once a rank");
    int version = 0;
    check(cudaSetDevice(world->local_rank()));
    check(ncclGetVersion(&version));
    if (world->rank() == 0)
      fmt::print("NCCL {}; to and from each other rank: qkv, attention, experts\n", version);
    for (const Variant& v :
         {Variant{"sends, as NCCL likes", Way::plain, 0},
          {"sends, 16 CTAs", Way::plain, 16},
          {"sends, 32 CTAs", Way::plain, 32},
          {"sends, 64 CTAs", Way::plain, 64},
          {"sends, registered", Way::registered, 0},
          {"sends, registered, 32 CTAs", Way::registered, 32},
          {"sends, windows", Way::window, 0},
          {"sends, windows, 32 CTAs", Way::window, 32},
          {"all-to-all, windows, zero CTAs", Way::copy_engines, 0, NCCL_CTA_POLICY_ZERO}}) {
      try {
        run(*world, v);
      } catch (const Error& e) {
        fmt::print("{}: rank {}: {}\n", v.name, world->rank(), e.what());
        if (!dynamic_cast<const RankLost*>(&e)) continue;
        throw;
      }
    }
    world->leave();
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "exchange_bench: %s\n", e.what());
    return 1;
  }
}
