// Exceptions: one class for each error code of the C library, all derived from lw::error.
#ifndef LATCHWORK_ERROR_HPP
#define LATCHWORK_ERROR_HPP

#include <latchwork.h>

#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "bytes.hpp"

namespace lw {

// A call failed. Copies share their texts, so copying never throws.
class error : public std::runtime_error {
public:
    // An error of a program's own; `code` is an lw_code.
    error(int code, const std::string &text) : error(code, text, nullptr) {}

    // The lw_code. Class and code say the same.
    int code() const noexcept { return code_; }
    const char *code_name() const noexcept { return lw_code_name(code_); }
    // The table that the error concerns, or NULL.
    const char *table() const noexcept
    {
        return details_ && details_->has_table ? details_->table.c_str() : nullptr;
    }
    // The key that the error concerns, as it is stored; empty if there is none.
    bytes_view key() const noexcept { return details_ ? bytes_view(details_->key) : bytes_view(); }
    // The error that led to this one, or NULL: why the last attempt of a transaction failed.
    const error *cause() const noexcept { return details_ ? details_->cause.get() : nullptr; }

    bool is_retryable() const noexcept { return lw_is_retryable(code_) != 0; }
    bool is_no_space() const noexcept { return lw_is_no_space(code_) != 0; }
    bool is_damage() const noexcept { return lw_is_damage(code_) != 0; }

    struct details {
        bool has_table = false;
        std::string table;
        bytes key;
        std::shared_ptr<const error> cause;
    };
    error(int code, const std::string &text, std::shared_ptr<const details> more)
        : std::runtime_error(text), code_(code), details_(std::move(more))
    {
    }

private:
    int code_;
    std::shared_ptr<const details> details_;
};

// An error that a retry loop handles by running the transaction again: lw::conflict, lw::timeout
// and lw::too_old.
class retryable_error : public error {
public:
    using error::error;
};

namespace detail {
template <int Code>
inline constexpr bool is_retryable =
    Code == LW_CONFLICT || Code == LW_TIMEOUT || Code == LW_TOO_OLD;
}

// The exception of one code.
template <int Code>
class error_of : public std::conditional_t<detail::is_retryable<Code>, retryable_error, error> {
    using base = std::conditional_t<detail::is_retryable<Code>, retryable_error, error>;

public:
    explicit error_of(const std::string &text) : base(Code, text) {}
    error_of(const std::string &text, std::shared_ptr<const error::details> more)
        : base(Code, text, std::move(more))
    {
    }
};

// See the code of the same name in latchwork.h for what each one means.
using misuse = error_of<LW_MISUSE>;
using forked = error_of<LW_FORKED>;
using defect = error_of<LW_PANIC>;
using bad_options = error_of<LW_OPTIONS>;
using read_only = error_of<LW_READ_ONLY>;
using closed = error_of<LW_CLOSED>;
using busy = error_of<LW_BUSY>;
using open_failed = error_of<LW_OPEN>;
using no_store = error_of<LW_NO_STORE>;
using permission = error_of<LW_PERMISSION>;
using bad_version = error_of<LW_VERSION>;
using in_use = error_of<LW_IN_USE>;
using conflict = error_of<LW_CONFLICT>;
using timeout = error_of<LW_TIMEOUT>;
using too_old = error_of<LW_TOO_OLD>;
using deadline = error_of<LW_DEADLINE>;
using killed = error_of<LW_KILLED>;
using self_deadlock = error_of<LW_SELF>;
using bad_savepoint = error_of<LW_SAVEPOINT>;
using bad_table_type = error_of<LW_TABLE_TYPE>;
using migrating = error_of<LW_MIGRATING>;
using too_long = error_of<LW_TOO_LONG>;
using bad_format = error_of<LW_FORMAT>;
using no_threads = error_of<LW_THREADS>;
using locks_full = error_of<LW_LOCKS_FULL>;
using no_space = error_of<LW_NO_SPACE>;
using damaged = error_of<LW_DAMAGED>;
using io_error = error_of<LW_IO>;
using commit_unknown = error_of<LW_COMMIT_UNKNOWN>;
using reads_unknown = error_of<LW_READS_UNKNOWN>;
using prepare_unknown = error_of<LW_PREPARE_UNKNOWN>;
using already_prepared = error_of<LW_PREPARED>;
using not_prepared = error_of<LW_NOT_PREPARED>;
using not_held = error_of<LW_NOT_HELD>;
using foreign = error_of<LW_FOREIGN>;
using failed = error_of<LW_FAILED>;

namespace detail {

template <int... Codes>
struct codes {};

// All codes that have a class. LW_NO_MEMORY is std::bad_alloc.
using all_codes =
    codes<LW_MISUSE, LW_FORKED, LW_PANIC, LW_OPTIONS, LW_READ_ONLY, LW_CLOSED, LW_BUSY, LW_OPEN,
          LW_NO_STORE, LW_PERMISSION, LW_VERSION, LW_IN_USE, LW_CONFLICT, LW_TIMEOUT, LW_TOO_OLD, LW_DEADLINE,
          LW_KILLED, LW_SELF, LW_SAVEPOINT, LW_TABLE_TYPE, LW_MIGRATING, LW_TOO_LONG, LW_FORMAT,
          LW_THREADS, LW_LOCKS_FULL, LW_NO_SPACE, LW_DAMAGED, LW_IO, LW_COMMIT_UNKNOWN,
          LW_READS_UNKNOWN, LW_PREPARE_UNKNOWN, LW_PREPARED, LW_NOT_PREPARED, LW_NOT_HELD,
          LW_FOREIGN, LW_FAILED>;

template <int Code>
void throw_if(int code, const std::string &text, std::shared_ptr<const error::details> &more)
{
    if (code == Code) throw error_of<Code>(text, std::move(more));
}

template <int... Codes>
[[noreturn]] void throw_code(codes<Codes...>, int code, const std::string &text,
                             std::shared_ptr<const error::details> more)
{
    (throw_if<Codes>(code, text, more), ...);
    // A code of a later version of the library.
    throw error(code, text, std::move(more));
}

inline std::shared_ptr<const error::details> details_of(const lw_error *object)
{
    auto details = std::make_shared<error::details>();
    if (const char *table = lw_error_table(object)) {
        details->has_table = true;
        details->table = table;
    }
    std::size_t length = 0;
    const void *key = lw_error_key(object, &length);
    details->key = bytes_view(key, length).copy();
    if (const lw_error *cause = lw_error_cause(object)) {
        details->cause = std::make_shared<const error>(lw_error_code(cause),
                                                       lw_error_message(cause), details_of(cause));
    }
    return details;
}

using error_handle = std::unique_ptr<lw_error, free_with<lw_error_free>>;

// Throws the exception of an error; takes the object, which may be NULL.
[[noreturn]] inline void throw_error(int code, lw_error *object)
{
    error_handle handle(object);
    if (code == LW_NO_MEMORY) throw std::bad_alloc();
    if (!object) throw_code(all_codes(), code, lw_code_name(code), nullptr);
    throw_code(all_codes(), code, lw_error_message(object), details_of(object));
}

// Calls a function of the C library with a place for an error; returns an answer, or throws.
template <class... Parameters, class... Arguments>
int call(int (*function)(Parameters...), Arguments... arguments)
{
    lw_error *object = nullptr;
    int code = function(arguments..., &object);
    if (code < 0) throw_error(code, object);
    return code;
}

}  // namespace detail
}  // namespace lw

#endif
