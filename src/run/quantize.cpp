// SPDX-License-Identifier: Apache-2.0
#include "run/quantize.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <set>

#include "core/log.h"
#include "io/atomic_file.h"
#include "io/finite.h"
#include "io/mapped_file.h"
#include "io/native_manifest.h"

namespace magi {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPieceBytes = std::size_t{64} << 20;  ///< of source data in memory at a time
constexpr std::int64_t kMegabyte = 1000000;

/// One process works on a directory.
class DirectoryLock {
 public:
  explicit DirectoryLock(const fs::path& directory)
      : fd_(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    require(fd_ >= 0, "{}: cannot open: {}", directory.string(), std::strerror(errno));
    const bool locked = ::flock(fd_, LOCK_EX | LOCK_NB) == 0;
    if (!locked) ::close(fd_);
    require(locked, "{}: another process is writing this root", directory.string());
  }
  ~DirectoryLock() { ::close(fd_); }
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  int fd_;
};

/// Writes a file of planned tensors.
class FileMaker {
 public:
  FileMaker(const PlannedFile& file, const fs::path& target, const std::function<void(std::size_t)>& on_bytes)
      : file_(file), on_bytes_(on_bytes), writer_(target, entries(file), {{"format", "magi2-native"}}) {}

  NativeFile make() {
    for (const PlannedTensor& tensor : file_.tensors) {
      switch (tensor.kind) {
        case PlannedTensor::Kind::numbers:
          write_numbers(tensor);
          break;
        case PlannedTensor::Kind::experts:
          write_experts(tensor);
          break;
        case PlannedTensor::Kind::matrix:
          write(matrix(tensor.source).packed);
          break;
        case PlannedTensor::Kind::matrix_scale:
          write(matrix(tensor.source).matrix_scale);
          break;
      }
      release_mapped_pages();
    }
    NativeFile made = writer_.commit();
    if (error_.squared_norm > 0) made.error_rms = fmt::format("{:.5f}", error_.relative_rms());
    return made;
  }

 private:
  static std::vector<TensorEntry> entries(const PlannedFile& file) {
    std::vector<TensorEntry> list;
    for (const PlannedTensor& tensor : file.tensors) list.push_back(tensor.entry);
    return list;
  }

  void write(const Tensor& tensor) { writer_.write(tensor.raw(), tensor.bytes()); }

  std::string where(const std::string& tensor) const {
    return file_.store->entries().at(tensor).file + ": " + printable(tensor);
  }

  void write_numbers(const PlannedTensor& tensor) {
    const Tensor all = file_.store->load(tensor.source);
    const Tensor flat = all.reshape({all.numel()});
    const auto piece = static_cast<std::int64_t>(kPieceBytes / size_of(all.dtype()));
    for (std::int64_t first = 0; first < flat.numel(); first += piece) {
      const Tensor numbers = flat.rows(first, std::min(piece, flat.numel() - first));
      require(first_non_finite(numbers) < 0, "{} holds NaN or infinity: the file is damaged",
              where(tensor.source));
      write(numbers.to(tensor.entry.dtype));
      release_mapped_pages();
      on_bytes_(numbers.bytes());
    }
  }

  void write_experts(const PlannedTensor& tensor) {
    const Tensor gate = file_.store->load(tensor.source + "W_gate"),
                 up = file_.store->load(tensor.source + "W_up"),
                 down = file_.store->load(tensor.source + "W_down");
    const std::int64_t count = gate.dim(0);
    const std::size_t one = tensor.source_bytes / static_cast<std::size_t>(count);
    const auto piece = std::clamp<std::int64_t>(
        static_cast<std::int64_t>(kPieceBytes / std::max<std::size_t>(one, 1)), 1, count);
    std::vector<std::byte> packed(static_cast<std::size_t>(piece * tensor.layout.expert_bytes()));
    for (std::int64_t first = 0; first < count; first += piece) {
      const std::int64_t n = std::min(piece, count - first);
      try {
        error_.add(
            quantize_experts(gate.rows(first, n), up.rows(first, n), down.rows(first, n), packed.data()));
      } catch (const Error& e) {
        fail("{}… from expert {} on: {}", where(tensor.source + "W_gate"), first, e.what());
      }
      writer_.write(packed.data(), static_cast<std::size_t>(n * tensor.layout.expert_bytes()));
      release_mapped_pages();
      on_bytes_(one * static_cast<std::size_t>(n));
    }
  }

  /// Quantised when first asked for; its scale may lie far behind it in the file.
  const Nvfp4Matrix& matrix(const std::string& source) {
    const auto [known, added] = matrices_.try_emplace(source);
    if (!added) return known->second;
    const Tensor numbers = file_.store->load(source);
    try {
      known->second = quantize_matrix(numbers, &error_);
    } catch (const Error& e) {
      fail("{}: {}", where(source), e.what());
    }
    release_mapped_pages();
    on_bytes_(numbers.bytes());
    return known->second;
  }

  const PlannedFile& file_;
  const std::function<void(std::size_t)>& on_bytes_;
  SafetensorsWriter writer_;
  std::map<std::string, Nvfp4Matrix> matrices_;
  QuantError error_;
};

std::string gigabytes(std::size_t bytes) {
  return bytes >= 100000000 ? fmt::format("{:.2f} GB", static_cast<double>(bytes) / 1e9)
                            : fmt::format("{:.2f} MB", static_cast<double>(bytes) / 1e6);
}

class Quantizer {
 public:
  Quantizer(const CheckpointRoot& root, fs::path out, const QuantizeFormat& format, Progress& progress)
      : plan_(plan_quantize(root, format)), out_(std::move(out)), progress_(progress) {
    manifest_.experts = format.pack_experts ? "nvfp4" : "bf16";
    manifest_.text_encoder = format.pack_text_encoder ? "nvfp4" : "bf16";
    manifest_.source = fs::canonical(root.path()).string();
  }

  void run() {
    make_directory();
    const DirectoryLock lock(out_);
    if (finished_before()) return;
    take_up_unfinished();
    remove_partial_files();
    require_room();
    for (const std::string& missing : plan_.left_out) log_info("{}: not there, left out", missing);
    save_unfinished();
    const auto start = std::chrono::steady_clock::now();
    progress_.stage("quantize, MB", static_cast<std::int64_t>(remaining_bytes()) / kMegabyte);
    try {
      for (const PlannedFile& file : plan_.files) make(file);
      for (const CarriedFile& file : plan_.carried) carry(file);
      for (const auto& [name, text] : plan_.texts) write_text(name, text);
    } catch (const Cancelled&) {
      log_info("{}: {} files are finished; the same command goes on from there", out_.string(),
               manifest_.files.size());
      throw;
    }
    manifest_.source.clear();
    write_atomically(out_ / kManifestName, manifest_.to_text());
    fs::remove(out_ / kUnfinishedManifestName);
    tell(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }

 private:
  bool done(const std::string& name) const { return manifest_.files.contains(name); }

  void make_directory() const {
    std::error_code error;
    const fs::path target = fs::weakly_canonical(out_);
    require(target != manifest_.source, "{}: the native root needs a directory of its own", out_.string());
    fs::create_directories(out_, error);
    require(fs::is_directory(out_), "{}: cannot be made: {}", out_.string(), error.message());
  }

  bool finished_before() const {
    const auto finished = read_manifest(out_);
    if (!finished) return false;
    require(finished->experts == manifest_.experts && finished->text_encoder == manifest_.text_encoder,
            "{}: a native root with {} experts and a {} text encoder is there already", out_.string(),
            finished->experts, finished->text_encoder);
    log_info("{}: complete already", out_.string());
    return true;
  }

  /// Keeps what an interrupted run has finished.
  void take_up_unfinished() {
    const fs::path file = out_ / kUnfinishedManifestName;
    if (!fs::exists(file)) {
      require(fs::is_empty(out_), "{}: neither empty nor an unfinished native root; choose another directory",
              out_.string());
      return;
    }
    const auto text = MappedFile::open(file);
    const NativeManifest before = NativeManifest::parse(
        {reinterpret_cast<const char*>(text->bytes().data()), text->bytes().size()}, file.string());
    require(before.source == manifest_.source && before.experts == manifest_.experts &&
                before.text_encoder == manifest_.text_encoder,
            "{}: begun from {} with {} experts and a {} text encoder; finish that, or remove it",
            out_.string(), before.source, before.experts, before.text_encoder);
    const std::set<std::string> planned = planned_names();
    for (const auto& [name, made] : before.files) {
      if (!planned.contains(name)) continue;
      std::error_code error;
      if (fs::file_size(out_ / name, error) == made.bytes && !error) manifest_.files.emplace(name, made);
    }
    log_info("{}: {} files are there already", out_.string(), manifest_.files.size());
  }

  std::set<std::string> planned_names() const {
    std::set<std::string> names;
    for (const PlannedFile& file : plan_.files) names.insert(file.name);
    for (const CarriedFile& file : plan_.carried) names.insert(file.name);
    for (const auto& [name, text] : plan_.texts) names.insert(name);
    return names;
  }

  /// What a killed process was writing.
  void remove_partial_files() const {
    std::vector<fs::path> partial;
    for (const auto& entry : fs::recursive_directory_iterator(out_))
      if (entry.path().filename().string().find(".partial-") != std::string::npos)
        partial.push_back(entry.path());
    for (const fs::path& path : partial) fs::remove(path);
  }

  std::size_t remaining_bytes() const {
    std::size_t bytes = 0;
    for (const PlannedFile& file : plan_.files) bytes += done(file.name) ? 0 : file.source_bytes();
    for (const CarriedFile& file : plan_.carried) bytes += done(file.name) ? 0 : file.bytes;
    return bytes;
  }

  void require_room() const {
    std::size_t needed = 0;
    for (const PlannedFile& file : plan_.files)
      needed += done(file.name) ? 0 : file.bytes() + SafetensorsWriter::kAlign;
    std::error_code error;
    const auto space = fs::space(out_, error);
    require(error || needed <= space.available, "{}: {} are needed, {} are free", out_.string(),
            gigabytes(needed), gigabytes(space.available));
  }

  void count(std::size_t bytes) {
    progress_.check();
    progress_.advance(static_cast<std::int64_t>(read_ += bytes) / kMegabyte);
  }

  void make(const PlannedFile& file) {
    if (done(file.name)) return;
    const fs::path target = place(file.name);
    const std::function<void(std::size_t)> on_bytes = [this](std::size_t bytes) { count(bytes); };
    const NativeFile made = FileMaker(file, target, on_bytes).make();
    read_back(target, made);
    add(file.name, made);
    if (!made.error_rms.empty())
      log_info("{}: {} to {}, four-bit weights are off by {:.2f} % RMS", file.name,
               gigabytes(file.source_bytes()), gigabytes(made.bytes), 100 * std::stod(made.error_rms));
  }

  /// A second name for the file where the file system can, else a copy.
  void carry(const CarriedFile& file) {
    if (done(file.name)) return;
    const fs::path target = place(file.name);
    std::error_code error;
    fs::remove(target, error);  // a link that an interrupted run had not noted yet
    fs::create_hard_link(fs::canonical(file.from), target, error);
    if (error) copy(file.from, target);
    add(file.name, describe_file(target));
    count(file.bytes);
  }

  void copy(const fs::path& from, const fs::path& to) const {
    const auto source = MappedFile::open(from);
    AtomicFile out(to);
    FileHash hash;
    for (std::size_t first = 0; first < source->bytes().size(); first += kPieceBytes) {
      const auto piece =
          source->bytes().subspan(first, std::min(kPieceBytes, source->bytes().size() - first));
      progress_.check();
      out.write(piece.data(), piece.size());
      hash.add(piece.data(), piece.size());
      release_mapped_pages();
    }
    out.commit();
    read_back(to, {source->bytes().size(), hash.hex()});
  }

  void write_text(const std::string& name, const std::string& text) {
    if (done(name)) return;
    const fs::path target = place(name);
    write_atomically(target, text);
    add(name, describe_file(target));
  }

  static void write_atomically(const fs::path& file, const std::string& text) {
    AtomicFile out(file);
    out.write(text.data(), text.size());
    out.commit();
  }

  fs::path place(const std::string& name) const {
    const fs::path target = out_ / name;
    fs::create_directories(target.parent_path());
    return target;
  }

  /// From the disk where the system lets go of its copy.
  static void read_back(const fs::path& file, const NativeFile& written) {
    if (const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC); fd >= 0) {
      ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
      ::close(fd);
    }
    const NativeFile found = describe_file(file);
    require(found.bytes == written.bytes && found.xxh3 == written.xxh3,
            "{}: reads back other bytes than were written: the disk or the memory is faulty", file.string());
  }

  void add(const std::string& name, const NativeFile& made) {
    manifest_.files[name] = made;
    save_unfinished();
  }

  void save_unfinished() const { write_atomically(out_ / kUnfinishedManifestName, manifest_.to_text()); }

  void tell(double seconds) const {
    std::size_t bytes = 0;
    for (const auto& [name, file] : manifest_.files) bytes += file.bytes;
    log_info("{}: {} files, {}, each read back; {} read in {:.0f} s, {:.2f} GB/s", out_.string(),
             manifest_.files.size(), gigabytes(bytes), gigabytes(read_), seconds,
             static_cast<double>(read_) / 1e9 / std::max(seconds, 1e-9));
  }

  QuantizePlan plan_;
  fs::path out_;
  Progress& progress_;
  NativeManifest manifest_;
  std::size_t read_ = 0;
};

}  // namespace

void quantize(const CheckpointRoot& root, const fs::path& out, const QuantizeFormat& format,
              Progress& progress) {
  try {
    Quantizer(root, out, format, progress).run();
  } catch (const fs::filesystem_error& e) {
    fail("{}: {}", out.string(), e.code().message());
  }
}

}  // namespace magi
