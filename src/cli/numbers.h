// Numbers that were typed and that CLI11 takes for others.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace CLI {
class App;
}  // namespace CLI

namespace kvlane {

// After `app.parse`: throws CLI::ValidationError for the first option of the chosen commands whose
// number is empty, negative where none may be, octal or too large. CLI11 reads these as 0, as the
// largest number, as 8 (010), and as the largest again.
void check_numbers(const CLI::App& app);

}  // namespace kvlane
