// SPDX-License-Identifier: Apache-2.0
#include "run/caption_shape.h"

#include <gtest/gtest.h>

#include "support/expect_error.h"

namespace magi {
namespace {

TEST(CaptionShape, SchemaIsStrictThroughout) {
  const PromptJson schema = json_schema(PromptJson::parse(R"({"b": "string", "a": [{"n": "integer"}]})"));
  EXPECT_EQ(schema, PromptJson::parse(R"({
    "type": "object",
    "properties": {
      "b": {"type": "string"},
      "a": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}},
                                       "required": ["n"], "additionalProperties": false}}},
    "required": ["b", "a"], "additionalProperties": false})"));
  EXPECT_EQ(schema.at("required").front(), "b") << "fields keep their order";
}

TEST(CaptionShape, TopLevelFieldsOfBothTasks) {
  const auto fields = [](const CaptionTask& task) { return json_schema(task.shape).at("required").dump(); };
  EXPECT_EQ(fields(text_to_video_caption()), R"(["global_layer","dynamic_layer"])");
  EXPECT_EQ(fields(image_to_video_caption()),
            R"(["global_caption","reference_bank","shot_timeline","audio_event_timeline","visible_text",)"
            R"("generation_requirements"])");
}

PromptJson small_caption() {
  return PromptJson::parse(R"({
    "global_layer": {"description": "A fox walks.", "aesthetics": null, "video_metadata": {"duration": 10}},
    "dynamic_layer": {"timeline_segments": [{"objects": [{"number_of_objects": 2.0}]}]}})");
}

TEST(CaptionShape, EmptyFieldsMayBeLeftOut) {
  EXPECT_NO_THROW(check_caption(small_caption(), text_to_video_caption()));
}

TEST(CaptionShape, NamesWhatIsWrong) {
  const auto expect_problem = [](const char* pointer, PromptJson value, const char* part) {
    PromptJson caption = small_caption();
    caption[PromptJson::json_pointer(pointer)] = std::move(value);
    expect_error([&] { check_caption(caption, text_to_video_caption()); }, part);
  };
  expect_problem("/global_layer/context", 3, "global_layer.context is not of type string");
  expect_problem("/global_layer/video_metadata/duration", "ten",
                 "video_metadata.duration is not of type number");
  expect_problem("/global_layer/mood", "calm", "global_layer.mood is not a field");
  expect_problem("/global_layer/a\n\x1b", "x", "global_layer.a\\x0a\\x1b is not a field");
  expect_problem("/global_layer/objects_static", "a boat", "objects_static is not a list");
  expect_problem("/global_layer/objects_static", PromptJson::array({"a boat"}),
                 "objects_static[] is not an object");
  expect_problem("/dynamic_layer/timeline_segments/0/objects/0/number_of_objects", 1.5,
                 "not of type integer");
  expect_problem("/global_layer/description", "  \n", "global_layer/description is empty");
  expect_problem("/dynamic_layer/timeline_segments", PromptJson::array(), "timeline_segments is empty");
  expect_problem("/dynamic_layer", nullptr, "timeline_segments is empty");
  PromptJson half = small_caption();
  half.erase("dynamic_layer");
  expect_error([&] { check_caption(half, text_to_video_caption()); }, "dynamic_layer is missing");
  expect_error([&] { check_caption(small_caption(), image_to_video_caption()); }, "is not a field");
  expect_error([&] { check_caption(PromptJson::array(), text_to_video_caption()); }, "not an object");
}

}  // namespace
}  // namespace magi
