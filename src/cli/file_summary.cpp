// Summaries of tensor files, for people and as JSON.
// SPDX-License-Identifier: Apache-2.0
#include "cli/file_summary.h"

#include <algorithm>
#include <iomanip>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

namespace kvlane {
namespace {

using Json = nlohmann::ordered_json;

// Below this a file is hardly worth the time.
constexpr double kRatioThatPays = 1.02;

double ratio(std::uint64_t raw_bytes, std::uint64_t coded_bytes) {
  return coded_bytes == 0 ? 1 : static_cast<double>(raw_bytes) / static_cast<double>(coded_bytes);
}

std::string shape_of(const Segment& segment) {
  std::string text = "[";
  for (const std::uint64_t dimension : segment.shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(dimension);
  }
  return text + "]";
}

// Names come from files: nothing of them may move the cursor.
std::string harmless(std::string text) {
  for (char& c : text) {
    if ((c >= 0 && c < ' ') || c == '\x7F') c = '?';
  }
  return text;
}

const char* codec_of(const SegmentCoding& coding) {
  return plane_codec_name(coding.coded_planes > 0 ? coding.codec : PlaneCodec::kNone);
}

std::size_t tensor_count(const TensorFileSummary& file) {
  return static_cast<std::size_t>(
      std::ranges::count(file.head.segments, SegmentRole::kTensor, &Segment::role));
}

Json tensors_json(const TensorFileSummary& file) {
  Json tensors = Json::array();
  for (std::size_t i = 0; i < file.segments.size(); ++i) {
    const Segment& segment = file.head.segments[i];
    const SegmentCoding& coding = file.segments[i];
    if (segment.role != SegmentRole::kTensor) continue;
    tensors.push_back({{"name", segment.name},
                       {"type", segment.type_name},
                       {"shape", segment.shape},
                       {"codec", codec_of(coding)},
                       {"row_elements", segment.row_elements},
                       {"bytes", segment.bytes},
                       {"coded_bytes", coding.coded_bytes},
                       {"ratio", ratio(segment.bytes, coding.coded_bytes)}});
  }
  return tensors;
}

void print_summary_json(std::ostream& to, const FileSummary& summary,
                        const FileSummaryStyle& style) {
  const TensorFileSummary& file = summary.file;
  Json json = {{"file", summary.path},
               {"out", summary.out.empty() ? Json() : Json(summary.out)},
               {"kind", kind_name(file.head.kind)},
               {"tensors", tensor_count(file)},
               {"planes", file.head.planes},
               {"file_bytes", file.head.file_bytes},
               {"container_bytes", file.container_bytes},
               {"ratio", ratio(file.head.file_bytes, file.container_bytes)},
               {"seconds", summary.seconds}};
  if (style.verbose) json["each"] = tensors_json(file);
  // Names need not be UTF-8.
  to << json.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n';
}

std::string decimal(double value, int digits) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << value;
  return text.str();
}

void print_row(std::ostream& to, const std::string& codec, const std::string& ratio_text,
               const std::string& type, const std::string& shape, const std::string& name) {
  to << std::left << std::setw(16) << codec << ' ' << std::right << std::setw(7) << ratio_text
     << "  " << std::left << std::setw(8) << type << ' ' << std::setw(20) << shape << ' ' << name
     << '\n';
}

void print_tensors(std::ostream& to, const TensorFileSummary& file) {
  print_row(to, "codec", "ratio", "type", "shape", "tensor");
  for (std::size_t i = 0; i < file.segments.size(); ++i) {
    const Segment& segment = file.head.segments[i];
    const SegmentCoding& coding = file.segments[i];
    if (segment.role != SegmentRole::kTensor) continue;
    print_row(to, codec_of(coding), decimal(ratio(segment.bytes, coding.coded_bytes), 3),
              segment.type_name, shape_of(segment), harmless(segment.name));
  }
}

void print_summary(std::ostream& to, const FileSummary& summary, const FileSummaryStyle& style) {
  const TensorFileSummary& file = summary.file;
  if (style.verbose) print_tensors(to, file);
  const auto raw_bytes = static_cast<double>(file.head.file_bytes);
  const std::string raw = decimal(raw_bytes / 1e6, 3) + " MB";
  const std::string coded = decimal(static_cast<double>(file.container_bytes) / 1e6, 3) + " MB";
  to << (summary.out.empty() ? summary.path + " is right: " : "wrote " + summary.out + ": ")
     << tensor_count(file) << " tensors, "
     << (style.encoded ? raw + " in " + coded : coded + " gave " + raw) << ", ratio "
     << decimal(ratio(file.head.file_bytes, file.container_bytes), 3) << ", in "
     << decimal(summary.seconds, 2) << " s ("
     << decimal(raw_bytes / 1e9 / std::max(summary.seconds, 1e-9), 2) << " GB/s)\n";
}

// Why it is not smaller: the types that take part in no codec, the largest first.
std::string reason(const TensorFileSummary& file) {
  std::map<std::string, std::uint64_t> bytes_of_type;
  std::uint64_t uncoded = 0;
  for (std::size_t i = 0; i < file.segments.size(); ++i) {
    const Segment& segment = file.head.segments[i];
    if (segment.role != SegmentRole::kTensor || file.segments[i].codec != PlaneCodec::kNone) {
      continue;
    }
    bytes_of_type[segment.type_name] += segment.bytes;
    uncoded += segment.bytes;
  }
  if (bytes_of_type.empty() || uncoded * 2 < file.head.file_bytes) {
    return "its values are too evenly spread, or it is too short";
  }
  std::vector<std::pair<std::uint64_t, std::string>> types;
  for (const auto& [name, bytes] : bytes_of_type) types.emplace_back(bytes, name);
  std::ranges::sort(types, std::greater<>());
  const auto share = static_cast<int>(100 * ratio(types[0].first, file.head.file_bytes) + 0.5);
  return std::to_string(share) + " % of it is of type " + types[0].second +
         ", which no codec makes smaller here";
}

}  // namespace

void print_file_summary(const FileSummary& summary, const FileSummaryStyle& style) {
  std::ostream& to = summary.out == "-" ? std::cerr : std::cout;
  if (style.json) {
    print_summary_json(to, summary, style);
  } else {
    print_summary(to, summary, style);
  }
  const TensorFileSummary& file = summary.file;
  if (style.with_codec && ratio(file.head.file_bytes, file.container_bytes) < kRatioThatPays) {
    std::cerr << "kvlane: note: encoding " << summary.path << " hardly pays: " << reason(file)
              << '\n';
  }
}

}  // namespace kvlane
