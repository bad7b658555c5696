// Snapshots and transactions.
#ifndef LATCHWORK_TRANSACTION_HPP
#define LATCHWORK_TRANSACTION_HPP

#include <chrono>
#include <future>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "range.hpp"

namespace lw {

// When a commit returns: see lw_mode.
enum class mode : std::uint32_t {
    standard = LW_MODE_DEFAULT,
    full = LW_MODE_FULL,
    write = LW_MODE_WRITE,
    none = LW_MODE_NONE,
    periodic = LW_MODE_PERIODIC,
};

inline constexpr std::chrono::milliseconds no_limit = std::chrono::milliseconds::max();

namespace detail {
inline std::uint64_t milliseconds(std::chrono::milliseconds time)
{
    if (time == no_limit) return std::numeric_limits<std::uint64_t>::max();
    return time.count() < 0 ? 0 : static_cast<std::uint64_t>(time.count());
}
}  // namespace detail

// How a transaction runs.
struct transaction_options {
    bool read_committed = false;
    // A call that would have to wait for a lock throws lw::timeout.
    bool no_wait = false;
    lw::mode mode = lw::mode::standard;
    std::chrono::milliseconds period{0};
    // For how long a transaction waits for locks and is run again. 0 is 10 seconds, and for
    // store::begin no limit.
    std::chrono::milliseconds time{0};
    // A text for people, a constant: 32 bytes are kept, until the process ends.
    const char *label = nullptr;

    lw_txn_options get() const
    {
        lw_txn_options options = LW_TXN_OPTIONS_INIT;
        options.flags = (read_committed ? LW_READ_COMMITTED : 0) | (no_wait ? LW_NO_WAIT : 0);
        options.mode = static_cast<std::uint32_t>(mode);
        options.period_ms = static_cast<std::uint32_t>(detail::milliseconds(period));
        options.time_ms = detail::milliseconds(time);
        options.label = label;
        return options;
    }
};

namespace detail {

template <class Body>
void on_value(void *context, const void *value, std::size_t length)
{
    static_cast<guarded<Body> *>(context)->run(bytes_view(value, length));
}

// Calls `each` with the bytes of a value; returns whether there is one.
template <class Calls, class K, class V, class Each>
bool read(typename Calls::object *of, const table<K, V> &table,
          const typename codec<K>::arg &key, Each &&each)
{
    auto body = [&](bytes_view value) { return each(value), true; };
    guarded<decltype(body)> guarded{body};
    encoded_key<K> bytes(key);
    int code = call(Calls::get_with, of, table.get(), bytes.data(), bytes.size(),
                    on_value<decltype(body)>, static_cast<void *>(&guarded));
    guarded.rethrow();
    return code == LW_OK;
}

template <class Calls, class K, class V>
std::optional<owned<V>> get(typename Calls::object *of, const table<K, V> &table,
                            const typename codec<K>::arg &key)
{
    std::optional<owned<V>> found;
    read<Calls>(of, table, key,
                [&](bytes_view value) { found.emplace(codec<V>::take_value(value)); });
    return found;
}

// The common calls of snapshots and transactions.
template <class Calls>
class reads {
public:
    // Returns the value of a key; none if there is no such record. O(log n).
    template <class K, class V>
    std::optional<owned<V>> get(const table<K, V> &table,
                                const typename lw::table<K, V>::key_arg &key) const
    {
        return detail::get<Calls>(of_, table, key);
    }
    // Calls `each` with the bytes of a value where they lie, without a copy; returns whether there
    // is a record. `each` must not use the same snapshot or transaction.
    template <class K, class V, class Each>
    bool read(const table<K, V> &table, const typename lw::table<K, V>::key_arg &key,
              Each &&each) const
    {
        return detail::read<Calls>(of_, table, key, std::forward<Each>(each));
    }
    template <class K, class V>
    bool contains(const table<K, V> &table, const typename lw::table<K, V>::key_arg &key) const
    {
        return read(table, key, [](bytes_view) {});
    }
    // The records of a table, in the order of their keys: see lw::range.
    template <class K, class V>
    lw::range<Calls, K, V> range(const table<K, V> &table) const &
    {
        return {of_, table};
    }
    typename Calls::object *get_handle() const noexcept { return of_; }

protected:
    explicit reads(typename Calls::object *of) noexcept : of_(of) {}
    typename Calls::object *of_;
};

}  // namespace detail

// The state of all tables at one moment. It takes no lock and never blocks; while it exists the log
// is kept from its moment on. Calls throw lw::too_old after a long time. One thread uses it at a
// time.
class snapshot : public detail::reads<detail::snapshot_calls> {
public:
    explicit snapshot(lw_snapshot *of) noexcept : reads(of), handle_(of) {}

    using reads::range;
    // A range of a temporary snapshot takes it along: `for (auto row : store.snapshot().range(t))`.
    template <class K, class V>
    lw::range<detail::snapshot_calls, K, V> range(const table<K, V> &table) &&
    {
        return {of_, table, std::move(handle_)};
    }

private:
    detail::snapshot_handle handle_;
};

// A transaction that reads and writes: serializable, with locks that it holds until it ends. One
// thread uses it at a time. Every call throws lw::conflict, lw::timeout and lw::too_old, which
// store::write handles, and the errors of the C function of the same name.
//
// This class refers to the transaction of a retry loop, or is the base of lw::manual_transaction.
class transaction : public detail::reads<detail::txn_calls> {
public:
    explicit transaction(lw_txn *of) noexcept : reads(of) {}
    transaction(const transaction &) = delete;
    transaction &operator=(const transaction &) = delete;

    // Reads a record that will be written: no other transaction can read it in this way until this
    // one ends. Two transactions that both `get` and then `put` would wait for each other.
    template <class K, class V>
    std::optional<owned<V>> get_for_update(const table<K, V> &table,
                                           const typename lw::table<K, V>::key_arg &key)
    {
        detail::encoded_key<K> bytes(key);
        detail::buffer value;
        if (detail::call(lw_txn_get_for_update, of_, table.get(), bytes.data(), bytes.size(),
                         value.get()) != LW_OK)
            return std::nullopt;
        return codec<V>::take_value(value.view());
    }
    // Writes a record, new or not.
    template <class K, class V>
    void put(const table<K, V> &table, const typename lw::table<K, V>::key_arg &key,
             const typename lw::table<K, V>::value_arg &value)
    {
        writes(lw_txn_put, table, key, value);
    }
    // Writes a record as the last call before the commit: both are one record of the log.
    template <class K, class V>
    void put_final(const table<K, V> &table, const typename lw::table<K, V>::key_arg &key,
                  const typename lw::table<K, V>::value_arg &value)
    {
        writes(lw_txn_put_final, table, key, value);
    }
    // Writes a record that does not exist yet; returns false, and changes nothing, if it does.
    template <class K, class V>
    bool insert(const table<K, V> &table, const typename lw::table<K, V>::key_arg &key,
                const typename lw::table<K, V>::value_arg &value)
    {
        return writes(lw_txn_insert, table, key, value) == LW_OK;
    }
    // Removes a record; returns whether it existed.
    template <class K, class V>
    bool remove(const table<K, V> &table, const typename lw::table<K, V>::key_arg &key)
    {
        detail::encoded_key<K> bytes(key);
        return detail::call(lw_txn_remove, of_, table.get(), bytes.data(), bytes.size()) == LW_OK;
    }
    // Removes the first or last record and returns it: a queue.
    template <class K, class V>
    std::optional<record<K, V>> pop_first(const table<K, V> &table)
    {
        return pop(lw_txn_pop_first, table);
    }
    template <class K, class V>
    std::optional<record<K, V>> pop_last(const table<K, V> &table)
    {
        return pop(lw_txn_pop_last, table);
    }

    // A place to which the transaction can go back.
    class savepoint {
        friend class transaction;
        explicit savepoint(std::uint64_t number) noexcept : number_(number) {}
        std::uint64_t number_;
    };
    savepoint set_savepoint()
    {
        std::uint64_t number = 0;
        detail::call(lw_txn_savepoint, of_, &number);
        return savepoint(number);
    }
    // Undoes what was written since; locks stay. Throws lw::bad_savepoint after it has ended.
    void roll_back_to(savepoint to) { detail::call(lw_txn_roll_back_to, of_, to.number_); }
    // Runs a part of the transaction. If it throws, what it has written is undone and the exception
    // reaches the caller, which may catch it and continue. (After a retryable error the whole
    // transaction runs again: do not catch those.)
    template <class Part>
    decltype(auto) nested(Part &&part)
    {
        savepoint before = set_savepoint();
        try {
            return std::forward<Part>(part)();
        } catch (const retryable_error &) {
            throw;
        } catch (...) {
            roll_back_to(before);
            throw;
        }
    }

private:
    template <class Function, class K, class V>
    int writes(Function *function, const table<K, V> &table, const typename codec<K>::arg &key,
               const typename codec<V>::arg &value)
    {
        detail::encoded_key<K> bytes(key);
        detail::encoded_value<V> encoded(value);
        return detail::call(function, of_, table.get(), bytes.data(), bytes.size(),
                            encoded.view().data(), encoded.view().size());
    }
    template <class Function, class K, class V>
    std::optional<record<K, V>> pop(Function *function, const table<K, V> &table)
    {
        detail::buffer key, value;
        if (detail::call(function, of_, table.get(), key.get(), value.get()) != LW_OK)
            return std::nullopt;
        return record<K, V>{detail::key_of<K>(key.view()), codec<V>::take_value(value.view())};
    }
};

namespace detail {

using txn_handle = std::unique_ptr<lw_txn, free_with<lw_txn_free>>;

// The end of a commit that does not wait for the disk.
inline void on_done(void *context, int code, lw_error *error) noexcept
{
    std::unique_ptr<std::promise<void>> promise(static_cast<std::promise<void> *>(context));
    try {
        if (code < 0) throw_error(code, error);
        promise->set_value();
    } catch (...) {
        promise->set_exception(std::current_exception());
    }
}

}  // namespace detail

// A transaction that the program begins and ends by hand: it is not run again. The destructor rolls
// it back if it has not ended. Functions that end it may be called once.
class manual_transaction : public transaction {
public:
    explicit manual_transaction(lw_txn *of) noexcept : transaction(of), handle_(of) {}
    manual_transaction(manual_transaction &&other) noexcept
        : transaction(std::exchange(other.of_, nullptr)), handle_(std::move(other.handle_))
    {
    }

    // As durable as the mode says on return. Throws the errors of lw_commit: it was rolled back, or
    // lw::commit_unknown.
    void commit() { detail::call(lw_commit, release()); }
    // Rolls back, and in mode `full` waits until all that it has read is durable.
    void roll_back() { detail::call(lw_roll_back, release()); }
    // Rolls back and begins again, as old as it was: after a retryable error.
    void restart() { detail::call(lw_txn_restart, of_); }
    // The first of two phases: see store::commit_prepared.
    void prepare(bytes_view gid) { detail::call(lw_prepare, release(), gid.data(), gid.size()); }
    // Commits without waiting for the disk: the locks are released on return. The future is ready
    // when the commit is durable, and has the exception if that failed.
    std::future<void> commit_async()
    {
        auto promise = std::make_unique<std::promise<void>>();
        std::future<void> done = promise->get_future();
        detail::call(lw_commit_then, release(), detail::on_done,
                     static_cast<void *>(promise.get()));
        promise.release();
        return done;
    }
    // Commits as `commit_async`; store::done_next returns the token when it is durable.
    void commit_queued(lw_store *store, std::uint64_t token)
    {
        detail::call(lw_commit_queued, store, release(), token);
    }

private:
    // The C functions that end a transaction free it, whatever they return.
    lw_txn *release() noexcept { return of_ = nullptr, handle_.release(); }
    detail::txn_handle handle_;
};

}  // namespace lw

#endif
