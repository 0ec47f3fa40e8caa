// SPDX-License-Identifier: Apache-2.0
#include "io/file_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>

#include "core/error.h"

namespace magi {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kChunk = std::size_t{8} << 20;  ///< bytes of one request

std::size_t within_page(std::uintptr_t position) {
  return position % kPage;
}

}  // namespace

std::shared_ptr<const FileReader> FileReader::open(const std::filesystem::path& path, bool direct) {
  std::shared_ptr<FileReader> reader(new FileReader(path));
  reader->cached_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  require(reader->cached_ >= 0, "{}: cannot open: {}", path.string(), std::strerror(errno));
  struct stat status {};
  require(::fstat(reader->cached_, &status) == 0, "{}: {}", path.string(), std::strerror(errno));
  require(S_ISREG(status.st_mode), "{}: not a regular file", path.string());
  reader->size_ = static_cast<std::uint64_t>(status.st_size);
  if (direct) reader->direct_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);  // not everywhere: −1
  return reader;
}

FileReader::~FileReader() {
  if (cached_ >= 0) ::close(cached_);
  if (direct_ >= 0) ::close(direct_);
}

void FileReader::read_range(int fd, std::uint64_t offset, std::size_t bytes, std::byte* to) const {
  while (bytes > 0) {
    const ::ssize_t got = ::pread(fd, to, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && fd == direct_)
      return read_range(cached_, offset, bytes, to);  // this device reads no such pieces
    require(got >= 0, "{}: cannot be read: {}", path_.string(), std::strerror(errno));
    require(got > 0,
            "{}: ends at byte {}, where {} more were expected: it is cut short, or changed while in use",
            path_.string(), offset, bytes);
    offset += static_cast<std::uint64_t>(got);
    to += got;
    bytes -= static_cast<std::size_t>(got);
    if (fd == direct_ && within_page(offset) != 0) fd = cached_;
  }
}

void FileReader::read(std::uint64_t offset, std::size_t bytes, std::byte* to) const {
  require(offset <= size_ && bytes <= size_ - offset, "{}: has {} bytes, {} at {} were expected",
          path_.string(), size_, bytes, offset);
  // Whole pages in the middle may be read directly.
  const std::size_t head = std::min(bytes, (kPage - within_page(offset)) % kPage);
  const std::size_t middle = (bytes - head) / kPage * kPage;
  const bool direct =
      direct_ >= 0 && within_page(reinterpret_cast<std::uintptr_t>(to)) == within_page(offset);
  const int fd = direct ? direct_ : cached_;
  read_range(cached_, offset, head, to);
  read_range(cached_, offset + head + middle, bytes - head - middle, to + head + middle);

  std::exception_ptr failure;
  const auto chunks = static_cast<std::int64_t>((middle + kChunk - 1) / kChunk);
#pragma omp parallel for schedule(dynamic, 1)
  for (std::int64_t i = 0; i < chunks; ++i) {
    const std::size_t first = head + static_cast<std::size_t>(i) * kChunk;
    try {
      read_range(fd, offset + first, std::min(kChunk, head + middle - first), to + first);
    } catch (...) {
#pragma omp critical(magi2_file_reader)
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

Tensor FileReader::read(std::uint64_t offset, DType dtype, Shape shape) const {
  const std::size_t bytes = static_cast<std::size_t>(numel(shape)) * size_of(dtype);
  require(offset <= size_ && bytes <= size_ - offset, "{}: has {} bytes, {} at {} were expected",
          path_.string(), size_, bytes, offset);
  const auto memory = std::make_shared<const Tensor>(
      Tensor::empty(DType::u8, {static_cast<std::int64_t>(bytes + 2 * kPage)}));
  auto* start = static_cast<std::byte*>(const_cast<void*>(memory->raw()));
  const std::size_t here = within_page(reinterpret_cast<std::uintptr_t>(start));
  start += (within_page(offset) + kPage - here) % kPage;
  read(offset, bytes, start);
  return Tensor::view(start, dtype, std::move(shape), memory);
}

}  // namespace magi
