// SPDX-License-Identifier: Apache-2.0
// Python pickles, as far as PyTorch checkpoints need them. A pickle is a program for a stack machine that may
// call any function; this reader builds plain data and tensor descriptions and refuses everything else by
// name. It calls nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/tensor.h"

namespace magi {

/// A persistent id of PyTorch: elements of a record `data/KEY` of the archive.
struct PickledStorage {
  DType dtype = DType::f32;
  std::string key;
  std::int64_t numel = 0;
};

/// A view of a storage; its elements are known to lie inside. Offset and strides count elements.
struct PickledTensor {
  PickledStorage storage;
  std::int64_t offset = 0;
  Shape shape;
  Shape strides;
};

struct PickledValue;
using PickledRef = const PickledValue*;  ///< owned by the Pickle; never null in finished values

struct PickledBytes {
  std::string bytes;
};
struct PickledGlobal {
  std::string name;  ///< "collections.OrderedDict"; only ever one of the few that are allowed
};
struct PickledTuple {
  std::vector<PickledRef> items;
};
struct PickledList {
  std::vector<PickledRef> items;
};
struct PickledDict {
  std::vector<std::pair<PickledRef, PickledRef>>
      items;  ///< in order of assignment; a later one replaces an earlier
};

struct PickledValue {
  std::variant<std::monostate /*None*/, bool, std::int64_t, double, std::string, PickledBytes, PickledTuple,
               PickledList, PickledDict, PickledGlobal, std::unique_ptr<PickledStorage>,
               std::unique_ptr<PickledTensor>>
      data;

  template <typename T>
  const T* as() const {
    return std::get_if<T>(&data);
  }
  const PickledTensor* tensor() const {
    const auto* held = as<std::unique_ptr<PickledTensor>>();
    return held ? held->get() : nullptr;
  }
};

/// A finished pickle: the root value and everything it refers to. Values may refer to each other in circles.
struct Pickle {
  std::deque<PickledValue> values;
  PickledRef root = nullptr;
};

/// Reads protocol 2 to 4. Allowed: None, bool, int (64 bits), float, str, bytes, tuple, list, dict,
/// OrderedDict (its attributes are dropped), torch.Size, tensors and parameters of the plain element types.
/// Throws Error `WHERE: refused: global os.system`, `WHERE: refused: opcode INST`, or what is wrong with a
/// damaged pickle; memory is bounded by the size of the input.
Pickle unpickle(std::span<const std::byte> bytes, const std::string& where);

}  // namespace magi
