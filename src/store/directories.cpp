// Marks and locks of a store's directories.
// SPDX-License-Identifier: Apache-2.0
#include "store/directories.h"

#include <fcntl.h>
#include <sys/file.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <system_error>

#include "base/file.h"
#include "crypto/aes_gcm.h"
#include "crypto/sha256.h"

namespace kvlane {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMarkName = "kvlane-store";
constexpr std::string_view kFirstLine = "kvlane store 1\n";
constexpr std::size_t kIdentityDigits = 32;
constexpr std::size_t kMarkBytesMax = 128;
constexpr std::string_view kSegmentSuffix = ".seg";
constexpr std::size_t kSegmentDigits = 8;

bool is_identity(std::string_view text) {
  return text.size() == kIdentityDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// All of `text` as a decimal number.
template <class Number>
std::optional<Number> number_of(std::string_view text) {
  Number number = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || at != end || text.empty()) return std::nullopt;
  return number;
}

std::optional<DirectoryMark> parse_mark(std::string_view text) {
  if (!text.starts_with(kFirstLine) || !text.ends_with('\n')) return std::nullopt;
  text.remove_prefix(kFirstLine.size());
  if (text.size() < kIdentityDigits + 3 || text[kIdentityDigits] != '\n') return std::nullopt;
  const std::string_view identity = text.substr(0, kIdentityDigits);
  const auto number =
      number_of<std::uint16_t>(text.substr(kIdentityDigits + 1, text.size() - kIdentityDigits - 2));
  if (!is_identity(identity) || !number) return std::nullopt;
  return DirectoryMark{std::string(identity), *number};
}

}  // namespace

Result<std::optional<DirectoryMark>> read_mark(const fs::path& directory) {
  std::error_code error;
  const fs::file_status status = fs::status(directory, error);
  if (status.type() == fs::file_type::not_found) return std::optional<DirectoryMark>();
  if (status.type() != fs::file_type::directory) {
    return invalid_argument(directory.string() + " is not a directory");
  }
  const Result<std::string> text = read_text_file(directory / kMarkName, kMarkBytesMax);
  if (!text.ok() && text.status().code() == Code::kNotFound) return std::optional<DirectoryMark>();
  if (!text.ok()) return text.status();
  std::optional<DirectoryMark> mark = parse_mark(*text);
  if (!mark) return corrupt((directory / kMarkName).string() + " is no mark of a store");
  return mark;
}

Status require_empty(const fs::path& directory) {
  std::error_code error;
  for (auto at = fs::directory_iterator(directory, error); !error && at != fs::directory_iterator();
       at.increment(error)) {
    const fs::path name = at->path().filename();
    // What a process leaves that was killed before it had made its mark.
    std::error_code unreadable;
    const bool begun = name == "lock" || name == "reserve" ||
                       name == std::string(kMarkName) + ".partial" ||
                       (name == "segments" && fs::is_empty(at->path(), unreadable));
    if (begun || name == "lost+found") continue;
    return invalid_argument(directory.string() + " is not empty and has no mark of a store");
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return invalid_argument("cannot list " + directory.string() + ": " + error.message());
  }
  return {};
}

Status mark_directory(const fs::path& directory, const DirectoryMark& mark) {
  std::error_code error;
  fs::create_directories(segments_path(directory), error);
  if (error) {
    return invalid_argument("cannot create " + segments_path(directory).string() + ": " +
                            error.message());
  }
  std::string text(kFirstLine);
  text += mark.identity + "\n" + std::to_string(mark.number) + "\n";
  return write_file(directory / kMarkName, as_byte_view(text));
}

Result<std::string> new_identity() {
  std::array<std::byte, kIdentityDigits / 2> bytes{};
  KVLANE_TRY(secure_random(bytes));
  return to_hex(bytes);
}

Result<Descriptor> lock_directory(const fs::path& directory) {
  const fs::path path = directory / "lock";
  Descriptor fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (fd.get() < 0) return errno_status("open", path);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return errno_status("lock", path);
    return unavailable("another process has the store in " + directory.string() + " open");
  }
  return fd;
}

fs::path catalogue_path(const fs::path& directory) { return directory / "catalogue.sqlite"; }
fs::path segments_path(const fs::path& directory) { return directory / "segments"; }

std::string segment_file_name(std::uint32_t number) {
  std::string digits = std::to_string(number);
  if (digits.size() < kSegmentDigits) digits.insert(0, kSegmentDigits - digits.size(), '0');
  return digits.append(kSegmentSuffix);
}

std::optional<std::uint32_t> segment_number(const std::string& file_name) {
  if (!file_name.ends_with(kSegmentSuffix)) return std::nullopt;
  const std::string_view digits(file_name.data(), file_name.size() - kSegmentSuffix.size());
  const auto number = number_of<std::uint32_t>(digits);
  // Only as we would write it: "1.seg" is not "00000001.seg".
  if (!number || segment_file_name(*number) != file_name) return std::nullopt;
  return number;
}

}  // namespace kvlane
