// SPDX-License-Identifier: Apache-2.0
#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>

#include "core/error.h"

namespace magi {
namespace {

struct LiveFiles {
  std::mutex mutex;
  std::map<void*, std::size_t> ranges;
};

LiveFiles& live_files() {
  static LiveFiles* const files = new LiveFiles;  // never destroyed: files may outlive static objects
  return *files;
}

class Descriptor {
 public:
  explicit Descriptor(const std::filesystem::path& path)
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    require(fd_ >= 0, "{}: cannot open: {}", path.string(), std::strerror(errno));
  }
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const std::filesystem::path& path) {
  const Descriptor fd(path);
  struct stat status {};
  require(::fstat(fd.get(), &status) == 0, "{}: {}", path.string(), std::strerror(errno));
  require(S_ISREG(status.st_mode), "{}: not a regular file", path.string());

  std::shared_ptr<MappedFile> file(new MappedFile);
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const auto size = static_cast<std::size_t>(status.st_size);
  // One anonymous page stays behind the file: a vector load past its last byte must not fault.
  const std::size_t reserved = (size / page + 2) * page;
  void* range = ::mmap(nullptr, reserved, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  require(range != MAP_FAILED, "{}: cannot map {} bytes: {}", path.string(), size, std::strerror(errno));
  file->data_ = static_cast<std::byte*>(range);
  file->reserved_ = reserved;
  if (size > 0) {
    const void* mapped = ::mmap(range, size, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd.get(), 0);
    require(mapped != MAP_FAILED, "{}: cannot map {} bytes: {}", path.string(), size, std::strerror(errno));
  }
  file->size_ = size;
  const std::scoped_lock lock(live_files().mutex);
  live_files().ranges.emplace(range, size);
  return file;
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  const std::scoped_lock lock(live_files().mutex);
  live_files().ranges.erase(data_);
  ::munmap(data_, reserved_);
}

void release_mapped_pages() {
  const std::scoped_lock lock(live_files().mutex);
  for (const auto& [range, size] : live_files().ranges)
    if (size > 0) ::madvise(range, size, MADV_DONTNEED);
}

}  // namespace magi
