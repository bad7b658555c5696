// Stores: open, read, write, retry loops, tools.
#ifndef LATCHWORK_STORE_HPP
#define LATCHWORK_STORE_HPP

#include <exception>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "transaction.hpp"

namespace lw {

// How a store is opened; sizes of 0 are the defaults that lw_options names.
struct options {
    bool create = true;
    bool read_only = false;
    bool network = false;
    bool small = false;
    bool memory_next_to_data = false;
    lw::mode mode = lw::mode::standard;
    std::chrono::milliseconds period{0};
    std::uint32_t threads = 0;
    std::uint64_t cache = 0;
    std::uint64_t cache_max = 0;
    std::uint32_t page = 0;
    std::chrono::milliseconds wait{0};
    std::uint64_t log_budget = 0;
    std::uint64_t history = 0;
    std::uint64_t locks = 0;

    lw_options get() const
    {
        lw_options to = LW_OPTIONS_INIT;
        to.flags = (create ? 0 : LW_NO_CREATE) | (read_only ? LW_READ_ONLY_STORE : 0) |
                   (network ? LW_NETWORK : 0) | (small ? LW_SMALL : 0) |
                   (memory_next_to_data ? LW_MEMORY_BESIDE : 0);
        to.mode = static_cast<std::uint32_t>(mode);
        to.period_ms = static_cast<std::uint32_t>(detail::milliseconds(period));
        to.threads = threads;
        to.cache = cache, to.cache_max = cache_max, to.page = page;
        to.wait_ms = static_cast<std::uint32_t>(detail::milliseconds(wait));
        to.log_budget = log_budget, to.history = history, to.locks = locks;
        return to;
    }
};

namespace detail {

struct store_calls {
    using object = lw_store;
    static constexpr auto get_with = lw_get_with;
};

struct close_store {
    void operator()(lw_store *store) const noexcept { lw_close(store, nullptr); }
};
using store_handle = std::unique_ptr<lw_store, close_store>;
using attempts_handle = std::unique_ptr<lw_attempts, free_with<lw_attempts_free>>;

// The result of a body, kept until the commit.
template <class Result>
struct outcome {
    static_assert(!std::is_reference_v<Result>, "a body returns a value, not a reference");
    std::optional<Result> value;

    template <class Body>
    void run(Body &body, transaction &tx)
    {
        value.emplace(body(tx));
    }
    Result take() { return std::move(*value); }
};
template <>
struct outcome<void> {
    template <class Body>
    void run(Body &body, transaction &tx)
    {
        body(tx);
    }
    void take() {}
};

// Passed to lw_attempts_end for an exception that is not an error of the library.
inline constexpr int foreign_exception = std::numeric_limits<int>::max();

}  // namespace detail

// A prepared transaction that no process has decided yet.
struct prepared_transaction {
    bytes gid;
    std::chrono::system_clock::time_point when;
};

// The result of an asynchronous commit: `error` is NULL if it is durable.
struct completion {
    std::uint64_t token;
    std::exception_ptr error;
};

// An open store. All threads of the process may use one object at the same time; open each store
// once in a process. Objects that come from it may outlive it: the store is closed when the last of
// them has ended. In the child of a fork every call throws lw::forked: see `reopen`.
class store {
public:
    // Opens the store in a folder: creates it, joins the processes that have it open, or recovers
    // it after a crash.
    explicit store(const std::string &path, const lw::options &options = {})
    {
        lw_options raw = options.get();
        lw_store *opened = nullptr;
        if (path.find('\0') != path.npos) throw misuse("the path contains a zero");
        detail::call(lw_open, path.c_str(), &raw, &opened);
        handle_.reset(opened);
    }
    // Opens the same store in the child of a fork.
    store reopen() const
    {
        lw_store *opened = nullptr;
        detail::call(lw_store_reopen, static_cast<const lw_store *>(get_handle()), &opened);
        return store(opened);
    }
    // Closes it and throws what failed; the destructor does not. The object is empty then. Throws
    // lw::busy, and stays open, while another call uses it.
    void close()
    {
        try {
            detail::call(lw_close, handle_.get());
        } catch (const busy &) {
            throw;
        } catch (...) {
            handle_.release();
            throw;
        }
        handle_.release();
    }

    // Reads a record at a snapshot of now, without a lock. O(log n).
    template <class K, class V>
    std::optional<owned<V>> get(const table<K, V> &table,
                                const typename lw::table<K, V>::key_arg &key) const
    {
        return detail::get<detail::store_calls>(get_handle(), table, key);
    }
    // Calls `each` with the bytes of a value where they lie; returns whether there is a record.
    template <class K, class V, class Each>
    bool read(const table<K, V> &table, const typename lw::table<K, V>::key_arg &key,
              Each &&each) const
    {
        return detail::read<detail::store_calls>(get_handle(), table, key,
                                                 std::forward<Each>(each));
    }
    // Each of these is a transaction of its own, which is run again for up to 10 seconds.
    template <class K, class V>
    void put(const table<K, V> &table, const typename lw::table<K, V>::key_arg &key,
             const typename lw::table<K, V>::value_arg &value)
    {
        writes(lw_put, table, key, value);
    }
    // Returns false, and changes nothing, if there is such a record.
    template <class K, class V>
    bool insert(const table<K, V> &table, const typename lw::table<K, V>::key_arg &key,
                const typename lw::table<K, V>::value_arg &value)
    {
        return writes(lw_insert, table, key, value) == LW_OK;
    }
    // Returns whether there was such a record.
    template <class K, class V>
    bool remove(const table<K, V> &table, const typename lw::table<K, V>::key_arg &key)
    {
        detail::encoded_key<K> bytes(key);
        return detail::call(lw_remove, get_handle(), table.get(), bytes.data(), bytes.size()) ==
               LW_OK;
    }

    lw::snapshot snapshot() const
    {
        lw_snapshot *made = nullptr;
        detail::call(lw_snapshot_new, get_handle(), &made);
        return lw::snapshot(made);
    }

    // Runs `body(transaction &)` as a transaction until it commits, and returns what it returned.
    // After a deadlock and whatever else is retryable it runs again, so it must have no effects
    // but through the transaction. An exception that it throws rolls the transaction back and
    // reaches the caller. The transaction decides whether to run again, not the exception. Throws
    // lw::deadline when the time of the options, by default 10 seconds, has passed.
    template <class Body>
    auto write(Body &&body, const transaction_options &options = {})
    {
        lw_txn_options raw = options.get();
        lw_attempts *made = nullptr;
        detail::call(lw_attempts_new, get_handle(), &raw, &made);
        detail::attempts_handle loop(made);
        detail::outcome<decltype(body(std::declval<transaction &>()))> outcome;
        for (;;) {
            lw_txn *begun = nullptr;
            detail::call(lw_attempts_next, loop.get(), &begun);
            transaction tx(begun);
            if (runs(loop.get(), [&] { outcome.run(body, tx); }) &&
                detail::call(lw_attempts_end, loop.get(), 0) == LW_OK)
                return outcome.take();
        }
    }

    // Begins a transaction that the program ends itself.
    manual_transaction begin(const transaction_options &options = {})
    {
        lw_txn_options raw = options.get();
        lw_txn *begun = nullptr;
        detail::call(lw_begin, get_handle(), &raw, &begun);
        return manual_transaction(begun);
    }

    // Waits until all that any process has committed is durable.
    void sync() { detail::call(lw_sync, get_handle()); }
    void checkpoint() { detail::call(lw_checkpoint, get_handle()); }
    // Copies the store into a folder that does not exist yet, while others write.
    void backup(const std::string &to) { detail::call(lw_backup, get_handle(), to.c_str()); }
    // Rolls back what dead processes have left; returns how many threads that were.
    std::uint64_t sweep()
    {
        std::uint64_t ended = 0;
        detail::call(lw_sweep, get_handle(), &ended);
        return ended;
    }
    // Reads every page; returns how many there are. Throws lw::damaged.
    std::uint64_t verify()
    {
        std::uint64_t pages = 0;
        detail::call(lw_verify, get_handle(), &pages, static_cast<lw_buf *>(nullptr));
        return pages;
    }
    // Counts and sizes, and the list of tables, as JSON.
    std::string stats() const { return text_of(lw_stats); }
    std::string tables() const { return text_of(lw_tables); }

    // Decide prepared transactions, of this process or another one.
    void commit_prepared(bytes_view gid)
    {
        detail::call(lw_commit_prepared, get_handle(), gid.data(), gid.size());
    }
    void roll_back_prepared(bytes_view gid)
    {
        detail::call(lw_roll_back_prepared, get_handle(), gid.data(), gid.size());
    }
    std::vector<prepared_transaction> prepared() const
    {
        std::vector<prepared_transaction> all;
        auto body = [&](bytes_view gid, std::uint64_t when) {
            std::chrono::milliseconds since(static_cast<std::int64_t>(when));
            all.push_back({gid.copy(), std::chrono::system_clock::time_point(since)});
            return true;
        };
        detail::guarded<decltype(body)> guarded{body};
        detail::call(lw_prepared, get_handle(), on_prepared<decltype(body)>,
                     static_cast<void *>(&guarded));
        guarded.rethrow();
        return all;
    }

    // For an event loop: readable while `done_next` has something to return.
    int done_fd() const
    {
        int descriptor = -1;
        detail::call(lw_done_fd, get_handle(), &descriptor);
        return descriptor;
    }
    std::optional<completion> done_next()
    {
        std::uint64_t token = 0;
        int code = LW_OK;
        lw_error *why = nullptr;
        if (detail::call(lw_done_next, get_handle(), &token, &code, &why) == LW_DONE)
            return std::nullopt;
        if (code >= 0) return completion{token, nullptr};
        try {
            detail::throw_error(code, why);
        } catch (...) {
            return completion{token, std::current_exception()};
        }
    }

    lw_store *get_handle() const noexcept { return handle_.get(); }

private:
    explicit store(lw_store *opened) noexcept : handle_(opened) {}

    // Runs a body. An exception ends the attempt, and propagates unless the attempt runs again.
    template <class Body>
    static bool runs(lw_attempts *loop, Body body)
    {
        try {
            body();
            return true;
        } catch (const error &why) {
            // A program's own error may have any code, and 0 would commit.
            if (!ends(loop, why.code() < 0 ? why.code() : detail::foreign_exception)) throw;
        } catch (...) {
            // No exception of C++: the thread is being cancelled. The loop's destructor rolls back.
            if (!std::current_exception()) throw;
            if (!ends(loop, detail::foreign_exception)) throw;
        }
        return false;
    }
    // Ends an attempt that has thrown; returns whether it is to run again.
    static bool ends(lw_attempts *loop, int code)
    {
        lw_error *why = nullptr;
        int ended = lw_attempts_end(loop, code, &why);
        if (ended == LW_AGAIN) return true;
        // The roll-back has failed itself, or the time is over: more than the body's error.
        if (ended != code || why) detail::throw_error(ended, why);
        return false;
    }

    template <class Function, class K, class V>
    int writes(Function *function, const table<K, V> &table, const typename codec<K>::arg &key,
               const typename codec<V>::arg &value)
    {
        detail::encoded_key<K> bytes(key);
        detail::encoded_value<V> encoded(value);
        return detail::call(function, get_handle(), table.get(), bytes.data(), bytes.size(),
                            encoded.view().data(), encoded.view().size());
    }
    template <class Function>
    std::string text_of(Function *function) const
    {
        detail::buffer text;
        detail::call(function, get_handle(), text.get());
        return std::string(text.view().text());
    }
    template <class Body>
    static int on_prepared(void *context, const void *gid, std::size_t length, std::uint64_t when)
    {
        return static_cast<detail::guarded<Body> *>(context)->run(bytes_view(gid, length), when);
    }

    detail::store_handle handle_;
};

// Makes a store of a copy that store::backup has made, in a folder that does not exist yet.
inline void restore(const std::string &from, const std::string &to)
{
    detail::call(lw_restore, from.c_str(), to.c_str());
}

// Numbers that no other caller gets, in any process; with gaps. It must not outlive its store.
class sequence {
public:
    // A thread claims `batch` numbers at a time; 0 is 64.
    sequence(store &of, std::string name, std::uint64_t batch = 0)
        : store_(of.get_handle()), name_(std::move(name)), batch_(batch)
    {
    }
    std::uint64_t next()
    {
        std::uint64_t number = 0;
        detail::call(lw_sequence_next, store_, name_.c_str(), batch_, &number);
        return number;
    }

private:
    lw_store *store_;
    std::string name_;
    std::uint64_t batch_;
};

}  // namespace lw

#endif
