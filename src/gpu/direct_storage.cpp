// What we ask of cuFile, and its errors as sentences.
// SPDX-License-Identifier: Apache-2.0
#include "gpu/direct_storage.h"

#include <dlfcn.h>
#include <fcntl.h>

#include <cerrno>
#include <type_traits>
#include <utility>

#include "gpu/cufile_abi.h"

namespace kvlane::gpu {

struct DirectStorage::Library {
  cufile::DriverOpen* open = nullptr;
  cufile::DriverClose* close = nullptr;
  cufile::DriverGetProperties* properties = nullptr;
  cufile::HandleRegister* add_file = nullptr;
  cufile::HandleDeregister* remove_file = nullptr;
  cufile::BufRegister* add_memory = nullptr;
  cufile::BufDeregister* remove_memory = nullptr;
  cufile::Read* read = nullptr;
  // Which older ones lack.
  cufile::SetParameterBool* set_parameter = nullptr;
  cufile::GetVersion* version = nullptr;
};

namespace {

std::string reason(cufile::Error error) {
  switch (error.code) {
    case cufile::kNoDriver: return "the driver nvidia-fs is not loaded";
    case cufile::kFileRefused: return "the file system or its device is not one that it can read";
    case cufile::kCudaError: return "CUDA error " + std::to_string(error.cuda);
    case cufile::kNotDirect: return "the file is not read past the caches of the system";
    case cufile::kNoSetup: return "it could not be set up, for which its cufile.log has the cause";
    case cufile::kNotPinned: return "there is no room to make so much of a GPU's memory visible";
    default: return "error " + std::to_string(error.code) + " of cuFile";
  }
}

template <class Function>
void look_up(void* file, const char* symbol, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(file, symbol));
}

}  // namespace

DirectStorage::DirectStorage(std::function<Status()> enter, std::unique_ptr<Library> library)
    : enter_(std::move(enter)), library_(std::move(library)) {}

Result<std::shared_ptr<DirectStorage>> DirectStorage::open(std::function<Status()> enter,
                                                           const std::string& library) {
  // It stays for as long as the program runs: it has threads of its own.
  void* const file = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (file == nullptr) {
    const char* const why = dlerror();
    return unavailable("GPUDirect Storage needs cuFile, and " + library + " cannot be loaded (" +
                       (why != nullptr ? why : "no reason given") + ")");
  }
  auto found = std::make_unique<Library>();
  const char* missing = nullptr;
  const auto need = [&](const char* symbol, auto*& function) {
    look_up(file, symbol, function);
    if (function == nullptr) missing = symbol;
  };
  need("cuFileDriverOpen", found->open);
  need("cuFileDriverGetProperties", found->properties);
  need("cuFileHandleRegister", found->add_file);
  need("cuFileHandleDeregister", found->remove_file);
  need("cuFileBufRegister", found->add_memory);
  need("cuFileBufDeregister", found->remove_memory);
  need("cuFileRead", found->read);
  look_up(file, "cuFileDriverClose_v2", found->close);
  if (found->close == nullptr) need("cuFileDriverClose", found->close);
  look_up(file, "cuFileSetParameterBool", found->set_parameter);
  look_up(file, "cuFileGetVersion", found->version);
  if (missing != nullptr) return unavailable(library + " has no function " + missing);
  std::shared_ptr<DirectStorage> storage(new DirectStorage(std::move(enter), std::move(found)));
  KVLANE_TRY(storage->open_driver());
  return storage;
}

Status DirectStorage::open_driver() {
  KVLANE_TRY(enter_());
  // Else it would read what it cannot read directly through the host. Older libraries do, unless
  // their cufile.json says otherwise: that is slower, and right. Nothing can be set once it is
  // open.
  if (library_->set_parameter != nullptr) {
    static_cast<void>(library_->set_parameter(cufile::kAllowCompatible, false));
  }
  const auto refused = [](cufile::Error error) {
    return unavailable("GPUDirect Storage cannot be used: " + reason(error));
  };
  const cufile::Error opened = library_->open();
  if (opened.code != cufile::kSuccess && opened.code != cufile::kDriverIsOpen) {
    return refused(opened);
  }
  driver_is_ours_ = opened.code == cufile::kSuccess;
  cufile::Properties properties{};
  const cufile::Error told = library_->properties(&properties);
  if (told.code != cufile::kSuccess) return refused(told);
  const bool driver = properties.driver_major != 0 || properties.driver_minor != 0;
  if (!driver && (properties.supported & cufile::kPeerToPeer) == 0) {
    return refused({cufile::kNoDriver, 0});
  }
  int version = 0;
  if (library_->version != nullptr) static_cast<void>(library_->version(&version));
  description_ = "cuFile";
  if (version > 0) {
    description_ +=
        " " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
  }
  return {};
}

DirectStorage::~DirectStorage() {
  if (driver_is_ours_ && enter_().ok()) static_cast<void>(library_->close());
}

Result<std::unique_ptr<DirectStorage::File>> DirectStorage::open_file(
    const std::filesystem::path& path) {
  Descriptor fd(::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  if (fd.get() < 0 && errno == EINVAL) {
    return unsupported("the file system of " + path.string() +
                       " does not read past the caches of the system");
  }
  if (fd.get() < 0) return errno_status("open", path);
  return add_file(path, std::move(fd));
}

Status DirectStorage::try_directory(const std::filesystem::path& directory) {
  constexpr mode_t kMode = 0600;
  Descriptor fd(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, kMode));
  if (fd.get() < 0) {
    return unsupported(errno_status("make a file that is read directly in", directory).message());
  }
  return add_file(directory, std::move(fd)).status();
}

Result<std::unique_ptr<DirectStorage::File>> DirectStorage::add_file(
    const std::filesystem::path& path, Descriptor fd) {
  KVLANE_TRY(enter_());
  std::unique_ptr<File> file(new File(shared_from_this(), path, std::move(fd)));
  cufile::Descriptor descriptor{};
  descriptor.type = cufile::kLinuxFile;
  descriptor.file.fd = file->fd_.get();
  const cufile::Error error = library_->add_file(&file->handle_, &descriptor);
  if (error.code == cufile::kSuccess) return file;
  file->handle_ = nullptr;
  return unsupported("cuFile does not read " + path.string() + ": " + reason(error));
}

DirectStorage::File::~File() {
  if (handle_ != nullptr) storage_->library_->remove_file(handle_);
}

Result<std::unique_ptr<DirectStorage::Memory>> DirectStorage::take_memory(
    std::span<std::byte> memory) {
  KVLANE_TRY(enter_());
  const cufile::Error error = library_->add_memory(memory.data(), memory.size(), 0);
  if (error.code != cufile::kSuccess) {
    return unavailable("cuFile does not take " + std::to_string(memory.size()) +
                       " bytes of a GPU's memory: " + reason(error));
  }
  const std::lock_guard lock(mutex_);
  memories_[memory.data()] = memory.size();
  return std::unique_ptr<Memory>(new Memory(shared_from_this(), memory.data()));
}

DirectStorage::Memory::~Memory() {
  {
    const std::lock_guard lock(storage_->mutex_);
    storage_->memories_.erase(base_);
  }
  if (storage_->enter_().ok()) static_cast<void>(storage_->library_->remove_memory(base_));
}

Result<std::size_t> DirectStorage::read(const File& file, std::uint64_t offset,
                                        std::span<std::byte> memory) {
  std::byte* base = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const auto behind = memories_.upper_bound(memory.data());
    if (behind != memories_.begin()) {
      const auto [begin, bytes] = *std::prev(behind);
      if (memory.data() + memory.size() <= begin + bytes) base = begin;
    }
  }
  if (base == nullptr) return invalid_argument("a direct read goes to memory that was taken");
  KVLANE_TRY(enter_());
  const ssize_t moved = library_->read(file.handle_, base, memory.size(),
                                       static_cast<off_t>(offset), memory.data() - base);
  if (moved >= 0) return static_cast<std::size_t>(moved);
  if (moved == -1) return unavailable(errno_status("read", file.path()).message());
  return unsupported("cuFile does not read " + file.path().string() + ": " +
                     reason({static_cast<int>(-moved), 0}));
}

}  // namespace kvlane::gpu
