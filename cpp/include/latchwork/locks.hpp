// The lock manager: locks by name, between the threads of a process or several processes.
#ifndef LATCHWORK_LOCKS_HPP
#define LATCHWORK_LOCKS_HPP

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transaction.hpp"

namespace lw {

// The modes that locks have; all processes of a region say the same.
enum class granular : int { IS, IX, S, SIX, U, X };
enum class shared_exclusive : int { S, X };
enum class postgres : int {
    access_share,
    row_share,
    row_exclusive,
    share_update_exclusive,
    share,
    share_row_exclusive,
    exclusive,
    access_exclusive,
};

namespace detail {
template <class Modes>
inline constexpr std::uint32_t modes_of = LW_MODES_GRANULAR;
template <>
inline constexpr std::uint32_t modes_of<shared_exclusive> = LW_MODES_SHARED;
template <>
inline constexpr std::uint32_t modes_of<postgres> = LW_MODES_POSTGRES;

using locks_handle = std::unique_ptr<lw_locks, free_with<lw_locks_close>>;
using owner_handle = std::unique_ptr<lw_owner, free_with<lw_owner_free>>;
}  // namespace detail

struct lock_options {
    std::uint32_t processes = 0;
    std::uint32_t threads = 0;
    std::uint64_t limit = 0;
};

// A lock that is held or waited for.
template <class Modes>
struct lock_state {
    std::uint64_t owner;
    std::string label;
    bytes name;
    std::optional<Modes> held, wanted;
    std::uint32_t count;
    std::chrono::nanoseconds waited;
};

template <class Modes>
class owner;

// A lock manager. All threads may use it at the same time.
template <class Modes = granular>
class lock_manager {
public:
    // A private manager of this process.
    explicit lock_manager(const lock_options &options = {}) { open(nullptr, options); }
    // A manager that processes share: a file in /dev/shm or on another file system of this machine, which
    // is created if it does not exist, and stays.
    explicit lock_manager(const std::string &path, const lock_options &options = {})
    {
        open(path.c_str(), options);
    }

    // Ends deadlocks, and returns how many there were. Owners that wait do this by themselves.
    std::uint64_t detect() { return counted(lw_locks_detect); }
    // Releases the locks of dead processes; returns how many owners that were.
    std::uint64_t sweep() { return counted(lw_locks_sweep); }
    // Has all requests of an owner throw lw::killed; returns false if there is no such owner.
    bool kill(std::uint64_t owner)
    {
        return detail::call(lw_locks_kill, handle_.get(), owner) == LW_OK;
    }
    // All locks that are held or waited for, by any process, of about one moment.
    std::vector<lock_state<Modes>> list() const
    {
        std::vector<lock_state<Modes>> all;
        auto body = [&](const lw_lock *lock) {
            all.push_back({lock->owner, std::string(lock->label, lock->label_len),
                           bytes_view(lock->name, lock->name_len).copy(), mode_of(lock->held),
                           mode_of(lock->wanted), lock->count,
                           std::chrono::nanoseconds(lock->waited_ns)});
            return true;
        };
        detail::guarded<decltype(body)> guarded{body};
        detail::call(lw_locks_list, handle_.get(), on_lock<decltype(body)>,
                     static_cast<void *>(&guarded));
        guarded.rethrow();
        return all;
    }
    lw_locks *get() const noexcept { return handle_.get(); }

    static std::optional<Modes> mode_of(int number)
    {
        return number < 0 ? std::nullopt : std::optional<Modes>(static_cast<Modes>(number));
    }

private:
    void open(const char *path, const lock_options &given)
    {
        lw_locks_options options = LW_LOCKS_OPTIONS_INIT;
        options.modes = detail::modes_of<Modes>;
        options.processes = given.processes;
        options.threads = given.threads;
        options.limit = given.limit;
        lw_locks *opened = nullptr;
        detail::call(lw_locks_open, path, &options, &opened);
        handle_.reset(opened);
    }
    template <class Function>
    std::uint64_t counted(Function *function)
    {
        std::uint64_t count = 0;
        detail::call(function, handle_.get(), &count);
        return count;
    }
    template <class Body>
    static int on_lock(void *context, const lw_lock *lock)
    {
        return static_cast<detail::guarded<Body> *>(context)->run(lock);
    }

    detail::locks_handle handle_;
};

// An owner of locks: a transaction, or a task. It may move between threads with its locks; one
// thread uses it at a time. The destructor releases its locks, and so does the death of its
// process. A wait that would complete a deadlock throws lw::conflict in one of the owners, which
// releases its locks and begins again.
template <class Modes = granular>
class owner {
public:
    struct options {
        // Victims of deadlocks are the owners with the lowest priority; 0 is 100.
        std::uint32_t priority = 0;
        // The result of `age` at an earlier attempt of the same task, so that it is not the victim
        // again.
        std::uint64_t age = 0;
        const char *label = nullptr;

        lw_owner_options get() const
        {
            lw_owner_options to = LW_OWNER_OPTIONS_INIT;
            to.priority = priority, to.age = age, to.label = label;
            return to;
        }
    };

    explicit owner(lock_manager<Modes> &locks) : owner(locks, options()) {}
    owner(lock_manager<Modes> &locks, const options &options)
    {
        lw_owner_options raw = options.get();
        lw_owner *made = nullptr;
        detail::call(lw_owner_new, locks.get(), &raw, &made);
        handle_.reset(made);
    }

    // Takes a lock, and waits for it. Locks are counted. A name has 1 to 4,000 bytes.
    void lock(bytes_view name, Modes mode)
    {
        detail::call(lw_owner_lock, get(), name.data(), name.size(), static_cast<int>(mode));
    }
    // Returns false if the lock is not free.
    bool try_lock(bytes_view name, Modes mode)
    {
        return detail::call(lw_owner_try_lock, get(), name.data(), name.size(),
                            static_cast<int>(mode)) == LW_OK;
    }
    // Returns false if the lock was not granted in time.
    bool try_lock_for(bytes_view name, Modes mode, std::chrono::milliseconds time)
    {
        try {
            return detail::call(lw_owner_lock_timeout, get(), name.data(), name.size(),
                                static_cast<int>(mode), detail::milliseconds(time)) == LW_OK;
        } catch (const timeout &) {
            return false;
        }
    }
    // Releases a lock once. Throws lw::not_held.
    void unlock(bytes_view name)
    {
        detail::call(lw_owner_unlock, get(), name.data(), name.size());
    }
    void release_all() { detail::call(lw_owner_release_all, get()); }
    // The mode in which it holds a lock.
    std::optional<Modes> holds(bytes_view name) const
    {
        int mode = -1;
        std::uint32_t count = 0;
        detail::call(lw_owner_holds, get(), name.data(), name.size(), &mode, &count);
        return lock_manager<Modes>::mode_of(mode);
    }
    // Releases all locks and becomes a new owner: cheaper than another object.
    void renew() { renew(options()); }
    void renew(const options &options)
    {
        lw_owner_options raw = options.get();
        detail::call(lw_owner_renew, get(), static_cast<const lw_owner_options *>(&raw));
    }
    std::uint64_t id() const { return number(lw_owner_id); }
    std::uint64_t age() const { return number(lw_owner_age); }
    lw_owner *get() const noexcept { return handle_.get(); }

private:
    template <class Function>
    std::uint64_t number(Function *function) const
    {
        std::uint64_t number = 0;
        detail::call(function, get(), &number);
        return number;
    }

    detail::owner_handle handle_;
};

// Holds a lock of an owner until the end of a scope.
template <class Modes>
class lock_guard {
public:
    lock_guard(owner<Modes> &of, bytes_view name, Modes mode) : owner_(of), name_(name.copy())
    {
        owner_.lock(name_, mode);
    }
    // An error, after a fork, has nothing to release.
    ~lock_guard() { lw_owner_unlock(owner_.get(), name_.data(), name_.size(), nullptr); }
    lock_guard(const lock_guard &) = delete;
    lock_guard &operator=(const lock_guard &) = delete;

private:
    owner<Modes> &owner_;
    bytes name_;
};

}  // namespace lw

#endif
