// SPDX-License-Identifier: Apache-2.0
#include "run/saved_state.h"

#include <charconv>
#include <nlohmann/json.hpp>

#include "core/log.h"
#include "io/safetensors.h"
#include "run/sha256.h"

namespace magi {
namespace {

using Metadata = std::map<std::string, std::string>;
using Tensors = std::vector<std::pair<std::string, Tensor>>;

/// What the bits depend on besides the weights.
std::string fingerprint(const Request& request) {
  return sha256_of(request.to_metadata().dump());
}

void put(Tensors& tensors, Metadata& metadata, const std::string& name, const Tensor& latent,
         const UniPCState& solver) {
  tensors.emplace_back(name, latent);
  tensors.emplace_back(name + ".last_sample", solver.last_sample);
  tensors.emplace_back(name + ".x0", solver.x0);
  if (solver.previous_x0.defined()) tensors.emplace_back(name + ".previous_x0", solver.previous_x0);
  metadata[name + ".last_order"] = std::to_string(solver.last_order);
}

std::int64_t number(const Metadata& metadata, const std::string& key) {
  const auto found = metadata.find(key);
  std::int64_t value = 0;
  require(found != metadata.end() &&
              std::from_chars(found->second.data(), found->second.data() + found->second.size(), value).ec ==
                  std::errc(),
          "\"{}\" is missing", key);
  return value;
}

/// A tensor of its own: the file is replaced while the run goes on.
Tensor get(const TensorStore& store, const std::string& name, const Shape& shape) {
  const Tensor stored = store.get(name, shape);
  require(stored.dtype() == DType::f32, "{} is not F32", name);
  return stored.clone();
}

void get(const TensorStore& store, const Metadata& metadata, const std::string& name, Tensor& latent,
         UniPCState& solver) {
  const Shape shape = latent.shape();
  latent = get(store, name, shape);
  solver.step = number(metadata, "step");
  solver.last_order = number(metadata, name + ".last_order");
  solver.last_sample = get(store, name + ".last_sample", shape);
  solver.x0 = get(store, name + ".x0", shape);
  if (store.has(name + ".previous_x0")) solver.previous_x0 = get(store, name + ".previous_x0", shape);
}

}  // namespace

void keep_state(const Resume& resume, const Request& request, const SampleState& state) {
  Tensors tensors;
  Metadata metadata{{"request", fingerprint(request)}, {"step", std::to_string(state.step())}};
  put(tensors, metadata, "video", state.latents.video, state.video);
  put(tensors, metadata, "audio", state.latents.audio, state.audio);
  try {
    write_safetensors(resume.file, tensors, metadata);
  } catch (const Error& e) {
    log_warning("the run is not kept: {}", e.what());
  }
}

void take_up(const Resume& resume, const Request& request, SampleState& state) {
  if (!std::filesystem::exists(resume.file)) return;
  try {
    const Metadata metadata = safetensors_metadata(resume.file);
    const auto of = metadata.find("request");
    require(of != metadata.end() && of->second == fingerprint(request), "it is of another request");
    const auto store = open_safetensors(resume.file);
    SampleState kept = state;
    get(*store, metadata, "video", kept.latents.video, kept.video);
    get(*store, metadata, "audio", kept.latents.audio, kept.audio);
    require(kept.step() >= 1 && kept.step() <= request.steps, "it is at step {} of {}", kept.step(),
            request.steps);
    state = std::move(kept);
  } catch (const Error& e) {
    log_warning("{}: not taken up, the run starts again: {}", resume.file.string(), e.what());
  }
}

}  // namespace magi
