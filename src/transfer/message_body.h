// What message.cpp and message_body.cpp share: a body put into its envelope.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "transfer/message.h"

namespace kvlane {

// The whole message, in the memory of `buffer` if that is enough. `body` is within the limit of the
// type.
Bytes seal_message(MessageType type, const TransferId& id, ByteView body, Bytes buffer = {});

}  // namespace kvlane
