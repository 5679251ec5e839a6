// What kvlane must know of a tokenizer.model before it gives the file to the sentencepiece library.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "kvlane/status.h"

namespace kvlane {

struct SentencePieceFacts {
  bool add_dummy_prefix = true;          // a space before each text
  bool remove_extra_whitespaces = true;  // one space for several, none around a text
  std::string unk_surface = " \u2047 ";  // the text of the unknown token
};

// Walks through the message ModelProto (sentencepiece_model.proto) without trusting a length.
// kCorrupt for what is none; kUnsupported for another model than BPE, tables of normalisation
// (which the library would read unchecked), unescaped spaces, spaces at the end of words, more than
// kTokenIdsMax pieces and pieces above kAddedTokenBytesMax.
Result<SentencePieceFacts> read_sentencepiece_facts(std::string_view model);

}  // namespace kvlane
