// SPDX-License-Identifier: Apache-2.0
#include "io/torch_pickle.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "io/checkpoint.h"
#include "io/pickle.h"
#include "support/expect_error.h"
#include "support/golden.h"
#include "support/temp_dir.h"
#include "torch_file.h"

namespace magi {
namespace {

using namespace pickled;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

/// Floats 0, 1, 2, …
std::string ramp(int count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 0.0f);
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

std::string torch_file(const std::string& pickle, const std::string& record = ramp(24)) {
  return zip_of({{"m/data.pkl", finished(pickle)},
                 {"m/byteorder", "little"},
                 {"m/data/0", record},
                 {"m/version", "3\n"}});
}

std::shared_ptr<TensorStore> open_bytes(const std::string& file) {
  const auto owner = std::make_shared<std::string>(file);
  return torch_store(bytes_of(*owner), owner, "f.pth");
}

std::vector<float> floats(const Tensor& t) {
  return {t.values<float>().begin(), t.values<float>().end()};
}

const std::string kStorage = storage("FloatStorage", "0", 24);

TEST(TorchPickle, ReadsContiguousAndStridedTensors) {
  const auto store = open_bytes(torch_file(dict({{"plain", tensor(kStorage, 2, {2, 3}, {3, 1})},
                                                 {"transposed", tensor(kStorage, 0, {3, 2}, {1, 3})},
                                                 {"expanded", tensor(kStorage, 5, {2, 2}, {0, 1})},
                                                 {"scalar", tensor(kStorage, 23, {}, {})},
                                                 {"none", tensor(kStorage, 24, {0, 7}, {7, 1})},
                                                 {"step", integer(7)}})));
  EXPECT_EQ(store->entries().size(), 5u);
  EXPECT_EQ(floats(store->get("plain", {2, 3})), (std::vector<float>{2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(floats(store->get("transposed", {3, 2})), (std::vector<float>{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(floats(store->get("expanded", {2, 2})), (std::vector<float>{5, 6, 5, 6}));
  EXPECT_EQ(floats(store->get("scalar", {})), (std::vector<float>{23}));
  EXPECT_EQ(store->get("none", {0, 7}).numel(), 0);
}

TEST(TorchPickle, UnwrapsStateDictsAndStripsModule) {
  const std::string x = tensor(kStorage, 0, {1}, {1}), y = tensor(kStorage, 1, {1}, {1});
  const auto value = [&](const std::string& pickle) {
    return open_bytes(torch_file(pickle))->get("a.b", {1}).data<float>()[0];
  };
  EXPECT_EQ(value(dict({{"state_dict", dict({{"a.b", y}})}, {"ema_state_dict", dict({{"module.a.b", x}})}})),
            0);
  EXPECT_EQ(value(dict({{"epoch", integer(3)}, {"state_dict", dict({{"module.a.b", y}})}})), 1);
  EXPECT_EQ(value(dict({{"a.b", x}, {"a.b", y}})), 1);
  expect_error(
      [&] {
        open_bytes(torch_file(dict({{"a.b", x}, {"module.a.b", y}})));
      },
      "two tensors are called a.b");
  expect_error([&] { open_bytes(torch_file(integer(3))); }, "no dict");
}

TEST(TorchPickle, ReadsParametersMetadataAndProtocol4) {
  const std::string parameter = global("torch._utils", "_rebuild_parameter") + "(" +
                                tensor(kStorage, 3, {1}, {1}) + "\x88" +
                                global("collections", "OrderedDict") + ")RtR";
  // state_dict() as torch.save() writes it: an OrderedDict whose attribute _metadata is set by BUILD.
  const std::string ordered = global("collections", "OrderedDict") + ")R(" + text("p") + parameter + "u" +
                              dict({{"_metadata", global("collections", "OrderedDict") + ")R"}}) + "b";
  EXPECT_EQ(open_bytes(torch_file(ordered))->get("p", {1}).data<float>()[0], 3);

  // PROTO 4, FRAME, {"k": OrderedDict(), "k": 7}, the second "k" from the memo.
  const std::string protocol4 = "\x80\x04\x95" + little_endian(9, 8) + "}\x94(\x8c\x01k\x94\x8c\x0b" +
                                "collections\x8c\x0bOrderedDict\x93)Rh\x01K\x07u.";
  const Pickle pickle = unpickle(bytes_of(protocol4), "p");
  ASSERT_EQ(pickle.root->as<PickledDict>()->items.size(), 2u);
  EXPECT_EQ(*pickle.root->as<PickledDict>()->items[1].first->as<std::string>(), "k");
}

TEST(TorchPickle, RefusesEverythingElseByName) {
  const auto refused = [](const std::string& body, std::string_view part) {
    expect_error([&] { open_bytes(torch_file(body)); }, part);
  };
  refused(global("os", "system") + "(" + text("touch /tmp/owned") + "tR", "f.pth: refused: global os.system");
  refused(global("posix", "system"), "refused: global posix.system");
  refused(global("builtins", "eval"), "refused: global builtins.eval");
  refused("\x8c\x02os\x8c\x06system\x93", "refused: global os.system");
  refused(global("torch", "QInt8Storage"), "refused: global torch.QInt8Storage");
  refused(global("a\x1b[31m", "b"), "refused: global a\\x1b[31m.b");
  refused("(" + text("x") + "ios\nsystem\n", "refused: opcode INST (0x69)");
  refused(")\x81", "refused: opcode NEWOBJ (0x81)");
  refused("(o", "refused: opcode OBJ");
  refused("\x82\x01", "refused: opcode EXT1");
  refused("\xff", "refused: opcode 0xff");
  refused("\x80\x05", "refused: pickle protocol 5");
  refused("]}b", "refused: opcode BUILD");
  refused(global("torch", "FloatStorage") + ")R", "refused: a call of torch.FloatStorage");
  refused(global("collections", "OrderedDict") + "(" + integer(1) + "tR", "refused: an OrderedDict");
  refused("\x8a\x09" + std::string(9, 'x'), "refused: an integer of more than 64 bits");
}

TEST(TorchPickle, RefusesDamage) {
  const auto damaged = [](const std::string& body, std::string_view part = "damaged pickle") {
    expect_error([&] { unpickle(bytes_of(body), "p"); }, part);
  };
  damaged("");
  damaged("\x80");
  damaged(".");
  damaged("(.");
  damaged("t");
  damaged("\x85");
  damaged("(\x85");
  damaged("a");
  damaged("}(K\x01u.");
  damaged("]K\x01K\x02s.");
  damaged(
      "K\x01K\x02"
      "a.");
  damaged("h\x07.");
  damaged("q\x01.");
  damaged("K\x01)R.");
  damaged("K\x01Q.");
  damaged("cos\nsystem");
  damaged(
      "X\xff\xff\xff\xff"
      "abc");
  damaged("\x8d" + std::string(8, '\xff'));
  damaged("\x80\x02K\x01");
  damaged(std::string(5'000'000, ')') + ".", "more than 4194304 objects");
  const std::string many_axes = integers(std::vector<std::int64_t>(65, 1));
  damaged(global("torch", "Size") + many_axes + "\x85R.", "too many axes");
}

TEST(TorchPickle, ChecksStridesAgainstTheStorage) {
  const auto broken = [](const std::string& value, std::string_view part) {
    expect_error([&] { open_bytes(torch_file(dict({{"x", value}}))); }, part);
  };
  constexpr std::int64_t huge = std::int64_t{1} << 62;
  broken(tensor(kStorage, 0, {25}, {1}), "beyond its storage");
  broken(tensor(kStorage, 1, {24}, {1}), "beyond its storage");
  broken(tensor(kStorage, 0, {2, 13}, {12, 1}), "beyond its storage");
  broken(tensor(kStorage, 0, {3}, {huge}), "beyond its storage");
  broken(tensor(kStorage, huge, {huge}, {1}), "beyond its storage");
  broken(tensor(kStorage, 0, {0, huge, huge}, {0, 0, 0}), "beyond its storage");
  broken(tensor(kStorage, -1, {1}, {1}), "offset or strides");
  broken(tensor(kStorage, 0, {1, 1}, {1}), "offset or strides");
  broken(tensor(kStorage, 0, {-1}, {1}), "natural number");
  broken(tensor(kStorage, 0, {1}, {-1}), "natural number");
  broken(tensor(kStorage, 0, {huge}, {0}), "more elements than the file");
  broken(tensor(storage("FloatStorage", "0", 23), 0, {1}, {1}), "has 96 bytes, expected 23 elements of F32");
  broken(tensor(storage("FloatStorage", "0", huge), 0, {1}, {1}), "has 96 bytes");
  broken(tensor(storage("FloatStorage", "1", 24), 0, {1}, {1}), "record data/1 is missing");
  broken(tensor(storage("FloatStorage", "0", -1), 0, {0}, {1}), "no storage");
}

TEST(TorchPickle, RefusesBadValues) {
  const std::string nan(4, '\xff');
  expect_error(
      [&] {
        open_bytes(
            torch_file(dict({{"x", tensor(storage("FloatStorage", "0", 25), 0, {25}, {1})}}), ramp(24) + nan))
            ->get("x", {25});
      },
      "f.pth: x F32 [25] holds NaN or infinity (first at element 24)");
  expect_error(
      [&] {
        open_bytes(torch_file(dict({{"x", tensor(storage("BoolStorage", "0", 2), 0, {2}, {1})}}), "\1\2"))
            ->load("x");
      },
      "bytes other than 0 and 1");
}

TEST(TorchPickle, ReadsZip64AndRefusesDamagedArchives) {
  const std::string pickle = finished(dict({{"x", tensor(kStorage, 0, {24}, {1})}}));
  const std::vector<ZipEntry> entries{{"m/data.pkl", pickle}, {"m/data/0", ramp(24)}};
  EXPECT_EQ(open_bytes(zip_of(entries, true))->get("x", {24}).data<float>()[23], 23);
  const std::string good = zip_of(entries);
  for (const std::string& file : {good, zip_of(entries, true)})
    for (std::size_t length = 0; length < file.size(); ++length)
      EXPECT_THROW(open_bytes(file.substr(0, length)), Error) << length;

  expect_error([&] { open_bytes("PK"); }, "not a zip archive");
  std::string renamed = good;  // the local header and the directory disagree about a name
  renamed[renamed.find("m/data.pkl")] = 'n';
  expect_error([&] { open_bytes(renamed); }, "an entry has two names");
  expect_error(
      [&] {
        open_bytes(zip_of({{"m/data.pkl", pickle}, {"m/data.pkl", pickle}}));
      },
      "two entries are called");
  expect_error([&] { open_bytes(zip_of({{"m/data.pkl", pickle, 8}})); }, "is compressed");
  expect_error([&] { open_bytes(zip_of({{"m/data.pkl", pickle, 0, 1}})); }, "is encrypted");
  expect_error([&] { open_bytes(zip_of({{"m/data/0", ramp(1)}})); }, "no data.pkl");
  expect_error(
      [&] {
        open_bytes(zip_of({{"m/data.pkl", pickle}, {"n/data.pkl", pickle}}));
      },
      "more than one");
  expect_error(
      [&] {
        open_bytes(zip_of({{"m/data.pkl", pickle}, {"m/byteorder", "big"}}));
      },
      "byte order \"big\"");
}

// Every byte of a small file replaced: an error or a success, never a crash (run under the sanitizers).
TEST(TorchPickle, SurvivesAnyByteChanged) {
  const std::string good = torch_file(dict({{"x", tensor(kStorage, 0, {3, 2}, {1, 3})}}));
  std::size_t refused = 0;
  for (std::size_t at = 0; at < good.size(); ++at)
    for (const char value : {'\x00', '\x01', '\x7f', '\xff'}) {
      std::string file = good;
      file[at] = value;
      try {
        const auto store = open_bytes(file);
        for (const auto& [name, info] : store->entries()) EXPECT_EQ(store->load(name).shape(), info.shape);
      } catch (const Error&) {
        ++refused;
      }
    }
  EXPECT_GT(refused, good.size());
}

}  // namespace
}  // namespace magi
