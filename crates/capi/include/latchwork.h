/* Latchwork: a store that several processes write at the same time, and a lock manager.
 *
 * Every call returns an int: LW_OK (0), or an answer, which is positive (LW_NOT_FOUND), or an
 * error, which is negative: see enum lw_code. The last argument of a call, lw_error **error, may
 * be NULL. Otherwise *error is an object with text after an error, which the caller frees with
 * lw_error_free, and NULL after LW_OK and after an answer. There is no error state in a store or a
 * thread.
 *
 * Memory: bytes that are passed are read during the call, and not kept. Bytes that come back are
 * in an lw_buf of the caller's. No pointer into a store's memory leaves the library. Objects end
 * with the call that their type names (lw_close, lw_commit, lw_..._free), which accepts NULL, and
 * are recognised afterwards: LW_MISUSE. While a call uses an object no other call ends it: LW_BUSY.
 *
 * Threads: a store and a table may be used by all threads at once. All other objects may move
 * between threads, and are used by one at a time: a second use at the same time returns LW_BUSY.
 *
 * fork: in the child every call on an object of the parent returns LW_FORKED; calls that free it
 * release memory of the child alone; lw_store_reopen opens the store again. A table and an error
 * are plain memory, and may be used.
 *
 * Functions of the caller must not throw C++ exceptions or longjmp out of the call that they are
 * in: that would skip the end of the library's frames.
 *
 * Structs that begin with `size` are initialised with their macro, and may grow in later versions.
 *
 * The guide is docs/c.md. This file is generated: see scripts/capi. */

#ifndef LATCHWORK_H
#define LATCHWORK_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LW_BUF_INIT { NULL, 0, 0 }
#define LW_OPTIONS_INIT { sizeof(lw_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
#define LW_TXN_OPTIONS_INIT { sizeof(lw_txn_options), 0, 0, 0, 0, 0, NULL }
#define LW_TABLE_OPTIONS_INIT { sizeof(lw_table_options), NULL, NULL, 0, 0 }
#define LW_RANGE_INIT { sizeof(lw_range), NULL, 0, NULL, 0, 0, 0, 0 }
#define LW_LOCKS_OPTIONS_INIT { sizeof(lw_locks_options), 0, 0, 0, 0, 0 }
#define LW_OWNER_OPTIONS_INIT { sizeof(lw_owner_options), 0, 0, 0, NULL }

// The store must exist: `lw_open` does not create it.
#define LW_NO_CREATE 1

// The store is only read; calls that would write return `LW_READ_ONLY`.
#define LW_READ_ONLY_STORE 2

// The store may lie on a network file system: the caller knows that all its processes are on one
// machine, and that file locks work there.
#define LW_NETWORK 4

// Sizes for a small store or a small machine, where the other options do not say otherwise: a log
// of 4 MiB between checkpoints, 64 threads, 64 MiB of addresses for locks.
#define LW_SMALL 8

// The shared memory lies in the folder of the store, and not in `/dev/shm`.
#define LW_MEMORY_BESIDE 16

// The range begins behind `from`.
#define LW_FROM_EXCLUDED 1

// The range ends with `to`, and not before it.
#define LW_TO_INCLUDED 2

// From the last record of the range to the first.
#define LW_REVERSE 4

// All keys that begin with the bytes of `from`; `to` is NULL.
#define LW_PREFIX 8

// All keys that begin with the parts of `from`, which `lw_key_encode` has made; `to` is NULL. A
// text part "ann" does not match "anna", as it would by bytes if it is not ended.
#define LW_PREFIX_PARTS 16

// Reads may change before the transaction ends, and no range is held: less waiting, and histories
// that no serial order has.
#define LW_READ_COMMITTED 1

// The transaction waits for no lock: a call that would have to wait returns `LW_TIMEOUT`.
#define LW_NO_WAIT 2

// The result of a call: 0; or an answer, which is positive; or an error, which is negative.
//
// Each code is one case that a program can act on. Text for people is in the `lw_error`. Numbers
// do not change between versions; new ones may be added.
typedef enum lw_code {
    // Done.
    LW_OK = 0,
    // Answer: there is no such record, or there are no more.
    LW_NOT_FOUND = 1,
    // Answer: a record with this key exists already. Nothing was changed.
    LW_EXISTS = 2,
    // Answer of `lw_attempts_end`: the transaction is to run again, call `lw_attempts_next`.
    LW_AGAIN = 3,
    // Answer of `lw_attempts_next` and `lw_done_next`: there is no more to do.
    LW_DONE = 4,
    // Answer of `lw_owner_try_lock`: another owner holds the lock.
    LW_NOT_GRANTED = 5,
    // The call is wrong: NULL, a handle that was closed or is of another type, a size that no
    // memory has.
    LW_MISUSE = -1,
    // The object belongs to the parent of this process (fork). Open the store again:
    // `lw_store_reopen`.
    LW_FORKED = -2,
    // A defect of the library was caught. The object of the call may be unusable; the data is
    // safe: a transaction is rolled back.
    LW_PANIC = -3,
    // The process has no memory.
    LW_NO_MEMORY = -4,
    // An option has a value that it cannot have.
    LW_OPTIONS = -5,
    // The store was opened for reading only.
    LW_READ_ONLY = -6,
    // The calling thread is ending (a destructor of its local variables runs), and has given up
    // its part in the store.
    LW_CLOSED = -7,
    // Another call uses the object, on another thread or around the callback that makes this one.
    // Nothing was done; the object is as it was.
    LW_BUSY = -8,
    // The path cannot be opened as a store for a reason that the message gives.
    LW_OPEN = -20,
    // There is no store at the path.
    LW_NO_STORE = -21,
    // The system does not permit it, or the store belongs to another user.
    LW_PERMISSION = -22,
    // The store has a format of another version of the library.
    LW_VERSION = -23,
    // Other processes use the store or the path in a way that excludes this call; it may succeed
    // later.
    LW_IN_USE = -24,
    // A deadlock or a conflict; the transaction must run again. Retryable.
    LW_CONFLICT = -40,
    // A lock was not granted in time. Retryable.
    LW_TIMEOUT = -41,
    // The snapshot or the transaction was open for too long. Retryable.
    LW_TOO_OLD = -42,
    // The deadline of a retry loop passed. The cause says why the last attempt failed.
    LW_DEADLINE = -43,
    // An operator ended the transaction, or another owner's lock.
    LW_KILLED = -44,
    // The lock is held by another transaction of the same thread: waiting for it would never end.
    LW_SELF = -45,
    // The savepoint is of another transaction, or was rolled back over.
    LW_SAVEPOINT = -46,
    // The table has other types or another version.
    LW_TABLE_TYPE = -47,
    // The table is being migrated; wait for that.
    LW_MIGRATING = -48,
    // A key, a value or a name is longer than a store can have.
    LW_TOO_LONG = -49,
    // The bytes are no encoded key, or not of the expected form.
    LW_FORMAT = -50,
    // No thread slot is free: end transactions, snapshots and threads, or open the store with
    // more.
    LW_THREADS = -51,
    // The memory for locks is full.
    LW_LOCKS_FULL = -52,
    // The file system is full. Nothing is lost; make room and try again.
    LW_NO_SPACE = -60,
    // Data on the disk is damaged.
    LW_DAMAGED = -61,
    // The system or the disk refused an operation in another way.
    LW_IO = -62,
    // Committed, but a crash of the machine may take the commit back: the disk failed.
    LW_COMMIT_UNKNOWN = -63,
    // A crash of the machine may take back records that the transaction has read: the disk failed.
    LW_READS_UNKNOWN = -64,
    // Prepared, but a crash of the machine may take that back: the disk failed.
    LW_PREPARE_UNKNOWN = -65,
    // A prepared transaction has this id.
    LW_PREPARED = -66,
    // No prepared transaction has this id.
    LW_NOT_PREPARED = -67,
    // The owner does not hold the lock.
    LW_NOT_HELD = -80,
    // The region has locks with other modes, or is no region of the library.
    LW_FOREIGN = -81,
    // Anything else; the message says what.
    LW_FAILED = -100,
} lw_code;

// When a commit returns.
typedef enum lw_mode {
    // As the store says; for a store that is `LW_MODE_FULL`.
    LW_MODE_DEFAULT = 0,
    // When it is durable: a crash of the machine loses nothing.
    LW_MODE_FULL = 1,
    // When it is written to the file, which is not synced.
    LW_MODE_WRITE = 2,
    // When it is in shared memory: it survives the death of all processes. A crash of the machine
    // loses what was not synced; `lw_sync` does that.
    LW_MODE_NONE = 3,
    // As `LW_MODE_NONE`, and the log is synced when `period_ms` have passed since it last was, by
    // the next commit.
    LW_MODE_PERIODIC = 4,
} lw_mode;

// The type of a key's part: an `lw_part_kind` in `lw_part.kind`, and which member of `of` has it.
typedef enum lw_part_kind {
    // Nothing: `None` of an option.
    LW_PART_NULL = 0,
    // Bytes: `data` and `len`.
    LW_PART_BYTES = 1,
    // Text in UTF-8: `data` and `len`.
    LW_PART_TEXT = 2,
    // Here a tuple inside the key begins.
    LW_PART_BEGIN = 3,
    // Here the tuple that was begun last ends.
    LW_PART_END = 4,
    // An integer, of any integer type: `of.i64`.
    LW_PART_I64 = 5,
    // An integer, of any integer type: `of.u64`. It is encoded as the same number as an `i64` is.
    LW_PART_U64 = 6,
    // An integer of 128 bits: `of.wide`, little-endian.
    LW_PART_I128 = 7,
    // An integer of 128 bits without a sign: `of.wide`, little-endian.
    LW_PART_U128 = 8,
    // `of.f32`.
    LW_PART_F32 = 9,
    // `of.f64`.
    LW_PART_F64 = 10,
    // `of.u64`: 0 is false, another number true.
    LW_PART_BOOL = 11,
    // `of.wide`: the 16 bytes of a UUID.
    LW_PART_UUID = 12,
} lw_part_kind;

// The modes that locks have.
typedef enum lw_modes {
    // Granular locks of databases: modes 0 to 5 are IS, IX, S, SIX, U, X.
    LW_MODES_GRANULAR = 0,
    // Readers and writers: modes 0 and 1 are S and X.
    LW_MODES_SHARED = 1,
    // Berkeley DB's: modes 0 to 8 are NG, READ, WRITE, WAIT, IWRITE, IREAD, IWR, READ_UNCOMMITTED,
    // WWRITE, with the numbers that they have there.
    LW_MODES_BERKELEY = 2,
    // Berkeley DB's Concurrent Data Store: modes 0 to 4 are NG, READ, WRITE, WAIT, IWRITE.
    LW_MODES_BERKELEY_CDS = 3,
    // PostgreSQL's table locks: modes 0 to 7 are ACCESS SHARE to ACCESS EXCLUSIVE.
    LW_MODES_POSTGRES = 4,
} lw_modes;

// The kind of an operation in a batch.
typedef enum lw_op_kind {
    // `lw_owner_lock_timeout` with `mode` and `time_ms`.
    LW_OP_LOCK = 0,
    // `lw_owner_unlock`.
    LW_OP_UNLOCK = 1,
    // Releases a lock as often as it was taken.
    LW_OP_RELEASE_NAME = 2,
    // Releases all locks in modes that do not write.
    LW_OP_RELEASE_READS = 3,
    // `lw_owner_release_all`.
    LW_OP_RELEASE_ALL = 4,
} lw_op_kind;

// The attempts of one transaction: a retry loop without a callback. One thread uses it at a time.
typedef struct lw_attempts lw_attempts;

// A place in a range of a table. One thread uses it at a time. It ends with its snapshot or
// transaction: then its calls return `LW_MISUSE`, and it must still be freed.
typedef struct lw_cursor lw_cursor;

// Why a call failed, as an object: a code, a text for people, the table and the key concerned, and
// the error that led to this one. Plain memory: it may be used by any thread, and after a fork.
typedef struct lw_error lw_error;

// A lock manager. All threads may use it at the same time.
typedef struct lw_locks lw_locks;

// An owner of locks: a transaction, or a task of the program. It may move between threads, with
// its locks; one thread uses it at a time. If its process dies its locks are released.
typedef struct lw_owner lw_owner;

// The state of all tables at one moment. It holds no lock, and no writer waits for it; but the log
// is kept from its position on, or some day its calls return `LW_TOO_OLD`. It may move between
// threads; one thread uses it at a time.
typedef struct lw_snapshot lw_snapshot;

// An open store. All threads of the process may use it at the same time. Open each store once in
// a process, and share the object.
typedef struct lw_store lw_store;

// A table: a name, and the types of its keys and values. It belongs to no store and holds nothing
// of one, so one object serves all stores and threads of a program, also the child of a fork.
typedef struct lw_table lw_table;

// A transaction that reads and writes: serializable, with locks that it holds until it ends. It
// may move between threads; one thread uses it at a time, and a second use at the same time
// returns `LW_MISUSE`. If its process dies, it is rolled back, and other processes continue.
typedef struct lw_txn lw_txn;

// Bytes that the library has written: initialise it with `LW_BUF_INIT`, use it for any number of
// calls, and free it with `lw_buf_free`. A call replaces what it has, and grows it if it must, so
// that a loop that uses one buffer allocates nothing.
//
// `data` comes from `malloc`, so a caller may also keep it, free it with `free`, and initialise
// the buffer again.
typedef struct lw_buf {
    // The bytes; NULL as long as there never were any.
    void *data;
    // How many bytes there are.
    size_t len;
    // How many bytes there is room for.
    size_t capacity;
} lw_buf;

// How a store is opened. Initialise it with `LW_OPTIONS_INIT`. A size that is 0 is the default, in
// brackets. A store that is open already, in any process, keeps the sizes of its memory, and one
// that exists those of its files.
typedef struct lw_options {
    // The size of this struct.
    size_t size;
    // `LW_NO_CREATE`, `LW_READ_ONLY_STORE`, `LW_NETWORK`, `LW_SMALL`, `LW_MEMORY_BESIDE`, or 0.
    uint32_t flags;
    // When commits return, unless a transaction says otherwise: an `lw_mode`.
    uint32_t mode;
    // The period of `LW_MODE_PERIODIC`, in milliseconds.
    uint32_t period_ms;
    // How many thread slots there are: threads, transactions and snapshots of all processes at a
    // time, 2 to 16,000 (512).
    uint32_t threads;
    // Bytes of the page cache at first (64 MiB).
    uint64_t cache;
    // Bytes to which the page cache may grow (4 GiB).
    uint64_t cache_max;
    // Bytes of a page: a power of two from 4,096 to 65,536 (8,192).
    uint32_t page;
    // Milliseconds to wait for a process that opens or closes the store; 0 is as long as it takes.
    uint32_t wait_ms;
    // Bytes of log between checkpoints (256 MiB).
    uint64_t log_budget;
    // Bytes of log that old snapshots may keep (4 GiB).
    uint64_t history;
    // Bytes of addresses for locks (16 GiB).
    uint64_t locks;
} lw_options;

// How a table is named. Initialise it with `LW_TABLE_OPTIONS_INIT`.
//
// With both types, the first write to the table records them in the store, and from then on a
// program, in any language, that names the table with other types gets `LW_TABLE_TYPE`. The types
// of `docs/types.md` are written as text without spaces: "bytes", "str", "u64", "i64", "f64",
// "bool", "uuid", "(str,u64)". Keys of such a table are made by `lw_key_encode`; values of numbers
// are little-endian, and those of "bytes" and "str" are the bytes themselves.
//
// Without types, keys and values are bytes in the order of `memcmp`, and nothing is recorded or
// compared: any table can be read in this way.
typedef struct lw_table_options {
    // The size of this struct.
    size_t size;
    // The type of keys, or NULL.
    const char *key_type;
    // The type of values, or NULL.
    const char *value_type;
    // The schema version, which a program changes with the meaning of its records. 0.
    uint32_t version;
    // 0: for later versions.
    uint32_t reserved;
} lw_table_options;

// A function that is called with the bytes of a value: they live until it returns. It must return:
// it must not throw an exception or jump (`longjmp`) out of the call that it is in.
typedef void (*lw_value_fn)(void *context, const void *value, size_t length);

// A range of keys, in the order of their bytes. Initialise it with `LW_RANGE_INIT`: that is all
// keys. The bytes are read by the call that gets the range, and not afterwards.
typedef struct lw_range {
    // The size of this struct.
    size_t size;
    // Where it begins; NULL is at the first key.
    const void *from;
    // Bytes of `from`.
    size_t from_len;
    // Before which key it ends; NULL is behind the last key.
    const void *to;
    // Bytes of `to`.
    size_t to_len;
    // `LW_FROM_EXCLUDED`, `LW_TO_INCLUDED`, `LW_REVERSE`, `LW_PREFIX`, `LW_PREFIX_PARTS`, or 0.
    uint32_t flags;
    // 0: for later versions.
    uint32_t reserved;
    // After how many records a scan or a cursor ends; 0 is no limit.
    uint64_t limit;
} lw_range;

// A function that is called with each record of a range: the bytes live until it returns. It
// returns 0 to continue; any other number ends the scan and is returned by the call. It must not
// throw an exception or jump (`longjmp`) out of the call that it is in.
typedef int (*lw_record_fn)(void *context,
                            const void *key,
                            size_t key_len,
                            const void *value,
                            size_t value_len);

// How a transaction runs. Initialise it with `LW_TXN_OPTIONS_INIT`.
typedef struct lw_txn_options {
    // The size of this struct.
    size_t size;
    // `LW_READ_COMMITTED`, `LW_NO_WAIT`, or 0.
    uint32_t flags;
    // When the commit returns: an `lw_mode`.
    uint32_t mode;
    // The period of `LW_MODE_PERIODIC`, in milliseconds.
    uint32_t period_ms;
    // 0: for later versions.
    uint32_t reserved;
    // For how many milliseconds it waits for locks, and is run again by a retry loop; 0 is 10,000,
    // and for `lw_begin` no limit. UINT64_MAX is no limit.
    uint64_t time_ms;
    // A text for people, which errors and tools show; 32 bytes at most are kept. NULL is none. The
    // process keeps each text until it ends: do not make new ones all the time.
    const char *label;
} lw_txn_options;

// The body of a transaction: returns 0 to commit, or a code of a call that failed, or a number of
// the program's own (not `LW_AGAIN` or `LW_DONE`), to roll back. It may be called several times.
// It must not throw an exception or jump (`longjmp`) out of the call that it is in, and its thread
// must not be cancelled (`pthread_cancel`).
typedef int (*lw_body_fn)(struct lw_txn *tx, void *context);

// A record that a cursor gives out. The bytes belong to the cursor, and live until its next call.
typedef struct lw_row {
    // The key.
    const void *key;
    // Bytes of the key.
    size_t key_len;
    // The value.
    const void *value;
    // Bytes of the value.
    size_t value_len;
} lw_row;

// A function that is called when a commit is as durable as its mode says, or is known not to be:
// `code` is what `lw_commit` would have returned, and `error` belongs to the function, which frees
// it. It is called once, by a thread of the library, or by the thread that commits before that
// call returns. It must be short: while it runs no other commit of the process is reported. It
// must not close the store, throw an exception, or end its thread.
typedef void (*lw_done_fn)(void *context, int code, struct lw_error *error);

// The number that a part of a key is.
typedef union lw_part_of {
    // Of `LW_PART_I64`.
    int64_t i64;
    // Of `LW_PART_U64` and `LW_PART_BOOL`.
    uint64_t u64;
    // Of `LW_PART_F32`.
    float f32;
    // Of `LW_PART_F64`.
    double f64;
    // Of `LW_PART_I128`, `LW_PART_U128` and `LW_PART_UUID`.
    uint8_t wide[16];
} lw_part_of;

// A part of a key. The functions `lw_part_text`, `lw_part_u64`, .. of this header make one.
typedef struct lw_part {
    // An `lw_part_kind`.
    uint32_t kind;
    // 0: for later versions.
    uint32_t reserved;
    // The number, of kinds that are one.
    union lw_part_of of;
    // The bytes of `LW_PART_BYTES` and `LW_PART_TEXT`.
    const void *data;
    // How many bytes.
    size_t len;
} lw_part;

// A function that is called with each prepared transaction: its id, and when it was prepared, in
// milliseconds since 1970. It returns 0 to continue; any other number ends the call, which returns
// it. It must not throw an exception or jump (`longjmp`) out of the call that it is in.
typedef int (*lw_prepared_fn)(void *context, const void *gid, size_t gid_len, uint64_t when_ms);

// How a lock manager is opened. Initialise it with `LW_LOCKS_OPTIONS_INIT`. A number that is 0 is
// the default, in brackets.
typedef struct lw_locks_options {
    // The size of this struct.
    size_t size;
    // An `lw_modes` (granular). All processes of a region say the same.
    uint32_t modes;
    // 0: for later versions.
    uint32_t reserved;
    // How many processes may have the region open: 1 to 4,096 (256).
    uint32_t processes;
    // How many owners and threads may use it at a time: 1 to 32,752 (2,048).
    uint32_t threads;
    // To how many bytes it may grow, up to 2^36 (2^36); each process reserves as many addresses.
    uint64_t limit;
} lw_locks_options;

// A lock that is held or waited for, as `lw_locks_list` finds it. The pointers are valid until
// the function that gets it returns.
typedef struct lw_lock {
    // The size of this struct.
    size_t size;
    // The id of the owner.
    uint64_t owner;
    // The label of the owner: `label_len` bytes.
    const char *label;
    // Bytes of the label.
    size_t label_len;
    // The name of the lock.
    const void *name;
    // Bytes of the name.
    size_t name_len;
    // The mode that is held, or -1.
    int held;
    // The mode that is waited for, or -1.
    int wanted;
    // How often it was taken.
    uint32_t count;
    // 0: for later versions.
    uint32_t reserved;
    // For how many nanoseconds it has been waited for, or 0.
    uint64_t waited_ns;
} lw_lock;

// A function called with each lock. It returns 0 to continue; any other number ends the call,
// which returns it. It must not throw an exception or jump (`longjmp`) out of the call that it is
// in.
typedef int (*lw_lock_fn)(void *context, const struct lw_lock *lock);

// The properties of an owner. Initialise it with `LW_OWNER_OPTIONS_INIT`.
typedef struct lw_owner_options {
    // The size of this struct.
    size_t size;
    // The victims of deadlocks are chosen from the owners with the lowest priority; 0 is 100.
    uint32_t priority;
    // 0: for later versions.
    uint32_t reserved;
    // The result of `lw_owner_age` at an earlier attempt: the owner is as old as it was then, so
    // it is not the victim again. 0 is now.
    uint64_t age;
    // A text for people; 32 bytes are kept. NULL is none.
    const char *label;
} lw_owner_options;

// An operation of a batch.
typedef struct lw_op {
    // An `lw_op_kind`.
    uint32_t kind;
    // The mode of `LW_OP_LOCK`.
    int mode;
    // The name of the lock, of the first three kinds.
    const void *name;
    // Bytes of the name.
    size_t name_len;
    // How long `LW_OP_LOCK` waits: 0 is not at all, UINT64_MAX no limit.
    uint64_t time_ms;
} lw_op;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the name of a code, such as "LW_CONFLICT", or "unknown". The text is static. Never
// fails.
const char *lw_code_name(int code);

// Returns 1 if the same transaction may succeed when it runs again, and 0 if not. A retry loop
// (`lw_write`, `lw_attempts_new`) runs it again by itself. Never fails.
int lw_is_retryable(int code);

// Returns 1 if the code says that the file system, or shared memory, is full, and 0 if not: make
// room, nothing is lost. Never fails.
int lw_is_no_space(int code);

// Returns 1 if the code says that data is damaged, and 0 if not: restore a copy, or salvage what
// can be read with `latchwork store salvage`. Never fails.
int lw_is_damage(int code);

// Returns the code of an error, or `LW_OK` if it is NULL. Never fails.
//
// The caller ensures:
// The error is NULL or alive.
int lw_error_code(const struct lw_error *error);

// Returns what happened, as text for people: UTF-8, one line. It lives as long as the error. An
// empty text if the error is NULL. Never fails.
//
// The caller ensures:
// The error is NULL or alive.
const char *lw_error_message(const struct lw_error *error);

// Returns the name of the table that the error concerns, or NULL. It lives as long as the error.
// Never fails.
//
// The caller ensures:
// The error is NULL or alive.
const char *lw_error_table(const struct lw_error *error);

// Returns the bytes of the key that the error concerns, and their number in `*length`; or NULL and
// 0. They live as long as the error. Never fails.
//
// The caller ensures:
// The error is NULL or alive; `length` is NULL or a place for a size.
const void *lw_error_key(const struct lw_error *error,
                         size_t *length);

// Returns the error that led to this one, or NULL: why the last attempt failed, or why a commit is
// not known to be durable. It belongs to this error: it lives as long, and must not be freed.
// Never fails.
//
// The caller ensures:
// The error is NULL or alive.
const struct lw_error *lw_error_cause(const struct lw_error *error);

// Frees an error, with its cause. NULL is allowed. Never fails.
//
// The caller ensures:
// The error is NULL or alive, and no cause of another error.
void lw_error_free(struct lw_error *error);

// Frees the bytes of a buffer, which is then empty and can be used again. NULL is allowed.
//
// The caller ensures:
// The buffer is NULL or initialised, and no other thread uses it.
void lw_buf_free(struct lw_buf *buf);

// Makes room in a buffer for this many bytes in all; its contents stay.
//
// Errors:
// `LW_NO_MEMORY`, `LW_MISUSE`.
//
// The caller ensures:
// The buffer is initialised, and no other thread uses it.
int lw_buf_reserve(struct lw_buf *buf, size_t bytes);

// Opens the store in a folder: creates it, joins the processes that have it open, or recovers it
// after a crash. The same call in every process. `options` may be NULL.
//
// Errors:
// `LW_NO_STORE`, `LW_OPEN`, `LW_PERMISSION`, `LW_VERSION`, `LW_IN_USE`, `LW_DAMAGED`,
// `LW_NO_SPACE`, `LW_OPTIONS`, `LW_THREADS`, `LW_IO`. The message says what to do.
//
// The caller ensures:
// `path` ends with a zero; the options were initialised.
int lw_open(const char *path,
            const struct lw_options *options,
            struct lw_store **store,
            struct lw_error **error);

// Opens the store in a folder for reading only: `lw_open` with `LW_READ_ONLY_STORE` and defaults.
// It takes no right to write the folder, and works on read-only media.
//
// Errors:
// Those of `lw_open`.
//
// The caller ensures:
// `path` ends with a zero.
int lw_open_read_only(const char *path,
                      struct lw_store **store,
                      struct lw_error **error);

// Opens a store again, in the child of a fork: the same path and options as those of `of`, which
// belongs to the parent, and is left as it is: free it with `lw_close`.
//
// Errors:
// Those of `lw_open`.
//
// The caller ensures:
// `of` is a store of this process or of its parent before the fork.
int lw_store_reopen(const struct lw_store *of,
                    struct lw_store **store,
                    struct lw_error **error);

// Closes a store, and frees the object, whatever it returns but for `LW_BUSY`. Transactions,
// snapshots and cursors that are open stay valid; the store is closed when the last of them has
// ended. The last process that closes a store makes a checkpoint, so that the next `lw_open` is
// quick; this may take time. In the child of a fork it frees this process's memory alone, and
// returns `LW_OK`. NULL is allowed.
//
// Errors:
// `LW_BUSY` if a call of another thread uses the store, or the call in whose callback this one is:
// it stays open. `LW_IO`, `LW_NO_SPACE`, `LW_DAMAGED`: it is closed, and the next `lw_open`
// recovers the changes that could not be written.
//
// The caller ensures:
// The store is NULL or alive.
int lw_close(struct lw_store *store,
             struct lw_error **error);

// Waits until all that has been committed is durable, by any process, in whatever mode. One sync
// of the log, and none if all is durable.
//
// Errors:
// `LW_COMMIT_UNKNOWN`, `LW_READ_ONLY`, `LW_IO`.
//
// The caller ensures:
// The store is alive.
int lw_sync(struct lw_store *store,
            struct lw_error **error);

// Makes a checkpoint: writes the changed pages, so that a recovery is short and the log can be
// recycled. The library also makes checkpoints by itself as the log grows.
//
// Errors:
// `LW_NO_SPACE`, `LW_IO`, `LW_READ_ONLY`.
//
// The caller ensures:
// The store is alive.
int lw_checkpoint(struct lw_store *store, struct lw_error **error);

// Creates a table object. The table itself is created in a store by the first write to it. Call
// it once for each table: the process keeps the name until it ends. `options` may be NULL: a table
// without types.
//
// Errors:
// `LW_TOO_LONG` for a name of more than 900 bytes; `LW_OPTIONS` for a type that does not exist, or
// one type without the other; `LW_MISUSE`.
//
// The caller ensures:
// `name` and the types end with a zero; the options were initialised.
int lw_table_new(const char *name,
                 const struct lw_table_options *options,
                 struct lw_table **table,
                 struct lw_error **error);

// Returns the name of a table, or NULL if the pointer is no table. It lives until the process
// ends. Never fails. The text does not end with a zero: `*length` is its length.
//
// The caller ensures:
// The table is NULL or alive; `length` is NULL or a place for a size.
const char *lw_table_name(const struct lw_table *table, size_t *length);

// Frees a table object; the table in the store stays. NULL is allowed.
//
// The caller ensures:
// The table is NULL or alive, and no other call uses it.
void lw_table_free(struct lw_table *table);

// Reads a record at a snapshot of now, into a buffer. Never blocks, and takes no lock. O(log n).
//
// Errors:
// `LW_NOT_FOUND` if there is no such record; `LW_TABLE_TYPE`, `LW_TOO_LONG`, `LW_THREADS`,
// `LW_TOO_OLD`, `LW_DAMAGED`, `LW_IO`.
//
// The caller ensures:
// Store and table are alive; the bytes of the key can be read; the buffer is initialised.
int lw_get(struct lw_store *store,
           const struct lw_table *table,
           const void *key,
           size_t key_len,
           struct lw_buf *value,
           struct lw_error **error);

// Reads a record at a snapshot of now without a copy for the caller: calls `each` with its bytes,
// if the record exists. `each` may make other calls, also with the same store.
//
// Errors:
// Those of `lw_get`.
//
// The caller ensures:
// Store and table are alive; the bytes of the key can be read; `each` returns.
int lw_get_with(struct lw_store *store,
                const struct lw_table *table,
                const void *key,
                size_t key_len,
                lw_value_fn each,
                void *context,
                struct lw_error **error);

// Writes a record, new or not, as a transaction of its own, which is run again until it succeeds,
// for 10 seconds at most. As durable as the store's mode says when it returns.
//
// Errors:
// `LW_DEADLINE`, `LW_SELF`, `LW_TABLE_TYPE`, `LW_TOO_LONG`, `LW_THREADS`, `LW_READ_ONLY`,
// `LW_NO_SPACE`, `LW_COMMIT_UNKNOWN`, `LW_DAMAGED`, `LW_IO`.
//
// The caller ensures:
// Store and table are alive; the bytes of key and value can be read.
int lw_put(struct lw_store *store,
           const struct lw_table *table,
           const void *key,
           size_t key_len,
           const void *value,
           size_t value_len,
           struct lw_error **error);

// Writes a record that must not exist yet, as `lw_put` does.
//
// Errors:
// `LW_EXISTS` if there is such a record, which stays; those of `lw_put`.
//
// The caller ensures:
// Store and table are alive; the bytes of key and value can be read.
int lw_insert(struct lw_store *store,
              const struct lw_table *table,
              const void *key,
              size_t key_len,
              const void *value,
              size_t value_len,
              struct lw_error **error);

// Removes a record, as a transaction of its own.
//
// Errors:
// `LW_NOT_FOUND` if there was no such record; those of `lw_put`.
//
// The caller ensures:
// Store and table are alive; the bytes of the key can be read.
int lw_remove(struct lw_store *store,
              const struct lw_table *table,
              const void *key,
              size_t key_len,
              struct lw_error **error);

// Takes a snapshot of now. It takes a thread slot until it is freed. O(thread slots in use).
//
// Errors:
// `LW_THREADS`, `LW_IO`.
//
// The caller ensures:
// The store is alive.
int lw_snapshot_new(struct lw_store *store,
                    struct lw_snapshot **snapshot,
                    struct lw_error **error);

// Frees a snapshot. Cursors of it return `LW_MISUSE` from then on. NULL is allowed.
//
// Errors:
// `LW_BUSY`, `LW_MISUSE`.
//
// The caller ensures:
// The snapshot is NULL or alive.
int lw_snapshot_free(struct lw_snapshot *snapshot);

// Reads a record of a snapshot into a buffer. O(log n), and a read of the log for each version
// that is newer than the snapshot.
//
// Errors:
// `LW_NOT_FOUND`; `LW_TOO_OLD`, `LW_TABLE_TYPE`, `LW_TOO_LONG`, `LW_DAMAGED`, `LW_IO`.
//
// The caller ensures:
// Snapshot and table are alive; the bytes of the key can be read; the buffer is initialised.
int lw_snapshot_get(struct lw_snapshot *snapshot,
                    const struct lw_table *table,
                    const void *key,
                    size_t key_len,
                    struct lw_buf *value,
                    struct lw_error **error);

// Reads a record of a snapshot without a copy for the caller: calls `each` with its bytes, if the
// record exists. `each` must not use the same snapshot.
//
// Errors:
// Those of `lw_snapshot_get`.
//
// The caller ensures:
// Snapshot and table are alive; the bytes of the key can be read; `each` returns.
int lw_snapshot_get_with(struct lw_snapshot *snapshot,
                         const struct lw_table *table,
                         const void *key,
                         size_t key_len,
                         lw_value_fn each,
                         void *context,
                         struct lw_error **error);

// Calls `each` for the records of a range, in order or, with `LW_REVERSE`, backwards, until it
// returns another number than 0, which the call returns then. `range` may be NULL: all records.
// `each` must not use the same snapshot. O(log n + records).
//
// Errors:
// Those of `lw_snapshot_get`; what `each` returns.
//
// The caller ensures:
// Snapshot and table are alive; the range was initialised; `each` returns.
int lw_snapshot_scan(struct lw_snapshot *snapshot,
                     const struct lw_table *table,
                     const struct lw_range *range,
                     lw_record_fn each,
                     void *context,
                     struct lw_error **error);

// Counts the records of a range: it reads them. `range` may be NULL: all records. O(records).
//
// Errors:
// Those of `lw_snapshot_get`.
//
// The caller ensures:
// Snapshot and table are alive; the range was initialised; `records` is a place for a number.
int lw_snapshot_count(struct lw_snapshot *snapshot,
                      const struct lw_table *table,
                      const struct lw_range *range,
                      uint64_t *records,
                      struct lw_error **error);

// Begins a transaction, which the caller ends with `lw_commit`, `lw_roll_back` or `lw_txn_free`.
// `options` may be NULL. No one runs it again: after an error that `lw_is_retryable` the caller
// calls `lw_txn_restart`, or rolls it back. `lw_write` and `lw_attempts_new` do that by
// themselves. It takes a thread slot until it ends.
//
// Errors:
// `LW_THREADS`, `LW_READ_ONLY`, `LW_OPTIONS`, `LW_NO_SPACE`, `LW_IO`.
//
// The caller ensures:
// The store is alive; the options were initialised.
int lw_begin(struct lw_store *store,
             const struct lw_txn_options *options,
             struct lw_txn **tx,
             struct lw_error **error);

// Commits a transaction, and frees the object, whatever this returns. As durable as the mode says
// when it returns.
//
// Errors:
// `LW_CONFLICT`, `LW_TIMEOUT`, `LW_TOO_OLD`, `LW_NO_SPACE`, `LW_IO` and the codes of a call before
// that ended the transaction: it was rolled back. `LW_COMMIT_UNKNOWN`: it is committed, and a
// crash of the machine may take that back. `LW_READS_UNKNOWN`.
//
// If the process dies in the call, all of the transaction is committed, or nothing.
//
// The caller ensures:
// The transaction is alive.
int lw_commit(struct lw_txn *tx,
              struct lw_error **error);

// Rolls a transaction back, and frees the object, whatever this returns. In `LW_MODE_FULL` it then
// waits until all that the transaction may have read is durable, so that a program may act on it.
//
// Errors:
// `LW_READS_UNKNOWN`, `LW_IO`: it is rolled back, or will be by a sweep.
//
// The caller ensures:
// The transaction is alive.
int lw_roll_back(struct lw_txn *tx,
                 struct lw_error **error);

// Rolls a transaction back without waiting for the disk, and frees the object. NULL is allowed.
//
// Errors:
// `LW_BUSY`; `LW_MISUSE`, also for a transaction of a retry loop: it is not changed.
//
// The caller ensures:
// The transaction is NULL or alive.
int lw_txn_free(struct lw_txn *tx);

// Rolls a transaction back and begins it again, as old as it was, so that it is not the victim of
// each deadlock. Cursors and savepoints of it have ended.
//
// Errors:
// `LW_IO`, `LW_THREADS`: then it can only be freed.
//
// The caller ensures:
// The transaction is alive.
int lw_txn_restart(struct lw_txn *tx,
                   struct lw_error **error);

// Reads a record into a buffer, and locks it against writers until the transaction ends. O(log n).
//
// Errors:
// `LW_NOT_FOUND`; `LW_CONFLICT`, `LW_TIMEOUT`, `LW_TOO_OLD`, `LW_SELF`, `LW_KILLED`,
// `LW_TABLE_TYPE`, `LW_MIGRATING`, `LW_TOO_LONG`, `LW_LOCKS_FULL`, `LW_DAMAGED`, `LW_IO`.
//
// The caller ensures:
// Transaction and table are alive; the bytes of the key can be read; the buffer is initialised.
int lw_txn_get(struct lw_txn *tx,
               const struct lw_table *table,
               const void *key,
               size_t key_len,
               struct lw_buf *value,
               struct lw_error **error);

// Reads a record that the transaction means to write: no other transaction can read it in this way
// until this one ends. Two transactions that both call `lw_txn_get` and then write would wait for
// each other.
//
// Errors:
// Those of `lw_txn_get`.
//
// The caller ensures:
// Transaction and table are alive; the bytes of the key can be read; the buffer is initialised.
int lw_txn_get_for_update(struct lw_txn *tx,
                          const struct lw_table *table,
                          const void *key,
                          size_t key_len,
                          struct lw_buf *value,
                          struct lw_error **error);

// Reads a record as `lw_txn_get`, without a copy for the caller: calls `each` with its bytes, if
// the record exists. `each` must not use the same transaction.
//
// Errors:
// Those of `lw_txn_get`.
//
// The caller ensures:
// Transaction and table are alive; the bytes of the key can be read; `each` returns.
int lw_txn_get_with(struct lw_txn *tx,
                    const struct lw_table *table,
                    const void *key,
                    size_t key_len,
                    lw_value_fn each,
                    void *context,
                    struct lw_error **error);

// Writes a record, new or not. Other transactions see it when this one has committed. O(log n).
//
// Errors:
// Those of `lw_txn_get`, and `LW_NO_SPACE`.
//
// The caller ensures:
// Transaction and table are alive; the bytes of key and value can be read.
int lw_txn_put(struct lw_txn *tx,
               const struct lw_table *table,
               const void *key,
               size_t key_len,
               const void *value,
               size_t value_len,
               struct lw_error **error);

// Writes a record as the last thing before the commit: both are one record of the log. Any other
// call before the commit is allowed, and costs what this saves.
//
// Errors:
// Those of `lw_txn_put`, some of them from the commit.
//
// The caller ensures:
// Transaction and table are alive; the bytes of key and value can be read.
int lw_txn_put_final(struct lw_txn *tx,
                     const struct lw_table *table,
                     const void *key,
                     size_t key_len,
                     const void *value,
                     size_t value_len,
                     struct lw_error **error);

// Writes a record that must not exist yet. O(log n).
//
// Errors:
// `LW_EXISTS` if it exists: it stays, and the transaction continues. Those of `lw_txn_put`.
//
// The caller ensures:
// Transaction and table are alive; the bytes of key and value can be read.
int lw_txn_insert(struct lw_txn *tx,
                  const struct lw_table *table,
                  const void *key,
                  size_t key_len,
                  const void *value,
                  size_t value_len,
                  struct lw_error **error);

// Removes a record. O(log n).
//
// Errors:
// `LW_NOT_FOUND` if there was no such record; those of `lw_txn_put`.
//
// The caller ensures:
// Transaction and table are alive; the bytes of the key can be read.
int lw_txn_remove(struct lw_txn *tx,
                  const struct lw_table *table,
                  const void *key,
                  size_t key_len,
                  struct lw_error **error);

// Removes all records of a range; `*records` is how many there were. `range` may be NULL: all
// records. Its limit and `LW_REVERSE` must not be set. O(records), and memory for their keys.
//
// Errors:
// Those of `lw_txn_put`.
//
// The caller ensures:
// Transaction and table are alive; the range was initialised; `records` is NULL or a place for a
// number.
int lw_txn_remove_range(struct lw_txn *tx,
                        const struct lw_table *table,
                        const struct lw_range *range,
                        uint64_t *records,
                        struct lw_error **error);

// Calls `each` for the records of a range, as `lw_snapshot_scan` does, and with what the
// transaction itself has written. The range is locked against writers, as far as its limit.
// `each` must not use the same transaction: collect, and write afterwards, or use a cursor.
//
// Errors:
// Those of `lw_txn_get`; what `each` returns.
//
// The caller ensures:
// Transaction and table are alive; the range was initialised; `each` returns.
int lw_txn_scan(struct lw_txn *tx,
                const struct lw_table *table,
                const struct lw_range *range,
                lw_record_fn each,
                void *context,
                struct lw_error **error);

// Counts the records of a range, and locks it against writers. `range` may be NULL. O(records).
//
// Errors:
// Those of `lw_txn_get`.
//
// The caller ensures:
// Transaction and table are alive; the range was initialised; `records` is a place for a number.
int lw_txn_count(struct lw_txn *tx,
                 const struct lw_table *table,
                 const struct lw_range *range,
                 uint64_t *records,
                 struct lw_error **error);

// Removes the first record of a table, and returns it: the head of a queue. Transactions that take
// from a queue wait for each other. O(log n).
//
// Errors:
// `LW_NOT_FOUND` if the table is empty; those of `lw_txn_put`.
//
// The caller ensures:
// Transaction and table are alive; the buffers are initialised, and two.
int lw_txn_pop_first(struct lw_txn *tx,
                     const struct lw_table *table,
                     struct lw_buf *key,
                     struct lw_buf *value,
                     struct lw_error **error);

// Removes the last record of a table, and returns it. O(log n).
//
// Errors:
// `LW_NOT_FOUND` if the table is empty; those of `lw_txn_put`.
//
// The caller ensures:
// Transaction and table are alive; the buffers are initialised, and two.
int lw_txn_pop_last(struct lw_txn *tx,
                    const struct lw_table *table,
                    struct lw_buf *key,
                    struct lw_buf *value,
                    struct lw_error **error);

// Notes where the transaction is: `*savepoint` is a number for `lw_txn_roll_back_to`.
//
// Errors:
// Those of `lw_txn_put`.
//
// The caller ensures:
// The transaction is alive; `savepoint` is a place for a number.
int lw_txn_savepoint(struct lw_txn *tx, uint64_t *savepoint, struct lw_error **error);

// Undoes what the transaction has written since a savepoint. Its locks stay, and so does the
// savepoint; savepoints that were made after it have ended. O(records undone).
//
// Errors:
// `LW_SAVEPOINT` if it has ended, or is of another transaction; `LW_NO_SPACE`, `LW_IO`.
//
// The caller ensures:
// The transaction is alive.
int lw_txn_roll_back_to(struct lw_txn *tx, uint64_t savepoint, struct lw_error **error);

// Begins a retry loop. `options` may be NULL: 10 seconds for all attempts. Use:
//
// ```c
// lw_attempts *loop;
// lw_txn *tx;
// int code = lw_attempts_new(store, NULL, &loop, &error);
// while (code == LW_OK && (code = lw_attempts_next(loop, &tx, &error)) == LW_OK) {
//     int done = transfer(tx);                      // 0, or a code of a call that failed
//     code = lw_attempts_end(loop, done, &error);   // LW_OK, LW_AGAIN, or an error
//     if (code == LW_AGAIN) code = LW_OK;
// }
// lw_attempts_free(loop);                           // code is LW_DONE if it has committed
// ```
//
// Errors:
// `LW_OPTIONS`, `LW_MISUSE`.
//
// The caller ensures:
// The store is alive; the options were initialised.
int lw_attempts_new(struct lw_store *store,
                    const struct lw_txn_options *options,
                    struct lw_attempts **attempts,
                    struct lw_error **error);

// Begins the next attempt: `*tx` is its transaction, which belongs to the loop and ends with
// `lw_attempts_end`.
//
// Errors:
// `LW_DONE` if the transaction has committed; the code with which the loop has ended; those of
// `lw_begin`; `LW_MISUSE` if an attempt runs.
//
// The caller ensures:
// The loop is alive; `tx` is a place for a pointer.
int lw_attempts_next(struct lw_attempts *attempts, struct lw_txn **tx, struct lw_error **error);

// Ends an attempt: commits if `code` is 0; otherwise rolls it back. If it failed in a way that
// `lw_is_retryable`, in any of its calls, the answer is `LW_AGAIN` whatever `code` is.
//
// Errors:
// `LW_OK` if it has committed. `LW_AGAIN` if it must run again: it was rolled back, and its
// transaction must not be used until `lw_attempts_next`. `LW_DEADLINE` if it must, and its time is
// over. `code`, if it was rolled back for that: an error of a call or a number of the program's
// own, which must not be `LW_AGAIN` or `LW_DONE`. Those of `lw_commit` and `lw_roll_back`.
//
// The caller ensures:
// The loop is alive.
int lw_attempts_end(struct lw_attempts *attempts,
                    int code,
                    struct lw_error **error);

// Ends a retry loop: an attempt that runs is rolled back. NULL is allowed.
//
// Errors:
// `LW_BUSY`, `LW_MISUSE`.
//
// The caller ensures:
// The loop is NULL or alive.
int lw_attempts_free(struct lw_attempts *attempts);

// Runs a transaction until it commits: calls `body` with it, and again after a deadlock and
// whatever else `lw_is_retryable`, for 10 seconds or as long as the options say. `options` may be
// NULL. The transaction belongs to the call: `body` must not end or restart it.
//
// Errors:
// What `body` returns, if that is not 0 and the transaction has not failed in a way that is
// retryable: it was rolled back, and `*error` is NULL. `LW_DEADLINE`, with the last attempt's
// error as its cause. Those of `lw_begin`, `lw_commit` and `lw_roll_back`.
//
// The caller ensures:
// The store is alive; the options were initialised; `body` returns.
int lw_write(struct lw_store *store,
             const struct lw_txn_options *options,
             lw_body_fn body,
             void *context,
             struct lw_error **error);

// Opens a cursor on a range of a snapshot. `range` may be NULL: all records. With `LW_REVERSE` its
// `next` moves backwards. It stands before the first record. O(1).
//
// Errors:
// `LW_TOO_LONG`, `LW_OPTIONS`, `LW_MISUSE`.
//
// The caller ensures:
// Snapshot and table are alive; the range was initialised.
int lw_snapshot_cursor(struct lw_snapshot *snapshot,
                       const struct lw_table *table,
                       const struct lw_range *range,
                       struct lw_cursor **cursor,
                       struct lw_error **error);

// Opens a cursor on a range of a transaction, which sees what the transaction has written, also
// after the cursor was opened. The records that it gives out, and the gaps between them, are
// locked against other writers, and also the records that it reads ahead. Otherwise as
// `lw_snapshot_cursor`.
//
// Errors:
// `LW_TOO_LONG`, `LW_OPTIONS`, `LW_MISUSE`.
//
// The caller ensures:
// Transaction and table are alive; the range was initialised.
int lw_txn_cursor(struct lw_txn *tx,
                  const struct lw_table *table,
                  const struct lw_range *range,
                  struct lw_cursor **cursor,
                  struct lw_error **error);

// Frees a cursor. NULL is allowed.
//
// Errors:
// `LW_BUSY`, `LW_MISUSE`.
//
// The caller ensures:
// The cursor is NULL or alive.
int lw_cursor_free(struct lw_cursor *cursor);

// Moves to the next record, and gives it out. Amortised O(1).
//
// Errors:
// `LW_NOT_FOUND` behind the last record, or when the limit of the range is reached: then `*row` is
// empty. Those of `lw_snapshot_get` or `lw_txn_get`.
//
// The caller ensures:
// The cursor is alive; `row` is a place for a row.
int lw_cursor_next(struct lw_cursor *cursor,
                   struct lw_row *row,
                   struct lw_error **error);

// Moves to the record before, and gives it out: the opposite direction of `lw_cursor_next`.
//
// Errors:
// Those of `lw_cursor_next`.
//
// The caller ensures:
// The cursor is alive; `row` is a place for a row.
int lw_cursor_prev(struct lw_cursor *cursor, struct lw_row *row, struct lw_error **error);

// Moves forwards by several records, and gives them out in `rows`, an array with room for `most`:
// at least one and at most `most`, as many as are at hand; `*count` is how many. For a program
// that reads long ranges, or to whom a call is expensive. All of them live until the next call.
//
// Errors:
// `LW_NOT_FOUND` if there is none: `*count` is 0. Those of `lw_cursor_next`; `LW_MISUSE` if `most`
// is 0.
//
// The caller ensures:
// The cursor is alive; `rows` is a place for `most` rows, `count` for a number.
int lw_cursor_next_some(struct lw_cursor *cursor,
                        struct lw_row *rows,
                        size_t most,
                        size_t *count,
                        struct lw_error **error);

// Places a cursor before the first record whose key is not less than this one: `lw_cursor_next`
// returns that record, `lw_cursor_prev` the last record whose key is less. With `LW_REVERSE` it
// is the other way round: `lw_cursor_next` returns the last record below the key, which need not
// exist. The limit of the range counts again from its beginning. O(1); the next call searches.
//
// Errors:
// `LW_TOO_LONG`, `LW_MISUSE`.
//
// The caller ensures:
// The cursor is alive; the bytes of the key can be read.
int lw_cursor_seek(struct lw_cursor *cursor,
                   const void *key,
                   size_t key_len,
                   struct lw_error **error);

// Places a cursor at an end of its range: before the first record that `lw_cursor_next` gives out
// if `at_end` is 0, else behind the last one, for `lw_cursor_prev`. The limit counts again. O(1).
//
// Errors:
// `LW_MISUSE`.
//
// The caller ensures:
// The cursor is alive.
int lw_cursor_rewind(struct lw_cursor *cursor,
                     int at_end,
                     struct lw_error **error);

// Commits a transaction, frees the object, and returns without waiting for the disk: other
// transactions see it, and its locks are released. `done` is called when it is durable. Many
// commits share one sync, so one thread can have thousands of them under way.
//
// Errors:
// Those of `lw_commit`: then it was rolled back, and `done` is not called.
//
// The caller ensures:
// The transaction is alive; `done` may be called on any thread, with this context.
int lw_commit_then(struct lw_txn *tx, lw_done_fn done, void *context, struct lw_error **error);

// Commits a transaction as `lw_commit_then`, for an event loop: when it is durable, `token` is put
// into the queue of the store, from which `lw_done_next` takes it, and the descriptor of
// `lw_done_fd` becomes readable.
//
// Errors:
// Those of `lw_commit`: then it was rolled back, and the token is not queued.
//
// The caller ensures:
// Store and transaction are alive.
int lw_commit_queued(struct lw_store *store,
                     struct lw_txn *tx,
                     uint64_t token,
                     struct lw_error **error);

// A descriptor that is readable while `lw_done_next` has something to return: for `poll`, `epoll`,
// or an event loop of another language. It belongs to the store; do not read or close it.
//
// Errors:
// `LW_IO` if the process has no descriptor left.
//
// The caller ensures:
// The store is alive; `descriptor` is a place for a number.
int lw_done_fd(struct lw_store *store,
               int *descriptor,
               struct lw_error **error);

// Takes the next commit that has come to its end: its token, and in `*code` what `lw_commit` would
// have returned. If that is an error, `*why` receives it, unless `why` is NULL.
//
// Errors:
// `LW_DONE` if none has come to its end.
//
// The caller ensures:
// The store is alive; `token` and `code` are places for numbers.
int lw_done_next(struct lw_store *store,
                 uint64_t *token,
                 int *code,
                 struct lw_error **why,
                 struct lw_error **error);

// Encodes a key of several parts, in place of what `key` has. One part alone is the key of a table
// of that type ("u64"), several are that of a tuple ("(str,u64)"). The order of the encoded bytes
// is that of the parts. O(length).
//
// Errors:
// `LW_TOO_LONG` for more than 1,890 bytes; `LW_FORMAT` for text that is not UTF-8; `LW_MISUSE`.
//
// The caller ensures:
// `parts` has `count` parts, whose bytes can be read; the buffer is initialised.
int lw_key_encode(const struct lw_part *parts,
                  size_t count,
                  struct lw_buf *key,
                  struct lw_error **error);

// Decodes a key into its parts; `parts` has room for `most`; `*count` is how many the key
// has. Integers come back as `LW_PART_I64` if they fit, else as `LW_PART_U64`, `LW_PART_I128` or
// `LW_PART_U128`. Bytes and text lie in `text`, until that is used again. O(length).
//
// Errors:
// `LW_TOO_LONG` if the key has more than `most` parts: `*count` says how many, and `parts` has the
// first ones. `LW_FORMAT` if the bytes are no encoded key.
//
// The caller ensures:
// The bytes of the key can be read; `parts` is a place for `most` parts; the buffer is
// initialised.
int lw_key_decode(const void *key,
                  size_t key_len,
                  struct lw_part *parts,
                  size_t most,
                  size_t *count,
                  struct lw_buf *text,
                  struct lw_error **error);

// Prepares a transaction: the first of two phases. The object is freed, whatever this returns.
// From then on the transaction is neither committed nor rolled back, and holds its locks, over any
// death and a crash of the machine, until some process decides with `lw_commit_prepared` or
// `lw_roll_back_prepared`. The id has 1 to 128 bytes. As durable as the mode says on return.
//
// Errors:
// `LW_PREPARED` if an undecided transaction has this id; `LW_TOO_LONG`; those of `lw_commit`: then
// it was rolled back. `LW_PREPARE_UNKNOWN`: it is prepared, and a crash of the machine may take
// that back.
//
// The caller ensures:
// The transaction is alive; the bytes of the id can be read.
int lw_prepare(struct lw_txn *tx,
               const void *gid,
               size_t gid_len,
               struct lw_error **error);

// Commits a prepared transaction, of this process or another one.
//
// Errors:
// `LW_NOT_PREPARED`; `LW_COMMIT_UNKNOWN`, `LW_THREADS`, `LW_READ_ONLY`, `LW_IO`.
//
// The caller ensures:
// The store is alive; the bytes of the id can be read.
int lw_commit_prepared(struct lw_store *store,
                       const void *gid,
                       size_t gid_len,
                       struct lw_error **error);

// Rolls a prepared transaction back, of this process or another one.
//
// Errors:
// `LW_NOT_PREPARED`; `LW_THREADS`, `LW_READ_ONLY`, `LW_IO`.
//
// The caller ensures:
// The store is alive; the bytes of the id can be read.
int lw_roll_back_prepared(struct lw_store *store,
                          const void *gid,
                          size_t gid_len,
                          struct lw_error **error);

// Calls `each` for all transactions that are prepared and not decided, oldest first.
//
// Errors:
// `LW_IO`, `LW_THREADS`; what `each` returns.
//
// The caller ensures:
// The store is alive; `each` returns.
int lw_prepared(struct lw_store *store,
                lw_prepared_fn each,
                void *context,
                struct lw_error **error);

// Returns the version of the library, such as "0.1.0". The text is static. Never fails.
const char *lw_version(void);

// Gives out the next number of a sequence, which no other caller gets, in any process. A thread
// claims `batch` numbers at a time (0 is 64), by a short transaction of its own, so most calls
// touch no shared memory. There are gaps: a number is given out whether the caller's transaction
// commits or not. A sequence begins with 1.
//
// Errors:
// Those of `lw_put`; `LW_FAILED` at the end of the sequence.
//
// The caller ensures:
// The store is alive; the name ends with a zero; `number` is a place for a number.
int lw_sequence_next(struct lw_store *store,
                     const char *name,
                     uint64_t batch,
                     uint64_t *number,
                     struct lw_error **error);

// Writes a list of the tables as JSON: an array of objects with `name`, `key`, `value` (types as
// text, or null), `version` and `migrating`. A zero follows the text, and is not counted in
// `len`.
//
// Errors:
// `LW_THREADS`, `LW_DAMAGED`, `LW_IO`.
//
// The caller ensures:
// The store is alive; the buffer is initialised.
int lw_tables(struct lw_store *store,
              struct lw_buf *out,
              struct lw_error **error);

// Writes counts and sizes of the store, of all processes, as JSON: an object whose names are those
// of `docs/metrics.md`. A metric with a label is an object of its own. A zero follows the text,
// and is not counted in `len`.
//
// Errors:
// `LW_THREADS`, `LW_IO`.
//
// The caller ensures:
// The store is alive; the buffer is initialised.
int lw_stats(struct lw_store *store,
             struct lw_buf *out,
             struct lw_error **error);

// Looks at every page of every table. Other processes may write at the same time. `*pages` is how
// many pages are used; `faults` receives a JSON array with an object for each table that is
// damaged: `table` (null for a part of the store itself) and `why`. `pages` and `faults` may be
// NULL. O(size of the store).
//
// Errors:
// `LW_DAMAGED` if there is a fault; `LW_THREADS`, `LW_IO`.
//
// The caller ensures:
// The store is alive; `pages` is NULL or a place for a number; the buffer is NULL or initialised.
int lw_verify(struct lw_store *store,
              uint64_t *pages,
              struct lw_buf *faults,
              struct lw_error **error);

// Copies the store into a folder that does not exist yet, while others write. The copy has all
// that was committed when this was called; it is a store, which opens as one does after a crash.
//
// Errors:
// `LW_OPEN` if there is something at the path; `LW_NO_SPACE`, `LW_DAMAGED`, `LW_IO`: then nothing
// exists there.
//
// The caller ensures:
// The store is alive; `path` ends with a zero.
int lw_backup(struct lw_store *store,
              const char *path,
              struct lw_error **error);

// Makes a store in a folder that does not exist yet, of a copy that `lw_backup` has made, or of
// another store that no process has open.
//
// Errors:
// `LW_OPEN` if there is something at `to`; `LW_NO_STORE`, `LW_IN_USE`, `LW_DAMAGED`,
// `LW_NO_SPACE`, `LW_IO`: then nothing is at `to`.
//
// The caller ensures:
// Both paths end with a zero.
int lw_restore(const char *from, const char *to, struct lw_error **error);

// Looks for processes and threads that have died, and rolls back what they have left; `*ended` is
// how many. Calls that meet a lock of a dead process do this by themselves.
//
// Errors:
// `LW_READ_ONLY`, `LW_NO_SPACE`, `LW_IO`.
//
// The caller ensures:
// The store is alive; `ended` is NULL or a place for a number.
int lw_sweep(struct lw_store *store,
             uint64_t *ended,
             struct lw_error **error);

// Opens a lock manager in a region: a file in `/dev/shm` or on another file system of this
// machine, which is created if it does not exist, and stays. If `path` is NULL it is a private one
// of this process. `options` may be NULL.
//
// Errors:
// `LW_FOREIGN` if the file is something else, or has locks with other modes; `LW_PERMISSION`,
// `LW_VERSION`, `LW_NO_SPACE`, `LW_THREADS`, `LW_OPTIONS`, `LW_DAMAGED`, `LW_IO`.
//
// The caller ensures:
// `path` is NULL or ends with a zero; the options were initialised.
int lw_locks_open(const char *path,
                  const struct lw_locks_options *options,
                  struct lw_locks **locks,
                  struct lw_error **error);

// Closes a lock manager. Its owners stay valid: each holds the region until it is freed. NULL is
// allowed.
//
// Errors:
// `LW_BUSY` if a call of another thread uses it, or the call in whose callback this one is;
// `LW_MISUSE`.
//
// The caller ensures:
// The manager is NULL or alive.
int lw_locks_close(struct lw_locks *locks);

// Finds the number of a mode by its name: "S", "X", "READ", ..
//
// Errors:
// `LW_NOT_FOUND`.
//
// The caller ensures:
// The manager is alive; the name ends with a zero; `mode` is a place for a number.
int lw_locks_mode(struct lw_locks *locks, const char *name, int *mode, struct lw_error **error);

// Looks for deadlocks among all owners that wait, and ends each by aborting one of them: its call
// returns `LW_CONFLICT`. `*broken` is how many there were. Owners that wait do this by themselves.
//
// Errors:
// `LW_THREADS`, `LW_IO`.
//
// The caller ensures:
// The manager is alive; `broken` is NULL or a place for a number.
int lw_locks_detect(struct lw_locks *locks,
                    uint64_t *broken,
                    struct lw_error **error);

// Releases the locks of processes that have died; `*ended` is how many owners that were. Owners
// that wait do this by themselves.
//
// Errors:
// `LW_THREADS`, `LW_DAMAGED`, `LW_IO`.
//
// The caller ensures:
// The manager is alive; `ended` is NULL or a place for a number.
int lw_locks_sweep(struct lw_locks *locks, uint64_t *ended, struct lw_error **error);

// Has an owner fail: its wait, if it waits, and all its requests from now on return `LW_KILLED`.
// It keeps its locks until it releases them. The id is that of `lw_owner_id` or `lw_locks_list`.
//
// Errors:
// `LW_NOT_FOUND` if there is no such owner; `LW_THREADS`.
//
// The caller ensures:
// The manager is alive.
int lw_locks_kill(struct lw_locks *locks,
                  uint64_t owner,
                  struct lw_error **error);

// Calls `each` for every lock that is held or waited for, by any process. The list is of about one
// moment; no lock waits for it.
//
// Errors:
// `LW_THREADS`, `LW_DAMAGED`; what `each` returns.
//
// The caller ensures:
// The manager is alive; `each` returns.
int lw_locks_list(struct lw_locks *locks,
                  lw_lock_fn each,
                  void *context,
                  struct lw_error **error);

// Creates an owner. It takes a thread slot of the region and 20 KiB until it is freed; a program
// with many short tasks renews one owner for each task. `options` may be NULL.
//
// Errors:
// `LW_THREADS`, `LW_LOCKS_FULL`, `LW_NO_SPACE`, `LW_OPTIONS`.
//
// The caller ensures:
// The manager is alive; the options were initialised.
int lw_owner_new(struct lw_locks *locks,
                 const struct lw_owner_options *options,
                 struct lw_owner **owner,
                 struct lw_error **error);

// Releases all locks of an owner, and makes it a new owner with another id: cheaper than freeing
// it and creating another one. `options` may be NULL.
//
// Errors:
// Those of `lw_owner_new`: then it is the owner that it was, with its locks.
//
// The caller ensures:
// The owner is alive; the options were initialised.
int lw_owner_renew(struct lw_owner *owner,
                   const struct lw_owner_options *options,
                   struct lw_error **error);

// Releases all locks of an owner, and frees it. NULL is allowed.
//
// Errors:
// `LW_BUSY`, `LW_MISUSE`.
//
// The caller ensures:
// The owner is NULL or alive.
int lw_owner_free(struct lw_owner *owner);

// Returns the id of an owner, which is the same in all processes.
//
// Errors:
// `LW_MISUSE`, `LW_FORKED`.
//
// The caller ensures:
// The owner is alive; `id` is a place for a number.
int lw_owner_id(struct lw_owner *owner, uint64_t *id, struct lw_error **error);

// Returns the age of an owner, which the next attempt of its task gets: see `lw_owner_options`.
//
// Errors:
// `LW_MISUSE`, `LW_FORKED`.
//
// The caller ensures:
// The owner is alive; `age` is a place for a number.
int lw_owner_age(struct lw_owner *owner, uint64_t *age, struct lw_error **error);

// Takes a lock, and waits for it until it is granted or the owner is the victim of a deadlock. An
// owner that holds the lock takes it once more, in the stronger of both modes. The name has 1 to
// 4,000 bytes.
//
// Errors:
// `LW_CONFLICT`: a deadlock; the owner keeps its other locks, and must release them. `LW_KILLED`,
// `LW_TOO_LONG`, `LW_OPTIONS` for a mode that does not exist, `LW_LOCKS_FULL`, `LW_NO_SPACE`.
//
// The caller ensures:
// The owner is alive; the bytes of the name can be read.
int lw_owner_lock(struct lw_owner *owner,
                  const void *name,
                  size_t name_len,
                  int mode,
                  struct lw_error **error);

// Takes a lock if it is free.
//
// Errors:
// `LW_NOT_GRANTED`, an answer, if it is not; those of `lw_owner_lock`.
//
// The caller ensures:
// The owner is alive; the bytes of the name can be read.
int lw_owner_try_lock(struct lw_owner *owner,
                      const void *name,
                      size_t name_len,
                      int mode,
                      struct lw_error **error);

// Takes a lock, and waits for it for this many milliseconds at most; 0 does not wait, and
// UINT64_MAX is no limit.
//
// Errors:
// `LW_TIMEOUT`; `LW_NOT_GRANTED` if the time is 0; those of `lw_owner_lock`.
//
// The caller ensures:
// The owner is alive; the bytes of the name can be read.
int lw_owner_lock_timeout(struct lw_owner *owner,
                          const void *name,
                          size_t name_len,
                          int mode,
                          uint64_t time_ms,
                          struct lw_error **error);

// Releases a lock once: it is free for others when it was released as often as it was taken.
//
// Errors:
// `LW_NOT_HELD`, `LW_TOO_LONG`.
//
// The caller ensures:
// The owner is alive; the bytes of the name can be read.
int lw_owner_unlock(struct lw_owner *owner,
                    const void *name,
                    size_t name_len,
                    struct lw_error **error);

// Releases all locks of an owner. O(locks).
//
// Errors:
// `LW_MISUSE`, `LW_FORKED`, `LW_DAMAGED`.
//
// The caller ensures:
// The owner is alive.
int lw_owner_release_all(struct lw_owner *owner, struct lw_error **error);

// Says in which mode an owner holds a lock, and how often it took it.
//
// Errors:
// `LW_NOT_FOUND` if it does not hold it: `*mode` is -1 and `*count` 0.
//
// The caller ensures:
// The owner is alive; the bytes of the name can be read; `mode` and `count` are NULL or places for
// numbers.
int lw_owner_holds(struct lw_owner *owner,
                   const void *name,
                   size_t name_len,
                   int *mode,
                   uint32_t *count,
                   struct lw_error **error);

// Does several operations, one after the other, and stops at the first that fails; `*done` is how
// many were done. Other owners may see, and get, what lies between two operations.
//
// Errors:
// `LW_NOT_GRANTED` and the errors of the operation that failed. `LW_OPTIONS`, `LW_MISUSE` and
// `LW_TOO_LONG` if an operation is wrong: then none was done.
//
// The caller ensures:
// The owner is alive; `operations` has `count` operations, whose names can be read; `done` is NULL
// or a place for a number.
int lw_owner_batch(struct lw_owner *owner,
                   const struct lw_op *operations,
                   size_t count,
                   size_t *done,
                   struct lw_error **error);

// The parts of a key, for lw_key_encode:
//
//     lw_part parts[] = { lw_part_text("ann"), lw_part_u64(8) };
//     lw_key_encode(parts, 2, &key, &error);

static inline lw_part lw_part_of_kind(uint32_t kind)
{
    lw_part part = { 0, 0, { 0 }, NULL, 0 };
    part.kind = kind;
    return part;
}

// Nothing.
static inline lw_part lw_part_null(void) { return lw_part_of_kind(LW_PART_NULL); }

// The beginning of a tuple inside a key.
static inline lw_part lw_part_begin(void) { return lw_part_of_kind(LW_PART_BEGIN); }

// The end of a tuple inside a key.
static inline lw_part lw_part_end(void) { return lw_part_of_kind(LW_PART_END); }

// Bytes, which are read by lw_key_encode.
static inline lw_part lw_part_bytes(const void *data, size_t len)
{
    lw_part part = lw_part_of_kind(LW_PART_BYTES);
    part.data = data;
    part.len = len;
    return part;
}

// Text that ends with a zero, which is read by lw_key_encode.
static inline lw_part lw_part_text(const char *text)
{
    lw_part part = lw_part_of_kind(LW_PART_TEXT);
    part.data = text;
    part.len = strlen(text);
    return part;
}

// Text of this many bytes, which are read by lw_key_encode.
static inline lw_part lw_part_text_n(const char *text, size_t len)
{
    lw_part part = lw_part_of_kind(LW_PART_TEXT);
    part.data = text;
    part.len = len;
    return part;
}

// An integer.
static inline lw_part lw_part_i64(int64_t number)
{
    lw_part part = lw_part_of_kind(LW_PART_I64);
    part.of.i64 = number;
    return part;
}

// An integer.
static inline lw_part lw_part_u64(uint64_t number)
{
    lw_part part = lw_part_of_kind(LW_PART_U64);
    part.of.u64 = number;
    return part;
}

// A floating-point number.
static inline lw_part lw_part_f32(float number)
{
    lw_part part = lw_part_of_kind(LW_PART_F32);
    part.of.f32 = number;
    return part;
}

// A floating-point number.
static inline lw_part lw_part_f64(double number)
{
    lw_part part = lw_part_of_kind(LW_PART_F64);
    part.of.f64 = number;
    return part;
}

// A truth value.
static inline lw_part lw_part_bool(int is)
{
    lw_part part = lw_part_of_kind(LW_PART_BOOL);
    part.of.u64 = is != 0;
    return part;
}

// The 16 bytes of a UUID.
static inline lw_part lw_part_uuid(const uint8_t bytes[16])
{
    lw_part part = lw_part_of_kind(LW_PART_UUID);
    memcpy(part.of.wide, bytes, 16);
    return part;
}

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* LATCHWORK_H */
