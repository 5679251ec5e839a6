// {"kvlane_profiles": 1, "profiles": [...]}.
// SPDX-License-Identifier: Apache-2.0
#include "bench/profile_file.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "crypto/sha256.h"
#include "model/json_depth.h"
#include "transfer/hex.h"

namespace kvlane {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int kVersion = 1;
constexpr const char* kHead = "kvlane_profiles";

const char* source_name(RestoreSource source) {
  return source == RestoreSource::kHidden ? "hidden" : "slabs";
}

OrderedJson points_json(const std::vector<TimedTokens>& points) {
  OrderedJson array = OrderedJson::array();
  for (const TimedTokens& point : points) {
    array.push_back({{"tokens", point.tokens}, {"seconds", point.seconds}});
  }
  return array;
}

OrderedJson profile_json(const MachineProfile& profile) {
  OrderedJson forms = OrderedJson::array();
  for (const ProfiledForm& form : profile.forms) {
    forms.push_back({{"name", form.name},
                     {"source", source_name(form.source)},
                     {"bytes", form.bytes},
                     {"seconds", form.seconds}});
  }
  OrderedJson directories = OrderedJson::array();
  for (const ProfiledDirectory& directory : profile.directories) {
    directories.push_back({{"path", directory.path}, {"read_rate", directory.read_rate}});
  }
  return {{"model", to_hex(profile.model)},
          {"machine", profile.machine},
          {"kv_format", profile.kv_format},
          {"layers", profile.layers},
          {"prefill", points_json(profile.prefill)},
          {"project", points_json(profile.project)},
          {"forms", std::move(forms)},
          {"directories", std::move(directories)},
          {"read_rate", profile.read_rate}};
}

// The member of that name, or one that is no value of any kind.
const OrderedJson& member_of(const OrderedJson& object, const char* name) {
  static const OrderedJson kNone = OrderedJson(OrderedJson::value_t::discarded);
  if (!object.is_object()) return kNone;
  const auto at = object.find(name);
  return at == object.end() ? kNone : *at;
}

Status read_text(const OrderedJson& object, const char* name, std::string& text) {
  constexpr std::size_t kBytesMax = 4096;
  const OrderedJson& value = member_of(object, name);
  if (!value.is_string() || value.get_ref<const std::string&>().size() > kBytesMax) {
    return corrupt("\"" + std::string(name) + "\" is no text of at most 4096 bytes");
  }
  text = value.get<std::string>();
  return {};
}

// A figure that can be measured: finite, and not below `least`.
Status read_figure(const OrderedJson& object, const char* name, double least, double& figure) {
  const OrderedJson& value = member_of(object, name);
  if (value.is_number()) figure = value.get<double>();
  if (value.is_number() && std::isfinite(figure) && figure >= least) return {};
  return corrupt("\"" + std::string(name) + "\" is no figure that can be measured");
}

Status read_count(const OrderedJson& object, const char* name, int max, int& count) {
  double figure = 0;
  KVLANE_TRY(read_figure(object, name, 1, figure));
  if (figure > max || figure != std::floor(figure)) {
    return corrupt("\"" + std::string(name) + "\" is no number from 1 to " + std::to_string(max));
  }
  count = static_cast<int>(figure);
  return {};
}

// Calls read(entry) for each entry of a list.
template <class Read>
Status read_list(const OrderedJson& object, const char* name, std::size_t least, std::size_t most,
                 const Read& read) {
  const OrderedJson& list = member_of(object, name);
  if (!list.is_array() || list.size() < least || list.size() > most) {
    return corrupt("\"" + std::string(name) + "\" is no list of " + std::to_string(least) + " to " +
                   std::to_string(most) + " entries");
  }
  for (const OrderedJson& entry : list) KVLANE_TRY(read(entry));
  return {};
}

Status read_point(const OrderedJson& entry, std::vector<TimedTokens>& points) {
  TimedTokens point{};
  KVLANE_TRY(read_count(entry, "tokens", kContextMax, point.tokens));
  KVLANE_TRY(read_figure(entry, "seconds", 0, point.seconds));
  if (!points.empty() && points.back().tokens >= point.tokens) {
    return corrupt("\"tokens\" do not rise");
  }
  points.push_back(point);
  return {};
}

Status read_points(const OrderedJson& object, const char* name, std::vector<TimedTokens>& points) {
  return read_list(object, name, 1, kProfileListMax,
                   [&](const OrderedJson& entry) { return read_point(entry, points); });
}

Status read_directory(const OrderedJson& entry, ProfiledDirectory& directory) {
  KVLANE_TRY(read_text(entry, "path", directory.path));
  return read_figure(entry, "read_rate", 0, directory.read_rate);
}

Status read_form(const OrderedJson& entry, ProfiledForm& form) {
  KVLANE_TRY(read_text(entry, "name", form.name));
  std::string source;
  KVLANE_TRY(read_text(entry, "source", source));
  for (const RestoreSource known : {RestoreSource::kHidden, RestoreSource::kSlabs}) {
    if (source != source_name(known)) continue;
    form.source = known;
    KVLANE_TRY(read_figure(entry, "bytes", 0, form.bytes));
    return read_figure(entry, "seconds", 0, form.seconds);
  }
  return corrupt("\"source\" is neither hidden nor slabs");
}

Status read_profile(const OrderedJson& entry, MachineProfile& profile) {
  std::string model;
  KVLANE_TRY(read_text(entry, "model", model));
  if (!parse_hex(model, profile.model)) return corrupt("\"model\" is no identity");
  KVLANE_TRY(read_text(entry, "machine", profile.machine));
  KVLANE_TRY(read_text(entry, "kv_format", profile.kv_format));
  KVLANE_TRY(read_count(entry, "layers", kLayersMax, profile.layers));
  KVLANE_TRY(read_points(entry, "prefill", profile.prefill));
  KVLANE_TRY(read_points(entry, "project", profile.project));
  KVLANE_TRY(read_list(entry, "forms", 0, kProfileListMax, [&](const OrderedJson& each) {
    return read_form(each, profile.forms.emplace_back());
  }));
  KVLANE_TRY(read_list(entry, "directories", 0, kProfileListMax, [&](const OrderedJson& each) {
    return read_directory(each, profile.directories.emplace_back());
  }));
  return read_figure(entry, "read_rate", 0, profile.read_rate);
}

}  // namespace

std::string to_json(const std::vector<MachineProfile>& profiles) {
  OrderedJson list = OrderedJson::array();
  for (const MachineProfile& profile : profiles) list.push_back(profile_json(profile));
  // A path need not be UTF-8.
  return OrderedJson{{kHead, kVersion}, {"profiles", std::move(list)}}.dump(
             1, ' ', false, OrderedJson::error_handler_t::replace) +
         "\n";
}

Result<std::vector<MachineProfile>> parse_profile_file(std::string_view text) {
  if (text.size() > kProfileFileBytesMax) {
    return corrupt("it has " + std::to_string(text.size()) + " bytes, at most " +
                   std::to_string(kProfileFileBytesMax) + " are allowed");
  }
  if (json_depth(text) > kJsonDepthMax) return corrupt("it is nested too deep");
  const OrderedJson root = OrderedJson::parse(text, nullptr, false);
  if (root.is_discarded()) return corrupt("it is not valid JSON");
  const OrderedJson& version = member_of(root, kHead);
  if (!version.is_number_unsigned()) {
    return corrupt("this is no file of profiles: it has no number \"" + std::string(kHead) + "\"");
  }
  if (version.get<std::uint64_t>() != kVersion) {
    return unsupported("version " + version.dump() + " of files of profiles is not known, 1 is");
  }
  std::vector<MachineProfile> profiles;
  KVLANE_TRY(read_list(root, "profiles", 0, kProfilesMax, [&](const OrderedJson& entry) {
    const std::string place = "profile " + std::to_string(profiles.size());
    return read_profile(entry, profiles.emplace_back()).with_context(place);
  }));
  return profiles;
}

MachineProfile* find_profile(std::vector<MachineProfile>& profiles, const ModelIdentity& model,
                             std::string_view machine, std::string_view kv_format) {
  for (MachineProfile& profile : profiles) {
    if (profile.model == model && profile.machine == machine && profile.kv_format == kv_format) {
      return &profile;
    }
  }
  return nullptr;
}

}  // namespace kvlane
