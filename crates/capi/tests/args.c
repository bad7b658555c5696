/* Every function with wrong arguments: NULL, misaligned, of another kind, closed, zero, huge. None
 * of them may crash; each must say LW_MISUSE, or LW_TOO_LONG of a length that a key cannot have.
 *
 * The functions are those of calls.h. `args --names` prints them: the script compares them with the
 * header. */
#include "calls.h"

static struct world world;
static struct { void *closed[128]; } dead;
static int checks;
/* valgrind has no 64 GiB of addresses. */
static const lw_locks_options small = { sizeof small, 0, 0, 0, 0, 64 << 20 };

/* A handle of this kind that was closed just now: its memory is used again after 64 others. */
static void *closed(char kind)
{
    if (strchr("stl", kind)) return dead.closed[(int)kind];
    fill(&world);
    void *handle = object(&world, kind);
    clear(&world);
    return handle;
}

static void is_refused(const struct call *call, struct argument *list, int count, int allowed,
                       const char *what)
{
    int code = invoke(call, list);
    checks++;
    if (call->returns == 'i' && code != LW_MISUSE && code != allowed) {
        fprintf(stderr, "%s(%s) with %s: %s\n", call->name, call->arguments, what,
                lw_code_name(code));
        _exit(1);
    }
    if (call->returns == 'i' && list[count - 1].kind == 'e' && list[count - 1].value && code < 0)
        CHECK(lw_error_code(error) == code && strlen(lw_error_message(error)) > 10);
    after(list, count, &world);
}

/* A call with one argument that is wrong. Each call gets new objects, because it may end one. */
static void with(const struct call *call, int at, long value, int allowed, const char *what)
{
    struct argument list[ARGUMENTS];
    fill(&world);
    int count = arguments(call, &world, list);
    list[at].value = value;
    is_refused(call, list, count, allowed, what);
    clear(&world);
}

static void wrong_handles(const struct call *call, int at, char kind)
{
    void *other = kind == 'l' ? (void *)world.table : (void *)world.locks;
    int null = is_end(call) ? LW_OK : LW_MISUSE;
    with(call, at, 0, null, "NULL");
    with(call, at, (long)other, LW_MISUSE, "a handle of another kind");
    with(call, at, (long)other + 1, LW_MISUSE, "a misaligned handle");
    with(call, at, (long)closed(kind), LW_MISUSE, "a closed handle");
}

static void wrong_lengths(const struct call *call, int at, char kind)
{
    int huge = kind == 'k' || kind == 'v' ? LW_TOO_LONG : LW_MISUSE;
    with(call, at, -1, LW_MISUSE, "SIZE_MAX");
    /* Bytes are not read that a key, a value or an id cannot have; of an array no one knows. */
    if (huge == LW_TOO_LONG) with(call, at, (long)(SIZE_MAX / 2), huge, "PTRDIFF_MAX");
    else with(call, at, (long)(SIZE_MAX / 16), huge, "SIZE_MAX / 16");
}

static void wrong_options(const struct call *call)
{
    struct argument list[ARGUMENTS];
    static const size_t SIZES[] = { 0, 7, 5000, SIZE_MAX };
    for (int turn = 0; turn < 4; turn++) {
        fill(&world);
        int count = arguments(call, &world, list);
        world.options[0] = SIZES[turn];
        is_refused(call, list, count, LW_MISUSE, "options of a wrong size");
        clear(&world);
    }
    /* A later version's option that is set. */
    fill(&world);
    int count = arguments(call, &world, list);
    world.options[0] = sizeof world.options;
    world.options[31] = 1;
    is_refused(call, list, count, LW_MISUSE, "an option of a later version");
    clear(&world);
}

static void wrong_buffer(const struct call *call, int at)
{
    lw_buf buf = { NULL, 5, 3 }, missing = { NULL, 0, 3 };
    with(call, at, 0, call->returns == 'i' ? LW_MISUSE : 0, "NULL");
    with(call, at, (long)&buf, LW_MISUSE, "a buffer whose length is beyond its capacity");
    with(call, at, (long)&missing, LW_MISUSE, "a buffer without memory");
}

static void check(const struct call *call)
{
    struct argument list[ARGUMENTS];
    fill(&world);
    int count = arguments(call, &world, list);
    int code = invoke(call, list);
    /* With all that is right it is no misuse: or this table would be wrong. */
    if (call->returns == 'i' && (code == LW_MISUSE || code == LW_PANIC || code == LW_FORKED)) {
        fprintf(stderr, "%s(%s): %s: %s\n", call->name, call->arguments, lw_code_name(code),
                lw_error_message(error));
        _exit(1);
    }
    after(list, count, &world);
    if (!strcmp(call->name, "lw_close")) OK(lw_open(world.path, NULL, &world.store, &error));
    if (!strcmp(call->name, "lw_table_free")) OK(lw_table_new("t", NULL, &world.table, &error));
    if (!strcmp(call->name, "lw_locks_close")) OK(lw_locks_open(NULL, &small, &world.locks, &error));
    clear(&world);
    /* Which arguments there are is the same each time. */
    struct argument shape[ARGUMENTS];
    memcpy(shape, list, sizeof shape);
    for (int at = 0; at < count; at++) {
        char kind = shape[at].kind;
        if (shape[at].is_length) wrong_lengths(call, at, kind);
        else if (shape[at].place) {
            if (!shape[at].optional) with(call, at, 0, LW_MISUSE, "no place");
        } else if (strchr("stxncaAlo", kind)) wrong_handles(call, at, kind);
        else if (kind == 'E') with(call, at, 0, 0, "NULL"), with(call, at, (long)closed('E'), 0, "x");
        else if (strchr("kvrpqf", kind) || (kind == 'z' && !shape[at].optional))
            with(call, at, 0, LW_MISUSE, "NULL");
        else if (kind == 'b' && !shape[at].optional) wrong_buffer(call, at);
        else if (kind == 'O') wrong_options(call);
    }
    if (count > 1 && shape[count - 1].kind == 'e') {
        /* Without a place for the error the code is the same. */
        fill(&world);
        count = arguments(call, &world, list);
        list[0].value = 0, list[count - 1].value = 0;
        CHECK(invoke(call, list) <= 0 || call->returns != 'i' || shape[0].optional);
        after(list, count, &world);
        clear(&world);
    }
}

int main(int argc, char **argv)
{
    lw_options options = LW_OPTIONS_INIT;
    if (argc > 1 && !strcmp(argv[1], "--names")) {
        for (int at = 0; at < COUNT; at++) puts(CALLS[at].name);
        return 0;
    }
    snprintf(world.path, sizeof world.path, "%s", argc > 1 ? argv[1] : "store");
    options.mode = LW_MODE_NONE;
    OK(lw_open(world.path, &options, &world.store, &error));
    OK(lw_put(world.store, NULL, NULL, 0, NULL, 0, NULL) == LW_MISUSE ? LW_OK : LW_FAILED);
    OK(lw_table_new("t", NULL, &world.table, &error));
    OK(lw_locks_open(NULL, &small, &world.locks, &error));
    /* Handles that are closed. */
    OK(lw_table_new("dead", NULL, (lw_table **)&dead.closed['t'], &error));
    lw_table_free(dead.closed['t']);
    OK(lw_locks_open(NULL, &small, (lw_locks **)&dead.closed['l'], &error));
    lw_locks_close(dead.closed['l']);
    dead.closed['s'] = world.store;
    OK(lw_close(world.store, &error));
    OK(lw_open(world.path, &options, &world.store, &error));
    CHECK(dead.closed['s'] != (void *)world.store);
    for (int at = 0; at < COUNT; at++) check(&CALLS[at]);
    lw_table_free(world.table);
    lw_locks_close(world.locks);
    OK(lw_close(world.store, &error));
    printf("%d calls of %d functions\n", checks, COUNT);
    return 0;
}
