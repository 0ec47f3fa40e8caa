// SPDX-License-Identifier: Apache-2.0
// Whatever is wrong with a checkpoint root ends in one clear line that names the file.
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>

#include "cli/program.h"
#include "io/checkpoint.h"
#include "io/safetensors.h"
#include "io/torch_file.h"

namespace magi {
namespace {

namespace fs = std::filesystem;

class BadRoot : public ProgramTest {
 protected:
  /// A run that needs every part.
  void expect_root_refused(const std::string& part) const {
    expect_refused(
        {"-p", "x", "-i", (root() / "example.png").string(), "--refine", "64x64", "--refiner-steps", "1"},
        part);
  }
  void overwrite(const std::string& name, const std::string& content) const {
    std::ofstream(root() / name, std::ios::binary) << content;
  }
  std::string read(const std::string& name) const {
    std::ifstream in(root() / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  /// Rewrites the preview's weights, one tensor changed.
  void change_tensor(const std::string& name, const std::function<Tensor(const Tensor&)>& change) const {
    const fs::path file = root() / "preview/model.safetensors";
    std::vector<std::pair<std::string, Tensor>> tensors;
    {
      const auto store = open_checkpoint(file);
      for (const auto& [key, info] : store->entries()) {
        Tensor tensor = store->get(key, info.shape).clone();
        tensors.emplace_back(key, key == name ? change(tensor) : tensor);
      }
    }
    write_safetensors(file, tensors);
  }
};

TEST_F(BadRoot, AMissingPartOfARootWithARelativePath) {
  fs::remove_all(root() / "refiner");
  expect_error_line(run_program(work(), {"plan", "-m", "../root", "--refine", "64x64"}), 1,
                    "magi2: ../root/refiner: no such checkpoint");
}

TEST_F(BadRoot, NoRoot) {
  expect_error_line(run_program(work(), {"generate", "-m", "nowhere", "-p", "x"}), 1, "nowhere");
  expect_error_line(run_program(work(), {"generate", "-m", work().string(), "-p", "x"}), 1, work().string());
  EXPECT_TRUE(files().empty());
}

TEST_F(BadRoot, EachMissingFileIsNamed) {
  for (const std::string name :
       {"preview/model.safetensors", "refiner/model.safetensors", "text_encoder/config.json",
        "text_encoder/tokenizer.json", "text_encoder/model.safetensors", "turbo_vae/checkpoint.ckpt",
        "turbo_vae/TurboV3-Wan22-TinyShallow_7_7.json", "stable-audio-open-1.0/model_config.json",
        "stable-audio-open-1.0/model.safetensors", "vae/Wan2.2_VAE.pth"}) {
    SCOPED_TRACE(name);
    fs::rename(root() / name, work() / "away");
    expect_root_refused((root() / name).parent_path().string());
    fs::rename(work() / "away", root() / name);
  }
}

TEST_F(BadRoot, BrokenConfigurations) {
  for (const std::string name :
       {"config.json", "text_encoder/config.json", "text_encoder/tokenizer.json",
        "turbo_vae/TurboV3-Wan22-TinyShallow_7_7.json", "stable-audio-open-1.0/model_config.json"}) {
    SCOPED_TRACE(name);
    const std::string good = read(name);
    overwrite(name, good.substr(0, good.size() / 2));
    expect_root_refused((root() / name).string());
    overwrite(name, "[]");
    expect_root_refused((root() / name).string());
    overwrite(name, good);
  }
}

TEST_F(BadRoot, LyingSafetensors) {
  const std::string name = "preview/model.safetensors", good = read(name);
  const auto refused = [&](const std::string& content) {
    overwrite(name, content);
    expect_root_refused((root() / name).string());
  };
  const auto with_header = [](const std::string& header) {
    return little_endian(header.size(), 8) + header + std::string(64, '\0');
  };
  refused("");
  refused(good.substr(0, 100));
  refused(good.substr(0, good.size() - 1000));
  refused(std::string(8, '\xff') + good);
  refused(with_header(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},)"
                      R"("b":{"dtype":"F32","shape":[4],"data_offsets":[8,24]}})"));
  refused(with_header(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,16]}})"));
  refused(with_header(R"({"a":{"dtype":"F32","shape":[-4],"data_offsets":[0,16]}})"));
}

TEST_F(BadRoot, WrongShapesAndNanWeights) {
  const std::string name = "pre_adapter.video_embedder.weight";
  change_tensor(name, [](const Tensor& t) { return Tensor::zeros(t.dtype(), {t.dim(0), t.dim(1) + 1}); });
  expect_root_refused(name);
  change_tensor(name, [](const Tensor& t) {
    Tensor nan = Tensor::zeros(DType::f32, {t.dim(0), t.dim(1) - 1});
    nan.data<float>()[3] = std::numeric_limits<float>::quiet_NaN();
    return nan;
  });
  expect_root_refused(name);
}

TEST_F(BadRoot, HostilePicklesAreRefusedAndNotRun) {
  const fs::path witness = work() / "owned";
  const std::string attack =
      "\x80\x02" + pickled::global("os", "system") + "(" + pickled::text("touch " + witness.string()) + "tR.";
  for (const std::string name : {"vae/Wan2.2_VAE.pth", "turbo_vae/checkpoint.ckpt"}) {
    const std::string good = read(name);
    overwrite(name, zip_of({{"archive/data.pkl", attack}, {"archive/version", "3\n"}}));
    expect_root_refused("os.system");
    overwrite(name, good.substr(0, good.size() / 2));
    expect_root_refused((root() / name).string());
    overwrite(name, good);
  }
  EXPECT_FALSE(fs::exists(witness));
}

}  // namespace
}  // namespace magi
