// SPDX-License-Identifier: Apache-2.0
#include "media/mux_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace magi {

struct MuxFile::View {
  MuxFile* file;
  std::int64_t position = 0;
};

MuxFile::MuxFile(const std::filesystem::path& path) : name_(path.string()), file_(path) {
  av::init();
  io_ = new_io(this, true);
  require(io_ != nullptr, "{}: out of memory", name_);
}

MuxFile::~MuxFile() {
  free_io(io_);
}

void MuxFile::attach(AVFormatContext* muxer) {
  muxer->pb = io_;
  muxer->opaque = this;
  muxer->flags |= AVFMT_FLAG_CUSTOM_IO;
  muxer->io_open = reopen;
  muxer->io_close2 = close_again;
}

void MuxFile::check() const {
  av::check(io_->error, fmt::format("{}: cannot write", name_));
}

void MuxFile::commit() {
  avio_flush(io_);
  check();
  file_.commit();
}

int MuxFile::read(void* opaque, std::uint8_t* data, int bytes) {
  auto* view = static_cast<View*>(opaque);
  const ssize_t got =
      ::pread(view->file->file_.descriptor(), data, static_cast<std::size_t>(bytes), view->position);
  if (got < 0) return AVERROR(errno);
  if (got == 0) return AVERROR_EOF;
  view->position += got;
  return static_cast<int>(got);
}

int MuxFile::write(void* opaque, std::uint8_t* data, int bytes) {
  auto* view = static_cast<View*>(opaque);
  for (int done = 0; done < bytes;) {
    const ssize_t put = ::pwrite(view->file->file_.descriptor(), data + done,
                                 static_cast<std::size_t>(bytes - done), view->position);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return AVERROR(errno);
    done += static_cast<int>(put);
    view->position += put;
  }
  return bytes;
}

std::int64_t MuxFile::seek(void* opaque, std::int64_t offset, int whence) {
  auto* view = static_cast<View*>(opaque);
  struct stat status {};
  if (::fstat(view->file->file_.descriptor(), &status) != 0) return AVERROR(errno);
  switch (whence & ~AVSEEK_FORCE) {
    case AVSEEK_SIZE:
      return status.st_size;
    case SEEK_SET:
      break;
    case SEEK_CUR:
      offset += view->position;
      break;
    case SEEK_END:
      offset += status.st_size;
      break;
    default:
      return AVERROR(EINVAL);
  }
  return view->position = offset;
}

AVIOContext* MuxFile::new_io(MuxFile* file, bool writes) {
  constexpr int kBuffer = 1 << 16;
  auto* buffer = static_cast<unsigned char*>(av_malloc(kBuffer));
  if (buffer == nullptr) return nullptr;
  auto* view = new View{file};
#if LIBAVFORMAT_VERSION_MAJOR >= 61
  const auto put = [](void* o, const std::uint8_t* data, int n) {
    return write(o, const_cast<std::uint8_t*>(data), n);
  };
#else
  const auto put = write;
#endif
  return avio_alloc_context(buffer, kBuffer, writes, view, writes ? nullptr : read, writes ? +put : nullptr,
                            seek);
}

void MuxFile::free_io(AVIOContext* io) {
  delete static_cast<View*>(io->opaque);
  av_freep(&io->buffer);
  avio_context_free(&io);
}

/// The muxer reads its own output back while it moves the data behind the index.
int MuxFile::reopen(AVFormatContext* muxer, AVIOContext** io, const char*, int flags, AVDictionary**) {
  if (flags & AVIO_FLAG_WRITE) return AVERROR(EPERM);
  *io = new_io(static_cast<MuxFile*>(muxer->opaque), false);
  return *io != nullptr ? 0 : AVERROR(ENOMEM);
}

int MuxFile::close_again(AVFormatContext*, AVIOContext* io) {
  free_io(io);
  return 0;
}

}  // namespace magi
