// Metadata of a GGUF file as config.json, entry by entry.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvlane/status.h"
#include "model/config.h"
#include "model/gguf.h"

namespace kvlane {

// Tensors that belong to the configuration.
inline constexpr std::string_view kRopeDivisors = "rope_freqs.weight";
inline constexpr std::string_view kRopeLongFactors = "rope_factors_long.weight";
inline constexpr std::string_view kRopeShortFactors = "rope_factors_short.weight";

// Reads entries of one architecture, "ARCHITECTURE.name", and writes fields of config.json. The
// first error sticks and comes out of parse(). An entry of another type than asked for, or a number
// that is not finite, is an error and never taken for absent.
class GgufConfigWriter {
 public:
  // `file` must outlive the writer.
  GgufConfigWriter(const GgufFile& file, std::string_view architecture);
  ~GgufConfigWriter();
  GgufConfigWriter(const GgufConfigWriter&) = delete;
  GgufConfigWriter& operator=(const GgufConfigWriter&) = delete;

  std::optional<double> number(const char* name);
  std::optional<std::string_view> text(const char* name);
  bool has_tensor(std::string_view name) const;
  void fail(Status status);
  std::string quoted(const char* name) const;  // 'ARCHITECTURE.name'

  // A whole number; absent: `fallback`, or an error.
  void copy_integer(const char* to, const char* from,
                    std::optional<double> fallback = std::nullopt);
  // A number, where there is one.
  void copy_number(const char* to, const char* from);
  // "it has `what`", unless the number is 0 or absent.
  void refuse(const char* name, const char* what);
  // What no family here computes.
  void refuse_features();

  void set_architecture(std::string_view name);
  void set_flag(const char* to, bool value);
  void set_integer(const char* to, std::int64_t value);

  // Layers, width, context, query heads, by the fields that all families have.
  void dimensions();
  // The length of heads, 0 after an error. Those of values and of rotation must be the same.
  int head_length();
  // dimensions() and what Llama and those who followed it have besides, rotation included.
  void llama_like();
  // Rotation: base and scaling, by entries or tensors.
  void rope();

  struct Window {
    int tokens = 0;  // 0: none
    int first_layer = 0;
  };
  // Layers from one on may have a window; other patterns are an error.
  Window window();
  // The same for families whose layers all have it.
  int window_of_all();

  // Ids that end an answer: that of this entry, or of the token with this text. None: nothing.
  void add_end(const char* entry);
  void add_end_token(std::string_view token);
  void set_token(const char* to, const char* entry);

  const Status& status() const { return status_; }
  Result<ModelConfig> parse() const;

 private:
  template <class T>
  const T* find(const std::string& name, const char* kind);
  void set_rope_scaling(nlohmann::json scaling);
  void rope_of_tensors(std::string_view type, double factor);
  void rope_yarn(double factor);
  std::vector<float> divisors(std::string_view name);
  int layers();
  std::optional<int> first_windowed();
  void add_end_id(double id);

  const GgufFile& file_;
  const std::string prefix_;
  std::unique_ptr<nlohmann::json> json_;
  Status status_;
};

}  // namespace kvlane
