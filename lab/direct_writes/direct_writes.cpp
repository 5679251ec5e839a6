// What saving hidden states costs who computes, while sequences are being answered: through the
// gatherer, or by a write for each row where it belongs (HCache, section 6.3.3).
//
//   direct_writes MODEL DIRECTORY [SEQUENCES...]
//
// Every pass computes one token of each sequence; 64 passes fill a block of each. Prints a Markdown
// table; what is written lies in new folders below DIRECTORY, which are removed.
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "model/forward.h"
#include "model/hidden_rows.h"
#include "restore/hidden_gatherer.h"
#include "store/store.h"

namespace kvlane {
namespace {

constexpr int kPasses = 2 * kBlockTokens;
constexpr int kRounds = 5;
constexpr std::size_t kPage = 4096;

void check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "direct_writes: %s\n", status.message().c_str());
  std::exit(1);
}

template <class T>
T take(Result<T> result) {
  check(result.status());
  return std::move(*result);
}

// What this process has had written to disks so far, as Linux counts it.
double written_bytes() {
  std::ifstream file("/proc/self/io");
  for (std::string name; file >> name;) {
    double value = 0;
    file >> value;
    if (name == "write_bytes:") return value;
  }
  return 0;
}

// Somebody who is shown rows of all sequences, layer by layer, and told when blocks are complete.
class Saving {
 public:
  virtual ~Saving() = default;
  virtual void take_rows(int layer, int position, ByteView rows) = 0;
  virtual void complete(int block) = 0;
  // All that was taken is on the disk.
  virtual void finish() = 0;
};

class Nothing : public Saving {
 public:
  void take_rows(int, int, ByteView) override {}
  void complete(int) override {}
  void finish() override {}
};

class TwoStages : public Saving {
 public:
  TwoStages(const Model& model, int sequences, const std::filesystem::path& directory) {
    StoreOptions options{.create = true};
    options.directories.push_back({directory, 0});
    store_ = take(Store::open(options, take(open_store_files({}))));
    const HiddenFormat rows(HiddenFormat::Values::kExact, hidden_type(model),
                            model.config().hidden);
    gatherer_ = take(HiddenGatherer::create(*store_, model,
                                            {.format = rows, .layer_last = model.config().layers}));
    for (int i = 0; i < sequences; ++i) saved_.push_back(gatherer_->begin());
  }
  void take_rows(int layer, int position, ByteView rows) override {
    std::vector<PassRows> each;
    for (int i = 0; i < static_cast<int>(saved_.size()); ++i) {
      each.push_back({saved_[i].get(), position, i, 1});
    }
    gatherer_->copy(layer, each, rows);
  }
  void complete(int block) override {
    for (std::size_t i = 0; i < saved_.size(); ++i) {
      BlockName name{}, first{};
      name[0] = first[0] = static_cast<std::byte>(i);
      name[1] = static_cast<std::byte>(block);
      gatherer_->complete(*saved_[i], block, name, first);
    }
  }
  void finish() override {
    gatherer_->flush();
    store_->flush();
    if (gatherer_->figures().tokens_lost > 0) check(exhausted("rows were lost"));
  }

 private:
  std::unique_ptr<Store> store_;
  std::unique_ptr<HiddenGatherer> gatherer_;
  std::vector<std::shared_ptr<SavedRows>> saved_;
};

// Of each sequence a file, in which a layer of a block has its rows side by side: the place at
// which two stages would put them, too. Past the system's caches a disk takes whole pages alone, so
// those in which a row lies are kept in memory and written again with each row of theirs.
class DirectWrites : public Saving {
 public:
  DirectWrites(const Model& model, int sequences, const std::filesystem::path& directory,
               bool past_caches)
      : layers_(model.config().layers),
        row_bytes_(
            HiddenFormat(HiddenFormat::Values::kExact, hidden_type(model), model.config().hidden)
                .row_bytes()),
        past_caches_(past_caches) {
    const int flags = O_CREAT | O_WRONLY | (past_caches ? O_DIRECT : 0);
    for (int i = 0; i < sequences; ++i) {
      files_.push_back(::open((directory / std::to_string(i)).c_str(), flags, 0600));
      if (files_.back() < 0) check(unavailable("no file could be opened"));
    }
    if (past_caches) {
      memory_ = take(PageBuffer::allocate(files_.size() * layers_ * kBlockTokens * row_bytes_));
    }
  }
  ~DirectWrites() override {
    for (const int file : files_) ::close(file);
  }
  void take_rows(int layer, int position, ByteView rows) override {
    if (layer == 0) return;  // embeddings
    const std::size_t part = kBlockTokens * row_bytes_;
    const std::size_t block = std::size_t(position / kBlockTokens) * layers_ * part;
    const std::size_t in_part = position % kBlockTokens * row_bytes_;
    for (std::size_t i = 0; i < files_.size(); ++i) {
      const ByteView row = rows.subspan(i * row_bytes_, row_bytes_);
      if (!past_caches_) {
        write(files_[i], row, block + layer * part + in_part);
        continue;
      }
      std::byte* const memory = memory_.data() + (i * layers_ + layer) * part;
      std::memcpy(memory + in_part, row.data(), row.size());
      const std::size_t from = in_part / kPage * kPage;
      const std::size_t to = (in_part + row_bytes_ + kPage - 1) / kPage * kPage;
      write(files_[i], {memory + from, to - from}, block + layer * part + from);
    }
  }
  void complete(int) override {}
  void finish() override {
    for (const int file : files_) {
      if (::fdatasync(file) != 0) check(unavailable("a file could not be synced"));
    }
  }

 private:
  static void write(int file, ByteView bytes, std::size_t at) {
    const ssize_t done = ::pwrite(file, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (done != static_cast<ssize_t>(bytes.size())) check(unavailable("a write failed"));
  }

  const int layers_;
  const std::size_t row_bytes_;
  const bool past_caches_;
  PageBuffer memory_;  // of the block under way: [sequences][layers][tokens] rows
  std::vector<int> files_;
};

struct Times {
  std::vector<double> pass, saving, finish, written;  // a round each; seconds a pass, bytes
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Answering {
 public:
  Answering(const Model& model, int sequences)
      : pool_(take(BlockPool::create(model.config().kv_shape(),
                                     std::size_t(sequences) * (kPasses / kBlockTokens) *
                                         model.config().kv_shape().block_bytes()))),
        forward_(take(Forward::create(model, sequences, 1))) {
    for (int i = 0; i < sequences; ++i) tables_.emplace_back(pool_);
  }

  void run(Saving& saving, Times& times) {
    const double written = written_bytes();
    double saved = 0;
    const TimePoint start = SteadyClock::now();
    for (BlockTable& table : tables_) {
      table.clear();
      check(table.grow(kPasses));
    }
    const std::int32_t token = 7;
    for (int pass = 0; pass < kPasses; ++pass) {
      PassHooks hooks;
      hooks.on_normed = [&](int layer, ByteView rows) {
        const ScopedTimer timer(saved);
        saving.take_rows(layer, pass, rows);
      };
      std::vector<ForwardSpan> spans;
      for (BlockTable& table : tables_) spans.push_back({&table, {&token, 1}, 0});
      check(forward_->run(spans, hooks));
      if ((pass + 1) % kBlockTokens != 0) continue;
      const ScopedTimer timer(saved);
      saving.complete(pass / kBlockTokens);
    }
    times.pass.push_back(seconds_since(start) / kPasses);
    times.saving.push_back(saved / kPasses);
    const TimePoint end = SteadyClock::now();
    saving.finish();
    times.finish.push_back(seconds_since(end));
    times.written.push_back(written_bytes() - written);
  }

 private:
  BlockPool pool_;
  std::unique_ptr<Forward> forward_;
  std::vector<BlockTable> tables_;
};

void print(const char* name, const Times& times, const Times& nothing, int sequences,
           const ModelConfig& config) {
  const double rows = double(kPasses) * sequences * (config.layers - 1);
  std::printf("| %s | %.2f | %+.1f %% | %.3f | %.1f | %.0f | %.2f |\n", name,
              median(times.pass) * 1e3, (median(times.pass) / median(nothing.pass) - 1) * 100,
              median(times.saving) * 1e3, median(times.saving) * 1e6 / sequences,
              median(times.finish) * 1e3, median(times.written) / (rows * config.hidden * 2));
}

void measure(const Model& model, const std::filesystem::path& directory, int sequences) {
  constexpr const char* kWays[] = {"nothing", "two stages", "a write for each row",
                                   "the same, past the caches"};
  Answering answering(model, sequences);
  Times times[4], warm;
  Nothing nothing;
  answering.run(nothing, warm);
  for (int round = 0; round < kRounds; ++round) {
    for (int way = 0; way < 4; ++way) {
      const std::filesystem::path folder =
          directory / ("direct_writes_" + std::to_string(getpid()));
      std::filesystem::create_directories(folder);
      {
        std::unique_ptr<Saving> saving = std::make_unique<Nothing>();
        if (way == 1) saving = std::make_unique<TwoStages>(model, sequences, folder);
        if (way > 1) saving = std::make_unique<DirectWrites>(model, sequences, folder, way == 3);
        answering.run(*saving, times[way]);
      }
      std::filesystem::remove_all(folder);
    }
  }
  std::printf("\n%d sequences:\n\n", sequences);
  std::printf(
      "| saving | a pass, ms | | of it saving, ms | us a token | at the end, ms | bytes |\n"
      "|---|---|---|---|---|---|---|\n");
  for (int way = 0; way < 4; ++way) {
    print(kWays[way], times[way], times[0], sequences, model.config());
  }
  std::fflush(stdout);
}

}  // namespace
}  // namespace kvlane

int main(int count, char** arguments) {
  if (count < 3) {
    std::fprintf(stderr, "usage: direct_writes MODEL DIRECTORY [SEQUENCES...]\n");
    return 2;
  }
  const auto model = kvlane::take(kvlane::Model::load(arguments[1], {}));
  if (count == 3) kvlane::measure(*model, arguments[2], 16);
  for (int i = 3; i < count; ++i) kvlane::measure(*model, arguments[2], std::atoi(arguments[i]));
  return 0;
}
