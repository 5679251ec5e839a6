// A model on a device of emulated threads, for tests of engines there.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <memory>

#include "base/test_paths.h"
#include "engine/engine_fixture.h"
#include "model/emulated_accelerator.h"

namespace kvlane {

inline constexpr const char* kOnDevice = "llama-gqa-bf16-llama3-sharded";
inline const auto kOnDeviceDirectory =
    std::filesystem::path(kSourceDir) / "tests/fixtures/models" / kOnDevice;

inline EmulatedAccelerator& device() {
  static EmulatedAccelerator device;
  return device;
}

inline const Model& model_on_device() {
  static const std::unique_ptr<Model> model =
      take(Model::load(kOnDeviceDirectory, {.isa = best_isa(), .device = &device()}));
  return *model;
}
// The same on the CPU.
inline const Model& model_on_host() { return fixture_model(kOnDevice); }

}  // namespace kvlane
