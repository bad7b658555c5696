/*
 * Waiting for a condition variable, as far as it can be cancelled.
 *
 * pthread_cond_wait is a cancellation point: a thread may be unwound out of its sleep, and must
 * hold the mutex again before the program's cleanup handlers run. The unwinding passes the frames
 * of this file and none of Rust's: Rust is called for each step, and has returned.
 *
 *   begin      in Rust: enter the list of waiters, release the mutex
 *   nap        here: a system call, in a window of asynchronous cancellation
 *   end        in Rust: leave the list, take the mutex again
 *   cancelled  in Rust, from a cleanup handler: the same, and pass on a signal meant for us
 *
 * Where a thread can be cancelled at any instruction, every instruction must have an entry in a
 * table of unwinding: without one the unwinder takes the frame for the last of the stack, and the
 * cleanups of this file are left out. Stubs for calls between libraries have none where the linker
 * makes none (lld), so this file is compiled without them. A Rust function that cannot unwind has
 * an entry that says so, and the C library aborts without a word. So cancellation is deferred
 * before Rust is called, whatever the program had chosen.
 */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>

/* The state of a wait in Rust; its size is asserted there. */
struct wait {
    uint64_t opaque[8];
};

/* Where a wait was called from; latchwork-profile's struct of this name. */
struct caller {
    void *address;
    void *sp;
    void *fp;
};

/*
 * The caller of the function whose frame this is. On x86-64 a frame begins with the caller's frame
 * pointer and the return address; elsewhere it does not say what the stack pointer was.
 */
static inline struct caller caller_of(void **frame, void *address) {
#if defined(__x86_64__)
    struct caller caller = {address, frame + 1, frame[0]};
#else
    struct caller caller = {address, NULL, frame[0]};
#endif
    return caller;
}

#define CALLER caller_of(__builtin_frame_address(0), __builtin_return_address(0))

extern int latchwork_wait_begin(struct wait *, pthread_cond_t *, pthread_mutex_t *,
                                const struct caller *);
extern const uint32_t *latchwork_wait_word(struct wait *, uint32_t *expected);
extern int latchwork_wait_end(struct wait *);
extern void latchwork_wait_cancelled(void *wait);
extern int latchwork_cond_clock(pthread_cond_t *);
extern int latchwork_cond_route(pthread_cond_t *, pthread_mutex_t *);
extern void *latchwork_real_wait(unsigned long which);

/* Routes; see cond.rs. */
enum { OURS = 0, GLIBC = 1, MIXED = 2 };

/* The functions of glibc that may serve a wait. */
enum { WAIT = 0, TIMEDWAIT = 1, CLOCKWAIT = 2 };
typedef int wait_fn(pthread_cond_t *, pthread_mutex_t *);
typedef int timedwait_fn(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
typedef int clockwait_fn(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);

/* How long the caller is ready to wait. */
struct patience {
    int which;
    clockid_t clock;
    const struct timespec *at;
};

/* The futex call, without errno. */
static long futex_wait(const uint32_t *word, uint32_t expected, int clock,
                       const struct timespec *at) {
    long op = FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG;
    if (clock == CLOCK_REALTIME)
        op |= FUTEX_CLOCK_REALTIME;
#if defined(__x86_64__)
    register const struct timespec *r10 __asm__("r10") = at;
    register const void *r8 __asm__("r8") = 0;
    register long r9 __asm__("r9") = (long)FUTEX_BITSET_MATCH_ANY;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(SYS_futex), "D"(word), "S"(op), "d"(expected), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
#elif defined(__aarch64__)
    register long x8 __asm__("x8") = SYS_futex;
    register long x0 __asm__("x0") = (long)word;
    register long x1 __asm__("x1") = op;
    register long x2 __asm__("x2") = expected;
    register long x3 __asm__("x3") = (long)at;
    register long x4 __asm__("x4") = 0;
    register long x5 __asm__("x5") = (long)FUTEX_BITSET_MATCH_ANY;
    __asm__ volatile("svc 0"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "memory");
    return x0;
#else
#error "no futex call for this machine"
#endif
}

/*
 * Sleeps once. A cancellation that is pending, or comes, unwinds from in here: into a caller that
 * has a cleanup around the *call*, so no table of ours needs to cover the instruction itself.
 */
static __attribute__((noinline)) long nap(const uint32_t *word, uint32_t expected,
                                          const struct patience *patience) {
    int type;
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &type);
    long result = futex_wait(word, expected, patience->clock, patience->at);
    pthread_setcanceltype(type, &type);
    return result;
}

/* An object of ours, or a mutex that is not and a condition variable that is. */
static int wait_ours(pthread_cond_t *cond, pthread_mutex_t *mutex,
                     const struct patience *patience, const struct caller *caller) {
    struct wait wait;
    int timed_out = 0;
    int error = latchwork_wait_begin(&wait, cond, mutex, caller);
    if (error != 0)
        return error;
    pthread_cleanup_push(latchwork_wait_cancelled, &wait);
    for (;;) {
        uint32_t expected;
        const uint32_t *word = latchwork_wait_word(&wait, &expected);
        if (word == NULL)
            break;
        if (nap(word, expected, patience) == -ETIMEDOUT) {
            timed_out = 1;
            break;
        }
    }
    pthread_cleanup_pop(0);
    /* Zero if we were signalled, -1 if we gave up, or what locking the mutex said. */
    error = latchwork_wait_end(&wait);
    return error == -1 ? (timed_out ? ETIMEDOUT : 0) : error;
}

/* An object of glibc's. */
static int wait_glibc(pthread_cond_t *cond, pthread_mutex_t *mutex,
                      const struct patience *patience) {
    void *real = latchwork_real_wait(patience->which);
    if (real == NULL)
        return ENOSYS;
    switch (patience->which) {
    case WAIT:
        return ((wait_fn *)real)(cond, mutex);
    case TIMEDWAIT:
        return ((timedwait_fn *)real)(cond, mutex, patience->at);
    default:
        return ((clockwait_fn *)real)(cond, mutex, patience->clock, patience->at);
    }
}

/*
 * A condition variable of glibc's with a mutex of ours: glibc would unlock it by its own rules.
 * It gets its own mutex instead, the gate. A thread that signals such a condition variable also
 * passes the gate, so no signal falls between the release of the one mutex and of the other.
 */
extern pthread_mutex_t *latchwork_gate_close(void);
extern void latchwork_gate_open(void);
extern int latchwork_mutex_release(pthread_mutex_t *, uint32_t *count);
extern int latchwork_mutex_reacquire(pthread_mutex_t *, uint32_t count,
                                       const struct caller *);

struct mixed {
    pthread_mutex_t *mutex;
    const struct caller *caller;
    uint32_t count;
};

static void mixed_cancelled(void *argument) {
    struct mixed *mixed = argument;
    latchwork_gate_open();
    latchwork_mutex_reacquire(mixed->mutex, mixed->count, mixed->caller);
}

static int wait_mixed(pthread_cond_t *cond, pthread_mutex_t *mutex,
                      const struct patience *patience, const struct caller *caller) {
    struct mixed mixed = {mutex, caller, 0};
    pthread_mutex_t *gate = latchwork_gate_close();
    int result = latchwork_mutex_release(mutex, &mixed.count);
    if (result != 0) {
        latchwork_gate_open();
        return result;
    }
    pthread_cleanup_push(mixed_cancelled, &mixed);
    result = wait_glibc(cond, gate, patience);
    pthread_cleanup_pop(0);
    latchwork_gate_open();
    int relocked = latchwork_mutex_reacquire(mutex, mixed.count, caller);
    return relocked != 0 ? relocked : result;
}

/* A wait in either library, with cancellation deferred. */
static int wait_deferred(pthread_cond_t *cond, pthread_mutex_t *mutex, struct patience patience,
                         const struct caller *caller) {
    if (patience.which == TIMEDWAIT)
        patience.clock = latchwork_cond_clock(cond);
    int route = latchwork_cond_route(cond, mutex);
    if (route == GLIBC)
        return wait_glibc(cond, mutex, &patience);
    if (route == MIXED)
        return wait_mixed(cond, mutex, &patience, caller);
    struct timespec at;
    if (patience.at != NULL) {
        at = *patience.at;
        if (at.tv_nsec < 0 || at.tv_nsec >= 1000000000)
            return EINVAL;
        /* The kernel refuses times before 1970; all of them have passed. */
        if (at.tv_sec < 0)
            at = (struct timespec){0, 0};
        patience.at = &at;
    }
    /* A cancellation that is pending acts now, with the mutex held. */
    pthread_testcancel();
    return wait_ours(cond, mutex, &patience, caller);
}

/* A thread that can be cancelled at any time can be in here only while it sleeps: in `nap`, or in
   glibc's own wait, which looks after itself. */
static int wait_any(pthread_cond_t *cond, pthread_mutex_t *mutex, struct patience patience,
                    struct caller caller) {
    int type;
    pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &type);
    int result = wait_deferred(cond, mutex, patience, &caller);
    /* If it acts here, the mutex is held. */
    pthread_setcanceltype(type, &type);
    return result;
}

int latchwork_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex) {
    struct patience patience = {WAIT, CLOCK_MONOTONIC, NULL};
    return wait_any(cond, mutex, patience, CALLER);
}

int latchwork_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex,
                             const struct timespec *at) {
    /* The clock is the condition variable's own. */
    struct patience patience = {TIMEDWAIT, CLOCK_REALTIME, at};
    return wait_any(cond, mutex, patience, CALLER);
}

int latchwork_cond_clockwait(pthread_cond_t *cond, pthread_mutex_t *mutex, clockid_t clock,
                             const struct timespec *at) {
    if (clock != CLOCK_REALTIME && clock != CLOCK_MONOTONIC)
        return EINVAL;
    struct patience patience = {CLOCKWAIT, clock, at};
    return wait_any(cond, mutex, patience, CALLER);
}
