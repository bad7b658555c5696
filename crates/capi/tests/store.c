/* The calls of the store, one by one and together. */
#include "test.h"

#include <poll.h>
#include <sys/resource.h>

static lw_store *store;
static lw_table *table;

static void put(lw_txn *tx, const char *key, const char *value)
{
    OK(lw_txn_put(tx, table, key, strlen(key), value, strlen(value), &error));
}

static int is(const lw_buf *buf, const char *text)
{
    return buf->len == strlen(text) && !memcmp(buf->data, text, buf->len);
}

static int is_row(const lw_row *row, const char *key)
{
    return row->key_len == strlen(key) && !memcmp(row->key, key, row->key_len);
}

static void copies(void *context, const void *value, size_t len)
{
    snprintf(context, 32, "%.*s", (int)len, (const char *)value);
}

static int stops_at_third(void *context, const void *key, size_t key_len, const void *value,
                          size_t value_len)
{
    (void)key, (void)key_len, (void)value, (void)value_len;
    return ++*(int *)context == 3 ? 77 : 0;
}

static void records(void)
{
    lw_buf value = LW_BUF_INIT;
    char text[32];
    IS(LW_NOT_FOUND, lw_get(store, table, "ann", 3, &value, &error));
    OK(lw_put(store, table, "ann", 3, "one", 3, &error));
    OK(lw_get(store, table, "ann", 3, &value, &error));
    CHECK(is(&value, "one"));
    OK(lw_get_with(store, table, "ann", 3, copies, text, &error));
    CHECK(!strcmp(text, "one"));
    IS(LW_EXISTS, lw_insert(store, table, "ann", 3, "two", 3, &error));
    OK(lw_insert(store, table, "bob", 3, "", 0, &error));
    OK(lw_get(store, table, "bob", 3, &value, &error));
    CHECK(value.len == 0);
    OK(lw_remove(store, table, "bob", 3, &error));
    IS(LW_NOT_FOUND, lw_remove(store, table, "bob", 3, &error));
    /* An empty key is a key. */
    OK(lw_put(store, table, NULL, 0, "empty", 5, &error));
    OK(lw_get(store, table, "", 0, &value, &error));
    CHECK(is(&value, "empty"));
    OK(lw_remove(store, table, NULL, 0, &error));
    /* A long value. */
    char *big = malloc(1 << 20);
    memset(big, 'x', 1 << 20);
    OK(lw_put(store, table, "big", 3, big, 1 << 20, &error));
    OK(lw_get(store, table, "big", 3, &value, &error));
    CHECK(value.len == 1 << 20 && !memcmp(value.data, big, value.len));
    OK(lw_remove(store, table, "big", 3, &error));
    free(big);
    lw_buf_free(&value);
}

static void transactions(void)
{
    lw_txn *tx;
    lw_buf key = LW_BUF_INIT, value = LW_BUF_INIT;
    uint64_t savepoint, later, count;
    OK(lw_begin(store, NULL, &tx, &error));
    put(tx, "k1", "1"), put(tx, "k2", "2"), put(tx, "k3", "3");
    OK(lw_txn_savepoint(tx, &savepoint, &error));
    put(tx, "k4", "4");
    OK(lw_txn_savepoint(tx, &later, &error));
    put(tx, "k5", "5");
    OK(lw_txn_roll_back_to(tx, savepoint, &error));
    IS(LW_SAVEPOINT, lw_txn_roll_back_to(tx, later, &error));
    IS(LW_NOT_FOUND, lw_txn_get(tx, table, "k4", 2, &value, &error));
    OK(lw_txn_roll_back_to(tx, savepoint, &error));
    OK(lw_txn_get_for_update(tx, table, "k2", 2, &value, &error));
    CHECK(is(&value, "2"));
    IS(LW_EXISTS, lw_txn_insert(tx, table, "k1", 2, "x", 1, &error));
    OK(lw_txn_pop_first(tx, table, &key, &value, &error));
    CHECK(is(&key, "ann") && is(&value, "one"));
    OK(lw_txn_pop_last(tx, table, &key, &value, &error));
    CHECK(is(&key, "k3") && is(&value, "3"));
    OK(lw_txn_remove(tx, table, "k1", 2, &error));
    IS(LW_NOT_FOUND, lw_txn_remove(tx, table, "k1", 2, &error));
    OK(lw_txn_count(tx, table, NULL, &count, &error));
    CHECK(count == 1);
    OK(lw_txn_put_final(tx, table, "k9", 2, "9", 1, &error));
    OK(lw_commit(tx, &error));
    OK(lw_get(store, table, "k9", 2, &value, &error));
    IS(LW_MISUSE, lw_commit(tx, &error));
    OK(lw_begin(store, NULL, &tx, &error));
    OK(lw_txn_remove_range(tx, table, NULL, &count, &error));
    CHECK(count == 2);
    OK(lw_roll_back(tx, &error));
    OK(lw_get(store, table, "k9", 2, &value, &error));
    OK(lw_begin(store, NULL, &tx, &error));
    OK(lw_txn_remove_range(tx, table, NULL, NULL, &error));
    IS(LW_NOT_FOUND, lw_txn_pop_first(tx, table, &key, &value, &error));
    OK(lw_txn_restart(tx, &error));
    OK(lw_txn_get(tx, table, "k9", 2, &value, &error));
    lw_txn_free(tx);
    lw_buf_free(&key), lw_buf_free(&value);
}

/* The keys that a range gives out in three ways: a callback, a cursor, a cursor by several. */
static void expect(lw_txn *tx, const lw_range *range, const char *first, const char *last, int many)
{
    lw_snapshot *snapshot;
    lw_cursor *cursor;
    lw_row row, rows[7];
    size_t count;
    uint64_t counted;
    char at_first[16] = "", at_last[16] = "";
    int seen = 0, code;
    OK(lw_snapshot_new(store, &snapshot, &error));
    OK(lw_snapshot_count(snapshot, table, range, &counted, &error));
    CHECK((int)counted == many);
    OK(tx ? lw_txn_cursor(tx, table, range, &cursor, &error)
          : lw_snapshot_cursor(snapshot, table, range, &cursor, &error));
    while ((code = lw_cursor_next(cursor, &row, &error)) == LW_OK) {
        if (seen++ == 0) snprintf(at_first, 16, "%.*s", (int)row.key_len, (char *)row.key);
        snprintf(at_last, 16, "%.*s", (int)row.key_len, (char *)row.key);
    }
    IS(LW_NOT_FOUND, code);
    CHECK(seen == many && !strcmp(at_first, first) && !strcmp(at_last, last));
    CHECK(row.key == NULL && row.value == NULL);
    if (!range || !range->limit) {
        IS(LW_NOT_FOUND, lw_cursor_next(cursor, &row, &error));
        OK(lw_cursor_prev(cursor, &row, &error));
        CHECK(is_row(&row, last));
    }
    OK(lw_cursor_rewind(cursor, 0, &error));
    for (seen = 0; (code = lw_cursor_next_some(cursor, rows, 7, &count, &error)) == LW_OK;) {
        if (seen == 0) CHECK(is_row(&rows[0], first));
        seen += (int)count;
        if (seen == many) CHECK(is_row(&rows[count - 1], last));
    }
    IS(LW_NOT_FOUND, code);
    CHECK(seen == many);
    lw_cursor_free(cursor);
    lw_snapshot_free(snapshot);
}

/* A key may be as long as this, and so may a prefix. */
enum { LONGEST = 1890 };

static void limits(void)
{
    char key[LONGEST + 1];
    lw_range range = LW_RANGE_INIT;
    lw_txn_options of_tx = LW_TXN_OPTIONS_INIT;
    lw_table_options of_table = LW_TABLE_OPTIONS_INIT;
    lw_locks_options of_locks = LW_LOCKS_OPTIONS_INIT;
    lw_part part = lw_part_u64(1);
    lw_buf buf = LW_BUF_INIT;
    lw_snapshot *snapshot;
    lw_cursor *cursor;
    lw_locks *locks;
    lw_table *other;
    lw_row row;
    lw_txn *tx;
    uint64_t records;
    memset(key, 'k', sizeof key);
    OK(lw_put(store, table, key, LONGEST, "1", 1, &error));
    IS(LW_TOO_LONG, lw_put(store, table, key, LONGEST + 1, "1", 1, &error));
    OK(lw_snapshot_new(store, &snapshot, &error));
    for (int parts = 0; parts < 2; parts++) {
        range.from = key, range.from_len = LONGEST, range.flags = parts ? LW_PREFIX_PARTS : LW_PREFIX;
        OK(lw_snapshot_count(snapshot, table, &range, &records, &error));
        CHECK(records == 1);
        range.from_len = LONGEST + 1;
        IS(LW_TOO_LONG, lw_snapshot_count(snapshot, table, &range, &records, &error));
    }
    OK(lw_remove(store, table, key, LONGEST, &error));

    /* A cursor whose snapshot or transaction has ended is of no use in any call. */
    OK(lw_snapshot_cursor(snapshot, table, NULL, &cursor, &error));
    CHECK(lw_snapshot_free(snapshot) == LW_OK);
    IS(LW_MISUSE, lw_cursor_seek(cursor, "a", 1, &error));
    IS(LW_MISUSE, lw_cursor_rewind(cursor, 0, &error));
    IS(LW_MISUSE, lw_cursor_next(cursor, &row, &error));
    CHECK(lw_cursor_free(cursor) == LW_OK && lw_cursor_free(cursor) == LW_MISUSE);
    OK(lw_begin(store, NULL, &tx, &error));
    OK(lw_txn_cursor(tx, table, NULL, &cursor, &error));
    OK(lw_txn_restart(tx, &error));
    IS(LW_MISUSE, lw_cursor_seek(cursor, "a", 1, &error));
    OK(lw_roll_back(tx, &error));
    IS(LW_MISUSE, lw_cursor_rewind(cursor, 0, &error));
    CHECK(lw_cursor_free(cursor) == LW_OK);

    /* Fields for later versions. */
    OK(lw_snapshot_new(store, &snapshot, &error));
    range.from_len = 1, range.reserved = 1;
    IS(LW_MISUSE, lw_snapshot_count(snapshot, table, &range, &records, &error));
    range.reserved = 0;
    OK(lw_snapshot_count(snapshot, table, &range, &records, &error));
    CHECK(lw_snapshot_free(snapshot) == LW_OK);
    of_tx.reserved = of_table.reserved = of_locks.reserved = part.reserved = 1;
    IS(LW_MISUSE, lw_begin(store, &of_tx, &tx, &error));
    IS(LW_MISUSE, lw_table_new("other", &of_table, &other, &error));
    IS(LW_MISUSE, lw_locks_open(NULL, &of_locks, &locks, &error));
    IS(LW_MISUSE, lw_key_encode(&part, 1, &buf, &error));
    lw_buf_free(&buf);
}

/* A snapshot and a transaction that were open for longer than the store keeps its log. */
static void too_old(const char *path)
{
    lw_options options = LW_OPTIONS_INIT;
    lw_buf value = LW_BUF_INIT;
    lw_snapshot *snapshot;
    lw_store *small;
    lw_txn *tx;
    char name[600], big[60000] = { 0 };
    int of_snapshot = LW_OK, of_tx = LW_OK;
    snprintf(name, sizeof name, "%s-old", path);
    options.flags = LW_SMALL, options.mode = LW_MODE_NONE;
    options.history = 2 << 20, options.log_budget = 1 << 20;
    OK(lw_open(name, &options, &small, &error));
    OK(lw_put(small, table, "m", 1, "0", 1, &error));
    OK(lw_snapshot_new(small, &snapshot, &error));
    OK(lw_begin(small, NULL, &tx, &error));
    OK(lw_txn_put(tx, table, "own", 3, "1", 1, &error));
    for (int turn = 0; turn < 400 && (of_snapshot == LW_OK || of_tx == LW_OK); turn++) {
        OK(lw_put(small, table, "big", 3, big, sizeof big, &error));
        OK(lw_put(small, table, "m", 1, &turn, sizeof turn, &error));
        if (turn % 20) continue;
        OK(lw_checkpoint(small, &error));
        of_snapshot = lw_snapshot_get(snapshot, table, "m", 1, &value, NULL);
        of_tx = lw_txn_put(tx, table, "own", 3, "2", 1, NULL);
    }
    CHECK(of_snapshot == LW_TOO_OLD && of_tx == LW_TOO_OLD && lw_is_retryable(LW_TOO_OLD));
    CHECK(lw_snapshot_free(snapshot) == LW_OK);
    OK(lw_txn_restart(tx, &error));
    OK(lw_txn_put(tx, table, "own", 3, "3", 1, &error));
    OK(lw_commit(tx, &error));
    OK(lw_get(small, table, "own", 3, &value, &error));
    CHECK(is(&value, "3"));
    OK(lw_close(small, &error));
    lw_buf_free(&value);
}

/* A store that is only read. */
static void only_read(const char *path)
{
    lw_store *reader;
    lw_buf value = LW_BUF_INIT;
    OK(lw_put(store, table, "r", 1, "1", 1, &error));
    OK(lw_open_read_only(path, &reader, &error));
    OK(lw_get(reader, table, "r", 1, &value, &error));
    IS(LW_READ_ONLY, lw_put(reader, table, "r", 1, "2", 1, &error));
    IS(LW_READ_ONLY, lw_sync(reader, &error));
    IS(LW_READ_ONLY, lw_checkpoint(reader, &error));
    OK(lw_close(reader, &error));
    OK(lw_remove(store, table, "r", 1, &error));
    lw_buf_free(&value);
}

static void ranges(void)
{
    lw_range range = LW_RANGE_INIT;
    lw_snapshot *snapshot;
    lw_cursor *cursor;
    lw_row row;
    lw_txn *tx;
    int calls = 0;
    OK(lw_begin(store, NULL, &tx, &error));
    OK(lw_txn_remove_range(tx, table, NULL, NULL, &error));
    for (int at = 0; at < 2000; at++) {
        char key[16];
        snprintf(key, sizeof key, "r%04d", at);
        put(tx, key, "v");
    }
    OK(lw_commit(tx, &error));
    OK(lw_begin(store, NULL, &tx, &error));
    for (int turn = 0; turn < 2; turn++, tx ? (void)0 : (void)0) {
        lw_txn *of = turn ? tx : NULL;
        expect(of, NULL, "r0000", "r1999", 2000);
        range = (lw_range)LW_RANGE_INIT;
        range.from = "r01", range.from_len = 3, range.flags = LW_PREFIX;
        expect(of, &range, "r0100", "r0199", 100);
        range.flags |= LW_REVERSE;
        expect(of, &range, "r0199", "r0100", 100);
        range.limit = 3;
        expect(of, &range, "r0199", "r0197", 3);
        range = (lw_range)LW_RANGE_INIT;
        range.from = "r0005", range.from_len = 5, range.to = "r0009", range.to_len = 5;
        expect(of, &range, "r0005", "r0008", 4);
        range.flags = LW_FROM_EXCLUDED | LW_TO_INCLUDED;
        expect(of, &range, "r0006", "r0009", 4);
        range.flags |= LW_REVERSE;
        expect(of, &range, "r0009", "r0006", 4);
    }
    /* A cursor of a transaction sees what the transaction writes, before and behind it. */
    range = (lw_range)LW_RANGE_INIT;
    OK(lw_txn_cursor(tx, table, &range, &cursor, &error));
    for (int at = 0; at < 2000; at += 2) {
        char key[16];
        OK(lw_cursor_next(cursor, &row, &error));
        snprintf(key, sizeof key, "r%04d", at);
        CHECK(is_row(&row, key));
        OK(lw_txn_remove(tx, table, key, 5, &error));
        snprintf(key, sizeof key, "r%04d", at + 1);
        OK(lw_txn_remove(tx, table, key, 5, &error));
        snprintf(key, sizeof key, "r%04d+", at + 1);
        put(tx, key, "new");
        OK(lw_cursor_next(cursor, &row, &error));
        CHECK(is_row(&row, key));
    }
    IS(LW_NOT_FOUND, lw_cursor_next(cursor, &row, &error));
    OK(lw_cursor_seek(cursor, "r0500", 5, &error));
    OK(lw_cursor_next(cursor, &row, &error));
    CHECK(is_row(&row, "r0501+"));
    OK(lw_cursor_prev(cursor, &row, &error));
    CHECK(is_row(&row, "r0499+"));
    OK(lw_roll_back(tx, &error));
    IS(LW_MISUSE, lw_cursor_next(cursor, &row, &error));
    lw_cursor_free(cursor);
    OK(lw_snapshot_new(store, &snapshot, &error));
    CHECK(lw_snapshot_scan(snapshot, table, NULL, stops_at_third, &calls, &error) == 77);
    CHECK(calls == 3 && error == NULL);
    lw_snapshot_free(snapshot);
}

static int transfer(lw_txn *tx, void *context)
{
    int *runs = context;
    put(tx, "t", "transferred");
    return ++*runs < 0;
}

static int refuses(lw_txn *tx, void *context)
{
    (void)context;
    put(tx, "t", "refused");
    IS(LW_MISUSE, lw_commit(tx, &error));
    IS(LW_MISUSE, lw_txn_restart(tx, &error));
    return 1234;
}

static int fails_at_first(lw_txn *tx, void *context)
{
    /* The code alone asks for another attempt: it may come from a snapshot. */
    put(tx, "t", "again");
    return ++*(int *)context < 3 ? LW_TOO_OLD : LW_OK;
}

static int never_ends(lw_txn *tx, void *context)
{
    (void)tx, ++*(int *)context;
    return LW_CONFLICT;
}

static void retries(void)
{
    lw_attempts *attempts;
    lw_txn *tx, *other;
    lw_buf value = LW_BUF_INIT;
    lw_txn_options options = LW_TXN_OPTIONS_INIT;
    int runs = 0, code, done;
    OK(lw_write(store, NULL, transfer, &runs, &error));
    CHECK(runs == 1);
    IS(1234, lw_write(store, NULL, refuses, NULL, &error));
    OK(lw_get(store, table, "t", 1, &value, &error));
    CHECK(is(&value, "transferred"));
    runs = 0;
    OK(lw_write(store, NULL, fails_at_first, &runs, &error));
    CHECK(runs == 3);
    options.time_ms = 50, options.label = "never ends", runs = 0;
    code = lw_write(store, &options, never_ends, &runs, &error);
    CHECK(code == LW_DEADLINE && lw_error_code(error) == LW_DEADLINE && runs > 0);
    CHECK(lw_error_cause(error) != NULL && lw_is_retryable(lw_error_code(lw_error_cause(error))));
    lw_error_free(error), error = NULL;

    /* The loop form: the first attempt meets a lock of another transaction, and is run again. */
    OK(lw_begin(store, NULL, &other, &error));
    OK(lw_txn_put(other, table, "t", 1, "other", 5, &error));
    options = (lw_txn_options)LW_TXN_OPTIONS_INIT;
    options.flags = LW_NO_WAIT;
    IS(LW_OK, lw_begin(store, &options, &tx, &error));
    code = lw_txn_put(tx, table, "t", 1, "x", 1, &error);
    CHECK(lw_is_retryable(code));
    CHECK(!strcmp(lw_error_table(error), "words"));
    size_t key_len;
    CHECK(lw_error_key(error, &key_len) != NULL && key_len == 1);
    lw_error_free(error), error = NULL;
    /* After a failure only the end is left. */
    code = lw_txn_put(tx, table, "t", 1, "x", 1, &error);
    CHECK(lw_is_retryable(code) && lw_error_cause(error) != NULL);
    lw_error_free(error), error = NULL;
    OK(lw_roll_back(tx, &error));
    OK(lw_roll_back(other, &error));
    OK(lw_attempts_new(store, NULL, &attempts, &error));
    IS(LW_MISUSE, lw_attempts_end(attempts, 0, &error));
    runs = 0, code = LW_OK;
    while (code == LW_OK && (code = lw_attempts_next(attempts, &tx, &error)) == LW_OK) {
        IS(LW_MISUSE, lw_attempts_next(attempts, &other, &error));
        put(tx, "t", "loop");
        done = ++runs < 3 ? LW_CONFLICT : LW_OK;
        code = lw_attempts_end(attempts, done, &error);
        CHECK(code == (runs < 3 ? LW_AGAIN : LW_OK));
        if (code == LW_AGAIN) code = LW_OK;
    }
    CHECK(code == LW_DONE && runs == 3);
    IS(LW_DONE, lw_attempts_next(attempts, &tx, &error));
    lw_attempts_free(attempts);
    OK(lw_get(store, table, "t", 1, &value, &error));
    CHECK(is(&value, "loop"));
    lw_buf_free(&value);
}

/* A cursor of a transaction holds what it has read, and not the rest of the range. */
static void holds(void)
{
    lw_txn_options options = LW_TXN_OPTIONS_INIT;
    lw_range range = LW_RANGE_INIT;
    lw_txn *tx, *other;
    lw_cursor *cursor;
    lw_row row;
    int code;
    OK(lw_begin(store, NULL, &tx, &error));
    OK(lw_txn_remove_range(tx, table, NULL, NULL, &error));
    for (int at = 0; at < 3000; at++) {
        char key[16];
        snprintf(key, sizeof key, "h%04d", at);
        put(tx, key, "v");
    }
    OK(lw_commit(tx, &error));
    options.label = "reader";
    OK(lw_begin(store, &options, &tx, &error));
    OK(lw_txn_cursor(tx, table, &range, &cursor, &error));
    OK(lw_cursor_next(cursor, &row, &error));
    options.label = "writer", options.flags = LW_NO_WAIT;
    OK(lw_begin(store, &options, &other, &error));
    OK(lw_txn_put(other, table, "h2500", 5, "w", 1, &error));
    OK(lw_txn_insert(other, table, "h2500+", 6, "w", 1, &error));
    /* A record that would lie between two that were read. */
    code = lw_txn_put(other, table, "h0000+", 6, "w", 1, &error);
    CHECK(code == LW_TIMEOUT && strstr(lw_error_message(error), "reader"));
    lw_error_free(error), error = NULL;
    OK(lw_txn_restart(other, &error));
    code = lw_txn_put(other, table, "h0000", 5, "w", 1, &error);
    CHECK(code == LW_TIMEOUT);
    lw_error_free(error), error = NULL;
    OK(lw_txn_restart(other, &error));
    OK(lw_txn_put(other, table, "h2500", 5, "w", 1, &error));
    OK(lw_commit(other, &error));
    /* At the lower level it holds nothing. */
    OK(lw_roll_back(tx, &error));
    lw_cursor_free(cursor);
    options.flags = LW_READ_COMMITTED;
    OK(lw_begin(store, &options, &tx, &error));
    OK(lw_txn_cursor(tx, table, &range, &cursor, &error));
    OK(lw_cursor_next(cursor, &row, &error));
    options.flags = LW_NO_WAIT;
    OK(lw_begin(store, &options, &other, &error));
    OK(lw_txn_put(other, table, "h0000", 5, "w", 1, &error));
    OK(lw_commit(other, &error));
    OK(lw_cursor_rewind(cursor, 1, &error));
    OK(lw_cursor_prev(cursor, &row, &error));
    CHECK(is_row(&row, "h2999"));
    lw_cursor_free(cursor);
    OK(lw_roll_back(tx, &error));
}

static void marks(void *context, int code, lw_error *why)
{
    lw_error_free(why);
    __atomic_store_n((int *)context, 100 + code, __ATOMIC_RELEASE);
}

static void waits(void)
{
    struct pollfd pollfd = { 0 };
    uint64_t token, seen = 0;
    struct rlimit all, none;
    lw_txn *tx;
    int mark = 0, code;
    CHECK(!getrlimit(RLIMIT_NOFILE, &all));
    none = all, none.rlim_cur = 0;
    OK(lw_begin(store, NULL, &tx, &error));
    put(tx, "later", "1");
    OK(lw_commit_then(tx, marks, &mark, &error));
    IS(LW_MISUSE, lw_commit(tx, &error));
    while (__atomic_load_n(&mark, __ATOMIC_ACQUIRE) == 0) usleep(100);
    CHECK(mark == 100);
    IS(LW_DONE, lw_done_next(store, &token, &code, NULL, &error));
    for (uint64_t at = 0; at < 20; at++) {
        OK(lw_begin(store, NULL, &tx, &error));
        put(tx, "later", "2");
        OK(lw_commit_queued(store, tx, at, &error));
    }
    /* Without a descriptor the call fails, and succeeds when there is one again. */
    CHECK(!setrlimit(RLIMIT_NOFILE, &none));
    IS(LW_IO, lw_done_fd(store, &pollfd.fd, &error));
    CHECK(pollfd.fd == -1);
    IS(LW_IO, lw_done_fd(store, &pollfd.fd, &error));
    CHECK(!setrlimit(RLIMIT_NOFILE, &all));
    OK(lw_done_fd(store, &pollfd.fd, &error));
    pollfd.events = POLLIN;
    for (int done = 0; done < 20;) {
        CHECK(poll(&pollfd, 1, 20000) == 1);
        while (lw_done_next(store, &token, &code, NULL, &error) == LW_OK) {
            CHECK(code == LW_OK && token < 20 && !(seen & 1ul << token));
            seen |= 1ul << token, done++;
        }
    }
    CHECK(poll(&pollfd, 1, 0) == 0);
}

static int counts(void *context, const void *gid, size_t len, uint64_t when)
{
    CHECK(len == 5 && !memcmp(gid, "gid-1", 5) && when > 0);
    return ++*(int *)context == 100;
}

static void two_phases(void)
{
    lw_txn *tx;
    lw_buf value = LW_BUF_INIT;
    int count = 0;
    OK(lw_begin(store, NULL, &tx, &error));
    put(tx, "p", "prepared");
    OK(lw_prepare(tx, "gid-1", 5, &error));
    IS(LW_NOT_FOUND, lw_get(store, table, "p", 1, &value, &error));
    OK(lw_prepared(store, counts, &count, &error));
    CHECK(count == 1);
    IS(LW_NOT_PREPARED, lw_commit_prepared(store, "gid-2", 5, &error));
    OK(lw_commit_prepared(store, "gid-1", 5, &error));
    OK(lw_get(store, table, "p", 1, &value, &error));
    OK(lw_begin(store, NULL, &tx, &error));
    put(tx, "p", "not");
    OK(lw_prepare(tx, "gid-1", 5, &error));
    OK(lw_roll_back_prepared(store, "gid-1", 5, &error));
    OK(lw_get(store, table, "p", 1, &value, &error));
    CHECK(is(&value, "prepared"));
    lw_buf_free(&value);
}

static void keys(void)
{
    lw_table_options options = LW_TABLE_OPTIONS_INIT;
    lw_table *typed, *wrong;
    lw_buf key = LW_BUF_INIT, other = LW_BUF_INIT, text = LW_BUF_INIT;
    lw_part parts[12], back[16];
    size_t count;
    uint8_t uuid[16] = { 1, 2, 3 };
    lw_range range = LW_RANGE_INIT;
    lw_snapshot *snapshot;
    uint64_t records;

    options.key_type = "(str,u64)", options.value_type = "u64";
    OK(lw_table_new("typed", &options, &typed, &error));
    for (uint64_t at = 0; at < 300; at++) {
        lw_part line[] = { lw_part_text(at % 2 ? "ann" : "ann\0x"), lw_part_u64(at) };
        if (at % 2 == 0) line[0] = lw_part_text_n("ann\0x", 5);
        OK(lw_key_encode(line, 2, &key, &error));
        OK(lw_put(store, typed, key.data, key.len, &at, 8, &error));
    }
    /* The rows of "ann" alone; those of "ann\0x" have the same bytes in front. */
    parts[0] = lw_part_text("ann");
    OK(lw_key_encode(parts, 1, &key, &error));
    range.from = key.data, range.from_len = key.len, range.flags = LW_PREFIX_PARTS;
    OK(lw_snapshot_new(store, &snapshot, &error));
    OK(lw_snapshot_count(snapshot, typed, &range, &records, &error));
    CHECK(records == 150);
    range.flags = LW_PREFIX;
    OK(lw_snapshot_count(snapshot, typed, &range, &records, &error));
    CHECK(records == 300);
    lw_snapshot_free(snapshot);

    options.key_type = "u64";
    OK(lw_table_new("typed", &options, &wrong, &error));
    IS(LW_TABLE_TYPE, lw_put(store, wrong, key.data, key.len, "", 0, &error));
    lw_table_free(wrong);
    options.key_type = "(str, u64)";
    IS(LW_OPTIONS, lw_table_new("typed", &options, &wrong, &error));

    parts[0] = lw_part_null(), parts[1] = lw_part_bytes("a\0b", 3), parts[2] = lw_part_begin();
    parts[3] = lw_part_null(), parts[4] = lw_part_text("in\x01"), parts[5] = lw_part_end();
    parts[6] = lw_part_i64(-5), parts[7] = lw_part_u64(UINT64_MAX), parts[8] = lw_part_f64(-0.5);
    parts[9] = lw_part_f32(2.5f), parts[10] = lw_part_bool(1), parts[11] = lw_part_uuid(uuid);
    OK(lw_key_encode(parts, 12, &key, &error));
    OK(lw_key_decode(key.data, key.len, back, 16, &count, &text, &error));
    CHECK(count == 12);
    for (size_t at = 0; at < 12; at++) {
        CHECK(back[at].kind == parts[at].kind && back[at].len == parts[at].len);
        CHECK(!memcmp(back[at].data ? back[at].data : "", parts[at].data ? parts[at].data : "",
                      parts[at].len));
    }
    CHECK(back[6].of.i64 == -5 && back[7].of.u64 == UINT64_MAX && back[8].of.f64 == -0.5);
    CHECK(back[9].of.f32 == 2.5f && back[10].of.u64 == 1 && !memcmp(back[11].of.wide, uuid, 16));
    OK(lw_key_encode(back, count, &other, &error));
    CHECK(other.len == key.len && !memcmp(other.data, key.data, key.len));
    IS(LW_TOO_LONG, lw_key_decode(key.data, key.len, back, 3, &count, &text, &error));
    CHECK(count == 12);
    IS(LW_FORMAT, lw_key_decode("\xff", 1, back, 3, &count, &text, &error));
    IS(LW_MISUSE, lw_key_encode(&parts[2], 1, &key, &error));
    parts[0] = lw_part_text("\xff");
    IS(LW_FORMAT, lw_key_encode(parts, 1, &key, &error));
    lw_buf_free(&key), lw_buf_free(&other), lw_buf_free(&text);
    lw_table_free(typed);
}

static void tools(const char *path)
{
    char copy[600], again[600];
    lw_buf json = LW_BUF_INIT;
    lw_store *other;
    uint64_t pages, number, last = 0, swept;
    OK(lw_stats(store, &json, &error));
    CHECK(json.len > 100 && strstr(json.data, "latchwork_") && strlen(json.data) == json.len);
    OK(lw_tables(store, &json, &error));
    CHECK(strstr(json.data, "\"words\"") && strstr(json.data, "(str,u64)"));
    OK(lw_verify(store, &pages, &json, &error));
    CHECK(pages > 3 && !strcmp(json.data, "[]"));
    for (int at = 0; at < 100; at++) {
        OK(lw_sequence_next(store, "numbers", 10, &number, &error));
        CHECK(number > last);
        last = number;
    }
    OK(lw_sync(store, &error));
    OK(lw_checkpoint(store, &error));
    OK(lw_sweep(store, &swept, &error));
    snprintf(copy, sizeof copy, "%s.copy", path);
    snprintf(again, sizeof again, "%s.again", path);
    OK(lw_backup(store, copy, &error));
    IS(LW_OPEN, lw_backup(store, copy, &error));
    OK(lw_restore(copy, again, &error));
    OK(lw_open_read_only(again, &other, &error));
    OK(lw_get(other, table, "p", 1, &json, &error));
    IS(LW_READ_ONLY, lw_put(other, table, "p", 1, "", 0, &error));
    OK(lw_close(other, &error));
    lw_buf_free(&json);
    CHECK(!strcmp(lw_version(), "0.1.0"));
}

static int writes_again(lw_txn *tx, void *context)
{
    put(tx, "own", "1");
    /* A transaction of its own, of the same thread, on the same record. */
    *(int *)context = lw_put(store, table, "own", 3, "2", 1, &error);
    lw_error_free(error);
    error = NULL;
    return 0;
}

static int ends_with_done(lw_txn *tx, void *context)
{
    (void)context;
    put(tx, "never", "1");
    return LW_DONE;
}

/* Waits that would never end, and what the end of an attempt leaves. */
static void own_locks(void)
{
    lw_buf value = LW_BUF_INIT;
    lw_txn *first, *second, *tx;
    lw_attempts *loop;
    int code = 0;
    OK(lw_begin(store, NULL, &first, &error));
    OK(lw_begin(store, NULL, &second, &error));
    put(first, "own", "0");
    IS(LW_SELF, lw_txn_get(second, table, "own", 3, &value, &error));
    OK(lw_roll_back(second, &error));
    OK(lw_commit(first, &error));
    OK(lw_write(store, NULL, writes_again, &code, &error));
    CHECK(code == LW_SELF);
    IS(LW_MISUSE, lw_write(store, NULL, ends_with_done, NULL, &error));
    IS(LW_NOT_FOUND, lw_get(store, table, "never", 5, &value, &error));
    /* An attempt that must run again has no locks. */
    OK(lw_attempts_new(store, NULL, &loop, &error));
    OK(lw_attempts_next(loop, &tx, &error));
    put(tx, "own", "3");
    IS(LW_AGAIN, lw_attempts_end(loop, LW_CONFLICT, &error));
    OK(lw_put(store, table, "own", 3, "4", 1, &error));
    OK(lw_attempts_next(loop, &tx, &error));
    OK(lw_txn_get(tx, table, "own", 3, &value, &error));
    CHECK(is(&value, "4"));
    OK(lw_attempts_end(loop, 0, &error));
    IS(LW_DONE, lw_attempts_next(loop, &tx, &error));
    lw_attempts_free(loop);
    OK(lw_remove(store, table, "own", 3, &error));
    lw_buf_free(&value);
}

int main(int argc, char **argv)
{
    lw_options options = LW_OPTIONS_INIT;
    const char *path = argc > 1 ? argv[1] : "store";
    size_t len;
    IS(LW_NO_STORE, (options.flags = LW_NO_CREATE, lw_open(path, &options, &store, &error)));
    CHECK(store == NULL);
    options.flags = 1u << 30;
    IS(LW_OPTIONS, lw_open(path, &options, &store, &error));
    options.flags = LW_SMALL, options.threads = 1;
    IS(LW_OPTIONS, lw_open(path, &options, &store, &error));
    options.threads = 0, options.mode = LW_MODE_FULL;
    OK(lw_open(path, &options, &store, &error));
    OK(lw_table_new("words", NULL, &table, &error));
    CHECK(!memcmp(lw_table_name(table, &len), "words", 5) && len == 5);
    records();
    transactions();
    ranges();
    retries();
    own_locks();
    holds();
    waits();
    two_phases();
    keys();
    limits();
    only_read(path);
    too_old(path);
    tools(path);
    lw_table_free(table);
    OK(lw_close(store, &error));
    IS(LW_MISUSE, lw_close(store, &error));
    return 0;
}
