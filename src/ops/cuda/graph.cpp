// SPDX-License-Identifier: Apache-2.0
// Work recorded as a CUDA graph.
#include "ops/cuda/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/devices.h"

namespace magi {
namespace {

using cuda::check_cuda;

class Graph final : public RecordedWork {
 public:
  Graph(cudaStream_t stream, cudaGraph_t graph) : stream_(stream) {
    const cudaError_t status = cudaGraphInstantiate(&graph_, graph, 0);
    cudaGraphDestroy(graph);
    check_cuda(status, "making a graph");
  }
  ~Graph() override { cudaGraphExecDestroy(graph_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void replay() override { check_cuda(cudaGraphLaunch(graph_, stream_), "running a graph"); }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace

std::unique_ptr<RecordedWork> record_cuda(Ops& ops, const std::function<void()>& work) {
  const auto* cuda_ops = dynamic_cast<CudaOps*>(&ops);
  require(cuda_ops, "only a CUDA backend's work can be recorded");
  const cudaStream_t stream = cuda_ops->stream();
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "recording");
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {
    cudaStreamEndCapture(stream, &graph);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();
    throw;
  }
  check_cuda(cudaStreamEndCapture(stream, &graph), "recording");
  return std::make_unique<Graph>(stream, graph);
}

}  // namespace magi
