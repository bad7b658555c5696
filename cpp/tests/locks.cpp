// The lock manager: owners, modes, deadlocks.
#include "check.hpp"

#include <atomic>
#include <thread>

namespace {

using lw::granular;
using namespace std::chrono_literals;

void modes_conflict_as_their_table_says()
{
    lw::lock_manager<> locks;
    lw::owner<> one(locks), other(locks);
    one.lock("a", granular::S);
    CHECK(other.try_lock("a", granular::IS) && !other.try_lock("a", granular::X));
    CHECK(!other.try_lock_for("a", granular::X, 5ms));
    CHECK(one.holds("a") == granular::S && !one.holds("b"));
    auto list = locks.list();
    CHECK(list.size() == 2 && lw::bytes_view(list[0].name).text() == "a" && !list[0].wanted);
    one.unlock("a");
    THROWS(lw::not_held, one.unlock("a"));
    {
        lw::lock_guard guard(one, "b", granular::X);
        CHECK(!other.try_lock("b", granular::X));
    }
    CHECK(other.try_lock("b", granular::X));
    std::uint64_t id = other.id();
    other.renew();
    CHECK(other.id() != id && !other.holds("b") && one.try_lock("b", granular::X));
    one.release_all();
    THROWS(lw::too_long, one.lock(std::string(5000, 'a'), granular::X));
}

void a_deadlock_ends_in_an_exception()
{
    lw::lock_manager<lw::shared_exclusive> locks;
    std::atomic<int> arrived{0}, victims{0};
    auto crossed = [&](const char *first, const char *second) {
        lw::owner<lw::shared_exclusive> owner(locks);
        owner.lock(first, lw::shared_exclusive::X);
        arrived++;
        while (arrived < 2) std::this_thread::yield();
        try {
            owner.lock(second, lw::shared_exclusive::X);
        } catch (const lw::conflict &) {
            victims++;
        }
    };
    std::thread one([&] { crossed("a", "b"); });
    crossed("b", "a");
    one.join();
    CHECK(victims == 1);
}

void a_killed_owner_fails()
{
    lw::lock_manager<> locks;
    lw::owner<> one(locks), other(locks);
    one.lock("a", granular::X);
    std::uint64_t id = other.id();
    std::thread waits([&] { THROWS(lw::killed, other.lock("a", granular::S)); });
    while (locks.list().size() < 2) std::this_thread::yield();
    CHECK(locks.kill(id));
    waits.join();
    CHECK(locks.detect() == 0 && locks.sweep() == 0);
}

void a_file_is_shared_and_has_one_kind_of_modes()
{
    std::string path = fresh("region");
    lw::lock_manager<lw::postgres> locks(path), again(path);
    lw::owner<lw::postgres> one(locks), other(again);
    one.lock("table", lw::postgres::row_exclusive);
    CHECK(!other.try_lock("table", lw::postgres::share));
    CHECK(other.try_lock("table", lw::postgres::row_share));
    THROWS(lw::foreign, lw::lock_manager<granular>{path});
}

}  // namespace

int main()
{
    modes_conflict_as_their_table_says();
    a_deadlock_ends_in_an_exception();
    a_killed_owner_fails();
    a_file_is_shared_and_has_one_kind_of_modes();
}
