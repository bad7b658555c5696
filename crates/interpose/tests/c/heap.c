/* One thread allocates blocks and another frees them, so an allocator cannot use one thread's memory only. */
#include "check.h"
enum { THREADS = 6, BLOCKS = 64, ROUNDS = 20000 };
struct block {
    size_t size;
    unsigned char bytes[];
};
static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static struct block *shelf[BLOCKS];

/* All kinds: cached by a thread, shared in a bin, and mapped separately. */
static struct block *fill(unsigned i) {
    size_t size = i % 1000 == 0 ? 300000 : i % 10 == 0 ? 9000 + i % 5000 : 16 + i % 500;
    struct block *block = malloc(sizeof *block + size);
    CHECK(block != 0);
    block->size = size;
    memset(block->bytes, (unsigned char)size, size);
    return block;
}
static void empty(struct block *block) {
    for (size_t i = 0; i < block->size; i += 61)
        CHECK(block->bytes[i] == (unsigned char)block->size);
    CHECK(block->bytes[block->size - 1] == (unsigned char)block->size);
    free(block);
}
static void *body(void *seed) {
    unsigned random = (unsigned)(uintptr_t)seed;
    for (int i = 0; i < ROUNDS; i++) {
        random = random * 1103515245 + 12345;
        struct block *block = fill(random >> 8);
        struct block **place = &shelf[(random >> 16) % BLOCKS];
        pthread_mutex_lock(&m);
        struct block *before = *place;
        *place = block;
        pthread_mutex_unlock(&m);
        if (before)
            empty(before);
    }
    return 0;
}
int main(void) {
    /* Twice: memory of the first threads is returned when they end. */
    for (int round = 0; round < 2; round++) {
        pthread_t threads[THREADS];
        for (uintptr_t i = 0; i < THREADS; i++)
            CHECK(pthread_create(&threads[i], 0, body, (void *)(i + 1)) == 0);
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], 0);
    }
    for (int i = 0; i < BLOCKS; i++)
        if (shelf[i])
            empty(shelf[i]);
    puts("ok");
    return 0;
}
