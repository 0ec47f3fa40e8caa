// SPDX-License-Identifier: Apache-2.0
// What the fuzzers of the checkpoint layer do with their bytes, and the unit tests with the corpus: read
// everything that a loader would. Each returns or throws Error.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "io/config.h"
#include "io/finite.h"
#include "io/pickle.h"
#include "io/safetensors.h"
#include "io/torch_pickle.h"

namespace magi {

inline void load_everything(const TensorStore& store) {
  for (const auto& [name, info] : store.entries()) {
    if (!info.readable) continue;
    const Tensor tensor = store.load(name);
    require(tensor.bytes() == info.bytes, "{}: wrong size", name);
    const bool is_float = size_of(info.dtype) >= 2 && info.stored_as.find('F') != std::string::npos;
    if (is_float) first_non_finite(tensor);
  }
}

inline void read_safetensors(std::span<const std::byte> bytes) {
  load_everything(*safetensors_store(bytes, nullptr, "fuzz.safetensors"));
}

inline void read_torch_file(std::span<const std::byte> bytes) {
  load_everything(*torch_store(bytes, nullptr, "fuzz.pth"));
}

inline void read_pickle(std::span<const std::byte> bytes) {
  unpickle(bytes, "fuzz.pkl");
}

/// Asks for every key as every type.
inline void read_every_key(const ConfigNode& node) {
  const auto attempt = [](auto read) {
    try {
      read();
    } catch (const Error&) {
    }
  };
  for (const auto& item : node.json().items()) {
    const std::string& key = item.key();
    attempt([&] { node.integer(key, 1, 0, 10); });
    attempt([&] { node.number(key, std::nullopt, 0.0, 1.0); });
    attempt([&] { node.boolean(key, false); });
    attempt([&] { node.text(key, ""); });
    attempt([&] { node.integers(key, std::nullopt); });
    attempt([&] { node.texts(key, std::nullopt); });
    attempt([&] { read_every_key(node.node(key)); });
  }
}

inline void read_config(std::string_view text) {
  read_every_key(ConfigNode(parse_json(text, "fuzz.json"), "fuzz.json"));
}

}  // namespace magi
