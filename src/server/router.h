// Which handler answers which path and method.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "server/http_server.h"

namespace kvlane {

// Exact paths only. Fill it, then give handler() to a server.
class Router {
 public:
  // With a key, every path outside of `open` paths needs "Authorization: Bearer KEY".
  void require_key(std::string key) { key_ = std::move(key); }

  // GET handlers answer HEAD too. `open`: no key is asked for.
  void add(std::string method, std::string path, HttpHandler handler, bool open = false);

  // Dispatches; unknown paths are 404, other methods 405. Takes the routes with it.
  HttpHandler handler() &&;

 private:
  struct Route {
    HttpHandler handler;
    bool open = false;
  };
  // By path, then by method.
  using Routes = std::map<std::string, std::map<std::string, Route>, std::less<>>;
  Routes routes_;
  std::string key_;
};

// Whether `presented` is `key`, in a time that does not depend on where they differ.
bool same_secret(std::string_view presented, std::string_view key);

}  // namespace kvlane
