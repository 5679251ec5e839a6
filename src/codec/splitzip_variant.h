// How the decoder of codec/splitzip_device_decode.h goes about bf16 planes: what is tried on
// devices, one macro each. What is best becomes the code, and this file goes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

// 1: warps take spans in turn (a tile is a span a warp), begin before anything is checked, and need
// no barrier but the last. 0: runs of spans, after a pass over the counts.
#ifndef KVLANE_SZ_TILES
#define KVLANE_SZ_TILES 0
#endif
// All others but the last five are of tiles. 1: a span is loaded before the one before it is
// stored.
#ifndef KVLANE_SZ_PIPE
#define KVLANE_SZ_PIPE 0
#endif
// Spans that a warp has room for in shared memory; 0: they go to registers.
#ifndef KVLANE_SZ_RING
#define KVLANE_SZ_RING 0
#endif
// 1: what goes to that room goes there by bulk copies.
#ifndef KVLANE_SZ_BULK
#define KVLANE_SZ_BULK 0
#endif
// 1: spans are patched in shared memory, and stored from there in order; 2: by bulk copies.
#ifndef KVLANE_SZ_STAGE
#define KVLANE_SZ_STAGE 0
#endif
// 1: where a plane ends, memory is asked for the beginning of the one that comes into its place.
// 2: the code is there, but nothing is asked.
#ifndef KVLANE_SZ_RELAY
#define KVLANE_SZ_RELAY 0
#endif
// 1: memory is asked for a span ahead of its load to registers. Also of runs.
#ifndef KVLANE_SZ_AHEAD
#define KVLANE_SZ_AHEAD 1
#endif
// Threads of a block and blocks of a multiprocessor, with many planes and with few.
#ifndef KVLANE_SZ_MANY
#define KVLANE_SZ_MANY 256
#endif
#ifndef KVLANE_SZ_MANY_BLOCKS
#define KVLANE_SZ_MANY_BLOCKS 4
#endif
#ifndef KVLANE_SZ_FEW
#define KVLANE_SZ_FEW 512
#endif
#ifndef KVLANE_SZ_FEW_BLOCKS
#define KVLANE_SZ_FEW_BLOCKS 2
#endif
// Of load_once() and store_once(), gpu/device_code.h: KVLANE_LOAD_HINT, KVLANE_STORE_HINT.
