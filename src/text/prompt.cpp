// SPDX-License-Identifier: Apache-2.0
#include "text/prompt.h"

#include "core/error.h"
#include "text/json_text.h"

namespace magi {
namespace {

constexpr const char* kFigureSentence = "The first frame refers to <Figure 1>";

/// Null, {} and [] removed from objects throughout; null alone from lists.
PromptJson prune(const PromptJson& value) {
  if (value.is_array()) {
    PromptJson out = PromptJson::array();
    for (const auto& item : value) {
      if (!item.is_null()) out.push_back(prune(item));
    }
    return out;
  }
  if (!value.is_object()) return value;
  PromptJson out = PromptJson::object();
  for (const auto& [key, item] : value.items()) {
    PromptJson kept = prune(item);
    const bool nothing = kept.is_null() || (kept.is_structured() && kept.empty());
    if (!nothing) out.emplace(key, std::move(kept));
  }
  return out;
}

/// A member of an object; null where there is none, or no object.
const PromptJson& get(const PromptJson& value, const char* key) {
  static const PromptJson null;
  if (!value.is_object()) return null;
  const auto found = value.find(key);
  return found == value.end() ? null : *found;
}

/// The member's text on one line; "" for null.
std::string line(const PromptJson& value, const char* key) {
  const PromptJson& member = get(value, key);
  return member.is_null() ? "" : collapse_spaces(python_str(member));
}

/// The objects in a member that is a list.
std::vector<const PromptJson*> objects(const PromptJson& value, const char* key) {
  std::vector<const PromptJson*> out;
  const PromptJson& member = get(value, key);
  if (!member.is_array()) return out;
  for (const auto& item : member) {
    if (item.is_object()) out.push_back(&item);
  }
  return out;
}

bool has_list(const PromptJson& value, const char* key) {
  const PromptJson& member = get(value, key);
  return member.is_array() && !member.empty();
}

/// Non-empty parts with a separator between.
std::string join(const std::vector<std::string>& parts, const char* separator) {
  std::string out;
  for (const std::string& part : parts) {
    if (part.empty()) continue;
    if (!out.empty()) out += separator;
    out += part;
  }
  return out;
}

/// `name` + text, or "" where there is no text.
std::string labelled(const std::string& name, const std::string& text) {
  return text.empty() ? "" : name + text;
}
std::string bracketed(const std::string& text) {
  return text.empty() ? "" : " (" + text + ")";
}

using Lines = std::vector<std::string>;

void add_scene(const PromptJson& global, Lines& out) {
  const std::string context = line(global, "context"), description = line(global, "description");
  if (!context.empty() || !description.empty()) out.push_back("context" + labelled(": ", context));
  out.push_back(description);

  const PromptJson& aesthetics = get(global, "aesthetics");
  out.push_back(labelled("aesthetics: ", join({labelled("style=", line(aesthetics, "style")),
                                               labelled("mood=", line(aesthetics, "mood_atmosphere")),
                                               labelled("color=", line(aesthetics, "color_scheme"))},
                                              "; ")));
}

void add_audio(const PromptJson& audio, Lines& out) {
  const PromptJson& dialogue = get(audio, "dialogue");
  const PromptJson& tags = get(dialogue, "speaker_tags");
  std::string speakers;
  if (tags.is_array() && !tags.empty()) {
    for (const auto& tag : tags)
      speakers += (speakers.empty() ? "speakers=" : ",") + collapse_spaces(python_str(tag));
  } else if (!tags.is_null()) {
    speakers = "speakers=" + collapse_spaces(python_str(tags));
  }
  out.push_back(labelled("audio: ", join({labelled("language=", line(dialogue, "language")), speakers,
                                          labelled("ambience=", line(audio, "ambience"))},
                                         "; ")));
}

void add_cast(const PromptJson& global, Lines& out) {
  if (has_list(global, "alive_subjects_static")) out.push_back("subjects:");
  for (const PromptJson* subject : objects(global, "alive_subjects_static")) {
    std::vector<std::string> attributes;
    for (const char* key : {"gender", "age_group", "ethnicity", "clothing", "appearance_details"})
      attributes.push_back(labelled(std::string(key) + "=", line(get(*subject, "visual_attributes"), key)));
    out.push_back(" - " + join({line(*subject, "subject_id"), line(*subject, "description")}, " | ") +
                  bracketed(join({line(*subject, "position"), line(*subject, "orientation")}, "; ")) +
                  labelled(" :: ", join(attributes, "; ")));
  }
  if (has_list(global, "objects_static")) out.push_back("objects:");
  for (const PromptJson* object : objects(global, "objects_static")) {
    out.push_back(
        " - " + join({line(*object, "object_id"), line(*object, "description")}, " | ") +
        labelled(" :: ", join({line(*object, "shape_and_color"), line(*object, "position")}, "; ")));
  }
}

void add_segment(const PromptJson& segment, Lines& out) {
  const PromptJson& basic = get(segment, "segment_basic_info");
  out.push_back(
      " -" + labelled(" ", join({line(basic, "timestamp_range"), line(basic, "segment_description")}, " ")));

  for (const PromptJson* spoken : objects(get(segment, "audio"), "dialogue_lines")) {
    const std::string text = line(*spoken, "text");
    if (text.empty()) continue;
    out.push_back("   - dialogue" + labelled(" ", line(*spoken, "speaker")) + ": " + text +
                  bracketed(line(*spoken, "timestamp")));
  }
  for (const PromptJson* subject : objects(segment, "alive_subjects")) {
    const PromptJson& action = get(*subject, "action");
    const std::string what =
        join({line(action, "primary_action"), line(action, "interaction"), line(action, "facial_expression")},
             "; ");
    out.push_back(labelled("   - action " + line(*subject, "subject_id") + ": ", what));
  }
  for (const PromptJson* object : objects(segment, "objects")) {
    const PromptJson& state = get(*object, "dynamic_state");
    const std::string what = join({line(state, "state_change"), line(state, "motion_detail")}, "; ");
    out.push_back(labelled("   - objects " + line(*object, "object_id") + ": ", what));
  }
}

}  // namespace

std::string flatten_prompt(std::string_view prompt) {
  const auto parsed = parse_prompt_json(prompt);
  if (!parsed) return std::string(prompt);
  const PromptJson root = prune(*parsed);
  if (!root.is_object() || !root.contains("global_layer")) return std::string(prompt);

  Lines lines;
  const PromptJson& global = get(root, "global_layer");
  add_scene(global, lines);
  add_audio(get(global, "audio_baseline"), lines);
  add_cast(global, lines);
  const PromptJson& dynamic = get(root, "dynamic_layer");
  if (has_list(dynamic, "timeline_segments")) lines.push_back("timeline:");
  for (const PromptJson* segment : objects(dynamic, "timeline_segments")) add_segment(*segment, lines);
  if (has_list(root, "reference_layer")) {
    for (const auto& item : get(root, "reference_layer")) lines.push_back(python_str(item));
  }
  std::erase_if(lines, [](const std::string& l) { return is_blank(l); });
  return join(lines, "\n");
}

std::string with_figure_reference(std::string_view prompt) {
  auto object = parse_prompt_json(prompt);
  if (!object || !object->is_object()) return std::string(prompt) + "reference_layer:" + kFigureSentence;
  (*object)["reference_layer"] = {kFigureSentence};
  return dump_json(*object);
}

std::string prepare_prompt(std::string_view prompt, bool has_image) {
  require(prompt.size() <= Tokenizer::kMaxTextBytes,
          "the prompt has {} bytes, more than the {} allowed; shorten it", prompt.size(),
          Tokenizer::kMaxTextBytes);
  decode_utf8(prompt, "the prompt");
  require(!is_blank(prompt), "the prompt is empty; say what the clip should show");
  std::string text = flatten_prompt(has_image ? with_figure_reference(prompt) : std::string(prompt));
  require(!is_blank(text), "the prompt's JSON has no text in its `global_layer` and `dynamic_layer`");
  return text;
}

std::optional<TokenSpan> figure_span(std::string_view text, int k) {
  const std::string figure = fmt::format("<Figure {}>", k);
  const std::size_t at = text.find(figure);
  if (at == std::string_view::npos) return std::nullopt;
  const std::int64_t first = count_code_points(text.substr(0, at));
  return TokenSpan{first, first + static_cast<std::int64_t>(figure.size())};
}

std::vector<std::int64_t> tokens_in(const Tokens& tokens, TokenSpan span) {
  std::vector<std::int64_t> indices;
  for (std::size_t i = 0; i < tokens.offsets.size(); ++i) {
    const TokenSpan& token = tokens.offsets[i];
    if (token.first < span.end && token.end > span.first) indices.push_back(static_cast<std::int64_t>(i));
  }
  return indices;
}

}  // namespace magi
