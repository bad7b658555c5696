// Several processes write one store, one of them is killed all the time, and nothing is lost.
#include "check.hpp"

#include <csignal>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace {

const lw::table<std::string, std::uint64_t> counters("counters");
const lw::table<std::uint64_t, std::uint64_t> accounts("accounts");
constexpr int processes = 4, accounts_count = 8, kills = 10;
constexpr std::uint64_t balance = 1000;

pid_t started(void (*child)(lw::store &, unsigned), lw::store &parent, unsigned seed)
{
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid != 0) return pid;
    THROWS(lw::forked, parent.get(counters, "done"));
    lw::store store = parent.reopen();
    child(store, seed);
    std::_Exit(0);
}

void transfer_for_ever(lw::store &store, unsigned seed)
{
    for (;;) {
        std::uint64_t from = rand_r(&seed) % accounts_count, to = rand_r(&seed) % accounts_count;
        if (from == to) continue;
        store.write([&](lw::transaction &tx) {
            auto held = *tx.get_for_update(accounts, from);
            auto other = *tx.get_for_update(accounts, to);
            if (held == 0) return;
            tx.put(accounts, from, held - 1);
            tx.put(accounts, to, other + 1);
        });
    }
}

void count_a_hundred(lw::store &store, unsigned)
{
    for (int run = 0; run < 100; run++)
        store.write([&](lw::transaction &tx) {
            tx.put(counters, "all", tx.get_for_update(counters, "all").value_or(0) + 1);
        });
}

std::uint64_t sum(lw::store &store)
{
    std::uint64_t all = 0;
    for (auto [account, held] : store.snapshot().range(accounts)) all += held;
    return all;
}

void transfers_survive_kills(lw::store &store)
{
    for (std::uint64_t account = 0; account < accounts_count; account++)
        store.put(accounts, account, balance);
    pid_t running[processes];
    unsigned seed = 1;
    for (pid_t &child : running) child = started(transfer_for_ever, store, seed++);
    for (int kill_number = 0; kill_number < kills; kill_number++) {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        pid_t &victim = running[kill_number % processes];
        kill(victim, SIGKILL);
        waitpid(victim, nullptr, 0);
        CHECK(sum(store) == accounts_count * balance);
        victim = started(transfer_for_ever, store, seed++);
    }
    for (pid_t child : running) kill(child, SIGKILL), waitpid(child, nullptr, 0);
    store.sweep();
    CHECK(sum(store) == accounts_count * balance);
}

void processes_count_together(lw::store &store)
{
    pid_t running[processes];
    for (pid_t &child : running) child = started(count_a_hundred, store, 0);
    for (pid_t child : running) {
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    CHECK(store.get(counters, "all") == 100u * processes);
}

// One store for all threads.
void threads_count_together(lw::store &store)
{
    std::thread threads[4];
    for (auto &thread : threads)
        thread = std::thread([&] {
            for (int run = 0; run < 100; run++)
                store.write([&](lw::transaction &tx) {
                    tx.put(counters, "threads", tx.get_for_update(counters, "threads").value_or(0) + 1);
                });
        });
    for (auto &thread : threads) thread.join();
    CHECK(store.get(counters, "threads") == 400u);
}

}  // namespace

int main()
{
    lw::store store(fresh("processes"), small());
    processes_count_together(store);
    transfers_survive_kills(store);
    threads_count_together(store);
}
