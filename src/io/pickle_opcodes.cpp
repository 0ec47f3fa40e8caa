// SPDX-License-Identifier: Apache-2.0
#include "io/pickle_opcodes.h"

#include <fmt/format.h>

#include <map>
#include <string_view>

namespace magi {

std::string opcode_name(std::uint8_t opcode) {
  static const std::map<std::uint8_t, std::string_view> refused{{'0', "POP"},
                                                                {'1', "POP_MARK"},
                                                                {'2', "DUP"},
                                                                {'F', "FLOAT"},
                                                                {'I', "INT"},
                                                                {'L', "LONG"},
                                                                {'P', "PERSID"},
                                                                {'S', "STRING"},
                                                                {'T', "BINSTRING"},
                                                                {'U', "SHORT_BINSTRING"},
                                                                {'V', "UNICODE"},
                                                                {'d', "DICT"},
                                                                {'g', "GET"},
                                                                {'i', "INST"},
                                                                {'l', "LIST"},
                                                                {'o', "OBJ"},
                                                                {'p', "PUT"},
                                                                {0x81, "NEWOBJ"},
                                                                {0x82, "EXT1"},
                                                                {0x83, "EXT2"},
                                                                {0x84, "EXT4"},
                                                                {0x8b, "LONG4"},
                                                                {0x8f, "EMPTY_SET"},
                                                                {0x90, "ADDITEMS"},
                                                                {0x91, "FROZENSET"},
                                                                {0x92, "NEWOBJ_EX"},
                                                                {0x96, "BYTEARRAY8"},
                                                                {0x97, "NEXT_BUFFER"},
                                                                {0x98, "READONLY_BUFFER"}};
  const auto it = refused.find(opcode);
  return it == refused.end() ? fmt::format("{:#04x}", opcode)
                             : fmt::format("{} ({:#04x})", it->second, opcode);
}

}  // namespace magi
