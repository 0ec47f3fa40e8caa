// SPDX-License-Identifier: Apache-2.0
// Prompt enhancement (pipeline.md section 7): a language model behind an OpenAI-compatible endpoint rewrites
// a short prompt into the long structured caption that the video model was trained on.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/progress.h"
#include "run/request.h"

namespace magi {

struct EnhanceOptions {
  std::string base_url;    ///< http://127.0.0.1:8000/v1; "/chat/completions" is appended
  std::string model;       ///< empty: the server's own
  std::string api_key;     ///< empty: none is sent. Never logged.
  double timeout_s = 180;  ///< of one attempt
  int retries = 2;         ///< further attempts after a bad answer, a busy server or a lost connection
  double backoff_s = 1;    ///< before the first of them, doubled for each next one
  /// Answers are kept here; nothing: neither read nor written.
  std::optional<std::filesystem::path> cache_directory;

  /// With the key from MAGI2_LLM_API_KEY and the cache in $XDG_CACHE_HOME/magi2, else ~/.cache/magi2.
  static EnhanceOptions from_environment();
};

/// What is to be rewritten. With images the caption is of the image-to-video form.
struct EnhanceInput {
  std::string prompt;
  std::vector<ImageInput> images;  ///< PNG, JPEG or WebP files of at most 20 MB, sent as they are
  double seconds = 10;
  std::string aspect_ratio = "16:9";
};

/// The caption as Markdown (text/captions.h). An answer that is no JSON, lacks the fields, is empty, cut off
/// or drops a <Figure k> of the prompt counts as a failed attempt, as do 408, 429, 5xx, time-outs and lost
/// connections. Throws Error with the last reason (never with the key in it), and Cancelled at once.
std::string enhance_prompt(const EnhanceInput& input, const EnhanceOptions& options, Progress& progress);

/// Replaces the request's prompt and keeps the one it had as original_prompt. A request that has one (from a
/// clip's metadata) is enhanced already and stays as it is.
void enhance_request(Request& request, const EnhanceOptions& options, Progress& progress);

/// The usual name of the ratio nearest to width:height ("16:9" for 896x512).
std::string aspect_ratio_name(Size size);

}  // namespace magi
