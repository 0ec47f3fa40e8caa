// SPDX-License-Identifier: Apache-2.0
// TensorStore: named tensors of a checkpoint, whatever the file format. Listing costs nothing; data is read
// when asked for. All members may be called from several threads.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace magi {

struct TensorInfo {
  DType dtype = DType::f32;  ///< meaningful only when `readable`
  Shape shape;
  std::string file;       ///< the file that holds it, for messages
  std::string stored_as;  ///< the element type as the file spells it: "BF16", "F8_E4M3", …
  bool readable = true;   ///< false: an element type that this program lists but cannot load
  std::size_t bytes = 0;  ///< size in the file
};

class TensorStore {
 public:
  virtual ~TensorStore() = default;

  const std::map<std::string, TensorInfo>& entries() const { return entries_; }
  /// The path that was opened.
  const std::string& where() const { return where_; }
  bool has(const std::string& name) const { return entries_.contains(name); }
  /// The first time that data is asked for, `file` is compared with its root's manifest
  /// (verify_native_file).
  void verify_when_read(std::filesystem::path file) { unverified_ = std::move(file); }

  /// The tensor as stored. Where the format allows it, a view of the mapped file, kept alive by the tensor:
  /// READ-ONLY memory, clone() it to write. Throws Error when it is missing or of an element type that cannot
  /// be read.
  Tensor load(const std::string& name) const;
  /// load(), after checking presence, shape and a float element type, then that every value is finite. The
  /// result is still of the stored type. Errors name file, tensor, found and expected.
  virtual Tensor get(const std::string& name, const Shape& expected) const;

  /// Names that neither load() nor get() was asked for, without those that begin with one of
  /// `ignored_prefixes`: a loader reports them in one summary line.
  std::vector<std::string> unused(const std::vector<std::string>& ignored_prefixes = {}) const;

 protected:
  explicit TensorStore(std::string where) : where_(std::move(where)) {}
  /// The entry after checking presence, shape and a float element type.
  const TensorInfo& find(const std::string& name, const Shape& expected) const;
  /// Reads an entry that exists and is readable.
  virtual Tensor read(const std::string& name, const TensorInfo& info) const = 0;

  std::map<std::string, TensorInfo> entries_;

 private:
  const TensorInfo& find(const std::string& name) const;
  Tensor load_found(const std::string& name, const TensorInfo& info) const;

  std::string where_;
  std::filesystem::path unverified_;
  mutable std::once_flag verified_;
  mutable std::mutex mutex_;
  mutable std::set<std::string> asked_;
};

/// A store of tensors in memory; `where` stands in for the file name in messages.
std::shared_ptr<TensorStore> tensor_store_of(std::string where,
                                             std::vector<std::pair<std::string, Tensor>> tensors);

/// "BF16", "F32", …: the spelling of safetensors files and of messages about stored tensors.
std::string stored_name(DType dtype);

/// `text` fit for a one-line message: control characters and bytes outside ASCII escaped, long text cut.
std::string printable(std::string_view text);

}  // namespace magi
