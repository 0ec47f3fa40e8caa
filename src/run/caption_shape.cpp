// SPDX-License-Identifier: Apache-2.0
#include "run/caption_shape.h"

#include <cmath>

#include "core/error.h"
#include "io/tensor_store.h"

namespace magi {
namespace {

constexpr const char* kTextToVideo = R"({
  "global_layer": {
    "context": "string",
    "description": "string",
    "aesthetics": {
      "style": "string",
      "contrast": "string",
      "saturation": "string",
      "color_scheme": "string",
      "visual_effects": "string",
      "mood_atmosphere": "string"
    },
    "audio_baseline": {
      "ambience": "string",
      "dialogue": {"language": "string", "speaker_tags": ["string"]}
    },
    "objects_static": [{
      "object_id": "string",
      "description": "string",
      "shape_and_color": "string",
      "texture": "string",
      "relative_size": "string",
      "position": "string",
      "orientation": "string"
    }],
    "video_metadata": {"duration": "number", "aspect_ratio": "string"},
    "lighting_baseline": {
      "conditions": "string",
      "direction": "string",
      "shadows": "string",
      "source_consistency": "string"
    },
    "environment_baseline": {"background_setting": "string"},
    "alive_subjects_static": [{
      "subject_id": "string",
      "description": "string",
      "position": "string",
      "orientation": "string",
      "visual_attributes": {
        "gender": "string",
        "ethnicity": "string",
        "age_group": "string",
        "facial_features": "string",
        "clothing": "string",
        "appearance_details": "string"
      }
    }],
    "camera_cinematography": {
      "overall_camera_style": "string",
      "default_depth_of_field": "string",
      "lens_focal_length": "string"
    }
  },
  "dynamic_layer": {
    "timeline_segments": [{
      "segment_basic_info": {
        "timestamp_range": "string",
        "segment_description": "string",
        "active_background": "string",
        "lighting_delta": "string",
        "camera_delta": {
          "focus": "string",
          "camera_position": "string",
          "composition": "string",
          "camera_movement": {"type": "string", "direction": "string", "intensity": "string"}
        }
      },
      "objects": [{
        "object_id": "string",
        "timestamp": "string",
        "number_of_objects": "integer",
        "dynamic_state": {"state_change": "string", "motion_detail": "string", "visible_condition": "string"},
        "spatial_position": {"location": "string", "relative_size": "string", "orientation": "string"}
      }],
      "alive_subjects": [{
        "subject_id": "string",
        "timestamp": "string",
        "number_of_subjects": "integer",
        "spatial_position": {"location": "string", "relative_size": "string", "orientation": "string"},
        "action": {
          "primary_action": "string",
          "body_configuration": "string",
          "motion_detail": "string",
          "interaction": "string",
          "facial_expression": "string"
        }
      }],
      "text_render": [{
        "text": "string",
        "timestamp": "string",
        "location": "string",
        "size": "string",
        "color": "string",
        "font": "string",
        "appearance_details": "string"
      }],
      "causal_events": [{
        "event_id": "string",
        "timestamp_range": "string",
        "trigger": "string",
        "effect_outcome": "string",
        "physics": "string"
      }],
      "audio": {
        "dialogue_lines": [
          {"timestamp": "string", "speaker": "string", "text": "string", "delivery": "string"}
        ],
        "ambience_deltas": [{"timestamp_range": "string", "ambience": "string"}],
        "special_audio_events": [
          {"timestamp": "string", "sound_description": "string", "visual_sync": "string"}
        ]
      }
    }]
  }
})";

constexpr const char* kImageToVideo = R"({
  "global_caption": {
    "core_caption": "string",
    "format_and_structure": "string",
    "narrative_and_emotional_design": "string",
    "visual_design": "string",
    "audio_design": "string",
    "continuity_requirements": ["string"]
  },
  "reference_bank": [{
    "reference_identifier": "string",
    "reference_type": "string",
    "label": "string",
    "role": "string",
    "description": "string",
    "appearance_or_design": "string"
  }],
  "shot_timeline": [{
    "shot_identifier": "string",
    "time_range_seconds": ["number"],
    "scene_reference_identifier": "string",
    "shot_caption": "string",
    "camera_lighting_and_composition": "string",
    "motion_and_physical_logic": "string",
    "reference_identifiers": ["string"],
    "audio_event_identifiers": ["string"]
  }],
  "audio_event_timeline": [{
    "audio_event_identifier": "string",
    "event_type": "string",
    "time_range_seconds": ["number"],
    "source_reference_identifier": "string",
    "audio_caption": "string",
    "spoken_text": "string",
    "synchronization_note": "string"
  }],
  "visible_text": [{
    "visible_text_identifier": "string",
    "text": "string",
    "time_range_seconds": ["number"],
    "position_and_role": "string",
    "source_reference_identifier": "string"
  }],
  "generation_requirements": ["string"]
})";

/// Names come from the answer: shortened and made printable.
std::string field_name(const std::string& parent, const std::string& key) {
  const std::string name = printable(key.substr(0, 40));
  return parent.empty() ? name : parent + "." + name;
}

bool has_type(const PromptJson& value, const std::string& type) {
  if (type == "string") return value.is_string();
  if (type == "number") return value.is_number();
  return value.is_number_integer() ||
         (value.is_number_float() && value.get<double>() == std::trunc(value.get<double>()));
}

void check_value(const PromptJson& value, const PromptJson& shape, const std::string& where) {
  if (value.is_null()) return;
  if (shape.is_object()) {
    require(value.is_object(), "{} is not an object", where.empty() ? "the caption" : where);
    for (const auto& [key, item] : value.items()) {
      const auto field = shape.find(key);
      require(field != shape.end(), "{} is not a field of the caption", field_name(where, key));
      check_value(item, *field, field_name(where, key));
    }
  } else if (shape.is_array()) {
    require(value.is_array(), "{} is not a list", where);
    for (const auto& item : value) check_value(item, shape.front(), where + "[]");
  } else {
    const std::string type = shape.get<std::string>();
    require(has_type(value, type), "{} is not of type {}", where, type);
  }
}

bool is_empty(const PromptJson& value) {
  return value.is_null() || (value.is_string() && is_blank(value.get_ref<const std::string&>())) ||
         (value.is_structured() && value.empty());
}

}  // namespace

const CaptionTask& text_to_video_caption() {
  static const CaptionTask task{"t2v",
                                PromptJson::parse(kTextToVideo),
                                {"/global_layer/description", "/dynamic_layer/timeline_segments"}};
  return task;
}

const CaptionTask& image_to_video_caption() {
  static const CaptionTask task{
      "i2v", PromptJson::parse(kImageToVideo), {"/global_caption/core_caption", "/shot_timeline"}};
  return task;
}

PromptJson json_schema(const PromptJson& shape) {
  if (shape.is_string()) return PromptJson::object({{"type", shape}});
  if (shape.is_array()) return PromptJson::object({{"type", "array"}, {"items", json_schema(shape.front())}});
  auto schema = PromptJson::object({{"type", "object"}, {"properties", PromptJson::object()}});
  for (const auto& [key, field] : shape.items()) {
    schema["properties"][key] = json_schema(field);
    schema["required"].push_back(key);
  }
  schema["additionalProperties"] = false;
  return schema;
}

void check_caption(const PromptJson& caption, const CaptionTask& task) {
  require(caption.is_object(), "the caption is not an object");
  check_value(caption, task.shape, "");
  for (const auto& [key, field] : task.shape.items()) require(caption.contains(key), "{} is missing", key);
  for (const std::string& pointer : task.essential) {
    const PromptJson::json_pointer at(pointer);
    require(caption.contains(at) && !is_empty(caption.at(at)), "{} is empty", pointer.substr(1));
  }
}

}  // namespace magi
