// When a codebook is taken, kept and dropped.
// SPDX-License-Identifier: Apache-2.0
#include "codec/moving_codebooks.h"

#include <algorithm>

#include "codec/splitzip.h"

namespace kvlane {

MovingCodebooks::MovingCodebooks(const PlaneShape& plane, int layers,
                                 const std::vector<Codebook>& calibrated)
    : plane_(plane), entries_(std::size_t{2} * layers) {
  for (std::size_t i = 0; i < std::min(entries_.size(), calibrated.size()); ++i) {
    entries_[i].book = calibrated[i];
    entries_[i].known = true;
  }
}

const Codebook* MovingCodebooks::find(int layer, PlanePart part) const {
  const Entry& found = entries_[2 * layer + static_cast<int>(part)];
  return found.known ? &found.book : nullptr;
}

void MovingCodebooks::learn(int layer, PlanePart part, const PlaneShape& shape, ByteView body,
                            bool counted) {
  Entry& here = entry(layer, part);
  const std::optional<WrittenCodebook> written = written_codebook(shape, body);
  if (counted) {
    ++counted_;
    if (here.replacing) ++replaced_;
    here.replacing = false;
    if (!written) return;  // nothing to be gained: the next plane may be another matter
    here = {.book = written->book,
            .known = true,
            .at_best = written->escapes,
            .escapes = written->escapes};
    return;
  }
  // A plane that stayed raw has no count; it would not be raw if the codebook fitted, unless it is
  // so short that headers decide.
  const double share =
      static_cast<double>(shape.elements()) / static_cast<double>(plane_.elements());
  const double escapes = written ? written->escapes : 1;
  here.escapes += kEscapesWeight * share * (escapes - here.escapes);
  if (here.escapes > std::max(kEscapesMax, 2 * here.at_best)) {
    here.known = false;
    here.replacing = true;
  }
}

}  // namespace kvlane
