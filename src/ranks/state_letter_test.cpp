// Letters about state stores: they come back as they went, and whatever else arrives is refused.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/test_results.h"
#include "ranks/letter.h"
#include "ranks/state_letter.h"

namespace kvlane {
namespace {

BlockName name_of(int number) {
  BlockName name{};
  name[0] = static_cast<std::byte>(number);
  name[31] = std::byte{9};
  return name;
}

SaveOrder save() { return {1ULL << 40, {7, 3, name_of(1), name_of(2)}}; }
FindOrder find() { return {4, 1, 300, {name_of(1), name_of(2), name_of(3)}}; }
RankStored stored() {
  return {{{3, 512.5, "hidden"}, {0, 0, ""}}, {{9, 1e9, "kv+splitzip"}, {1, 2, "kv"}}};
}
RestoreOrder restore() {
  return {8,         1,          1,
          {5, 6, 7}, {-1, 4, 2}, {name_of(1), name_of(2)},
          1,         true,       {RestoreSource::kHidden, RestoreSource::kSlabs}};
}
Advanced advanced() {
  return {SequenceRestore::Progress::kWaiting, 12, 5, corrupt("damaged"), {1, 2, 3, 4}, 1e6};
}
CompleteOrder complete() { return {11, 6, name_of(4), name_of(5)}; }

TEST(StateLetter, ComesBackAsItWent) {
  const SaveOrder saved = take(decode_save(encode_save(save())));
  EXPECT_EQ(saved.request, save().request);
  EXPECT_EQ(saved.block.id, 7);
  EXPECT_EQ(saved.block.index, 3);
  EXPECT_EQ(saved.block.name, name_of(1));
  EXPECT_EQ(saved.block.first, name_of(2));
  for (const bool asks : {true, false}) {
    const FindOrder found = asks ? take(decode_find(encode_find(find())))
                                 : take(decode_prefetch(encode_prefetch(find())));
    EXPECT_EQ(found.request, 4U);
    EXPECT_EQ(found.first, 1);
    EXPECT_EQ(found.tokens, 300);
    EXPECT_EQ(found.names, find().names);
  }
  const RankStored told = take(decode_stored(encode_stored(stored())));
  ASSERT_EQ(told.hidden.size(), 2U);
  ASSERT_EQ(told.slabs.size(), 2U);
  EXPECT_EQ(told.hidden[0].bytes, 512.5);
  EXPECT_EQ(told.slabs[0].form, "kv+splitzip");
  EXPECT_EQ(told.slabs[1].blocks, 1);
  const RestoreOrder order = take(decode_restore(encode_restore(restore())));
  EXPECT_EQ(order.job, 8U);
  EXPECT_EQ(order.first, 1);
  EXPECT_EQ(order.gone, 1);
  EXPECT_EQ(order.tokens, restore().tokens);
  EXPECT_EQ(order.blocks, restore().blocks);
  EXPECT_EQ(order.names, restore().names);
  EXPECT_EQ(order.count, 1);
  EXPECT_TRUE(order.embedded);
  EXPECT_EQ(order.sources, restore().sources);
  EXPECT_EQ(take(decode_advance(encode_advance({1, 2, 3}))).rows_allowed, 3U);
  const Advanced back = take(decode_advanced(encode_advanced(advanced())));
  EXPECT_EQ(back.progress, SequenceRestore::Progress::kWaiting);
  EXPECT_EQ(back.rows_ready, 12U);
  EXPECT_EQ(back.blocks, 5);
  EXPECT_EQ(back.status.code(), Code::kCorrupt);
  EXPECT_EQ(back.busy, advanced().busy);
  EXPECT_EQ(back.bytes, 1e6);
  const CompleteOrder all = take(decode_complete(encode_complete(complete())));
  EXPECT_EQ(all.stream, 11U);
  EXPECT_EQ(all.block, 6);
  EXPECT_EQ(all.name, name_of(4));
  EXPECT_EQ(all.first, name_of(5));
  EXPECT_EQ(take(decode_flush(encode_flush(21))), 21U);
  EXPECT_EQ(take(decode_forget(encode_forget(22))), 22U);
  EXPECT_EQ(take(decode_end_rows(encode_end_rows(23))), 23U);
  EXPECT_EQ(take(kind_of(encode_wake())), LetterKind::kWake);
}

struct Kind {
  Bytes letter;
  std::function<Status(ByteView)> decode;
};

std::vector<Kind> kinds() {
  return {
      {encode_save(save()), [](ByteView bytes) { return decode_save(bytes).status(); }},
      {encode_find(find()), [](ByteView bytes) { return decode_find(bytes).status(); }},
      {encode_prefetch(find()), [](ByteView bytes) { return decode_prefetch(bytes).status(); }},
      {encode_stored(stored()), [](ByteView bytes) { return decode_stored(bytes).status(); }},
      {encode_flush(1), [](ByteView bytes) { return decode_flush(bytes).status(); }},
      {encode_restore(restore()), [](ByteView bytes) { return decode_restore(bytes).status(); }},
      {encode_advance({1, 2, 3}), [](ByteView bytes) { return decode_advance(bytes).status(); }},
      {encode_advanced(advanced()), [](ByteView bytes) { return decode_advanced(bytes).status(); }},
      {encode_forget(1), [](ByteView bytes) { return decode_forget(bytes).status(); }},
      {encode_complete(complete()), [](ByteView bytes) { return decode_complete(bytes).status(); }},
      {encode_end_rows(1), [](ByteView bytes) { return decode_end_rows(bytes).status(); }},
  };
}

// Every shorter letter, and a longer one.
TEST(StateLetter, OfAnotherLengthIsRefused) {
  for (const Kind& kind : kinds()) {
    for (std::size_t bytes = 0; bytes < kind.letter.size(); ++bytes) {
      const Bytes cut(kind.letter.begin(),
                      kind.letter.begin() + static_cast<std::ptrdiff_t>(bytes));
      EXPECT_EQ(kind.decode(cut).code(), Code::kCorrupt) << bytes;
    }
    Bytes longer = kind.letter;
    longer.push_back(std::byte{0});
    EXPECT_EQ(kind.decode(longer).code(), Code::kCorrupt);
  }
}

// Lists that say that they are long take no memory, and nothing is read past the end.
TEST(StateLetter, OfOtherBytesIsReadOrRefused) {
  std::uint32_t draw = 0;
  for (const Kind& kind : kinds()) {
    for (std::size_t at = 0; at < kind.letter.size(); ++at) {
      for (const int value : {0, 1, 2, 127, 128, 255}) {
        Bytes changed = kind.letter;
        changed[at] = static_cast<std::byte>(value);
        (void)kind.decode(changed);
      }
    }
    for (int round = 0; round < 2000; ++round) {
      Bytes noise(kind.letter.size());
      for (std::byte& byte : noise) {
        byte = static_cast<std::byte>(philox4x32(5, {draw++, 0, 0, 0})[0]);
      }
      noise[0] = kind.letter[0];
      (void)kind.decode(noise);
    }
  }
  FindOrder beyond = find();
  beyond.first = 4;
  EXPECT_EQ(decode_find(encode_find(beyond)).status().code(), Code::kCorrupt);
  Bytes other = encode_advanced(advanced());
  other[0] = std::byte{3};
  EXPECT_EQ(decode_advanced(other).status().code(), Code::kCorrupt);
}

}  // namespace
}  // namespace kvlane
