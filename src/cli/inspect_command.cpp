// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "cli/commands.h"
#include "io/checkpoint.h"
#include "io/native_manifest.h"
#include "run/inventory.h"

namespace magi {
namespace {

constexpr std::size_t kProblemsShown = 10;

std::string size_text(std::size_t bytes) {
  const auto b = static_cast<double>(bytes);
  if (b >= 1e9) return fmt::format("{:.1f} GB", b / 1e9);
  if (b >= 1e6) return fmt::format("{:.1f} MB", b / 1e6);
  return fmt::format("{:.1f} kB", b / 1e3);
}

void print_part(const PartInventory& part) {
  const char* verdict = part.problems.empty() ? "complete"
                        : part.needed         ? "INCOMPLETE"
                                              : "incomplete (optional)";
  fmt::print("{:<16} {:>10}  {:>6} tensors  {:<10} {}\n", part.name, size_text(part.bytes), part.tensors,
             fmt::format("{}", fmt::join(part.dtypes, "+")), verdict);
  fmt::print("                 {}\n", part.path.string());
  for (std::size_t i = 0; i < std::min(part.problems.size(), kProblemsShown); ++i)
    fmt::print("                 - {}\n", part.problems[i]);
  if (part.problems.size() > kProblemsShown)
    fmt::print("                 - and {} more\n", part.problems.size() - kProblemsShown);
  if (part.unknown > 0) fmt::print("                 {} further tensors are not used\n", part.unknown);
}

void inspect_root(const std::string& path) {
  const std::vector<PartInventory> parts = take_inventory(CheckpointRoot(path, std::nullopt));
  std::size_t missing = 0;
  for (const PartInventory& part : parts) {
    print_part(part);
    missing += part.needed && !part.problems.empty();
  }
  require(missing == 0, "{}: parts that text-to-video needs and that are incomplete: {}", path, missing);
}

void inspect_tensors(const std::string& path) {
  const auto store = open_checkpoint(path);
  std::size_t bytes = 0;
  for (const auto& [name, info] : store->entries()) {
    fmt::print("{:<8} {:<24} {:>10}  {}\n", info.stored_as, to_string(info.shape), size_text(info.bytes),
               printable(name));
    bytes += info.bytes;
  }
  fmt::print("{} tensors, {}\n", store->entries().size(), size_text(bytes));
}

/// Reads every file of a native root.
void verify_root(const std::filesystem::path& path) {
  const auto manifest = read_manifest(path);
  require(manifest.has_value(), "{}: --verify is for native roots; this one has no {}", path.string(),
          kManifestName);
  std::size_t bytes = 0;
  for (const auto& [name, file] : manifest->files) {
    verify_native_file(path / name);
    bytes += file.bytes;
  }
  fmt::print("{} files, {}: every checksum is right\n", manifest->files.size(), size_text(bytes));
}

/// A root has parts in directories; anything else is one checkpoint.
bool is_root(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  return fs::is_directory(path) && (fs::exists(path / "preview") || fs::exists(path / "text_encoder") ||
                                    fs::exists(path / "turbo_vae"));
}

}  // namespace

void add_inspect_command(CLI::App& app, Work& work) {
  CLI::App& c = *app.add_subcommand("inspect", "List what a checkpoint holds and what is missing");
  auto path = std::make_shared<std::string>();
  c.add_option("path", *path, "A checkpoint root, a part of one, or a weights file")
      ->type_name("PATH")
      ->required()
      ->envname("MAGI2_CKPT_ROOT");
  auto verify = std::make_shared<bool>(false);
  c.add_flag("--verify", *verify,
             "Read every file of a native root (magi2 quantize) and compare its checksum");
  c.callback([path, verify, &work] {
    work = [path, verify] {
      if (is_root(*path))
        inspect_root(*path);
      else
        inspect_tensors(*path);
      if (*verify) verify_root(*path);
    };
  });
}

}  // namespace magi
