//! The output of `profile`.

#[path = "rig/hot.rs"]
mod hot;
mod rig;

use std::fs;
use std::io::Read;
use std::os::fd::FromRawFd;
use std::path::Path;
use std::process::Command;

use hot::HOT;
use rig::{compile, folder, latchwork, run};
use serde_json::Value;

#[test]
fn a_profile_names_the_hot_spot_even_after_an_exit_in_haste() {
    let folder = folder("hot");
    let program = compile(&folder, "hot", HOT, &[]).unwrap();
    for latch in ["shfl", "shfl-spin", "lw", "glibc"] {
        let output = run(&["profile", "--latch", latch, "--", &program]);
        assert_eq!(output.status.code(), Some(3));
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains("hot_spot hot.c:8") && text.contains("800"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }
    let file = folder.join("report");
    let to = file.to_str().unwrap();
    let output = run(&["profile", "--json", "-o", to, "--", &program]);
    assert!(output.stderr.is_empty(), "{output:?}");
    let rows: Vec<serde_json::Value> = fs::read_to_string(&file)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let row = |kind: &str| rows.iter().find(|row| row["kind"] == kind).unwrap();
    assert_eq!(row("latch")["acquisitions"], 800);
    assert_eq!(row("site")["function"], "hot_spot");
    assert!(row("site")["contended"].as_u64().unwrap() > 0);
    assert!(row("site")["wait_p50_ns"].as_u64() <= row("site")["wait_max_ns"].as_u64());
    assert_eq!(row("process")["exe"], program.as_str());
}

#[test]
fn only_one_program_is_recorded() {
    let folder = folder("only");
    let program = compile(&folder, "hot", HOT, &[]).unwrap();
    let line = format!("{program}; true");
    let said = |only: &str, line: &str| {
        let output = run(&["profile", "--only", only, "--", "sh", "-c", line]);
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(said("hot", &line).contains("hot_spot"));
    let idle = said("sh", &line);
    assert!(idle.contains("0 locks seen in ") && !idle.contains("hot"), "{idle}");
    // A program is found by the name it was started under as well as by its file.
    let alias = folder.join("alias");
    std::os::unix::fs::symlink(&program, &alias).unwrap();
    assert!(said("alias", &format!("{}; true", alias.display())).contains("hot_spot"));
}

#[test]
fn a_profile_without_locks_names_the_programs_that_ran() {
    let output = run(&["profile", "sleep", "0"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("0 locks seen in sleep: "), "{said}");
    let line = "sleep 0; sleep 0; echo";
    let output = run(&["profile", "--only", "no-such", "--", "sh", "-c", line]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("none of the programs that ran: "), "{said}");
    assert!(said.contains("sleep (2 processes)"), "{said}");
}

/// The output on a terminal of this width.
fn on_terminal(columns: u16, args: &[&str]) -> String {
    let size = libc::winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let (mut ours, mut theirs, none) = (0, 0, std::ptr::null_mut());
    // SAFETY: two places for descriptors, no name, no modes, and a size.
    let made = unsafe { libc::openpty(&mut ours, &mut theirs, none, none.cast(), &size) };
    assert_eq!(made, 0);
    // SAFETY: opened above and not used otherwise.
    let ours = unsafe { fs::File::from_raw_fd(ours) };
    // SAFETY: as above.
    let theirs = unsafe { fs::File::from_raw_fd(theirs) };
    let mut command = latchwork();
    let mut child = command.args(args).env("NO_COLOR", "1").stderr(theirs).spawn().unwrap();
    // The command has the other end open, and reading would not end.
    drop(command);
    let mut said = Vec::new();
    // The end is an error: the other end is closed.
    let _ = (&ours).read_to_end(&mut said);
    child.wait().unwrap();
    String::from_utf8(said).unwrap().replace('\r', "")
}

#[test]
fn an_old_report_is_kept_until_a_new_one_is_complete() {
    let folder = folder("report");
    let report = folder.join("report").to_str().unwrap().to_owned();
    fs::write(&report, "old ".repeat(10_000)).unwrap();
    let refused = run(&["profile", "-o", &report, "--", "./no-such-program"]);
    assert_eq!(refused.status.code(), Some(127), "{refused:?}");
    assert_eq!(fs::read_to_string(&report).unwrap(), "old ".repeat(10_000));
    assert!(run(&["profile", "-o", &report, "--", "true"]).status.success());
    let told = fs::read_to_string(&report).unwrap();
    assert!(!told.is_empty() && !told.contains("old old"), "{told}");
}

#[test]
fn a_table_has_the_width_of_its_terminal() {
    let folder = folder("width");
    let long = "a_function_with_a_name_that_nobody_would_like_to_type_but_that_tells_all_of_it";
    let program = compile(&folder, "hot", &HOT.replace("hot_spot", long), &[]).unwrap();
    let wide = on_terminal(180, &["profile", "--", &program]);
    assert!(wide.contains(&format!("{long} hot.c:8")), "{wide}");
    let narrow = on_terminal(84, &["profile", "--", &program]);
    let rows: Vec<_> = narrow.lines().filter(|line| line.starts_with("mutex ")).collect();
    assert!(rows.len() >= 2 && rows.iter().all(|line| line.chars().count() <= 84), "{narrow}");
    assert!(narrow.contains("hot.c:8") && !narrow.contains(long), "{narrow}");
}

#[test]
fn nothing_is_cut_in_a_file() {
    let folder = folder("uncut");
    let long = "a_function_with_a_name_that_nobody_would_like_to_type_but_that_tells_all_of_it";
    let program = compile(&folder, "hot", &HOT.replace("hot_spot", long), &[]).unwrap();
    let text = String::from_utf8(run(&["profile", "--", &program]).stderr).unwrap();
    assert!(text.contains(&format!("{long} hot.c:8")), "{text}");
    assert!(text.contains(": 1 latch taken 800 times"), "{text}");
}

/// A name that is in the tables of a program of another kind is enough for a note.
#[test]
fn programs_that_lock_by_other_means_are_noted() {
    let folder = folder("kinds");
    let mark = "__attribute__((section(\".go.buildinfo\"))) int mark = 1;\n";
    let go = compile(&folder, "hello", &format!("{mark}{HOT}"), &[]).unwrap();
    let text = String::from_utf8(run(&["profile", "--", &go]).stderr).unwrap();
    assert!(text.contains("Note: hello is a Go program: "), "{text}");
    if let Some(still) = compile(&folder, "still", &format!("{mark}{HOT}"), &["-static"]) {
        let text = String::from_utf8(run(&["profile", "--", &still]).stderr).unwrap();
        assert!(text.contains("a Go program, statically linked"), "{text}");
    }
    let java = compile(&folder, "java", HOT, &[]).unwrap();
    let text = String::from_utf8(run(&["profile", "--", &java]).stderr).unwrap();
    assert!(text.contains("Note: java is a JVM: "), "{text}");
    let plain = compile(&folder, "hot", HOT, &[]).unwrap();
    let text = String::from_utf8(run(&["profile", "--", &plain]).stderr).unwrap();
    assert!(!text.contains("Note: "), "{text}");
}

/// The rows of a kind that a profile of a program has.
fn rows(args: &[&str], program: &str, kind: &str) -> Vec<Value> {
    let output = run(&[&["profile", "--json"], args, &["--", program]].concat());
    let text = String::from_utf8(output.stderr).unwrap();
    let all = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let found: Vec<_> = all.filter(|row| row["kind"] == kind).collect();
    assert!(!found.is_empty(), "{text}");
    found
}

/// The row of a function.
#[track_caller]
fn of<'a>(rows: &'a [Value], function: &str) -> &'a Value {
    rows.iter().find(|row| row["function"] == function).unwrap_or_else(|| panic!("{rows:#?}"))
}

/// A C++ program without optimisation: `lock_guard` and what it calls are functions.
const GUARDS: &str = r"
#include <mutex>
#include <thread>
#include <unistd.h>
std::mutex jobs_lock;
static struct { long before; std::mutex inner; } state;
std::mutex *made = new std::mutex;
void take_job() {
    std::lock_guard<std::mutex> guard(jobs_lock);
    usleep(50);
}
void put_job() {
    std::unique_lock<std::mutex> guard(jobs_lock);
    usleep(50);
}
void worker(int n) {
    for (int i = 0; i < 100; i++) n % 2 ? take_job() : put_job();
}
int main() {
    state.inner.lock(), state.inner.unlock();
    made->lock(), made->unlock();
    std::thread all[] = {std::thread(worker, 0), std::thread(worker, 1), std::thread(worker, 2)};
    for (auto &one : all) one.join();
}
";

fn compile_guards(folder: &Path) -> String {
    compile_cxx(folder, "guards", GUARDS)
}

fn compile_cxx(folder: &Path, name: &str, text: &str) -> String {
    let (source, to) = (folder.join(format!("{name}.cpp")), folder.join(name));
    fs::write(&source, text).unwrap();
    let mut command = Command::new("c++");
    command.args(["-g", "-O0", "-pthread", "-o"]).arg(&to).arg(&source);
    assert!(command.status().unwrap().success());
    to.to_str().unwrap().to_owned()
}

#[test]
fn the_command_line_of_the_program_is_passed_unchanged() {
    let program = compile_guards(&folder("guards"));
    let sites = rows(&[], &program, "site");
    for (function, line) in [("take_job()", "guards.cpp:9"), ("put_job()", "guards.cpp:13")] {
        let site = of(&sites, function);
        assert_eq!(site["line"], line);
        // Functions that did not wait are known only as callers of the library's function.
        assert!(site["contended"].as_u64().unwrap() > 0 && site["acquisitions"].is_null());
    }
    let all: u64 = sites.iter().filter_map(|site| site["acquisitions_at_least"].as_u64()).sum();
    assert_eq!(all, 302, "{sites:#?}");
    // Without stacks it is the library's.
    let sites = rows(&["--depth", "0"], &program, "site");
    assert_eq!(of(&sites, "__gthread_mutex_lock")["acquisitions"], 302);
}

#[test]
fn callers_are_shown_to_the_requested_depth() {
    let program = compile_guards(&folder("callers"));
    let sites = rows(&["--depth", "2"], &program, "site");
    assert_eq!(of(&sites, "take_job()")["callers"][0]["function"], "worker(int)");
    let output = run(&["profile", "--depth", "2", "--", &program]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("take_job() guards.cpp:9") && text.contains("< worker(int)"), "{text}");
}

#[test]
fn latches_have_names() {
    let program = compile_guards(&folder("names"));
    let latches = rows(&[], &program, "latch");
    let names: Vec<_> = latches.iter().map(|latch| latch["name"].as_str().unwrap()).collect();
    assert_eq!(names[0], "jobs_lock in guards");
    assert!(names.contains(&"state+8 in guards"), "{names:?}");
    assert!(names.iter().any(|name| name.starts_with("heap ")), "{names:?}");
}

/// A library of other people's: no frame pointers, no lines, a frame of a few hundred bytes.
const WRAPPER: &str = r"
#include <pthread.h>
#include <string.h>
int uv_mutex_lock(pthread_mutex_t *m, char *out) {
    volatile char room[300];
    memset((void *)room, 1, sizeof room);
    int error = pthread_mutex_lock(m);
    *out = room[error + 7];
    return error;
}
";

/// The first thread holds the latch while the second waits for it.
const HOG: &str = r"
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
int uv_mutex_lock(pthread_mutex_t *, char *);
static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static volatile int held, waits;
__attribute__((noinline)) static void hog(void) {
    pthread_mutex_lock(&m);
    held = 1;
    while (!waits) usleep(1000);
    usleep(200000);
    pthread_mutex_unlock(&m);
}
__attribute__((noinline)) static void victim(void) {
    volatile char here[100] = {0};
    while (!held) usleep(1000);
    waits = 1;
    uv_mutex_lock(&m, (char *)here + 3);
    pthread_mutex_unlock(&m);
    here[1]++;
}
static void *second(void *a) {
    victim();
    return a;
}
int main(void) {
    pthread_t t;
    char out;
    /* The library's call site is known before it is waited at. */
    uv_mutex_lock(&m, &out);
    pthread_mutex_unlock(&m);
    pthread_create(&t, 0, second, 0);
    hog();
    pthread_join(t, 0);
}
";

#[test]
fn a_stack_without_frame_pointers_is_unwound_and_the_holder_is_named() {
    let folder = folder("hog");
    let library = folder.join("libother.so");
    fs::write(folder.join("other.c"), WRAPPER).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-fomit-frame-pointer", "-shared", "-fPIC", "-o"]).arg(&library);
    assert!(cc.arg(folder.join("other.c")).status().unwrap().success());
    let path = folder.to_str().unwrap();
    let (search, run_time) = (format!("-L{path}"), format!("-Wl,-rpath,{path}"));
    let flags = ["-O2", "-fomit-frame-pointer", &search, &run_time, "-lother"];
    let program = compile(&folder, "hog", HOG, &flags).unwrap();
    let sites = rows(&[], &program, "site");
    let (hog, victim) = (of(&sites, "hog"), of(&sites, "victim"));
    assert_eq!((&hog["others_waited"], &victim["contended"]), (&1.into(), &1.into()), "{sites:#?}");
    assert_eq!(hog["others_waited_ns"], victim["wait_total_ns"]);
    assert_eq!(victim["others_waited"], 0);
    let latches = rows(&[], &program, "latch");
    assert_eq!(latches[0]["name"], "m in hog");
    assert_eq!(latches[0]["held_by"]["function"], "hog");
    assert_eq!(latches[0]["function"], "victim");
    let text = String::from_utf8(run(&["profile", "--", &program]).stderr).unwrap();
    assert!(text.contains("waited in victim hog.c:") && text.contains("held by hog hog.c:"));
}

/// The holder never waits, and holds by way of the library's functions; the second time it is known
/// that others wait.
const GUARDED_HOG: &str = r"
#include <mutex>
#include <thread>
#include <unistd.h>
std::mutex m;
volatile int held, waits;
void hog() {
    std::lock_guard<std::mutex> guard(m);
    held = held + 1;
    while (waits != held) usleep(1000);
    usleep(100000);
}
void victim(int round) {
    while (held != round) usleep(1000);
    waits = round;
    std::lock_guard<std::mutex> guard(m);
}
int main() {
    std::thread other([] { victim(1); victim(2); });
    hog();
    usleep(100000);
    hog();
    other.join();
}
";

#[test]
fn a_holder_that_never_waited_is_named_by_its_frames() {
    let program = compile_cxx(&folder("guarded"), "guarded", GUARDED_HOG);
    // A page of the stack may end between the holder and its caller: then it is not known.
    let known = (0..5).any(|_| {
        let sites = rows(&[], &program, "site");
        assert_eq!(of(&sites, "victim(int)")["contended"], 2);
        let hog = sites.iter().find(|site| site["function"] == "hog()");
        hog.is_some_and(|hog| hog["others_waited"] == 1 && hog["contended"] == 0)
    });
    assert!(known);
}

/// A thread waits on a stack of the program's own, hard below memory that may not be read.
const FIBER: &str = r"
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static volatile int waits;
static ucontext_t back, inner;
static void fiber(void) {
    waits = 1;
    pthread_mutex_lock(&m);
    pthread_mutex_unlock(&m);
}
static void *second(void *a) {
    char *stack = mmap(0, 20480, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(stack + 16384, 4096, PROT_NONE);
    getcontext(&inner);
    inner.uc_stack.ss_sp = stack;
    inner.uc_stack.ss_size = 16384;
    inner.uc_link = &back;
    makecontext(&inner, fiber, 0);
    swapcontext(&back, &inner);
    return a;
}
int main(void) {
    pthread_t t;
    pthread_mutex_lock(&m);
    pthread_create(&t, 0, second, 0);
    while (!waits) usleep(1000);
    usleep(100000);
    pthread_mutex_unlock(&m);
    pthread_join(t, 0);
}
";

#[test]
fn a_stack_ends_where_its_memory_does() {
    let folder = folder("fiber");
    let program = compile(&folder, "fiber", FIBER, &[]).unwrap();
    let sites = rows(&["--depth", "16"], &program, "site");
    assert_eq!(of(&sites, "fiber")["contended"], 1);
}

/// A program that denies itself the system call for copying stacks. Its exit code is the `errno`
/// after the latch function.
const SANDBOX: &str = r"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static volatile int waits;
static void *second(void *a) {
    waits = 1;
    errno = 77;
    pthread_mutex_lock(&m);
    *(int *)a = errno;
    pthread_mutex_unlock(&m);
    return a;
}
int main(void) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {4, steps};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) return 1;
    pthread_t t;
    int left = 0;
    pthread_mutex_lock(&m);
    pthread_create(&t, 0, second, &left);
    while (!waits) usleep(1000);
    usleep(100000);
    pthread_mutex_unlock(&m);
    pthread_join(t, 0);
    return left;
}
";

#[test]
fn a_kernel_that_copies_no_stacks_is_supported() {
    let folder = folder("sandbox");
    let program = compile(&folder, "sandbox", SANDBOX, &[]).unwrap();
    let output = run(&["profile", "--", &program]);
    assert_eq!(output.status.code(), Some(77));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("waited in second sandbox.c:15"), "{text}");
    assert!(text.contains("held by main sandbox.c:32"), "{text}");
    assert!(text.contains("The callers of 1 wait are not known"), "{text}");
}
