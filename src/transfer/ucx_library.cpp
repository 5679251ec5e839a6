// Loading UCX's library, and looking up what is used of it.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/ucx_library.h"

#include <dlfcn.h>

#include <type_traits>

namespace kvlane {

Result<UcxLibrary> load_ucx_library(const std::string& name) {
  void* const file = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (file == nullptr) {
    const char* const why = dlerror();
    return unavailable("KV over UCX needs its library, and " + name + " cannot be loaded (" +
                       (why != nullptr ? why : "no reason given") +
                       "): install it (Debian's package libucx0), or name its folder in "
                       "LD_LIBRARY_PATH");
  }
  UcxLibrary library;
  const char* missing = nullptr;
  // Also in the libraries that it needs itself, of which one is libucs.
  const auto look_up = [&](auto*& address, const char* symbol) {
    address = reinterpret_cast<std::remove_reference_t<decltype(address)>>(dlsym(file, symbol));
    if (address == nullptr) missing = symbol;
  };
#define KVLANE_UCX_LOOK_UP(name) look_up(library.name, #name);
  KVLANE_UCX_SYMBOLS(KVLANE_UCX_LOOK_UP)
#undef KVLANE_UCX_LOOK_UP
  if (missing != nullptr) {
    return unavailable(name + " has no " + missing + ": KV over UCX needs UCX 1.13 or later");
  }
  return library;
}

const Result<UcxLibrary>& ucx_library() {
  static const Result<UcxLibrary> loaded = load_ucx_library("libucp.so.0");
  return loaded;
}

}  // namespace kvlane
