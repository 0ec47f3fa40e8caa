// SPDX-License-Identifier: Apache-2.0
// FFmpeg's libraries are opened when the first picture or clip is, not when the program starts: with the hundred
// libraries that they bring they take longer to load than `magi2 --help` may. Each function below is a jump through a
// slot that load_library() fills. On other processors the program is linked to the libraries as usual.
#include "media/av_library.h"

#include <dlfcn.h>

#include <array>
#include <mutex>

#include "core/error.h"

extern "C" {
#include <libavformat/version.h>
#include <libswscale/version.h>
}

#ifdef MAGI2_LAZY_FFMPEG

#if defined(__x86_64__)
#define MAGI2_AV_JUMP(name) "endbr64\n jmp *magi2_slot_" #name "(%rip)\n"
#elif defined(__aarch64__)
#define MAGI2_AV_JUMP(name) \
  "adrp x16, magi2_slot_" #name "\n ldr x16, [x16, :lo12:magi2_slot_" #name "]\n br x16\n"
#endif

#define MAGI2_AV_FUNCTIONS(F)                                                                              \
  F(av_bsf_free) F(av_bsf_init) F(av_bsf_list_parse_str) F(av_bsf_receive_packet) F(av_bsf_send_packet)    \
  F(av_channel_layout_copy) F(av_channel_layout_default) F(av_dict_free) F(av_dict_set)                    \
  F(av_force_cpu_flags) F(av_frame_alloc) F(av_frame_free) F(av_frame_get_buffer)                          \
  F(av_frame_make_writable) F(av_freep) F(av_image_copy) F(av_interleaved_write_frame)                     \
  F(av_log_set_level) F(av_malloc) F(av_new_packet) F(av_opt_set_int) F(av_packet_alloc)                   \
  F(av_packet_free) F(av_packet_rescale_ts) F(av_pix_fmt_desc_get) F(av_read_image_line2) F(av_strerror)   \
  F(av_write_trailer) F(avcodec_alloc_context3) F(avcodec_find_decoder) F(avcodec_find_encoder_by_name)    \
  F(avcodec_free_context) F(avcodec_get_name) F(avcodec_open2) F(avcodec_parameters_copy)                  \
  F(avcodec_parameters_from_context) F(avcodec_receive_frame) F(avcodec_receive_packet)                    \
  F(avcodec_send_frame) F(avcodec_send_packet) F(avformat_alloc_output_context2) F(avformat_free_context)  \
  F(avformat_new_stream) F(avformat_write_header) F(avio_alloc_context) F(avio_context_free)               \
  F(avio_flush) F(sws_alloc_context) F(sws_freeContext) F(sws_getCoefficients) F(sws_init_context)         \
  F(sws_scale) F(sws_setColorspaceDetails)

#define MAGI2_AV_DEFINE(name)                                               \
  extern "C" [[gnu::visibility("hidden")]] void* magi2_slot_##name;         \
  void* magi2_slot_##name = nullptr;                                        \
  asm(".pushsection .text\n .p2align 4\n .globl " #name "\n .hidden " #name \
      "\n .type " #name ", %function\n" #name ":\n " MAGI2_AV_JUMP(name)    \
      " .size " #name ", . - " #name "\n .popsection\n");
MAGI2_AV_FUNCTIONS(MAGI2_AV_DEFINE)

namespace magi::av {
namespace {

struct Slot {
  const char* name;
  void** target;
};
#define MAGI2_AV_SLOT(name) Slot{#name, &magi2_slot_##name},
constexpr std::array kSlots{MAGI2_AV_FUNCTIONS(MAGI2_AV_SLOT)};

/// A library of the version that this program was compiled for; what it depends on comes with it.
void* open_library(const char* name, int version) {
  const std::string file = fmt::format("{}.so.{}", name, version);
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  require(library != nullptr, "{}; install FFmpeg's libraries of the version that magi2 was built with",
          library ? "" : dlerror());
  return library;
}

void load() {
  void* format = open_library("libavformat", LIBAVFORMAT_VERSION_MAJOR);
  void* scale = open_library("libswscale", LIBSWSCALE_VERSION_MAJOR);
  for (const Slot& slot : kSlots) {
    *slot.target = dlsym(format, slot.name);
    if (!*slot.target) *slot.target = dlsym(scale, slot.name);
    require(*slot.target != nullptr, "FFmpeg's libraries have no function {}", slot.name);
  }
}

}  // namespace

void load_library() {
  static std::once_flag once;  // a throw leaves it unset
  std::call_once(once, load);
}

}  // namespace magi::av

#else

void magi::av::load_library() {}

#endif
