// SPDX-License-Identifier: Apache-2.0
#include "io/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace magi {

namespace {

/// Another one for every file, so that two writers of one target do not write into each other's file.
std::string partial_suffix() {
  static std::atomic<unsigned> count = 0;
  return fmt::format(".partial-{}-{}", ::getpid(), count++);
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path target) : target_(std::move(target)) {
  std::error_code error;
  const auto status = std::filesystem::status(target_, error);
  if (std::filesystem::is_directory(status)) {  // rename would say so only when all is written
    errno = EISDIR;
    fail_with_errno();
  }
  require(!std::filesystem::exists(status) || std::filesystem::is_regular_file(status),
          "{}: cannot write: not a regular file; choose another name", target_.string());
  if (std::filesystem::is_symlink(target_, error))
    if (auto linked = std::filesystem::weakly_canonical(target_, error); !error) target_ = std::move(linked);
  // Without a name until it is whole, so that nothing stays of a killed process; where the file system can do
  // that.
  const std::filesystem::path parent = target_.parent_path();
  fd_ = ::open(parent.empty() ? "." : parent.c_str(), O_RDWR | O_TMPFILE | O_CLOEXEC, 0666);
  if (fd_ >= 0) {
    struct stat there;  // a name that cannot be given is told now, not when all is written
    if (::lstat((target_.string() + partial_suffix()).c_str(), &there) == 0 || errno == ENOENT) return;
    const int reason = errno;
    ::close(std::exchange(fd_, -1));
    errno = reason;
    fail_with_errno();
  }
  do {  // a killed process of the same number may have left one
    partial_ = target_.string() + partial_suffix();
    fd_ = ::open(partial_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (fd_ < 0 && errno == EEXIST);
  if (fd_ < 0) fail_with_errno();
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  if (!partial_.empty()) ::unlink(partial_.c_str());
}

void AtomicFile::fail_with_errno() const {
  fail("{}: cannot write: {}", target_.string(), std::strerror(errno));
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(fd_, next, std::min<std::size_t>(bytes, 1u << 30));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_with_errno();
    next += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

void AtomicFile::commit() {
  if (::fsync(fd_) != 0) fail_with_errno();
  const std::string unnamed = fmt::format("/proc/self/fd/{}", fd_);
  while (partial_.empty()) {
    const std::string name = target_.string() + partial_suffix();
    if (::linkat(AT_FDCWD, unnamed.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0)
      partial_ = name;
    else if (errno != EEXIST)
      fail_with_errno();
  }
  if (::rename(partial_.c_str(), target_.c_str()) != 0) fail_with_errno();
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0) fail_with_errno();
}

}  // namespace magi
