// Stores that are filled for the purpose, and their contenders.
// SPDX-License-Identifier: Apache-2.0
#include "bench/store_bench.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <utility>

#include "base/bf16.h"
#include "bench/interleaved.h"
#include "bench/new_folders.h"
#include "bench/read_loop.h"
#include "codec/codec.h"
#include "store/catalogue.h"
#include "store/directories.h"
#include "store/paced_files.h"
#include "store/store.h"

namespace kvlane {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kSavingBytes = std::uint64_t{128} << 20;
// Different extents; others are copies of them.
constexpr std::size_t kContentsMax = 16;
constexpr double kStoreShareGoal = 0.95;  // of what the files alone give
constexpr double kCodecGain = 1.25;

// K and V of extents, one behind the other.
struct Contents {
  PlaneShape shape;  // of K, and of V
  std::vector<Bytes> extents;
};

Bytes gaussian_values(std::size_t count, std::mt19937& random) {
  std::normal_distribution<float> gauss;
  Bytes bytes(2 * count);
  for (std::size_t i = 0; i < count; ++i) {
    const bf16 value = to_bf16(gauss(random));
    std::memcpy(bytes.data() + 2 * i, &value.bits, 2);
  }
  return bytes;
}

Result<Contents> make_contents(const StoreBenchOptions& options, std::size_t count) {
  const int heads = static_cast<int>(options.extent_bytes / kStoreBenchHeadBytes);
  Contents contents{.shape = {ElementType::kBf16, heads, kBlockTokens, 128}};
  count = std::min(count, kContentsMax);
  std::mt19937 random(20261123);
  std::ifstream in;
  if (!options.values.empty()) {
    in.open(options.values, std::ios::binary);
    if (!in) return not_found("cannot read " + options.values.string());
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (options.values.empty()) {
      contents.extents.push_back(gaussian_values(options.extent_bytes / 2, random));
      continue;
    }
    Bytes bytes(options.extent_bytes);
    in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    if (static_cast<std::size_t>(in.gcount()) != bytes.size()) break;
    contents.extents.push_back(std::move(bytes));
  }
  if (contents.extents.empty()) {
    return invalid_argument(options.values.string() + " has fewer than the " +
                            std::to_string(options.extent_bytes) + " bytes of an extent");
  }
  return contents;
}

// The same extents as they are stored, and how long their planes are there.
struct Stored {
  std::vector<Bytes> extents;
  std::vector<std::size_t> k_bytes;
  std::size_t bytes = 0;  // of all
};

Stored code(const Contents& contents, const Codec& codec) {
  Stored stored;
  const std::size_t plane = contents.shape.bytes();
  for (const Bytes& values : contents.extents) {
    Bytes coded(2 * codec.bound(contents.shape));
    const ByteView all(values);
    const std::size_t k = codec.encode(contents.shape, all.first(plane), nullptr, coded);
    const std::size_t v =
        codec.encode(contents.shape, all.subspan(plane), nullptr, std::span(coded).subspan(k));
    coded.resize(k + v);
    stored.bytes += coded.size();
    stored.k_bytes.push_back(k);
    stored.extents.push_back(std::move(coded));
  }
  return stored;
}

Result<std::unique_ptr<StoreFiles>> open_files(const StoreBenchOptions& options) {
  const auto devices = static_cast<int>(options.directories.size());
  KVLANE_ASSIGN(auto files, open_store_files({.devices = devices, .depth = options.depth}));
  if (options.read_rate <= 0) return files;
  return paced_files(std::move(files), {.read_bytes_per_second = options.read_rate}, devices);
}

// A store of `count` extents of one part each: extent i has the contents i modulo how many there
// are.
class FilledStore {
 public:
  static Result<std::unique_ptr<FilledStore>> fill(const StoreBenchOptions& options,
                                                   const NewFolders& folders, const Codec& codec,
                                                   const Contents& contents, std::size_t count) {
    auto filled = std::unique_ptr<FilledStore>(new FilledStore(contents, code(contents, codec)));
    KVLANE_TRY(filled->save(options, folders, codec, count));
    KVLANE_TRY(filled->find_parts());
    return filled;
  }

  Store& store() const { return *store_; }
  const Contents& contents() const { return contents_; }
  std::size_t count() const { return extents_.size(); }
  const PinnedExtent& extent(std::size_t i) const { return extents_[i]; }
  std::size_t content(std::size_t i) const { return content_[i]; }
  ByteView stored(std::size_t i) const { return stored_.extents[content_[i]]; }
  std::size_t k_bytes(std::size_t i) const { return stored_.k_bytes[content_[i]]; }
  double ratio() const {
    return static_cast<double>(contents_.extents.size() * contents_.extents[0].size()) /
           static_cast<double>(stored_.bytes);
  }

  // Where an extent's part lies.
  struct Place {
    std::uint32_t segment = 0;
    std::uint64_t offset = 0;
    std::size_t bytes = 0;  // padded
  };
  const Place& place(std::size_t i) const { return places_[i]; }
  struct SegmentFile {
    std::uint32_t segment = 0;
    int directory = 0;
    fs::path path;
  };
  const std::vector<SegmentFile>& segments() const { return segments_; }

 private:
  FilledStore(const Contents& contents, Stored stored)
      : contents_(contents), stored_(std::move(stored)) {}

  ExtentHead head_of(std::size_t i, const Codec& codec) const {
    const std::size_t content = i % stored_.extents.size();
    const std::size_t k = stored_.k_bytes[content];
    ExtentHead head;
    std::memcpy(head.key.name.data(), &i, sizeof i);
    head.codec = codec.name();
    head.heads = contents_.shape.kv_heads;
    head.width = contents_.shape.head_dim;
    head.rope_applied = true;
    head.parts = {{.k_bytes = static_cast<std::uint32_t>(k),
                   .v_bytes = static_cast<std::uint32_t>(stored_.extents[content].size() - k)}};
    return head;
  }

  Status save(const StoreBenchOptions& options, const NewFolders& folders, const Codec& codec,
              std::size_t count) {
    StoreOptions made{.create = true};
    made.saving_bytes_max = std::max<std::uint64_t>(kSavingBytes, 4 * options.extent_bytes);
    for (const fs::path& folder : folders.paths()) {
      directories_.push_back(folder / (codec.name() == "none" ? "raw" : "coded"));
      made.directories.push_back({directories_.back(), 0});
    }
    KVLANE_ASSIGN(auto files, open_files(options));
    KVLANE_ASSIGN(store_, Store::open(made, std::move(files)));
    Status outcome;
    std::mutex mutex;
    for (std::size_t i = 0; i < count; ++i) {
      const ExtentHead head = head_of(i, codec);
      auto draft = store_->draft(head);
      if (draft.status().code() == Code::kExhausted) {
        store_->flush();
        draft = store_->draft(head);
      }
      if (!draft.ok()) return draft.status();
      const Bytes& bytes = stored_.extents[i % stored_.extents.size()];
      std::memcpy(draft->part(0).data(), bytes.data(), bytes.size());
      store_->put(std::move(*draft), static_cast<int>(i % directories_.size()),
                  [&outcome, &mutex](const Status& status) {
                    const std::lock_guard guard(mutex);
                    if (!status.ok() && outcome.ok()) outcome = status;
                  });
    }
    store_->flush();
    return outcome;
  }

  // In the order of their extents; from the catalogue, which others may look at.
  Status find_parts() {
    KVLANE_ASSIGN(Catalogue catalogue,
                  Catalogue::open(catalogue_path(directories_[0]), Catalogue::Access::kRead));
    KVLANE_ASSIGN(const CatalogueContents rows, catalogue.load());
    for (const CatalogueSegment& row : rows.segments) {
      const fs::path& directory = directories_[static_cast<std::size_t>(row.directory)];
      segments_.push_back(
          {row.segment, row.directory, segments_path(directory) / segment_file_name(row.segment)});
    }
    for (const CatalogueExtent& row : rows.extents) {
      std::size_t i = 0;
      std::memcpy(&i, row.head.key.name.data(), sizeof i);
      auto found = store_->find(row.head.key);
      if (found.size() != 1) return internal_error("an extent that was saved is not found");
      extents_.push_back(std::move(found[0]));
      content_.push_back(i % stored_.extents.size());
      const ExtentPart& part = row.head.parts[0];
      places_.push_back({row.segment, (std::uint64_t{row.page} + part.page) * kExtentPageBytes,
                         part.padded_bytes()});
    }
    return {};
  }

  const Contents& contents_;
  const Stored stored_;
  std::vector<fs::path> directories_;
  std::unique_ptr<Store> store_;
  std::vector<PinnedExtent> extents_;
  std::vector<std::size_t> content_;  // of each extent
  std::vector<Place> places_;
  std::vector<SegmentFile> segments_;
};

// The files of a store without the store.
class PlainFiles {
 public:
  static Result<std::unique_ptr<PlainFiles>> open(const StoreBenchOptions& options,
                                                  const FilledStore& filled) {
    auto plain = std::unique_ptr<PlainFiles>(new PlainFiles(filled));
    KVLANE_ASSIGN(plain->files_, open_files(options));
    for (const FilledStore::SegmentFile& segment : filled.segments()) {
      KVLANE_ASSIGN(plain->open_[segment.segment],
                    plain->files_->open(segment.path, FileAccess::kOpen, segment.directory));
    }
    return plain;
  }

  std::string description() const { return files_->description(); }

  void begin(std::size_t i, std::span<std::byte> memory, ReadLoop::Done done) const {
    const FilledStore::Place& place = filled_.place(i);
    files_->submit({.file = open_.at(place.segment).get(),
                    .offset = place.offset,
                    .memory = memory.first(place.bytes),
                    .done = std::move(done)});
  }

 private:
  explicit PlainFiles(const FilledStore& filled) : filled_(filled) {}

  const FilledStore& filled_;
  std::map<std::uint32_t, std::unique_ptr<StoreFile>> open_;
  std::unique_ptr<StoreFiles> files_;  // goes first, when nothing is under way
};

class StoreBench {
 public:
  explicit StoreBench(const StoreBenchOptions& options) : options_(options) {}

  Result<Report> run() {
    KVLANE_TRY(check());
    KVLANE_ASSIGN(const Codec* const none, find_codec("none", options_.isa));
    KVLANE_ASSIGN(codec_, find_codec(options_.codec, options_.isa));
    const bool coding = codec_ != none;
    const auto count = static_cast<std::size_t>(options_.bytes / options_.extent_bytes);
    KVLANE_ASSIGN(contents_, make_contents(options_, count));
    KVLANE_TRY(folders_.make(options_.directories));
    say("writing");
    KVLANE_ASSIGN(raw_, FilledStore::fill(options_, folders_, *none, contents_, count));
    if (coding) {
      KVLANE_ASSIGN(coded_, FilledStore::fill(options_, folders_, *codec_, contents_, count));
    }
    KVLANE_ASSIGN(plain_, PlainFiles::open(options_, *raw_));
    order_.resize(count);
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    KVLANE_TRY(prepare_memory());
    KVLANE_TRY(compare());
    KVLANE_TRY(measure());
    return report();
  }

 private:
  void say(std::string_view what) const {
    if (options_.progress) options_.progress(what);
  }

  Status check() const {
    if (options_.directories.empty()) return invalid_argument("there is no directory to measure");
    if (options_.extent_bytes == 0 || options_.extent_bytes % kStoreBenchHeadBytes != 0 ||
        options_.extent_bytes > kStoreBenchHeadBytes * 1024) {
      return invalid_argument("extents of " + std::to_string(options_.extent_bytes) +
                              " bytes are no multiple of " + std::to_string(kStoreBenchHeadBytes) +
                              " up to 32 MiB");
    }
    if (options_.bytes < options_.extent_bytes) {
      return invalid_argument(std::to_string(options_.bytes) + " bytes are less than one extent");
    }
    if (options_.repeats < 1 || options_.threads < 1) {
      return invalid_argument("a round and a thread is the least");
    }
    return {};
  }

  // As many slots as reads, and one for each thread that is at something else meanwhile.
  Status prepare_memory() {
    const auto reads = static_cast<std::size_t>(options_.depth) * options_.directories.size();
    std::size_t bytes = 0;
    for (const auto* filled : {raw_.get(), coded_.get()}) {
      for (std::size_t i = 0; filled != nullptr && i < filled->count(); ++i) {
        bytes = std::max(bytes, filled->place(i).bytes);
      }
    }
    const auto slots = reads + static_cast<std::size_t>(options_.threads);
    KVLANE_TRY(loop_.reserve(slots, bytes));
    if (coded_ == nullptr) return {};
    for (std::size_t s = 0; s < slots; ++s) {
      KVLANE_ASSIGN(PageBuffer values, PageBuffer::allocate(options_.extent_bytes));
      decoded_.push_back(std::move(values));
    }
    return {};
  }

  static ReadLoop::Begin read_of(const FilledStore& filled) {
    return [&filled](std::size_t i, std::span<std::byte> memory, ReadLoop::Done done) {
      std::vector<ExtentRead> one;
      one.push_back({filled.extent(i), 0, 1, memory});
      filled.store().read(std::move(one), [done = std::move(done)](
                                              std::size_t, const Status& status) { done(status); });
    };
  }
  ReadLoop::Begin read_of_files() const {
    return [this](std::size_t i, std::span<std::byte> memory, ReadLoop::Done done) {
      plain_->begin(i, memory, std::move(done));
    };
  }
  static Status take_nothing(std::size_t, ByteView, std::size_t) { return {}; }

  // Into memory of the slot, past the caches: nobody reads it soon.
  Status decode(std::size_t i, ByteView memory, std::size_t slot) const {
    const std::size_t k = coded_->k_bytes(i);
    const std::size_t all = coded_->stored(i).size();
    const PlaneShape& shape = contents_.shape;
    std::byte* const values = decoded_[slot].data();
    KVLANE_TRY(codec_->decode(shape, memory.first(k), {values, shape.head_bytes(), true}));
    return codec_->decode(shape, memory.subspan(k, all - k),
                          {values + shape.bytes(), shape.head_bytes(), true});
  }

  // Every extent in every way, compared with what was written.
  Status compare() {
    say("comparing");
    const auto same = [](ByteView a, ByteView b) {
      return std::memcmp(a.data(), b.data(), b.size()) == 0
                 ? Status()
                 : internal_error("what was read is not what was written");
    };
    const auto raw = [&](std::size_t i, ByteView memory, std::size_t) {
      return same(memory, raw_->stored(i));
    };
    KVLANE_TRY(loop_.run(order_, options_.threads, read_of_files(), raw));
    KVLANE_TRY(loop_.run(order_, options_.threads, read_of(*raw_), raw));
    if (coded_ == nullptr) return {};
    return loop_.run(order_, options_.threads, read_of(*coded_),
                     [&](std::size_t i, ByteView memory, std::size_t slot) -> Status {
                       KVLANE_TRY(decode(i, memory, slot));
                       return same({decoded_[slot].data(), options_.extent_bytes},
                                   contents_.extents[coded_->content(i)]);
                     });
  }

  // Another order each time, so that no device can know it.
  void time(std::vector<Contender>& contenders, const char* name, int threads,
            ReadLoop::Begin begin, ReadLoop::Take take) {
    contenders.push_back({name,
                          [this, threads, begin = std::move(begin), take = std::move(take)] {
                            std::shuffle(order_.begin(), order_.end(), random_);
                            const Status status = loop_.run(order_, threads, begin, take);
                            if (status_.ok()) status_ = status;
                          },
                          {}});
  }

  Status measure() {
    time(contenders_, "files", 1, read_of_files(), take_nothing);
    time(contenders_, "raw", 1, read_of(*raw_), take_nothing);
    if (coded_ != nullptr) {
      time(contenders_, "coded", options_.threads, read_of(*coded_),
           [this](std::size_t i, ByteView memory, std::size_t slot) {
             return decode(i, memory, slot);
           });
    }
    time_in_turns(contenders_, TimedBy::kWall, options_.repeats, 0, [&](int round) {
      say("round " + std::to_string(round + 1) + " of " + std::to_string(options_.repeats));
    });
    return status_;
  }

  // GB/s of values in each round, and their median.
  Figure speed(const std::string& name, const Contender& contender) const {
    Figure figure{.name = name, .unit = "GB/s"};
    const auto bytes = static_cast<double>(order_.size() * options_.extent_bytes);
    for (const double seconds : contender.seconds) figure.runs.push_back(bytes / seconds * 1e-9);
    figure.value = median(figure.runs);
    return figure;
  }

  Report report() const {
    Report report{.machine = describe_machine(options_.threads) + ", " + plain_->description(),
                  .commit = build_commit()};
    const Figure files = speed("store_read_files", contenders_[0]);
    Figure raw = speed("store_read_raw", contenders_[1]);
    raw.baseline = files.value;
    report.results = {files, raw};
    report.results.push_back({.name = "store_read_raw_ratio",
                              .value = speed_ratio(contenders_[0], contenders_[1]),
                              .unit = "ratio",
                              .goal = kStoreShareGoal});
    if (coded_ == nullptr) return report;
    std::string name = "store_read_" + std::string(codec_->name());
    std::replace(name.begin(), name.end(), ':', '_');
    Figure coded = speed(name, contenders_[2]);
    coded.baseline = raw.value;
    report.results.push_back(coded);
    report.results.push_back({.name = name + "_ratio",
                              .value = speed_ratio(contenders_[1], contenders_[2]),
                              .unit = "ratio",
                              .goal = kCodecGain});
    report.results.push_back(
        {.name = name + "_bytes_ratio", .value = coded_->ratio(), .unit = "ratio"});
    return report;
  }

  const StoreBenchOptions& options_;
  const Codec* codec_ = nullptr;
  Contents contents_;
  NewFolders folders_;
  std::vector<std::size_t> order_;
  std::mt19937 random_{7};
  std::vector<PageBuffer> decoded_;  // of each slot
  ReadLoop loop_;
  Status status_;
  std::vector<Contender> contenders_;
  // Stores and files go before the memory that they read into.
  std::unique_ptr<FilledStore> raw_, coded_;
  std::unique_ptr<PlainFiles> plain_;
};

}  // namespace

Result<Report> bench_store(const StoreBenchOptions& options) { return StoreBench(options).run(); }

}  // namespace kvlane
