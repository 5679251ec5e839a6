// Hidden states as parts of extents: spec/store.md, section 5.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "format/extent.h"
#include "model/hidden_rows.h"
#include "model/model.h"

namespace kvlane {

// Fills the fields of an extent of kind 2 that say what its rows are; its parts are of
// kBlockTokens * hidden.stored_bytes() bytes.
void describe_hidden(const HiddenFormat& hidden, ExtentHead& head);

// How the rows of an extent of kind 2 are stored; empty where they are not of this model, or in a
// way that is not known here.
std::optional<HiddenFormat> stored_hidden_format(const ExtentHead& head, const Model& model);

}  // namespace kvlane
