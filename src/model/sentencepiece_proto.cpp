// The wire format of protocol buffers, as far as these messages need it.
// SPDX-License-Identifier: Apache-2.0
#include "model/sentencepiece_proto.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <optional>

#include "base/bytes.h"
#include "model/tokenizer_parts.h"
#include "model/utf8.h"

namespace kvlane {
namespace {

constexpr std::uint64_t kBpe = 2;

struct Field {
  std::uint64_t number = 0;
  std::uint64_t value = 0;  // of a varint or a fixed number
  std::string_view bytes;   // of a string or a message
};

// Takes field after field off the front of a message.
class MessageReader {
 public:
  explicit MessageReader(std::string_view message) : rest_(message) {}

  bool at_end() const { return rest_.empty(); }

  Result<Field> next() {
    KVLANE_ASSIGN(const std::uint64_t key, varint());
    Field field;
    field.number = key >> 3U;
    if (field.number == 0) return broken();
    switch (key & 7U) {
      case 0: {
        KVLANE_ASSIGN(field.value, varint());
        return field;
      }
      case 1: return fixed(8, field);
      case 2: {
        KVLANE_ASSIGN(const std::uint64_t length, varint());
        if (length > rest_.size()) return broken();
        field.bytes = take(static_cast<std::size_t>(length));
        return field;
      }
      case 5: return fixed(4, field);
      default: return broken();
    }
  }

 private:
  static Status broken() { return corrupt("it is not a model of sentencepiece"); }

  std::string_view take(std::size_t bytes) {
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return taken;
  }

  Result<std::uint64_t> varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= std::uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) return value;
    }
    return broken();
  }

  Result<Field> fixed(std::size_t bytes, Field field) {
    if (bytes > rest_.size()) return broken();
    const std::string_view little_endian = take(bytes);
    for (std::size_t at = 0; at < bytes; ++at) {
      field.value |= std::uint64_t{static_cast<unsigned char>(little_endian[at])} << (8 * at);
    }
    return field;
  }

  std::string_view rest_;
};

// Calls `on_field` for each field of the message.
template <class OnField>
Status for_each_field(std::string_view message, OnField on_field) {
  for (MessageReader reader(message); !reader.at_end();) {
    KVLANE_ASSIGN(const Field field, reader.next());
    KVLANE_TRY(on_field(field));
  }
  return {};
}

Status check_piece(std::string_view message) {
  return for_each_field(message, [](const Field& field) -> Status {
    if (field.number == 1) {  // piece
      if (field.bytes.size() > kAddedTokenBytesMax) {
        return unsupported("a piece of " + std::to_string(field.bytes.size()) +
                           " bytes; kvlane takes up to " + std::to_string(kAddedTokenBytesMax));
      }
      if (find_invalid_utf8(field.bytes)) return corrupt("a piece is not valid UTF-8");
    }
    if (field.number == 2 &&  // score
        !std::isfinite(std::bit_cast<float>(static_cast<std::uint32_t>(field.value)))) {
      return corrupt("the score of a piece is not finite");
    }
    return {};
  });
}

Status read_trainer_spec(std::string_view message, std::uint64_t& model_type,
                         SentencePieceFacts& facts) {
  return for_each_field(message, [&](const Field& field) -> Status {
    if (field.number == 3) model_type = field.value;
    if (field.number == 24 && field.value != 0) {
      return unsupported("'treat_whitespace_as_suffix' is not supported");
    }
    if (field.number == 44) {
      if (find_invalid_utf8(field.bytes)) return corrupt("'unk_surface' is not valid UTF-8");
      facts.unk_surface = field.bytes;
    }
    return {};
  });
}

Status read_normalizer_spec(std::string_view message, SentencePieceFacts& facts) {
  return for_each_field(message, [&](const Field& field) -> Status {
    switch (field.number) {
      case 2:
        if (!field.bytes.empty()) {
          return unsupported("a table of normalisation ('precompiled_charsmap') is not supported");
        }
        break;
      case 3: facts.add_dummy_prefix = field.value != 0; break;
      case 4: facts.remove_extra_whitespaces = field.value != 0; break;
      case 5:
        if (field.value == 0) return unsupported("unescaped spaces are not supported");
        break;
      default: break;
    }
    return {};
  });
}

}  // namespace

Result<SentencePieceFacts> read_sentencepiece_facts(std::string_view model) {
  SentencePieceFacts facts;
  std::uint64_t model_type = 1;  // unigram, unless the file says something else
  std::int32_t pieces = 0;
  KVLANE_TRY(for_each_field(model, [&](const Field& field) -> Status {
    switch (field.number) {
      case 1:
        if (++pieces > kTokenIdsMax) {
          return unsupported("more than " + std::to_string(kTokenIdsMax) + " pieces");
        }
        return check_piece(field.bytes);
      case 2: return read_trainer_spec(field.bytes, model_type, facts);
      case 3: return read_normalizer_spec(field.bytes, facts);
      case 5: {  // what undoes normalisation; only its table matters
        SentencePieceFacts unused;
        return read_normalizer_spec(field.bytes, unused);
      }
      default: return {};
    }
  }));
  if (pieces == 0) return corrupt("it is not a model of sentencepiece");
  if (model_type != kBpe) {
    return unsupported("the model type " + std::to_string(model_type) +
                       " is not supported; kvlane takes BPE (2)");
  }
  return facts;
}

}  // namespace kvlane
