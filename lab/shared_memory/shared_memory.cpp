// Slabs from one process to another over loopback TCP and through a ring in shared memory, with
// what a transfer does to them at both ends: copied from pages to a message and summed, summed
// again and copied to pages. One thread each.
//
//   g++ -std=c++20 -O3 -march=native lab/shared_memory/shared_memory.cpp -lxxhash -o
//   /tmp/shared_memory /tmp/shared_memory ROUNDS
// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <linux/futex.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <vector>

namespace {

constexpr std::size_t kSlab = 256 << 10;  // of Llama 3.1 8B
constexpr std::size_t kSlabs = 4096;      // 1 GiB
constexpr std::uint32_t kSlots = 32;      // of the ring

using Clock = std::chrono::steady_clock;
double now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }
double used() {
  rusage u{};
  getrusage(RUSAGE_SELF, &u);
  return double(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
         1e-6 * double(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}
void check(bool fine) {
  if (!fine) std::perror("shared_memory"), std::exit(1);
}

struct Message {
  std::uint64_t sum;
  char body[kSlab];
};

// What both ways have in common. `pages` is the memory of the sender or of the receiver.
void fill(Message& message, const char* pages, std::size_t slab) {
  std::memcpy(message.body, pages + slab * kSlab, kSlab);
  message.sum = XXH3_64bits(message.body, kSlab);
}
void empty(const Message& message, char* pages, std::size_t slab) {
  check(XXH3_64bits(message.body, kSlab) == message.sum);
  std::memcpy(pages + slab * kSlab, message.body, kSlab);
}

struct Shared {
  alignas(64) std::atomic<std::uint32_t> filled{0};
  alignas(64) std::atomic<std::uint32_t> emptied{0};
  alignas(64) double sender_used = 0;
  alignas(4096) Message slots[kSlots];
};

// std::atomic's own wait() is for threads of one process only.
void wait(std::atomic<std::uint32_t>& word, std::uint32_t seen) {
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, nullptr, nullptr, 0);
}
void wake(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

void send_ring(Shared& ring, const char* pages) {
  for (std::uint32_t i = 0; i < kSlabs; ++i) {
    for (std::uint32_t e; i - (e = ring.emptied.load()) >= kSlots;) wait(ring.emptied, e);
    fill(ring.slots[i % kSlots], pages, i);
    ring.filled.store(i + 1);
    wake(ring.filled);
  }
}
void receive_ring(Shared& ring, char* pages) {
  for (std::uint32_t i = 0; i < kSlabs; ++i) {
    for (std::uint32_t f; (f = ring.filled.load()) == i;) wait(ring.filled, f);
    empty(ring.slots[i % kSlots], pages, i);
    ring.emptied.store(i + 1);
    wake(ring.emptied);
  }
}

// Every frame has memory of its own until its transfer is acknowledged.
void send_tcp(int socket, const char* pages, std::vector<Message>& messages) {
  for (std::size_t i = 0; i < kSlabs; ++i) {
    Message& message = messages[i % messages.size()];
    fill(message, pages, i);
    const char* at = reinterpret_cast<const char*>(&message);
    for (std::size_t left = sizeof message; left > 0;) {
      const ssize_t sent = ::send(socket, at, left, 0);
      check(sent > 0);
      at += sent, left -= std::size_t(sent);
    }
  }
}
void receive_tcp(int socket, char* pages, Message& message) {
  for (std::size_t i = 0; i < kSlabs; ++i) {
    check(::recv(socket, &message, sizeof message, MSG_WAITALL) == ssize_t(sizeof message));
    empty(message, pages, i);
  }
}

void measure(const char* name, Shared& shared, char* pages, const std::function<void()>& send,
             const std::function<void()>& receive) {
  const double before = used(), start = now();
  const pid_t child = fork();
  check(child >= 0);
  if (child == 0) {
    const double mine = used();
    send();
    shared.sender_used = used() - mine;
    _exit(0);
  }
  receive();
  const double seconds = now() - start, gigabytes = double(kSlabs * kSlab) * 1e-9;
  const double receiver = used() - before;
  waitpid(child, nullptr, 0);
  std::printf("%-8s %.2f GB/s, %.2f + %.2f s/GB (%d)\n", name, gigabytes / seconds,
              shared.sender_used / gigabytes, receiver / gigabytes, pages[kSlab]);
}

char* memory(std::size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  check(at != MAP_FAILED);
  return static_cast<char*>(at);
}

}  // namespace

int main(int argc, char** argv) {
  Shared& shared = *new (memory(sizeof(Shared))) Shared;
  // Shared, so that fork() does not make whoever writes them fault.
  char* const from = memory(kSlabs * kSlab);
  char* const to = memory(kSlabs * kSlab);
  std::memset(from, 3, kSlabs * kSlab);
  std::memset(to, 1, kSlabs * kSlab);
  const auto listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  check(bind(listener, reinterpret_cast<sockaddr*>(&address), bytes) == 0 &&
        listen(listener, 1) == 0);
  check(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &bytes) == 0);
  const int near = ::socket(AF_INET, SOCK_STREAM, 0);
  check(connect(near, reinterpret_cast<sockaddr*>(&address), bytes) == 0);
  const int far = accept(listener, nullptr, nullptr);
  std::vector<Message> messages(kSlots);
  const auto received = std::make_unique<Message>();
  for (int round = 0; round < std::atoi(argc > 1 ? argv[1] : "5"); ++round) {
    shared.filled = shared.emptied = 0;
    measure(
        "tcp", shared, to, [&] { send_tcp(near, from, messages); },
        [&] { receive_tcp(far, to, *received); });
    measure(
        "shared", shared, to, [&] { send_ring(shared, from); }, [&] { receive_ring(shared, to); });
  }
}
