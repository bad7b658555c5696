// Ranges of a table: for loops, cursors, counts.
#ifndef LATCHWORK_RANGE_HPP
#define LATCHWORK_RANGE_HPP

#include <cstdint>
#include <exception>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "table.hpp"

namespace lw {

// A record: `auto [key, value] = *it`.
template <class K, class V>
struct record {
    owned<K> key;
    owned<V> value;
};

namespace detail {

using cursor_handle = std::unique_ptr<lw_cursor, free_with<lw_cursor_free>>;
using snapshot_handle = std::unique_ptr<lw_snapshot, free_with<lw_snapshot_free>>;

template <class K, class V>
record<K, V> record_of(const lw_row &row)
{
    return {key_of<K>({row.key, row.key_len}), codec<V>::take_value({row.value, row.value_len})};
}

// The ends of a range, which owns their bytes.
struct ends {
    std::optional<std::string> from, to;
    std::uint32_t flags = 0;
    std::uint64_t limit = 0;

    lw_range get() const
    {
        lw_range range = LW_RANGE_INIT;
        // An empty key is a key, and not the end of the table.
        if (from) range.from = from->c_str(), range.from_len = from->size();
        if (to) range.to = to->c_str(), range.to_len = to->size();
        range.flags = flags;
        range.limit = limit;
        return range;
    }
};

// Which functions of the C library a range calls. `ahead` is how many records are taken at a time.
struct snapshot_calls {
    using object = lw_snapshot;
    static constexpr auto get_with = lw_snapshot_get_with;
    static constexpr auto cursor = lw_snapshot_cursor;
    static constexpr auto count = lw_snapshot_count;
    static constexpr auto scan = lw_snapshot_scan;
    static constexpr std::size_t ahead = 64;
};

// A loop over a transaction may write: the next record is what the table has then.
struct txn_calls {
    using object = lw_txn;
    static constexpr auto get_with = lw_txn_get_with;
    static constexpr auto cursor = lw_txn_cursor;
    static constexpr auto count = lw_txn_count;
    static constexpr auto scan = lw_txn_scan;
    static constexpr std::size_t ahead = 1;
};

// Runs a function that may throw inside a callback of the C library, where it must not.
template <class Body>
struct guarded {
    Body &body;
    std::exception_ptr thrown = nullptr;

    // Returns what the body returns, or 1 if it has thrown.
    template <class... Arguments>
    int run(Arguments... arguments) noexcept
    {
        try {
            return body(arguments...) ? 0 : 1;
        } catch (...) {
            thrown = std::current_exception();
            return 1;
        }
    }
    void rethrow() const
    {
        if (thrown) std::rethrow_exception(thrown);
    }
};

template <class Body>
int on_record(void *context, const void *key, std::size_t key_len, const void *value,
              std::size_t value_len)
{
    return static_cast<guarded<Body> *>(context)->run(bytes_view(key, key_len),
                                                      bytes_view(value, value_len));
}

}  // namespace detail

// A place on a record of a range, or between two. It must not outlive its snapshot or transaction: then
// its calls throw lw::misuse. One thread uses it at a time.
template <class K, class V>
class cursor {
public:
    cursor(lw_cursor *handle) noexcept : handle_(handle) {}

    // Moves to the next record and returns it; none at the end.
    std::optional<record<K, V>> next() { return moved(lw_cursor_next); }
    // Moves to the record before and returns it; none at the beginning.
    std::optional<record<K, V>> prev() { return moved(lw_cursor_prev); }
    // Places the cursor before the first record whose key is not less than this one.
    void seek(const typename codec<K>::arg &key)
    {
        detail::encoded_key<K> bytes(key);
        detail::call(lw_cursor_seek, handle_.get(), bytes.data(), bytes.size());
    }
    // Places the cursor before the first record, or behind the last one.
    void to_begin() { detail::call(lw_cursor_rewind, handle_.get(), 0); }
    void to_end() { detail::call(lw_cursor_rewind, handle_.get(), 1); }

    lw_cursor *get() const noexcept { return handle_.get(); }

private:
    template <class Function>
    std::optional<record<K, V>> moved(Function *function)
    {
        lw_row row;
        if (detail::call(function, handle_.get(), &row) != LW_OK) return std::nullopt;
        return detail::record_of<K, V>(row);
    }

    detail::cursor_handle handle_;
};

// The records of a range, in the order of their keys. A new one is the whole table; `from`,
// `before` and the like narrow it and return it:
//
//     for (auto [name, count] : tx.range(fruit).from("b").before("m").limit(10)) ..
//
// It is an input range: begin() starts from the beginning, and one loop runs at a time. It must not
// outlive its snapshot or transaction. Records are decoded one by one, when `*` is called.
template <class Calls, class K, class V>
class range {
public:
    using key_arg = typename codec<K>::arg;
    using value_type = record<K, V>;

    range(typename Calls::object *of, const table<K, V> &table,
          detail::snapshot_handle own = nullptr)
        : own_(std::move(own)), of_(of), table_(table.get())
    {
    }
    range(range &&) noexcept = default;
    range &operator=(range &&) noexcept = default;

    // From this key on; from the next one on.
    range from(const key_arg &key) && { return std::move(starts(bytes_of(key), 0)); }
    range after(const key_arg &key) && { return std::move(starts(bytes_of(key), LW_FROM_EXCLUDED)); }
    // As far as this key, without it; with it.
    range before(const key_arg &key) && { return std::move(stops(bytes_of(key), 0)); }
    range up_to(const key_arg &key) && { return std::move(stops(bytes_of(key), LW_TO_INCLUDED)); }
    // All keys of a tuple that begin with these parts.
    template <class... First>
    range with_parts(const First &...parts) &&
    {
        return std::move(starts(first_parts<K>(parts...), LW_PREFIX_PARTS));
    }
    // All texts, or bytes, that begin with this one.
    range starting_with(const key_arg &prefix) &&
    {
        static_assert(std::is_same_v<K, std::string> || std::is_same_v<K, bytes> ||
                          std::is_same_v<K, raw>,
                      "the key is no text");
        std::string from = bytes_of(prefix);
        // Without the zero that ends a text of a key.
        if constexpr (!std::is_same_v<K, raw>) from.pop_back();
        return std::move(starts(std::move(from), LW_PREFIX));
    }
    // From the last record to the first.
    range reverse() && { return ends_.flags |= LW_REVERSE, std::move(*this); }
    // At most this many records; 0 is no limit.
    range limit(std::uint64_t records) && { return ends_.limit = records, std::move(*this); }

    // Reads and counts the records. O(records).
    std::uint64_t count() const
    {
        std::uint64_t records = 0;
        lw_range range = ends_.get();
        detail::call(Calls::count, of_, table_, &range, &records);
        return records;
    }
    // Removes the records, and returns how many there were; not of a snapshot. O(records).
    std::uint64_t remove() const
    {
        static_assert(std::is_same_v<Calls, detail::txn_calls>, "a snapshot is not written");
        std::uint64_t records = 0;
        lw_range range = ends_.get();
        detail::call(lw_txn_remove_range, of_, table_, &range, &records);
        return records;
    }
    // Returns the first record; with reverse() the last one.
    std::optional<record<K, V>> first() const { return cursor().next(); }
    // Opens a cursor, which moves in both directions. The range may end before it.
    lw::cursor<K, V> cursor() const
    {
        lw_cursor *made = nullptr;
        lw_range range = ends_.get();
        detail::call(Calls::cursor, of_, table_, &range, &made);
        return made;
    }
    // Calls `each(key, value)` for all records, with their bytes where they lie in the store's
    // memory, without a copy. `each` must not use the same snapshot or transaction. If it throws,
    // the loop ends and the exception reaches the caller.
    template <class Each>
    void each_raw(Each each) const
    {
        auto body = [&](bytes_view key, bytes_view value) { return each(key, value), true; };
        detail::guarded<decltype(body)> guarded{body};
        lw_range range = ends_.get();
        detail::call(Calls::scan, of_, table_, &range, detail::on_record<decltype(body)>,
                     static_cast<void *>(&guarded));
        guarded.rethrow();
    }

    struct sentinel {};

    class iterator {
    public:
        using iterator_category = std::input_iterator_tag;
        using iterator_concept = std::input_iterator_tag;
        using value_type = record<K, V>;
        using difference_type = std::ptrdiff_t;
        using reference = record<K, V>;
        using pointer = void;

        record<K, V> operator*() const { return detail::record_of<K, V>(of_->rows_[of_->at_]); }
        iterator &operator++() { return of_->advance(), *this; }
        void operator++(int) { of_->advance(); }

        friend bool operator==(const iterator &it, sentinel) { return it.ended(); }
        friend bool operator!=(const iterator &it, sentinel) { return !it.ended(); }
        friend bool operator==(sentinel, const iterator &it) { return it.ended(); }
        friend bool operator!=(sentinel, const iterator &it) { return !it.ended(); }

    private:
        friend class range;
        explicit iterator(range *of) : of_(of) {}
        bool ended() const { return of_->count_ == 0; }
        range *of_;
    };

    iterator begin()
    {
        cursor_.reset();
        lw_cursor *made = nullptr;
        lw_range range = ends_.get();
        detail::call(Calls::cursor, of_, table_, &range, &made);
        cursor_.reset(made);
        rows_.resize(Calls::ahead);
        at_ = count_ = 0;
        advance();
        return iterator(this);
    }
    sentinel end() const noexcept { return {}; }

private:
    static std::string bytes_of(const key_arg &key)
    {
        detail::encoded_key<K> bytes(key);
        return std::string(bytes_view(bytes.data(), bytes.size()).text());
    }

    template <class Whole, class... First>
    static std::string first_parts(const First &...parts)
    {
        writer to;
        put_first(static_cast<Whole *>(nullptr), to, std::index_sequence_for<First...>(), parts...);
        return std::string(to.view().text());
    }
    template <class... Parts, std::size_t... At, class... First>
    static void put_first(std::tuple<Parts...> *, writer &to, std::index_sequence<At...>,
                          const First &...parts)
    {
        static_assert(sizeof...(First) <= sizeof...(Parts), "the key has fewer parts");
        (codec<std::tuple_element_t<At, std::tuple<Parts...>>>::put_key(parts, false, to), ...);
    }
    template <class A, class B, std::size_t... At, class... First>
    static void put_first(std::pair<A, B> *, writer &to, std::index_sequence<At...> at,
                          const First &...parts)
    {
        put_first(static_cast<std::tuple<A, B> *>(nullptr), to, at, parts...);
    }

    range &starts(std::string key, std::uint32_t flags)
    {
        ends_.from = std::move(key);
        ends_.flags |= flags;
        return *this;
    }
    range &stops(std::string key, std::uint32_t flags)
    {
        ends_.to = std::move(key);
        ends_.flags |= flags;
        return *this;
    }

    // Moves to the next record; `count_` is 0 at the end.
    void advance()
    {
        if (++at_ < count_) return;
        at_ = count_ = 0;
        detail::call(lw_cursor_next_some, cursor_.get(), rows_.data(), rows_.size(), &count_);
    }

    // The snapshot, if no other object has it. It ends after the cursor.
    detail::snapshot_handle own_;
    typename Calls::object *of_;
    const lw_table *table_;
    detail::ends ends_;
    detail::cursor_handle cursor_;
    std::vector<lw_row> rows_;
    std::size_t at_ = 0, count_ = 0;
};

}  // namespace lw

#endif
