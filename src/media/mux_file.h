// SPDX-License-Identifier: Apache-2.0
// The file a muxer writes to: seekable, readable again (MP4's index moves to the front at the end), with the
// system's own reason when writing fails. Internal to media.
#pragma once

#include <filesystem>

#include "io/atomic_file.h"
#include "media/av.h"

namespace magi {

class MuxFile {
 public:
  /// Opens at once, so that a bad path is known before minutes of work. Throws Error that names the path.
  explicit MuxFile(const std::filesystem::path& path);
  ~MuxFile();
  MuxFile(const MuxFile&) = delete;
  MuxFile& operator=(const MuxFile&) = delete;

  /// Lets `muxer` write here. The muxer must be freed before this object.
  void attach(AVFormatContext* muxer);
  /// Throws Error when any write has failed so far.
  void check() const;
  /// Flushes, checks, and gives the file its name.
  void commit();

 private:
  struct View;  // one reading or writing position
  static int read(void* opaque, std::uint8_t* data, int bytes);
  static int write(void* opaque, std::uint8_t* data, int bytes);
  static std::int64_t seek(void* opaque, std::int64_t offset, int whence);
  static int reopen(AVFormatContext* muxer, AVIOContext** io, const char*, int flags, AVDictionary**);
  static int close_again(AVFormatContext*, AVIOContext* io);
  static AVIOContext* new_io(MuxFile* file, bool writes);
  static void free_io(AVIOContext* io);

  std::string name_;
  AtomicFile file_;
  AVIOContext* io_ = nullptr;
};

}  // namespace magi
