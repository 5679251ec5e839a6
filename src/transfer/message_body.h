// What message.cpp and message_body.cpp share: a body put into its envelope.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "transfer/message.h"

namespace kvlane {

// The whole message. `body` is within the limit of the type.
Bytes seal_message(MessageType type, const TransferId& id, ByteView body);

}  // namespace kvlane
