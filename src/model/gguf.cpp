// One pass from the front; a reader that ran past the end says so before anything is believed.
// SPDX-License-Identifier: Apache-2.0
#include "model/gguf.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "model/safetensors.h"
#include "model/utf8.h"
#include "model/widen.h"

namespace kvlane {
namespace {

constexpr std::uint32_t kGgufMagic = 0x46554747;  // "GGUF"
constexpr std::uint64_t kGgufAlignment = 32;      // unless the file says another

// Types of metadata.
enum class MetadataType : std::uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kText,
  kList,
  kU64,
  kI64,
  kF64
};

Status truncated() { return corrupt("it ends too early"); }

// What a tensor of this type has in bytes for `elements`; nullopt: not whole blocks.
std::optional<std::uint64_t> bytes_of(GgufType type, std::uint64_t elements) {
  switch (type) {
    case GgufType::kF32: return 4 * elements;
    case GgufType::kF16:
    case GgufType::kBf16: return 2 * elements;
    case GgufType::kQ8_0: break;
  }
  if (elements % kQ8BlockElements != 0) return std::nullopt;
  return elements / kQ8BlockElements * kQ8BlockBytes;
}

class Parser {
 public:
  explicit Parser(ByteView file) : file_(file), reader_(file) {}

  Result<GgufFile> run() {
    const auto magic = reader_.read<std::uint32_t>();
    const auto version = reader_.read<std::uint32_t>();
    if (reader_.failed() || magic != kGgufMagic) return corrupt("it is not a GGUF file");
    if (version != 2 && version != 3) {
      return unsupported("it is GGUF of version " + std::to_string(version) +
                         "; kvlane reads 2 and 3");
    }
    const auto tensors = reader_.read<std::uint64_t>();
    const auto entries = reader_.read<std::uint64_t>();
    if (reader_.failed()) return truncated();
    if (tensors > kTensorsMax || entries > kGgufEntriesMax) {
      return unsupported("it has " + std::to_string(tensors) + " tensors and " +
                         std::to_string(entries) + " entries of metadata; kvlane takes up to " +
                         std::to_string(kTensorsMax) + " and " + std::to_string(kGgufEntriesMax));
    }
    for (std::uint64_t entry = 0; entry < entries; ++entry) KVLANE_TRY(read_entry());
    std::vector<Place> places;
    for (std::uint64_t tensor = 0; tensor < tensors; ++tensor) {
      KVLANE_ASSIGN(Place place, read_place());
      places.push_back(std::move(place));
    }
    KVLANE_TRY(place_tensors(places));
    return std::move(result_);
  }

 private:
  // A tensor whose data was not looked for yet.
  struct Place {
    std::string name;
    GgufTensor tensor;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };

  Result<std::string_view> read_text() {
    const auto length = reader_.read<std::uint64_t>();
    if (reader_.failed() || length > reader_.remaining()) return truncated();
    return as_text(reader_.read_bytes(static_cast<std::size_t>(length)));
  }

  Result<std::string> read_name(const char* what) {
    KVLANE_ASSIGN(const std::string_view name, read_text());
    if (name.empty() || name.size() > kTensorNameBytesMax || find_invalid_utf8(name)) {
      return corrupt(std::string("the name of ") + what + " is empty, too long or not UTF-8");
    }
    return std::string(name);
  }

  Status read_entry() {
    KVLANE_ASSIGN(std::string name, read_name("an entry"));
    const auto kind = static_cast<MetadataType>(reader_.read<std::uint32_t>());
    auto value = kind == MetadataType::kList ? read_list() : read_value(kind);
    if (!value.ok()) return value.status().with_context("'" + name + "'");
    if (!result_.metadata.emplace(name, std::move(*value)).second) {
      return corrupt("'" + name + "' is there twice");
    }
    return {};
  }

  template <class T>
  double read_signed() {
    return static_cast<double>(static_cast<std::make_signed_t<T>>(reader_.read<T>()));
  }

  // Any kind of number; nullopt for another kind.
  std::optional<double> read_number(MetadataType kind) {
    switch (kind) {
      case MetadataType::kU8: return reader_.read<std::uint8_t>();
      case MetadataType::kI8: return read_signed<std::uint8_t>();
      case MetadataType::kU16: return reader_.read<std::uint16_t>();
      case MetadataType::kI16: return read_signed<std::uint16_t>();
      case MetadataType::kU32: return reader_.read<std::uint32_t>();
      case MetadataType::kI32: return read_signed<std::uint32_t>();
      case MetadataType::kF32: return std::bit_cast<float>(reader_.read<std::uint32_t>());
      case MetadataType::kU64: return static_cast<double>(reader_.read<std::uint64_t>());
      case MetadataType::kI64: return read_signed<std::uint64_t>();
      case MetadataType::kF64: return std::bit_cast<double>(reader_.read<std::uint64_t>());
      case MetadataType::kBool:
      case MetadataType::kText:
      case MetadataType::kList: break;
    }
    return std::nullopt;
  }

  Result<GgufValue> read_value(MetadataType kind) {
    if (kind == MetadataType::kText) {
      KVLANE_ASSIGN(const std::string_view text, read_text());
      return GgufValue(text);
    }
    if (kind == MetadataType::kBool) {
      const bool value = reader_.read<std::uint8_t>() != 0;
      return reader_.failed() ? Result<GgufValue>(truncated()) : GgufValue(value);
    }
    const std::optional<double> number = read_number(kind);
    if (!number) return corrupt("has the type " + std::to_string(static_cast<unsigned>(kind)));
    return reader_.failed() ? Result<GgufValue>(truncated()) : GgufValue(*number);
  }

  Result<GgufValue> read_list() {
    const auto kind = static_cast<MetadataType>(reader_.read<std::uint32_t>());
    const auto count = reader_.read<std::uint64_t>();
    // Every element has a byte at least.
    if (reader_.failed() || count > reader_.remaining()) return truncated();
    if (count > kGgufListMax) {
      return unsupported("has " + std::to_string(count) + " elements; kvlane takes up to " +
                         std::to_string(kGgufListMax));
    }
    if (kind == MetadataType::kText) {
      std::vector<std::string_view> texts;
      for (std::uint64_t i = 0; i < count; ++i) {
        KVLANE_ASSIGN(const std::string_view text, read_text());
        texts.push_back(text);
      }
      return GgufValue(std::move(texts));
    }
    std::vector<double> numbers;
    for (std::uint64_t i = 0; i < count && !reader_.failed(); ++i) {
      const std::optional<double> number =
          read_number(kind == MetadataType::kBool ? MetadataType::kU8 : kind);
      if (!number) return unsupported("is a list of lists, or of an unknown type");
      numbers.push_back(*number);
    }
    return reader_.failed() ? Result<GgufValue>(truncated()) : GgufValue(std::move(numbers));
  }

  Result<Place> read_place() {
    Place place;
    KVLANE_ASSIGN(place.name, read_name("a tensor"));
    const auto dimensions = reader_.read<std::uint32_t>();
    if (reader_.failed()) return truncated();
    if (dimensions > kGgufDimensionsMax) {
      return corrupt("tensor '" + place.name + "' has " + std::to_string(dimensions) +
                     " dimensions");
    }
    // No product of dimensions may exceed what the file can hold, so none overflows.
    std::uint64_t elements = 1;
    for (std::uint32_t i = 0; i < dimensions; ++i) {
      const auto size = reader_.read<std::uint64_t>();
      if (reader_.failed()) return truncated();
      if (size == 0 || size > file_.size() || elements > 2 * file_.size() / size) {
        return corrupt("tensor '" + place.name + "' is larger than the file, or empty");
      }
      elements *= size;
      place.tensor.shape.insert(place.tensor.shape.begin(), static_cast<std::int64_t>(size));
    }
    const auto type = reader_.read<std::uint32_t>();
    place.offset = reader_.read<std::uint64_t>();
    if (reader_.failed()) return truncated();
    place.tensor.type = static_cast<GgufType>(type);
    if (type != 0 && type != 1 && type != 8 && type != 30) {
      return unsupported("tensor '" + place.name + "' has the type " + std::to_string(type) +
                         "; kvlane reads F32 (0), F16 (1), Q8_0 (8) and BF16 (30)");
    }
    const std::optional<std::uint64_t> bytes = bytes_of(place.tensor.type, elements);
    if (!bytes || (!place.tensor.shape.empty() && place.tensor.type == GgufType::kQ8_0 &&
                   place.tensor.shape.back() % std::int64_t{kQ8BlockElements} != 0)) {
      return corrupt("tensor '" + place.name + "' has rows that are not whole blocks");
    }
    place.bytes = *bytes;
    return place;
  }

  Status place_tensors(std::vector<Place>& places) {
    std::uint64_t alignment = kGgufAlignment;
    if (const auto at = result_.metadata.find("general.alignment"); at != result_.metadata.end()) {
      const double* const value = std::get_if<double>(&at->second);
      if (value == nullptr || !(*value >= 1 && *value <= 65536)) {
        return corrupt("'general.alignment' is not a number from 1 to 65536");
      }
      alignment = static_cast<std::uint64_t>(*value);
    }
    const std::uint64_t read = file_.size() - reader_.remaining();
    const std::uint64_t begin = (read + alignment - 1) / alignment * alignment;
    const std::uint64_t room = file_.size() > begin ? file_.size() - begin : 0;
    for (Place& place : places) {
      if (place.offset > room || place.bytes > room - place.offset) {
        return corrupt("tensor '" + place.name + "' is not inside the file");
      }
      place.tensor.bytes = file_.subspan(static_cast<std::size_t>(begin + place.offset),
                                         static_cast<std::size_t>(place.bytes));
      if (!result_.tensors.emplace(place.name, std::move(place.tensor)).second) {
        return corrupt("tensor '" + place.name + "' is there twice");
      }
    }
    return {};
  }

  ByteView file_;
  ByteReader reader_;
  GgufFile result_;
};

void dequantise_q8(const std::byte* blocks, std::size_t count, float* out) {
  for (std::size_t block = 0; block < count; ++block, blocks += kQ8BlockBytes) {
    float scale = 0;
    widen(ElementType::kFp16, blocks, 1, &scale);
    for (std::size_t i = 0; i < kQ8BlockElements; ++i) {
      *out++ = scale * static_cast<float>(static_cast<std::int8_t>(blocks[2 + i]));
    }
  }
}

}  // namespace

Result<GgufFile> parse_gguf(ByteView file) {
  try {
    return Parser(file).run();
  } catch (const std::bad_alloc&) {
    return exhausted("not enough memory for the metadata of a GGUF file");
  }
}

void dequantise(const GgufTensor& tensor, std::size_t first, std::size_t count, float* out) {
  const std::byte* const data = tensor.bytes.data();
  switch (tensor.type) {
    case GgufType::kF32: return widen(ElementType::kF32, data + 4 * first, count, out);
    case GgufType::kF16: return widen(ElementType::kFp16, data + 2 * first, count, out);
    case GgufType::kBf16: return widen(ElementType::kBf16, data + 2 * first, count, out);
    case GgufType::kQ8_0:
      return dequantise_q8(data + first / kQ8BlockElements * kQ8BlockBytes,
                           count / kQ8BlockElements, out);
  }
}

}  // namespace kvlane
