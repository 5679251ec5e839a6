// Reading safetensors headers. The JSON goes through a SAX handler: it sees duplicate names, which
// a document tree would swallow, stops at the first surprise, and builds nothing but the entries.
// SPDX-License-Identifier: Apache-2.0
#include "model/safetensors.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/checked.h"

namespace kvlane {
namespace {

using Json = nlohmann::json;

// One tensor as the header describes it, before anything about it is believed.
struct Entry {
  std::string name;
  std::optional<std::string> type;
  std::optional<std::vector<std::uint64_t>> shape;
  std::optional<std::vector<std::uint64_t>> offsets;
};

// Accepts exactly {NAME: {"dtype": text, "shape": [n...], "data_offsets": [n, n]}, ...} with at
// most one "__metadata__": {text: text, ...}. Every other event ends the parse with a reason.
class HeaderHandler final : public nlohmann::json_sax<Json> {
 public:
  const Status& status() const { return status_; }
  const std::vector<Entry>& entries() const { return entries_; }

  bool start_object(std::size_t) override {
    switch (place_) {
      case Place::kOutside: place_ = Place::kRoot; return true;
      case Place::kRoot: place_ = in_metadata_ ? Place::kMetadata : Place::kTensor; return true;
      default: return unexpected("an object");
    }
  }

  bool key(string_t& name) override {
    switch (place_) {
      case Place::kRoot: return tensor_name(name);
      case Place::kTensor: return field_name(name);
      default: return true;  // metadata: any text
    }
  }

  bool end_object() override {
    if (place_ == Place::kTensor) {
      const Entry& entry = entries_.back();
      if (!entry.type) return missing("dtype");
      if (!entry.shape) return missing("shape");
      if (!entry.offsets) return missing("data_offsets");
    }
    place_ = place_ == Place::kRoot ? Place::kOutside : Place::kRoot;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::kTensor || field_ == Field::kType) return unexpected("an array");
    numbers().emplace();
    place_ = Place::kNumbers;
    return true;
  }

  bool end_array() override {
    place_ = Place::kTensor;
    return true;
  }

  bool string(string_t& text) override {
    if (place_ == Place::kMetadata) return true;
    if (place_ != Place::kTensor || field_ != Field::kType) return unexpected("a string");
    entries_.back().type = text;
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Place::kNumbers) return unexpected("a number");
    const std::size_t count_max = field_ == Field::kShape ? kTensorDimensionsMax : 2;
    if (numbers()->size() == count_max) {
      return fail("the " + field_text() + " of tensor \"" + entries_.back().name +
                  "\" has more than " + std::to_string(count_max) + " numbers");
    }
    numbers()->push_back(value);
    return true;
  }

  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return unexpected("a fraction"); }
  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a truth value"); }
  bool binary(binary_t&) override { return unexpected("binary data"); }

  bool parse_error(std::size_t position, const std::string&, const Json::exception&) override {
    return fail("the header is not valid JSON at byte " + std::to_string(position));
  }

 private:
  enum class Place { kOutside, kRoot, kMetadata, kTensor, kNumbers };
  enum class Field { kNone, kType, kShape, kOffsets };

  bool tensor_name(const std::string& name) {
    if (name.size() > kTensorNameBytesMax) {
      return fail("a tensor name has " + std::to_string(name.size()) +
                  " bytes, more than the limit of " + std::to_string(kTensorNameBytesMax));
    }
    if (!names_.insert(name).second) return fail("the header has \"" + name + "\" twice");
    in_metadata_ = name == "__metadata__";
    field_ = Field::kNone;
    if (in_metadata_) return true;
    if (entries_.size() == kTensorsMax) {
      return fail("the header has more than " + std::to_string(kTensorsMax) + " tensors");
    }
    entries_.emplace_back().name = name;
    return true;
  }

  bool field_name(const std::string& name) {
    const Entry& entry = entries_.back();
    bool again = false;
    if (name == "dtype") {
      field_ = Field::kType;
      again = entry.type.has_value();
    } else if (name == "shape") {
      field_ = Field::kShape;
      again = entry.shape.has_value();
    } else if (name == "data_offsets") {
      field_ = Field::kOffsets;
      again = entry.offsets.has_value();
    } else {
      return fail("tensor \"" + entry.name + "\" has an unknown field");
    }
    return !again || fail("tensor \"" + entry.name + "\" has the field " + name + " twice");
  }

  std::optional<std::vector<std::uint64_t>>& numbers() {
    return field_ == Field::kShape ? entries_.back().shape : entries_.back().offsets;
  }

  std::string field_text() const {
    switch (field_) {
      case Field::kNone: return "entry";
      case Field::kType: return "dtype";
      case Field::kShape: return "shape";
      case Field::kOffsets: return "data_offsets";
    }
    return "entry";
  }

  bool missing(const char* field) {
    return fail("tensor \"" + entries_.back().name + "\" has no " + field);
  }

  bool unexpected(const char* what) {
    if (place_ == Place::kOutside) return fail(std::string("the header is ") + what);
    if (place_ == Place::kMetadata || in_metadata_) {
      return fail(std::string("\"__metadata__\" holds ") + what + " where only strings may be");
    }
    return fail("the " + field_text() + " of tensor \"" + entries_.back().name + "\" is or holds " +
                what);
  }

  bool fail(std::string message) {
    if (status_.ok()) status_ = corrupt(std::move(message));
    return false;
  }

  Place place_ = Place::kOutside;
  Field field_ = Field::kNone;
  bool in_metadata_ = false;
  std::vector<Entry> entries_;
  std::set<std::string> names_;
  Status status_;
};

// The JSON text of the header; what follows it in `file` is the tensors' data.
Result<std::string_view> header_text(ByteView file) {
  ByteReader reader(file);
  const auto header_bytes = reader.read<std::uint64_t>();
  if (reader.failed()) {
    return corrupt("the file has " + std::to_string(file.size()) +
                   " bytes, too few for the 8 of a header length");
  }
  if (header_bytes > kSafetensorsHeaderBytesMax) {
    return corrupt("the header is said to have " + std::to_string(header_bytes) +
                   " bytes, more than the limit of " + std::to_string(kSafetensorsHeaderBytesMax));
  }
  if (header_bytes > reader.remaining()) {
    return corrupt("the header is said to have " + std::to_string(header_bytes) +
                   " bytes, but only " + std::to_string(reader.remaining()) + " follow");
  }
  const std::string_view text = as_text(reader.read_bytes(header_bytes));
  if (text.empty() || text.front() != '{') return corrupt("the header does not begin with {");
  return text;
}

Result<ElementType> element_type(const SafetensorsEntry& entry) {
  for (const ElementType type : {ElementType::kF32, ElementType::kBf16, ElementType::kFp16}) {
    if (entry.type == safetensors_type_name(type)) return type;
  }
  const bool short_name = entry.type.size() <= 16;
  return unsupported("tensor \"" + entry.name + "\" has the type " +
                     (short_name ? entry.type : "of a long name") +
                     "; kvlane reads F32, BF16 and F16");
}

// Checks one entry on its own against the bytes behind the header.
Result<TensorView> tensor_view(const SafetensorsEntry& entry, ByteView data) {
  TensorView tensor;
  KVLANE_ASSIGN(tensor.type, element_type(entry));
  std::optional<std::uint64_t> bytes = element_bytes(tensor.type);
  for (const std::uint64_t dimension : entry.shape) {
    bytes = bytes ? checked_mul(*bytes, dimension) : std::nullopt;
    if (dimension > static_cast<std::uint64_t>(INT64_MAX)) bytes = std::nullopt;
    tensor.shape.push_back(static_cast<std::int64_t>(dimension));
  }
  if (!bytes) return corrupt("the shape of tensor \"" + entry.name + "\" overflows 64 bits");
  const std::uint64_t begin = entry.begin;
  const std::uint64_t end = entry.end;
  const std::string range = "[" + std::to_string(begin) + ", " + std::to_string(end) + ")";
  if (begin > end || end > data.size()) {
    return corrupt("tensor \"" + entry.name + "\" lies at bytes " + range + " of " +
                   std::to_string(data.size()) + ": the file is truncated or the range is wrong");
  }
  if (end - begin != *bytes) {
    return corrupt("tensor \"" + entry.name + "\" of shape " + shape_text(tensor.shape) +
                   " needs " + std::to_string(*bytes) + " bytes, but its range is " + range);
  }
  tensor.bytes = data.subspan(begin, end - begin);
  return tensor;
}

// The tensors must tile the data: what overlaps or is left out was not written by an honest writer.
Status check_tiling(const std::map<std::string, TensorView>& tensors, ByteView data) {
  struct Range {
    std::uint64_t begin;
    std::uint64_t end;
    const std::string* name;
  };
  std::vector<Range> ranges;
  ranges.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) {
    const auto begin = static_cast<std::uint64_t>(tensor.bytes.data() - data.data());
    ranges.push_back({begin, begin + tensor.bytes.size(), &name});
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  std::uint64_t at = 0;
  for (const Range& range : ranges) {
    if (range.begin < at) {
      return corrupt("tensor \"" + *range.name + "\" begins at byte " +
                     std::to_string(range.begin) +
                     ", inside the one before it, which ends at byte " + std::to_string(at));
    }
    if (range.begin > at) {
      return corrupt("bytes [" + std::to_string(at) + ", " + std::to_string(range.begin) +
                     ") before tensor \"" + *range.name + "\" belong to no tensor");
    }
    at = range.end;
  }
  if (at != data.size()) {
    return corrupt("the last " + std::to_string(data.size() - at) +
                   " bytes of the file belong to no tensor");
  }
  return {};
}

}  // namespace

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t dimension : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(dimension);
  }
  return text + "]";
}

const char* safetensors_type_name(ElementType type) {
  switch (type) {
    case ElementType::kF32: return "F32";
    case ElementType::kBf16: return "BF16";
    case ElementType::kFp16: return "F16";
    case ElementType::kFp8E4m3: return "F8_E4M3";
    case ElementType::kFp8E5m2: return "F8_E5M2";
  }
  return "unknown";
}

Result<std::vector<SafetensorsEntry>> parse_safetensors_header(std::string_view text) {
  HeaderHandler handler;
  if (!Json::sax_parse(text.begin(), text.end(), &handler)) return handler.status();
  std::vector<SafetensorsEntry> entries;
  entries.reserve(handler.entries().size());
  for (const Entry& entry : handler.entries()) {
    if (entry.offsets->size() != 2) {
      return corrupt("tensor \"" + entry.name + "\" has " + std::to_string(entry.offsets->size()) +
                     " data_offsets instead of 2");
    }
    entries.push_back(
        {entry.name, *entry.type, *entry.shape, (*entry.offsets)[0], (*entry.offsets)[1]});
  }
  return entries;
}

Result<std::map<std::string, TensorView>> parse_safetensors(ByteView file) {
  KVLANE_ASSIGN(const std::string_view text, header_text(file));
  const ByteView data = file.subspan(sizeof(std::uint64_t) + text.size());
  KVLANE_ASSIGN(const std::vector<SafetensorsEntry> entries, parse_safetensors_header(text));
  std::map<std::string, TensorView> tensors;
  for (const SafetensorsEntry& entry : entries) {
    KVLANE_ASSIGN(TensorView tensor, tensor_view(entry, data));
    tensors.emplace(entry.name, std::move(tensor));
  }
  KVLANE_TRY(check_tiling(tensors, data));
  return tensors;
}

std::uint64_t TensorSpec::elements() const {
  std::uint64_t count = 1;
  for (const std::int64_t dimension : shape) count *= static_cast<std::uint64_t>(dimension);
  return count;
}

Bytes build_safetensors_header(std::span<const TensorSpec> tensors) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  // Readers of the Hugging Face family refuse weights whose writer they cannot tell.
  header["__metadata__"] = {{"format", "pt"}};
  std::uint64_t at = 0;
  for (const TensorSpec& tensor : tensors) {
    header[tensor.name] = {{"dtype", safetensors_type_name(tensor.type)},
                           {"shape", tensor.shape},
                           {"data_offsets", {at, at + tensor.bytes()}}};
    at += tensor.bytes();
  }
  std::string text = header.dump();
  text.resize(ceil_div(text.size(), sizeof(std::uint64_t)) * sizeof(std::uint64_t), ' ');
  ByteWriter writer;
  writer.write(std::uint64_t{text.size()});
  writer.write_bytes(as_byte_view(text));
  return writer.take();
}

}  // namespace kvlane
