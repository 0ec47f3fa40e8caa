// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "io/config.h"
#include "model/text_encoder.h"
#include "support/expect_error.h"

namespace magi {
namespace {

TextEncoderConfig parse(const char* text) {
  return TextEncoderConfig::from(ConfigNode(nlohmann::json::parse(text), "config.json"));
}

TEST(TextEncoderConfig, DefaultsAreTheRelease) {
  const TextEncoderConfig c = parse("{}");
  EXPECT_EQ(c.run_layers(), 62);
  EXPECT_EQ(c.rotary_dims, 64);
  EXPECT_EQ(c.full_attention.size(), 64u);
  EXPECT_FALSE(c.full_attention[2]);
  EXPECT_TRUE(c.full_attention[3]);
  EXPECT_EQ(c.conv_channels(), 2 * 16 * 128 + 48 * 128);
}

TEST(TextEncoderConfig, RotaryValuesFromEitherPlace) {
  EXPECT_EQ(parse(R"({"text_config": {"rope_theta": 500.0}})").rope_theta, 500.0);
  const auto c =
      parse(R"({"head_dim": 64, "rope_parameters": {"rope_theta": 7.0, "partial_rotary_factor": 0.5}})");
  EXPECT_EQ(c.rope_theta, 7.0);
  EXPECT_EQ(c.rotary_dims, 32);
}

TEST(TextEncoderConfig, WhatIsNotSupportedIsRefused) {
  expect_error([] { parse(R"({"num_hidden_layers": 2})"); }, "num_hidden_layers");
  expect_error([] { parse(R"({"num_hidden_layers": 3, "layer_types": ["full_attention"]})"); },
               "1 entries for 3");
  expect_error([] { parse(R"({"num_hidden_layers": 3, "layer_types": ["a", "b", "c"]})"); }, "layer_types");
  expect_error([] { parse(R"({"num_key_value_heads": 5})"); }, "num_key_value_heads");
  expect_error([] { parse(R"({"linear_num_key_heads": 5})"); }, "linear_num_key_heads");
  expect_error([] { parse(R"({"hidden_act": "gelu"})"); }, "gelu");
  expect_error([] { parse(R"({"attention_bias": true})"); }, "attention_bias");
  expect_error([] { parse(R"({"rope_parameters": {"rope_type": "yarn"}})"); }, "yarn");
  expect_error([] { parse(R"({"rope_parameters": {"partial_rotary_factor": 0.001}})"); },
               "partial_rotary_factor");
}

}  // namespace
}  // namespace magi
