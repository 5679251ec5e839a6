// JSON to GPUs.
// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_file.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/file.h"

namespace kvlane {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kFileBytesMax = 1 << 20;

struct Member {
  std::string_view name;
  double Gpu::*value;
  double unit;
  std::optional<double> otherwise;  // none: it has to be there
  double least;
  double most;
};

constexpr std::array<Member, 10> kMembers = {{
    {"memory_gb", &Gpu::memory_bytes, 1e9, {}, 1e-3, 1e5},
    {"memory_gb_s", &Gpu::memory_rate, 1e9, {}, 1e-3, 1e6},
    {"matrix_tflops", &Gpu::matrix_rate, 1e12, {}, 1e-6, 1e6},
    {"vector_tflops", &Gpu::vector_rate, 1e12, {}, 1e-6, 1e6},
    {"matrix_int8_tops", &Gpu::matrix_int8_rate, 1e12, 0, 0, 1e6},
    {"peer_gb_s", &Gpu::peer_rate, 1e9, 8, 1e-3, 1e6},
    {"peer_us", &Gpu::peer_delay, 1e-6, 60, 0, 1e6},
    {"memory_share", &Gpu::memory_share, 1, 0.8, 1e-3, 1},
    {"matrix_share", &Gpu::matrix_share, 1, 0.75, 1e-3, 1},
    {"attention_share", &Gpu::attention_share, 1, 0.4, 1e-3, 1},
}};

Result<double> number(const Json& object, const Member& member) {
  const std::string name(member.name);
  const auto found = object.find(name);
  if (found == object.end()) {
    if (member.otherwise) return member.unit * *member.otherwise;
    return invalid_argument("'" + name + "' is missing");
  }
  // What JSON cannot be in range is no number either: NaN compares with nothing.
  const double value = found->is_number() ? found->get<double>() : -1;
  if (value >= member.least && value <= member.most) return member.unit * value;
  char range[80];
  std::snprintf(range, sizeof(range), "' must be a number from %g to %g", member.least,
                member.most);
  return invalid_argument("'" + name + range);
}

Result<Gpu> parse_gpu(const Json& object) {
  if (!object.is_object()) return invalid_argument("it is no object");
  const auto name = object.find("name");
  if (name == object.end() || !name->is_string() || name->get<std::string>().empty()) {
    return invalid_argument("'name' must be a text");
  }
  Gpu gpu{.name = name->get<std::string>()};
  for (const auto& [key, value] : object.items()) {
    const bool known =
        std::any_of(kMembers.begin(), kMembers.end(),
                    [&key = key](const Member& member) { return member.name == key; });
    if (!known && key != "name") return invalid_argument("there is no member '" + key + "'");
  }
  for (const Member& member : kMembers) {
    KVLANE_ASSIGN(gpu.*member.value, number(object, member));
  }
  return gpu;
}

}  // namespace

Result<std::vector<Gpu>> parse_gpus(std::string_view text) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_array()) return invalid_argument("a file of GPUs is a JSON array of objects");
  std::vector<Gpu> gpus;
  for (const Json& object : json) {
    Result<Gpu> gpu = parse_gpu(object);
    const std::string which = "GPU " + std::to_string(gpus.size() + 1);
    if (!gpu.ok()) return gpu.status().with_context(which);
    const bool twice = std::any_of(gpus.begin(), gpus.end(),
                                   [&](const Gpu& each) { return each.name == gpu->name; });
    if (twice) return invalid_argument(which + ": '" + gpu->name + "' is there twice");
    gpus.push_back(*std::move(gpu));
  }
  return gpus;
}

Result<std::vector<Gpu>> read_gpus(const std::filesystem::path& path) {
  KVLANE_ASSIGN(const std::string text, read_text_file(path, kFileBytesMax));
  Result<std::vector<Gpu>> gpus = parse_gpus(text);
  return gpus.ok() ? std::move(gpus) : gpus.status().with_context(path.string());
}

}  // namespace kvlane
