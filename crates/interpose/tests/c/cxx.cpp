// The C++ library's mutexes, all of them.
#include <atomic>
#include <cassert>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <vector>
using namespace std::chrono_literals;
#define CHECK(what)                                                                               \
    do {                                                                                          \
        if (!(what)) {                                                                            \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);                       \
            std::_Exit(1);                                                                        \
        }                                                                                         \
    } while (0)

template <typename Mutex> static void count() {
    Mutex mutex;
    long n = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++)
        threads.emplace_back([&] {
            for (int j = 0; j < 5000; j++) {
                std::lock_guard<Mutex> guard(mutex);
                n++;
            }
        });
    for (auto &thread : threads)
        thread.join();
    CHECK(n == 20000);
}

template <typename Mutex> static void timed() {
    Mutex mutex;
    std::unique_lock<Mutex> held(mutex);
    std::thread([&] {
        auto began = std::chrono::steady_clock::now();
        CHECK(!mutex.try_lock());
        CHECK(!mutex.try_lock_for(20ms));
        CHECK(!mutex.try_lock_until(std::chrono::system_clock::now() + 20ms));
        CHECK(std::chrono::steady_clock::now() - began >= 39ms);
    }).join();
    held.unlock();
    std::thread([&] { CHECK(mutex.try_lock_for(1s)); mutex.unlock(); }).join();
}

int main() {
    count<std::mutex>();
    count<std::recursive_mutex>();
    count<std::timed_mutex>();
    count<std::recursive_timed_mutex>();
    count<std::shared_mutex>();
    count<std::shared_timed_mutex>();
    timed<std::timed_mutex>();
    timed<std::recursive_timed_mutex>();
    timed<std::shared_timed_mutex>();
    {
        std::shared_timed_mutex mutex;
        std::shared_lock<std::shared_timed_mutex> reader(mutex);
        std::thread([&] {
            CHECK(mutex.try_lock_shared_for(1s));
            CHECK(!mutex.try_lock_for(20ms));
            mutex.unlock_shared();
        }).join();
    }
    std::mutex mutex;
    std::condition_variable condition;
    std::condition_variable_any any;
    bool ready = false;
    std::unique_lock<std::mutex> lock(mutex);
    CHECK(condition.wait_for(lock, 20ms) == std::cv_status::timeout);
    CHECK(condition.wait_until(lock, std::chrono::system_clock::now() + 20ms) ==
          std::cv_status::timeout);
    std::thread setter([&] {
        std::lock_guard<std::mutex> guard(mutex);
        ready = true;
        condition.notify_all();
        any.notify_all();
    });
    condition.wait(lock, [&] { return ready; });
    any.wait(lock, [&] { return ready; });
    lock.unlock();
    setter.join();
    std::once_flag once;
    int calls = 0;
    for (int i = 0; i < 3; i++)
        std::call_once(once, [&] { calls++; });
    CHECK(calls == 1);
    std::puts("ok");
}
