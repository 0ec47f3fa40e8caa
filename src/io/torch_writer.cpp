// SPDX-License-Identifier: Apache-2.0
#include "io/torch_writer.h"

#include <array>
#include <cstdint>
#include <limits>

#include "io/atomic_file.h"

namespace magi {
namespace {

constexpr std::size_t kDataAlignment = 64;

/// Little-endian bytes.
class Bytes {
 public:
  Bytes& u8(std::uint8_t v) { return put(v, 1); }
  Bytes& u16(std::uint16_t v) { return put(v, 2); }
  Bytes& u32(std::uint32_t v) { return put(v, 4); }
  Bytes& text(std::string_view v) {
    bytes_.append(v);
    return *this;
  }
  const std::string& str() const { return bytes_; }

 private:
  Bytes& put(std::uint32_t v, int count) {
    for (int i = 0; i < count; ++i) bytes_.push_back(static_cast<char>(v >> (8 * i)));
    return *this;
  }
  std::string bytes_;
};

std::uint32_t crc32(const void* data, std::size_t size) {
  static const std::array<std::uint32_t, 256> table = [] {
    std::array<std::uint32_t, 256> t{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t c = i;
      for (int k = 0; k < 8; ++k) c = (c & 1) ? 0xedb88320u ^ (c >> 1) : c >> 1;
      t[i] = c;
    }
    return t;
  }();
  std::uint32_t crc = ~0u;
  for (std::size_t i = 0; i < size; ++i)
    crc = table[(crc ^ static_cast<const std::uint8_t*>(data)[i]) & 255] ^ (crc >> 8);
  return ~crc;
}

/// The pickle of the state dict: opcodes of protocol 2, as torch.save writes them.
class StateDictPickle {
 public:
  StateDictPickle() { out_.u8(0x80).u8(2); }
  void begin_dict() { out_.text("}("); }  // EMPTY_DICT MARK
  void end_dict() { out_.text("u"); }     // SETITEMS
  void key(const std::string& name) { unicode(name); }
  void tensor(const Tensor& t, std::size_t index) {
    out_.text("ctorch._utils\n_rebuild_tensor_v2\n((");  // GLOBAL MARK MARK
    unicode("storage");
    out_.text("ctorch\nFloatStorage\n");
    unicode(std::to_string(index));
    unicode("cpu");
    integer(t.numel());
    out_.text("tQ");  // TUPLE BINPERSID
    integer(0);
    tuple(t.shape());
    Shape strides(t.shape().size(), 1);
    for (std::size_t i = strides.size(); i-- > 1;) strides[i - 1] = strides[i] * t.shape()[i];
    tuple(strides);
    out_.u8(0x89);                                 // NEWFALSE
    out_.text("ccollections\nOrderedDict\n)RtR");  // EMPTY_TUPLE REDUCE TUPLE REDUCE
  }
  std::string finish() {
    out_.text(".");
    return out_.str();
  }

 private:
  void unicode(const std::string& s) { out_.text("X").u32(static_cast<std::uint32_t>(s.size())).text(s); }
  void integer(std::int64_t v) {
    require(v >= 0 && v <= std::numeric_limits<std::int32_t>::max(),
            "a tensor of {} elements is too large to write", v);
    out_.text("J").u32(static_cast<std::uint32_t>(v));
  }
  void tuple(const Shape& values) {
    out_.text("(");
    for (std::int64_t v : values) integer(v);
    out_.text("t");
  }
  Bytes out_;
};

/// A zip of stored entries, data aligned as PyTorch aligns it.
class StoredZip {
 public:
  explicit StoredZip(AtomicFile& file) : file_(file) {}

  void add(const std::string& name, const void* data, std::size_t size) {
    require(size < 0xffffffffu && offset_ < 0xffffffffu - size, "a checkpoint over 4 GiB cannot be written");
    const std::size_t header = 30 + name.size();
    const std::size_t padding = (kDataAlignment - (offset_ + header + 4) % kDataAlignment) % kDataAlignment;
    Bytes common;  // fields that the local and the central header share
    common.u16(0).u16(0).u16(0).u16(0).u32(crc32(data, size)).u32(static_cast<std::uint32_t>(size));
    common.u32(static_cast<std::uint32_t>(size)).u16(static_cast<std::uint16_t>(name.size()));
    Bytes local;
    local.u32(0x04034b50).u16(20).text(common.str()).u16(static_cast<std::uint16_t>(4 + padding)).text(name);
    local.text("FB").u16(static_cast<std::uint16_t>(padding)).text(std::string(padding, 'Z'));
    central_.u32(0x02014b50).u16(20).u16(20).text(common.str()).u16(0).u16(0).u16(0).u16(0).u32(0);
    central_.u32(static_cast<std::uint32_t>(offset_)).text(name);
    ++entries_;
    write(local.str().data(), local.str().size());
    write(data, size);
  }

  void finish() {
    const std::size_t start = offset_;
    write(central_.str().data(), central_.str().size());
    Bytes end;
    end.u32(0x06054b50).u16(0).u16(0).u16(entries_).u16(entries_);
    end.u32(static_cast<std::uint32_t>(offset_ - start)).u32(static_cast<std::uint32_t>(start)).u16(0);
    write(end.str().data(), end.str().size());
  }

 private:
  void write(const void* data, std::size_t size) {
    file_.write(data, size);
    offset_ += size;
  }
  AtomicFile& file_;
  Bytes central_;
  std::size_t offset_ = 0;
  std::uint16_t entries_ = 0;
};

}  // namespace

void write_torch_checkpoint(const std::filesystem::path& path,
                            const std::vector<std::pair<std::string, Tensor>>& tensors,
                            const std::string& wrapper) {
  StateDictPickle pickle;
  if (!wrapper.empty()) {
    pickle.begin_dict();
    pickle.key(wrapper);
  }
  pickle.begin_dict();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    require(tensors[i].second.dtype() == DType::f32 && tensors[i].second.contiguous(),
            "{}: only contiguous f32 is written", tensors[i].first);
    pickle.key(tensors[i].first);
    pickle.tensor(tensors[i].second, i);
  }
  pickle.end_dict();
  if (!wrapper.empty()) pickle.end_dict();

  AtomicFile file(path);
  StoredZip zip(file);
  const std::string folder = path.stem().string() + "/";
  const std::string program = pickle.finish();
  zip.add(folder + "data.pkl", program.data(), program.size());
  for (std::size_t i = 0; i < tensors.size(); ++i)
    zip.add(folder + "data/" + std::to_string(i), tensors[i].second.raw(), tensors[i].second.bytes());
  zip.add(folder + "version", "3\n", 2);
  zip.finish();
  file.commit();
}

}  // namespace magi
