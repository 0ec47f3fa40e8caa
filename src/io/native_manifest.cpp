// SPDX-License-Identifier: Apache-2.0
#include "io/native_manifest.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/error.h"
#include "io/json_file.h"
#include "io/mapped_file.h"

namespace magi {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "magi2-native";
constexpr std::size_t kHashDigits = 32;
constexpr std::string_view kTextEnd = "\"\n}\n";
constexpr int kDepthBelowRoot = 2;

std::string hash_of(std::string_view text) {
  FileHash hash;
  hash.add(text.data(), text.size());
  return hash.hex();
}

bool is_hash(const std::string& text) {
  return text.size() == kHashDigits && text.find_first_not_of("0123456789abcdef") == text.npos;
}

NativeFile parse_file(const nlohmann::json& json, const std::string& where, const std::string& name) {
  const auto bytes = json.find("bytes"), hash = json.find("xxh3"), rms = json.find("error_rms");
  const bool good = json.is_object() && bytes != json.end() && bytes->is_number_unsigned() &&
                    hash != json.end() && hash->is_string() && is_hash(hash->get<std::string>()) &&
                    (rms == json.end() || rms->is_string());
  require(good, "{}: the entry of {} is no size and checksum", where, name);
  return {bytes->get<std::uint64_t>(), hash->get<std::string>(),
          rms == json.end() ? "" : rms->get<std::string>()};
}

std::string format_of(const nlohmann::json& json, const char* key, const std::string& where) {
  const auto value = json.find(key);
  require(value != json.end() && (*value == "bf16" || *value == "nvfp4"), "{}: {} is neither bf16 nor nvfp4",
          where, key);
  return value->get<std::string>();
}

}  // namespace

struct FileHash::State {
  XXH3_state_t xxh;
};

FileHash::FileHash() : state_(std::make_unique<State>()) {
  XXH3_128bits_reset(&state_->xxh);
}
FileHash::~FileHash() = default;

void FileHash::add(const void* data, std::size_t bytes) {
  XXH3_128bits_update(&state_->xxh, data, bytes);
}

std::string FileHash::hex() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh);
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

NativeFile describe_file(const fs::path& file) {
  const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  require(fd >= 0, "{}: cannot open: {}", file.string(), std::strerror(errno));
  std::vector<char> piece(std::size_t{4} << 20);
  FileHash hash;
  NativeFile result;
  ssize_t got = 0;
  while ((got = ::read(fd, piece.data(), piece.size())) > 0 || (got < 0 && errno == EINTR)) {
    if (got < 0) continue;
    hash.add(piece.data(), static_cast<std::size_t>(got));
    result.bytes += static_cast<std::uint64_t>(got);
  }
  const int reason = errno;
  ::close(fd);
  require(got == 0, "{}: cannot read: {}", file.string(), std::strerror(reason));
  result.xxh3 = hash.hex();
  return result;
}

std::string NativeManifest::to_text() const {
  Json json{
      {"format", kFormat}, {"version", kNativeVersion}, {"experts", experts}, {"text_encoder", text_encoder}};
  if (!source.empty()) json["source"] = source;
  json["files"] = Json::object();
  for (const auto& [name, file] : files) {
    json["files"][name] = {{"bytes", file.bytes}, {"xxh3", file.xxh3}};
    if (!file.error_rms.empty()) json["files"][name]["error_rms"] = file.error_rms;
  }
  json["xxh3"] = std::string(kHashDigits, '0');
  std::string text = json.dump(1) + "\n";
  return text.replace(text.size() - kTextEnd.size() - kHashDigits, kHashDigits, hash_of(text));
}

NativeManifest NativeManifest::parse(const std::string& text, const std::string& where) {
  const nlohmann::json json = parse_json(text, where);
  require(json.is_object() && json.value("format", nlohmann::json()) == kFormat,
          "{}: this is no manifest of a native root", where);
  const auto version = json.find("version");
  require(version != json.end() && version->is_number_integer(), "{}: no version", where);
  require(*version == kNativeVersion,
          "{}: version {} of the format; this program reads version {}: quantize again", where,
          version->dump(), kNativeVersion);
  const std::size_t tail = kHashDigits + kTextEnd.size();
  require(text.size() > tail && text.ends_with(kTextEnd), "{}: damaged, its checksum is not at its end",
          where);
  const std::string found = text.substr(text.size() - tail, kHashDigits);
  std::string blank = text;
  blank.replace(text.size() - tail, kHashDigits, kHashDigits, '0');
  require(found == hash_of(blank), "{}: damaged: its checksum is {}, not {}", where, hash_of(blank), found);

  NativeManifest manifest;
  manifest.experts = format_of(json, "experts", where);
  manifest.text_encoder = format_of(json, "text_encoder", where);
  if (const auto source = json.find("source"); source != json.end() && source->is_string())
    manifest.source = source->get<std::string>();
  const auto files = json.find("files");
  require(files != json.end() && files->is_object(), "{}: no files", where);
  for (const auto& [name, file] : files->items()) manifest.files.emplace(name, parse_file(file, where, name));
  return manifest;
}

std::optional<NativeManifest> read_manifest(const fs::path& root) {
  const fs::path file = root / kManifestName;
  std::error_code error;
  if (!fs::exists(file, error)) return std::nullopt;
  const auto mapped = MappedFile::open(file);
  require(mapped->bytes().size() <= 16u << 20, "{}: too large for a manifest", file.string());
  return NativeManifest::parse(
      {reinterpret_cast<const char*>(mapped->bytes().data()), mapped->bytes().size()}, file.string());
}

void verify_native_file(const fs::path& file) {
  fs::path root = fs::absolute(file).lexically_normal();
  const fs::path full = root;
  for (int depth = 0; depth < kDepthBelowRoot && root.has_relative_path(); ++depth) {
    root = root.parent_path();
    const auto manifest = read_manifest(root);
    if (!manifest) continue;
    const auto expected = manifest->files.find(full.lexically_relative(root).generic_string());
    if (expected == manifest->files.end()) return;
    const NativeFile found = describe_file(file);
    require(found.bytes == expected->second.bytes, "{}: {} bytes, its root's {} says {}: cut or replaced",
            file.string(), found.bytes, kManifestName, expected->second.bytes);
    require(found.xxh3 == expected->second.xxh3,
            "{}: damaged or replaced: its checksum is {}, its root's {} says {}", file.string(), found.xxh3,
            kManifestName, expected->second.xxh3);
    return;
  }
}

}  // namespace magi
