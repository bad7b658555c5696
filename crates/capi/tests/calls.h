/* All functions of the library, with what their arguments are: for tests that call each of them
 * with arguments that are wrong, or of the parent of a fork.
 *
 * | token | argument |
 * |---|---|
 * | s t x n c a A l o E | a store, table, transaction, snapshot, cursor, attempts (A: one runs), lock
 *                         manager, owner, error |
 * | > and one of these, >u >i | a place for one, a number of 64 bits or an int |
 * | ?u ?E | the same, or NULL |
 * | e | a place for an error, or NULL |
 * | k v | bytes and their number: of a key, of a value |
 * | z ?z | text; text or NULL |
 * | O | a struct that begins with its size, or NULL |
 * | b ?b | a buffer; a buffer or NULL |
 * | f C | a function of the caller's, and its context |
 * | i U | a number: an int, 64 bits |
 * | r p q | an array and its length: rows, parts of a key, operations on locks |
 */
#ifndef CALLS_H
#define CALLS_H

#include "test.h"

/* Arguments are words: all are pointers or integers, which the ABI passes alike. */
typedef int (*call_fn)(long, long, long, long, long, long, long, long);

struct call {
    const char *name;
    void (*function)(void);
    /* The result: i a code, v nothing, o something else. */
    char returns;
    const char *arguments;
    size_t options;
};

#define CALL(name, returns, arguments, options) { #name, (void (*)(void))name, returns, arguments, options }

static const struct call CALLS[] = {
    CALL(lw_code_name, 'o', "i", 0),
    CALL(lw_is_retryable, 'o', "i", 0),
    CALL(lw_is_no_space, 'o', "i", 0),
    CALL(lw_is_damage, 'o', "i", 0),
    CALL(lw_version, 'o', "", 0),
    CALL(lw_error_code, 'o', "E", 0),
    CALL(lw_error_message, 'o', "E", 0),
    CALL(lw_error_table, 'o', "E", 0),
    CALL(lw_error_key, 'o', "E ?u", 0),
    CALL(lw_error_cause, 'o', "E", 0),
    CALL(lw_error_free, 'v', "E", 0),
    CALL(lw_buf_free, 'v', "b", 0),
    CALL(lw_buf_reserve, 'i', "b i", 0),
    CALL(lw_open, 'i', "z O >s e", sizeof(lw_options)),
    CALL(lw_open_read_only, 'i', "z >s e", 0),
    CALL(lw_store_reopen, 'i', "s >s e", 0),
    CALL(lw_close, 'i', "s e", 0),
    CALL(lw_sync, 'i', "s e", 0),
    CALL(lw_checkpoint, 'i', "s e", 0),
    CALL(lw_table_new, 'i', "z O >t e", sizeof(lw_table_options)),
    CALL(lw_table_name, 'o', "t ?u", 0),
    CALL(lw_table_free, 'v', "t", 0),
    CALL(lw_get, 'i', "s t k b e", 0),
    CALL(lw_get_with, 'i', "s t k f C e", 0),
    CALL(lw_put, 'i', "s t k v e", 0),
    CALL(lw_insert, 'i', "s t k v e", 0),
    CALL(lw_remove, 'i', "s t k e", 0),
    CALL(lw_snapshot_new, 'i', "s >n e", 0),
    CALL(lw_snapshot_free, 'i', "n", 0),
    CALL(lw_snapshot_get, 'i', "n t k b e", 0),
    CALL(lw_snapshot_get_with, 'i', "n t k f C e", 0),
    CALL(lw_snapshot_scan, 'i', "n t O f C e", sizeof(lw_range)),
    CALL(lw_snapshot_count, 'i', "n t O >u e", sizeof(lw_range)),
    CALL(lw_snapshot_cursor, 'i', "n t O >c e", sizeof(lw_range)),
    CALL(lw_begin, 'i', "s O >x e", sizeof(lw_txn_options)),
    CALL(lw_commit, 'i', "x e", 0),
    CALL(lw_roll_back, 'i', "x e", 0),
    CALL(lw_txn_free, 'i', "x", 0),
    CALL(lw_txn_restart, 'i', "x e", 0),
    CALL(lw_txn_get, 'i', "x t k b e", 0),
    CALL(lw_txn_get_for_update, 'i', "x t k b e", 0),
    CALL(lw_txn_get_with, 'i', "x t k f C e", 0),
    CALL(lw_txn_put, 'i', "x t k v e", 0),
    CALL(lw_txn_put_final, 'i', "x t k v e", 0),
    CALL(lw_txn_insert, 'i', "x t k v e", 0),
    CALL(lw_txn_remove, 'i', "x t k e", 0),
    CALL(lw_txn_remove_range, 'i', "x t O ?u e", sizeof(lw_range)),
    CALL(lw_txn_scan, 'i', "x t O f C e", sizeof(lw_range)),
    CALL(lw_txn_count, 'i', "x t O >u e", sizeof(lw_range)),
    CALL(lw_txn_pop_first, 'i', "x t b b e", 0),
    CALL(lw_txn_pop_last, 'i', "x t b b e", 0),
    CALL(lw_txn_savepoint, 'i', "x >u e", 0),
    CALL(lw_txn_roll_back_to, 'i', "x U e", 0),
    CALL(lw_txn_cursor, 'i', "x t O >c e", sizeof(lw_range)),
    CALL(lw_attempts_new, 'i', "s O >a e", sizeof(lw_txn_options)),
    CALL(lw_attempts_next, 'i', "a >x e", 0),
    CALL(lw_attempts_end, 'i', "A i e", 0),
    CALL(lw_attempts_free, 'i', "a", 0),
    CALL(lw_write, 'i', "s O f C e", sizeof(lw_txn_options)),
    CALL(lw_cursor_free, 'i', "c", 0),
    CALL(lw_cursor_next, 'i', "c >r e", 0),
    CALL(lw_cursor_prev, 'i', "c >r e", 0),
    CALL(lw_cursor_next_some, 'i', "c r >u e", 0),
    CALL(lw_cursor_seek, 'i', "c k e", 0),
    CALL(lw_cursor_rewind, 'i', "c i e", 0),
    CALL(lw_commit_then, 'i', "x f C e", 0),
    CALL(lw_commit_queued, 'i', "s x U e", 0),
    CALL(lw_done_fd, 'i', "s >i e", 0),
    CALL(lw_done_next, 'i', "s >u >i ?E e", 0),
    CALL(lw_key_encode, 'i', "p b e", 0),
    CALL(lw_key_decode, 'i', "k p >u b e", 0),
    CALL(lw_prepare, 'i', "x k e", 0),
    CALL(lw_commit_prepared, 'i', "s k e", 0),
    CALL(lw_roll_back_prepared, 'i', "s k e", 0),
    CALL(lw_prepared, 'i', "s f C e", 0),
    CALL(lw_sequence_next, 'i', "s z U >u e", 0),
    CALL(lw_tables, 'i', "s b e", 0),
    CALL(lw_stats, 'i', "s b e", 0),
    CALL(lw_verify, 'i', "s ?u ?b e", 0),
    CALL(lw_backup, 'i', "s z e", 0),
    CALL(lw_restore, 'i', "z z e", 0),
    CALL(lw_sweep, 'i', "s ?u e", 0),
    CALL(lw_locks_open, 'i', "?z O >l e", sizeof(lw_locks_options)),
    CALL(lw_locks_close, 'i', "l", 0),
    CALL(lw_locks_mode, 'i', "l z >i e", 0),
    CALL(lw_locks_detect, 'i', "l ?u e", 0),
    CALL(lw_locks_sweep, 'i', "l ?u e", 0),
    CALL(lw_locks_kill, 'i', "l U e", 0),
    CALL(lw_locks_list, 'i', "l f C e", 0),
    CALL(lw_owner_new, 'i', "l O >o e", sizeof(lw_owner_options)),
    CALL(lw_owner_renew, 'i', "o O e", sizeof(lw_owner_options)),
    CALL(lw_owner_free, 'i', "o", 0),
    CALL(lw_owner_id, 'i', "o >u e", 0),
    CALL(lw_owner_age, 'i', "o >u e", 0),
    CALL(lw_owner_lock, 'i', "o k i e", 0),
    CALL(lw_owner_try_lock, 'i', "o k i e", 0),
    CALL(lw_owner_lock_timeout, 'i', "o k i U e", 0),
    CALL(lw_owner_unlock, 'i', "o k e", 0),
    CALL(lw_owner_release_all, 'i', "o e", 0),
    CALL(lw_owner_holds, 'i', "o k ?u ?u e", 0),
    CALL(lw_owner_batch, 'i', "o q ?u e", 0),
};

/* Whether a call ends an object: then NULL is allowed, and the object of the parent of a fork. */
static inline int is_end(const struct call *call)
{
    const char *last = strrchr(call->name, '_');
    return !strcmp(last, "_free") || !strcmp(last, "_close");
}

enum { COUNT = sizeof CALLS / sizeof CALLS[0], ARGUMENTS = 8 };

/* One object of each kind, and memory for what calls write. */
struct world {
    lw_store *store;
    lw_table *table;
    lw_txn *tx, *lent;
    lw_snapshot *snapshot;
    lw_cursor *cursor;
    lw_attempts *attempts, *running;
    lw_locks *locks;
    lw_owner *owner;
    lw_error *error;
    lw_buf buf[2];
    lw_row rows[2];
    lw_part parts[2];
    lw_op ops[1];
    uint64_t numbers[8];
    void *objects[8];
    uint64_t options[32];
    char path[512];
};

static int callback(void) { return 0; }

/* Creates all except the store, the table and the lock manager, which already exist. */
static void fill(struct world *world)
{
    OK(lw_begin(world->store, NULL, &world->tx, &error));
    OK(lw_snapshot_new(world->store, &world->snapshot, &error));
    OK(lw_snapshot_cursor(world->snapshot, world->table, NULL, &world->cursor, &error));
    OK(lw_attempts_new(world->store, NULL, &world->attempts, &error));
    OK(lw_attempts_new(world->store, NULL, &world->running, &error));
    OK(lw_attempts_next(world->running, &world->lent, &error));
    OK(lw_owner_new(world->locks, NULL, &world->owner, &error));
    CHECK(lw_get(NULL, NULL, NULL, 0, NULL, &world->error) == LW_MISUSE);
    world->parts[0] = lw_part_u64(8);
    world->parts[1] = lw_part_text("ann");
    world->ops[0].kind = LW_OP_RELEASE_ALL;
}

static void clear(struct world *world)
{
    lw_txn_free(world->tx);
    lw_cursor_free(world->cursor);
    lw_snapshot_free(world->snapshot);
    lw_attempts_free(world->attempts);
    lw_attempts_free(world->running);
    lw_owner_free(world->owner);
    lw_error_free(world->error);
    lw_buf_free(&world->buf[0]), lw_buf_free(&world->buf[1]);
}

static void *object(struct world *world, char kind)
{
    switch (kind) {
    case 's': return world->store;
    case 't': return world->table;
    case 'x': return world->tx;
    case 'n': return world->snapshot;
    case 'c': return world->cursor;
    case 'a': return world->attempts;
    case 'A': return world->running;
    case 'l': return world->locks;
    case 'o': return world->owner;
    case 'E': return world->error;
    default: return NULL;
    }
}

/* Frees what a call has put into a place. */
static void release(char kind, void *made)
{
    switch (kind) {
    case 's': lw_close(made, NULL); break;
    case 't': lw_table_free(made); break;
    case 'x': lw_txn_free(made); break;
    case 'n': lw_snapshot_free(made); break;
    case 'c': lw_cursor_free(made); break;
    case 'a': lw_attempts_free(made); break;
    case 'l': lw_locks_close(made); break;
    case 'o': lw_owner_free(made); break;
    default: break;
    }
}

/* An argument of a call: which token it belongs to, and its place in that. */
struct argument {
    char optional, place, kind;
    /* 1 if it is the length of the bytes or the array before it. */
    char is_length;
    long value;
};

/* The arguments of a call, all of them right. Returns how many there are. */
static int arguments(const struct call *call, struct world *world, struct argument *list)
{
    int count = 0, places = 0, bufs = 0;
    memset(list, 0, ARGUMENTS * sizeof *list);
    memset(world->objects, 0, sizeof world->objects);
    memset(world->options, 0, sizeof world->options);
    world->options[0] = call->options;
    for (const char *at = call->arguments; *at; at++) {
        struct argument *one = &list[count];
        if (*at == ' ') continue;
        if (*at == '?') one->optional = 1, at++;
        if (*at == '>') one->place = 1, at++;
        one->kind = *at;
        count++;
        if (one->place || *at == 'u' || (one->optional && *at == 'E')) {
            one->place = 1;
            one->value = *at == 'r' ? (long)world->rows : (long)&world->objects[places++];
            continue;
        }
        switch (*at) {
        case 'e': one->place = one->optional = 1, one->value = (long)&error; break;
        case 'k': case 'v': one->value = (long)"key"; break;
        case 'z': one->value = (long)world->path; break;
        case 'O': one->optional = 1, one->value = (long)world->options; break;
        case 'b': one->value = (long)&world->buf[bufs++]; break;
        case 'f': one->value = (long)callback; break;
        case 'C': case 'i': case 'U': one->value = 0; break;
        case 'r': one->value = (long)world->rows; break;
        case 'p': one->value = (long)world->parts; break;
        case 'q': one->value = (long)world->ops; break;
        default: one->value = (long)object(world, *at);
        }
        if (strchr("kvrpq", *at)) {
            list[count].kind = *at, list[count].is_length = 1;
            list[count].value = *at == 'q' ? 1 : *at == 'k' || *at == 'v' ? 3 : 2;
            count++;
        }
    }
    return count;
}

static int invoke(const struct call *call, const struct argument *list)
{
    call_fn function = (call_fn)call->function;
    return function(list[0].value, list[1].value, list[2].value, list[3].value, list[4].value,
                    list[5].value, list[6].value, list[7].value);
}

/* Frees what a call has made. */
static void after(struct argument *list, int count, struct world *world)
{
    int places = 0;
    for (int at = 0; at < count; at++) {
        if (list[at].place && list[at].kind != 'e' && list[at].kind != 'r') {
            void *made = world->objects[places++];
            if (list[at].kind == 'E') lw_error_free(made);
            /* An attempt's transaction belongs to it. */
            else if (made) release(list[at].kind, made);
        }
    }
    lw_error_free(error);
    error = NULL;
}

#endif
