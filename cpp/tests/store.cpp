// Tables, ranges, transactions and errors in one process.
#include "check.hpp"

#include <atomic>
#include <cstring>
#include <limits>
#include <thread>

#include <pthread.h>
#include <unistd.h>
#if __cplusplus >= 202002L
#include <ranges>
#endif

namespace {

const lw::table<std::string, std::uint64_t> fruit("fruit");
const lw::table<std::tuple<std::string, std::uint64_t>, std::optional<double>> orders("orders");

using fruit_row = lw::record<std::string, std::uint64_t>;

std::string names(lw::range<lw::detail::snapshot_calls, std::string, std::uint64_t> range)
{
    std::string all;
    for (auto [name, count] : range) all += name + '=' + std::to_string(count) + ' ';
    return all;
}

void records_are_written_read_and_removed(lw::store &store)
{
    CHECK(!store.get(fruit, "pear"));
    store.put(fruit, "pear", 3);
    CHECK(store.get(fruit, "pear") == 3u);
    CHECK(!store.insert(fruit, "pear", 4) && store.get(fruit, "pear") == 3u);
    CHECK(store.insert(fruit, std::string("fig"), 1));
    std::size_t length = 0;
    CHECK(store.read(fruit, "pear", [&](lw::bytes_view value) { length = value.size(); }));
    CHECK(length == 8);
    THROWS(std::range_error, store.read(fruit, "pear", [](lw::bytes_view) {
        throw std::range_error("of the caller");
    }));
    CHECK(store.remove(fruit, "fig") && !store.remove(fruit, "fig"));
    store.put(orders, {"ann", 8}, 2.5);
    store.put(orders, {"ann", 9}, {});
    CHECK(store.get(orders, {"ann", 8}).value() == 2.5);
    CHECK(store.get(orders, {"ann", 9}).value() == std::nullopt);
    CHECK(fruit.name() == "fruit");
}

void ranges_are_loops(lw::store &store)
{
    const char *const all[] = {"apple", "apricot", "banana", "cherry", "fig", "pear"};
    store.write([&](lw::transaction &tx) {
        std::uint64_t count = 0;
        for (auto name : all) tx.put(fruit, name, ++count);
    });
    auto at = store.snapshot();
    CHECK(names(at.range(fruit)) == "apple=1 apricot=2 banana=3 cherry=4 fig=5 pear=6 ");
    CHECK(names(at.range(fruit).from("banana").before("fig")) == "banana=3 cherry=4 ");
    CHECK(names(at.range(fruit).after("banana").up_to("fig")) == "cherry=4 fig=5 ");
    CHECK(names(at.range(fruit).starting_with("ap").reverse()) == "apricot=2 apple=1 ");
    CHECK(names(at.range(fruit).reverse().limit(1)) == "pear=6 ");
    CHECK(names(at.range(fruit).before("")) == "");
    CHECK(at.range(fruit).from("b").count() == 4);
    CHECK(at.range(fruit).first()->key == "apple");
    CHECK(at.range(fruit).reverse().first()->value == 6);
    CHECK(at.range(orders).with_parts("ann").count() == 2);
    CHECK(at.range(orders).with_parts("an").count() == 0);
    CHECK(at.range(orders).with_parts("ann", 9u).count() == 1);

    // A range may be walked again, and ended in the middle.
    auto range = at.range(fruit);
    int steps = 0;
    for (auto it = range.begin(); it != range.end(); it++)
        if (++steps == 3) break;
    CHECK((*range.begin()).key == "apple");

    std::uint64_t bytes = 0;
    at.range(fruit).each_raw([&](lw::bytes_view, lw::bytes_view value) { bytes += value.size(); });
    CHECK(bytes == 48);
    THROWS(std::range_error, at.range(fruit).each_raw([](lw::bytes_view, lw::bytes_view) {
        throw std::range_error("of the caller");
    }));
}

void a_range_longer_than_a_batch_is_complete(lw::store &store)
{
    const lw::table<std::uint32_t, std::string> numbers("numbers");
    store.write([&](lw::transaction &tx) {
        for (std::uint32_t key = 0; key < 1000; key++) tx.put(numbers, key, std::to_string(key));
    });
    auto at = store.snapshot();
    std::uint32_t next = 0;
    for (auto [key, value] : at.range(numbers)) {
        CHECK(key == next && value == std::to_string(next));
        next++;
    }
    CHECK(next == 1000);
    // A transaction that changes what is ahead of its loop sees it changed.
    store.write([&](lw::transaction &tx) {
        std::uint32_t seen = 0;
        for (auto [key, value] : tx.range(numbers)) {
            CHECK(key == 2 * seen++);
            tx.remove(numbers, key + 1);
        }
        CHECK(seen == 500);
        CHECK(tx.range(numbers).from(500).remove() == 250);
        CHECK(tx.range(numbers).count() == 250);
    });
}

#if defined(__cpp_lib_ranges) && (!defined(__clang_major__) || __clang_major__ >= 16)
static_assert(std::ranges::input_range<decltype(std::declval<lw::snapshot &>().range(fruit))>);

void ranges_are_views_of_the_standard_library(lw::store &store)
{
    auto at = store.snapshot();
    auto counts = at.range(fruit) | std::views::filter([](auto row) { return row.value > 2; }) |
                  std::views::transform([](auto row) { return row.value; });
    std::uint64_t sum = 0;
    for (std::uint64_t count : counts) sum += count;
    CHECK(sum == 3 + 4 + 5 + 6);
}
#else
void ranges_are_views_of_the_standard_library(lw::store &) {}
#endif

void a_cursor_moves_both_ways(lw::store &store)
{
    auto at = store.snapshot();
    auto cursor = at.range(fruit).cursor();
    cursor.seek("b");
    CHECK(cursor.next()->key == "banana");
    CHECK(cursor.next()->key == "cherry");
    CHECK(cursor.prev()->key == "banana");
    cursor.to_end();
    CHECK(!cursor.next() && cursor.prev()->key == "pear");
    cursor.to_begin();
    CHECK(!cursor.prev() && cursor.next()->key == "apple");

    auto outlives = store.snapshot().range(fruit).cursor();
    THROWS(lw::misuse, outlives.next());
}

void exceptions_of_a_body_roll_back(lw::store &store)
{
    auto thrown = THROWS(std::range_error, store.write([&](lw::transaction &tx) {
        tx.put(fruit, "lost", 1);
        throw std::range_error("of the caller");
    }));
    CHECK(std::strcmp(thrown.what(), "of the caller") == 0);
    // An error of the program's own with the code of success does not commit.
    THROWS(lw::error, store.write([&](lw::transaction &tx) {
        tx.put(fruit, "lost", 1);
        throw lw::error(0, "of the program's own");
    }));
    THROWS(lw::not_held, store.write([&](lw::transaction &tx) {
        tx.put(fruit, "lost", 1);
        throw lw::not_held("of another call");
    }));
    CHECK(!store.get(fruit, "lost"));
    // A body returns its value when it has committed.
    std::unique_ptr<int> moved = store.write([](lw::transaction &) { return std::make_unique<int>(7); });
    CHECK(*moved == 7);
}

// The second transaction takes the lock that the first waits for, so one of them runs again.
void conflicts_run_again(lw::store &store)
{
    std::atomic<int> runs{0}, arrived{0};
    auto both = [&](const char *first, const char *second, bool hides) {
        store.write([&](lw::transaction &tx) {
            runs++;
            std::uint64_t count = *tx.get_for_update(fruit, first);
            if (arrived++ < 2)
                while (arrived < 2) std::this_thread::yield();
            try {
                tx.put(fruit, second, *tx.get_for_update(fruit, second) + 1);
            } catch (const lw::conflict &why) {
                CHECK(why.is_retryable() && why.table() == std::string("fruit"));
                // Whatever exception it becomes, the transaction decides.
                if (hides) throw std::runtime_error("something went wrong");
                throw;
            }
            tx.put(fruit, first, count + 1);
        });
    };
    for (bool hides : {false, true}) {
        runs = arrived = 0;
        store.put(fruit, "a", 0), store.put(fruit, "b", 0);
        std::thread other([&] { both("b", "a", hides); });
        both("a", "b", hides);
        other.join();
        CHECK(store.get(fruit, "a") == 2u && store.get(fruit, "b") == 2u && runs == 3);
    }
    store.remove(fruit, "a"), store.remove(fruit, "b");
}

void a_deadline_ends_the_attempts(lw::store &store)
{
    auto holder = store.begin();
    holder.put(fruit, "pear", 7);
    std::thread([&] {
        lw::transaction_options options;
        options.time = std::chrono::milliseconds(30);
        auto why = THROWS(lw::deadline, store.write([&](lw::transaction &tx) {
            tx.put(fruit, "pear", 8);
        }, options));
        CHECK(why.code() == LW_DEADLINE && !why.is_retryable());
        CHECK(why.cause() && why.cause()->code() == LW_TIMEOUT);
        CHECK(why.cause()->table() == std::string("fruit"));
        CHECK(!why.cause()->key().empty());

        options.no_wait = true;
        auto tx = store.begin(options);
        THROWS(lw::timeout, tx.put(fruit, "pear", 8));
    }).join();
    holder.roll_back();
    CHECK(store.get(fruit, "pear") == 6u);
}

void savepoints_undo_a_part(lw::store &store)
{
    store.write([&](lw::transaction &tx) {
        tx.put(fruit, "kiwi", 1);
        auto before = tx.set_savepoint();
        tx.put(fruit, "kiwi", 2);
        tx.roll_back_to(before);
        CHECK(tx.get(fruit, "kiwi") == 1u);
        THROWS(std::range_error, tx.nested([&] {
            tx.put(fruit, "lime", 1);
            throw std::range_error("a part");
        }));
        CHECK(!tx.contains(fruit, "lime") && tx.contains(fruit, "kiwi"));
        CHECK(tx.nested([] { return 7; }) == 7);
    });
    CHECK(store.get(fruit, "kiwi") == 1u && store.remove(fruit, "kiwi"));
}

void transactions_by_hand(lw::store &store)
{
    {
        auto dropped = store.begin();
        dropped.put(fruit, "lost", 1);
    }
    CHECK(!store.get(fruit, "lost"));
    auto tx = store.begin();
    tx.put(fruit, "kiwi", 1);
    auto moved = std::move(tx);
    moved.commit();
    THROWS(lw::misuse, moved.put(fruit, "kiwi", 2));
    THROWS(lw::misuse, moved.commit());
    THROWS(lw::misuse, tx.get(fruit, "kiwi"));
    CHECK(store.remove(fruit, "kiwi"));

    auto async = store.begin();
    async.put(fruit, "kiwi", 5);
    async.commit_async().get();
    CHECK(store.get(fruit, "kiwi") == 5u);
    auto queued = store.begin();
    queued.remove(fruit, "kiwi");
    queued.commit_queued(store.get_handle(), 77);
    CHECK(store.done_fd() >= 0);
    std::optional<lw::completion> done;
    while (!(done = store.done_next())) std::this_thread::yield();
    CHECK(done->token == 77 && !done->error && !store.done_next());
}

void prepared_transactions_wait_for_a_decision(lw::store &store)
{
    for (const char *gid : {"yes", "no"}) {
        auto tx = store.begin();
        tx.put(fruit, gid, 1);
        tx.prepare(gid);
    }
    CHECK(store.prepared().size() == 2 && lw::bytes_view(store.prepared()[0].gid).text() == "yes");
    store.commit_prepared("yes");
    store.roll_back_prepared("no");
    THROWS(lw::not_prepared, store.commit_prepared("yes"));
    CHECK(store.get(fruit, "yes") && !store.get(fruit, "no") && store.remove(fruit, "yes"));
}

void queues_give_out_both_ends(lw::store &store)
{
    const lw::table<std::uint64_t, std::string> queue("queue");
    store.write([&](lw::transaction &tx) {
        CHECK(!tx.pop_first(queue));
        tx.put(queue, 1, "first"), tx.put(queue, 2, "second"), tx.put_final(queue, 3, "third");
    });
    store.write([&](lw::transaction &tx) {
        CHECK(tx.pop_first(queue)->value == "first" && tx.pop_last(queue)->key == 3);
    });
    lw::sequence ids(store, "ids");
    CHECK(ids.next() == 1 && ids.next() == 2);
}

void tables_have_types(lw::store &store)
{
    const lw::table<std::string, double> other("fruit");
    auto why = THROWS(lw::bad_table_type, store.get(other, "pear"));
    CHECK(why.table() == std::string("fruit") && std::strcmp(why.code_name(), "LW_TABLE_TYPE") == 0);
    const lw::raw_table any("fruit");
    CHECK(store.get(any, std::string("\x02pear\0", 6)) == lw::bytes_view("\6\0\0\0\0\0\0\0", 8).copy());
    auto at = store.snapshot();
    CHECK(at.range(any).starting_with("\x02" "ap").count() == 2);
    CHECK(store.tables().find("\"(str,u64)\"") != std::string::npos);
    CHECK(store.stats().front() == '{' && store.verify() > 0);
}

void bad_input_is_an_exception(lw::store &store)
{
    auto why = THROWS(lw::too_long, store.put(fruit, std::string(2000, 'a'), 1));
    CHECK(std::strlen(why.what()) > 10);
    THROWS(lw::bad_format, store.put(fruit, "\xff", 1));
    THROWS(lw::open_failed, lw::store("/dev/null/store"));
    THROWS(lw::misuse, lw::store(std::string("a\0b", 3)));
    lw::options options;
    options.create = false;
    THROWS(lw::no_store, lw::store(fresh("none"), options));
    options.page = 7;
    THROWS(lw::bad_options, lw::store(fresh("none"), options));
    const lw::table<std::string, std::uint64_t> raw_bytes("mixed");
    const lw::raw_table raw("mixed");
    store.put(raw_bytes, "a", 1);
    store.put(raw, std::string("\x02z\0", 3), "short");
    THROWS(lw::bad_format, store.get(raw_bytes, "z"));
    THROWS(lw::bad_format, names(store.snapshot().range(raw_bytes)));
}

// The library refuses a length before it reads the bytes.
void values_of_2_gib_are_refused(lw::store &store)
{
    const lw::table<std::uint64_t, lw::bytes> blobs("blobs");
    lw::bytes_view huge("", std::size_t(1) << 31);
    THROWS(lw::too_long, store.put(blobs, 1, huge));
    THROWS(lw::too_long, store.write([&](lw::transaction &tx) { tx.put(blobs, 1, huge); }));
    CHECK(!store.get(blobs, 1));
}

void keys_of_nan_are_two_keys(lw::store &store)
{
    const lw::table<double, std::string> reals("reals");
    double nan = std::numeric_limits<double>::quiet_NaN();
    store.put(reals, nan, "positive");
    store.put(reals, -nan, "negative");
    store.put(reals, -0.0, "zero");
    std::string all;
    for (auto [key, value] : store.snapshot().range(reals)) all += value + ' ';
    CHECK(all == "negative zero positive ");
    CHECK(store.get(reals, nan) == "positive" && !store.get(reals, 0.0));
}

void a_second_use_at_the_same_time_is_refused(lw::store &store)
{
    store.put(fruit, "busy", 1);
    auto holder = store.begin();
    holder.put(fruit, "busy", 2);
    auto shared = store.begin();
    std::atomic<bool> ended{false};
    std::thread waits([&] {
        for (bool done = false; !done;) {
            try {
                CHECK(shared.get(fruit, "busy") == 1u);
                done = true;
            } catch (const lw::busy &) {
                // The other thread was first.
            }
        }
        ended = true;
    });
    int refused = 0;
    while (refused < 10) {
        CHECK(!ended);
        try {
            shared.get(fruit, "pear");
        } catch (const lw::busy &) {
            refused++;
        }
    }
    holder.roll_back();
    waits.join();
    CHECK(shared.get(fruit, "busy") == 1u);
    shared.roll_back();
    CHECK(store.remove(fruit, "busy"));
}

// pthread_cancel unwinds the body, which is not run again.
void a_cancelled_thread_rolls_back(lw::store &store)
{
    std::atomic<int> runs{0};
    std::thread sleeps([&] {
        store.write([&](lw::transaction &tx) {
            tx.put(fruit, "lost", 1);
            runs++;
            for (;;) sleep(1);
        });
    });
    while (runs == 0) std::this_thread::yield();
    pthread_cancel(sleeps.native_handle());
    sleeps.join();
    CHECK(runs == 1 && !store.get(fruit, "lost"));
    store.put(fruit, "lost", 2);
    CHECK(store.remove(fruit, "lost"));
}

void copies_are_stores(lw::store &store)
{
    std::string copy = fresh("copy"), again = fresh("again");
    store.backup(copy);
    lw::restore(copy, again);
    CHECK(lw::store(again, small()).get(fruit, "pear") == 6u);
    lw::options read_only = small();
    read_only.read_only = true;
    lw::store closed(again, read_only);
    THROWS(lw::read_only, closed.put(fruit, "pear", 1));
    closed.close();
    THROWS(lw::misuse, closed.get(fruit, "pear"));
}

}  // namespace

int main()
{
    lw::store store(fresh("store"), small());
    records_are_written_read_and_removed(store);
    ranges_are_loops(store);
    ranges_are_views_of_the_standard_library(store);
    a_range_longer_than_a_batch_is_complete(store);
    a_cursor_moves_both_ways(store);
    exceptions_of_a_body_roll_back(store);
    conflicts_run_again(store);
    a_deadline_ends_the_attempts(store);
    savepoints_undo_a_part(store);
    transactions_by_hand(store);
    prepared_transactions_wait_for_a_decision(store);
    queues_give_out_both_ends(store);
    tables_have_types(store);
    bad_input_is_an_exception(store);
    values_of_2_gib_are_refused(store);
    keys_of_nan_are_two_keys(store);
    a_second_use_at_the_same_time_is_refused(store);
    a_cancelled_thread_rolls_back(store);
    copies_are_stores(store);
    store.checkpoint();
    store.sync();
    CHECK(store.sweep() == 0);
    store.close();
}
