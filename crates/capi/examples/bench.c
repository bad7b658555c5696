/* The loops of the benchmark `scripts/capi bench`, in C. */
#include <latchwork.h>
#include <string.h>

static void key_of(uint64_t number, unsigned char key[8])
{
    number = __builtin_bswap64(number);      /* to_be_bytes, as the loops in Rust */
    memcpy(key, &number, 8);
}

static uint64_t next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

uint64_t c_get(lw_store *store, const lw_table *table, uint64_t records, uint64_t count, uint64_t seed)
{
    lw_buf value = LW_BUF_INIT;
    uint64_t bytes = 0;
    for (uint64_t turn = 0; turn < count; turn++) {
        unsigned char key[8];
        key_of(next(&seed) % records, key);
        if (lw_get(store, table, key, sizeof key, &value, NULL) == LW_OK) bytes += value.len;
    }
    lw_buf_free(&value);
    return bytes;
}

uint64_t c_put(lw_store *store, const lw_table *table, uint64_t records, uint64_t count, uint64_t seed)
{
    unsigned char value[100] = { 0 };
    uint64_t done = 0;
    for (uint64_t turn = 0; turn < count; turn++) {
        unsigned char key[8];
        key_of(next(&seed) % records, key);
        memcpy(value, key, sizeof key);
        done += lw_put(store, table, key, sizeof key, value, sizeof value, NULL) == LW_OK;
    }
    return done;
}

uint64_t c_snapshot_get(lw_snapshot *snapshot, const lw_table *table, uint64_t records, uint64_t count,
                        uint64_t seed)
{
    lw_buf value = LW_BUF_INIT;
    uint64_t bytes = 0;
    for (uint64_t turn = 0; turn < count; turn++) {
        unsigned char key[8];
        key_of(next(&seed) % records, key);
        if (lw_snapshot_get(snapshot, table, key, sizeof key, &value, NULL) == LW_OK) bytes += value.len;
    }
    lw_buf_free(&value);
    return bytes;
}

static int adds(void *bytes, const void *key, size_t key_len, const void *value, size_t value_len)
{
    (void)key, (void)key_len, (void)value;
    *(uint64_t *)bytes += value_len;
    return 0;
}

/* A scan that calls a function: the bytes lie where the store has them. */
uint64_t c_scan_with(lw_snapshot *snapshot, const lw_table *table)
{
    uint64_t bytes = 0;
    return lw_snapshot_scan(snapshot, table, NULL, adds, &bytes, NULL) == LW_OK ? bytes : 0;
}

/* A scan by a cursor, which copies. */
uint64_t c_scan(lw_snapshot *snapshot, const lw_table *table, uint64_t *count)
{
    lw_cursor *cursor;
    lw_row rows[256];
    size_t some;
    uint64_t bytes = 0;
    *count = 0;
    if (lw_snapshot_cursor(snapshot, table, NULL, &cursor, NULL) != LW_OK) return 0;
    while (lw_cursor_next_some(cursor, rows, 256, &some, NULL) == LW_OK) {
        for (size_t at = 0; at < some; at++) bytes += rows[at].value_len;
        *count += some;
    }
    lw_cursor_free(cursor);
    return bytes;
}
