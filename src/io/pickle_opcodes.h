// SPDX-License-Identifier: Apache-2.0
// Pickle opcodes: those that are read, and the names of all others for the refusal.
#pragma once

#include <cstdint>
#include <string>

namespace magi {

enum class Op : std::uint8_t {
  proto = 0x80,
  frame = 0x95,
  stop = '.',
  none = 'N',
  new_true = 0x88,
  new_false = 0x89,
  bin_int = 'J',
  bin_int1 = 'K',
  bin_int2 = 'M',
  long1 = 0x8a,
  bin_float = 'G',
  short_bin_unicode = 0x8c,
  bin_unicode = 'X',
  bin_unicode8 = 0x8d,
  short_bin_bytes = 'C',
  bin_bytes = 'B',
  bin_bytes8 = 0x8e,
  mark = '(',
  empty_tuple = ')',
  tuple = 't',
  tuple1 = 0x85,
  tuple2 = 0x86,
  tuple3 = 0x87,
  empty_list = ']',
  append = 'a',
  appends = 'e',
  empty_dict = '}',
  set_item = 's',
  set_items = 'u',
  bin_put = 'q',
  long_bin_put = 'r',
  memoize = 0x94,
  bin_get = 'h',
  long_bin_get = 'j',
  global = 'c',
  stack_global = 0x93,
  reduce = 'R',
  build = 'b',
  bin_persid = 'Q',
};

/// "INST (0x69)"; "0xff" for what is no opcode.
std::string opcode_name(std::uint8_t opcode);

}  // namespace magi
