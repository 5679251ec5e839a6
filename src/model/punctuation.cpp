// Punctuation as the `tokenizers` package knows it: the characters of Unicode 8, all others left
// out, which a property of a newer table would not do.
// SPDX-License-Identifier: Apache-2.0
#include "model/pretokenizer.h"

namespace kvlane {

std::string_view punctuation_rule() {
  return "[!-/:-@\\[-`{-~"
         "\u00a1\u00a7\u00ab\u00b6\u00b7\u00bb\u00bf\u037e\u0387\u055a-"
         "\u055f\u0589\u058a\u05be\u05c0"
         "\u05c3\u05c6\u05f3\u05f4\u0609\u060a\u060c\u060d\u061b\u061e\u061f\u066a-\u066d\u06d4"
         "\u0700-\u070d\u07f7-\u07f9\u0830-"
         "\u083e\u085e\u0964\u0965\u0970\u0af0\u0df4\u0e4f\u0e5a\u0e5b"
         "\u0f04-\u0f12\u0f14\u0f3a-\u0f3d\u0f85\u0fd0-\u0fd4\u0fd9\u0fda\u104a-\u104f\u10fb"
         "\u1360-\u1368\u1400\u166d\u166e\u169b\u169c\u16eb-\u16ed\u1735\u1736\u17d4-\u17d6"
         "\u17d8-\u17da\u1800-\u180a\u1944\u1945\u1a1e\u1a1f\u1aa0-\u1aa6\u1aa8-\u1aad\u1b5a-\u1b60"
         "\u1bfc-\u1bff\u1c3b-\u1c3f\u1c7e\u1c7f\u1cc0-\u1cc7\u1cd3\u2010-\u2027\u2030-\u2043"
         "\u2045-\u2051\u2053-\u205e\u207d\u207e\u208d\u208e\u2308-\u230b\u2329\u232a\u2768-\u2775"
         "\u27c5\u27c6\u27e6-\u27ef\u2983-\u2998\u29d8-\u29db\u29fc\u29fd\u2cf9-\u2cfc\u2cfe\u2cff"
         "\u2d70\u2e00-\u2e2e\u2e30-\u2e42\u3001-\u3003\u3008-\u3011\u3014-\u301f\u3030\u303d\u30a0"
         "\u30fb\ua4fe\ua4ff\ua60d-\ua60f\ua673\ua67e\ua6f2-\ua6f7\ua874-\ua877\ua8ce\ua8cf"
         "\ua8f8-\ua8fa\ua8fc\ua92e\ua92f\ua95f\ua9c1-\ua9cd\ua9de\ua9df\uaa5c-\uaa5f\uaade\uaadf"
         "\uaaf0\uaaf1\uabeb\ufd3e\ufd3f\ufe10-\ufe19\ufe30-\ufe52\ufe54-"
         "\ufe61\ufe63\ufe68\ufe6a\ufe6b"
         "\uff01-\uff03\uff05-\uff0a\uff0c-\uff0f\uff1a\uff1b\uff1f\uff20\uff3b-\uff3d\uff3f\uff5b"
         "\uff5d\uff5f-\uff65\U00010100-"
         "\U00010102\U0001039f\U000103d0\U0001056f\U00010857\U0001091f"
         "\U0001093f\U00010a50-\U00010a58\U00010a7f\U00010af0-\U00010af6\U00010b39-\U00010b3f"
         "\U00010b99-\U00010b9c\U00011047-\U0001104d\U000110bb\U000110bc\U000110be-\U000110c1"
         "\U00011140-\U00011143\U00011174\U00011175\U000111c5-\U000111c9\U000111cd\U000111db"
         "\U000111dd-\U000111df\U00011238-\U0001123d\U000112a9\U000114c6\U000115c1-\U000115d7"
         "\U00011641-\U00011643\U0001173c-\U0001173e\U00012470-"
         "\U00012474\U00016a6e\U00016a6f\U00016af5"
         "\U00016b37-\U00016b3b\U00016b44\U0001bc9f\U0001da87-\U0001da8b]";
}

}  // namespace kvlane
