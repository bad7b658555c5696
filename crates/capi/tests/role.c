/* A role of the dialogues of crates/check/dialogues/store, through the C interface: the tests of
 * isolation run with this program as each of their processes.
 *
 * It reads a step a line, and writes "> answer". */
#include "test.h"

static lw_store *store;
static lw_table *tables[2];
static char role[2];
static const char *level;

/* The transaction or the snapshot that is under way. */
static lw_txn *tx;
static lw_snapshot *snapshot;

static struct { char name[32]; uint64_t savepoint; } savepoints[32];
static int savepoint_count;

static lw_table *table_of(long row) { return tables[row >= 100]; }

static void key_of(long row, lw_buf *key)
{
    lw_part part = lw_part_u64((uint64_t)row);
    OK(lw_key_encode(&part, 1, key, &error));
}

static long number_of(const void *bytes)
{
    int64_t number;
    memcpy(&number, bytes, 8);
    return (long)number;
}

static long row_of(const void *key, size_t len)
{
    lw_part part;
    size_t count;
    lw_buf text = LW_BUF_INIT;
    OK(lw_key_decode(key, len, &part, 1, &count, &text, &error));
    lw_buf_free(&text);
    return (long)part.of.i64;
}

struct rows { char text[4096]; };

static int add_row(void *context, const void *key, size_t key_len, const void *value, size_t len)
{
    struct rows *rows = context;
    size_t at = strlen(rows->text);
    CHECK(len == 8);
    snprintf(rows->text + at, sizeof rows->text - at, "%s%ld=%ld", at ? " " : "",
             row_of(key, key_len), number_of(value));
    return 0;
}

static void bounds(lw_range *range, long from, long to, lw_buf *a, lw_buf *b)
{
    key_of(from, a);
    key_of(to, b);
    range->from = a->data, range->from_len = a->len;
    range->to = b->data, range->to_len = b->len;
    range->flags = LW_TO_INCLUDED;
}

/* Ranges are read by a callback and by a cursor, in turn: to its end both hold the whole range. */
static int by_cursor(lw_table *table, const lw_range *range, struct rows *rows)
{
    lw_cursor *cursor;
    lw_row some[3];
    size_t count;
    int code = lw_txn_cursor(tx, table, range, &cursor, &error);
    while (code == LW_OK && (code = lw_cursor_next_some(cursor, some, 3, &count, &error)) == LW_OK)
        for (size_t at = 0; at < count; at++)
            add_row(rows, some[at].key, some[at].key_len, some[at].value, some[at].value_len);
    lw_cursor_free(cursor);
    return code < 0 ? code : LW_OK;
}

static int range(long from, long to, char *answer, size_t room)
{
    static int turn;
    struct rows rows = { "" };
    lw_range range = LW_RANGE_INIT;
    lw_buf a = LW_BUF_INIT, b = LW_BUF_INIT;
    int code;
    bounds(&range, from, to, &a, &b);
    if (snapshot) {
        code = lw_snapshot_scan(snapshot, table_of(from), &range, add_row, &rows, &error);
    } else if (turn++ % 2) {
        code = by_cursor(table_of(from), &range, &rows);
    } else {
        code = lw_txn_scan(tx, table_of(from), &range, add_row, &rows, &error);
    }
    snprintf(answer, room, "%s", rows.text[0] ? rows.text : "none");
    lw_buf_free(&a), lw_buf_free(&b);
    return code;
}

static int end_of(int last, int take, char *answer, size_t room)
{
    struct rows rows = { "" };
    lw_buf key = LW_BUF_INIT, value = LW_BUF_INIT;
    int code;
    if (take) {
        code = last ? lw_txn_pop_last(tx, tables[0], &key, &value, &error)
                    : lw_txn_pop_first(tx, tables[0], &key, &value, &error);
        if (code == LW_OK) add_row(&rows, key.data, key.len, value.data, value.len);
    } else {
        lw_range range = LW_RANGE_INIT;
        lw_cursor *cursor;
        lw_row row;
        range.flags = last ? LW_REVERSE : 0;
        range.limit = 1;
        code = lw_txn_cursor(tx, tables[0], &range, &cursor, &error);
        if (code == LW_OK) code = lw_cursor_next(cursor, &row, &error);
        if (code == LW_OK) add_row(&rows, row.key, row.key_len, row.value, row.value_len);
        lw_cursor_free(cursor);
    }
    snprintf(answer, room, "%s", rows.text[0] ? rows.text : "none");
    lw_buf_free(&key), lw_buf_free(&value);
    return code < 0 ? code : LW_OK;
}

static int get(long row, int update, char *answer, size_t room)
{
    lw_buf key = LW_BUF_INIT, value = LW_BUF_INIT;
    lw_table *table = table_of(row);
    int code;
    key_of(row, &key);
    if (snapshot) code = lw_snapshot_get(snapshot, table, key.data, key.len, &value, &error);
    else if (update) code = lw_txn_get_for_update(tx, table, key.data, key.len, &value, &error);
    else code = lw_txn_get(tx, table, key.data, key.len, &value, &error);
    if (code == LW_OK) snprintf(answer, room, "%ld", number_of(value.data));
    else snprintf(answer, room, "none");
    lw_buf_free(&key), lw_buf_free(&value);
    return code < 0 ? code : LW_OK;
}

static int write_row(const char *verb, long row, long number, char *answer, size_t room)
{
    lw_buf key = LW_BUF_INIT;
    lw_table *table = table_of(row);
    int64_t value = number;
    int code;
    key_of(row, &key);
    if (!strcmp(verb, "put")) code = lw_txn_put(tx, table, key.data, key.len, &value, 8, &error);
    else if (!strcmp(verb, "put-last"))
        code = lw_txn_put_final(tx, table, key.data, key.len, &value, 8, &error);
    else if (!strcmp(verb, "insert"))
        code = lw_txn_insert(tx, table, key.data, key.len, &value, 8, &error);
    else code = lw_txn_remove(tx, table, key.data, key.len, &error);
    snprintf(answer, room, "%s",
             code == LW_EXISTS ? "exists" : code == LW_NOT_FOUND ? "none" : "done");
    lw_buf_free(&key);
    return code < 0 ? code : LW_OK;
}

static int savepoint(const char *name, char *answer, size_t room)
{
    int at = savepoint_count++;
    CHECK(at < 32);
    snprintf(savepoints[at].name, sizeof savepoints[at].name, "%s", name);
    snprintf(answer, room, "done");
    return lw_txn_savepoint(tx, &savepoints[at].savepoint, &error);
}

static int roll_back_to(const char *name, char *answer, size_t room)
{
    int at = savepoint_count - 1, code;
    while (strcmp(savepoints[at].name, name)) at--;
    code = lw_txn_roll_back_to(tx, savepoints[at].savepoint, &error);
    snprintf(answer, room, "%s", code == LW_SAVEPOINT ? "gone" : "done");
    if (code == LW_SAVEPOINT) lw_error_free(error), error = NULL, code = LW_OK;
    return code;
}

static int remove_range(long from, long to, char *answer, size_t room)
{
    lw_range range = LW_RANGE_INIT;
    lw_buf a = LW_BUF_INIT, b = LW_BUF_INIT;
    uint64_t count = 0;
    int code;
    bounds(&range, from, to, &a, &b);
    code = lw_txn_remove_range(tx, table_of(from), &range, &count, &error);
    snprintf(answer, room, "%lu", (unsigned long)count);
    lw_buf_free(&a), lw_buf_free(&b);
    return code;
}

static int step(char *line, char *answer, size_t room)
{
    char *verb = strtok(line, " "), *first = strtok(NULL, " "), *second = strtok(NULL, " ");
    long a = first ? atol(first) : 0, b = second ? atol(second) : 0;
    snprintf(answer, room, "done");
    if (!strncmp(verb, "begin", 5)) return LW_OK;
    if (!strcmp(verb, "get")) return get(a, 0, answer, room);
    if (!strcmp(verb, "get-for-update")) return get(a, 1, answer, room);
    if (!strcmp(verb, "all")) return range(0, 99, answer, room);
    if (!strcmp(verb, "range")) return range(a, b, answer, room);
    if (!strcmp(verb, "remove-range")) return remove_range(a, b, answer, room);
    if (!strcmp(verb, "first")) return end_of(0, 0, answer, room);
    if (!strcmp(verb, "last")) return end_of(1, 0, answer, room);
    if (!strcmp(verb, "pop-first")) return end_of(0, 1, answer, room);
    if (!strcmp(verb, "pop-last")) return end_of(1, 1, answer, room);
    if (!strcmp(verb, "savepoint")) return savepoint(first, answer, room);
    if (!strcmp(verb, "roll-back-to")) return roll_back_to(first, answer, room);
    return write_row(verb, a, b, answer, room);
}

static void begin(const char *line)
{
    savepoint_count = 0;
    if (!strcmp(level, "snapshot")) {
        OK(lw_snapshot_new(store, &snapshot, &error));
        return;
    }
    lw_txn_options options = LW_TXN_OPTIONS_INIT;
    options.label = role;
    options.time_ms = 5000;
    if (!strcmp(level, "read-committed")) options.flags |= LW_READ_COMMITTED;
    if (!strcmp(line, "begin-no-wait")) options.flags |= LW_NO_WAIT;
    OK(lw_begin(store, &options, &tx, &error));
}

static const char *failed(int code)
{
    lw_error_free(error), error = NULL;
    if (tx) OK(lw_roll_back(tx, &error));
    tx = NULL;
    if (code == LW_CONFLICT) return "deadlock";
    if (code == LW_TIMEOUT) return "refused";
    return lw_code_name(code);
}

static const char *ends(const char *line)
{
    int code = LW_OK;
    if (snapshot) lw_snapshot_free(snapshot);
    else if (!strcmp(line, "commit")) code = lw_commit(tx, &error);
    else if (!strcmp(line, "prepare")) code = lw_prepare(tx, role, 1, &error);
    else code = lw_roll_back(tx, &error);
    snapshot = NULL, tx = NULL;
    return code == LW_OK ? "done" : failed(code);
}

static const char *decides(const char *line)
{
    int commit = !strncmp(line, "commit", 6);
    const char *gid = strchr(line, ' ') + 1;
    int code = commit ? lw_commit_prepared(store, gid, 1, &error)
                      : lw_roll_back_prepared(store, gid, 1, &error);
    if (code == LW_NOT_PREPARED) {
        lw_error_free(error), error = NULL;
        return "none";
    }
    return code == LW_OK ? "done" : lw_code_name(code);
}

static lw_table *table(const char *name)
{
    lw_table_options options = LW_TABLE_OPTIONS_INIT;
    lw_table *made;
    options.key_type = "u64";
    options.value_type = "i64";
    OK(lw_table_new(name, &options, &made, &error));
    return made;
}

int main(void)
{
    char line[256], answer[4096];
    lw_options options = LW_OPTIONS_INIT;
    options.flags = LW_NO_CREATE;
    options.mode = LW_MODE_NONE;
    snprintf(role, sizeof role, "%s", getenv("LATCHWORK_ROLE"));
    level = getenv("LATCHWORK_LEVEL");
    OK(lw_open(getenv("LATCHWORK_STORE"), &options, &store, &error));
    tables[0] = table("rows");
    tables[1] = table("others");
    while (fgets(line, sizeof line, stdin)) {
        const char *said = answer;
        line[strcspn(line, "\n")] = 0;
        if (!strcmp(line, "end")) break;
        if (strstr(line, "-prepared ")) said = decides(line);
        else {
            if (!tx && !snapshot) begin(line);
            if (!strcmp(line, "commit") || !strcmp(line, "prepare") || !strcmp(line, "roll-back"))
                said = ends(line);
            else {
                int code = step(line, answer, sizeof answer);
                if (code < 0) said = failed(code);
            }
        }
        printf("> %s\n", said);
        fflush(stdout);
    }
    lw_txn_free(tx);
    lw_snapshot_free(snapshot);
    lw_table_free(tables[0]), lw_table_free(tables[1]);
    OK(lw_close(store, &error));
    return 0;
}
